"""Ends of all marginals of a run: those that hold always, and narrower ones with confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.interval.board import Board
from tightz.interval.marginal_ends import combined
from tightz.models.ends import Ends, around, nearest, unknown
from tightz.models.observed import observe, per_variable
from tightz.sampling.shares import bounded
from tightz.workspace.findings import Clamped
from tightz.workspace.working import LARGE, Working


@dataclass(frozen=True, eq=False)
class MarginalBounds:
    """(states, 2) ends for each variable of the model.

    always      hold always; [0, 1] where nothing is proven
    confident   hold all together with confidence 1 - delta, beside what is said about log Z;
                no wider than those that hold always
    """

    always: Ends
    confident: Ends

    def nearest(self, marginals: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Distributions inside the confident ends, next to those given."""
        return [nearest(q, ends) for q, ends in zip(marginals, self.confident, strict=True)]


def marginal_bounds(working: Working, board: Board) -> MarginalBounds:
    """What the run's findings prove about each marginal, and what earlier sessions did."""
    found = _found(working, board)
    if board.earlier is None:
        return found
    pairs = list(zip(found.always, board.earlier, strict=True))
    apart = sum(bool((np.maximum(a, e)[:, 0] > np.minimum(a, e)[:, 1]).any()) for a, e in pairs)
    if apart:
        board.notes.append(
            f"DEFECT: ends of {apart} marginals contradict those of an earlier session, which are "
            "left out; please report it"
        )
    always = [_both(a, e) for a, e in pairs]
    likely = [_both(a, c) for a, c in zip(always, found.confident, strict=True)]
    return MarginalBounds(always, likely)


def _found(working: Working, board: Board) -> MarginalBounds:
    model = working.model
    found = board.marginals
    if found is not None and math.isfinite(found.rounding):
        ends = [around(np.asarray(q), found.rounding) for q in found.vectors]
        return MarginalBounds(ends, ends)
    if board.ends.upper == -math.inf:  # no state has weight: nothing can be said
        nothing = unknown(model.cardinalities)
        return MarginalBounds(nothing, nothing)
    if model.n_factors > LARGE and not working.is_reduced:  # the time is up: nobody waits for that
        seen = observe(model)
        ends = seen.lift_ends(unknown(seen.reduced.cardinalities))
        return MarginalBounds(ends, ends)
    slack = working.reduction.rounding
    cards = working.graph.cardinalities
    always = np.tile([0.0, 1.0], (int(cards.sum()), 1))
    if board.clamped is not None:
        pointers = np.concatenate([[0], np.cumsum(cards)]).astype(np.int64)
        widened = Clamped(board.clamped.lower - slack, board.clamped.upper + slack, "")
        always = combined(widened, board.ends.lower, board.ends.upper, pointers)
    confident = always
    # a weight above its cap says that weights are not what they are said to be
    void = any(account.void for account in board.ledger.accounts if account.capped)
    # Sources are mixed in an order that their draws do not decide: those of the cores follow each
    # other, those of a device run beside them. By the names the weights of all come to 1 at most.
    for wide in (False, True):
        shares = [s for s in board.shares.values() if s.track.startswith("wide") == wide]
        if shares and not void:
            drawn = bounded(shares, board.marginal_delta, board.ends.lower, slack)
            seen = observe(working.graph, single_states=False)
            ends = seen.lift_ends(per_variable(drawn, seen.reduced.cardinalities))
            confident = _both(confident, np.concatenate(ends))
    lift = working.reduction.lift_ends
    proven = lift(per_variable(always, cards))
    if confident is always:
        return MarginalBounds(proven, proven)
    likely = lift(per_variable(confident, cards))
    return MarginalBounds(proven, [_both(a, c) for a, c in zip(proven, likely, strict=True)])


def _both(always: NDArray[np.float64], drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inside both; where they do not meet, the second were wrong, and nothing of them counts."""
    low, high = np.maximum(always[:, 0], drawn[:, 0]), np.minimum(always[:, 1], drawn[:, 1])
    if (low > high).any():
        return always
    return np.stack([low, high], axis=1)
