"""The projection onto D: the heaviest state of a coset (MPE under parity constraints)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.ascent import best_vertex, descend_to_vertex
from tightz.families.mean_field import best_of, to_lanes
from tightz.families.projection import IProjection, Status, evaluate, heaviest_in_coset
from tightz.projections.coset import Coset


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
