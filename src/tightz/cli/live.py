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


COMPILING_EVERY = 3.0
"""Seconds between plain lines about compilation."""


class _View:
    """Both intervals so far; `take` takes records, `table` draws them."""

    def __init__(self, time_limit: float, *, beside: bool) -> None:
        self.time_limit, self.beside, self.start = time_limit, beside, time.perf_counter()
        self.lock = threading.Lock()
        self.ends: dict[str, dict[str, Bound]] = {"always": {}, "confident": {}}
        self.exact: Bound | None = None
        self.count = 0
        self.compiling = ""
        self.free = 0.0  # seconds that do not count

    def compile(self, done: int, total: int) -> None:
        """Note how far compilation is; the time limit starts when it is done."""
        from tightz.runtime.kernels.farm import said

        with self.lock:
            self.compiling = said(done, total) if done < total else ""
            if not self.beside:
                self.free = time.perf_counter() - self.start

    def take(self, bound: Bound) -> None:
        from tightz.bounds import Proof, Side

        with self.lock:
            self.count += 1
            if bound.side is Side.BOTH:
                self.exact = bound
                return
            # An end that is proven is one to be confident of as well, where it is the better one.
            proven = bound.proof is Proof.DETERMINISTIC
            for kind in ("always", "confident") if proven else ("confident",):
                old = self.ends[kind].get(bound.side.value)
                if old is None or bound.low > old.low or bound.high < old.high:
                    self.ends[kind][bound.side.value] = bound

    def table(self) -> Table:
        from rich.table import Table

        from tightz.bounds import Proof

        view = Table(title=self.headline(), title_justify="left", header_style="bold")
        for column in ("log Z", "lower", "upper", "width", "by", "since"):
            numeric = column in ("lower", "upper", "width")
            view.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
        with self.lock:
            if self.exact is not None:
                b = self.exact
                both = _six(b.low), _six(b.high), f"{b.high - b.low:.2g}"
                view.add_row("exact", *both, b.method, f"{b.seconds:.1f} s")
                return view
            for kind, ends in self.ends.items():
                given = [b.confidence or 0.0 for b in ends.values() if b.proof is Proof.CONFIDENCE]
                name = f"confidence {min(given):g}" if given else kind
                view.add_row(name, *_row(ends))
        return view

    def headline(self) -> str:
        elapsed = time.perf_counter() - self.start
        free = elapsed if self.compiling and not self.beside else self.free
        left = max(0.0, self.time_limit - elapsed + free)
        line = f"{elapsed:.0f} s elapsed, {left:.0f} s left, {self.count} bounds"
        return f"{line}; {self.compiling}" if self.compiling else line


def _how(bound: Bound) -> str:
    from tightz.bounds import Proof

    return "confident" if bound.proof is Proof.CONFIDENCE else "always"


def _six(value: float) -> str:
    """To six digits, no minus before nothing."""
    from tightz.bounds import no_minus

    return no_minus(f"{value:.6f}")


def _row(ends: dict[str, Bound]) -> tuple[str, str, str, str, str]:
    """Lower, upper, width, makers and time of the latest change of an interval."""
    low, high = ends.get("lower"), ends.get("upper")
    makers = list(dict.fromkeys(b.method for b in (low, high) if b is not None))
    return (
        _six(low.low) if low else "",
        _six(high.high) if high else "",
        f"{high.high - low.low:.4g}" if low and high else "",
        "; ".join(makers),
        f"{max(b.seconds for b in ends.values()):.1f} s" if ends else "",
    )


@contextmanager
def live_bounds(time_limit: float, *, beside: bool = False) -> Iterator[Callable[[Bound], None]]:
    """Yields the function to call with each bound. beside: compiling counts against the limit.

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

    from tightz.runtime.kernels.farm import said, shown_by

    console = Console(stderr=True)
    view = _View(time_limit, beside=beside)
    if console.is_terminal:
        with (
            shown_by(view.compile),
            Live(get_renderable=view.table, console=console, refresh_per_second=4, transient=True),
        ):
            yield view.take
        return
    last: dict[str, float] = {}

    def compiled(done: int, total: int) -> None:
        now = time.perf_counter()
        if done == total or now - last.get("compiling", -math.inf) >= COMPILING_EVERY:
            last["compiling"] = now
            console.print(f"{now - view.start:8.2f} s  {said(done, total)}", highlight=False)

    def line(bound: Bound) -> None:
        now = time.perf_counter()
        end = f"{bound.side.value:>5} {_how(bound):<9}"
        if now - last.get(end, -math.inf) >= PLAIN_EVERY:
            last[end] = now
            console.print(
                f"{bound.seconds:8.2f} s  {end}  {_six(bound.log_z)}  {bound.method}",
                highlight=False,
                soft_wrap=True,
            )

    with shown_by(compiled):
        yield line
