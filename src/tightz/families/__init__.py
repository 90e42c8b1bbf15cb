"""I-projections: the best q of a tractable family on a coset."""

from tightz.families.mean_field import MeanField
from tightz.families.point_mass import PointMass
from tightz.families.projection import Family, IProjection, Status, evaluate
from tightz.families.structured import StructuredMeanField
from tightz.families.structured.clusters import strips

__all__ = [
    "Family",
    "IProjection",
    "MeanField",
    "PointMass",
    "Status",
    "StructuredMeanField",
    "evaluate",
    "strips",
]
