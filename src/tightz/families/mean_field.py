"""Mean field on a coset: the paper's coordinate ascent from random starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.ascent import ascend
from tightz.families.projection import IProjection, Status, evaluate, heaviest_in_coset
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
