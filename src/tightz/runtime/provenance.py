"""What a result was made from: versions, seed, parameters, model."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tightz.runtime.seeds import Seed, seed_sequence


def provenance(seed: Seed, digest: str, **parameters: Any) -> dict[str, Any]:
    """A plain dictionary that goes into every result and every JSON record."""
    root = seed_sequence(seed)
    return {
        "tightz": _own_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "python": platform.python_version(),
        "seed": {"entropy": root.entropy, "spawn_key": list(root.spawn_key)},
        "model_sha256": digest,
        "parameters": {name: repr(value) for name, value in parameters.items()},
    }


def _own_version() -> str:
    """The installed version, or the source tree's where the package is not installed."""
    try:
        return version("tightz")
    except PackageNotFoundError:
        import tightz

        return tightz.__version__
