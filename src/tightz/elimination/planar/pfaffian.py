"""log |Pf K| along the fronts, what rounding can have moved it, and entries of the inverse.

Every front's elimination is exact for a front that differs by a small matrix (`kernels`). All these
differences together are one skew matrix E, and the pivots found are exactly those of K + E. With
the smallest singular value s of K and ||E|| < s,

    |log |Pf(K + E)| - log |Pf K|| <= 1/2 ||E||_* / (s - ||E||),        ||E||_* the nuclear norm

(d log |det K| = tr K^-1 dK along K + x E, 0 <= x <= 1). Fronts that do not meet in the tree hold
different rows, so ||E|| is at most the largest sum of norms from a cell to the root, and the
nuclear norm at most the sum over fronts of sqrt(rows) times the Frobenius norm.

s is proven by Sylvester's law: i K is Hermitian with eigenvalues in pairs +-, so if i K - c + E',
eliminated along the same fronts, has as many negative as positive pivots, then s >= c - ||E'||.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.planar.embedding import Embedding
from tightz.elimination.planar.fronts import Front
from tightz.elimination.planar.kernels import (
    add_slopes,
    eliminate_hermitian,
    eliminate_skew,
    fill_cell,
    measure,
    scatter,
)
from tightz.judge.verdict import LIBRARY, UNIT

TRIES = 12
"""Shifts tried for the smallest singular value, each an eighth of the one before."""


class Problem(NamedTuple):
    """K = D A D + W and its order of elimination.

    W is `sign` between the halves of an edge, but for one edge that `altered` names, if any, with
    a factor: Pf K is linear in it, Pf W the same for all.
    """

    embedding: Embedding
    fronts: list[Front]
    sign: NDArray[np.float64]
    altered: tuple[int, float] | None = None

    @property
    def links(self) -> NDArray[np.float64]:
        """(E,) the entries of W."""
        links = self.sign.copy()
        if self.altered:
            links[self.altered[0]] *= self.altered[1]
        return links

    @property
    def weight(self) -> NDArray[np.float64]:
        """(2E,) the diagonal of D: 1, tanh J, 1, tanh J, ..."""
        weight = np.ones(2 * self.embedding.n_edges)
        weight[1::2] = np.tanh(self.embedding.coupling)
        return weight

    def split(self) -> list[Problem]:
        """Two problems whose mean Pf is this one's: a link of the last front cut, and doubled."""
        edge = int(self.fronts[-1].leaves[0]) // 2
        return [self._replace(altered=(edge, factor)) for factor in (0.0, 2.0)]


class Pfaffian(NamedTuple):
    """Pf K / Pf W = sign * exp(log), log within `rounding` of the truth (inf: nothing is known).

    `blur` is how far rounding moves entries of K^-1, to first order.
    """

    log: float
    sign: int
    rounding: float
    blur: float


class Sum(NamedTuple):
    """log of a sum of coefficients times Pf K / Pf W, its rounding, and E[s s'] of every edge.

    `bits` is the precision of the arithmetic, 53 for float64.
    """

    log: float
    rounding: float
    blur: float
    correlations: NDArray[np.float64] | None
    bits: int


NOTHING = Pfaffian(-math.inf, 0, math.inf, math.inf)


class _Pass:
    """K, or with a shift the Hermitian i K - shift, eliminated front by front."""

    def __init__(self, problem: Problem, shift: float = 0.0) -> None:
        self.problem, self.shift = problem, shift
        self.weight, self.links = problem.weight, problem.links
        self.place = np.zeros(self.weight.size, dtype=np.int64)
        self.rests: dict[int, NDArray] = {}  # given up when the parent takes them
        self.norms: dict[int, float] = {}  # of all noise in a front and below it
        self.nuclear = 0.0

    def assemble(self, front: Front) -> tuple[NDArray, NDArray[np.float64]]:
        """The front's matrix (upper triangle) and the noise it starts with."""
        leaves, size = front.leaves.size, front.size
        unit, mirror = (1j, 1.0) if self.shift else (1.0, -1.0)
        noise = np.zeros((size, size))
        matrix = np.zeros((size, size), dtype=type(unit))
        if front.cell.size:
            self.place[front.leaves] = np.arange(leaves)
            self.place[front.stays] = leaves + np.arange(front.stays.size)
            ptr, around = self.problem.embedding.ptr, self.problem.embedding.around
            fill_cell(matrix, noise, front.cell, ptr, around, self.place, self.weight, unit)
            matrix.flat[:: size + 1] = -self.shift
        for child, at in zip(front.children, front.places, strict=True):
            scatter(matrix, self.rests.pop(child), at, mirror)
        first = np.arange(0, leaves, 2)
        there = matrix[first, first + 1]
        matrix[first, first + 1] = there + unit * self.links[front.leaves[0::2] // 2]
        noise[first, first + 1] += 2.0 * np.abs(matrix[first, first + 1]) * (there != 0.0)
        return matrix, noise

    def leave(self, index: int, matrix: NDArray, noise: NDArray[np.float64]) -> None:
        front = self.problem.fronts[index]
        self.rests[index] = matrix[front.leaves.size :, front.leaves.size :].copy()
        spectral, frobenius = measure(noise)
        below = max((self.norms.pop(c) for c in front.children), default=0.0)
        self.norms[index] = below + UNIT * spectral * 1.01
        self.nuclear += UNIT * math.sqrt(front.size) * frobenius * 1.01


def pfaffian(problem: Problem, keep: list[NDArray[np.float64]] | None = None) -> Pfaffian:
    """log |Pf K / Pf W| with its certificate; `keep` collects what `edge_correlations` needs."""
    forward = _Pass(problem)
    logs: list[float] = []
    sign = 1
    smallest = math.inf
    for index, front in enumerate(problem.fronts):
        matrix, noise = forward.assemble(front)
        if keep is not None:
            keep.append(matrix[: front.leaves.size].copy())
        last = matrix[: front.leaves.size, : front.leaves.size].copy()
        pivots = np.empty(front.leaves.size // 2)
        if not eliminate_skew(matrix, noise, front.leaves.size, pivots):
            return NOTHING
        forward.leave(index, matrix, noise)
        negative = int((pivots < 0.0).sum() + (problem.sign[front.leaves[0::2] // 2] < 0.0).sum())
        sign *= -1 if negative % 2 else 1
        size = np.abs(pivots)
        smallest = min(smallest, float(size.min(initial=math.inf)))
        logs += np.log(size).tolist()
    if not logs:
        return Pfaffian(0.0, 1, 0.0, 0.0)
    total = math.fsum(logs)
    if not math.isfinite(total):
        return NOTHING
    rounding = 2.0 * LIBRARY * math.fsum(map(abs, logs)) + UNIT * abs(total)
    distance = forward.norms[len(problem.fronts) - 1]
    proven = smallest_singular(problem, _guess(smallest, last), distance)
    if not proven > 2.0 * distance:
        return Pfaffian(total, sign, math.inf, math.inf)
    rounding += 0.5 * forward.nuclear / (proven - distance) * 1.01
    return Pfaffian(total, sign, rounding, distance / proven**2)


def _guess(pivot: float, last: NDArray[np.float64]) -> float:
    """A shift to begin with: below half of any pivot and of the last front's singular values.

    The inverse of the last front is a part of K^-1, so its norm is not more than that of K^-1.
    That norm comes from above, within 30%, by powers of the inverse: 0.3 ms where singular values
    take 85.
    """
    if not last.size:
        return 0.5 * pivot
    try:
        inverse = np.linalg.inv(np.triu(last, 1) - np.triu(last, 1).T)
    except np.linalg.LinAlgError:
        return 0.0
    norm = float(np.abs(inverse).max())
    if not 0.0 < norm < math.inf:
        return 0.0
    power, log_norm = inverse / norm, 0.0
    for k in range(1, 5):  # |power|_F^(1 / 2^k), scaled so that nothing overflows
        power = power.T @ power
        size = float(np.linalg.norm(power))
        power, log_norm = power / size, log_norm + math.log(size) / 2.0**k
    return 0.5 * min(pivot, 1.0 / (norm * math.exp(log_norm)))


def smallest_singular(problem: Problem, guess: float, floor: float) -> float:
    """A proven lower bound on the smallest singular value of K; 0 where none above floor is."""
    shift = guess
    for _ in range(TRIES):
        if not shift > 2.0 * floor:
            break
        distance = _half_negative(problem, shift)
        if distance < 0.5 * shift:
            return shift - distance
        if math.isfinite(distance):
            break  # a smaller shift has the same noise
        shift /= 8.0
    return 0.0


def _half_negative(problem: Problem, shift: float) -> float:
    """||E'|| if i K - shift + E' has one negative eigenvalue in every pivot; inf if not."""
    run = _Pass(problem, shift)
    for index, front in enumerate(problem.fronts):
        matrix, noise = run.assemble(front)
        if not eliminate_hermitian(matrix, noise, front.leaves.size):
            return math.inf
        run.leave(index, matrix, noise)
    return run.norms[len(problem.fronts) - 1]


def edge_correlations(problem: Problem, kept: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(E,) E[s s'] = tanh J + (1 - tanh^2 J) d log Pf K / d tanh J, from entries of K^-1.

    With Q = K^-1 on the halves that stay, P the leaving part of a front and U = P to the rest:
    X = -P^-1 U gives Q = X Q to the rest and Q = P^-1 + X Q X' among those that leave.
    """
    weight = problem.weight
    slopes = np.zeros(problem.embedding.n_edges)
    place = np.zeros(weight.size, dtype=np.int64)
    inverse: dict[int, NDArray[np.float64]] = {len(kept) - 1: np.zeros((0, 0))}
    for index in range(len(kept) - 1, -1, -1):
        front, rows = problem.fronts[index], kept[index]
        leaves = front.leaves.size
        rest = inverse.pop(index)
        upper = rows[:, :leaves]
        within = np.linalg.inv(np.triu(upper, 1) - np.triu(upper, 1).T) if leaves else upper
        across = -within @ rows[:, leaves:]
        whole = np.empty((front.size, front.size))
        whole[leaves:, leaves:] = rest
        whole[:leaves, leaves:] = across @ rest
        whole[leaves:, :leaves] = -whole[:leaves, leaves:].T
        whole[:leaves, :leaves] = within + whole[:leaves, leaves:] @ across.T
        for child, at in zip(front.children, front.places, strict=True):
            inverse[child] = whole[np.ix_(at, at)]
        if front.cell.size:
            place[front.leaves] = np.arange(leaves)
            place[front.stays] = leaves + np.arange(front.stays.size)
            ptr, around = problem.embedding.ptr, problem.embedding.around
            add_slopes(whole, front.cell, ptr, around, place, weight, slopes)
    small = np.exp(-2.0 * np.abs(problem.embedding.coupling))
    return weight[1::2] + 4.0 * small / (1.0 + small) ** 2 * slopes
