"""Bounds under attack: models made to break them, truths that leave no room, no tolerance.

A claim that declares its rounding has to hold against the enumerated interval to the last bit; one
that declares none is allowed 1e-9, and counted where it needs that. Crashes, NaN, intervals the
wrong way round, quarantined bounds and exact marginals that are off are failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from verification import methods
from verification.hostile_models import KINDS, hostile_model
from verification.hunting import CONTROL, Case, Every, Tally, examine_cases, method_rows, run
from verification.methods import Answer, Claim
from verification.rows import Row
from verification.truth import Truth, enumerate_model

MODELS = 100_000
SEED = 20270201
LOOSE = 1e-9
"""Allowed to claims that declare no rounding, relative to log Z where that exceeds one."""

MARGINALS = 1e-8
"""Allowed to exact marginals, beside 16 units of float64 on the log weights of the states that
matter."""

EVERY: Every = {
    "mean field": (methods.mean_field, 2),
    "structured mean field": (methods.structured, 8),
    "mean field, collapsed": (methods.collapsed, 8),
    "coset sum": (methods.coset_sum, 8),
    "layer mean field": (methods.layer, 8),
    "block mean field": (methods.block, 2),
    "clustered mean field": (methods.clustered, 4),
    "bethe": (methods.bethe, 2),
    "tree-reweighted": (methods.damped_tree_reweighted, 1),
    "mini-bucket": (methods.mini_bucket, 4),
    "quadratic elimination": (methods.quadratic, 2),
    "exact": (methods.exact, 2),
    "exact, sliced": (methods.sliced, 80),
    "cutset sum": (methods.cutset_sum, 16),
    "levels": (methods.theorems, 80),
    "splitting tree": (methods.splitting, 16),
    "log_partition": (methods.portfolio, 20),
    CONTROL: (methods.not_a_bound, 20),
}
"""method -> every how many models of a kind it runs; the slow ones see fewer."""


def excess(claim: Claim, truth: Truth) -> float:
    """Nats by which a claim is on the wrong side, whatever the truth's own rounding; inf: NaN."""
    value = np.longdouble(claim.value)
    if np.isnan(value):
        return math.inf
    above = 0.0 if value <= truth.high else float(value - truth.high)
    below = 0.0 if value >= truth.low else float(truth.low - value)
    if claim.side == "both":
        return max(0.0, max(above, below) - claim.rounding)
    return above if claim.side == "lower" else below


def judge(answer: Answer, truth: Truth) -> tuple[list[str], bool]:
    """What is wrong with an answer; and whether it leans on undeclared rounding."""
    complaints, loose = list(answer.complaints), False
    allowed = LOOSE * max(1.0, abs(float(truth.high))) if np.isfinite(truth.high) else 0.0
    for claim in answer.claims:
        off = excess(claim, truth)
        if off > (0.0 if claim.rounding > 0.0 else allowed):
            complaints.append(f"{claim} is off by {off:.3g} against {float(truth.high)!r}")
        loose |= off > 0.0
    if answer.marginals is not None and np.isfinite(truth.high):
        off = marginal_error(answer.marginals, truth)
        if not off <= MARGINALS + 16 * 2.0**-53 * truth.size:
            complaints.append(f"exact marginals off by {off:.3g}")
    if answer.ends is not None and np.isfinite(truth.high):
        off = ends_error(answer.ends, truth)
        if off > 4.0 * float(truth.high - truth.low):
            complaints.append(f"an end of a marginal is off by {off:.3g}")
    return complaints, loose and not complaints


def ends_error(ends: list[NDArray[np.float64]], truth: Truth) -> float:
    """By how much a marginal lies outside its ends, at most; inf where one is NaN."""
    worst = 0.0
    for each, p in zip(ends, truth.marginals, strict=True):
        outside = np.maximum(each[:, 0] - p, p - each[:, 1])
        worst = max(worst, math.inf if np.isnan(outside).any() else float(outside.max()))
    return worst


def marginal_error(marginals: list[NDArray[np.float64]], truth: Truth) -> float:
    """The largest difference; NaN where there is one."""
    pairs = zip(marginals, truth.marginals, strict=True)
    return float(np.max([0.0, *(np.max(np.abs(q - p)) for q, p in pairs)]))


def cases(numbers: range) -> Iterator[Case[Truth]]:
    for i in numbers:
        kind, model = hostile_model(SEED, i)
        yield Case(i, i // len(KINDS), kind, model, enumerate_model(model))


def examine(numbers: range) -> Tally:
    """All methods on the hostile models with these numbers."""
    return examine_cases(cases(numbers), EVERY, judge)


def attack(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Rows per method, then per kind, over 100,000 * scale models."""
    models = max(20 * len(KINDS), int(MODELS * scale))
    tally = run(examine, models, workers, progress)
    yield from method_rows("hostile", tally, EVERY)
    for kind in KINDS:
        detail = tally.first.get(kind, "")
        yield Row(f"hostile to: {kind}", tally.kind_cases[kind], tally.kind_failed[kind], detail)
