"""What a result was made from: versions, seed, parameters, model."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from typing import Any

from tightz.runtime.seeds import Seed, seed_sequence
from tightz.version import __version__


def provenance(seed: Seed, digest: str, **parameters: Any) -> dict[str, Any]:
    """A plain dictionary that goes into every result and every JSON record.

    `seed` None: nothing was drawn at random.
    """
    root = None if seed is None else seed_sequence(seed)
    drawn = None if root is None else {"entropy": root.entropy, "spawn_key": list(root.spawn_key)}
    return {
        **versions(),
        "python": platform.python_version(),
        "seed": drawn,
        "model_sha256": digest,
        "parameters": {name: repr(value) for name, value in parameters.items()},
    }


@cache
def versions() -> dict[str, str]:
    """The packages that numbers depend on; tightz need not be installed, only importable."""
    return {"tightz": __version__, "numpy": version("numpy"), "numba": version("numba")}
