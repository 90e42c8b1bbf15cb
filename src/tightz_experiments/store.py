"""Results kept as JSON: a piece of work is done once, and a figure is redrawn from what is kept."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tightz.errors import TightzError
from tightz.models.formats.text_files import write_atomically


class Spent(NamedTuple):
    """Wall seconds, and processor seconds of all threads."""

    seconds: float
    processor_seconds: float

    @classmethod
    def sum(cls, parts: Iterable[Spent]) -> Spent:
        """Wall seconds as if one after the other."""
        done = list(parts)
        return cls(sum(p.seconds for p in done), sum(p.processor_seconds for p in done))

    def __str__(self) -> str:
        return (
            f"{self.seconds / 60:.1f} min of wall time summed, "
            f"{self.processor_seconds / 60:.1f} min of processor time"
        )


@dataclass(frozen=True)
class Store:
    """A folder of records `NAME.json`: the parameters, the machine, the time it took, the result.

    Processor time is that of the whole process, so what runs beside a record belongs elsewhere.
    The machine's load average over the last minute tells a busy one from an idle one.
    """

    folder: Path

    def recall(
        self, name: str, parameters: dict[str, Any], compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The stored result of `name` if it was made with these parameters, else compute it.

        `parameters` and the result are plain JSON values (numbers, strings, lists, dictionaries).
        """
        if self.has(name, parameters):
            return self.result(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TightzError(
                f"{self.folder}: cannot be created ({error.strerror}); choose another folder with "
                "--out"
            ) from error
        begun = time.perf_counter(), time.process_time()
        result = compute()
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # None on Windows
        record = {
            "parameters": parameters,
            "made_with": made_with(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": time.perf_counter() - begun[0],
            "processor_seconds": time.process_time() - begun[1],
            "load_average": load,
            "result": result,
        }
        write_atomically([(self._path(name), json.dumps(record, indent=1).encode())])
        return result

    def has(self, name: str, parameters: dict[str, Any]) -> bool:
        """Whether a record was made with these parameters."""
        found = self._read(self._path(name))
        return found is not None and found["parameters"] == json.loads(json.dumps(parameters))

    def result(self, name: str) -> dict[str, Any]:
        """The result of a record that is there."""
        found: dict[str, Any] = self._found(name)["result"]
        return found

    def spent(self, name: str) -> Spent:
        """What a record that is there took."""
        found = self._found(name)
        return Spent(found["seconds"], found["processor_seconds"])

    def made_with(self, name: str) -> dict[str, Any]:
        """Versions and machine of a stored record; this machine's where there is none."""
        found = self._read(self._path(name))
        return made_with() if found is None else found["made_with"]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _found(self, name: str) -> dict[str, Any]:
        found = self._read(self._path(name))
        if found is None:
            raise TightzError(f"{self._path(name)}: no such record; compute it first")
        return found

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise TightzError(
                f"{path} is not a readable record ({error}); delete it to compute it again"
            ) from error
        return (
            record
            if isinstance(record, dict) and {"parameters", "result"} <= record.keys()
            else None
        )


def made_with() -> dict[str, Any]:
    """Versions and machine, for records and for the small print of figures."""
    return {
        "tightz": version("tightz"),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "python": platform.python_version(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
    }


def small_print(made: dict[str, Any], *details: str) -> str:
    """One line for the foot of a figure."""
    versions = ", ".join(f"{k} {made[k]}" for k in ("tightz", "numpy", "numba", "python"))
    return "; ".join([*details, versions, str(made["machine"])])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
