"""Joint distributions of any two variables of a run's model: summed where that fits, else drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact import ExactResult
from tightz.elimination.exact import exact as summed
from tightz.errors import (
    ModelError,
    ResourceError,
    TightzError,
    UnsupportedModelError,
    require_range,
    require_seconds,
)
from tightz.models.ends import joint, unknown
from tightz.models.pair_marginals import PairMarginal
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import Seed
from tightz.workspace.findings import Mixing, Samples

if TYPE_CHECKING:
    from tightz.interval.interval import LogPartition

DRAWS = 10_000
"""Of which a share is known to half a percent at worst."""

FEW = 200
"""Draws that are made in any case; their pace says how many more fit into the time."""

SUMMING = 2 / 3
"""Part of the time for sums, which may fail."""

LEAST = 0.05
"""Seconds for draws in any case."""

FITS = 20
"""Times that a drawn table is scaled to the run's marginals."""

STANDS = (Mixing.EXACT, Mixing.MIXED)
"""Draws that can stand for the model."""


class Pairs:
    """Asked by `LogPartition.pair_marginal`; keeps what the next question can use."""

    def __init__(self, result: LogPartition) -> None:
        self.result = result
        self._sums: ExactResult | None = None
        self._too_little = 0.0  # seconds in which the model cannot be summed
        self._drawn: dict[Any, Samples] = {}

    def pair(
        self,
        i: int,
        j: int,
        *,
        exact: bool = True,
        time_limit: float = 10.0,
        draws: int = DRAWS,
        seed: Seed = 0,
    ) -> PairMarginal:
        """See `LogPartition.pair_marginal`."""
        require_seconds("time_limit", time_limit)
        require_range("draws", draws, 2)
        clock = Clock(time_limit)
        result = self.result
        if result.upper > -math.inf and exact and time_limit > self._too_little:
            try:
                return self._summed(i, j, clock.child(SUMMING * time_limit))
            except (ResourceError, UnsupportedModelError, ModelError):  # too large, or no digits
                self._too_little = time_limit
        ends = result._marginal_ends()
        always, likely = ends or (unknown(result.model.cardinalities),) * 2
        bounds, confident = _ends(always, i, j), _ends(likely, i, j)
        if result.upper == -math.inf:
            table, effective, source = np.full(bounds.shape[:2], math.nan), 0.0, "Z = 0"
        else:
            shape = bounds.shape[:2]
            try:
                drawn = self._samples(draws, seed, clock)
            except (TightzError, MemoryError):
                table, effective = np.full(shape, 1.0 / math.prod(shape)), 0.0
                source = "no draws: the time was too short"
            else:
                table, effective = _counted(drawn, i, j, shape)
                source = f"{len(drawn.states):,} draws, {drawn.status.value}"
            if result.marginals is not None and result.marginal_status in STANDS:
                table = _fitted(table, result.marginals[i], result.marginals[j])
        return PairMarginal.within(
            (i, j), table, bounds, confident,
            effective=effective, source=source, naming=result.naming,
        )  # fmt: skip

    def _summed(self, i: int, j: int, clock: Clock) -> PairMarginal:
        if self._sums is None:
            self._sums = summed(self.result.model, marginals=False, time_limit=clock.left)
        return self._sums._pair(i, j, time_limit=clock.left)

    def _samples(self, draws: int, seed: Seed, clock: Clock) -> Samples:
        """As many as fit; those of the last question serve this one where it asks for the same."""
        key = (draws, seed) if isinstance(seed, int) else None
        if key is None or key not in self._drawn:
            few, start = min(draws, FEW), clock.elapsed
            drawn = self.result.sample(few, seed=seed, time_limit=max(LEAST, clock.left))
            fit = int(few * clock.left / max(clock.elapsed - start, 1e-9))
            if fit > few:
                drawn = self.result.sample(min(draws, fit), seed=seed, time_limit=clock.left)
            self._drawn = {key: drawn}
        return self._drawn[key]


def _ends(ends: list[NDArray[np.float64]], i: int, j: int) -> NDArray[np.float64]:
    """(d_i, d_j, 2) what the ends of both marginals say; a variable agrees with itself."""
    if i != j:
        return joint(ends[i], ends[j])
    out = np.zeros((len(ends[i]), len(ends[i]), 2))
    np.einsum("iik->ik", out)[...] = ends[i]
    return out


def _counted(
    drawn: Samples, i: int, j: int, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], float]:
    """Shares of the weight, and how many independent draws they are worth.

    Kish's number, or less where the weights go with the states: the number at which the variance
    of the worst cell, by the delta method for a ratio, is that of independent draws. Draws that
    do not stand for the model are worth none.
    """
    logs = drawn.log_weights
    top = logs.max(initial=-math.inf)
    if top == -math.inf:
        return np.full(shape, 1.0 / math.prod(shape)), 0.0
    weights = np.exp(logs - top)
    weights /= weights.sum()
    cells = drawn.states[:, i] * shape[1] + drawn.states[:, j]
    size = math.prod(shape)
    table: NDArray[Any] = np.bincount(cells, weights, minlength=size)
    squares = np.bincount(cells, weights**2, minlength=size)
    # sum of w^2 (1[cell] - p)^2
    variance = squares * (1.0 - table) ** 2 + (squares.sum() - squares) * table**2
    alive = (table > 0.0) & (table < 1.0) & (variance > 0.0)
    worth = (table * (1.0 - table))[alive] / variance[alive]
    effective = min(drawn.effective_size, float(worth.min(initial=math.inf)))
    shares: NDArray[np.float64] = table.reshape(shape)
    return shares, effective if drawn.status in STANDS else 0.0


def _fitted(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The table with the marginals of the run, which rest on more draws, and its own odds.

    Rows and columns are scaled in turn; what was never drawn stays 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(FITS):
            table = table * np.nan_to_num(rows / table.sum(axis=1), posinf=1.0)[:, None]
            table = table * np.nan_to_num(columns / table.sum(axis=0), posinf=1.0)
    return table / table.sum()
