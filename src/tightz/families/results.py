"""What mean field returns, whatever the family of q."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.families.projection import Status
from tightz.models.names import Names, numbers_of
from tightz.results import ByVariable, OneBound
from tightz.shown import ASIDE


@dataclass(frozen=True, eq=False, repr=False)
class MeanFieldResult(ByVariable, OneBound):
    """The best q found; `lower` (and `log_z`) is the deterministic bound it gives.

    It is what the judge makes of q, rounding taken off; `bound` carries q as evidence.

    log_zs      the same for every start, by the ascent's own evaluator; given ones first. Of
                LayerMeanField: log of each leaf's share
    marginals   of q: the probability of each state of every variable, an array (n, d) or a list
    sweeps      over the spins, all starts together; 0 of LayerMeanField, which climbs gradients
    """

    bound: Bound
    log_zs: NDArray[np.float64]
    marginals: Any
    status: Status
    sweeps: int
    seconds: float
    provenance: dict[str, Any] = field(default_factory=dict)
    named: Names | None = field(metadata=ASIDE, default=None)

    @property
    def naming(self) -> Names:
        return self.named or numbers_of(self.marginals)

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(log_z={self.log_z:.6f} (lower bound), {self.bound.method}, "
            f"{self.log_zs.size} starts, {self.status.name.lower()}, {self.seconds:.3g} s)"
        )
