"""The joint distribution of two variables: its values, how far to trust them, and their ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import at_most
from tightz.errors import ParameterError
from tightz.models.ends import DIGITS, nearest, shown_ends
from tightz.models.names import Names
from tightz.results import dataframe
from tightz.shown import ASIDE, Members, Recorded, Shown

if TYPE_CHECKING:
    from pandas import DataFrame

SPIN = np.array([1.0, -1.0])
"""s = 1 - 2x of states 0 and 1."""


@dataclass(frozen=True)
class Moment(Recorded, Shown):
    """An average under the model: its best value, its error and its ends; `float(moment)`.

    error      one standard error over the draws, 0 where it is exact, inf where none is known
    bounds     (lower, upper), which hold always
    confident  (lower, upper), which hold with the confidence of the run's marginals
    """

    value: float
    error: float
    bounds: tuple[float, float]
    confident: tuple[float, float]
    source: str

    def __float__(self) -> float:
        return self.value

    def summary(self) -> str:
        (low, high), (below, above) = self.bounds, self.confident
        if self.error == 0.0:
            off = at_most(max(high - self.value, self.value - low))
            return f"{self.value:.8f} +- {off}   ({self.source}; the ends hold always)"
        text = f"{self.value:.6f} +- {self.error:.2g}   ({self.source})"
        text += f"\nin [{low:.6f}, {high:.6f}]   holds always"
        if self.confident != self.bounds:
            text += f"\nin [{below:.6f}, {above:.6f}]   with the marginals' confidence"
        return text


@dataclass(frozen=True, eq=False, repr=False)
class PairMarginal(Recorded, Shown):
    """p(x_i, x_j); `pair["yes", "no"]` by names or numbers of states, `np.asarray(pair)`.

    variables         i and j, by number
    table             (d_i, d_j) probabilities
    bounds            (d_i, d_j, 2) ends that hold always; [0, 1] where nothing is proven
    confident_bounds  (d_i, d_j, 2) ends that hold with the confidence of the run's marginals
    effective         independent draws that the table is worth: inf where it is exact, 0 where
                      nothing honest is known
    source            where the table comes from
    """

    variables: tuple[int, int]
    table: NDArray[np.float64]
    bounds: NDArray[np.float64]
    confident_bounds: NDArray[np.float64]
    effective: float
    source: str
    naming: Names = field(metadata=ASIDE, repr=False)
    _also = ("error",)

    def members(self) -> Members:
        told = super().members()
        told["variables"] = [self.naming.label(v) for v in self.variables]
        told["states"] = [self.naming.state_labels(v) for v in self.variables]
        spins = self.table.shape == (2, 2)
        return Members(
            {
                **told,
                "correlation": self.correlation if spins else None,
                "covariance": self.covariance if spins else None,
            }
        )

    @classmethod
    def within(
        cls,
        variables: tuple[int, int],
        table: NDArray[np.float64],
        bounds: NDArray[np.float64],
        confident: NDArray[np.float64],
        **more: Any,
    ) -> PairMarginal:
        """With the table moved into its ends where it is not."""
        if not np.isnan(table).any():
            table = nearest(table.ravel(), confident.reshape(-1, 2)).reshape(table.shape)
        return cls(variables, table, bounds, confident, **more)

    @property
    def error(self) -> NDArray[np.float64]:
        """(d_i, d_j) one standard error of each probability; 0 exact, inf unknown."""
        return np.vectorize(self._error_of_share, otypes=[float])(self.table)

    @property
    def correlation(self) -> Moment:
        """<s_i s_j> of spins s = 1 - 2x: P(equal) - P(different)."""
        self._require_spins("correlation")
        value = float(SPIN @ self.table @ SPIN)
        error = 2.0 * self._error_of_share(0.5 * (1.0 + value))
        return self._moment(value, error, _correlation)

    @property
    def covariance(self) -> Moment:
        """<s_i s_j> - <s_i><s_j> of spins s = 1 - 2x."""
        self._require_spins("covariance")
        p = self.table
        one, two = SPIN - SPIN @ p.sum(axis=1), SPIN - SPIN @ p.sum(axis=0)
        products = np.outer(one, two)
        value = float((p * products).sum())
        spread = float((p * (products - value) ** 2).sum())
        error = math.sqrt(spread / self.effective) if self.effective > 0.0 else math.inf
        # draws that all fall in one cell show no spread: no less than one more elsewhere would
        return self._moment(value, max(error, self._error_of_share(0.0)), _covariance)

    def __getitem__(self, states: tuple[Any, Any]) -> float:
        s, t = (self.naming.state(v, x) for v, x in zip(self.variables, states, strict=True))
        return float(self.table[s, t])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.table, dtype=dtype)

    def to_dataframe(self) -> DataFrame:
        """A pandas table: a row for each pair of states, by name, with probability and ends."""
        one, two = (self.naming.label(v) for v in self.variables)
        first, second = (self.naming.state_labels(v) for v in self.variables)
        ends = np.concatenate([self.bounds, self.confident_bounds], axis=2).tolist()
        error = self.error.tolist()
        rows = [
            (a, b, float(self.table[s, t]), error[s][t], *ends[s][t])
            for s, a in enumerate(first)
            for t, b in enumerate(second)
        ]
        same = one == two
        return dataframe(
            rows,
            (one, f"{two} again" if same else two, "probability", "error", "lower", "upper",
             "confident_lower", "confident_upper"),
        )  # fmt: skip

    def summary(self) -> str:
        """A line for each pair of states."""
        one, two = (self.naming.label(v) for v in self.variables)
        first, second = (self.naming.state_labels(v) for v in self.variables)
        wide, wide2 = (max(map(len, labels)) for labels in (first, second))
        lines, error = [], self.error
        for s, a in enumerate(first):
            for t, b in enumerate(second):
                p = float(self.table[s, t])
                sure, likely = shown_ends(p, self.bounds[s, t], self.confident_bounds[s, t])
                drawn = f" +- {error[s, t]:.2g}" if error[s, t] > 0.0 else f" {sure}".rstrip()
                ends = f"   in {sure}" if error[s, t] > 0.0 and sure else ""
                ends += f"   likely in {likely}" if likely else ""
                lines.append(f"  {a:<{wide}}  {b:<{wide2}}  {p:.6f}{drawn}{ends}")
        how = "; the ends hold always" if math.isinf(self.effective) else ""
        return "\n".join([f"p({one}, {two})   ({self.source}{how})", *lines])

    def __repr__(self) -> str:
        one, two = (self.naming.label(v) for v in self.variables)
        return f"PairMarginal({one}, {two}: {np.round(self.table, 6).tolist()}, {self.source})"

    def _require_spins(self, what: str) -> None:
        for v in self.variables:
            states = int(self.naming.cardinalities[v])
            if states != 2:
                raise ParameterError(
                    f"{what} is one of spins, and {self.naming.said(v)} has {states} states; "
                    "pair_marginal has the joint distribution of any two variables"
                )

    def _error_of_share(self, p: float) -> float:
        """One standard error of a share p of the draws.

        As if one draw more had fallen to each side: a share of 0 is no certainty.
        """
        n = self.effective
        if n <= 0.0 or math.isnan(p):
            return math.inf
        if math.isinf(n):
            return 0.0
        p = (p * n + 1.0) / (n + 2.0)
        return math.sqrt(p * (1.0 - p) / n)

    def _moment(self, value: float, error: float, ends: Any) -> Moment:
        always, likely = ends(self.bounds), ends(self.confident_bounds)
        if not math.isnan(value):
            value = min(max(value, likely[0]), likely[1])
        return Moment(value, error, always, likely, self.source)


def _correlation(ends: NDArray[np.float64]) -> tuple[float, float]:
    """Of 2 P(equal) - 1, from ends of all four probabilities."""
    low, high = ends[..., 0], ends[..., 1]
    equal = max(low[0, 0] + low[1, 1], 1.0 - high[0, 1] - high[1, 0])
    most = min(high[0, 0] + high[1, 1], 1.0 - low[0, 1] - low[1, 0])
    return _rounded(2.0 * equal - 1.0, 2.0 * most - 1.0)


def _covariance(ends: NDArray[np.float64]) -> tuple[float, float]:
    """Of 4 (p_00 p_11 - p_01 p_10), from ends of all four probabilities."""
    low, high = ends[..., 0], ends[..., 1]
    least = low[0, 0] * low[1, 1] - high[0, 1] * high[1, 0]
    most = high[0, 0] * high[1, 1] - low[0, 1] * low[1, 0]
    return _rounded(4.0 * least, 4.0 * most)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Outward by what a few operations on numbers up to 4 lose, and within [-1, 1]."""
    return max(-1.0, float(low) - DIGITS), min(1.0, float(high) + DIGITS)
