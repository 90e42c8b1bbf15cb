"""I-projections: the best q of a tractable family on a coset."""

from tightz.families.mean_field import MeanField, PointMass
from tightz.families.projection import Drawn, Family, IProjection, Refines, Status, evaluate
from tightz.families.structured import StructuredMeanField
from tightz.families.structured.clusters import strips

__all__ = [
    "Drawn",
    "Family",
    "IProjection",
    "MeanField",
    "PointMass",
    "Refines",
    "Status",
    "StructuredMeanField",
    "evaluate",
    "strips",
]
