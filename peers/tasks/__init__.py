"""The tasks, in the order in which they run. A module's docstring is what the page says of it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

NAMES = ("exact", "marginals", "lower", "upper", "estimate", "ais", "heaviest", "counts", "reading")


class Engine(NamedTuple):
    """A way of one library to do a task.

    claims    exact, lower, upper, estimate, state or parts: what the value is held to
    says      what the library says its number is, in our words
    needs     the ending of a file without which it does not run
    """

    name: str
    library: str
    function: str
    claims: str
    says: str
    needs: str = ""

    @property
    def ours(self) -> bool:
        return self.library == "tightz"


def task(name: str) -> ModuleType:
    return importlib.import_module(f"peers.tasks.{name}")
