"""Belief propagation and the Bethe estimate of log Z, on any factor graph and under parities."""

from tightz.propagation.propagation import BetheResult, bethe
from tightz.propagation.runs import BetheStatus

__all__ = [
    "BetheResult",
    "BetheStatus",
    "bethe",
]
