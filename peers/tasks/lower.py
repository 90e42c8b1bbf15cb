"""`log_partition` runs with `exact=False`, since it would simply sum these models; mini-buckets
have ibound 10. Methods that stop when told have half of the limit.
"""

from peers.tasks import Engine

TITLE = "Lower bounds"
UNIT = "nats"
WHY = """\
What is left is within the last pass of message passing of methods of the same kind.
"""
MODELS = ("grid 20", "weak 15")
ENGINES = (
    Engine("tightz log_partition", "tightz", "peers.engines.ours:lower", "lower",
           "holds always, evidence judged"),
    Engine("tightz mini-bucket", "tightz", "peers.engines.ours:buckets_below", "lower",
           "holds always"),
    Engine("tightz mean_field", "tightz", "peers.engines.ours:mean_field", "lower", "holds always"),
    Engine("pygms mini-bucket", "pygms", "peers.engines.gms:lower", "lower", "lower bound"),
    Engine("pygms mean field", "pygms", "peers.engines.gms:mean_field", "lower", "lower bound"),
)  # fmt: skip
