"""Would the tests notice? Faults planted one at a time in a copy of the library.

Every fault of `verification.fault_table` names a place on which some bound rests, what to put there
instead, and the tests that should fail then. A test counts as having killed a fault only where it
passes on the sound copy. What no test kills survives, and is a gap in the tests, unless the table
says why no answer can tell the two apart.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from verification.rows import Row

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src", "tightz")
SECONDS = 900
"""For the tests of one fault."""

START = """
import sys, pytest
from tightz.runtime.kernels import store
store.fingerprint = lambda kept=sys.argv[1]: kept
sys.exit(pytest.main(sys.argv[2:]))
"""
"""Kernels are those of the sound sources: a fault outside of them must not compile them all."""


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in `file` of the package, becomes `new`: then a bound is wrong.

    tests        what pytest is given: files, names, options
    why          what would be wrong
    equivalent   why no answer changes although the text does; such a fault has to survive
    """

    part: str
    file: str
    old: str
    new: str
    tests: str
    why: str
    equivalent: str = ""

    @property
    def name(self) -> str:
        return f"{self.part}: {self.file}: {self.why}"

    def planted(self, text: str) -> str:
        """The file's text with the fault in it; ValueError where the table is out of date."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)

    def in_kernel(self, text: str) -> bool:
        """Whether what it changes is compiled: within a kernel, or a constant of its module."""
        registry = json.loads((ROOT / PACKAGE / "runtime/kernels/registry.json").read_text())
        if self.file not in registry["sources"]:
            return False
        line = text[: text.index(self.old)].count("\n") + 1
        functions = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        marks = "".join(ast.unparse(d) for node in functions for d in node.decorator_list)
        return not functions or any(m in marks for m in ("kernel", "inner", "spliced", "jit"))


@dataclass
class Copy:
    """A copy of the library and its tests, in a folder of its own."""

    folder: Path
    fingerprint: str

    @classmethod
    def made(cls, folder: Path, fingerprint: str) -> Copy:
        without = shutil.ignore_patterns("__pycache__", ".*")
        for part in ("src", "tests", "verification"):
            shutil.copytree(ROOT / part, folder / part, ignore=without)
        shutil.copy(ROOT / "pyproject.toml", folder)
        return cls(folder, fingerprint)

    def write(self, file: str, text: str) -> None:
        path = self.folder / PACKAGE / file
        path.write_text(text, encoding="utf-8")
        # Python tells old from new by size and second: not enough here.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def run(self, tests: Sequence[str], compiled: bool = True) -> tuple[int, list[str], str]:
        """(exit status, tests that failed, the last line)."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src")}
        if not compiled:
            environment["NUMBA_DISABLE_JIT"] = "1"
        command = [sys.executable, "-c", START, self.fingerprint, "-rfE", "-p", "no:cacheprovider"]
        command += ["-p", "no:xdist", "-o", "addopts=-q --strict-markers", *tests]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, timeout=SECONDS, capture_output=True,
                text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, [], f"no end within {SECONDS} s"
        lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
        failed = [
            line.split(" ", 1)[1].split(" - ")[0]
            for line in lines
            if line.startswith(("FAILED ", "ERROR ")) and "::" in line
        ]
        return done.returncode, failed, lines[-1]

    def judged(self, fault: Fault) -> Judged:
        """The tests with the fault in the copy."""
        text = (ROOT / PACKAGE / fault.file).read_text(encoding="utf-8")
        try:
            planted = fault.planted(text)
        except ValueError as error:
            return Judged(fault, -1, "", f"out of date: {error}")
        compiled = not fault.in_kernel(text)
        self.write(fault.file, planted)
        try:
            status, failed, last = self.run(["-x", *shlex.split(fault.tests)], compiled)
        finally:
            self.write(fault.file, text)
        return Judged(fault, status, failed[0] if status == 1 and failed else "", last, compiled)


class Judged(NamedTuple):
    """What the tests said of a fault: pytest's exit status, the first that failed."""

    fault: Fault
    status: int = 0
    killer: str = ""
    last: str = ""
    compiled: bool = True

    def row(self, unsound: Collection[str]) -> Row:
        """`unsound` are tests that fail without any fault."""
        fault, why = self.fault, ""
        if self.killer in unsound:
            why = f"{self.killer} fails without the fault too"
        elif self.killer and fault.equivalent:
            why = f"called equivalent, but killed by {self.killer}"
        elif not self.killer and self.status:
            why = f"no answer: {self.last}"
        elif not self.killer and not fault.equivalent:
            why = f"SURVIVED {fault.tests}"
        good = f"killed by {self.killer}" if self.killer else f"equivalent: {fault.equivalent}"
        return Row(fault.name, 1, int(bool(why)), why or good)


def chosen(scale: float, parts: Sequence[str]) -> list[Fault]:
    """The faults of these parts (none: all); below scale 1 that share of each, one at least."""
    from verification.fault_table import FAULTS

    out: list[Fault] = []
    for part in dict.fromkeys(fault.part for fault in FAULTS):
        if parts and part not in parts:
            continue
        own = [fault for fault in FAULTS if fault.part == part]
        out += own[: max(1, round(min(scale, 1.0) * len(own)))]
    return out


def plant(
    scale: float,
    workers: int,
    progress: Callable[[str], None],
    parts: Sequence[str] = (),
    faults: Sequence[Fault] | None = None,
) -> Iterator[Row]:
    """A row per fault, in the table's order."""
    from tightz.runtime.kernels.store import fingerprint

    planned = chosen(scale, parts) if faults is None else list(faults)
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def one(fault: Fault) -> Judged:
        copy = free.get()
        try:
            found = copy.judged(fault)
        finally:
            free.put(copy)
        progress(f"{fault.name}: {found.killer or found.last}")
        return found

    with tempfile.TemporaryDirectory(prefix="tightz-faults-") as base:
        count = max(1, min(workers, len(planned)))
        for k in range(count):
            free.put(Copy.made(Path(base, str(k)), fingerprint() or ""))
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(one, planned))
        # The tests that killed some fault have to pass without any.
        unsound: list[str] = []
        sound = free.get()
        for compiled in (True, False):
            killers = sorted({f.killer for f in found if f.killer and f.compiled == compiled})
            if killers:
                unsound += sound.run(killers, compiled)[1]
    yield from (f.row(unsound) for f in found)
