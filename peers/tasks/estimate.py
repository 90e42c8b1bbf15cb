"""Numbers that promise nothing, or an error. `log_partition` runs with `exact=False`; pygms draws
from its mini-bucket proposal for a quarter of the limit, after a quarter of message passing.
"""

from peers.tasks import Engine

TITLE = "Estimates"
UNIT = "nats"
WHY = """\
An estimate without an error may be near by luck; ours comes with an error that is
calibrated.
"""
MODELS = ("grid 20", "weak 15", "regular 80")
ENGINES = (
    Engine("tightz log_partition", "tightz", "peers.engines.ours:estimate", "estimate",
           "estimate and its error"),
    Engine("tightz bethe", "tightz", "peers.engines.ours:bethe", "estimate",
           "Bethe value, and whether it converged"),
    Engine("pygms mini-bucket draws", "pygms", "peers.engines.gms:sampling", "estimate",
           "a mean of weights"),
    Engine("pygms loopy propagation", "pygms", "peers.engines.gms:propagation", "estimate",
           "lnZ after 30 rounds"),
)  # fmt: skip
