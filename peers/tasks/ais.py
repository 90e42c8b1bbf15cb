"""128 chains and 1000 temperatures for both, one thread; rbms computes in single precision, as it
trains and stores.
"""

from peers.tasks import Engine

TITLE = "Annealed importance sampling on RBMs"
UNIT = "nats"
WHY = """\
Both are draws of one seed with the same number of chains: errors of this size are noise.
"""
MODELS = ("rbm 100x16", "rbm tiny_15")
ENGINES = (
    Engine("tightz ais", "tightz", "peers.engines.ours:annealed", "estimate",
           "estimate, its error, a certified lower end"),
    Engine("tightz log_partition", "tightz", "peers.engines.ours:exact", "exact",
           "exact, with its rounding"),
    Engine("rbms AIS", "rbms", "peers.engines.machines:annealed", "estimate", "a number"),
)  # fmt: skip
