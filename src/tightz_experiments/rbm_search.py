"""Our search on a dense model: temper, rank every state found, then project or sum out a layer.

The heaviest states are not the best starts on an RBM: what counts is the value that mean field
climbs to, and samples at temperature 1 often climb higher. So mean field is run once from every
state of the pool, and what follows starts from the states that did best.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.mean_field import MeanField
from tightz.families.projection import IProjection, heaviest_in_coset
from tightz.projections.coset import Coset
from tightz.runtime.seeds import Seed, stream
from tightz.search.pool import rank

if TYPE_CHECKING:
    from tightz.families.layer import LayerResult
    from tightz.models.spin_polynomial import SpinPolynomial
    from tightz.paper.results import Estimate


LAYER_STARTS = 16
"""Ranked states that the layer bound climbs from, and as many random starts."""


@dataclass(frozen=True, eq=False)
class FromSearch:
    """Mean field on a coset: 3/8 of the starts are the best-ranked states, 3/8 the heaviest ones
    after repair, the rest random.

    ranked   (S, n) states of the whole model, spins +-1, by the value mean field reaches from them
    """

    restarts: int
    ranked: NDArray[np.int8] = field(repr=False)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> IProjection:
        """The best of `restarts` ascents; `states` join those that are repaired."""
        starts = rng.uniform(-1.0, 1.0, size=(self.restarts, coset.n_free))
        if coset.feasible:
            share = 3 * self.restarts // 8
            pool = self.ranked if states is None else np.concatenate([self.ranked, states])
            best = self.ranked[:share, coset.free].astype(np.float64)
            known = np.concatenate([best, heaviest_in_coset(coset, pool, share)])
            starts[: len(known)] = known
        return MeanField(restarts=self.restarts).ascend_from(coset, starts)


class Searched(NamedTuple):
    """MFRP's table, and the processor seconds of tempering, ranking and projecting together."""

    table: Estimate
    pool: int
    optima: int
    processor_seconds: float


def mfrp_with_search(
    polynomial: SpinPolynomial,
    *,
    levels: Sequence[int],
    trials: int,
    restarts: int,
    sweeps: int,
    seed: Seed,
) -> Searched:
    """Algorithm 1 over `levels`, started from `sweeps` sweeps of tempering; one thread."""
    import tightz as tz

    begun = time.process_time()
    states = temper(polynomial, sweeps=sweeps, seed=seed)
    ranked, means = rank(polynomial, states)
    table = tz.estimate(
        polynomial,
        projections=tz.Projections(
            pivots=tz.Reliability(np.abs(means)), collapse=0, search_sweeps=0
        ),
        levels=levels,
        trials=trials,
        family=FromSearch(restarts, ranked),
        seed=stream(seed, 2),
        threads=1,
    )
    return Searched(table, len(states), len(ranked), time.process_time() - begun)


def layer_with_search(polynomial: SpinPolynomial, *, sweeps: int, seed: Seed) -> LayerResult:
    """One layer summed exactly, climbing from the best-ranked states: a deterministic bound."""
    from tightz.families.layer import LayerMeanField, layer_mean_field

    ranked, _ = rank(polynomial, temper(polynomial, sweeps=sweeps, seed=seed))
    return layer_mean_field(
        polynomial,
        LayerMeanField(restarts=LAYER_STARTS),
        starts=ranked[:LAYER_STARTS],
        seed=stream(seed, 3),
    )


def temper(polynomial: SpinPolynomial, *, sweeps: int, seed: Seed) -> NDArray[np.int8]:
    """The distinct states of a tempering run: the heaviest, and samples at temperature 1."""
    from tightz.search.pool import sample_pool

    pool = sample_pool(polynomial, sweeps=sweeps, seed=stream(seed, 1), threads=1)
    return np.unique(np.concatenate([pool.states, pool.samples]), axis=0)
