"""Cases that provoke errors, and the places in the source that raise them.

A site is a `raise` statement with a message, or a call of a function that only speaks: one that
returns NoReturn or is named `require_...`. A case covers the site that raised, and the calls of
speaking functions that led there.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tightz.errors import ModelError, ParameterError, TightzError

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Case:
    """`act` must raise `kind` with `text`, in which ... stands for anything and TMP for a folder.

    `act` may take the folder (tmp) and a pytest.MonkeyPatch (patch) by name.
    """

    kind: type[Exception]
    text: str
    act: Callable[..., object]


class Site(NamedTuple):
    """Where something is said: a file relative to src, and its lines."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"src/{self.file}:{self.first}"

    @property
    def package(self) -> str:
        """The folder below src."""
        return self.file.rpartition("/")[0]

    @property
    def statement(self) -> str:
        return (SOURCE / self.file).read_text().splitlines()[self.first - 1].strip()


class Outcome(NamedTuple):
    error: Exception
    text: str
    sites: frozenset[Site]


def said(case: Case, tmp: Path) -> Outcome:
    """Run a case: the error, its text with the folder written as TMP, and the sites covered."""
    names = inspect.signature(case.act).parameters
    with pytest.MonkeyPatch.context() as patch:
        given = {"tmp": tmp, "patch": patch}
        try:
            case.act(**{name: given[name] for name in names if name in given})
            error: Exception = AssertionError("nothing was raised")
        except Exception as raised:
            error = raised
    return Outcome(error, str(error).replace(str(tmp), "TMP"), frozenset(_covered(error)))


def matches(expected: str, text: str) -> bool:
    pattern = ".+".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@cache
def sites(source: Path = SOURCE) -> frozenset[Site]:
    """Every place under `source` that says something to a user."""
    speakers = _speakers(source)
    return frozenset(
        site
        for path in source.rglob("*.py")
        for site in _sites_of(path.read_text(), path.relative_to(source).as_posix(), speakers)
    )


def tightz_errors() -> list[type[TightzError]]:
    """The base error and everything derived from it."""
    found: list[type[TightzError]] = [TightzError]
    for kind in found:
        found += kind.__subclasses__()
    return found


@cache
def _speakers(source: Path) -> frozenset[str]:
    functions = (
        node
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    )
    return frozenset(
        f.name
        for f in functions
        if f.name.startswith("require_") or (f.returns and ast.unparse(f.returns) == "NoReturn")
    )


def _sites_of(text: str, file: str, speakers: frozenset[str]) -> Iterator[Site]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise):
            spoken = isinstance(node.exc, ast.Call)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            spoken = name in speakers
        else:
            continue
        if spoken:
            yield Site(file, node.lineno, node.end_lineno or node.lineno)


@cache
def _by_file() -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in sites():
        found.setdefault(site.file, []).append(site)
    return found


def _covered(error: BaseException) -> Iterator[Site]:
    """Sites of an error and of those it was raised from: the raise, then the speakers' callers."""
    seen: BaseException | None = error
    while seen is not None:
        frames = []
        trace = seen.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code, trace.tb_lineno))
            trace = trace.tb_next
        for code, line in reversed(frames):
            path = Path(code.co_filename)
            if not path.is_relative_to(SOURCE):
                break
            around = [
                site
                for site in _by_file().get(path.relative_to(SOURCE).as_posix(), [])
                if site.first <= line <= site.last
            ]
            if not around:
                break
            yield min(around, key=lambda site: site.last - site.first)
            if code.co_name not in _speakers(SOURCE):
                break
        seen = seen.__cause__ or seen.__context__


def reads(reader: Callable[[Path], object], name: str, content: str | bytes, text: str) -> Case:
    """A case of reading a file of that name and content."""

    def act(tmp: Path) -> object:
        path = tmp / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return reader(path)

    return Case(ModelError, text, act)


def refuses(text: str, make: Callable[..., object], *arguments: object, **options: object) -> Case:
    """A case of a parameter out of its range."""
    return Case(ParameterError, text, lambda: make(*arguments, **options))
