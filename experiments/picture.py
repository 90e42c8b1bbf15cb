"""Pictures: the idea, and reliability pivots. `python experiments/picture.py [FOLDER]`, seconds.

The work is in tightz.experiments.idea and tightz.experiments.pivots.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tightz.experiments.idea import idea
from tightz.experiments.pivots import PivotPicture, pivots
from tightz.experiments.store import DEFAULT_FOLDER, Store


def main(folder: Path) -> None:
    store = Store(folder / "picture")
    print(idea(store, folder / "idea.png", matrices=12, seed=4))
    print(pivots(store, folder / "pivots.png", config=PivotPicture(size=12, shown=12, seed=0)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER)
