"""Figure: Ising grids. `python experiments/ising.py [FOLDER]`, about 6 minutes of 2 cores.

The work is in tightz.experiments.ising; one record per grid is kept under FOLDER/ising.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tightz.experiments.ising import IsingGrids, ising
from tightz.experiments.store import DEFAULT_FOLDER, Store


def main(folder: Path) -> None:
    config = IsingGrids(
        sizes=(5, 10, 15, 20, 25, 30),
        grids=5,
        levels=20,  # m = 0..20
        trials=5,
        restarts=8,
        exact_to=25,
        seconds=10.0,
        seed=0,
    )
    print(ising(Store(folder / "ising"), folder / "ising.png", config=config, report=print))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER)
