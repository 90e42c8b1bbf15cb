"""What every reduction offers: a model with the same Z and less to do, and the way back.

A method that runs on `reduced` answers for `model`: log Z is the same within `rounding`, marginals
and states are lifted. Reductions chain (`Chain`), and each is held against the judge when made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.models.ends import Ends, loosened
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import per_variable
from tightz.runtime.seeds import Seed, generator

Vectors = list[NDArray[np.float64]]
"""One probability vector per variable."""


class Reduction(Protocol):
    """A step from `model` to `reduced`."""

    @property
    def model(self) -> FactorGraph: ...

    @property
    def reduced(self) -> FactorGraph: ...

    @property
    def rounding(self) -> float:
        """Nats by which log Z of the two may differ."""
        ...

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> Vectors:
        """Marginals of the reduced model's variables as marginals of the model's."""
        ...

    def lift_ends(self, ends: Ends) -> Ends:
        """Ends of the reduced model's marginals as ends of the model's, rounding included."""
        ...

    def lift_states(self, states: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of states of the reduced model as the model's; what was summed out is drawn.

        If the rows follow the reduced model's distribution, the result follows the model's.
        """
        ...


@dataclass(frozen=True, eq=False)
class Chain:
    """Reductions one after the other; itself a reduction."""

    model: FactorGraph
    steps: list[Reduction]

    @property
    def reduced(self) -> FactorGraph:
        return self.steps[-1].reduced if self.steps else self.model

    @property
    def rounding(self) -> float:
        return math.fsum(step.rounding for step in self.steps)

    @property
    def contradiction(self) -> bool:
        """Whether no state has weight, as far as this shows."""
        return not self.reduced.n_variables and self.reduced.has_zeros

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> Vectors:
        out = list(marginals)
        for step in reversed(self.steps):
            out = step.lift_marginals(out)
        return out

    def lift_ends(self, ends: Ends) -> Ends:
        """Step by step; what one step takes out is also off by the rounding of those before it."""
        for step in reversed(self.steps):
            ends = step.lift_ends(ends)
            if step.rounding and ends:  # all at once: a call for each of many takes long
                counts = np.array([len(each) for each in ends])
                ends = per_variable(loosened(np.concatenate(ends), step.rounding), counts)
        return ends

    def lift_states(self, states: NDArray[np.int64], seed: Seed = None) -> NDArray[np.int64]:
        rng = generator(seed)
        for step in reversed(self.steps):
            states = step.lift_states(states, rng)
        return states
