"""What collapse costs and what it gains: mean field on the collapsed model, gap to exact log Z."""

from __future__ import annotations

import time

import numpy as np

from tests.naive import transfer_matrix_log_z
from tightz.families import MeanField
from tightz.families.ascent import ascend
from tightz.families.mean_field import best_of, to_lanes
from tightz.models import ising_grid
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections import Coset
from tightz.reductions.collapse import collapse

GRIDS = [(10, 1.0), (10, 10.0), (15, 1.0), (20, 10.0)]
NEIGHBOURS = (0, 4, 6, 8, 10)
TARGETS = {  # DESIGN.md, best start of about 20
    (10, 1.0): "5.95 3.00 2.06 1.56 0.64",
    (10, 10.0): "1.8-12 0.57 0.55 0.40 0.40",
    (15, 1.0): "15.7 8.7 5.8 3.8 3.2",
    (20, 10.0): "1.61 1.25 1.08 0.96 -",
}


def exact_log_z(poly: SpinPolynomial, side: int) -> float:
    """The transfer matrix on a side x side grid given by its terms."""
    fields, across, down = (np.zeros((side, side)) for _ in range(3))
    for arity, rows, theta in poly.by_arity():
        if arity == 1:
            fields.ravel()[rows[:, 0]] = theta
        else:
            step = rows[:, 1] - rows[:, 0] == 1
            across.ravel()[rows[step, 0]] = theta[step]
            down.ravel()[rows[~step, 0]] = theta[~step]
    return transfer_matrix_log_z(side, side, across[:, :-1], down[:-1], fields)


def heaviest(poly: SpinPolynomial, side: int, seed: int) -> np.ndarray:
    """A low-energy state: strips of the grid maximised exactly in turn, from random states."""
    rng = np.random.default_rng(seed)
    site = np.arange(side * side).reshape(side, side)
    width = min(8, side)
    best, top = np.ones(poly.n), -np.inf
    for _ in range(5):
        state = rng.choice([-1.0, 1.0], size=poly.n)
        value, last = float(poly.log_weight(state)[0]), -np.inf
        while value > last + 1e-9:
            last = value
            for first in [*range(0, side - width, width // 2), side - width]:
                for strip in (site[first : first + width], site[:, first : first + width]):
                    _maximise(poly, state, strip.ravel())
            value = float(poly.log_weight(state)[0])
        if value > top:
            best, top = state, value
    return best


def _maximise(poly: SpinPolynomial, state: np.ndarray, inside: np.ndarray) -> None:
    """Set the spins `inside` to their heaviest state given the others."""
    number = np.full(poly.n, -1)
    number[inside] = np.arange(inside.size)
    field = np.zeros((inside.size, 1))
    blocks = []
    for arity, rows, theta in poly.by_arity():
        free = number[rows] >= 0
        held = theta * np.where(free, 1.0, state[rows]).prod(axis=1)
        for j in range(arity):
            lone = (free.sum(axis=1) == 1) & free[:, j]
            np.add.at(field[:, 0], number[rows[lone, j]], held[lone])
        full = free.all(axis=1) & (arity == 2)
        blocks.append((np.sort(number[rows[full]], axis=1), held[full]))
    blocks.append((np.arange(inside.size)[:, None], field[:, 0]))
    strip = SpinPolynomial.from_blocks(inside.size, 0.0, [b for b in blocks if len(b[0])])
    state[inside] = collapse(strip, 20).lift_states(np.zeros((1, 0)))[0]


def best_mean_field(poly: SpinPolynomial, state: np.ndarray) -> tuple[float, float]:
    """(bound, seconds) of the best of 20 random, 20 annealed starts, and one at `state`."""
    start = time.perf_counter()
    coset = Coset.build(poly)
    rng = np.random.default_rng(0)
    value = MeanField(restarts=20).project(coset, rng).log_gamma
    lanes = to_lanes(rng.uniform(-0.1, 0.1, size=(20, poly.n)))
    betas = np.geomspace(0.02, 1.0, 100)
    for block in lanes:
        ascend(coset.grouped, block, betas, 1e-6, 1000, np.zeros(block.shape[1]))
    value = max(value, best_of(coset, lanes, 0, True).log_gamma)
    from_state = MeanField().ascend_from(coset, 0.99 * state[None, :]).log_gamma
    return max(value, from_state), time.perf_counter() - start


def main() -> None:
    collapse(SpinPolynomial.from_factor_graph(ising_grid(4, seed=0)), 3)  # compile
    print("collapse alone, w in [-10, 10]")
    for side, target in ((20, "0.5 s at k = 6"), (100, "seconds at k = 6")):
        poly = SpinPolynomial.from_factor_graph(ising_grid(side, coupling=(-10, 10), seed=0))
        for k in (4, 6, 8, None):
            start = time.perf_counter()
            made = collapse(poly, k)
            print(
                f"  {side}x{side}: {made}, {time.perf_counter() - start:.3f} s "
                f"(target {target}), dropped {made.dropped:.1e}"
            )
    print("gap of mean field (nats), best of 20 random and 20 annealed starts and the best state")
    for side, w in GRIDS:
        for seed in range(2):
            poly = SpinPolynomial.from_factor_graph(ising_grid(side, coupling=(-w, w), seed=seed))
            exact = exact_log_z(poly, side)
            state = heaviest(poly, side, seed)
            print(
                f"  {side}x{side}, w in [-{w:g}, {w:g}], seed {seed} (targets {TARGETS[side, w]})"
            )
            for k in NEIGHBOURS:
                made = collapse(poly, k)
                bound, seconds = best_mean_field(made.polynomial, state[made.kept])
                print(
                    f"    k = {k:>2}: gap {exact - bound:8.3f}   {made.kept.size} spins, "
                    f"{made.polynomial.n_terms} terms, {seconds:.2f} s"
                )


if __name__ == "__main__":
    main()
