"""The same elimination in balls of as many bits as it takes (Arb, through python-flint).

Where spins are frustrated and cold, terms of the Pfaffian cancel to exp(-2 J r): float64 has no
digit left and says so. A ball holds its number for certain, so nothing has to be proven afterwards;
where the answer's ball is too large, more bits are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tightz.elimination.planar.fronts import Front
from tightz.elimination.planar.pfaffian import Problem, Sum
from tightz.judge.verdict import UNIT

MOST_BITS = 100_000
FIRST_BITS = 64
BLOCK = 16

PIECE_SECONDS = 0.02
"""Predicted for one call of Arb, during which no other thread of Python runs."""

Balls = Any  # a numpy array of flint.arb, 0 (int) where an entry is zero by structure


def ball_sum(
    terms: list[tuple[float, Problem]],
    bits: int,
    *,
    correlations: bool,
    stop: Callable[[], bool] = bool,
    target: float = 1e-12,
) -> Sum | None:
    """The sum of coefficients times Pf K / Pf W, all numbers within `target`.

    None where that takes more bits, or once `stop()` says so.
    """
    import flint

    before = flint.ctx.prec
    try:
        flint.ctx.prec = bits
        return _total(terms, correlations, target, stop)
    finally:
        flint.ctx.prec = before


def product_seconds(bits: int) -> float:
    """Of one product and sum, measured from 150 to 25,000 bits."""
    return 1e-7 * (1.0 + bits / 900.0) ** 1.2


def _total(
    terms: list[tuple[float, Problem]],
    correlations: bool,
    target: float,
    stop: Callable[[], bool],
) -> Sum | None:
    """With the bits that are set; None where they do not say enough."""
    import flint
    from flint import arb

    parts = []
    for coefficient, problem in terms:
        found = _term(problem, correlations, stop)
        if found is not None:
            parts.append((arb(coefficient) * found[0], found[1]))
        elif len(terms) > 1:  # one of the four may vanish
            halves = [_term(altered, correlations, stop) for altered in problem.split()]
            parts += [(arb(0.5 * coefficient) * h[0], h[1]) for h in halves if h is not None]
            found = None if None in halves else halves[0]
        if found is None:
            return None
    total = sum((value for value, _ in parts), arb(0))
    if not total > 0:
        return None
    exact = total.log()
    log = float(exact.mid())
    rounding = float((exact - arb(log)).abs_upper()) * (1.0 + 1e-15)
    if not rounding <= max(target, 4.0 * UNIT * abs(log)):
        return None
    if not correlations:
        return Sum(log, rounding, 0.0, None, flint.ctx.prec)
    means = [
        sum((value * m[e] for value, m in parts), arb(0)) / total for e in range(len(parts[0][1]))
    ]
    if any(not float(ball.rad()) <= target for ball in means):
        return None
    return Sum(log, rounding, 0.0, np.array([float(m.mid()) for m in means]), flint.ctx.prec)


def _term(
    problem: Problem, correlations: bool, stop: Callable[[], bool]
) -> tuple[Any, list[Any]] | None:
    """Pf K / Pf W and all E[s s']; None where a ball holds zero that may not."""
    from flint import arb

    weight: list[Any] = [1] * (2 * problem.embedding.n_edges)
    for e, coupling in enumerate(problem.embedding.coupling.tolist()):
        weight[2 * e + 1] = 1 if coupling == math.inf else arb(coupling).tanh() if coupling else 0
    rests: dict[int, Balls] = {}
    kept: list[Balls] = []
    value = arb(1)
    for index, front in enumerate(problem.fronts):
        matrix = _assembled(problem, front, weight, rests)
        if correlations:
            kept.append(matrix[: front.leaves.size].copy())
        for k in range(0, front.leaves.size, BLOCK):
            factor = None
            if not stop():
                factor = _eliminate_block(matrix, k, min(k + BLOCK, front.leaves.size))
            if factor is None:
                return None
            value *= factor
        if (problem.sign[front.leaves[0::2] // 2] < 0.0).sum() % 2:
            value = -value
        rests[index] = matrix[front.leaves.size :, front.leaves.size :]
    if not correlations:
        return value, []
    try:
        means = _correlations(problem, kept, weight, stop)
        return None if means is None else (value, means)
    except ZeroDivisionError:  # an inverse that these bits do not prove to exist
        return None


def _assembled(problem: Problem, front: Front, weight: list[Any], rests: dict[int, Balls]) -> Balls:
    """The front's matrix; its upper triangle counts."""
    matrix = np.zeros((front.size, front.size), dtype=object)
    for child, at in zip(front.children, front.places, strict=True):
        rest = rests.pop(child)
        for i, row in enumerate(at.tolist()):
            for j in range(i + 1, at.size):
                column = int(at[j])
                if row < column:
                    matrix[row, column] = rest[i, j]
                else:
                    matrix[column, row] = -rest[i, j]
    place = _places(front)
    ptr, around = problem.embedding.ptr.tolist(), problem.embedding.around
    for v in front.cell.tolist():
        halves = around[ptr[v] : ptr[v + 1]].tolist()
        for first, h in enumerate(halves):
            for k in halves[first + 1 :]:
                i, j = place[h], place[k]
                matrix[min(i, j), max(i, j)] = weight[h] * weight[k] * (1 if i < j else -1)
    links = problem.links
    for k in range(0, front.leaves.size, 2):
        matrix[k, k + 1] += int(links[front.leaves[k] // 2])
    return matrix


def _places(front: Front) -> dict[int, int]:
    return {h: k for k, h in enumerate([*front.leaves.tolist(), *front.stays.tolist()])}


def _eliminate_block(matrix: Balls, low: int, high: int) -> Any:
    """Rows low to high leave: rest + U' P^-1 U; -> the Pfaffian of P, or None.

    Whole blocks because Arb multiplies matrices many times faster than their entries one by one.
    """
    import flint
    from flint import arb, arb_mat

    met = np.array(
        [j for j in range(high, matrix.shape[0]) if not _zero(*matrix[low:high, j])], dtype=np.int64
    )
    own = matrix[low:high, low:high].copy()
    beside = matrix[low:high, met]
    value = arb(1)
    for k in range(0, high - low, 2):
        pivot = _eliminate(own, k, high - low)
        if pivot is None:
            return None
        value *= pivot
    if met.size:
        upper = np.triu(matrix[low:high, low:high], 1)
        try:
            across = arb_mat((upper - upper.T).tolist()).solve(arb_mat(beside.tolist()))
        except ZeroDivisionError:
            return None
        once = product_seconds(flint.ctx.prec) * (high - low) * met.size
        rows = max(1, int(PIECE_SECONDS / once))
        for first in range(0, met.size, rows):
            gained = (arb_mat(beside.T[first : first + rows].tolist()) * across).tolist()
            for a, row in enumerate(gained, first):
                more = np.array([*row[a + 1 :], None], dtype=object)[:-1]
                matrix[met[a], met[a + 1 :]] += more
    return value


def _eliminate(matrix: Balls, k: int, leaves: int) -> Any:
    """The pair k, k + 1 leaves (`kernels.eliminate_skew`); -> its signed pivot or None."""
    sizes = [abs(float(x)) for x in matrix[k, k + 1 : leaves]]
    q = k + 1 + int(np.argmax(sizes))
    sign = 1
    if q != k + 1:
        p, sign = k + 1, -1
        matrix[k, p], matrix[k, q] = matrix[k, q], matrix[k, p]
        for j in range(p + 1, q):
            matrix[p, j], matrix[j, q] = -matrix[j, q], -matrix[p, j]
        matrix[p, q] = -matrix[p, q]
        rest = matrix[p, q + 1 :].copy()
        matrix[p, q + 1 :] = matrix[q, q + 1 :]
        matrix[q, q + 1 :] = rest
    pivot = matrix[k, k + 1]
    if not (pivot > 0 or pivot < 0):
        return None
    first, second = matrix[k], matrix[k + 1]
    met = [j for j in range(k + 2, matrix.shape[0]) if not _zero(first[j], second[j])]
    columns = np.array(met, dtype=np.int64)
    t, v = -first[columns] / _ball(pivot), -second[columns]
    for a, i in enumerate(met):
        after = columns[a + 1 :]
        matrix[i, after] += t[a + 1 :] * v[a] - t[a] * v[a + 1 :]
    return _ball(pivot) * sign


def _zero(*entries: Any) -> bool:
    return all(isinstance(x, int) and x == 0 for x in entries)


def _ball(x: Any) -> Any:
    from flint import arb

    return arb(x)


def _correlations(
    problem: Problem, kept: list[Balls], weight: list[Any], stop: Callable[[], bool]
) -> list[Any] | None:
    """`pfaffian.edge_correlations` in balls."""
    from flint import arb_mat

    means: list[Any] = [None] * problem.embedding.n_edges
    ptr, around = problem.embedding.ptr.tolist(), problem.embedding.around
    inverse: dict[int, Balls] = {len(kept) - 1: np.zeros((0, 0), dtype=object)}
    for index in range(len(kept) - 1, -1, -1):
        if stop():
            return None
        front, rows = problem.fronts[index], kept[index]
        leaves = front.leaves.size
        whole = np.zeros((front.size, front.size), dtype=object)
        whole[leaves:, leaves:] = rest = inverse.pop(index)
        if leaves:
            upper = np.triu(rows[:, :leaves], 1)
            within = arb_mat((upper - upper.T).tolist()).inv()
            whole[:leaves, :leaves] = _array(within)
            if front.stays.size:
                across = -within * arb_mat(rows[:, leaves:].tolist())
                to_rest = across * arb_mat(rest.tolist())
                whole[:leaves, leaves:] = _array(to_rest)
                whole[leaves:, :leaves] = -_array(to_rest).T
                whole[:leaves, :leaves] = _array(within + to_rest * across.transpose())
        for child, at in zip(front.children, front.places, strict=True):
            inverse[child] = whole[np.ix_(at, at)]
        place = _places(front)
        for v in front.cell.tolist():
            halves = around[ptr[v] : ptr[v + 1]].tolist()
            for a, h in enumerate(halves):
                if h % 2:
                    terms = [weight[k] * whole[place[k], place[h]] for k in halves]
                    slope = sum(terms[a + 1 :]) - sum(terms[:a])
                    means[h // 2] = _ball(weight[h] + (1 - weight[h] * weight[h]) * slope)
    return means


def _array(matrix: Any) -> Balls:
    out = np.empty((matrix.nrows(), matrix.ncols()), dtype=object)
    out[...] = matrix.tolist()
    return out
