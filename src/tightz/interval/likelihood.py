"""Log-likelihoods: log p of each row of data and their mean, between ends that hold always.

log p(x) = log Z(x) - log Z, where Z(x) sums over all that x leaves open: the lower end of log p
takes the upper end of log Z. One run on log Z serves all rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, at_most, figure
from tightz.errors import ModelError, ParameterError, require_probability, require_seconds
from tightz.interval.evidence import Contradiction
from tightz.interval.interval import LogPartition
from tightz.interval.log_partition import log_partition
from tightz.interval.row_sums import row_sums
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence
from tightz.models.formats.evidence import given as observing
from tightz.models.given import GraphOrPath, given_model
from tightz.models.rows import Rows, rows_of
from tightz.results import Result, dataframe
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.memory import MAX_MEMORY
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.shown import ASIDE, Members

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from tightz.workspace.findings import Samples

INTERVAL = "by an interval of its own"

SHARE = 0.5
"""Part of the time for log Z where some rows need runs of their own too."""

LEAST = 0.05
"""Seconds that a run is given, however little is left."""

NARROW = 1e-6
"""Ends closer than this are shown as a value and its error."""

T = TypeVar("T", float, NDArray[np.float64])


@dataclass(frozen=True, eq=False)
class Ends(Generic[T]):
    """What is known of log p, of one row or their mean (floats) or of each row (arrays).

    lower, upper   hold always; `confident_lower` and `confident_upper` hold, of all rows together,
                   with the result's confidence; `estimate` is not proven
    """

    lower: T
    upper: T
    confident_lower: T
    confident_upper: T
    estimate: T
    estimate_error: T


@dataclass(frozen=True, eq=False, repr=False)
class LogLikelihood(Result):
    """What `log_likelihood` returns; natural logs.

    mean         the mean of log p over the rows; its ends are also `lower` and `upper`
    examples     the same for each row, as arrays
    confidence   of the confident ends, all of them together
    interval     the run on log Z; None where each row is given something of its own
    sources      how many rows were summed in which way
    """

    mean: Ends[float]
    examples: Ends[NDArray[np.float64]]
    confidence: float
    interval: LogPartition | None = field(metadata=ASIDE)
    sources: dict[str, int]
    model: FactorGraph = field(metadata=ASIDE)
    seconds: float
    provenance: dict[str, Any]
    _also = ("lower", "upper", "conservative", "estimate", "estimate_error", *Result._also)

    def members(self) -> Members:
        interval = None if self.interval is None else self.interval.brief()
        return Members(
            {
                **super().members(),
                "rows": len(self),
                "log_z": interval,
                "evidence": self.model.naming.observed(self.model.evidence),
                "contradiction": self.contradiction,
            }
        )

    @property
    def contradiction(self) -> Contradiction | None:
        """Which of the observations that all rows are given no state agrees with."""
        return None if self.interval is None else self.interval.contradiction

    def __len__(self) -> int:
        return len(self.examples.lower)

    @property
    def lower(self) -> float:
        """Of the mean, holds always: the conservative end, which log Z's upper end makes."""
        return self.mean.lower

    @property
    def upper(self) -> float:
        """Of the mean, holds always."""
        return self.mean.upper

    @property
    def conservative(self) -> float:
        """The end to report where one number is wanted: the mean is at least this, always."""
        return self.mean.lower

    @property
    def estimate(self) -> float:
        return self.mean.estimate

    @property
    def estimate_error(self) -> float:
        return self.mean.estimate_error

    @property
    def bounds(self) -> list[Bound]:
        """About log Z."""
        return [] if self.interval is None else self.interval.bounds

    def sample(self, k: int, seed: Seed = None) -> Samples:
        """`k` states of the model with their weights and a diagnostic: `LogPartition.sample`."""
        if self.interval is None:
            raise ParameterError(
                "every row has its own condition, so there is no one distribution to draw from; "
                "expected a likelihood without `given`, or tz.sample(model, k, evidence=...)"
            )
        return self.interval.sample(k, seed)

    def summary(self) -> str:
        """Three statements about the mean, how the rows were summed, and log Z."""
        rows = len(self)
        if self.contradiction is not None:
            return self.contradiction.summary()
        lines = [f"{rows} row{'s' * (rows != 1)}, natural logs", *self._statements()]
        zero = np.flatnonzero(self.examples.upper == -np.inf)
        if zero.size:
            some = ", ".join(map(str, zero[:8].tolist())) + (", ..." if zero.size > 8 else "")
            lines.append(f"{zero.size} of the rows have probability 0, always: {some}")
        void = int(np.isnan(self.examples.estimate).sum())
        if void:
            lines.append(
                f"{void} of the rows have no estimate: what they are given may be impossible"
            )
        lines += [f"{how}: {count} row{'s' * (count != 1)}" for how, count in self.sources.items()]
        if self.interval is not None:
            first, *rest = self.interval.summary().splitlines()
            lines += [first, *(line for line in rest[:-1] if line.startswith(("log Z", "note")))]
        return "\n".join([*lines, f"{self.seconds:.2f} s"])

    def _statements(self) -> list[str]:
        mean = self.mean
        if mean.upper == -math.inf:
            return ["mean log p = -infinity   (holds always)"]
        if mean.upper - mean.lower < NARROW:  # both ends would look the same
            error = max(mean.upper - mean.estimate, mean.estimate - mean.lower)
            return [f"mean log p = {figure(mean.estimate, 8)} +- {at_most(error)}   (holds always)"]
        sure = f"mean log p in [{figure(mean.lower)}, {figure(mean.upper)}]"
        likely = f"mean log p in [{figure(mean.confident_lower)}, {figure(mean.confident_upper)}]"
        about = f"mean log p ~   {figure(mean.estimate)} +- {mean.estimate_error:.2g}"
        if math.isnan(mean.estimate):
            about = "mean log p ~   no estimate"
        width = max(map(len, (sure, likely, about)))
        return [
            f"{sure:<{width}}   holds always; the lower end is the conservative one",
            f"{likely:<{width}}   with confidence {self.confidence:g}",
            f"{about:<{width}}   not proven",
        ]

    def to_dataframe(self) -> DataFrame:
        """A pandas table with a line for each row: both pairs of ends, and the estimate."""
        columns = asdict(self.examples)
        return dataframe(columns, tuple(columns))

    def plot(self, ax: Axes | None = None) -> Axes:
        """How log p is distributed over the rows, and the mean between its ends."""
        from tightz.plots import plot_likelihood

        return plot_likelihood(self, ax=ax)

    def __repr__(self) -> str:
        mean = self.mean
        return (
            f"LogLikelihood({len(self)} rows, mean log p in [{mean.lower:.6f}, {mean.upper:.6f}] "
            f"always, [{mean.confident_lower:.6f}, {mean.confident_upper:.6f}] with confidence "
            f"{self.confidence:g}, {self.seconds:.2f} s)"
        )


def log_likelihood(
    model: GraphOrPath,
    data: Any,
    *,
    visible: Any = None,
    given: Any = None,
    evidence: Evidence | None = None,
    time_limit: float = 60.0,
    delta: float = 0.05,
    seed: Seed = None,
    max_memory: str | int = MAX_MEMORY,
    backend: Backend = "auto",
    on_bound: Callable[[Bound], None] | None = None,
) -> LogLikelihood:
    """log p of each row of `data`, and their mean, each between ends that hold always.

    data       an array (rows, columns) of states, nan where one is missing; a DataFrame, mappings
               {variable: state}, or a file (.npy, .npz, .csv, .jsonl, .evid, idx images)
    visible    the variables of an array's columns, by name or number; by default all of them, or
               the visible units of an RBM
    given      variables of the rows that are conditions: log p(the others | these), row by row
    evidence   the same condition for all rows: log p(row | evidence), beside what the model has
               observed
    delta      the confident ends of all rows hold together with confidence 1 - delta
    on_bound   called with the bounds on log Z as they arrive

    What a row leaves open is summed exactly, rounding included, where that is in reach: in closed
    form where it is independent, as the hidden units of an RBM are given the visible ones (up to
    16 missing pixels are gone through one by one); by elimination otherwise. Rows beyond that have
    runs of their own, which share the time that log Z leaves.
    """
    graph = given_model(model, "log_likelihood", only="FactorGraph")
    require_seconds("time_limit", time_limit)
    require_probability("delta", delta)
    graph = observing(graph, evidence)
    rows = rows_of(graph, data, visible)
    if not len(rows):
        raise ModelError("data has no rows; expected one at least")
    clock, root = Clock(time_limit), seed_sequence(seed)
    options: dict[str, Any] = {"max_memory": max_memory, "backend": backend, "marginals": False}
    whole = _Rows.summed(graph, rows)
    under = None if given is None else _Rows.summed(graph, _conditions(graph, rows, given))
    tasks = [one.left() for one in (whole, under) if one is not None]
    runs = sum(map(len, tasks))
    each = delta / max(1, runs + (under is None))
    interval = None

    def run(asked: FactorGraph, key: int, seconds: float, **more: Any) -> LogPartition:
        seconds = max(LEAST, seconds)
        return log_partition(
            asked, time_limit=seconds, delta=each, seed=stream(root, key), **options, **more
        )

    if under is None:
        share = SHARE if runs else 1.0
        interval = run(graph, 0, share * clock.left, on_bound=on_bound)
        under = _Rows.alike(interval, len(rows))
    for one, task in zip((whole, under), tasks, strict=False):
        for key, same in enumerate(task, 1):
            found = run(graph.with_evidence(one.rows.evidence(same[0])), key, clock.left / runs)
            one.put(same, found)
            runs -= 1
    examples = _ratio(whole, under)
    return LogLikelihood(
        _mean(examples), examples, 1.0 - delta, interval, dict(whole.sources), graph,
        clock.elapsed, provenance(root, graph.digest, time_limit=time_limit, delta=delta),
    )  # fmt: skip


def _conditions(model: FactorGraph, rows: Rows, listed: Any) -> Rows:
    """The rows with nothing but the variables that are conditions."""
    names = [listed] if isinstance(listed, str | int) else list(listed)
    chosen = [model.naming.index(v, "given") for v in names]
    for v in chosen:
        if v not in rows.variables:
            raise ModelError(f"given names {model.naming.said(v)}; expected a variable of the rows")
    return Rows(rows.variables, np.where(np.isin(rows.variables, chosen), rows.states, -1))


@dataclass(frozen=True, eq=False)
class _Rows:
    """What is known of log Z at each row: as `Ends`, and by which way."""

    rows: Rows
    known: NDArray[np.bool_]
    ends: Ends[NDArray[np.float64]]
    sources: Counter[str]

    @classmethod
    def empty(cls, rows: Rows) -> _Rows:
        arrays = [np.full(len(rows), value) for value in (-np.inf, np.inf, -np.inf, np.inf)]
        unknown = [np.full(len(rows), np.nan), np.full(len(rows), np.inf)]
        return cls(rows, np.zeros(len(rows), dtype=bool), Ends(*arrays, *unknown), Counter())

    @classmethod
    def summed(cls, model: FactorGraph, rows: Rows) -> _Rows:
        """Those that can be summed exactly."""
        found = cls.empty(rows)
        ends = found.ends
        for block in row_sums(model, rows):
            (logs,) = block.logs
            ends.lower[block.rows] = ends.confident_lower[block.rows] = logs.low
            ends.upper[block.rows] = ends.confident_upper[block.rows] = logs.high
            ends.estimate[block.rows] = logs.values
            with np.errstate(invalid="ignore"):
                off = np.maximum(logs.high - logs.values, logs.values - logs.low)
            ends.estimate_error[block.rows] = np.where(logs.high == -np.inf, 0.0, off)
            found.known[block.rows] = True
            found.sources[block.how] += len(block.rows)
        return found

    @classmethod
    def alike(cls, interval: LogPartition, count: int) -> _Rows:
        """The same for all rows."""
        found = cls.empty(Rows(np.zeros(0, np.int64), np.zeros((count, 0), np.int32)))
        found.put(np.arange(count), interval)
        return found

    def put(self, rows: NDArray[np.int64], found: LogPartition) -> None:
        ends = self.ends
        ends.lower[rows], ends.upper[rows] = found.lower, found.upper
        ends.confident_lower[rows] = found.confident.lower
        ends.confident_upper[rows] = found.confident.upper
        ends.estimate[rows], ends.estimate_error[rows] = found.estimate, found.estimate_error
        self.known[rows] = True
        self.sources[INTERVAL] += len(rows)

    def left(self) -> list[NDArray[np.int64]]:
        """Numbers of the rows that are not known, those that are alike together."""
        rows = np.flatnonzero(~self.known)
        if not rows.size:
            return []
        _, which = np.unique(self.rows.states[rows], axis=0, return_inverse=True)
        return [rows[which.reshape(-1) == k] for k in range(int(which.max()) + 1)]


def _ratio(whole: _Rows, under: _Rows) -> Ends[NDArray[np.float64]]:
    """log Z of the rows less log Z of what they are parts of, on the safe side of rounding."""
    a, b = whole.ends, under.ends
    nothing = b.upper == -np.inf  # no state at all: a share of nothing is not known
    found = []
    for low, high, least, most in (
        (a.lower, a.upper, b.lower, b.upper),
        (a.confident_lower, a.confident_upper, b.confident_lower, b.confident_upper),
    ):
        with np.errstate(invalid="ignore"):
            below = np.nextafter(low - most, -np.inf)
            above = np.minimum(0.0, np.nextafter(high - least, np.inf))
        below = np.where(np.isnan(below) | (low == -np.inf) | nothing, -np.inf, below)
        above = np.where(high == -np.inf, -np.inf, np.where(np.isnan(above), 0.0, above))
        found.append((np.minimum(below, above), np.where(nothing, 0.0, above)))
    with np.errstate(invalid="ignore"):
        value = np.where(nothing, np.nan, a.estimate - b.estimate)
        value = np.minimum(np.maximum(value, found[0][0]), found[0][1])
    value = np.where(found[0][1] == -np.inf, -np.inf, value)  # whatever is known of log Z
    error = np.where(value == -np.inf, 0.0, a.estimate_error + b.estimate_error)
    error = np.where(np.isnan(value), np.inf, error)
    return Ends(*found[0], *found[1], value, error)


def _mean(examples: Ends[NDArray[np.float64]]) -> Ends[float]:
    count = len(examples.lower)

    def mean(values: NDArray[np.float64], towards: float = math.nan) -> float:
        found = math.fsum(values.tolist()) / count
        if math.isnan(towards) or math.isinf(found):
            return found
        # the sum and the quotient are each rounded once
        return math.nextafter(math.nextafter(found, towards), towards)

    return Ends(
        mean(examples.lower, -math.inf),
        min(0.0, mean(examples.upper, math.inf)),
        mean(examples.confident_lower, -math.inf),
        min(0.0, mean(examples.confident_upper, math.inf)),
        mean(examples.estimate),
        mean(examples.estimate_error),
    )
