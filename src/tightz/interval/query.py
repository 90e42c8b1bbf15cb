"""Posterior distributions of some variables given evidence, by name, and P(evidence)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.errors import ModelError, ParameterError, require_seconds
from tightz.interval.evidence import IMPOSSIBLE, EvidenceProbability, log_z_of_network
from tightz.interval.interval import LogPartition
from tightz.interval.log_partition import log_partition
from tightz.interval.marginal_ends import combined
from tightz.models.ends import shown_ends
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.names import Names
from tightz.results import Result, dataframe
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.interrupts import as_one
from tightz.runtime.memory import MAX_MEMORY
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.shown import ASIDE, Members, Recorded
from tightz.workspace.findings import Clamped, Mixing

if TYPE_CHECKING:
    from pandas import DataFrame

PRIOR = 1 / 3
"""Part of the time for log Z without the evidence, where the tables do not say it."""

PRINTED = 1e-9
"""Nats within which the tables must say log Z without the evidence; their digits may be few."""

MANY = 64
"""States in all that are bounded one by one where nobody chose the variables."""


@dataclass(frozen=True, eq=False)
class Table:
    """The distribution of one variable.

    probabilities   (states,) their best values
    bounds          (states, 2) ends that hold always; [0, 1] where nothing is proven
    confident       (states, 2) narrower ones, of all variables of the model together with the
                    confidence of the run
    source          where the values come from and how far to trust them
    """

    variable: int
    probabilities: NDArray[np.float64]
    bounds: NDArray[np.float64]
    confident: NDArray[np.float64]
    source: str


class Posteriors(Mapping[Any, dict[str, float]], Recorded):
    """A mapping {variable: {state: probability}} of the variables that were asked for.

    Its keys are names, numbers where the model has none; `posteriors[variable]` takes either.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def naming(self) -> Names: ...

        @property
        def tables(self) -> dict[int, Table]: ...

    def members(self) -> Members:
        told, names = super().members(), self.naming
        del told["tables"]
        told["posteriors"] = {
            names.label(v): Members(
                probabilities=names.by_state(v, table.probabilities),
                bounds=names.by_state(v, table.bounds),
                confident_bounds=names.by_state(v, table.confident),
                source=table.source,
            )
            for v, table in self.tables.items()
        }
        return told

    def __getitem__(self, variable: Any) -> dict[str, float]:
        table = self._table(variable)
        return self.naming.distribution(table.variable, table.probabilities)

    def __iter__(self) -> Iterator[str | int]:
        names = self.naming.variables
        return iter(self.tables if names is None else [names[v] for v in self.tables])

    def __len__(self) -> int:
        return len(self.tables)

    def __contains__(self, variable: object) -> bool:
        try:
            return self.naming.index(variable) in self.tables
        except ModelError:
            return False

    def get(self, variable: Any, default: Any = None) -> Any:
        """The distribution of a variable, or `default` where it was not asked for."""
        known = variable in self
        return self[variable] if known else default

    def marginal_bound(
        self, variable: Any, *, confident: bool = False
    ) -> dict[str, tuple[float, float]]:
        """{state: (lower, upper)}: both hold always, or with the run's confidence."""
        table = self._table(variable)
        ends = (table.confident if confident else table.bounds).tolist()
        labels = self.naming.state_labels(table.variable)
        return {s: (low, high) for s, (low, high) in zip(labels, ends, strict=True)}

    def _table(self, variable: Any) -> Table:
        v = self.naming.index(variable)
        if v not in self.tables:
            asked = ", ".join(self.naming.said(u) for u in self.tables)
            raise ParameterError(
                f"{self.naming.said(v)} was not asked for; expected {asked or 'nothing'}"
            )
        return self.tables[v]


@dataclass(frozen=True, eq=False, repr=False)
class Query(Posteriors, Result):
    """What `query` returns: a mapping, `result["lung"]` is {state: probability}.

    model      the model with all evidence
    interval   log Z of it, the run behind the answer
    evidence   log P(evidence) with its ends; None where nothing is observed
    tables     one for each variable asked for, by its number
    """

    model: FactorGraph = field(metadata=ASIDE)
    interval: LogPartition = field(metadata=ASIDE)
    evidence: EvidenceProbability | None = field(metadata=ASIDE)
    tables: dict[int, Table]
    seconds: float

    def members(self) -> Members:
        return Members(
            {
                "evidence": self.naming.observed(self.model.evidence),
                "log_p_evidence": self.evidence,
                "contradiction": self.interval.contradiction,
                "log_z": self.interval.brief(),
                "confidence": self.interval.confident.confidence,
                "notes": self.interval.notes,
                "interrupted": self.interval.interrupted,
                **super().members(),
            }
        )

    @property
    def naming(self) -> Names:
        return self.model.naming

    @property
    def bounds(self) -> list[Bound]:
        """About log Z of the model with its evidence."""
        return self.interval.bounds

    @property
    def provenance(self) -> dict[str, Any]:
        return self.interval.provenance

    @property
    def impossible(self) -> bool:
        """Whether no state agrees with the evidence."""
        return self.interval.upper == -math.inf

    def to_dataframe(self) -> DataFrame:
        """A pandas table: variable, state, probability, lower, upper, and confident ends."""
        rows = [
            (self.naming.label(v), state, p, *ends, *likely)
            for v, table in self.tables.items()
            for state, p, ends, likely in zip(
                self.naming.state_labels(v), table.probabilities.tolist(), table.bounds.tolist(),
                table.confident.tolist(), strict=True,
            )
        ]  # fmt: skip
        return dataframe(
            rows,
            ("variable", "state", "probability", "lower", "upper", "confident_lower",
             "confident_upper"),
        )  # fmt: skip

    def summary(self) -> str:
        """P(evidence), then a table for each variable."""
        lines = []
        if self.model.evidence:
            seen = self.naming.observed(self.model.evidence).items()
            labels = [f"{name}={state}" for name, state in seen]
            lines.append(f"given {', '.join(labels[:20])}{', ...' if len(labels) > 20 else ''}")
        if self.interval.contradiction is not None:
            return "\n".join([*lines, self.interval.contradiction.summary()])
        if self.impossible:
            return "the partition function is zero: no state has weight"
        if self.evidence is not None:
            lines.append(self.evidence.summary())
        for v, table in self.tables.items():
            lines += ["", f"{self.naming.label(v)}   ({table.source})", *self._rows(v, table)]
        lines += ["", f"{self.seconds:.2f} s"]
        return "\n".join(lines)

    def _rows(self, v: int, table: Table) -> list[str]:
        labels = self.naming.state_labels(v)
        width = max(len(label) for label in labels)
        rows = []
        for s, (label, p) in enumerate(zip(labels, table.probabilities, strict=True)):
            value = "?" if math.isnan(p) else f"{p:.8f}"
            sure, likely = shown_ends(p, table.bounds[s], table.confident[s])
            sure = f" {sure}" if sure.startswith("+-") else f"   in {sure}" if sure else ""
            likely = f"   likely in {likely}" if likely else ""
            rows.append(f"  {label:<{width}}  {value}{sure}{likely}")
        return rows

    def __repr__(self) -> str:
        asked = ", ".join(self.naming.label(v) for v in list(self.tables)[:8])
        return f"Query({asked} given {len(self.model.evidence)} observed, {self.seconds:.2f} s)"


@as_one
def query(
    model: GraphOrPath,
    targets: Any = None,
    *,
    evidence: Evidence | None = None,
    time_limit: float = 60.0,
    seed: Seed = None,
    max_memory: str | int = MAX_MEMORY,
    backend: Backend = "auto",
    on_bound: Callable[[Bound], None] | None = None,
) -> Query:
    """The distribution of each of `targets` given the evidence, and P(evidence).

    targets    names or numbers of variables; one of them; None: all that are not observed
    evidence   {"smoke": "yes"}, "smoke=yes" or a file, beside what the model has observed
    on_bound   called with the bounds on log Z given the evidence as they arrive

    The result is a mapping {variable: {state: probability}}; `marginal_bound` gives the ends of
    each. Where the model can be summed exactly and time allows, Z is summed once for each state of
    a target (of all variables, where they have few states in all): the ratios are the posterior.
    Otherwise exact marginals are, from one sum of all. Either way their ends hold always, rounding
    included, except where the rounding of marginals is not known (Pfaffians): they are [0, 1] then.
    Elsewhere the values are the estimates of `log_partition`, and said to be, with ends that hold
    always and with the run's confidence. Evidence that no state agrees with has probability 0:
    then `result.impossible` is true, there are no posteriors (NaN), and `summary()` says which
    observations contradict each other.
    """
    model = given_model(model, "query", only="FactorGraph")
    require_seconds("time_limit", time_limit)
    seen = given(model, evidence)
    chosen = targets_of(seen, targets)
    clock, root = Clock(time_limit), seed_sequence(seed)
    options: dict[str, Any] = {"max_memory": max_memory, "backend": backend}

    def run(asked: FactorGraph, key: int, share: float = 1.0, **more: Any) -> LogPartition:
        left = max(0.05, share * clock.left)
        return log_partition(asked, time_limit=left, seed=stream(root, key), **options, **more)

    prior = log_z_of_network(seen)
    if seen.evidence and (prior is None or prior[1] - prior[0] > PRINTED):
        without = run(seen.without_evidence(), 0, PRIOR, marginals=False)
        low, high = prior or (-math.inf, math.inf)
        prior = max(low, without.lower), min(high, without.upper)
    count = sum(int(seen.cardinalities[v]) for v in chosen if v not in seen.evidence)
    one_by_one = targets is not None or count <= MANY
    whole = run(seen, 1, marginals=not one_by_one, on_bound=on_bound)
    if whole.interrupted:
        clock.stop()
    tables: dict[int, Table] = {}
    if one_by_one and whole.is_exact and whole.lower > -math.inf:
        if count * whole.seconds <= clock.left:
            for v in chosen:
                tables[v] = certain(seen, v) if v in seen.evidence else _bounded(seen, v, run)
        else:
            whole = run(seen, 1)
    for v in chosen:
        tables.setdefault(v, estimated(seen, v, whole))
    return Query(
        seen,
        whole,
        None if prior is None else EvidenceProbability.of(whole, *prior),
        {v: tables[v] for v in chosen},
        clock.elapsed,
    )


def targets_of(model: FactorGraph, targets: Any) -> list[int]:
    """Numbers of the variables asked for, each once."""
    if targets is None:
        return [v for v in range(model.n_variables) if v not in model.evidence]
    one = isinstance(targets, str | tuple) or not isinstance(targets, Iterable)
    if isinstance(targets, tuple) and str(targets) not in (model.names or ()):
        one = False  # a tuple of variables, not the coordinates of one
    listed = [targets] if one else list(targets)
    return list(dict.fromkeys(model.naming.index(variable, "query") for variable in listed))


def certain(model: FactorGraph, v: int) -> Table:
    known = np.zeros(int(model.cardinalities[v]))
    known[model.evidence[v]] = 1.0
    ends = np.stack([known, known], axis=1)
    return Table(v, known, ends, ends, "observed")


def _bounded(model: FactorGraph, v: int, run: Callable[..., LogPartition]) -> Table:
    """Z with each state of v over the sum of all."""
    parts = [
        run(model.with_evidence({v: state}), 2, marginals=False)
        for state in range(int(model.cardinalities[v]))
    ]
    exact = all(r.is_exact for r in parts)
    values = np.array([r.lower_proof.log_z if exact else r.estimate for r in parts])
    weights = np.exp(values - values.max())
    how = "exact" if exact else "estimate: ratios of log Z with each state"
    clamped = Clamped(np.array([r.lower for r in parts]), np.array([r.upper for r in parts]), how)
    ends = combined(clamped, -math.inf, math.inf, np.array([0, len(parts)]))
    return Table(v, weights / weights.sum(), ends, ends, f"{how}; the ends hold always")


def estimated(model: FactorGraph, v: int, whole: LogPartition) -> Table:
    """What the run says of the variable: value, ends that hold always, and with confidence."""
    states = int(model.cardinalities[v])
    nothing = np.tile([0.0, 1.0], (states, 1))
    proven, drawn = whole.marginal_bounds, whole.confident.marginal_bounds
    always = nothing if proven is None else proven[v]
    likely = always if drawn is None else drawn[v]
    if whole.marginals is None or whole.upper == -math.inf:
        why = "no marginals in this time" if whole.upper > -math.inf else IMPOSSIBLE
        return Table(v, np.full(states, math.nan), always, likely, f"unknown: {why}")
    source = whole.marginal_origin
    if whole.marginal_status not in (Mixing.EXACT, Mixing.ROUNDED):
        source = f"estimate: {source}"
    if (always[:, 1] - always[:, 0] < 1.0).all():
        source += "; `in` holds always" if (likely != always).any() else "; the ends hold always"
    if (likely != always).any():
        source += f"; `likely in` with confidence {whole.confident.confidence:g}, all together"
    return Table(v, np.asarray(whole.marginals[v]), always, likely, source)
