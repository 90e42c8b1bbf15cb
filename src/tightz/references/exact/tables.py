"""The tables of an elimination: where they lie, on which scale, and threads to walk them.

A table is kept on the ordinary scale, normalised, while every non-zero entry provably stays
within float64's range, and as logs otherwise: no state is ever lost to underflow.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tightz.references.exact import table_kernels
from tightz.references.exact.schedule import Arena

_LIMIT = 650.0  # nats; float64 reaches e^-708 with full precision
_PARALLEL_ENTRIES = 1 << 18
LOG_COST = 8  # an entry in logs takes about this many on the ordinary scale


@dataclass
class Table:
    """A table in the arena: exp(log_scale) * values, or exp(log_scale + values) if `is_log`.

    `low` and `high` bound the log of its non-zero entries, without log_scale; `drift` is how much
    of log_scale was taken out of a message after it was computed. A belief with `is_ratio` is
    already divided by its message (as computed).
    """

    start: int
    size: int
    axes: tuple[int, ...]
    log_scale: float = 0.0
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    tight: bool = False
    drift: float = 0.0
    is_ratio: bool = False


class Workers:
    """Threads over ranges: kernels release the GIL."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or _available_cores()
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def ranges(self, length: int, entries: int, grain: int = 1) -> list[tuple[int, int]]:
        """Split range(length) at multiples of `grain`; one range if the work is small."""
        units = length // grain
        parts = 1
        if self._pool is not None and entries >= _PARALLEL_ENTRIES:
            parts = min(2 * self.count, units)
        edges = [units * k // parts * grain for k in range(parts)] + [length]
        return list(itertools.pairwise(edges))

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

    def __init__(self, entries: int, reserved: int) -> None:
        self.arena = np.empty(entries)
        self.workers = Workers()
        self._holes = Arena(reserved)

    def close(self) -> None:
        self.workers.close()

    def take(self, size: int, axes: tuple[int, ...]) -> Table:
        """Room for a table; its entries are whatever was there before."""
        return Table(self._holes.take(size), size, axes)

    def release(self, table: Table) -> None:
        self._holes.give_back(table.start, table.size)

    def values(self, table: Table) -> NDArray[np.float64]:
        return self.arena[table.start : table.start + table.size]

    def value(self, table: Table) -> float:
        x = float(self.arena[table.start])
        log = x if table.is_log else math.log(x) if x > 0 else -math.inf
        return log + table.log_scale

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
        kernel: Callable[..., None] = table_kernels.positive_range
        if table.is_log:
            kernel = table_kernels.finite_range
        self.workers.run([partial(kernel, values, *r, found[k]) for k, r in enumerate(ranges)])
        small, large = float(found[:, 0].min()), float(found[:, 1].max())
        table.tight = True
        if small == math.inf:  # nothing but zeros
            table.low = table.high = 0.0
            return
        if not table.is_log:
            small, large = math.log(small), math.log(large)
            self.each(table_kernels.scale_in_place, table, math.exp(-large))
        else:
            self.each(table_kernels.shift_in_place, table, -large)
        table.log_scale += large
        table.drift += large
        table.low, table.high = small - large - 1e-9, 0.0

    def to_log(self, table: Table) -> None:
        if not table.is_log:
            self.each(table_kernels.log_in_place, table)
            table.is_log = True

    def to_linear(self, table: Table) -> bool:
        """Leave logs if that loses nothing; says whether the table is on the ordinary scale."""
        if table.is_log:
            if not table.tight:
                self.normalise(table)
            if table.low < -_LIMIT:
                return False
            self.each(table_kernels.exp_in_place, table)
            table.is_log = False
        return True

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
        if not linear:
            for message in messages:
                self.to_log(message)
        return not linear


def within_limit(tables: Sequence[Table]) -> bool:
    low = sum(min(t.low, 0.0) for t in tables)
    high = sum(max(t.high, 0.0) for t in tables)
    return low > -_LIMIT and high < _LIMIT


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: a container may allow fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
