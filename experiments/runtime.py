"""Figure: runtime against size and parities. `python experiments/runtime.py [FOLDER]`, seconds.

The work is in tightz.experiments.runtime; one record per size is kept under FOLDER/runtime.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tightz.experiments.runtime import Runtimes, runtime
from tightz.experiments.store import DEFAULT_FOLDER, Store


def main(folder: Path) -> None:
    config = Runtimes(
        sizes=(5, 10, 15, 20, 30, 40, 60),
        levels=(0, 1, 2, 5, 10, 15, 20),
        grids=3,
        repeats=3,
        restarts=8,
        seed=0,
    )
    print(runtime(Store(folder / "runtime"), folder / "runtime.png", config=config, report=print))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER)
