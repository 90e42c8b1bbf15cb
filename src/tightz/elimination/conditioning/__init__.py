"""Cutset conditioning: some variables held at given states, the others summed out exactly."""

from tightz.elimination.conditioning.cutset import Cutset, choose_cutset
from tightz.elimination.conditioning.elimination import ConditionedElimination

__all__ = ["ConditionedElimination", "Cutset", "choose_cutset"]
