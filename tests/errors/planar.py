"""What the sums of planar models say."""

from __future__ import annotations

import tightz as tz
from tests.errors.table import Case
from tightz.elimination import planar
from tightz.elimination.planar import embedding, plan
from tightz.elimination.planar.pfaffian import Pfaffian
from tightz.errors import UnsupportedModelError
from tightz.judge.verdict import RefutedError

SPIN_PAIR = [[1.0, -1.0], [-1.0, 1.0]]


def _square(coupling: float, last: float) -> tz.FactorGraph:
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
    values = [coupling, coupling, coupling, last]
    tables = [[[v * x for x in row] for row in SPIN_PAIR] for v in values]
    return tz.FactorGraph([2] * 4, list(zip(pairs, tables, strict=True)))


def _solve(model, **options):
    return planar.planar_plan(model).solve(**options)


def _no_plane(patch):
    patch.setattr(embedding, "genus", lambda _: 1)
    planar.planar_plan(_square(1.0, 1.0))


def _below_zero(patch):
    patch.setattr(plan, "pfaffian", lambda *_: Pfaffian(0.0, -1, 1e-9, 0.0))
    _solve(_square(1.0, 1.0), marginals=False)


CASES = [
    Case(
        UnsupportedModelError,
        "planar: the model is frustrated and cold, its terms cancel beyond float64, and more bits "
        "take longer than the 0 s that there were (predicted: ... s)",
        lambda: _solve(_square(1e4, -1e4), time_limit=0),
    ),
    Case(
        RefutedError,
        "planar: the embedding found does not satisfy Euler's formula",
        _no_plane,
    ),
    Case(
        RefutedError,
        "planar: the signed sum of Pfaffians is -1.0, below zero",
        _below_zero,
    ),
]
