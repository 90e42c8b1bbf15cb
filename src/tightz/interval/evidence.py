"""P(evidence): how much of Z agrees with what is observed, and what contradicts where none does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tightz.bounds import at_most, figure
from tightz.elimination.exact import exact
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.judge.verdict import log_summation
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.models.selection import factors_of_each
from tightz.reductions.zeros import simplify
from tightz.runtime.clock import Clock
from tightz.workspace.working import LARGE

if TYPE_CHECKING:
    from tightz.interval.interval import LogPartition

LOG_10 = math.log(10.0)

IMPOSSIBLE = "P(evidence) = 0   (no state agrees with it, holds always)"

SECONDS = 1.0
"""For looking which observations contradict each other."""

SLACK = 0.01
"""Nats by which the sums of a network's table may differ from 1, as in `models/formats/bif.py`."""


@dataclass(frozen=True)
class EvidenceProbability:
    """log P(evidence) = log Z with it less log Z without: a value (an estimate unless the ends
    meet), and the ends that hold always."""

    log_p: float
    lower: float
    upper: float
    exact: bool

    @classmethod
    def of(cls, with_it: LogPartition, low: float, high: float) -> EvidenceProbability:
        """From the interval with the evidence and [low, high] for log Z without it."""
        value = with_it.lower_proof.log_z if with_it.is_exact else with_it.estimate
        ends = with_it.lower, with_it.upper
        return cls.between(ends, value, (low, high), exact=with_it.is_exact)

    @classmethod
    def between(
        cls, ends: tuple[float, float], value: float, prior: tuple[float, float], *, exact: bool
    ) -> EvidenceProbability:
        """From the ends and the value of log Z with the evidence, and its ends without."""
        low, high = prior
        if ends[1] == -math.inf:
            return cls(-math.inf, -math.inf, -math.inf, True)
        known = math.isfinite(low), math.isfinite(high)
        lower = _outward(ends[0], high, -math.inf) if known[1] else -math.inf
        upper = min(0.0, _outward(ends[1], low, math.inf)) if known[0] else 0.0
        log_p = min(upper, max(lower, value - (low + high) / 2.0)) if all(known) else math.nan
        return cls(log_p, lower, upper, exact and high - low < SLACK)

    def summary(self) -> str:
        """P(evidence) and its log, and in which interval it lies."""
        if self.upper == -math.inf:
            return IMPOSSIBLE
        if self.exact:
            error = max(self.upper - self.log_p, self.log_p - self.lower, 0.0)
            value = probability(self.log_p, min(8, max(3, round(-math.log10(max(error, 1e-9))))))
            logs = f"log {figure(self.log_p, 8)} +- {at_most(error)}"
            return f"P(evidence) = {value}   ({logs}, holds always)"
        ends = f"[{probability(self.lower)}, {probability(self.upper)}]"
        logs = f"log in [{figure(self.lower)}, {figure(self.upper)}]"
        known = not math.isnan(self.log_p)
        about = f"; about {probability(self.log_p, 3)}, not proven" if known else ""
        return f"P(evidence) in {ends}   ({logs}, holds always{about})"


def _outward(a: float, b: float, towards: float) -> float:
    """a - b, on the safe side of its rounding."""
    return math.nextafter(a - b, towards)


def probability(log_p: float, digits: int = 8) -> str:
    """exp(log_p) for people: as a power of ten where it is below what doubles hold."""
    if log_p == -math.inf:
        return "0"
    return f"{math.exp(log_p):.{digits}g}" if log_p > -700.0 else f"10^{log_p / LOG_10:.6f}"


def log_z_of_network(model: FactorGraph) -> tuple[float, float] | None:
    """The ends of log Z without the evidence where the model is a Bayesian network, else None.

    A variable that one table alone names goes with that table, whose sums over it lie between two
    numbers: so does their product over all variables, and that is Z. A network's are 1, up to the
    digits that its file prints.
    """
    if not model.evidence or model.n_factors > LARGE or model.log_tables.max(initial=0.0) > SLACK:
        return None
    uses = np.bincount(model.scope_vars, minlength=model.n_variables)
    ptr, home = factors_of_each(model)
    left = np.ones(model.n_factors, dtype=bool)
    waiting = np.flatnonzero(uses == 1).tolist()
    low, high, gone = [], [], 0
    while waiting:
        v = waiting.pop()
        if uses[v] != 1:
            continue
        f = int(next(f for f in home[ptr[v] : ptr[v + 1]] if left[f]))
        scope, table = model.factor(f)
        with np.errstate(divide="ignore"):
            sums = np.log(np.exp(table).sum(axis=scope.index(v)))
        if not (np.abs(sums) <= SLACK).all():
            continue
        low.append(float(sums.min()))
        high.append(float(sums.max()))
        left[f], gone = False, gone + 1
        uses[list(scope)] -= 1
        waiting += [u for u in scope if uses[u] == 1]
    if left.any() or gone < model.n_variables:
        return None
    error = float(log_summation(model.cardinalities).sum())
    return math.fsum(low) - error, math.fsum(high) + error


@dataclass(frozen=True)
class Contradiction:
    """Evidence that no state of the model agrees with.

    observed   {variable: state} with which no state agrees; empty where the model has no state of
               positive weight at all
    minimal    whether all of them are needed for that
    """

    observed: dict[str, str] = field(default_factory=dict)
    minimal: bool = False

    def summary(self) -> str:
        """P(evidence) = 0, and which observations make it so, in two lines."""
        told = [f"{name}={state}" for name, state in self.observed.items()]
        shown = ", ".join(told[:20]) + (", ..." if len(told) > 20 else "")
        if not told:
            return "Z = 0 with and without the evidence: no state of the model has weight"
        if not self.minimal:
            return f"{IMPOSSIBLE}\nsome of these observations contradict each other: {shown}"
        alone = len(told) == 1
        return f"{IMPOSSIBLE}\n{shown} {'is impossible' if alone else 'contradict each other'}"


def contradiction(model: FactorGraph, seconds: float = SECONDS) -> Contradiction | None:
    """Why the evidence of a model whose Z is 0 is impossible; None where it has no evidence.

    Observations are left out while what is left is impossible by zeros alone, then while an exact
    sum of it is zero, as far as `seconds` allow.
    """
    if not model.evidence:
        return None
    clock, bare = Clock(seconds), model.without_evidence()
    kept, minimal = list(model.evidence.items()), False

    def zeros(some: list[tuple[int, int]]) -> bool:
        return simplify(observe(bare.with_evidence(dict(some))).reduced).contradiction

    def no_sum(some: list[tuple[int, int]]) -> bool:
        asked = bare.with_evidence(dict(some))
        return exact(asked, marginals=False, time_limit=clock.left).log_z == -math.inf

    if zeros(kept):
        kept, _ = _fewer(kept, zeros, clock)
    with suppress(ResourceError, UnsupportedModelError):  # no exact sum in this time
        kept, minimal = _fewer(kept, no_sum, clock)
    return Contradiction(model.naming.observed(dict(kept)), minimal or not kept)


def _fewer(
    kept: list[tuple[int, int]], impossible: Callable[[list[tuple[int, int]]], bool], clock: Clock
) -> tuple[list[tuple[int, int]], bool]:
    """What is left of `kept` when nothing more can go, and whether that was seen in time.

    Halves are tried first, then quarters, ..., then one at a time.
    """
    size = max(1, len(kept) // 2)
    while True:
        for k in range(0, len(kept), size)[::-1]:
            if clock.expired:
                return kept, False
            fewer = kept[:k] + kept[k + size :]
            if impossible(fewer):
                kept = fewer
        if size == 1:
            return kept, True
        size //= 2


class Contradictions:
    """Those of many sets of evidence on one model, looked for no longer than `SECONDS` in all."""

    def __init__(self) -> None:
        self.left = SECONDS
        self.known: list[Contradiction] = []

    def of(self, model: FactorGraph) -> Contradiction:
        """Why the evidence of a model whose Z is 0 is impossible."""
        seen = model.naming.observed(model.evidence)
        for one in self.known:
            if one.observed.items() <= seen.items():
                return one
        start = time.perf_counter()
        found = contradiction(model, self.left) if self.left > 0.0 else None
        self.left -= time.perf_counter() - start
        if found is not None and found.minimal:
            self.known.append(found)
        return found or Contradiction(seen)
