"""I-projections: the best q of a tractable family on a coset."""

from tightz.families.mean_field import MeanField
from tightz.families.point_mass import PointMass
from tightz.families.projection import Family, IProjection, Status, evaluate

__all__ = ["Family", "IProjection", "MeanField", "PointMass", "Status", "evaluate"]
