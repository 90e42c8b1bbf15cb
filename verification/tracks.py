"""Whole threaded runs under load: how often each track of the ledger ever misses, at any moment.

`python -m verification.tracks RUNS [--processes N] [--seconds S] [--model PART] [--json FILE]`

Every run is `log_partition` as users call it, without exact answers, on a model whose log Z is
known, with more threads than cores. What enters the ledger is written down, batch by batch, and
the wealth of each track against the true Z is worked out afterwards from the draws themselves, one
after the other. Whatever the draws are and whoever decides when to stop, a track's wealth ever
reaches x with probability at most 1 / x: at x = 2 / (share delta) the track misses.

Controls: weights too large by SHIFT nats (too small, against the upper end) must be caught, and it
says how often batches that enter only where they raise the mean would be.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

import tightz as tz
from tightz.sampling.calibration import log_mean
from tightz.sampling.ledger import Account, Ledger, stakes_of
from tightz.workspace.findings import Draws
from verification.betting import follow
from verification.rows import Row
from verification.workers import spread

RUNS = 500
SECONDS = 2.5
DELTA = 0.05
SHIFT = 0.5
LEVELS = (5.0, 20.0, 100.0)
"""Wealth that is asked for beside a track's own level, which few runs can reach."""

CONTROLLED, ENOUGH = ("mini-bucket", "annealing", "annealing, fitted start", "glance"), 100
"""Tracks with draws enough in a run for the controls to show, in so many runs."""

CROWD = 1.5
"""Processes for each core; each of them has two to four threads."""

SLACK = 1e-6
"""Nats of rounding in the log Z that runs are held against."""

ONES = np.ones(2)

Batch = tuple[Account, NDArray[np.float64]]


def _glass(n: int, beta: float, seed: int) -> tz.FactorGraph:
    """Sherrington and Kirkpatrick's model."""
    rng = np.random.default_rng([19, seed])
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    return tz.ising({p: beta * rng.normal() / math.sqrt(n) for p in pairs}, np.zeros(n))


def _lattice(beta: float, seed: int) -> tz.FactorGraph:
    coupling = tz.PlusMinus(beta)
    return tz.ising_lattice((4, 4, 4), coupling=coupling, field=0.1, periodic=True, seed=seed)


def _grid(size: int, w: float, seed: int) -> tz.FactorGraph:
    return tz.ising_grid(size, coupling=(-w, w), field=(-1, 1), seed=seed)


MODELS: dict[str, Callable[[], tz.FactorGraph]] = {
    **{
        f"grid {size}x{size}, w = {w}, {seed}": partial(_grid, size, float(w), seed)
        for size in (12, 16, 20)
        for w in (3, 10)
        for seed in (0, 1)
    },
    "all pairs, beta = 1": partial(_glass, 20, 1.0, 0),
    "all pairs, beta = 3": partial(_glass, 20, 3.0, 1),
    "4x4x4 glass, beta = 0.7": partial(_lattice, 0.7, 0),
    "4x4x4 glass, beta = 1.5": partial(_lattice, 1.5, 1),
}
"""Grids come three times as often as glasses."""


class Run(NamedTuple):
    """What one run is to be."""

    model: str
    log_z: float
    seed: int
    threads: int
    seconds: float


class Track(NamedTuple):
    """The largest wealth of a track against the truth, below and above, and under the controls.

    `levels` are what it takes to miss, `chosen` is of batches that raise the mean.
    """

    name: str
    draws: int
    levels: tuple[float, float]
    most: tuple[float, float]
    shifted: tuple[float, float]
    chosen: float


class Outcome(NamedTuple):
    run: Run
    missed: tuple[bool, bool]
    tracks: list[Track]
    notes: list[str]


def truth(name: str) -> float:
    return tz.exact(MODELS[name](), marginals=False).log_z


def whole(run: Run) -> Outcome:
    """One run, and what its draws were worth."""
    batches: dict[str, list[Batch]] = defaultdict(list)
    enter = Ledger.add

    def add(ledger: Ledger, draws: Draws) -> Any:
        account = enter(ledger, draws)
        batches[draws.source.track].append((account, draws.log_weights - run.log_z))
        return account

    # Draws of a run are nowhere else to be had one by one.
    with mock.patch.object(Ledger, "add", add):
        r = tz.log_partition(
            MODELS[run.model](), exact=False, delta=DELTA, time_limit=run.seconds,
            threads=run.threads, seed=run.seed,
        )  # fmt: skip
    shares = [r.ledger.shares(upper=upper) for upper in (False, True)]
    tracks = []
    for name, entered in batches.items():
        levels = [2.0 / DELTA / share[name] if name in share else math.inf for share in shares]
        tracks.append(
            Track(
                name, sum(logs.size for _, logs in entered), (levels[0], levels[1]),
                most(entered, run.log_z), (most(entered, run.log_z, SHIFT)[0],
                most(entered, run.log_z, -SHIFT)[1]), most(rising(entered), run.log_z)[0],
            )
        )  # fmt: skip
    low, high = r.confident.lower, r.confident.upper
    missed = low > run.log_z + SLACK, high < run.log_z - SLACK
    return Outcome(run, missed, tracks, [n for n in r.notes if "certified" in n or "dropped" in n])


def most(batches: list[Batch], log_z: float, shift: float = 0.0) -> tuple[float, float]:
    """The largest wealth (below, above) of a track, its sources one after the other.

    Weights are what they may really be by their declared rounding, which the ledger takes off its
    ends. What draws under a cap may miss of Z (`log_lost`) is less than 1e-20 of it.
    """
    accounts = list(dict.fromkeys(account for account, _ in batches))
    wealth, largest = np.ones(2), np.ones(2)
    for account in accounts:
        logs = np.concatenate([logs for owner, logs in batches if owner is account])
        for side, moved in enumerate((shift - account.margin, shift + account.margin)):
            cap = account.source.log_cap - log_z + moved
            if side == 1 and cap <= 0.0:  # the shifted cap excludes the truth at once
                return float(largest[0]), math.inf
            reached, end = follow(
                np.minimum(logs + moved, cap), cap, *stakes_of(account.source), ONES
            )
            largest[side] = max(largest[side], wealth[side] * reached[side])
            wealth[side] *= end[side]
    return float(largest[0]), float(largest[1])


def rising(batches: list[Batch]) -> list[Batch]:
    """Those whose mean is no less than that of all kept before: what a selection would leave."""
    kept: list[Batch] = []
    for account, logs in batches:
        before = [each for _, each in kept]
        if not kept or log_mean(logs) >= log_mean(np.concatenate(before)):
            kept.append((account, logs))
    return kept


class Side(NamedTuple):
    """Wealths of one kind of track on one side, over all runs."""

    levels: NDArray[np.float64]
    most: NDArray[np.float64]

    def reached(self) -> dict[str, tuple[int, int, float]]:
        """At each level: how many reached it, how many may, how many are expected at most."""
        out = {}
        for name, levels in [*((f"{x:g}", np.full(self.most.size, x)) for x in LEVELS),
                             ("its own", self.levels)]:  # fmt: skip
            expected = float((1.0 / levels).sum())
            allowed = int(poisson.ppf(0.9999, expected))
            out[name] = int((self.most >= levels).sum()), allowed, expected
        return out

    @property
    def beyond(self) -> int:
        return sum(max(0, found - allowed) for found, allowed, _ in self.reached().values())

    def __str__(self) -> str:
        parts = (
            f"{found} reached {name} (<= {expected:.3g})"
            for name, (found, _, expected) in self.reached().items()
        )
        return f"{', '.join(parts)}; most {self.most.max(initial=1.0):.3g}"


def plan(runs: int, seed: int, seconds: float, known: dict[str, float]) -> list[Run]:
    """Runs over all models, threads and time limits in turn, none of them alike."""
    names = list(known)
    return [
        Run(names[i % len(names)], known[names[i % len(names)]], seed + i, 2 + i % 3,
            seconds * (0.7 + 0.2 * (i % 4)))
        for i in range(runs)
    ]  # fmt: skip


def rows_of(outcomes: list[Outcome]) -> Iterator[Row]:
    """One row for each kind of track and side, one for the interval of the whole run."""
    kinds: dict[str, list[Track]] = defaultdict(list)
    for outcome in outcomes:
        for track in outcome.tracks:
            kinds[track.name.rstrip("0123456789").rstrip(": ")].append(track)
    for kind, tracks in sorted(kinds.items()):
        for k, name in enumerate(("lower", "upper")):
            betting = [t for t in tracks if math.isfinite(t.levels[k])]
            if not betting:
                continue
            levels = np.array([t.levels[k] for t in betting])
            side = Side(levels, np.array([t.most[k] for t in betting]))
            shifted = Side(levels, np.array([t.shifted[k] for t in betting])).beyond
            chosen = Side(levels, np.array([t.chosen for t in betting])).beyond
            detail = f"{sum(t.draws for t in betting):,} draws, {side}; controls: {shifted} shifted"
            detail += "" if k else f", {chosen} chosen"
            controlled = kind in CONTROLLED and len(betting) >= ENOUGH
            caught = bool(shifted > 0) if controlled else None
            yield Row(f"tracks: {kind}, {name}", len(betting), side.beyond, detail, caught)
    allowed = int(poisson.ppf(0.9999, DELTA * len(outcomes)))
    missed = Counter[str]()
    for outcome in outcomes:
        missed["lower"] += outcome.missed[0]
        missed["upper"] += outcome.missed[1]
        missed["both"] += any(outcome.missed)
    yield Row(
        "tracks: confident interval of the run", len(outcomes), max(0, missed["both"] - allowed),
        f"missed by {missed['lower']} below, {missed['upper']} above, {allowed} allowed",
    )  # fmt: skip


def measured(
    runs: int,
    names: list[str],
    seed: int,
    seconds: float,
    processes: int,
    progress: Callable[[str], None],
) -> Iterator[Outcome]:
    """Runs of `processes` processes at a time."""
    for name in (names[0], names[-1]):
        progress(f"kernels and log Z: {name}")
        whole(Run(name, truth(name), 0, 2, 0.5))
    progress(f"log Z of {len(names)} models")
    known = dict(zip(names, spread(truth, names, min(processes, os.cpu_count() or 1)), strict=True))
    for done, outcome in enumerate(
        spread(whole, plan(runs, seed, seconds, known), processes), start=1
    ):
        progress(f"{done} of {runs} runs")
        yield outcome


def tracks(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """The suite's part: rows over RUNS * scale runs."""
    runs = max(8, int(RUNS * scale))
    names = list(MODELS)[:: max(1, len(MODELS) // runs)]
    processes = math.ceil(CROWD * workers)
    yield from rows_of(list(measured(runs, names, 0, SECONDS, processes, progress)))


def main(arguments: list[str]) -> int:
    """Print the table and write each run as a line of JSON; status 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m verification.tracks")
    parser.add_argument("runs", type=int)
    parser.add_argument("--processes", type=int, default=math.ceil(CROWD * (os.cpu_count() or 1)))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="", help="part of a name in MODELS")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)

    def progress(text: str) -> None:
        print(f"\r\033[K{text}", end="", file=sys.stderr)

    outcomes = []
    names = [name for name in MODELS if given.model in name]
    for outcome in measured(
        given.runs, names, given.seed, given.seconds, given.processes, progress
    ):
        outcomes.append(outcome)
        if given.json:
            with given.json.open("a") as file:
                tracks = [track._asdict() for track in outcome.tracks]
                told = outcome._asdict() | {"run": outcome.run._asdict(), "tracks": tracks}
                file.write(json.dumps(told) + "\n")
    rows = list(rows_of(outcomes))
    from verification.__main__ import summary

    print(f"\n{summary(rows)}")
    return int(any(not row.passed for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
