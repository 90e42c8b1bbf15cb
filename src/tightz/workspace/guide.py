"""What a search over the whole model teaches the projections: heavy states, and weak spins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse import Collapsed
from tightz.runtime.seeds import Seed
from tightz.search.pool import sample_pool

MAX_STATES = 1500
"""Heavy states kept as starts; repairing and weighing them costs a few milliseconds a coset."""


@dataclass(frozen=True, eq=False)
class Guide:
    """states (S, n): distinct heavy states of the working polynomial, heaviest first.

    reliability (n,): what flipping a spin costs in the heaviest state; the cheapest flips make
    the best constrained spins.
    """

    states: NDArray[np.int8]
    reliability: NDArray[np.float64]


def search_effort(polynomial: SpinPolynomial) -> int:
    """Tempering sweeps: 1000, fewer where a sweep is dear (many incidences), at least 100."""
    incidences = max(1, int(polynomial.spins.size))
    return int(np.clip(4_000_000 // incidences, 100, 1000))


def build_guide(
    original: SpinPolynomial,
    collapsed: Collapsed | None,
    *,
    sweeps: int,
    seed: Seed,
    time_limit: float | None = None,
) -> Guide | None:
    """Temper the original model, where cluster moves apply, and carry its states over.

    `time_limit` (seconds) may cut the search short, at the price of repeatability. None when the
    model is trivial: no spins, or Z = 0.
    """
    working = original if collapsed is None else collapsed.polynomial
    if working.n == 0 or original.constant == -np.inf:
        return None
    pool = sample_pool(original, sweeps=sweeps, time_limit=time_limit, seed=seed)
    rows = np.concatenate([pool.states, pool.samples])
    if collapsed is not None:
        rows = rows[:, collapsed.kept]
    rows = np.unique(rows, axis=0)
    heaviest = np.argsort(-working.log_weight(rows), kind="stable")[:MAX_STATES]
    states = rows[heaviest].astype(np.int8)
    return Guide(states, working.flip_costs(states[0]))
