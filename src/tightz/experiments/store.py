"""Results kept as JSON: a piece of work is done once, and a figure is redrawn from what is kept."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tightz.errors import TightzError
from tightz.models.text_files import write_atomically

DEFAULT_FOLDER = Path("out/reproduce")


@dataclass(frozen=True)
class Store:
    """A folder of records `NAME.json`, each with the parameters and the machine that made it."""

    folder: Path

    def recall(
        self, name: str, parameters: dict[str, Any], compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The stored result of `name` if it was made with these parameters, else compute it.

        `parameters` and the result are plain JSON values (numbers, strings, lists, dictionaries).
        """
        path = self.folder / f"{name}.json"
        wanted = json.loads(json.dumps(parameters))
        found = self._read(path)
        if found is not None and found.get("parameters") == wanted:
            return found["result"]
        result = compute()
        record = {"parameters": wanted, "made_with": made_with(), "result": result}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TightzError(f"{self.folder}: cannot be created ({error.strerror})") from error
        write_atomically([(path, json.dumps(record, indent=1).encode())])
        return result

    def made_with(self, name: str) -> dict[str, Any]:
        """Versions and machine of a stored record; this machine's where there is none."""
        found = self._read(self.folder / f"{name}.json")
        return made_with() if found is None else found["made_with"]

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise TightzError(
                f"{path} is not a readable record ({error}); delete it to compute it again"
            ) from error
        return record if isinstance(record, dict) and "result" in record else None


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
