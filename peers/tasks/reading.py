"""The clock is on the library's own reader, from the file to its model. The value is the number of
table entries it holds then; the error compares the sum of their squares with what was written.
"""

from peers.tasks import Engine

TITLE = "Reading files"
UNIT = "parts of the sum"
WHY = """\
A reader in C++ takes the text as it comes; ours checks shapes and probabilities in bulk
with numpy and keeps names and states.
"""
MODELS = ("file grid.uai", "file network.bif")
ENGINES = (
    Engine("tightz", "tightz", "peers.engines.ours:reading", "exact", "a model"),
    Engine("pyAgrum", "pyagrum", "peers.engines.agrum:reading", "exact", "a network"),
    Engine("pygms", "pygms", "peers.engines.gms:reading", "exact", "factors", "uai"),
    Engine("toulbar2", "pytoulbar2", "peers.engines.toulbar:reading", "parts",
           "cost functions (their number is shown)", "uai"),
    Engine("pgmpy, UAI", "pgmpy", "peers.engines.pgm:reading_uai", "exact", "a network",
           "uai"),
    Engine("pgmpy, BIF", "pgmpy", "peers.engines.pgm:reading_bif", "exact", "a network",
           "bif"),
)  # fmt: skip
