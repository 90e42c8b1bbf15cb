"""Checks on both cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from tightz.runtime.executors import map_ordered

Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[Result]:
    """function(task) in order; with one worker in this process."""
    if workers == 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from map_ordered(function, tasks, executor=pool)
