"""Trading time for memory: fix a few variables, eliminate the rest, loop over the fixed states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.choice import choose_plan
from tightz.elimination.exact.planning import EliminationPlan, build_plan
from tightz.elimination.exact.precision import Scale
from tightz.elimination.exact.run import Elimination
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph

MAX_SECONDS = 1800.0
"""Predicted over all slices; beyond this slicing is refused."""

SLICE_SECONDS = 5e-3
"""For making the conditioned model of one slice."""

_MAX_SLICES = 1 << 20


class Sliced(NamedTuple):
    """The variables fixed (numbers of the model), one slice of the model, and its plan."""

    variables: tuple[int, ...]
    model: FactorGraph
    plan: EliminationPlan
    slices: int = 1


def slice_plan(
    model: FactorGraph,
    plan: EliminationPlan,
    max_bytes: int,
    *,
    marginals: bool,
    most_seconds: float = MAX_SECONDS,
) -> Sliced | None:
    """Fix variables one by one, each time the one in most of the largest tables, until it fits.

    None where all slices together would take longer than `most_seconds`. In one plan slicing never
    saves work (a table without the sliced variable is computed once per slice), so that is known
    early.
    """
    most_seconds = min(most_seconds, MAX_SECONDS)
    if plan.table_seconds > most_seconds:
        return None
    fixed: list[int] = []
    names = np.arange(model.n_variables)
    current, count = model, 1
    while True:
        v = _heaviest(plan)
        count *= int(current.cardinalities[v])
        fixed.append(int(names[v]))
        current = current.with_evidence({v: 0}).condition()
        names = np.delete(names, v)
        plan = build_plan(current, plan.skeleton, plan.heuristic)
        if count > _MAX_SLICES or count * (plan.seconds + SLICE_SECONDS) > most_seconds:
            return None
        if plan.fits(max_bytes, marginals=marginals):
            break
    fresh = choose_plan(current)
    if fresh and fresh.seconds < plan.seconds and fresh.fits(max_bytes, marginals=marginals):
        plan = fresh
    return Sliced(tuple(fixed), current, plan, count)


def _heaviest(plan: EliminationPlan) -> int:
    """The variable whose absence shrinks the tables most."""
    saved = np.zeros(len(plan.order))
    for bucket in plan.buckets:
        axes = list(bucket.axes)
        cards = plan.cardinalities[axes].astype(np.float64)
        saved[axes] += np.prod(cards) * (1 - 1 / cards)
    return int(plan.order[int(np.argmax(saved))])


def run_slices(
    model: FactorGraph,
    sliced: Sliced,
    max_bytes: int,
    *,
    marginals: bool,
    stop: Callable[[], bool] = bool,
) -> tuple[float, float, list[NDArray[np.float64]], NDArray[np.float64]]:
    """(log Z, its rounding, marginals, factor marginals) of `model`, summed over all slices."""
    plan = sliced.plan if marginals else sliced.plan.in_place
    steps = plan.marginal_schedule(max_bytes) if marginals else None
    free = np.delete(np.arange(model.n_variables), sliced.variables)
    singles = [np.zeros(int(c)) for c in model.cardinalities]
    tables = np.zeros(model.log_tables.size)
    positions = FactorGraph.from_arrays(
        model.cardinalities,
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        np.arange(model.log_tables.size, dtype=np.float64),
    )
    parts: list[Scale] = []
    roundings: list[float] = []
    top = Scale(-math.inf)  # log of what a weight of 1 stands for in the sums
    mass = 0.0
    states = [range(int(model.cardinalities[v])) for v in sliced.variables]
    for assignment in itertools.product(*states):
        evidence = dict(zip(sliced.variables, assignment, strict=True))
        run = Elimination(model.with_evidence(evidence).condition(), plan)
        run.run(steps if steps is not None else plan.log_z_schedule(), stop)
        parts.append(run.scale)
        roundings.append(run.rounding)
        if run.log_z == -math.inf or not marginals:
            continue
        if _above(run.scale, top) > 0.0:
            factor = math.exp(-_above(run.scale, top))
            mass *= factor
            for total in (*singles, tables):
                total *= factor
            top = run.scale
        weight = math.exp(_above(run.scale, top))
        mass += weight
        for v, state in evidence.items():
            singles[v][state] += weight
        for v, single in zip(free.tolist(), run.marginals, strict=True):
            singles[v] += weight * single
        at = positions.with_evidence(evidence).condition().log_tables.astype(np.int64)
        tables[at] += weight * run.factor_marginals
    for total in (*singles, tables) if mass > 0.0 else ():
        total /= mass
    return *_log_sum(parts, roundings), singles, tables


def _above(x: Scale, y: Scale) -> float:
    """x - y without losing what the large parts have in common."""
    return (x.high - y.high) + (x.low - y.low)


def _log_sum(parts: list[Scale], roundings: list[float]) -> tuple[float, float]:
    """(log sum exp of the slices, how far it can be off when each is off by its own rounding).

    The sum grows with every slice: moving all of them up, or all down, by their roundings gives its
    extremes, and a slice without weight does not count. Its own arithmetic costs LIBRARY for exp
    and for log, UNIT log N for the differences (see `precision`) and one rounding of the result.
    """
    top = max(parts, key=lambda x: (x.high, x.low))
    if top.high == -math.inf:
        return -math.inf, 0.0
    depths = [_above(x, top) for x in parts]
    spread = _log_sum_exp(depths)
    log_z = math.fsum([*top, spread])
    above = _log_sum_exp([x + e for x, e in zip(depths, roundings, strict=True)])
    below = _log_sum_exp([x - e for x, e in zip(depths, roundings, strict=True)])
    count = math.log(len(parts))
    own = UNIT * abs(log_z) + 4.0 * (LIBRARY + UNIT) * (1.0 + count)
    return log_z, max(above - spread, spread - below) * (1.0 + LIBRARY) + own


def _log_sum_exp(logs: list[float]) -> float:
    high = max(logs)
    return high + math.log(math.fsum(math.exp(x - high) for x in logs))
