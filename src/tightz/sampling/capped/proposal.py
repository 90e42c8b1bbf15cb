"""A finished mini-bucket bound as a distribution that can be drawn from exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.judge.proposals import cap_excess, check_weights
from tightz.judge.verdict import UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph
from tightz.sampling.capped.kernels import draw
from tightz.sampling.capped.lanes import Capped, Lanes
from tightz.uppers.mini_bucket.descent import Descent, Steps
from tightz.uppers.mini_bucket.layout import Skeleton

MOST_STATES = 1 << 16
"""Of a variable, for its states to be drawn: they are kept in one or two bytes."""


def proposal_of(model: FactorGraph, descent: Steps) -> Capped:
    """The bound as a proposal, where its tables lie; ResourceError where a device cannot."""
    if isinstance(descent, Descent):
        return Proposal.of(model, descent)
    from tightz.sampling.capped.gpu import DeviceProposal

    try:
        return DeviceProposal.of(model, descent)  # type: ignore[arg-type]
    except (RefutedError, ResourceError):
        raise
    except Exception as error:  # of the device, whatever it is: there are other proposals
        raise ResourceError(f"drawing on the GPU failed: {error}") from error


@dataclass(frozen=True, eq=False)
class Proposal(Capped):
    """`Capped` with every table exp(F_c - m_c) in main memory."""

    skeleton: Skeleton
    scopes: NDArray[np.int64]
    tables: NDArray[np.float32]

    @classmethod
    def of(cls, model: FactorGraph, descent: Descent) -> Proposal:
        found, parts, skel = descent.conditionals(), descent.parts, descent.skeleton
        own = skel.dims[skel.axis_ptr[1:] - 1]
        excess = cap_excess(own, skel.table_ptr, skel.bucket_ptr, found.tables, found.weights)
        scopes = np.array([v for scope in parts.cliques for v in scope], dtype=np.int64)
        # An entry in float32 is off by 2^-24 of itself; sums in float64 by a few units of what
        # they add up, over a clique's factors, shifts and messages.
        rounding = skel.parents.size * 2.0**-23 + 64.0 * UNIT * found.magnitude
        return cls(
            model, parts, found.log_u, found.log_u + excess, rounding, skel, scopes, found.tables
        )

    def check(self, drawing: Lanes, count: int = 32) -> None:
        rows = drawing.states[:, :count].T.astype(np.int64)
        check_weights(
            self.model, self.parts.cliques, self.skeleton.table_ptr, self.skeleton.bucket_ptr,
            self.tables, rows, drawing.log_x[:count] + self.log_u, 2.0 * self.rounding + 1e-9,
        )  # fmt: skip

    def drawing(self, words: NDArray[np.uint64]) -> Drawing:
        return Drawing(self, words)


class Drawing(Lanes):
    """`Lanes` from tables in main memory."""

    def __init__(self, proposal: Proposal, words: NDArray[np.uint64]) -> None:
        self.proposal = proposal
        lanes = words.size
        most = int(proposal.cardinalities.max(initial=1))
        self.words = words.copy()
        assert most <= MOST_STATES
        # Two bytes only where they are needed: kernels are compiled for each.
        kind = np.uint8 if most <= 256 else np.uint16
        self.states = np.zeros((proposal.cardinalities.size, lanes), dtype=kind)
        self.log_x = np.empty(lanes)
        self._scratch = (
            np.empty(lanes, dtype=np.int32),
            np.empty((max(2, most), lanes)),
            np.empty(lanes),
        )

    def batch(self) -> NDArray[np.float64]:
        p = self.proposal
        draw(p.skeleton, p.scopes, p.tables, self.words, self.states, *self._scratch, self.log_x)
        return self.log_x.copy()
