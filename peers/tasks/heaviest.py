"""The state that an engine hands back is weighed here, by the same sum for all; the error is what
it lacks to the heaviest state that anyone found. toulbar2 runs with VAC in preprocessing;
simulated annealing makes 100 runs of 1000 sweeps.
"""

from peers.tasks import Engine

TITLE = "Heaviest state (MAP)"
UNIT = "nats"
WHY = """\
Where local consistency closes the gap toulbar2 proves its state with hardly a search, and
dwave's dynamic programming is compiled throughout; ours pays for reductions, a search and
its own proof before it answers.
"""
MODELS = ("grid 10", "grid 20", "potts 12")
ENGINES = (
    Engine("tightz ground_state", "tightz", "peers.engines.ours:heaviest", "state",
           "state, and a bound on all others"),
    Engine("toulbar2", "pytoulbar2", "peers.engines.toulbar:heaviest", "state",
           "state, and a dual bound"),
    Engine("dwave-samplers, tree", "dwave-samplers", "peers.engines.annealers:heaviest_tree",
           "state", "ground state"),
    Engine("dwave-samplers, annealing", "dwave-samplers",
           "peers.engines.annealers:heaviest_annealed", "state", "samples"),
    Engine("pygms, junction tree", "pygms", "peers.engines.gms:heaviest", "state", "argmax"),
)  # fmt: skip
