"""log Z by following all passes of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import Scale, add_scales
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine
from tightz.elimination.gpu.passes import Passes
from tightz.elimination.gpu.program import Source
from tightz.elimination.gpu.runner import Known, Runner
from tightz.judge.verdict import UNIT


class Solved(NamedTuple):
    """log Z to twice float64's precision, and how far its first part can be off."""

    scale: Scale
    rounding: float


NO_STATE = Solved(Scale(-math.inf), 0.0)


def solve(
    plan: EliminationPlan,
    found: Passes,
    factors: Factors,
    machine: Machine,
    stop: Callable[[], bool] = bool,
) -> Solved:
    """log Z of one slice; `StoppedError` between two passes once `stop()` says so."""
    terms, rounding = list(factors.constants), 0.0
    if -math.inf in terms:
        return NO_STATE
    runner = Runner(plan, factors, machine, list(found.steps), found.peak, stop)
    known: dict[Source, Known] = {}
    for k, one in enumerate(found.steps):
        out = runner.run(k, known)
        if out is None:
            return NO_STATE
        known = {s: t for s, t in known.items() if s not in one.inputs}
        last = one.chain[-1]
        if plan.buckets[last].scope:
            known[Source(last)] = out
        else:  # one entry, its own largest
            terms += out.top_terms()
            rounding += out.top_rounding
    scale = add_scales(terms)
    return Solved(scale, rounding + UNIT * abs(scale.high))
