"""Mean field with annealing: v <- tanh(beta g) while beta rises to 1, then plain ascent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.mean_field import MeanField
from tightz.families.projection import IProjection
from tightz.projections.coset import Coset
from tightz.search.ladder import local_scales


@dataclass(frozen=True)
class AnnealedMeanField:
    """Mean field whose first sweeps run at rising inverse temperature (deterministic annealing;
    Rose, 1998), so that the large domains settle before the small ones.

    restarts     starts per projection: small random means, from which symmetry breaks
    sweeps       length of the schedule; ascent at beta = 1 follows until convergence
    hot          first beta in units of 1 / the largest local field, at most 1
    spread       starts are uniform on [-spread, spread]
    """

    restarts: int = 8
    sweeps: int = 100
    hot: float = 1.0
    spread: float = 0.1
    tol: float = 1e-6
    max_sweeps: int = 1000

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 1)
        require_range("sweeps", self.sweeps, 0)
        require_range("hot", self.hot, 1e-12)
        require_range("spread", self.spread, 0.0, 1.0)
        require_range("tol", self.tol, 0.0)
        require_range("max_sweeps", self.max_sweeps, 1)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> IProjection:
        """The best of `restarts` annealed ascents; `states` are not needed."""
        size = self.restarts, coset.n_free
        return self.ascend_from(coset, rng.uniform(-self.spread, self.spread, size=size))

    def ascend_from(self, coset: Coset, starts: NDArray[np.float64]) -> IProjection:
        """Anneal from each row of `starts` (restarts, n_free) and keep the best."""
        plain = MeanField(restarts=self.restarts, tol=self.tol, max_sweeps=self.max_sweeps)
        return plain.ascend_from(coset, starts, self.schedule(coset))

    def schedule(self, coset: Coset) -> NDArray[np.float64]:
        """(sweeps,) inverse temperatures in ratio from `hot` / largest local field to 1."""
        largest = float(local_scales(coset.polynomial).max(initial=0.0))
        first = min(1.0, self.hot / largest) if largest > 0.0 else 1.0
        return np.geomspace(first, 1.0, self.sweeps) if self.sweeps else np.zeros(0)
