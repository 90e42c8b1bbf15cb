"""Annealing on states of discrete variables, zeros included.

Zeros are softened on the way (`state_moves.softened`): the chain anneals from a product that gives
every state a positive probability to the soft model, for which its weight w is unbiased, E[w f(x)]
= sum_x p_soft(x) f(x) for every f of the end state x (Neal 2001, and likewise for populations that
are resampled). With f = 1 where no table is zero and 0 elsewhere the sum is that of p~ itself,
since p_soft = p~ there: a chain that ends at a forbidden state has weight 0, which counts, and
E[w] = Z whatever the depth of the softened zeros and however poorly chains move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import per_variable
from tightz.runtime.executors import map_ordered
from tightz.sampling.ais.paths import RENEWAL, Walk, blocks_of
from tightz.sampling.ais.state_moves import (
    Sites,
    Walkers,
    sites_of,
    soft_depth,
    softened,
    state_chains,
)

_LANES = 64
"""Chains side by side."""

_FLOOR = 1e-4
"""Least probability of a state in a base, beside its share of the uniform distribution."""


@dataclass(frozen=True, eq=False)
class StatePath:
    """Any discrete model without evidence, from independent variables; `base` are their logs."""

    model: FactorGraph
    constant: float
    sites: Sites
    base: NDArray[np.float64]

    @classmethod
    def of(cls, model: FactorGraph) -> StatePath:
        """The base is what tables of single variables say, softened zeros included."""
        soft = softened(model, soft_depth(model))
        constant = float(soft.log_tables[soft.table_ptr[:-1][soft.arities == 0]].sum())
        sites = sites_of(soft)
        path = cls(model, constant, sites, np.zeros(0))
        fields = per_variable(sites.fields, model.cardinalities)
        return path.from_base([np.exp(f - f.max()) for f in fields])

    def from_base(self, shares: list[NDArray[np.float64]]) -> StatePath:
        """The path from a product of these, each mixed with a little of the uniform distribution.

        A base that rules a state out would make the weights' mean smaller than Z.
        """
        parts = [(1.0 - _FLOOR) * p / p.sum() + _FLOOR / p.size for p in shares]
        logs = np.log(np.concatenate([np.zeros(0), *(p / p.sum() for p in parts)]))
        return replace(self, base=logs)

    @property
    def name(self) -> str:
        return "single-site Gibbs on states"

    def width(self, size: int = 1) -> int:
        return 1

    def walk(
        self,
        betas: NDArray[np.float64],
        states: NDArray[np.uint64],
        *,
        with_slopes: bool,
        threads: int | None,
    ) -> Walk:
        parts = [states[low : low + _LANES] for low in range(0, len(states), _LANES)]
        walks = map_ordered(
            lambda part: self._lanes(betas, part, with_slopes), parts, threads=threads
        )
        return _joined(list(walks))

    def populations(
        self, betas: NDArray[np.float64], states: NDArray[np.uint64], size: int
    ) -> Walk:
        """As `walk`, with the chains in populations of `size` that are resampled on the way."""
        block = max(1, _LANES // size) * size
        parts = [states[low : low + block] for low in range(0, len(states), block)]
        return _joined([self._lanes(betas, part, False, size, RENEWAL) for part in parts])

    def _lanes(
        self,
        betas: NDArray[np.float64],
        part: NDArray[np.uint64],
        with_slopes: bool,
        size: int = 1,
        renewal: float = 0.0,
    ) -> Walk:
        lanes = len(part)
        walkers = Walkers(
            np.empty((self.model.n_variables, lanes), dtype=np.int32),
            np.zeros(lanes),
            np.empty((betas.size - 1 if with_slopes else 0, lanes)),
            np.arange(lanes),
            np.empty(lanes, dtype=np.int64),
        )
        words = np.ascontiguousarray(part.T)
        for row, block in blocks_of(betas, lanes * (self.base.size + self.sites.others.size)):
            rest = walkers._replace(slopes=walkers.slopes[row:])
            state_chains(self.sites, self.base, block, words, rest, size, renewal, row == 0)
        logs, ends = self.constant + walkers.log_w, walkers.spins.T
        if self.model.has_zeros:
            # The indicator of the proof above: what the model forbids has weight 0.
            logs = np.where(np.isneginf(self.model.log_weight(ends)), -np.inf, logs)
        return Walk(logs, ends, walkers.slopes.T, walkers.ancestors)


def _joined(walks: list[Walk]) -> Walk:
    firsts = np.cumsum([0] + [len(w.log_weights) for w in walks[:-1]])
    return Walk(
        np.concatenate([w.log_weights for w in walks]),
        np.concatenate([w.ends for w in walks]),
        np.concatenate([w.slopes for w in walks]),
        np.concatenate([w.ancestors + low for w, low in zip(walks, firsts, strict=True)]),
    )
