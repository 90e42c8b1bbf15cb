"""Quadratic elimination: upper bounds of dense pairwise models of spins."""

from tightz.uppers.quadratic.bounds import QuadraticResult, quadratic, quadratic_bounds
from tightz.uppers.quadratic.run import Quadratic, QuadraticStatus

__all__ = ["Quadratic", "QuadraticResult", "QuadraticStatus", "quadratic", "quadratic_bounds"]
