"""Cutset conditioning: some variables held at given states, the others summed out exactly."""

from tightz.references.conditioning.cutset import Cutset, choose_cutset
from tightz.references.conditioning.elimination import ConditionedElimination

__all__ = ["ConditionedElimination", "Cutset", "choose_cutset"]
