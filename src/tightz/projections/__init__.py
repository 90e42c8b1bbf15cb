"""Random parity constraints: GF(2) elimination, hash families, cosets, pivots."""

from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity, HashFamily, Parities, SparseParity
from tightz.projections.pivots import FirstColumns, PivotPolicy, Reliability

__all__ = [
    "Coset",
    "DenseParity",
    "FirstColumns",
    "HashFamily",
    "Parities",
    "PivotPolicy",
    "Reliability",
    "SparseParity",
]
