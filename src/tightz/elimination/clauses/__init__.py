"""Weighted model counting: exact sums of models whose tables are mostly zeros and ones."""

from tightz.elimination.clauses.counting import (
    Counting,
    CountingPlan,
    counting_plan,
    plan_clauses,
)
from tightz.elimination.refused import Refused

__all__ = ["Counting", "CountingPlan", "Refused", "counting_plan", "plan_clauses"]
