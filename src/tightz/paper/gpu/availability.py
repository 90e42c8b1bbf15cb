"""Whether a plan can run on a GPU, and if not, why and what would mend it."""

from __future__ import annotations

import numpy as np

from tightz.families.mean_field import MeanField
from tightz.paper.trials import TrialPlan
from tightz.projections.hashing import DenseParity, SparseParity
from tightz.runtime.gpu import why_no_device
from tightz.search.annealing import AnnealedMeanField


def why_not(plan: TrialPlan, *, simulator: bool) -> str:
    """Empty where a device is usable and can run this plan's trials, else the first obstacle.

    `simulator`: whether numba's CUDA simulator counts as a device.
    """
    return why_not_plan(plan) or why_no_device(simulator)


def why_not_plan(plan: TrialPlan) -> str:
    """Empty where the device can run this plan's trials, else what stands in the way."""
    if type(plan.family) not in (MeanField, AnnealedMeanField):
        return f"the family {type(plan.family).__name__} runs on the CPU only"
    if type(plan.hashing) not in (DenseParity, SparseParity):
        return f"parities of {type(plan.hashing).__name__} are drawn on the CPU only"
    if plan.polish:
        return "polishing (a second basis per coset after a search) runs on the CPU only"
    if plan.collapsed is not None and plan.lift:
        return "marginals of a collapsed model are lifted on the CPU only; use collapse=0"
    if plan.lift and plan.products is not None and not plan.products.are_spins(plan.polynomial.n):
        return "marginals of variables in bits, or tied by parities, are averaged on the CPU only"
    if plan.polynomial.n == 0 or plan.polynomial.constant == -np.inf:
        return "there is nothing to project: no spins, or Z = 0"
    return ""
