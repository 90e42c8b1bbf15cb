"""Belief propagation and the Bethe estimate of log Z, on any factor graph and under parities."""

from tightz.propagation.propagation import (
    BetheResult,
    BetheStatus,
    bethe,
)

__all__ = [
    "BetheResult",
    "BetheStatus",
    "bethe",
]
