"""What a stream of `log_partition` yields: a bound, and with it whatever else it found out.

Streams write into no shared state. They yield findings; the driver merges them in one thread.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.errors import ModelError
from tightz.models.names import Names
from tightz.results import dataframe
from tightz.shown import ASIDE, Members, Recorded
from tightz.workspace.shares import Shares

if TYPE_CHECKING:
    from pandas import DataFrame

    from tightz.elimination.exact import ExactResult


class Mixing(enum.Enum):
    """Whether draws can stand for the model; the value is shown to people."""

    EXACT = "exact"
    ROUNDED = "but for rounding, which leaves few digits: the proven ends say how few"
    MIXED = "the sampler's runs agree"
    NOT_MIXED = "the sampler may have missed states: give it more time, or take these as a part"
    VARIATIONAL = "of the q behind the best bound: may sit in one valley, carries no error"


FEW_DIGITS = 1e-3
"""Nats of rounding above which marginals are not called exact: their ends are 0.0025 apart."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """One probability vector per variable of the working model, and how far to trust them.

    `quality` orders sources: larger replaces smaller, exact is +inf; of samplers that mixed it is
    the number of independent draws they are worth, of a q the bound that it attains. `lift` is
    what the driver still has to do to them. `rounding`: nats by which exact ones may be off; inf:
    unknown.
    """

    vectors: list[NDArray[np.float64]]
    source: str
    quality: float
    mixing: Mixing = Mixing.VARIATIONAL
    rounding: float = math.inf
    lift: Callable[[Marginals], Marginals] | None = None

    def lifted(self) -> Marginals:
        """The same as marginals of the model that was asked about; may take a second."""
        return self if self.lift is None else self.lift(replace(self, lift=None))

    def rounded(self, nats: float) -> Marginals:
        """The same where `nats` come to the rounding; no longer called exact if that is much."""
        rounding = self.rounding + nats
        much = (rounding if math.isfinite(rounding) else nats) > FEW_DIGITS
        mixing = Mixing.ROUNDED if much and self.mixing is Mixing.EXACT else self.mixing
        return replace(self, rounding=rounding, mixing=mixing)


@dataclass(frozen=True)
class PointEstimate:
    """log Z ~ log_z +- error (one standard error; inf: unknown), and how it came about.

    `family` names the kind of sampler ("ais", "tree", ...): estimates of different families are
    independent evidence, and where they disagree none of them knows its error.
    `effective` is the number of draws that carry the average.
    """

    log_z: float
    error: float
    source: str
    family: str
    effective: float = math.inf


@dataclass(frozen=True, eq=False)
class Source:
    """Where independent draws W with E[W] = Z come from, fixed before the first one that counts.

    track      name of the stream and start; one track's sources follow each other in time
    log_cap    W <= exp(log_cap) for every possible draw, known in advance; inf: lower side only,
               and then E[W] <= Z is enough
    level      about where log W will lie: a pilot's estimate of log Z
    spread     relative standard deviation of W by the pilot; nan: unknown
    expected   how many draws are planned
    rounding   nats by which a computed log W may differ from the real one
    log_lost   log of the part of Z that the draws may miss: E[W] >= Z - exp(log_lost) above

    `spread` and `expected` only choose the stakes: a wrong guess costs width, never validity.
    """

    track: str
    level: float
    log_cap: float = math.inf
    spread: float = math.nan
    expected: float = 1e4
    rounding: float = 0.0
    log_lost: float = -math.inf


@dataclass(frozen=True, eq=False)
class Draws:
    """A batch of log W from one source: all that were drawn, zeros (-inf) among them."""

    source: Source
    log_weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clamped:
    """Ends on log Z of `working.graph` with one variable fixed, for all its variables at once.

    lower, upper   (entries,) logs that hold always, rounding included; an entry for each state of
                   each variable, variable by variable; -inf and inf where nothing is said
    source         who says so

    Every number must have been judged: made by `tightz.judge` from evidence.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    source: str


@dataclass(frozen=True, eq=False)
class Finding:
    """One step of a stream; every part is optional.

    All of it is about `working.graph`, except with `of_model`: bound, marginals and sampler are
    then those of the model itself and are not lifted. `states` (S, variables) of `graph`: some that
    are heavy, for whoever starts from such; they prove nothing.
    """

    bound: Bound | None = None
    marginals: Marginals | None = None
    estimate: PointEstimate | None = None
    draws: Draws | None = None
    clamped: Clamped | None = None
    states: NDArray | None = None
    shares: Shares | None = None
    sampler: Callable[..., Any] | None = None
    note: str = ""
    of_model: bool = False


@dataclass(frozen=True, eq=False)
class Samples(Recorded):
    """states (k, variables) and log_weights (k,) = log p~(x) - log q(x), q what they came from.

    The mean of exp(log_weights) is Z in expectation where q covers the whole space, and averages
    weighted by exp(log_weights) are averages under the model. `status` says whether the draws can
    stand for the model; `most` bounds their effective number where they repeat a smaller set.
    """

    states: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    status: Mixing = Mixing.VARIATIONAL
    most: float = math.inf
    naming: Names | None = field(metadata=ASIDE, default=None)
    _also = ("effective_size",)

    def members(self) -> Members:
        return Members({**super().members(), "states": self.assignments()})

    def assignments(self) -> list[dict[str, str]]:
        """Every draw as {variable: state}, by the model's names."""
        return [self._names.assignment(row) for row in self.states.tolist()]

    def to_dataframe(self) -> DataFrame:
        """A pandas table: a row for each draw, a column for each variable, and log_weight."""
        names = self._names
        columns: dict[str, Any] = {
            names.label(v): np.array(names.state_labels(v), dtype=object)[column]
            for v, column in enumerate(self.states.T)
        }
        columns["log_weight"] = self.log_weights
        return dataframe(columns, list(columns))

    @property
    def _names(self) -> Names:
        if self.naming is not None:
            return self.naming
        return Names(self.states.max(axis=0, initial=0) + 1)

    def __iter__(self) -> Iterator[NDArray]:
        """states, log_weights = result.sample(k)"""
        return iter((self.states, self.log_weights))

    @property
    def effective_size(self) -> float:
        """How many draws of equal weight would say as much (Kish): (sum w)^2 / sum w^2.

        Large weights that were never drawn do not show in it.
        """
        if not self.log_weights.size or self.log_weights.max() == -np.inf:
            return 0.0
        ratios = np.exp(self.log_weights - self.log_weights.max())
        return min(self.most, float(ratios.sum() ** 2 / (ratios * ratios).sum()))

    def __repr__(self) -> str:
        return (
            f"Samples({len(self.states)} states, worth {self.effective_size:.0f} independent ones; "
            f"{self.status.value})"
        )


def exact_marginals(result: ExactResult) -> Iterator[Finding]:
    """Marginals that nothing replaces; a note where the model's scale leaves them no digits."""
    try:
        vectors = result.marginals
    except ModelError as error:
        yield Finding(note=str(error))
        return
    rounding = result.marginal_rounding
    yield Finding(marginals=Marginals(vectors, "exact", math.inf, Mixing.EXACT, rounding))
