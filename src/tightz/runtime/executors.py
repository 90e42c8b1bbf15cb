"""One seam for parallelism: anything with `submit` runs the work; results come back in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_ordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    executor: Executor | None = None,
    threads: int | None = None,
) -> Iterator[Result]:
    """function(task) for each task, in the order of the tasks, a bounded number in flight.

    With no executor a thread pool of `threads` (default: all cores) is used; the kernels release
    the interpreter lock. `threads=1` runs in the calling thread.
    """
    if executor is None and threads == 1:
        yield from map(function, tasks)
        return
    own = ThreadPoolExecutor(threads or os.cpu_count() or 1) if executor is None else None
    pool: Executor = executor if executor is not None else own  # type: ignore[assignment]
    window = 4 * (threads or os.cpu_count() or 1)
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(function, task))
            if len(pending) >= window:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        if own is not None:
            own.shutdown(wait=True)
