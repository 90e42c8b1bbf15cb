"""Annealed importance sampling for positive binary models (Neal 2001)."""

from tightz.sampling.ais.sampling import (
    AisResult,
    AisStatus,
    ais,
)

__all__ = [
    "AisResult",
    "AisStatus",
    "ais",
]
