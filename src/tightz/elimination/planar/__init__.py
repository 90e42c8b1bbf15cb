"""Exact sums of planar spin models without fields, by Pfaffians."""

from tightz.elimination.planar.plan import PlanarPlan, PlanarSum, planar_plan
from tightz.elimination.refused import Refused

__all__ = ["PlanarPlan", "PlanarSum", "Refused", "planar_plan"]
