"""What a search over the whole model teaches the projections: heavy states, and weak spins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.spin_polynomial import SpinPolynomial
from tightz.search.pool import StatePool

MAX_STATES = 1500
"""Heavy states kept as starts; repairing and weighing them costs a few milliseconds a coset."""

MAX_HEAVY = 8
"""Heaviest states that go with the samples where these are to stand for the model."""


@dataclass(frozen=True, eq=False)
class Guide:
    """What a pool of the original's states says about the working polynomial.

    states        (S, n) distinct heavy states, heaviest first: starts
    samples       (T, n) states at temperature 1 and the few heaviest, heaviest first: their means
                  stand for the model's where a split is chosen; they prove nothing
    reliability   (n,) what flipping a spin costs in the heaviest state; the cheapest flips make
                  the best constrained spins
    """

    states: NDArray[np.int8]
    samples: NDArray[np.int8]
    reliability: NDArray[np.float64]


def search_effort(polynomial: SpinPolynomial) -> int:
    """Tempering sweeps: 1000, fewer where a sweep is dear (many incidences), at least 100."""
    incidences = max(1, int(polynomial.spins.size))
    return int(np.clip(4_000_000 // incidences, 100, 1000))


def read_pool(pool: StatePool, working: SpinPolynomial, kept: NDArray[np.int64]) -> Guide:
    """The original's pool on the working polynomial, whose spins are the `kept` ones.

    Tempering runs on the original, where cluster moves apply, so one run serves every collapse.
    """
    rows = np.unique(np.concatenate([pool.states, pool.samples])[:, kept], axis=0)
    states = rows[_heaviest(working, rows)[:MAX_STATES]].astype(np.int8)
    drawn = pool.samples if len(pool.samples) else pool.states
    drawn = np.concatenate([pool.states[:MAX_HEAVY], drawn])[:, kept].astype(np.int8)
    return Guide(states, drawn[_heaviest(working, drawn)], working.flip_costs(states[0]))


def _heaviest(working: SpinPolynomial, rows: NDArray) -> NDArray[np.int64]:
    return np.argsort(-working.log_weight(rows), kind="stable")
