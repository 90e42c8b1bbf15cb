"""What we reason about: factor graphs, Ising models, RBMs, spin polynomials, file formats."""

from tightz.models.builders import ising, ising_grid, rbm
from tightz.models.factor_graph import Bipartite, Factor, FactorGraph, Grid
from tightz.models.spin_polynomial import SpinPolynomial

__all__ = [
    "Bipartite",
    "Factor",
    "FactorGraph",
    "Grid",
    "SpinPolynomial",
    "ising",
    "ising_grid",
    "rbm",
]
