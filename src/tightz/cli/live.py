"""The view of a running interval: live on a terminal, plain lines in a pipe, all on stderr."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from tightz.bounds import Bound

PLAIN_EVERY = 1.0
"""Seconds between plain lines; the live view refreshes by itself."""


class _View:
    """The best ends so far; `show` takes records, `table` draws them."""

    def __init__(self, time_limit: float) -> None:
        self.time_limit, self.start = time_limit, time.perf_counter()
        self.lock = threading.Lock()
        self.ends: dict[str, Bound] = {}
        self.count = 0

    def take(self, bound: Bound) -> None:
        from tightz.bounds import Proof, Side

        with self.lock:
            self.count += 1
            if bound.side is Side.BOTH:
                self.ends = {"exact": bound}
            elif bound.side is Side.UPPER:
                self.ends["upper"] = bound
            elif bound.proof is Proof.DETERMINISTIC:
                self.ends["lower"] = bound
            else:
                self.ends["certified"] = bound

    def table(self) -> Table:
        from rich.table import Table

        view = Table(title=self.headline(), title_justify="left", header_style="bold")
        for column in ("end", "log Z", "method", "since"):
            view.add_column(column, justify="right" if column == "log Z" else "left")
        with self.lock:
            for name in ("exact", "upper", "certified", "lower"):
                if name in self.ends:
                    b = self.ends[name]
                    view.add_row(name, f"{b.log_z:.6f}", b.method, f"{b.seconds:.1f} s")
        return view

    def headline(self) -> str:
        elapsed = time.perf_counter() - self.start
        left = max(0.0, self.time_limit - elapsed)
        low, high = (self.ends.get(end) for end in ("lower", "upper"))
        width = f", width {high.log_z - low.log_z:.4f}" if low and high else ""
        return f"{elapsed:.0f} s elapsed, {left:.0f} s left, {self.count} bounds{width}"


@contextmanager
def live_bounds(time_limit: float) -> Iterator[Callable[[Bound], None]]:
    """Yields the function to call with each bound.

    In a notebook (`!tightz logz ...`) the terminal cannot move its cursor up, so one line is
    rewritten there instead of a table.
    """
    if "JPY_PARENT_PID" in os.environ:
        from tightz.reports.progress import Progress

        with Progress() as show:
            yield show
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    view = _View(time_limit)
    if console.is_terminal:
        with Live(get_renderable=view.table, console=console, refresh_per_second=4, transient=True):
            yield view.take
        return
    last: dict[str, float] = {}

    def line(bound: Bound) -> None:
        now = time.perf_counter()
        if now - last.get(bound.side.value, -math.inf) >= PLAIN_EVERY:
            last[bound.side.value] = now
            console.print(
                f"{bound.seconds:8.2f} s  {bound.side.value:>8}  {bound.log_z:.6f}  {bound.method}",
                highlight=False,
                soft_wrap=True,
            )

    yield line
