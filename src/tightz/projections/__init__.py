"""Random parity constraints: GF(2) elimination, hash families, cosets, pivots."""

from tightz.projections.coset import Coset
from tightz.projections.hashing import (
    DenseParity,
    FirstColumns,
    HashFamily,
    Parities,
    PivotPolicy,
    Reliability,
    SparseParity,
)

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
