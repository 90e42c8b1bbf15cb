"""Trading time for memory: fix a few variables, eliminate the rest, loop over the fixed states."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.rounding import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.references.exact.order import choose_order
from tightz.references.exact.planning import EliminationPlan, build_plan
from tightz.references.exact.run import Elimination

MAX_WORK = 1e12  # multiplications over all slices: about half an hour on two cores
_MAX_SLICES = 1 << 20


class Sliced(NamedTuple):
    """The variables fixed (numbers of the model), one slice of the model, and its plan."""

    variables: tuple[int, ...]
    model: FactorGraph
    plan: EliminationPlan


def slice_plan(
    model: FactorGraph, plan: EliminationPlan, max_bytes: int, *, marginals: bool
) -> Sliced | None:
    """Fix variables one by one, each time the one in most of the largest tables, until it fits.

    None where the work over all slices would pass MAX_WORK. In one order slicing never saves
    work (a table without the sliced variable is computed once per slice), so that is known early.
    """
    if plan.flops > MAX_WORK:
        return None
    fixed: list[int] = []
    names = np.arange(model.n_variables)
    current, count = model, 1
    while True:
        v = _heaviest(plan)
        count *= int(current.cardinalities[v])
        fixed.append(int(names[v]))
        order = plan.order[plan.order != v]
        current, _ = current.with_evidence({v: 0}).condition()
        names = np.delete(names, v)
        plan = build_plan(current, order - (order > v), plan.heuristic)
        if count > _MAX_SLICES or count * plan.flops > MAX_WORK:
            return None
        if plan.fits(max_bytes, marginals=marginals):
            break
    choice = choose_order(current)
    fresh = build_plan(current, choice.order, choice.heuristic)
    if fresh.flops < plan.flops and fresh.fits(max_bytes, marginals=marginals):
        plan = fresh
    return Sliced(tuple(fixed), current, plan)


def _heaviest(plan: EliminationPlan) -> int:
    """The variable whose absence shrinks the tables most."""
    saved = np.zeros(len(plan.order))
    for b, bucket in enumerate(plan.buckets):
        axes = [b, *bucket.scope]
        cards = plan.cardinalities[axes].astype(np.float64)
        saved[axes] += np.prod(cards) * (1 - 1 / cards)
    return int(plan.order[int(np.argmax(saved))])


def run_slices(
    model: FactorGraph, sliced: Sliced, max_bytes: int, *, marginals: bool
) -> tuple[float, float, list[NDArray[np.float64]], NDArray[np.float64]]:
    """(log Z, its rounding, marginals, factor marginals) of `model`, summed over all slices."""
    plan = sliced.plan
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
    log_zs: list[float] = []
    roundings: list[float] = []
    top = -math.inf  # log of what a weight of 1 stands for in the sums
    states = [range(int(model.cardinalities[v])) for v in sliced.variables]
    for assignment in itertools.product(*states):
        evidence = dict(zip(sliced.variables, assignment, strict=True))
        run = Elimination(model.with_evidence(evidence).condition()[0], plan)
        run.run(steps if steps is not None else plan.log_z_schedule())
        log_zs.append(run.log_z)
        roundings.append(run.rounding)
        if run.log_z == -math.inf or not marginals:
            continue
        if run.log_z > top:
            for total in (*singles, tables):
                total *= math.exp(top - run.log_z)
            top = run.log_z
        weight = math.exp(run.log_z - top)
        for v, state in evidence.items():
            singles[v][state] += weight
        for v, single in zip(free.tolist(), run.marginals, strict=True):
            singles[v] += weight * single
        at = positions.with_evidence(evidence).condition()[0].log_tables.astype(np.int64)
        tables[at] += weight * run.factor_marginals
    log_z = _log_sum(log_zs)
    if log_z > -math.inf:
        share = math.exp(top - log_z)
        for total in (*singles, tables):
            total *= share
    return log_z, _sum_rounding(log_z, log_zs, roundings), singles, tables


def _log_sum(logs: list[float]) -> float:
    high = max(logs)
    if high == -math.inf:
        return high
    return high + math.log(math.fsum(math.exp(x - high) for x in logs))


def _sum_rounding(log_z: float, logs: list[float], roundings: list[float]) -> float:
    """How far log sum exp of slices can be off when each is off by its own rounding.

    The sum grows with every slice: moving all of them up, or all down, by their roundings gives its
    extremes, and a slice without weight does not count. `_log_sum` itself costs LIBRARY for exp and
    for log, UNIT log N for the differences (see `precision`) and two roundings of its result.
    """
    if log_z == -math.inf:
        return 0.0
    above = _log_sum([x + e for x, e in zip(logs, roundings, strict=True)])
    below = _log_sum([x - e for x, e in zip(logs, roundings, strict=True)])
    count = math.log(len(logs))
    own = 2.0 * UNIT * abs(log_z) + LIBRARY * (1.0 + count) + UNIT * (2.0 + count)
    return max(above - log_z, log_z - below) + 4.0 * own
