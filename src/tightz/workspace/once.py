"""Parts of a run that several streams need: made by whoever asks first, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tightz.errors import TightzError

Part = TypeVar("Part")


class Once:
    """What was made so far, by name; a refusal is kept too, for finding it may take seconds."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._refused: dict[str, TightzError] = {}
        self._locks: dict[str, Any] = {}

    def __call__(self, key: str, make: Callable[[], Part]) -> Part:
        """`make()` by whichever thread asks first; the others wait for that part alone."""
        with self._locks.setdefault(key, threading.Lock()):  # setdefault is atomic
            if key in self._refused:
                raise self._refused[key].with_traceback(None)
            if key not in self._made:
                try:
                    self._made[key] = make()
                except TightzError as refusal:
                    self._refused[key] = refusal
                    raise
        part: Part = self._made[key]
        return part

    def made(self, key: str) -> Any:
        """The part where somebody has made it, else None."""
        return self._made.get(key)
