"""As above: `exact=False`, ibound 10, half of the limit."""

from peers.tasks import Engine

TITLE = "Upper bounds"
UNIT = "nats"
WHY = """\
What is left is within the last pass of message passing of methods of the same kind.
"""
MODELS = ("grid 20", "weak 15")
ENGINES = (
    Engine("tightz log_partition", "tightz", "peers.engines.ours:upper", "upper",
           "holds always, evidence judged"),
    Engine("tightz mini-bucket", "tightz", "peers.engines.ours:buckets_above", "upper",
           "holds always"),
    Engine("tightz tree-reweighted", "tightz", "peers.engines.ours:reweighted", "upper",
           "holds at every iterate"),
    Engine("pygms mini-bucket", "pygms", "peers.engines.gms:upper", "upper", "upper bound"),
)  # fmt: skip
