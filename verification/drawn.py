"""Confident ends of marginals and of log Z through the stream of capped draws: how often they ever
miss.

The real stream, board and reductions on models that are enumerated, read after every batch of draws
and stopped wherever it misses. First tables are as small as they get, so that the cap is loose. The
controls must stand out: error allowed 400 times delta, and weights of one state of the first
variable half a nat too large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import tightz as tz
from tightz.bounds import Bound
from tightz.interval import marginal_bounds as ends_of_run
from tightz.interval.board import Board, judged
from tightz.interval.opening import trivial
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import seed_sequence
from tightz.sampling.capped import stream, tally, tightening
from tightz.sampling.ledger import Ledger
from tightz.workspace import working as workspace
from tightz.workspace.working import Launch, Working, alone
from verification.rows import Row
from verification.workers import spread

RUNS, STRETCH, LOOKS = 2000, 25, 14
DELTA = 0.2
DIGITS = 1e-12
BOLD, TILTED = "400 delta", "weights off"


def model_of(i: int) -> tz.FactorGraph:
    """Rings with chords, small grids, all pairs of three states, factors over three."""
    rng, strength = np.random.default_rng([77, i]), (0.7, 1.5, 3.0)[i // 4 % 3]
    kind = i % 4
    if kind == 0:
        couplings = {(j, (j + 1) % 6): strength * rng.normal() for j in range(6)}
        couplings |= {(j, j + 3): strength * rng.normal() for j in range(3)}
        return tz.from_ising({v: 0.5 * rng.normal() for v in range(6)}, couplings)
    if kind == 1:
        return tz.ising_grid(3, coupling=(-strength, strength), field=(-0.5, 0.5), seed=i)
    if kind == 2:
        pairs = [(x, y) for x in range(5) for y in range(x)]
        return tz.FactorGraph([3] * 5, [(p, strength * rng.normal(size=(3, 3))) for p in pairs])
    zeros = 0.15 * (rng.random() < 0.5)
    factors = []
    for _ in range(7):
        table = strength * rng.normal(size=(2, 2, 2))
        table = np.where(rng.random(table.shape) < zeros, -np.inf, table)
        factors.append((rng.choice(6, 3, replace=False).tolist(), table))
    return tz.FactorGraph([2] * 6, factors)


def examine(control: str, numbers: range) -> Counter[str]:
    """Runs with these numbers, and in how many of them an end ever missed."""
    found: Counter[str] = Counter()
    with ExitStack() as stack:
        for where, name, value in _changes(control):
            stack.enter_context(mock.patch.object(where, name, value))
        for i in numbers:
            model = model_of(i)
            exact = tz.exact(model)
            if exact.log_z > -np.inf:
                found += _run(model, i, exact.log_z, exact.marginals)
    return found


def _changes(control: str) -> Iterator[tuple[Any, str, Any]]:
    yield workspace, "NARROW", 0
    yield tightening, "FIRST", 1
    yield tightening, "MAX_IBOUND", 1
    yield stream, "STEP", 0.0  # a finding for every batch
    yield tally.Tally, "news", lambda self: True
    if control == BOLD:
        plain = ends_of_run.bounded
        yield ends_of_run, "bounded", lambda s, delta, *rest: plain(s, 400.0 * delta, *rest)
        yield Ledger, "target", property(lambda self: np.log(2.0 / (400.0 * self.delta)))
    if control == TILTED:
        count = tally.Tally.add

        def tilted(self: tally.Tally, drawing: Any, rng: np.random.Generator) -> None:
            true = drawing.log_x.copy()
            drawing.log_x[:] = np.minimum(0.0, true + 0.5 * (drawing.states[0] == 0))
            count(self, drawing, rng)
            drawing.log_x[:] = true

        yield tally.Tally, "add", tilted


def _run(
    model: tz.FactorGraph, i: int, log_z: float, truth: list[NDArray[np.float64]]
) -> Counter[str]:
    clock = Clock(600.0)
    working = Working(model, clock, DELTA, seed_sequence(500_000 + i), exact=False, threads=1)
    board = Board(clock, ledger=Ledger(DELTA))
    board.slack = lambda: working.reduction.rounding
    for bound in trivial(model):
        board.take(judged(bound, model))
    outside = apart = False
    looks = 0
    for item in _findings(working, clock):
        if isinstance(item, Bound):
            board.take(judged(item, working.graph))
        else:
            board.merge(item)
        if board.closed or looks == LOOKS:
            break
        if getattr(item, "shares", None) is None:
            continue
        looks += 1
        board.read()
        ends = ends_of_run.marginal_bounds(working, board).confident
        outside |= any(
            (e[:, 0] > p + DIGITS).any() or (e[:, 1] < p - DIGITS).any()
            for e, p in zip(ends, truth, strict=True)
        )
        low, high = board.confident_lower.low, board.confident_upper.high
        apart |= bool(low > log_z + 1e-9 or high < log_z - 1e-9 or board._said)
    if not looks:
        return Counter()
    return Counter(runs=1, looks=looks, marginals=int(outside), log_z=int(apart),
                   either=int(outside or apart))  # fmt: skip


def _findings(working: Working, clock: Clock) -> Iterator[Any]:
    """What the stream yields while it tightens, then what its draws until the end do."""
    for item in alone(stream.CappedDraws(working, clock)(working, clock)):
        if isinstance(item, Launch):
            yield from alone(item[0].method(working, clock))
            return
        yield item


def drawn(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Misses of marginals, of log Z and of either, over 2,000 * scale runs, and of the controls."""
    runs = max(100, int(RUNS * scale))
    counts = {}
    for control in ("", BOLD, TILTED):
        wanted = runs if not control else max(60, runs // 8)
        stretches = [range(at, min(at + STRETCH, wanted)) for at in range(0, wanted, STRETCH)]
        counts[control] = sum(spread(partial(examine, control), stretches, workers), Counter())
        progress(f"{wanted} runs, {control or 'as they are'}")
    real = counts[""]
    limit = int(binom.ppf(0.9999, real["runs"], DELTA))
    for name, told in (("marginals", "all ends of marginals"), ("log_z", "both ends of log Z")):
        controls = {c: counts[c][name] / max(1, counts[c]["runs"]) for c in (BOLD, TILTED)}
        shown = ", ".join(f"{c} {share:.0%}" for c, share in controls.items())
        detail = f"{real[name]} of {real['runs']} runs ever miss, {limit} allowed; {shown}"
        bar = binom.ppf(0.9999, counts[BOLD]["runs"], DELTA) / max(1, counts[BOLD]["runs"])
        caught = controls[BOLD] > bar
        yield Row(f"draws: {told}", real["runs"], max(0, real[name] - limit), detail, bool(caught))
    # each statement spends delta: both together at most twice that
    limit = int(binom.ppf(0.9999, real["runs"], 2.0 * DELTA))
    detail = f"{real['either']} miss somewhere, read {real['looks']:,} times"
    yield Row("draws: either", real["runs"], max(0, real["either"] - limit), detail)
