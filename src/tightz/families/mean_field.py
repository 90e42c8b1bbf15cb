"""Mean field on a coset, the paper's coordinate ascent; and point masses, its projection onto D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.ascent import ascend, best_vertex, descend_to_vertex
from tightz.families.projection import (
    START,
    IProjection,
    Status,
    evaluate,
    heaviest_in_coset,
)
from tightz.projections.coset import Coset

MAX_LANES = 32
"""Most restarts that share one pass over the index lists; bounds the kernel's scratch memory."""


@dataclass(frozen=True)
class MeanField:
    """Fully factored q over the free spins; the constrained ones follow.

    restarts     random starts per projection, the paper's J
    tol          stop when a sweep gains less than this many nats
    max_sweeps   give up (with a valid bound) after this many sweeps
    """

    restarts: int = 8
    tol: float = 1e-6
    max_sweeps: int = 1000

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 1)
        require_range("tol", self.tol, 0.0)
        require_range("max_sweeps", self.max_sweeps, 1)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> IProjection:
        """The best of `restarts` ascents from means drawn uniformly on [-1, 1].

        With `states`, up to three quarters of the ascents start from the heaviest of these states
        repaired to satisfy the parities; the rest stay random, since no one start wins everywhere.
        """
        starts = rng.uniform(-1.0, 1.0, size=(self.restarts, coset.n_free))
        if states is not None and len(states) and coset.feasible:
            known = heaviest_in_coset(coset, states, -(-3 * self.restarts // 4))
            starts[: len(known)] = known
        return self.ascend_from(coset, starts)

    def ascend_from(
        self,
        coset: Coset,
        starts: NDArray[np.float64],
        betas: NDArray[np.float64] | None = None,
    ) -> IProjection:
        """Ascend from each row of `starts` (restarts, n_free) and keep the best.

        `betas` are the inverse temperatures of the first sweeps (annealing); then 1.
        """
        if not coset.feasible or coset.polynomial.constant == -np.inf:
            means = np.zeros(coset.n_free)
            status = Status.CONVERGED if coset.feasible else Status.INFEASIBLE
            return IProjection(coset, -np.inf, np.full(len(starts), -np.inf), means, 0, status)
        schedule = np.zeros(0) if betas is None else betas
        limit = self.max_sweeps + schedule.size
        lanes = to_lanes(starts)
        sweeps = 0
        converged = True
        for block in lanes:
            gains = np.zeros(block.shape[1])
            done = ascend(coset.grouped, block, schedule, self.tol, limit, gains)
            sweeps += done * block.shape[1]
            converged &= bool(gains.max() <= self.tol)
        return best_of(coset, lanes, sweeps, converged)

    def refine(self, q: IProjection, states: NDArray[np.int8]) -> IProjection:
        """The best q on q's region, from q itself and from `states` in it; never below q."""
        v = _starts(q, states)
        held = q.coset.grouped._replace(field=_pinning_field(q))
        gains = np.zeros(v.shape[1])
        ascend(held, v, np.zeros(0), self.tol, self.max_sweeps, gains)
        ends = _ends(q, v)
        return _best(q, ends, evaluate(q.coset, ends))

    def refine_on_device(
        self, tasks: Sequence[tuple[IProjection, NDArray[np.int8]]]
    ) -> list[IProjection]:
        """`refine` of each (q, states), all on one coset, every ascent side by side on the GPU."""
        from tightz.families.gpu_leaves import ascend_on_device

        coset = tasks[0][0].coset
        lanes = [_starts(q, states) for q, states in tasks]
        counts = [part.shape[1] for part in lanes]
        v = np.concatenate(lanes, axis=1)
        fields = np.repeat(np.stack([_pinning_field(q) for q, _ in tasks], axis=1), counts, axis=1)
        ascend_on_device(coset.grouped, fields, v, self.tol, self.max_sweeps)
        parts = np.split(v, np.cumsum(counts)[:-1], axis=1)
        ends = [_ends(q, part) for (q, _), part in zip(tasks, parts, strict=True)]
        cuts = np.cumsum([end.shape[1] for end in ends])[:-1]
        values = np.split(evaluate(coset, np.concatenate(ends, axis=1)), cuts)
        return [
            _best(q, end, value) for (q, _), end, value in zip(tasks, ends, values, strict=True)
        ]


def _starts(q: IProjection, states: NDArray[np.int8]) -> NDArray[np.float64]:
    """(n_free, 1 + states) lanes: q's own means, then close to each state."""
    rows = np.concatenate([q.means[None, :], START * states[:, q.coset.free].astype(np.float64)])
    return _pinned(q, np.ascontiguousarray(rows.T))


def _pinned(q: IProjection, v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lanes with q's held spins at their signs, in place."""
    if q.held is not None:
        at = np.flatnonzero(q.held)
        v[at] = q.held[at, None]
    return v


def _pinning_field(q: IProjection) -> NDArray[np.float64]:
    """The fields, those of held spins outweighing everything else.

    So all regions of a coset share its index work; bounds are evaluated without the field.
    """
    field = q.coset.grouped.field.copy()
    if q.held is not None:
        at = np.flatnonzero(q.held)
        field[at] = q.held[at] * (1e3 + 2.0 * np.abs(q.coset.polynomial.theta).sum())
    return field


def _ends(q: IProjection, v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the ascents ended, and q's own means: they count too, so that nothing is lost."""
    return _pinned(q, np.column_stack([v, q.means]))


def _best(q: IProjection, v: NDArray[np.float64], values: NDArray[np.float64]) -> IProjection:
    top = int(np.argmax(values))
    return replace(
        q, log_gamma=float(values[top]), log_gammas=values, means=v[:, top].copy(), sweeps=0
    )


def best_of(
    coset: Coset, lanes: list[NDArray[np.float64]], sweeps: int, converged: bool
) -> IProjection:
    """Evaluate every lane independently of the optimiser and keep the best."""
    v = np.concatenate(lanes, axis=1)
    log_gammas = evaluate(coset, v)
    top = int(np.argmax(log_gammas))
    status = Status.CONVERGED if converged else Status.NOT_CONVERGED
    best = float(log_gammas[top])
    return IProjection(coset, best, log_gammas, v[:, top].copy(), sweeps, status)


def to_lanes(starts: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Split (restarts, n) into blocks (n, lanes): restarts that run side by side, contiguous."""
    return [
        np.ascontiguousarray(starts[first : first + MAX_LANES].T, dtype=np.float64)
        for first in range(0, len(starts), MAX_LANES)
    ]


@dataclass(frozen=True)
class PointMass:
    """q on one state. Enumerated, hence optimal, when at most `enumerate_up_to` spins are free;
    otherwise single-flip local search from `restarts` random states. `status` says which.
    """

    restarts: int = 8
    enumerate_up_to: int = 20
    max_sweeps: int = 1000

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 1)
        require_range("enumerate_up_to", self.enumerate_up_to, 0, 40)
        require_range("max_sweeps", self.max_sweeps, 1)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> IProjection:
        """The heaviest state found; Status.OPTIMAL when every state was visited."""
        if not coset.feasible or coset.polynomial.constant == -np.inf:
            status = Status.OPTIMAL if coset.feasible else Status.INFEASIBLE
            values = np.full(self.restarts, -np.inf)
            return IProjection(coset, -np.inf, values, np.ones(coset.n_free), 0, status)
        if coset.n_free <= self.enumerate_up_to:
            state = np.ones(coset.n_free)
            best_vertex(coset.grouped, state)
            value = float(evaluate(coset, state)[0])
            values = np.full(self.restarts, value)
            return IProjection(coset, value, values, state, 0, Status.OPTIMAL)
        starts = rng.choice(np.array([-1.0, 1.0]), size=(self.restarts, coset.n_free))
        if states is not None and len(states):
            known = heaviest_in_coset(coset, states, -(-3 * self.restarts // 4))
            starts[: len(known)] = known
        lanes = to_lanes(starts)
        sweeps = [descend_to_vertex(coset.grouped, block, self.max_sweeps) for block in lanes]
        converged = max(sweeps) < self.max_sweeps
        total = sum(s * block.shape[1] for s, block in zip(sweeps, lanes, strict=True))
        return best_of(coset, lanes, total, converged)
