"""Quadratic elimination: upper bounds of dense pairwise models of spins."""

from tightz.uppers.quadratic.bounds import (
    Quadratic,
    QuadraticResult,
    QuadraticStatus,
    quadratic,
    quadratic_bounds,
)

__all__ = ["Quadratic", "QuadraticResult", "QuadraticStatus", "quadratic", "quadratic_bounds"]
