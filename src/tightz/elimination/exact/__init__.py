"""Exact log Z and marginals of any discrete factor graph, by variable elimination."""

from tightz.elimination.exact.elimination import (
    ExactResult,
    exact,
    exact_way,
    plan,
)

__all__ = [
    "ExactResult",
    "exact",
    "exact_way",
    "plan",
]
