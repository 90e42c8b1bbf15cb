"""Exact log Z and marginals by weighted model counting, in slices of time.

plan = counting_plan(model)          # or why not
count = plan.start(max_memory="2GB")
while not count.advance(1.0):
    print(count.progress)
count.log_z, count.rounding, count.marginals()
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.clauses import arrays as a
from tightz.elimination.clauses.blocks import BlockSum, Value, block_sum
from tightz.elimination.clauses.formula import (
    LARGEST,
    ClauseModel,
    clause_model,
    log_of,
    normal,
)
from tightz.elimination.clauses.guide import priorities
from tightz.elimination.clauses.search import FINISHED, NEED_TRACE, RUNNING, advance
from tightz.elimination.clauses.setup import Weights, make_room, new_work
from tightz.elimination.clauses.trace import literal_marginals
from tightz.elimination.refused import Refused
from tightz.errors import ParameterError
from tightz.judge.verdict import UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.memory import format_bytes, parse_memory

_NO_ZEROS = "no table over two or more variables has a zero"
_SLICE = 0.05  # seconds between looks at the clock
_PATIENCE = 50_000  # decisions before another way is looked for
_SECOND_ORDER = 1.1  # products of errors: see `Counting.rounding`


@dataclass(frozen=True, eq=False)
class CountingPlan:
    """A model as clauses, before any work: how many variables, clauses and auxiliaries."""

    formula: ClauseModel

    @property
    def n_variables(self) -> int:
        return self.formula.n

    @property
    def n_clauses(self) -> int:
        return len(self.formula.clauses)

    @property
    def n_auxiliaries(self) -> int:
        return self.formula.n - self.formula.n_model

    @property
    def share(self) -> float:
        """Of the tables over two or more variables, those of zeros and one other number."""
        return self.formula.share

    def describe(self) -> str:
        return (
            f"model counting: {self.n_variables} variables ({self.n_auxiliaries} auxiliary), "
            f"{self.n_clauses} clauses, {100 * self.share:.0f}% of the tables logical"
        )

    def start(
        self, *, max_memory: str | int = "2GB", seed: int = 0, learning: bool = True
    ) -> Counting:
        """A count that has not begun. `seed` breaks ties in the order of decisions.

        `learning=False` searches without learned clauses: slower on most formulas, and the cache
        then also keeps components without models.
        """
        return Counting(self, parse_memory(max_memory), seed, learning)


def counting_plan(model: FactorGraph) -> CountingPlan | Refused:
    """`model` (evidence taken out) as clauses and weights, or the reason why not."""
    wide = np.diff(model.scope_ptr).max(initial=0) > 1
    if wide and (model.cardinalities <= 2).all() and not model.has_zeros:
        return Refused(_NO_ZEROS)  # soon said, also of a large model
    found = clause_model(model)
    if isinstance(found, Refused):
        return found
    if found.n_tables and not found.n_with_zeros:
        return Refused(_NO_ZEROS)
    return CountingPlan(found)


def plan_clauses(
    n: int, clauses: Sequence[Sequence[int]], log_weights: Mapping[int, float] | None = None
) -> CountingPlan:
    """A plan for clauses over n variables; literal 2 v + s is "v is in state s".

    log_weights: of literals, 0 where not given; -inf forbids one.
    """
    given = dict(log_weights or {})
    forbidden = [(x ^ 1,) for x, w in given.items() if w == -math.inf]
    terms = {x: [float(w)] for x, w in given.items() if w > -math.inf}
    listed = normal([*clauses, *forbidden])
    if max(n, sum(len(c) > 2 for c in listed)) > LARGEST:
        raise ParameterError(
            f"{n} variables and {len(listed)} clauses; counting numbers up to {LARGEST} variables "
            "and as many clauses of three or more literals"
        )
    for (x,) in (c for c in listed if len(c) == 1):
        terms[x ^ 1] = terms.get(x, [])
    return CountingPlan(
        ClauseModel(n, n, listed, terms, n_tables=len(listed), n_logical=len(listed))
    )


@dataclass(eq=False)
class Counting:
    """A count under way. `advance` works on it; when that says True the result is there.

    The search begins. Where it has not ended after some decisions and the formula is one of few
    long clauses over small blocks (`blocks`), that way is taken instead; it has no marginals.
    """

    plan: CountingPlan
    max_memory: int
    seed: int
    learning: bool
    finished: bool = False
    why_no_marginals: str = ""
    width: float = math.nan
    _steps: int = field(default=256, repr=False)

    def __post_init__(self) -> None:
        formula = self.plan.formula
        self.finished = formula.contradiction
        self._work: a.Work | None = None
        self._blocks: BlockSum | None = None
        self._tried_blocks = False

    @cached_property
    def _weights(self) -> tuple[Weights, list[float]]:
        return self.plan.formula.weights()

    def _begin(self) -> a.Work:
        formula = self.plan.formula
        first, self.width = priorities(formula.n, formula.clauses, seed=self.seed)
        return new_work(
            formula.n, formula.clauses, self._weights[0], first, self.max_memory,
            learning=self.learning,
        )  # fmt: skip

    def advance(self, seconds: float) -> bool:
        """Work for about `seconds`; whether it is finished. The result is the same for any."""
        end = time.perf_counter() + seconds
        if self._work is None and not self.finished:
            self._work = self._begin()
        begin = time.perf_counter()
        while not self.finished:
            self._take(self._steps)
            now = time.perf_counter()
            taken, begin = now - begin, now
            if taken < 0.5 * min(_SLICE, seconds):
                self._steps = min(2 * self._steps, 1 << 24)
            elif taken > 2.0 * min(_SLICE, seconds):
                self._steps = max(self._steps // 2, 1)
            if now >= end:
                break
        return self.finished

    def _take(self, steps: int) -> None:
        """Steps of the search, and more room where it has none; or of the sum by blocks."""
        assert self._work is not None
        if self._blocks is not None:
            self.finished = self._blocks.advance()
            return
        if self.decisions >= _PATIENCE and not self._tried_blocks:
            self._try_blocks()
            return
        status = int(advance(self._work, steps))
        if status == FINISHED:
            self.finished = True
        elif status == NEED_TRACE and self._trace_bytes() > self.max_memory // 8:
            # Doubling would pass a quarter of what is allowed; log Z needs no trace.
            self._work.registers[a.TRACING] = 0
            small = {
                f: getattr(self._work.trace, f)[:1].copy() for f in ("records", "ends", "items")
            }
            self._work = self._work._replace(trace=self._work.trace._replace(**small))
            self.why_no_marginals = (
                "the record of the count passed a quarter of max_memory = "
                f"{format_bytes(self.max_memory)}; raise max_memory"
            )
        elif status != RUNNING:
            self._work = make_room(self._work, status)

    def _try_blocks(self) -> None:
        formula = self.plan.formula
        self._tried_blocks = True
        self._blocks = block_sum(formula.n, formula.clauses, self._weights[0], self.max_memory // 2)
        if self._blocks is not None:
            self.why_no_marginals = "log Z was summed by blocks, which keeps no record"

    def _trace_bytes(self) -> int:
        assert self._work is not None
        trace = self._work.trace
        return sum(x.nbytes for x in (trace.records, trace.ends, trace.share, trace.items))

    @property
    def _total(self) -> Value:
        """(mantissa, exponent, error) of the finished count."""
        if not self.finished:
            raise ParameterError("the count is not finished; advance(seconds) until it says True")
        if self._work is None:
            return 0.0, 0, 0.0
        if self._blocks is not None:
            return self._blocks.value
        levels = self._work.levels
        return (
            float(levels.mantissa[0, 0]), int(levels.exponent[0, 0]), float(levels.error[0, 0]),
        )  # fmt: skip

    @property
    def decisions(self) -> int:
        """Made so far."""
        return int(self._work.registers[a.DECISIONS]) if self._work is not None else 0

    @property
    def log_z(self) -> float:
        mantissa, exponent, _ = self._total
        return log_of(mantissa, exponent, self._weights[1])[0] if mantissa else -math.inf

    @property
    def rounding(self) -> float:
        """Nats by which log_z may differ from log Z of the tables as given.

        The search adds up first-order errors; an operation on numbers with errors of e units makes
        them larger by a factor 1 + e UNIT at most. There are at most 6 n operations between a
        weight and the result, and no number on the way errs by more than all weights and operations
        together; where 6 n times that is below 8%, 1.1 covers it. Beyond, nothing is promised.
        """
        mantissa, exponent, error = self._total
        if not mantissa:
            return 0.0
        weights, scale = self._weights
        operations = 6.0 * self.plan.n_variables
        most = max(error, float(weights.error.sum()) + operations)
        if most * UNIT * operations > 0.08:
            return math.inf
        return _SECOND_ORDER * UNIT * (error + log_of(mantissa, exponent, scale)[1])

    @property
    def progress(self) -> float:
        """The share of the search that is closed, every open branch and component being equal."""
        if self.finished:
            return 1.0
        if self._work is None:
            return 0.0
        if self._blocks is not None:
            return self._blocks.progress
        levels, r = self._work.levels, self._work.registers
        done, share = 0.0, 1.0
        top = int(r[a.LEVEL])
        for d in range(top + 1):
            if d:
                share *= 0.5
                done += share * int(levels.branch[d])
            if d < top:
                found = max(1, int(levels.found[d]))
                left = int(levels.part[d + 1]) - int(levels.part[d])  # the one under way included
                done += share * max(0, found - left) / found
                share /= found
        return min(done, 1.0)

    def marginals(self) -> list[NDArray[np.float64]] | None:
        """One probability vector per variable of the model; None: see `why_no_marginals`."""
        if not self._total[0]:
            self.why_no_marginals = "no state has weight"
        if self.why_no_marginals:
            return None
        assert self._work is not None
        p = literal_marginals(self._work)
        formula = self.plan.formula
        ends = [2 * v + (1 if v in formula.single else 2) for v in range(formula.n_model)]
        return [p[2 * v : end].copy() for v, end in enumerate(ends)]
