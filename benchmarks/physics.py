"""Free energies of spin models over temperatures, against exact values.

    python -m benchmarks physics [ferromagnet] [glasses]

ferromagnet   periodic L x L at 20 temperatures across the critical one, against Kaufman's formula:
              how many lie inside the band, and Onsager's curve of the infinite lattice beside it.
glasses       the models that variational autoregressive networks were shown on (Wu, Wang, Zhang,
              "Solving statistical mechanics using variational autoregressive networks", 2019):
              16 x 16 ferromagnet and triangular antiferromagnet, both periodic, the SK glass of 20
              spins, Hopfield's memory of two orthogonal patterns in 100.

Environment: TIGHTZ_SECONDS (60, for all temperatures of a model where it is not summed exactly),
TIGHTZ_SEED (a fresh one), TIGHTZ_SIDES ("8,16,32"), TIGHTZ_PLOT (a picture of the ferromagnets).
CPU seconds. Truths: Kaufman's formula; products over the momenta of the triangular torus;
enumeration; counts over classes of spins. None shares code with the library.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import tightz as tz
from tests import naive

CRITICAL = 2.0 / math.log(1.0 + math.sqrt(2.0))


class Row(NamedTuple):
    """A model, the betas to take it to, and the truth at each."""

    name: str
    model: tz.FactorGraph
    betas: tuple[float, ...]
    log_z: Callable[[float], float]


def seed() -> int:
    return int(os.environ.get("TIGHTZ_SEED", "20260116"))


def orthogonal(n: int) -> np.ndarray:
    """Two patterns of n spins that differ in half of them, in random places."""
    rng = np.random.default_rng(seed())
    first = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    flipped = np.where(rng.permutation(n) < n // 2, -1.0, 1.0)
    return np.stack([first, first * flipped])


def enumerated(model: tz.FactorGraph) -> Callable[[float], float]:
    """log Z at any beta by all states of a model of pairs."""
    n = model.n_variables
    couplings, fields = np.zeros((n, n)), np.zeros(n)
    for scope, table in model.factors:
        if len(scope) == 2:
            couplings[scope] += table[0, 0]
        else:
            fields[scope[0]] += table[0]
    weights = np.empty(2**n)
    for low in range(0, 2**n, 2**16):
        codes = np.arange(low, min(low + 2**16, 2**n))
        s = 1.0 - 2.0 * ((codes[:, None] >> np.arange(n)) & 1)
        weights[codes] = ((s @ couplings) * s).sum(axis=1) + s @ fields

    def log_z(beta: float) -> float:
        top = beta * float(weights.max())
        return top + math.log(float(np.exp(beta * weights - top).sum()))

    return log_z


def rows() -> list[Row]:
    patterns = orthogonal(100)
    glass = tz.sherrington_kirkpatrick(20, seed=seed())
    return [
        Row(
            "ferromagnet 16x16", tz.ising_lattice((16, 16), periodic=True),
            (0.3, 0.4, 0.43, 0.44, 0.45, 0.5, 0.6),
            lambda beta: naive.kaufman_log_z(16, 16, beta),
        ),
        Row(
            "triangular antiferromagnet 16x16",
            tz.ising_triangular(16, coupling=-1.0, periodic=True),
            (0.2, 0.5, 1.0, 1.5, 2.0, 3.0),
            lambda beta: naive.triangular_log_z(16, 16, -beta),
        ),
        Row("SK, n = 20", glass, (0.5, 1.0, 2.0, 3.0, 5.0), enumerated(glass)),
        Row(
            "Hopfield, n = 100", tz.hopfield(patterns), (0.5, 0.8, 1.0, 1.2, 1.5, 2.0),
            lambda beta: naive.pattern_log_z(patterns, beta),
        ),
    ]  # fmt: skip


def glasses() -> None:
    """One line a temperature: the truth, both intervals, and what is known besides, per spin."""
    seconds = float(os.environ.get("TIGHTZ_SECONDS", "60"))
    for row in rows():
        start = time.process_time()
        r = tz.free_energy(row.model, betas=row.betas, time_limit=seconds, seed=seed())
        taken = time.process_time() - start
        n = row.model.n_variables
        print(f"{row.name}: {int(r.exact.sum())} of {len(row.betas)} exact, {taken:.1f} CPU s")
        print("  beta     exact F/n      off       always          confident        E/n       S/n")
        for k, beta in enumerate(row.betas):
            truth = -row.log_z(beta) / beta / n
            off = abs(r.free_energy.value[k] / n - truth)
            f, low, high = r.free_energy, *r.free_energy.confident[k]
            slack = 1e-13 * max(1.0, abs(truth))  # of the formula
            inside = low / n - slack <= truth <= high / n + slack
            always = f.lower[k] / n - slack <= truth <= f.upper[k] / n + slack
            widths = f"{(f.upper[k] - f.lower[k]) / n:9.1e} {_told(always)}"
            likely = f"{(high - low) / n:9.1e} {_told(inside)}"
            mean = f"{r.energy.value[k] / n:9.6f} {r.entropy.value[k] / n:9.6f}"
            print(f"  {beta:<5g} {truth:13.9f}  {off:8.1e}  {widths}  {likely}  {mean}", flush=True)


def _told(inside: bool) -> str:
    return "inside" if inside else "OUTSIDE"


def ferromagnet() -> None:
    temperatures = np.linspace(1.5, 3.5, 20)
    sides = [int(side) for side in os.environ.get("TIGHTZ_SIDES", "8,16,32").split(",")]
    for side in sides:
        model = tz.ising_lattice((side, side), periodic=True)
        start = time.process_time()
        r = tz.free_energy(model, temperatures, time_limit=600.0, seed=seed())
        taken = time.process_time() - start
        truth = np.array([naive.kaufman_log_z(side, side, 1.0 / t) for t in temperatures])
        slack = 1e-13 * truth
        inside = (r.log_zs.lower - slack <= truth) & (truth <= r.log_zs.upper + slack)
        widest = float((r.log_zs.upper - r.log_zs.lower).max())
        energy = float((r.energy.upper - r.energy.lower).max()) / side**2
        print(
            f"{side}x{side}: {int(inside.sum())} of 20 inside, {int(r.exact.sum())} exact, log Z "
            f"at most {widest:.1e} wide and {np.abs(r.log_zs.value - truth).max():.1e} off, energy "
            f"per spin at most {energy:.1e} wide, C of {np.isfinite(r.heat_capacity.error).sum()}, "
            f"{taken:.1f} CPU s",
            flush=True,
        )
        if os.environ.get("TIGHTZ_PLOT") and side == sides[0]:
            ax = r.plot()
            curve = [-t * naive.onsager_log_z(1.0 / t) for t in temperatures]
            ax.plot(temperatures, curve, "--", color="#c8553d", label="Onsager, no end")
            ax.legend(frameon=False)
            ax.get_figure().savefig(os.environ["TIGHTZ_PLOT"], dpi=130)


def main(*parts: str) -> None:
    for part in parts or ("ferromagnet", "glasses"):
        {"ferromagnet": ferromagnet, "glasses": glasses}[part]()
