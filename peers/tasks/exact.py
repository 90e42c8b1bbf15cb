"""Every engine gets the tables with their largest entry at 1 and the logs of the rest beside it,
so that a library that multiplies plain numbers has the best chance. Planning counts, building
the library's own model does not.
"""

from peers.tasks import Engine

TITLE = "Exact log Z"
UNIT = "nats"
WHY = """\
Every bucket costs us about a third of a millisecond of bookkeeping in Python: the layout of
its tables, merging them, and the judge's second sum of sampled entries. Where all tables
are small that is nearly all the time there is, and cotengra, pyAgrum and dwave-samplers go
straight to their kernels.
"""
MODELS = (
    "grid 10", "grid 15", "grid 20", "weak 15", "potts 12", "network 80", "alarm",
)  # fmt: skip
ENGINES = (
    Engine("tightz", "tightz", "peers.engines.ours:exact", "exact", "exact, with its rounding"),
    Engine("cotengra, greedy path", "cotengra", "peers.engines.contraction:greedy", "exact",
           "a contraction's mantissa and exponent"),
    Engine("cotengra, annealed tree", "cotengra", "peers.engines.contraction:annealed", "exact",
           "a contraction's mantissa and exponent"),
    Engine("pyAgrum", "pyagrum", "peers.engines.agrum:exact", "exact", "P(evidence), a double"),
    Engine("dwave-samplers, tree", "dwave-samplers", "peers.engines.annealers:exact", "exact",
           "log partition function"),
    Engine("pygms, junction tree", "pygms", "peers.engines.gms:exact", "exact", "ln Z"),
    Engine("pgmpy, elimination", "pgmpy", "peers.engines.pgm:elimination", "exact",
           "an unnormalised table, whose sum is Z; a double"),
)  # fmt: skip
