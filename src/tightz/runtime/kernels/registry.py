"""The registry: kernels with their signatures, and which of them a task calls.

`registry.json` is written by `make kernels`, which runs every task on models of every kind; a test
fails where something is compiled that it does not list. It names

    sources   the files that kernels are made of, relative to the package
    kernels   module:function -> {signature: CPU seconds to compile it}
    tasks     task -> kind of model -> [module:function#k, its k-th signature, ...]

Tasks are the public functions and the streams of `log_partition`, by their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("registry.json")


@cache
def _listed() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except OSError:  # while it is being made, or in a zip file
        found = {"sources": [], "kernels": {}, "tasks": {}}
    return found


@cache
def sources() -> tuple[str, ...]:
    """The files that kernels are made of, relative to the package."""
    return tuple(_listed()["sources"])


@dataclass(frozen=True)
class Kernel:
    """A kernel for arguments of certain types. seconds: what compiling it took where measured."""

    function: str  # module:name
    signature: str
    seconds: float = 0.0

    @cached_property
    def file(self) -> str:
        """The name under which it is kept on this machine."""
        return file_name(self.function, self.signature)


def file_name(function: str, signature: str) -> str:
    """Part of it: the processor, as homes are shared by machines that are not alike, and settings
    of numba that change the code."""
    text = "\n".join((function, signature, _processor()))
    place, _, name = function.partition(":")
    return (
        f"{place.removeprefix('tightz.')}.{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    )


SETTINGS = (
    "OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "USING_SVML",
)  # fmt: skip


@cache
def _processor() -> str:
    import numba
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
    values = [getattr(numba.config, name, None) for name in SETTINGS]
    numbers = [None if value is None else int(value) for value in values]
    return repr((cpu_target.target_context.codegen().magic_tuple(), numbers))


@cache
def everything() -> tuple[Kernel, ...]:
    """All kernels that are listed."""
    return tuple(
        Kernel(function, signature, seconds)
        for function, signatures in _listed()["kernels"].items()
        for signature, seconds in signatures.items()
    )


def tasks() -> list[str]:
    """The tasks that are listed."""
    return sorted(_listed()["tasks"])


@cache
def kernels_of(task: str, kind: str) -> tuple[Kernel, ...]:
    """What the task calls on a model of that kind; nothing where the task is not listed."""
    named = _listed()["tasks"].get(task, {}).get(kind, [])
    return tuple(_kernel(name) for name in named)


def for_all_kinds(tasks: Iterable[str]) -> tuple[Kernel, ...]:
    """What the tasks call on any model."""
    listed = _listed()["tasks"]
    return tuple({k: None for t in tasks for kind in listed[t] for k in kernels_of(t, kind)})


def _kernel(name: str) -> Kernel:
    function, _, number = name.partition("#")
    signature, seconds = list(_listed()["kernels"][function].items())[int(number)]
    return Kernel(function, signature, seconds)


def needed(tasks: Iterable[str], kind: str) -> list[Kernel]:
    """What the tasks call, each kernel once: the first task's first, of one task the longest."""
    found: dict[Kernel, None] = {}
    for task in tasks:
        for each in sorted(kernels_of(task, kind), key=lambda k: -k.seconds):
            found.setdefault(each)
    return list(found)
