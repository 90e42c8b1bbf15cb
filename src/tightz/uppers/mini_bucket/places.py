"""Where a descent keeps its tables: in main memory, or in a device's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tightz.bounds import Side
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.backends import Backend, on_device
from tightz.uppers.mini_bucket.descent import Descent, Steps, predicted_bytes
from tightz.uppers.mini_bucket.partition import Partition

WORTH = 2000.0
"""Entries a clique from which a device pays: below, launching takes it longer than a core sums."""

A_CLIQUE, AN_ENTRY = 1e-5, 1e-10
"""Seconds of an iteration on a device, for each clique and each entry of its table (H200: 8e-6 and
5e-11)."""

JUDGED = 10
"""Iterations that a judgement and its preparation take as long as."""

SET_UP = 2e-4
"""Seconds that it takes to lay a clique out for a device."""

BYTES = 4.0
"""Of a device for each entry of a table, roughly: most of it messages of half as many."""

MOST_ENTRIES = 2.0**31
"""Of one table on a device, whose offsets have 32 bits."""

LARGEST = 1e5
"""Logarithms of potentials up to which float32 leaves enough digits to iterate with."""

KEPT_FREE = 0.1
"""Part of a device's free memory that others may need."""


class Place(NamedTuple):
    """Bytes that a descent and its judgement need there, what there is, and how one is made."""

    cost: Callable[[Partition], float]
    allowed: float
    make: Callable[..., Steps]
    device: bool


def main_memory(allowed: float) -> Place:
    return Place(predicted_bytes, allowed, Descent, False)


def choose_place(
    backend: Backend, model: FactorGraph, found: Sequence[Partition], side: Side, allowed: float
) -> Place:
    """A device where one is usable, large enough for the smallest of `found` and worth it."""
    here = main_memory(allowed)
    if backend == "cpu" or not found or not _suitable(model, side):
        return here
    sizes = min(found, key=lambda parts: float(parts.table_sizes.sum())).table_sizes
    worthwhile = float(sizes.sum()) >= WORTH * sizes.size
    if not on_device(backend, _why_no_device, worthwhile=worthwhile):
        return here
    from tightz.runtime.gpu.device import free_bytes
    from tightz.uppers.mini_bucket.gpu import DeviceDescent, device_cost

    there = Place(device_cost, (1.0 - KEPT_FREE) * free_bytes(), DeviceDescent, True)
    least = min(there.cost(parts) for parts in found)
    return there if least <= there.allowed and float(sizes.max()) < MOST_ENTRIES else here


class Forecast(NamedTuple):
    """Seconds of an iteration, and those that an order takes to be laid out for a device."""

    pace: float
    setup: float
    device: bool = False


def forecast(backend: Backend, place: Place, parts: Partition, pace: float, step: int) -> Forecast:
    """What tables of an ibound larger by `step` cost, wherever they will lie.

    `pace`: seconds of an iteration with the tables of `parts`, at `place`.
    """
    count, entries = parts.table_sizes.size, float(parts.table_sizes.sum()) * 2.0**step
    here = Forecast(pace * 2.0**step, 0.0)
    if not place.device:
        worth = entries >= WORTH * count and _suitable(parts.model, Side.UPPER)
        if backend == "cpu" or not worth or not on_device(backend, _why_no_device):
            return here
    from tightz.runtime.gpu.device import free_bytes

    if BYTES * entries > free_bytes():
        return Forecast(math.inf, 0.0) if place.device else here
    fixed = A_CLIQUE * count
    if place.device:
        fixed = min(pace, fixed)
        return Forecast(fixed + (pace - fixed) * 2.0**step, SET_UP * count, True)
    return Forecast(min(here.pace, fixed + AN_ENTRY * entries), SET_UP * count, True)


def seconds_on_device(parts: Partition, step: int = 0) -> float:
    """Of an iteration there, with an ibound larger by `step`."""
    sizes = parts.table_sizes
    return A_CLIQUE * sizes.size + AN_ENTRY * float(sizes.sum()) * 2.0**step


def _why_no_device(simulator: bool) -> str:
    from tightz.runtime.gpu import why_no_device

    return why_no_device(simulator)


def _suitable(model: FactorGraph, side: Side) -> bool:
    """Upper bounds, no zeros: on a device nothing is ruled out."""
    logs = model.log_tables
    return side is Side.UPPER and bool(logs.size) and float(np.abs(logs).max()) <= LARGEST
