"""AIS on two RBMs: distance from the known log Z in at most 60 s on 2 cores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from tightz.models.builders import ising_grid, rbm
from tightz.sampling.ais import ais
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket

CASES = [  # file, log Z, kind of value
    ("rbm_mnist_tiny_15.npz", 216.0615441, "exact"),
    ("rbm_mnist_CD25_500_salakhutdinov.npz", 451.28, "published AIS"),
]
SECONDS = float(os.environ.get("TIGHTZ_AIS_SECONDS", "55"))


def main() -> None:
    grid = ising_grid(10, coupling=(-1, 1), field=(-1, 1), seed=0)
    log_z = mini_bucket(grid, MiniBucket(12)).log_z
    result = ais(grid, temperatures=2000, seed=0)
    print(f"grid 10x10, w in [-1, 1]: {result.log_z - log_z:+.3f} from exact\n{result.summary()}")
    folder = os.environ.get("TIGHTZ_DATA")
    if folder is None:
        print("set TIGHTZ_DATA to the data folder for the RBMs")
        return
    for name, log_z, kind in CASES:
        data = np.load(Path(folder) / "rbm" / name)
        model = rbm(data["W"], data["visible_bias"], data["hidden_bias"])
        used = time.process_time()
        result = ais(model, time_limit=SECONDS, seed=0)
        used = time.process_time() - used
        error = result.log_z - log_z
        verdict = "ok" if abs(error) <= 0.5 and result.seconds <= 60 else "MISSED"
        print(
            f"{name}: {error:+.3f} from {log_z} ({kind}), target 0.5 in 60 s: {verdict}; "
            f"cpu {used:.0f} s\n{result.summary()}",
            flush=True,
        )
