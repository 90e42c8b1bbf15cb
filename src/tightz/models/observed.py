"""A model without the variables that cannot vary, and the way back to all of them.

The first of the reductions (`reductions/reduction.py`), kept here because every method needs it:
nobody else turns answers about the unobserved variables into answers about all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Observed:
    """`reduced` is `model` over the variables `kept`; the others stand in their only state.

    log Z is the same: tables are sliced, and factors left without a variable become constants.
    """

    model: FactorGraph
    reduced: FactorGraph
    kept: NDArray[np.int64]
    rounding: float = 0.0

    @property
    def only_state(self) -> NDArray[np.int64]:
        """(n,) a state of the model that agrees with the evidence; 0 where nothing is observed."""
        state = np.zeros(self.model.n_variables, dtype=np.int64)
        state[list(self.model.evidence)] = list(self.model.evidence.values())
        return state

    def _certain(self, flat: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Zeros, and ones for every variable's `only_state`; an array for each variable."""
        cards = self.model.cardinalities
        flat[np.cumsum(cards) - cards + self.only_state] = 1.0
        return per_variable(flat, cards)

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Marginals of the kept variables as marginals of all; certainty for the others."""
        out = self._certain(np.zeros(int(self.model.cardinalities.sum())))
        for v, marginal in zip(self.kept.tolist(), marginals, strict=True):
            out[v] = np.asarray(marginal)
        return out

    def lift_ends(self, ends: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """(states, 2) ends of the kept variables' marginals as those of all."""
        known = self._certain(np.zeros((int(self.model.cardinalities.sum()), 2)))
        for v, found in zip(self.kept.tolist(), ends, strict=True):
            known[v] = found
        return known

    def lift_states(
        self, states: NDArray, rng: np.random.Generator | None = None
    ) -> NDArray[np.int64]:
        """Rows of states of the kept variables as rows of states of all."""
        out: NDArray[np.int64] = np.tile(self.only_state, (len(states), 1))
        out[:, self.kept] = states
        return out


def per_variable(flat: NDArray, cardinalities: NDArray) -> list[NDArray]:
    """An array with one entry per (variable, state), cut into one vector per variable."""
    ends = np.cumsum(cardinalities).tolist()
    return [flat[begin:end] for begin, end in pairwise([0, *ends])]


def observe(model: FactorGraph, *, single_states: bool = True) -> Observed:
    """Take out what is observed and, with `single_states`, what has one state only."""
    kept = model.free_variables
    if not single_states:
        kept = np.setdiff1d(np.arange(model.n_variables), list(model.evidence))
    if kept.size == model.n_variables:
        return Observed(model, model, kept)
    lone = np.flatnonzero(model.cardinalities == 1) if single_states else np.zeros(0, np.int64)
    reduced = model.with_evidence(dict.fromkeys(lone.tolist(), 0)).condition()
    return Observed(model, reduced, kept)
