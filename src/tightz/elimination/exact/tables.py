"""The tables of an elimination: where they lie, on which scale, and kernels and threads on one.

A table is kept on the ordinary scale, normalised, while every non-zero entry provably stays
within float64's range, and as logs otherwise: no state is ever lost to underflow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.precision import NO_ERROR, NO_SCALE, Error, Scale, add_scales
from tightz.elimination.exact.schedule import Arena
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError
from tightz.runtime.cores import usable_cores
from tightz.runtime.kernels import kernel


@kernel
def positive_range(
    values: NDArray[np.float64], low: int, high: int, out: NDArray[np.float64]
) -> None:
    """out = (smallest non-zero, largest) of values[low:high]; (inf, 0) where all are zero."""
    small, large = np.inf, 0.0
    for t in range(low, high):
        x = values[t]
        large = max(large, x)
        if x > 0.0 and x < small:
            small = x
    out[0], out[1] = small, large


@kernel
def finite_range(
    values: NDArray[np.float64], low: int, high: int, out: NDArray[np.float64]
) -> None:
    """out = (smallest above -inf, largest) of values[low:high]; (inf, -inf) where there is none."""
    small, large = np.inf, -np.inf
    for t in range(low, high):
        x = values[t]
        large = max(large, x)
        if x > -np.inf and x < small:
            small = x
    out[0], out[1] = small, large


@kernel
def scale_in_place(values: NDArray[np.float64], low: int, high: int, factor: float) -> None:
    for t in range(low, high):
        values[t] *= factor


@kernel
def shift_in_place(values: NDArray[np.float64], low: int, high: int, shift: float) -> None:
    for t in range(low, high):
        values[t] += shift


@kernel
def log_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    for t in range(low, high):
        values[t] = np.log(values[t]) if values[t] > 0.0 else -np.inf


@kernel
def exp_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    for t in range(low, high):
        values[t] = np.exp(values[t])


@kernel
def negate_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    """-x, but -inf stays: where a message is zero so is every belief below it."""
    for t in range(low, high):
        if values[t] > -np.inf:
            values[t] = -values[t]


@kernel
def divide_in_place(
    top: NDArray[np.float64], low: int, high: int, bottom: NDArray[np.float64], factor: float
) -> None:
    """top = top / (bottom * factor), and 0 where bottom is 0 (0/0 = 0 in belief updates)."""
    for t in range(low, high):
        top[t] = top[t] / (bottom[t] * factor) if bottom[t] > 0.0 else 0.0


@kernel
def multiply_in_place(
    top: NDArray[np.float64], low: int, high: int, bottom: NDArray[np.float64]
) -> None:
    """top = top * bottom."""
    for t in range(low, high):
        top[t] *= bottom[t]


@kernel
def zero_in_place(
    top: NDArray[np.float64], low: int, high: int, bottom: NDArray[np.float64]
) -> None:
    """top = 0 where bottom is."""
    for t in range(low, high):
        if bottom[t] == 0.0:
            top[t] = 0.0


@kernel
def mean_depth(
    logs: NDArray[np.float64],
    low: int,
    high: int,
    weights: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """out = (sum of weights, sum of weights * -logs) over [low, high), zeros left out."""
    total, depth = 0.0, 0.0
    for t in range(low, high):
        if weights[t] > 0.0 and logs[t] > -np.inf:
            total += weights[t]
            depth -= weights[t] * logs[t]
    out[0], out[1] = total, depth


LIMIT = 650.0  # nats; float64 reaches e^-708 with full precision
_PARALLEL_ENTRIES = 1 << 18
_SAMPLES = 8
LOG_COST = 8  # an entry in logs takes about this many on the ordinary scale


@dataclass
class Table:
    """A table in the arena: exp(scale) * values, or exp(scale + values) if `is_log`.

    `low` and `high` bound the log of its non-zero entries, without the scale; `error` is how far
    they can be off (see `precision`). For a message, `own_error` is what its last step added, and
    `drop` how far `high` has come down since. `slack` bounds |log| of a belief's sum, which is 1.
    A belief with `is_ratio` is already divided by its message, as that is stored.
    """

    start: int
    size: int
    axes: tuple[int, ...]
    scale: Scale = NO_SCALE
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    tight: bool = False
    error: Error = NO_ERROR
    own_error: Error = NO_ERROR
    drop: float = 0.0
    slack: float = 0.0
    is_ratio: bool = False


class StoppedError(Exception):
    """Raised inside an exact sum that was asked to stop; it has no result."""


def go_on_unless(stop: Callable[[], bool]) -> None:
    """`StoppedError` where `stop()` says so."""
    if stop():
        raise StoppedError("the sum was stopped before its end")


BLOCK = 1 << 25
"""Entries, each a product of a few numbers, that a kernel treats at most before it is asked whether
the sum should stop: 0.01 to 0.15 s of a thread."""


class Workers:
    """Threads over ranges: kernels release the GIL. `StoppedError` once `stop()` says so."""

    def __init__(self, count: int | None = None, stop: Callable[[], bool] = bool) -> None:
        self.count = count or usable_cores()
        self._stop = stop
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def ranges(self, length: int, entries: int, grain: int = 1) -> list[tuple[int, int]]:
        """Split range(length) at multiples of `grain`; one range if the work is small."""
        units = length // grain
        parts = 1
        if self._pool is not None and entries >= _PARALLEL_ENTRIES:
            parts = min(2 * self.count, units)
        edges = [units * k // parts * grain for k in range(parts)] + [length]
        return list(itertools.pairwise(edges))

    def blocks(
        self,
        call: Callable[[int, int], object],
        low: int,
        high: int,
        entries: float,
        grain: int = 1,
    ) -> Callable[[], None]:
        """call(low, high) for blocks of that range one after the other; `entries`: of a unit."""
        step = max(1, int(BLOCK / max(entries, 1.0)) // grain) * grain

        def work() -> None:
            for first in range(low, high, step):
                go_on_unless(self._stop)
                call(first, min(first + step, high))

        return work

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        if self._pool is None or len(calls) == 1:
            for call in calls:
                call()
        else:
            for future in [self._pool.submit(call) for call in calls]:
                future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


class TableSpace:
    """One flat array that holds every table, `reserved` entries at its start kept free."""

    def __init__(self, entries: int, reserved: int, stop: Callable[[], bool] = bool) -> None:
        self.arena = np.empty(entries)
        self.workers = Workers(stop=stop)
        self._holes = Arena(reserved)

    def close(self) -> None:
        self.workers.close()

    def take(self, size: int, axes: tuple[int, ...]) -> Table:
        """Room for a table; its entries are whatever was there before.

        A pass that has to be done bucket by bucket may need more than was planned for it.
        """
        table = Table(self._holes.take(size), size, axes)
        if table.start + size > self.arena.size:
            more = np.empty(table.start + size)
            more[: self.arena.size] = self.arena
            self.arena = more
        return table

    def release(self, table: Table) -> None:
        self._holes.give_back(table.start, table.size)

    def values(self, table: Table) -> NDArray[np.float64]:
        return self.arena[table.start : table.start + table.size]

    def root(self, table: Table) -> tuple[list[float], float]:
        """A one-entry table: floats whose sum is its log ([-inf] for a zero), and their error."""
        x = float(self.arena[table.start])
        log = x if table.is_log else math.log(x) if x > 0 else -math.inf
        if log == -math.inf:
            return [log], 0.0
        error = table.error.at(table.high - log) + (0.0 if table.is_log else LIBRARY * abs(log))
        return [log, *table.scale], error

    def each(self, kernel: Callable[..., None], table: Table, *args: object) -> None:
        """kernel(values, low, high, *args) over ranges of one table."""
        values = self.values(table)
        ranges = self.workers.ranges(table.size, table.size)
        self.workers.run([partial(kernel, values, *r, *args) for r in ranges])

    def normalise(self, table: Table) -> None:
        """Measure the table and bring its largest entry to 1 (log 0)."""
        values = self.values(table)
        ranges = self.workers.ranges(table.size, table.size)
        found = np.empty((len(ranges), 2))
        kernel: Callable[..., None] = positive_range
        if table.is_log:
            kernel = finite_range
        self.workers.run([partial(kernel, values, *r, found[k]) for k, r in enumerate(ranges)])
        small, large = float(found[:, 0].min()), float(found[:, 1].max())
        table.tight = True
        if small == math.inf:  # nothing but zeros
            table.low = table.high = 0.0
            return
        before = self._sample(table)
        if not table.is_log:
            small, large = math.log(small), math.log(large)
            self.each(scale_in_place, table, math.exp(-large))
            cost = Error(LIBRARY + UNIT)
        else:
            self.each(shift_in_place, table, -large)
            cost = Error(0.0, UNIT)
        table.error = table.error.lowered(table.high - large).plus(*cost)
        table.scale = add_scales([*table.scale, large])
        table.drop += max(table.high - large, 0.0)
        table.low, table.high = small - large - 1e-9, 0.0
        self._compare(table, before - large, cost, abs(large))

    def to_log(self, table: Table) -> None:
        if not table.is_log:
            before = self._sample(table)
            self.each(log_in_place, table)
            table.is_log = True
            cost = Error(LIBRARY * max(table.high, 0.0), LIBRARY)
            table.error = table.error.plus(*cost)
            self._compare(table, before, cost)

    def to_linear(self, table: Table) -> bool:
        """Leave logs if that loses nothing; says whether the table is on the ordinary scale."""
        if table.is_log:
            if not table.tight:
                self.normalise(table)
            if table.low < -LIMIT:
                return False
            before = self._sample(table)
            self.each(exp_in_place, table)
            table.is_log = False
            table.error = table.error.plus(LIBRARY)
            self._compare(table, before, Error(LIBRARY))
        return True

    def _sample(self, table: Table) -> NDArray[np.longdouble]:
        """Logs of a few entries, evenly spread, by numpy: what the kernels must leave in place."""
        entries = self.values(table)[:: -(-table.size // _SAMPLES)].astype(np.longdouble)
        with np.errstate(divide="ignore"):
            return entries if table.is_log else np.log(entries)

    def _compare(
        self, table: Table, expected: NDArray[np.longdouble], cost: Error, moved: float = 0.0
    ) -> None:
        """`expected` are logs that were larger by up to `moved` when they were taken."""
        found = self._sample(table)
        allowed = 2.0 * (cost.absolute + LIBRARY + (cost.relative + LIBRARY) * np.abs(expected))
        # Their own rounding, which matters where long doubles are plain doubles.
        allowed += 8.0 * np.finfo(np.longdouble).eps * (np.abs(expected) + moved)
        with np.errstate(invalid="ignore"):
            same = (found == expected) | (np.abs(found - expected) <= allowed)
        if not same.all():
            raise RefutedError(
                f"exact: a table over {table.axes} changed its entries when it was rescaled"
            )

    def agree(self, groups: list[Table], messages: list[Table]) -> bool:
        """Bring all inputs of a bucket to one scale; True if that is logs."""
        tables = groups + messages
        if not within_limit(tables):
            for message in messages:
                if not message.tight:
                    self.normalise(message)
        linear = within_limit(tables) and all(self.to_linear(m) for m in messages)
        for table in groups if linear else []:
            np.exp(self.values(table), out=self.values(table))
            table.is_log = False
            table.error = table.error.plus(LIBRARY)
        if not linear:
            for message in messages:
                self.to_log(message)
        return not linear


def within_limit(tables: Sequence[Table]) -> bool:
    """Whether products of entries stay in range, and their quotients by the sum over a state.

    The backward pass meets p / message <= exp(-sum of lows), then multiplies the inputs in: with
    an entry that is zero among them, only the sum of highs bounds what comes before it.
    """
    low = sum(min(t.low, 0.0) for t in tables)
    high = sum(max(t.high, 0.0) for t in tables)
    return high - low < LIMIT
