"""Bounds on the wrong side of the truth, hunted over random models by every method.

Each model is enumerated. A method that refuses a model (by an error of tightz) is counted as
refusing; what it does return must lie on its side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from verification import methods
from verification.hunting import CONTROL, Case, Every, Tally, examine_cases, method_rows, run
from verification.methods import Answer
from verification.models import KINDS, enumerated_log_z, random_model
from verification.rows import Row

MODELS = 100_000

EVERY: Every = {
    "mean field": (methods.mean_field, 1),
    "structured mean field": (methods.structured, 2),
    "mean field, collapsed": (methods.collapsed, 2),
    "coset sum": (methods.coset_sum, 2),
    "layer mean field": (methods.layer, 2),
    "block mean field": (methods.block, 1),
    "tree-reweighted": (methods.tree_reweighted, 1),
    "mini-bucket": (methods.mini_bucket, 1),
    "quadratic elimination": (methods.quadratic, 1),
    "exact": (methods.exact, 4),
    "splitting tree": (methods.splitting, 20),
    "log_partition": (methods.portfolio, 20),
    CONTROL: (methods.not_a_bound, 20),
}
"""method -> every how many models it runs; the slow ones see fewer."""


def violation(side: str, value: float, log_z: float) -> float:
    """How far `value` is on the wrong side, beyond rounding; 0 where it is not."""
    if math.isnan(value):
        return math.inf
    if value == log_z:
        return 0.0
    excess = {"lower": value - log_z, "upper": log_z - value, "both": abs(value - log_z)}[side]
    return max(0.0, excess - (1e-9 * max(1.0, abs(log_z)) if math.isfinite(log_z) else 0.0))


def judge(answer: Answer, log_z: float) -> tuple[list[str], bool]:
    """The claims on the wrong side; the truth here is float64 itself, so rounding is allowed."""
    wrong = [c for c in answer.claims if violation(c.side, c.value, log_z) > 0.0]
    return ([f"{wrong} against {log_z!r}"] if wrong else []), False


def cases(numbers: range) -> Iterator[Case[float]]:
    for i in numbers:
        kind = KINDS[i % len(KINDS)]
        model = random_model(np.random.default_rng([20261115, i]), kind)
        yield Case(i, i // len(KINDS), kind, model, enumerated_log_z(model))


def examine(numbers: range) -> Tally:
    """All methods on the models with these numbers."""
    return examine_cases(cases(numbers), EVERY, judge)


def hunt(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Rows per method over 100,000 * scale models."""
    models = max(20 * len(KINDS), int(MODELS * scale))
    yield from method_rows("bounds", run(examine, models, workers, progress), EVERY)
