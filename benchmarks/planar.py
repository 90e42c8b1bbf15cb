"""Planar spin models without fields by Pfaffians: times, roundings, predicted against taken.

    python -m benchmarks planar

One core. Environment: TIGHTZ_SIDES ("32,100,300"). Free lattices: the critical ferromagnet (32x32
against Kac-Ward from `certified`), couplings N(0, 1), and the same without telling that it is a
lattice (then networkx tests planarity). Tori: critical. Glasses +-J at falling temperature, where
float64 ends and balls take over.
"""

from __future__ import annotations

import math
import os
import time

import numpy as np

import tightz as tz
from benchmarks.certified import kac_ward, spins
from tightz.elimination.planar import PlanarPlan, planar_plan
from tightz.models.factor_graph import Grid

CRITICAL = 0.5 * math.log(1.0 + math.sqrt(2.0))


def square(side: int, *, periodic: bool = False) -> tz.FactorGraph:
    j = (CRITICAL, CRITICAL)
    return tz.ising_grid(side, coupling=j, field=(0.0, 0.0), periodic=periodic)


def reweighted(side: int, weights: np.ndarray, *, lattice: bool) -> tz.FactorGraph:
    """A free square with these couplings; without its layout the graph must be found planar."""
    site = np.arange(side * side).reshape(side, side)
    right = np.stack([site[:, :-1].ravel(), site[:, 1:].ravel()], axis=1)
    down = np.stack([site[:-1].ravel(), site[1:].ravel()], axis=1)
    model = spins(side**2, np.concatenate([right, down]), weights, np.zeros(side**2))
    layout = Grid(side, side) if lattice else None
    return tz.FactorGraph(model.cardinalities, model.factors, layout=layout)


def show(name: str, model: tz.FactorGraph, truth: float = math.nan) -> None:
    """One line: plan, log Z alone, with marginals."""
    start = time.perf_counter()
    plan = planar_plan(model)
    assert isinstance(plan, PlanarPlan), plan
    predicted = plan.seconds
    planned = time.perf_counter()
    plan.solve(marginals=False)
    summed = time.perf_counter()
    found = plan.solve()
    done = time.perf_counter()
    off = "" if math.isnan(truth) else f", {abs(found.log_z - truth):.1e} from the truth"
    print(
        f"{name:28s} log Z {found.log_z:.10f} +- {found.rounding:.1e} ({found.bits} bits){off}; "
        f"plan {planned - start:.2f} s, log Z {summed - planned:.2f} s, "
        f"with marginals {done - summed:.2f} s (predicted {predicted:.2f} s)",
        flush=True,
    )


def main() -> None:
    sides = [int(s) for s in os.environ.get("TIGHTZ_SIDES", "32,100,300").split(",")]
    planar_plan(square(4)).solve()  # compiles
    for side in sides:
        truth = kac_ward(side) if side <= 32 else math.nan
        show(f"{side}x{side} critical", square(side), truth)
        weights = np.random.default_rng(side).normal(size=2 * side * (side - 1))
        show(f"{side}x{side} N(0,1)", reweighted(side, weights, lattice=True))
        show(f"{side}x{side} N(0,1), any graph", reweighted(side, weights, lattice=False))
    for side in (16, 64, 128):
        show(f"{side}x{side} critical torus", square(side, periodic=True))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=2 * 30 * 29)
    for beta in (0.5, 1.0, 1.5, 2.0, 3.0, 10.0):
        show(f"30x30 +-J, beta {beta:g}", reweighted(30, beta * signs, lattice=True))
