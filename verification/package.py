"""`make package`: build wheel and sdist, install each into a clean environment, and use it.

Only core dependencies are installed there: what needs an extra has to say which `pip install`
mends it. Prints wheel size, import time and what was tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent

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


def run(*command: str | Path, cwd: Path) -> str:
    """The command's stdout; its stderr is shown if it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def advice(python: Path, extra: str, line: str, folder: Path) -> str:
    """What the user is told where the extra is missing: the last line of the error."""
    program = f"import tightz as tz\nmodel = tz.ising_grid(3, seed=0)\n{line}"
    done = subprocess.run(
        [str(python), "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if done.returncode == 0 or f"tightz[{extra}]" not in said:
        raise SystemExit(f"without the extra {extra}, {line!r} said: {said}")
    return said


def use(package: Path, folder: Path) -> None:
    """Install `package` into an environment of its own and try it."""
    home = folder / f"env-{package.suffix[1:]}"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", package, cwd=folder)
    print(f"{package.name}: {package.stat().st_size / 1024:.0f} KiB, installed")
    print("  ", run(python, "-c", PROGRAM, cwd=folder).strip())
    run(python, "-c", PROGRAM, cwd=folder)  # kernels now come from the cache
    tool = home / "bin" / "tightz"
    run(tool, "generate", "ising-grid", "4", "--seed", "0", "-o", "grid.uai", cwd=folder)
    print("  ", run(tool, "logz", "grid.uai", cwd=folder).splitlines()[0])
    for extra, line in WITHOUT_EXTRAS.items():
        print(f"   without {extra}: {advice(python, extra, line, folder)}")


def main() -> None:
    """Build, install, try."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")
        for package in sorted((folder / "dist").iterdir()):
            use(package, folder)


if __name__ == "__main__":
    main()
