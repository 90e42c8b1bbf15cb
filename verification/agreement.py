"""Independent routes to the same number must agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

import tightz as tz
from tests import naive
from tightz.reductions.collapse import collapse
from tightz.reductions.encoding import encode
from tightz.reductions.zeros import simplify
from verification.models import enumerated_log_z, random_model
from verification.rows import Row

Pair = tuple[float, float]


def elimination_and_transfer_matrix(rng: np.random.Generator) -> Pair:
    rows, cols = rng.integers(2, 11, size=2)
    model = tz.ising_grid(int(rows), int(cols), coupling=(-6, 6), seed=int(rng.integers(2**31)))
    return tz.exact(model).log_z, naive.grid_log_z(int(rows), int(cols), model.factors)


def elimination_and_wide_mini_buckets(rng: np.random.Generator) -> Pair:
    model = tz.ising_grid(5, coupling=(-3, 3), seed=int(rng.integers(2**31)))
    bound = tz.upper_bound(model, method=tz.MiniBucket(ibound=25))
    return tz.exact(model).log_z, bound.log_z


def elimination_and_splitting(rng: np.random.Generator) -> Pair:
    model = tz.ising_grid(4, coupling=(-3, 3), seed=int(rng.integers(2**31)))
    return tz.exact(model).log_z, tz.split(model, seed=0, threads=1).lower


def enumeration_and_all_cosets(rng: np.random.Generator) -> Pair:
    """With as many parities as variables every coset is a state: the sum is Z."""
    model = random_model(rng, "higher order")
    m = model.n_variables
    total = tz.coset_sum(
        model,
        m,
        projections=tz.Projections.as_printed(),
        matrix=np.eye(m, dtype=np.uint8),
        threads=1,
    )
    return enumerated_log_z(model), total.log_z


def enumeration_and_full_collapse(rng: np.random.Generator) -> Pair:
    model = random_model(rng, "pairwise")
    left = collapse(encode(model).polynomial, 12)
    return enumerated_log_z(model), left.polynomial.constant


def elimination_and_belief_propagation_on_a_tree(rng: np.random.Generator) -> Pair:
    n = int(rng.integers(2, 30))
    edges = {(int(rng.integers(v)), v): float(rng.normal() * 2) for v in range(1, n)}
    model = tz.from_ising({v: float(rng.normal()) for v in range(n)}, edges)
    return tz.exact(model).log_z, tz.bethe(model).log_z


def elimination_and_wide_structured_family(rng: np.random.Generator) -> Pair:
    model = tz.ising_grid(4, coupling=(-2, 2), seed=int(rng.integers(2**31)))
    family = tz.StructuredMeanField(width=8, restarts=1)
    e = tz.estimate(
        model,
        projections=tz.Projections(collapse=0, search_sweeps=0),
        levels=[0],
        trials=1,
        family=family,
        threads=1,
        seed=0,
    )
    return tz.exact(model).log_z, float(e.log_gammas.max())


def enumeration_and_simplified_model(rng: np.random.Generator) -> Pair:
    model = random_model(rng, "zeros")
    return enumerated_log_z(model), tz.exact(simplify(model).reduced).log_z


def elimination_and_annealed_importance_sampling(rng: np.random.Generator) -> Pair:
    """An estimate: agreement within five standard errors, on models where AIS is easy."""
    model = tz.ising_grid(4, coupling=(-1, 1), seed=int(rng.integers(2**31)))
    truth = tz.exact(model).log_z
    r = tz.ais(model, chains=256, seed=int(rng.integers(2**31)), threads=1)
    return truth, truth if abs(r.log_z - truth) < 5 * r.standard_error else r.log_z


ROUTES: dict[str, tuple[Callable[[np.random.Generator], Pair], int]] = {
    "exact = transfer matrix": (elimination_and_transfer_matrix, 200),
    "exact = mini-buckets of full width": (elimination_and_wide_mini_buckets, 100),
    "exact = splitting to the end": (elimination_and_splitting, 50),
    "enumeration = sum over all cosets": (enumeration_and_all_cosets, 1000),
    "enumeration = collapse of everything": (enumeration_and_full_collapse, 1000),
    "exact = belief propagation on trees": (elimination_and_belief_propagation_on_a_tree, 500),
    "exact = structured family of full width": (elimination_and_wide_structured_family, 50),
    "enumeration = simplified, then exact": (enumeration_and_simplified_model, 2000),
    "exact = AIS within 5 standard errors": (elimination_and_annealed_importance_sampling, 50),
}


def agreement(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per pair of routes."""
    for name, (route, cases) in ROUTES.items():
        cases = max(3, int(cases * scale))
        worst, failures = 0.0, 0
        for i in range(cases):
            a, b = route(np.random.default_rng([7, i]))
            off = 0.0 if a == b else abs(a - b) / max(1.0, abs(a))
            worst = max(worst, off)
            failures += not off <= 1e-8
        progress(f"{name}: {cases} cases")
        shown = f"largest relative difference {worst:.1e}" if math.isfinite(worst) else "infinite"
        yield Row(f"agreement: {name}", cases, failures, shown)
