"""The same model under many sets of evidence: log Z, P(evidence) and posteriors of each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.bounds import figure
from tightz.errors import require_probability, require_seconds
from tightz.interval.evidence import (
    IMPOSSIBLE,
    Contradiction,
    Contradictions,
    EvidenceProbability,
)
from tightz.interval.interval import LogPartition
from tightz.interval.likelihood import INTERVAL
from tightz.interval.log_partition import log_partition
from tightz.interval.marginal_ends import shares
from tightz.interval.query import Posteriors, Table, certain, estimated, targets_of
from tightz.interval.row_sums import Block, row_sums
from tightz.judge.rows import RowLogs, added
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.names import Names
from tightz.models.rows import Rows, rows_of
from tightz.results import dataframe
from tightz.runtime.backends import Backend
from tightz.runtime.memory import MAX_MEMORY
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.shown import ASIDE, Members

if TYPE_CHECKING:
    from pandas import DataFrame

EXACT = "exact; the ends hold always"


@dataclass(frozen=True, eq=False, repr=False)
class SweepRow(Posteriors):
    """One row of a sweep: a mapping, `row["lung"]` is {state: probability}.

    row            its number, from 0
    evidence       what it observes, by name where the model has names
    lower, upper   of log Z with the model's evidence and the row's; they hold always
    log_z          its value, an estimate where the ends do not meet
    probability    P(the row's evidence), given that of the model
    tables         one for each variable asked for, by its number
    how            by which way it was summed
    problem        what is wrong with the row; then there is nothing else
    """

    row: int
    model: FactorGraph = field(metadata=ASIDE)
    evidence: dict[str, str] = field(default_factory=dict)
    lower: float = -math.inf
    upper: float = math.inf
    log_z: float = math.nan
    probability: EvidenceProbability | None = None
    tables: dict[int, Table] = field(default_factory=dict)
    how: str = ""
    problem: str = ""
    _known: Contradictions = field(default_factory=Contradictions)

    def members(self) -> Members:
        if self.problem:
            return Members(row=self.row, problem=self.problem)
        told = super().members()
        told["log_p_evidence"] = told.pop("probability")
        told["log_z"] = Members(
            estimate=self.log_z, lower=told.pop("lower"), upper=told.pop("upper")
        )
        return Members({**told, "contradiction": self.contradiction})

    @property
    def naming(self) -> Names:
        return self.model.naming

    @cached_property
    def contradiction(self) -> Contradiction | None:
        """Which observations, the model's among them, no state agrees with."""
        if self.upper > -math.inf:
            return None
        seen = self.naming.numbered(self.evidence, text=True)
        if clash := against(self.model, seen):
            return Contradiction(self.naming.observed(clash), minimal=True)
        return self._known.of(self.model.with_evidence(seen))

    def summary(self) -> str:
        """One line: log Z, log P(evidence), and the posteriors asked for."""
        if self.problem:
            return f"{self.row}: {self.problem}"
        parts = [f"{self.row}: log Z = {figure(self.log_z)}"]
        if not self.upper - self.lower < 1e-6 and self.upper > -math.inf:
            parts = [f"{self.row}: log Z in [{figure(self.lower)}, {figure(self.upper)}]"]
        if self.probability is not None:
            parts.append(self.probability.summary().partition("   ")[0])
        if self.contradiction is not None and self.contradiction.observed:
            return "; ".join([*parts, self.contradiction.summary().partition("\n")[2]])
        for v in self.tables:
            states = " ".join(f"{state} {p:.6f}" for state, p in self[v].items())
            parts.append(f"{self.model.naming.label(v)}: {states}")
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"SweepRow({self.summary()})"


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """What `sweep` returns: iterate over it. Rows come as they are done, each once per pass."""

    model: FactorGraph
    rows: Rows
    targets: list[int]
    seed: np.random.SeedSequence
    options: dict[str, Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Sweep({len(self)} rows of {self.model!r})"

    @cached_property
    def _known(self) -> Contradictions:
        return Contradictions()

    @cached_property
    def prior(self) -> LogPartition:
        """log Z of the model before any row is observed."""
        return self._run(self.model, 0, marginals=False)

    def __iter__(self) -> Iterator[SweepRow]:
        for row, problem in sorted(self.rows.problems.items()):
            yield SweepRow(row, self.model, problem=problem)
        left = np.ones(len(self.rows), dtype=bool)
        left[list(self.rows.problems)] = False
        good = np.flatnonzero(left)
        free = [v for v in self.targets if v not in self.model.evidence]
        keeps: list[tuple[int, ...]] = [(v,) for v in free] or [()]
        # a bad row stands with nothing observed; what is said of it is left out here
        for block in row_sums(self.model, Rows(self.rows.variables, self.rows.states[good]), keeps):
            numbers = good[block.rows]
            left[numbers] = False
            yield from self._summed(block._replace(rows=numbers), free)
        for number in np.flatnonzero(left).tolist():
            if against(self.model, self.rows.evidence(number)):
                yield self._impossible(number, free)
                continue
            seen = self.model.with_evidence(self.rows.evidence(number))
            found = self._run(seen, number + 1, marginals=bool(free))
            yield self._interval(number, seen, found)
            if found.interrupted:
                raise KeyboardInterrupt

    def _run(self, model: FactorGraph, key: int, *, marginals: bool) -> LogPartition:
        seed = stream(self.seed, key)
        return log_partition(model, seed=seed, marginals=marginals, **self.options)

    def _summed(self, block: Block, free: list[int]) -> Iterator[SweepRow]:
        logs = block.logs[0]
        if free:  # log Z from the states of the first variable asked for
            starts = np.arange(0, logs.values.size, logs.values.shape[1])
            logs = added(RowLogs(logs.values.ravel(), logs.errors.ravel()), starts)
        ends = {v: shares(one.low, one.high) for v, one in zip(free, block.logs, strict=False)}
        low, high = logs.low.tolist(), logs.high.tolist()
        for k, number in enumerate(block.rows.tolist()):
            tables = {}
            for v, one in zip(free, block.logs, strict=False):
                values = one.values[k]
                weights = np.exp(values - max(float(values.max()), -1e300))
                with np.errstate(invalid="ignore"):
                    found = weights / weights.sum()
                source = EXACT if high[k] > -math.inf else f"unknown: {IMPOSSIBLE}"
                tables[v] = Table(v, found, ends[v][k], ends[v][k], source)
            yield self._row(
                number, (low[k], high[k]), float(logs.values[k]), tables, block.how, exact=True
            )

    def _impossible(self, number: int, free: list[int]) -> SweepRow:
        """A row that contradicts what the model has observed: nothing is summed for it."""
        tables = {}
        for v in free:
            states = int(self.model.cardinalities[v])
            none = np.tile([0.0, 1.0], (states, 1))
            values = np.full(states, np.nan)
            tables[v] = Table(v, values, none, none, f"unknown: {IMPOSSIBLE}")
        ends = (-math.inf, -math.inf)
        return self._row(number, ends, -math.inf, tables, "the evidence itself", exact=True)

    def _interval(self, number: int, seen: FactorGraph, found: LogPartition) -> SweepRow:
        tables = {v: estimated(seen, v, found) for v in self.targets if v not in seen.evidence}
        value = found.lower_proof.log_z if found.is_exact else found.estimate
        for v in self.targets:
            if v in seen.evidence:
                tables[v] = certain(seen, v)
        ends = found.lower, found.upper
        return self._row(number, ends, value, tables, INTERVAL, exact=found.is_exact)

    def _row(
        self, number: int, ends: tuple[float, float], value: float, tables: dict[int, Table],
        how: str, *, exact: bool,
    ) -> SweepRow:  # fmt: skip
        prior = self.prior
        told = self.model.naming.observed(self.rows.evidence(number))
        every = {v: tables[v] if v in tables else certain(self.model, v) for v in self.targets}
        without = prior.lower, prior.upper
        probability = EvidenceProbability.between(ends, value, without, exact=exact)
        return SweepRow(
            number, self.model, told, *ends, value, probability, every, how, _known=self._known
        )

    def to_dataframe(self) -> DataFrame:
        """A pandas table of all rows in order: log Z and log P(evidence) with their ends."""
        columns = ("row", "lower", "upper", "log_z", "log_p", "problem")
        rows = [
            (r.row, r.lower, r.upper, r.log_z, math.nan if r.probability is None else
             r.probability.log_p, r.problem)
            for r in self
        ]  # fmt: skip
        return dataframe(sorted(rows), columns)


def against(model: FactorGraph, seen: Mapping[int, int]) -> dict[int, int]:
    """The first of these observations that contradicts what the model has observed, if any."""
    for v, state in seen.items():
        if model.evidence.get(v, state) != state:
            return {v: state}
    return {}


def sweep(
    model: GraphOrPath,
    rows: Any,
    targets: Any = (),
    *,
    visible: Any = None,
    evidence: Evidence | None = None,
    time_limit: float = 60.0,
    delta: float = 0.05,
    seed: Seed = None,
    strict: bool = False,
    max_memory: str | int = MAX_MEMORY,
    backend: Backend = "auto",
) -> Sweep:
    """log Z, P(evidence) and posteriors for each row of evidence; iterate over what it returns.

    rows        mappings {variable: state}, an array with nan where nothing is observed, a
                DataFrame, or a file: .csv with names above (an empty cell is not observed), .jsonl,
                .evid with several samples, .npy
    targets     variables whose posteriors are wanted, by name or number
    visible     the variables of an array's columns, where these are not all of them
    evidence    what is observed in all rows, beside what the model has; P(evidence) is the row's
                given this
    time_limit  seconds for log Z of the model, and for each row that needs a run of its own
    strict      whether a row that cannot be read stops the sweep before it starts; otherwise it is
                yielded with its `problem`

    Rows are summed exactly where that is in reach, a table that depends on a few of the observed
    variables once for each of their states that occurs: all rows together cost little more than
    the different ones among their parts. Other rows have a run each, their ends hold always too.
    """
    graph = given_model(model, "sweep", only="FactorGraph")
    require_seconds("time_limit", time_limit)
    require_probability("delta", delta)
    graph = given(graph, evidence)
    found = rows_of(graph, rows, visible, what="rows", strict=strict)
    options = {
        "time_limit": time_limit, "delta": delta, "max_memory": max_memory, "backend": backend
    }  # fmt: skip
    chosen = targets_of(graph, targets) if targets is not None else []
    return Sweep(graph, found, chosen, seed_sequence(seed), options)
