"""The hunt itself, whatever is hunted: methods run over numbered cases, and what they got wrong."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import tightz as tz
from verification.methods import Answer, Method
from verification.rows import Row
from verification.workers import spread

CONTROL = "control"
STRETCH = 140

Truth = TypeVar("Truth")
Every = Mapping[str, tuple[Method, int]]


class Case(NamedTuple, Generic[Truth]):
    """A model, its truth, and its turn: a method that sees every k-th turn has k | turn."""

    number: int
    turn: int
    kind: str
    model: tz.FactorGraph
    truth: Truth


@dataclass
class Tally:
    """What a stretch of models showed, per method and per kind of model."""

    cases: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    loose: Counter[str] = field(default_factory=Counter)
    kind_cases: Counter[str] = field(default_factory=Counter)
    kind_failed: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Tally) -> None:
        for mine, theirs in (
            (self.cases, other.cases),
            (self.failed, other.failed),
            (self.refused, other.refused),
            (self.loose, other.loose),
            (self.kind_cases, other.kind_cases),
            (self.kind_failed, other.kind_failed),
            (self.seconds, other.seconds),
        ):
            mine.update(theirs)
        self.first = {**other.first, **self.first}
        for name, slow in other.slowest.items():
            self.slowest[name] = max(slow, self.slowest.get(name, slow))

    def fail(self, name: str, case: Case, what: str) -> None:
        self.failed[name] += 1
        if not _control(name):
            self.kind_failed[case.kind] += 1
        shown = f"model {case.number} ({case.kind}): {what}"
        self.first.setdefault(name, shown)
        self.first.setdefault(case.kind, f"{name}, {shown}")


Judge = Callable[[Answer, Truth], tuple[list[str], bool]]
"""(what is wrong, whether something is wrong by less than undeclared rounding allows)."""


def examine_cases(cases: Iterator[Case[Truth]], every: Every, judge: Judge[Truth]) -> Tally:
    """All methods on these cases."""
    tally = Tally()
    for case in cases:
        for name, (method, period) in every.items():
            if case.turn % period == 0:
                _try(tally, case, name, method, judge)
    return tally


def _try(tally: Tally, case: Case[Truth], name: str, method: Method, judge: Judge[Truth]) -> None:
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a number is judged by its side, not by its noise
            answer = method(case.model, case.number)
    except (tz.errors.UnsupportedModelError, tz.errors.ParameterError, tz.errors.ResourceError):
        tally.refused[name] += 1
        return
    # A crash is a failure too, and so is calling a model malformed that was accepted when made:
    # that is how a NaN inside a method shows. The hunt goes on.
    except Exception as error:
        answer, wrong, loose = None, [repr(error)], False
    if answer is not None:
        wrong, loose = judge(answer, case.truth)
    took = time.perf_counter() - started
    tally.seconds[name] += took
    tally.slowest[name] = max((took, case.number), tally.slowest.get(name, (0.0, 0)))
    tally.cases[name] += 1
    tally.loose[name] += loose
    if not _control(name):
        tally.kind_cases[case.kind] += 1
    if wrong:
        tally.fail(name, case, "; ".join(wrong))


def run(
    examine: Callable[[range], Tally], models: int, workers: int, progress: Callable[[str], None]
) -> Tally:
    """Stretches of numbered models on all workers, merged in order."""
    stretches = [range(at, min(at + STRETCH, models)) for at in range(0, models, STRETCH)]
    tally = Tally()
    for done, part in enumerate(spread(examine, stretches, workers), start=1):
        for name in part.failed:
            if not _control(name) and name not in tally.first:  # known at once, not after an hour
                print(f"\n{name}: {part.first[name]}", file=sys.stderr)
        tally.merge(part)
        wrong = sum(count for name, count in tally.failed.items() if not _control(name))
        progress(f"{min(done * STRETCH, models)} of {models} models, {wrong} violations")
    return tally


def _control(name: str) -> bool:
    return name.startswith(CONTROL)


def method_rows(prefix: str, tally: Tally, every: Every) -> Iterator[Row]:
    """One row per method; a blind control fails them all."""
    caught = tally.failed[CONTROL] > 0
    for name in every:
        if name != CONTROL:
            notes = {"refused": tally.refused[name], "undeclared rounding": tally.loose[name]}
            said = ", ".join(f"{what} {count}" for what, count in notes.items() if count)
            detail = tally.first.get(name, said)
            yield Row(f"{prefix}: {name}", tally.cases[name], tally.failed[name], detail, caught)
