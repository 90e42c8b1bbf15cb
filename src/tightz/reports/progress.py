"""Progress from Python: one line that is rewritten in place, in a notebook or on a terminal."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tightz.bounds import Bound
    from tightz.paper.trials import TrialBatch

EVERY = 0.25
"""Seconds between rewrites of the line."""

PLAIN_EVERY = 5.0
"""Seconds between lines where nothing can be rewritten (a log file)."""


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel; asks IPython only where it is already imported."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class Progress:
    """What to give as `on_bound` to log_partition, or as `on_batch` to estimate.

        tz.log_partition(model, on_bound=Progress())
        tz.estimate(model, trials=200, on_batch=Progress(total=21 * 200))

    As a context manager (`with Progress() as show`) it also writes the last state at the end.

    total    trials to come, for a percentage
    stream   where lines go outside a notebook; default stderr
    """

    def __init__(self, *, total: int | None = None, stream: TextIO | None = None) -> None:
        self.total = total
        self._stream = sys.stderr if stream is None else stream
        self._start = time.perf_counter()
        self._shown = -float("inf")
        self._ends: dict[str, float] = {}
        self._confidence: float | None = None
        self._count = 0
        self._handle: Any = None
        self._notebook = stream is None and in_notebook()
        self._rewrites = self._notebook or self._stream.isatty()
        self._every = EVERY if self._rewrites else PLAIN_EVERY

    def __call__(self, news: Bound | TrialBatch) -> None:
        """Take a bound or a batch of trials, and show the state of things if it is time to."""
        from tightz.bounds import Bound

        if isinstance(news, Bound):
            self._count += 1
            last = self._take(news)
        else:
            self._count += len(news)
            self._ends["best"] = max(
                self._ends.get("best", -float("inf")), float(news.log_gamma.max())
            )
            last = self._count == self.total
        now = time.perf_counter()
        if last or now - self._shown >= self._every:
            self._shown = now
            self._write(self.line(), last)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._count:
            self._write(self.line(), True)

    def _take(self, bound: Bound) -> bool:
        """Keep the best ends; whether the interval is closed."""
        from tightz.bounds import Proof
        from tightz.reports.words import kind_of

        self._ends[kind_of(bound)] = bound.log_z
        if bound.proof is Proof.CONFIDENCE:
            self._confidence = bound.confidence
        return "exact" in self._ends

    def _confident(self) -> str:
        """The confident interval; an end without a certificate is the proven one."""
        ends = self._ends
        low = max(ends.get("lower", -math.inf), ends.get("confident lower", -math.inf))
        high = min(ends.get("upper", math.inf), ends.get("confident upper", math.inf))
        if self._confidence is None:
            return ""
        width = f", width {high - low:.4g}" if math.isfinite(high - low) else ""
        return f"; with confidence {self._confidence:g} in [{low:.4f}, {high:.4f}]{width}"

    def line(self) -> str:
        """The state in one line."""
        from tightz.reports.words import count

        ends, seconds = self._ends, time.perf_counter() - self._start
        if "best" in ends:
            share = f" ({100 * self._count / self.total:.0f}%)" if self.total else ""
            total = f" of {self.total:,}" if self.total else ""
            text = f"{self._count:,}{total} trials{share}, log Z >= {ends['best']:.4f}"
        elif "exact" in ends:
            text = f"log Z = {ends['exact']:.6f} (exact)"
        else:
            low = f"{ends['lower']:.4f} <= " if "lower" in ends else ""
            high = f" <= {ends['upper']:.4f}" if "upper" in ends else ""
            width = f", width {ends['upper'] - ends['lower']:.4f}" if low and high else ""
            text = f"{low}log Z{high}{width}{self._confident()}, {count(self._count, 'bound')}"
        return f"{seconds:6.1f} s  {text}"

    def _write(self, text: str, last: bool) -> None:
        if self._notebook:
            from IPython.display import display

            shown = {"text/plain": text}
            if self._handle is None:
                self._handle = display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)
            return
        if self._rewrites:
            self._stream.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
