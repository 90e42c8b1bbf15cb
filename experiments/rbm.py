"""Table: RBMs on MNIST. `python experiments/rbm.py [FOLDER [COLUMN ...]]`, e.g. `out cd5-100`.

The work is in tightz.experiments.rbm; checkpoints, weights and five records per column are kept
under FOLDER/rbm, so columns can be computed one at a time. Needs TIGHTZ_DATA for the public
column; MNIST is downloaded where that is unset. 42 minutes of processor time from nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tightz.experiments.rbm import rbm_table
from tightz.experiments.rbm_models import COLUMNS, RbmTable
from tightz.experiments.store import DEFAULT_FOLDER, Store


def main(folder: Path, names: list[str]) -> None:
    config = RbmTable(
        columns=tuple(c for c in COLUMNS if not names or c.name in names),
        epochs=15,
        batch_size=20,
        trials=5,
        restarts=8,
        search_sweeps=1000,
        temperatures=20_000,
        seconds=60.0,
        seed=0,
    )
    store = Store(folder / "rbm")
    print(rbm_table(store, folder / "rbm.png", config=config, workers=2, report=print))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER, sys.argv[2:])
