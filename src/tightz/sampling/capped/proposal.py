"""A finished mini-bucket bound as a distribution that can be drawn from exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.sampling.capped.kernels import draw
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.partition import Skeleton

LANES = 1024
"""States drawn together: enough to fill vectors, few enough for their states to stay in cache."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """q(x) with p~(x) / q(x) = U X(x), X in [0, 1] with mean Z / U under q.

    Variables are those of the model the descent ran on.
    """

    log_u: float
    skeleton: Skeleton
    scopes: NDArray[np.int64]
    tables: NDArray[np.float32]
    cardinalities: NDArray[np.int64]

    @classmethod
    def of(cls, descent: Descent) -> Proposal:
        log_u, tables = descent.proposal_tables()
        parts = descent.parts
        scopes = np.array([v for scope in parts.cliques for v in scope], dtype=np.int64)
        return cls(log_u, descent.skeleton, scopes, tables, parts.cardinalities)

    @property
    def rounding(self) -> float:
        """Nats by which a computed log X may be off: an entry's rounding to float32, each clique."""
        return self.skeleton.parents.size * 2.0**-23

    def drawing(self, words: NDArray[np.uint64]) -> Drawing:
        """A stream of draws from its own random numbers, one word per lane."""
        return Drawing(self, words)


class Drawing:
    """Draws batch by batch; `states` (variables, lanes) are those of the last batch."""

    def __init__(self, proposal: Proposal, words: NDArray[np.uint64]) -> None:
        self.proposal = proposal
        lanes = words.size
        most = int(proposal.cardinalities.max(initial=1))
        self.words = words.copy()
        self.states = np.zeros((proposal.cardinalities.size, lanes), dtype=np.uint8)
        self.log_x = np.empty(lanes)
        self._scratch = (
            np.empty(lanes, dtype=np.int32),
            np.empty((max(2, most), lanes)),
            np.empty(lanes),
        )

    def batch(self) -> NDArray[np.float64]:
        """log X of the next draws, one per lane."""
        p = self.proposal
        draw(
            p.skeleton, p.scopes, p.tables, self.words, self.states, *self._scratch, self.log_x
        )
        return self.log_x.copy()
