"""How projections are drawn and prepared, and where their trials run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from numpy.typing import ArrayLike

from tightz.errors import require_range
from tightz.projections.hashing import DenseParity, HashFamily
from tightz.projections.pivots import PivotPolicy
from tightz.runtime.backends import Backend
from tightz.runtime.executors import Submits


@dataclass(frozen=True, eq=False)
class Projections:
    """How random projections are drawn, and what is done to tighten them.

    restarts        starts per projection (J) of the default family
    hashing         how parities are drawn
    pivots          which spins are constrained; default the least reliable ones where a search was
                    made (Reliability), else FirstColumns()
    collapse        sum out exactly every spin with at most this many neighbours first; None picks
                    by cost, 0 switches it off. n, cosets and the theory then speak of the
                    collapsed model; log Z and the marginals are the model's own (variables of
                    more than two states: their bits are then taken as independent)
    search_sweeps   parallel-tempering sweeps that look for starts; None picks by cost, 0 is off.
                    With a search, mean field also tries annealed starts and, in every coset, a
                    second basis whose constrained spins are the weakest of the solution so far
    pairs           rows (i, j) of model variables whose joint marginals are wanted (collapse is
                    then off unless given, in which case the pair must survive it)

    `Projections.as_printed()` is the paper's Algorithm 1: no collapse, no search.
    """

    restarts: int = 8
    hashing: HashFamily = field(default_factory=DenseParity)
    pivots: PivotPolicy | None = None
    collapse: int | None = None
    search_sweeps: int | None = None
    pairs: ArrayLike | None = None

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 1)

    @classmethod
    def as_printed(cls, *, restarts: int = 8) -> Projections:
        """Algorithm 1: fair-coin parities, leading variables constrained, random starts."""
        return cls(restarts=restarts, collapse=0, search_sweeps=0)


class Where(NamedTuple):
    """Where trials run: `executor`, `threads` and `backend` as every function takes them."""

    executor: Submits | None = None
    threads: int | None = None
    backend: Backend = "auto"

    @property
    def record(self) -> dict[str, object]:
        """The same for a store."""
        name = None if self.executor is None else type(self.executor).__name__
        return {"threads": self.threads, "executor": name, "backend": self.backend}
