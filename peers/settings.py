"""What every engine is held to, from the environment."""

from __future__ import annotations

import os

SECONDS = float(os.environ.get("PEERS_SECONDS", "10"))
"""CPU seconds of a run; methods that stop when told are told half of it."""

MEMORY = int(float(os.environ.get("PEERS_MEMORY", "8")) * 2**30)
"""Address space of a run, in GiB in the environment."""

ENGINES = os.environ.get("PEERS_ENGINES", "")
"""How the names of the engines start that run; all of them where empty."""

INTERPRETER = os.environ.get("TIGHTZ_PEERS", ".venv-peers/bin/python")
"""The interpreter that has the peers."""

CHAINS, TEMPERATURES = 128, 1000
"""Of annealed importance sampling, ours and theirs."""
