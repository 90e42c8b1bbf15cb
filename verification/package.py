"""`make package`: build wheel and sdist, install them into clean environments, and use them.

The wheel is tried on every interpreter given (`make package PYTHONS="python3.11 python3.13"`), the
sdist on the first. Only core dependencies are installed there: what needs an extra has to say which
`pip install` mends it. Each environment starts with an empty folder of kernels. With `--tag v1.2.3`
the tag must be the version that all files state; `--out` keeps what was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = "Scripts" if os.name == "nt" else "bin"

PROGRAM = """
import sys, time
start = time.perf_counter()
import tightz as tz
seconds = time.perf_counter() - start
model = tz.ising_grid(4, seed=0)
r = tz.log_partition(model, time_limit=30, seed=0)
assert r.is_exact and abs(r.lower - tz.exact(model).log_z) < 1e-9, r
assert tz.estimate(model, levels=[0, 1, 2], trials=2, seed=0).log_z < r.upper + 1.0
assert "tightz_experiments" not in sys.modules
import tightz_experiments.ising  # what `tightz reproduce` runs comes with the same wheel
print(f"import {1000 * seconds:.0f} ms")
"""

WITHOUT_EXTRAS = {
    "plot": "tz.log_partition(model, time_limit=5, seed=0).plot()",
    "wish": "tz.wish(model, trials=2, seed=0, family=tz.ExactPointMass(enumerate_up_to=0))",
    "cluster": "from tightz.runtime.cluster import connect; connect('tcp://127.0.0.1:1')",
    "h5": "open('w.h5', 'wb').close(); tz.read('w.h5')",
    "gpu": "tz.mfrp(model, 1, trials=1, backend='cuda')",
}
"""extra -> a line that needs it."""


# Versions -----------------------------------------------------------------------------------


def stated(root: Path = ROOT) -> dict[str, str]:
    """File -> the version that it states, "none" where it states none."""
    patterns = {
        "src/tightz/version.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (\S+)$",
        "CHANGELOG.md": r"^## (\d\S+)",
    }
    found = {
        name: re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name, pattern in patterns.items()
    }
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"pyproject.toml": project["version"]} | {
        name: match[1] if match else "none" for name, match in found.items()
    }


def agreed(tag: str | None = None, root: Path = ROOT) -> str:
    """The version that all files state, and the tag where there is one; they must agree."""
    everywhere = stated(root) | ({} if tag is None else {"tag": tag.removeprefix("v")})
    if len(set(everywhere.values())) > 1:
        raise SystemExit(f"versions differ: {everywhere}")
    return everywhere["pyproject.toml"]


# One clean environment ----------------------------------------------------------------------


class Environment:
    """A virtual environment with one package in it and nothing of ours around it."""

    def __init__(self, interpreter: str, package: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        kernels = folder / "kernels"
        kernels.mkdir()
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TIGHTZ"))}
        self._env["NUMBA_CACHE_DIR"] = str(kernels)
        self.run(interpreter, "-m", "venv", folder / "env")
        self.python = folder / "env" / BIN / "python"
        self.tool = folder / "env" / BIN / "tightz"
        self.run(self.python, "-m", "pip", "install", "--quiet", package)

    def run(self, *command: str | Path) -> str:
        """The command's stdout; its stderr is shown if it fails."""
        done = self._done(*command)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done.stdout

    def advice(self, extra: str, line: str) -> str:
        """What the user is told where the extra is missing: the last line of the error."""
        program = f"import tightz as tz\nmodel = tz.ising_grid(3, seed=0)\n{line}"
        done = self._done(self.python, "-c", program)
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        if done.returncode == 0 or f"tightz[{extra}]" not in said:
            raise SystemExit(f"without the extra {extra}, {line!r} said: {said}")
        return said

    def logz(self) -> str:
        """A run of all streams against the exact sum, twice: the second compiles nothing."""
        command = ("generate", "ising-grid", "12", "--coupling", "-2", "2", "--seed", "0")
        self.run(self.tool, *command, "-o", "grid.uai")
        first, second = (
            json.loads(self.run(self.tool, "logz", "grid.uai", "--no-exact", "-T", "20", "--json"))
            for _ in range(2)
        )
        truth = json.loads(self.run(self.tool, "exact", "grid.uai", "--json"))["log_z"]
        for r in (first, second):
            if r["quarantined"] or not r["lower"] <= truth <= r["upper"]:
                raise SystemExit(f"log Z is {truth}; logz said {json.dumps(r)}")
        if second["compile_seconds"] > 0.1 * first["compile_seconds"]:
            raise SystemExit(f"a second run compiled for {second['compile_seconds']:.1f} s")
        return (
            f"logz --no-exact -T 20: [{second['lower']:.4f}, {second['upper']:.4f}] holds "
            f"{truth:.4f}; compiled for {first['compile_seconds']:.0f} s in the first run, "
            f"{second['compile_seconds']:.1f} s in the second"
        )

    def _done(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        words = [str(c) for c in command]
        return subprocess.run(
            words, cwd=self.folder, env=self._env, capture_output=True, text=True, check=False
        )


def use(interpreter: str, package: Path, folder: Path) -> None:
    """Install `package` into an environment of its own and try it."""
    made = Environment(interpreter, package, folder)
    version = made.run(made.python, "-c", "import platform; print(platform.python_version())")
    size = package.stat().st_size / 1024
    print(f"{package.name} on Python {version.strip()}: {size:.0f} KiB, installed", flush=True)
    said = made.run(made.tool, "--version").split()[-1]
    if said != agreed():
        raise SystemExit(f"tightz --version says {said}, the files {agreed()}")
    print("  ", made.run(made.python, "-c", PROGRAM).strip())
    made.run(made.python, "-c", PROGRAM)  # kernels now come from the folder
    print("  ", made.logz())
    for extra, line in WITHOUT_EXTRAS.items():
        print(f"   without {extra}: {made.advice(extra, line)}")


def main() -> None:
    """Build, install, try."""
    parser = argparse.ArgumentParser(prog="python -m verification.package", description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters")
    parser.add_argument("--tag", help="must be the version, v before it or not")
    parser.add_argument("--out", type=Path, help="a folder for the wheel and the sdist")
    chosen = parser.parse_args()
    print(f"tightz {agreed(chosen.tag or None)}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), Path(name) / "dist"
        build = [sys.executable, "-m", "build", "--outdir", str(made), str(ROOT)]
        subprocess.run(build, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        [wheel], [sdist] = made.glob("*.whl"), made.glob("*.tar.gz")
        for k, python in enumerate(chosen.pythons):
            use(python, wheel, folder / f"wheel-{k}")
        use(chosen.pythons[0], sdist, folder / "sdist")
        if chosen.out:
            shutil.copytree(made, chosen.out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
