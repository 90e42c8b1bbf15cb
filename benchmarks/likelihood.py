"""Test log-likelihoods of RBMs on MNIST with both ends, and sweeps against a loop of runs.

`python -m benchmarks likelihood [HIDDEN ...]`: machines of 16, 64 and 500 hidden units, trained
here, the published ones, then sweeps; with numbers of hidden units only those machines. Digits are
on where their grey value is above a half.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import tightz as tz
from tests import naive

EPOCHS = {16: 5, 64: 5, 500: 2}
SECONDS = {16: 30.0, 64: 60.0, 500: 60.0}
PUBLISHED = {"rbm_mnist_tiny_15": 30.0, "rbm_mnist_CD25_500_salakhutdinov": 120.0}
NETWORKS = [  # name, observed variables in each row, whether the same in all, rows, of the loop
    ("bnlearn/alarm.bif", 15, False, 2000, 60),
    ("bnlearn/hailfinder.bif", 20, False, 2000, 60),
    ("uai2014/DBN_11.uai", 20, True, 1000, 30),
    ("uai2014/Grids_11.uai", 20, True, 1000, 30),
    ("uai2014/Promedus_11.uai", 8, True, 60, 30),
]
SEED = 20261116


def main(*hidden: str) -> None:
    folder = os.environ.get("TIGHTZ_DATA")
    if folder is None:
        print("set TIGHTZ_DATA to the data folder (mnist/, rbm/, bnlearn/, uai2014/)")
        return
    digits = tz.load_mnist(test=True).images.reshape(-1, 784) > 127
    print(
        "machine              always                      width   95%                      ", end=""
    )
    print("width  estimate         rows s  log Z s")
    for count in map(int, hidden) if hidden else EPOCHS:
        settings = tz.Training(hidden=count, k=1, epochs=EPOCHS.get(count, 2), batch_size=100)
        images = tz.load_mnist().probabilities()
        model = tz.train_rbm(images, settings, seed=SEED).model
        _machine(f"CD-1, {count} hidden", model, digits, SECONDS.get(count, 60.0))
    if hidden:
        return
    for name, seconds in PUBLISHED.items():
        _machine(name[10:30], tz.read(Path(folder) / "rbm" / f"{name}.npz"), digits, seconds)
    print(
        "\nnetwork                 observed  rows   sweep rows/s  loop rows/s  gain  largest diff"
    )
    for name, *size in NETWORKS:
        _sweep(name, tz.read(Path(folder) / name), *size)


def _machine(name: str, model: tz.FactorGraph, digits: np.ndarray, seconds: float) -> None:
    r = tz.log_likelihood(model, digits, time_limit=seconds, seed=SEED)
    assert r.interval is not None
    mean, spent = r.mean, r.seconds - r.interval.seconds
    print(
        f"{name:<20} [{mean.lower:10.4f}, {mean.upper:10.4f}] {mean.upper - mean.lower:9.2g}   "
        f"[{mean.confident_lower:9.4f}, {mean.confident_upper:9.4f}] "
        f"{mean.confident_upper - mean.confident_lower:7.2g}  {mean.estimate:.4f} +- "
        f"{mean.estimate_error:.2g}  {spent:6.1f}  {r.interval.seconds:6.1f}",
        flush=True,
    )
    layers = model.layout
    if layers.hidden <= 16:
        n = layers.visible
        bias = model.log_tables[1 : 2 * (n + layers.hidden) : 2]
        weights = np.zeros((n, layers.hidden))
        for batch in model.batches():
            if batch.scopes.shape[1] == 2:
                weights[batch.scopes[:, 0], batch.scopes[:, 1] - n] = batch.log_tables[:, 1, 1]
        energy = digits @ bias[:n] + np.logaddexp(0.0, digits @ weights + bias[n:]).sum(axis=1)
        states = naive.all_states([2] * layers.hidden)
        full = states @ bias[n:] + np.logaddexp(0.0, states @ weights.T + bias[:n]).sum(axis=1)
        summed = energy - naive.log_sum_exp(full)
        off = np.abs(summed - r.examples.estimate).max()
        print(f"    at most {off:.2g} from sums over all {len(states)} hidden states")


def _sweep(
    name: str, model: tz.FactorGraph, observed: int, same: bool, rows: int, looped: int
) -> None:
    """Rows of a random part of the variables, drawn from the model; the same part or others."""
    rng = np.random.default_rng(SEED)
    data = tz.sample(model.without_evidence(), rows, seed=SEED).states.astype(float)
    hidden = rng.permutation(data.shape[1])[observed:]
    for row in data:
        row[hidden if same else rng.permutation(len(row))[observed:]] = np.nan
    seen = [{v: int(s) for v, s in enumerate(row) if s == s} for row in data]
    base = model.without_evidence()
    list(tz.sweep(base, seen[:1], seed=0))  # compile
    tz.log_partition(base.with_evidence(seen[0]), marginals=False, seed=0)
    start = time.process_time()
    found = {one.row: one for one in tz.sweep(base, data, seed=0)}
    swept = rows / (time.process_time() - start)
    start, diff = time.process_time(), 0.0
    for k, evidence in enumerate(seen[:looped]):
        r = tz.log_partition(base.with_evidence(evidence), marginals=False, seed=0)
        diff = max(diff, abs(r.lower_proof.log_z - found[k].log_z))
    loop = looped / (time.process_time() - start)
    print(
        f"{Path(name).stem:<24}{observed:>7}{rows:>7}{swept:>14.0f}{loop:>13.1f}"
        f"{swept / loop:>7.0f}{diff:>12.1g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
