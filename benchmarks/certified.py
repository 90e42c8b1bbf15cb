"""The certified interval of `log_partition`, both ends, on the models of issue 15.

    python -m benchmarks certified

60 s and 10 s each on warm kernels, exact answers forbidden. Environment: TIGHTZ_SECONDS ("60,10"),
TIGHTZ_MODELS (names, comma-separated), TIGHTZ_SEED (first fresh seed), TIGHTZ_TRUTH (a JSON file of
`python -m benchmarks.transfer`), TIGHTZ_OUT (a JSON file for the rows).

Truths: transfer matrix on a GPU (30x30), Kac-Ward (critical), the files' references (UAI), none
otherwise: annealed importance sampling of its own stands beside those.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from tightz.interval.interval import LogPartition

RANGES = {"w1": (-1.0, 1.0), "w01": (0.0, 1.0), "w10": (-10.0, 10.0)}
LINKAGE = (11, 13, 15, 17, 19, 23, 25, 27)


def grid(side: int, name: str, seed: int) -> tuple[tz.FactorGraph, tuple[np.ndarray, ...]]:
    """A grid with fields in [-1, 1] and its couplings to the right, downwards, and fields."""
    rng = np.random.default_rng([seed, side])
    low, high = RANGES[name]
    right = rng.uniform(low, high, (side, side - 1))
    down = rng.uniform(low, high, (side - 1, side))
    field = rng.uniform(-1.0, 1.0, (side, side))
    site = np.arange(side * side).reshape(side, side)
    pairs = np.concatenate(
        [
            np.stack([site[:, :-1].ravel(), site[:, 1:].ravel()], axis=1),
            np.stack([site[:-1].ravel(), site[1:].ravel()], axis=1),
        ]
    )
    weights = np.concatenate([right.ravel(), down.ravel()])
    return spins(side * side, pairs, weights, field.ravel()), (right, down, field)


def spins(n: int, pairs: np.ndarray, weights: np.ndarray, fields: np.ndarray) -> tz.FactorGraph:
    """log p~ = sum w s s + sum f s as a factor graph."""
    signs = np.array([[1.0, -1.0], [-1.0, 1.0]])
    factors = [((i,), np.array([f, -f])) for i, f in enumerate(fields.tolist())]
    factors += [((int(a), int(b)), w * signs) for (a, b), w in zip(pairs, weights, strict=True)]
    return tz.FactorGraph([2] * n, factors)


def critical(side: int) -> tz.FactorGraph:
    """The square ferromagnet at its critical temperature, no field."""
    j = 0.5 * math.log(1.0 + math.sqrt(2.0))
    return tz.ising_grid(side, coupling=(j, j), field=(0.0, 0.0), seed=0)


def kac_ward(side: int) -> float:
    """log Z of `critical(side)`: half the log determinant over directed edges (Kac and Ward)."""
    from scipy.sparse import csc_matrix, identity
    from scipy.sparse.linalg import splu

    j = 0.5 * math.log(1.0 + math.sqrt(2.0))
    steps = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    number: dict[tuple[int, int, int], int] = {}
    for r in range(side):
        for c in range(side):
            for k, (dr, dc) in enumerate(steps):
                if 0 <= r + dr < side and 0 <= c + dc < side:
                    number[r, c, k] = len(number)
    rows, columns, values = [], [], []
    for (r, c, k), e in number.items():
        to = r + steps[k][0], c + steps[k][1]
        for turn in (-1, 0, 1):
            f = number.get((*to, (k + turn) % 4))
            if f is not None:
                rows.append(e)
                columns.append(f)
                values.append(math.tanh(j) * np.exp(0.25j * math.pi * turn))
    size = len(number)
    matrix = identity(size, format="csc") - csc_matrix((values, (rows, columns)), (size, size))
    factor = splu(matrix.tocsc())
    log_det = np.log(factor.U.diagonal().astype(complex)).sum() + 0.0
    edges = size // 2
    return float(side * side * math.log(2.0) + edges * math.log(math.cosh(j)) + 0.5 * log_det.real)


def lattice(side: int, seed: int) -> tz.FactorGraph:
    """A cube of spins, couplings N(0, 1), weak fields: a spin glass."""
    rng = np.random.default_rng([seed, side, 3])
    site = np.arange(side**3).reshape(side, side, side)
    pairs = np.concatenate(
        [
            np.stack([site.take(range(side - 1), a).ravel(), site.take(range(1, side), a).ravel()])
            for a in range(3)
        ],
        axis=1,
    ).T
    return spins(side**3, pairs, rng.normal(size=len(pairs)), rng.uniform(-0.1, 0.1, side**3))


def regular(n: int, seed: int) -> tz.FactorGraph:
    """A random 3-regular graph, couplings N(0, 1), weak fields."""
    rng = np.random.default_rng([seed, n])
    while True:
        pairs = np.sort(rng.permutation(np.repeat(np.arange(n), 3)).reshape(-1, 2), axis=1)
        simple = len(np.unique(pairs, axis=0)) == len(pairs)
        if simple and (pairs[:, 0] != pairs[:, 1]).all():
            break
    return spins(n, pairs, rng.normal(size=len(pairs)), rng.uniform(-0.1, 0.1, n))


def glass(n: int, beta: float, seed: int) -> tz.FactorGraph:
    """Sherrington and Kirkpatrick: all pairs, couplings N(0, beta^2 / n), no field."""
    rng = np.random.default_rng([seed, n])
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    return spins(n, pairs, beta * rng.normal(size=len(pairs)) / math.sqrt(n), np.zeros(n))


def uai(name: str) -> tuple[tz.FactorGraph, float] | None:
    """A UAI model with its reference log Z; None where the data is not here."""
    for folder in ("uai2014", "uai2014_more"):
        path = Path(os.environ.get("TIGHTZ_DATA", "")) / folder / f"{name}.uai"
        if path.exists():
            evidence = Path(f"{path}.evid")
            model = tz.read(path, evidence=evidence if evidence.exists() else None)
            told = Path(f"{path}.PR")
            value = float(told.read_text().split()[-1]) if told.exists() else math.nan
            return model, value * math.log(10.0)
    return None


def models(
    first: int,
) -> dict[str, tuple[float, Callable[[], tuple[tz.FactorGraph, float] | None]]]:
    """name -> (95% width wanted, a function that makes model and truth (nan: unknown))."""
    truths = {}
    if os.environ.get("TIGHTZ_TRUTH"):
        truths = json.loads(Path(os.environ["TIGHTZ_TRUTH"]).read_text())
    found: dict[str, Any] = {}
    for name, wanted in (("w1", 0.01), ("w01", 0.02), ("w10", 0.1)):
        for seed in range(first, first + 5):
            found[f"30x30 {name} {seed}"] = (
                wanted,
                lambda name=name, seed=seed: (
                    grid(30, name, seed)[0], truths.get(f"{name} 30 {seed}", math.nan)
                ),
            )  # fmt: skip
    found["32x32 critical"] = (0.05, lambda: (critical(32), kac_ward(32)))
    found["6^3 lattice"] = (0.03, lambda: (lattice(6, first), math.nan))
    found["3-regular 200"] = (0.05, lambda: (regular(200, first), math.nan))
    found["50x50 w1"] = (0.03, lambda: (grid(50, "w1", first)[0], math.nan))
    found["50x50 w10"] = (2.0, lambda: (grid(50, "w10", first)[0], math.nan))
    found["100x100 w1"] = (6.0, lambda: (grid(100, "w1", first)[0], math.nan))
    found["64x64 critical"] = (12.0, lambda: (critical(64), kac_ward(64)))
    found["8^3 lattice"] = (3.0, lambda: (lattice(8, first), math.nan))
    for number in LINKAGE:
        found[f"linkage_{number}"] = (0.05, lambda number=number: uai(f"linkage_{number}"))
    found["SK 100 beta 1"] = (math.nan, lambda: (glass(100, 1.0, first), math.nan))
    found["SK 100 beta 2"] = (math.nan, lambda: (glass(100, 2.0, first), math.nan))
    found["RBM 784x500"] = (math.nan, public_rbm)
    return found


def public_rbm() -> tuple[tz.FactorGraph, float] | None:
    path = Path(os.environ.get("TIGHTZ_DATA", "")) / "rbm/rbm_mnist_CD25_500_salakhutdinov.npz"
    return (tz.read(path), math.nan) if path.exists() else None


def normal_width(result: LogPartition) -> float:
    """Width of the 95% interval that a normal approximation gives the same capped draws."""
    best = math.inf
    for account in result.ledger.accounts if result.ledger else []:
        if account.source.track == "mini-bucket" and account.drawn > 1:
            ratios = np.exp(account.points + account.origin - account.log_mean())
            variance = float(account.counts @ ratios**2) / account.drawn - 1.0
            best = min(best, 2 * 1.96 * math.sqrt(max(0.0, variance) / account.drawn))
    return best


def row(name: str, seconds: float, wanted: float, model: tz.FactorGraph, truth: float) -> dict:
    """One run and what it says; `leaders` are the tracks' shares of the final wealth."""
    r = tz.log_partition(model, time_limit=seconds, exact=False, seed=int(1000 * seconds))
    c = r.confident
    wealth = r.ledger.log_wealths(c.lower, upper=False) if r.ledger else {}
    top = max(wealth.values(), default=0.0)
    total = sum(math.exp(w - top) for w in wealth.values())
    parts = {track: math.exp(w - top) / total for track, w in wealth.items()}
    anneal = tz.ais(model, time_limit=20.0, seed=5) if math.isnan(wanted) else None
    told = anneal.log_z if anneal is not None else truth
    return {
        "model": name, "seconds": seconds, "wanted": wanted, "always": r.width,
        "confident": c.width, "lower": c.lower, "upper": c.upper, "truth": told,
        "inside": bool(c.lower <= told <= c.upper) if not math.isnan(told) else None,
        "below": told - c.lower, "estimate_off": r.estimate - told,
        "estimate_error": r.estimate_error, "ratio": c.width / normal_width(r),
        "projections": sum(p for t, p in parts.items() if t.startswith("projections")),
        "annealing": sum(p for t, p in parts.items() if t.startswith("annealing")),
        "by": [c.lower_proof.method, c.upper_proof.method],
        "wrong": [str(q) for q in r.quarantined] + r.failures,
    }  # fmt: skip


def main() -> None:
    first = int(os.environ.get("TIGHTZ_SEED", "101"))
    wanted_names = [n for n in os.environ.get("TIGHTZ_MODELS", "").split(",") if n]
    print(
        f"{'model':18} {'s':>3} {'always':>9} {'95%':>9} {'wanted':>7} inside "
        f"{'below':>8} {'estimate':>9} {'error':>8} {'/normal':>7} proj. anneal."
    )
    rows = []
    for seconds in map(float, os.environ.get("TIGHTZ_SECONDS", "60,10").split(",")):
        for name, (wanted, make) in models(first).items():
            if wanted_names and not any(f"{name} ".startswith(f"{n} ") for n in wanted_names):
                continue
            made = make()
            if made is None:
                print(f"{name:18} skipped: TIGHTZ_DATA does not have it")
                continue
            found = row(name, seconds, wanted, *made)
            rows.append(found)
            print(
                f"{name:18} {seconds:3.0f} {found['always']:9.4f} {found['confident']:9.5f} "
                f"{wanted:7.3f} {found['inside']!s:6} {found['below']:8.4f} "
                f"{found['estimate_off']:9.5f} {found['estimate_error']:8.2g} "
                f"{found['ratio']:7.2f} {found['projections']:5.2g} {found['annealing']:7.2g} "
                f"| {' | '.join(found['by'])} {' '.join(found['wrong'])}",
                flush=True,
            )
    if os.environ.get("TIGHTZ_OUT"):
        Path(os.environ["TIGHTZ_OUT"]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
