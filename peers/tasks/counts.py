"""Formulas as DIMACS files with weights of literals; log of the weighted count."""

from peers.tasks import Engine

TITLE = "Weighted model counts"
UNIT = "nats"
WHY = """\
Ganak preprocesses the formula with Arjun and learns clauses in a compiled search made for
this one problem. Ours is a search of the kind of sharpSAT, in numba, and reaches it through
the reductions for any model.
"""
MODELS = ("cnf 60", "cnf 100", "cnf 75, no weights")
ENGINES = (
    Engine("tightz", "tightz", "peers.engines.ours:counted", "exact", "exact, with its rounding"),
    Engine("pyganak", "pyganak", "peers.engines.counters:ganak", "exact",
           "count; a double of 128 bits' work with weights"),
    Engine("pyapproxmc", "pyapproxmc", "peers.engines.counters:approxmc", "estimate",
           "within a factor 1.8 with probability 0.95"),
)  # fmt: skip
