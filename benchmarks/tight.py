"""How tight `estimate` is: the figures of issue 3 that concern projections.

Grids are drawn with fresh seeds (`FRESH`), five of each; exact log Z comes from the hand-written
transfer matrix in tests/naive.py. Other figures of that issue: benchmarks structured, search,
layer, wish, collapse.
"""

from __future__ import annotations

import time

import numpy as np

import tightz as tz
from benchmarks.mean_field import grid_parts
from tests import naive
from tightz.paper.coset_sum import coset_sum
from tightz.paper.equal_work import Outcome, at_equal_work

FRESH = range(7001, 7006)


def grid(size: int, width: float, seed: int, low: float | None = None) -> tuple:
    coupling = (-width if low is None else low, width)
    model = tz.ising_grid(size, coupling=coupling, field=(-1, 1), seed=seed)
    return model, naive.transfer_matrix_log_z(size, size, *grid_parts(model, size))


def strong() -> None:
    """20x20, w in [-10, 10]: estimate with defaults; and the median at m = 20."""
    gaps, lowers, deep = [], [], []
    for seed in FRESH:
        model, exact = grid(20, 10, seed)
        start = time.perf_counter()
        e = tz.estimate(model, seed=seed)
        seconds = time.perf_counter() - start
        gaps.append(e.log_z - exact)
        lowers.append(e.lower - exact)
        deep.append(e.by_level[20].median - exact)
        print(
            f"  20x20 seed {seed}: estimate {gaps[-1]:+.3f} (m = {e.best_level}), deterministic "
            f"{lowers[-1]:+.3f}, certificate {e.certificate().log_z - exact:+.3f}, "
            f"m = 20 median {deep[-1]:+.2f}; {seconds:.1f} s, {e.n} spins after collapse"
        )
    print(
        f"20x20 w=10: estimate within {np.abs(gaps).max():.3f} on every grid (target 1.5), "
        f"{np.median(np.abs(gaps)):.3f} in the median (target 1.2)"
    )
    print(f"20x20 w=10: deterministic lower end, mean field family: worst {-min(lowers):.3f}")
    print(f"20x20 w=10: m = 20, median over trials, worst grid {-min(deep):.1f} nats (target 25)")


def levels_against_restarts() -> None:
    """10x10, w in [-10, 10], no collapse: levels m >= 1 against m = 0 at equal coordinate updates.

    The level's value is the deterministic sum over all 2^m cosets of one random A, so nothing is
    selected by luck: larger is better and none exceeds log Z.
    """
    closed, at_six = [], []
    for seed in FRESH:
        model, exact = grid(10, 10, seed)
        best, spent = -np.inf, 0
        for m in range(1, 8):
            r = coset_sum(model, m, projections=tz.Projections(collapse=0), seed=seed)
            best = max(best, r.log_z)
            spent += r.updates

        def restarts(key: np.random.SeedSequence, model: tz.FactorGraph = model) -> Outcome:
            e = tz.estimate(
                model, projections=tz.Projections(collapse=0), levels=[0], trials=5, seed=key
            )
            return Outcome(e.lower, e.updates)

        (plain,) = at_equal_work({"mean field": restarts}, updates=spent, seed=seed)
        gap = exact - plain.log_z
        closed.append(1.0 - (exact - best) / gap)
        six = tz.estimate(
            model, projections=tz.Projections(collapse=6), levels=[0], trials=5, seed=seed
        )
        at_six.append(exact - six.lower)
        print(
            f"  10x10 seed {seed}: mean field at m = 0, {plain.runs * 40} ascents, {-gap:+.3f}; "
            f"best level {best - exact:+.3f}; {closed[-1]:.0%} of the gap closed"
        )
    print(f"10x10 w=10: share of the gap closed, mean {np.mean(closed):.0%} (target 30%)")
    print(
        f"10x10 w=10: gap at m = 0 with k = 6, mean {np.mean(at_six):.3f} (target 0.7), "
        f"worst {max(at_six):.3f}"
    )


def hash_families() -> None:
    """Certificates (confidence 0.95) after the same trials, by density of the parities."""
    families = [tz.DenseParity(), tz.SparseParity(0.2), tz.SparseParity(0.1), tz.SparseParity(0.03)]
    for size, width in ((10, 10), (10, 1)):
        line = []
        for family in families:
            values = []
            for seed in list(FRESH)[:3]:
                model, exact = grid(size, width, seed)
                e = tz.estimate(
                    model,
                    projections=tz.Projections(hashing=family, collapse=0),
                    levels=range(1, 9),
                    trials=40,
                    seed=seed,
                )
                values.append(e.certificate().log_z - exact)
            line.append(f"{family}: {np.mean(values):+.3f}")
        print(f"{size}x{size} w={width}, certificate - exact, no collapse: " + "; ".join(line))


def main() -> None:
    strong()
    levels_against_restarts()
    hash_families()
