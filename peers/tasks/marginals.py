"""All one-variable marginals; the error is the largest difference of any probability. Evidence is
in the model: the peers get it their own way, or tables with it applied.
"""

from peers.tasks import Engine

TITLE = "Exact marginals"
UNIT = "probability"
WHY = """\
As with exact sums, bookkeeping for each bucket and the judge's second sums are most of our
time on models whose tables are small; on top of it every marginal gets ends that hold
always.
"""
MODELS = ("grid 10", "potts 12", "network 80", "alarm")
ENGINES = (
    Engine("tightz", "tightz", "peers.engines.ours:marginals", "exact", "exact"),
    Engine("pyAgrum", "pyagrum", "peers.engines.agrum:marginals", "exact", "posteriors"),
    Engine("dwave-samplers, tree", "dwave-samplers", "peers.engines.annealers:marginals", "exact",
           "variable marginals"),
    Engine("pygms, junction tree", "pygms", "peers.engines.gms:marginals", "exact", "beliefs"),
    Engine("pgmpy, elimination", "pgmpy", "peers.engines.pgm:marginals", "exact",
           "normalised factors"),
)  # fmt: skip
