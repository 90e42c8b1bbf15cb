"""One number says what exp and log may be off by: every verifier's rounding follows it."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

import tightz as tz
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.families.evidence import link_of
from tightz.interval.evidence import log_z_of_network
from tightz.interval.marginal_ends import shares
from tightz.interval.streams.cutset_sum import CutsetSum
from tightz.judge import claims, cliques, convexity, cosh, elimination, proposals, rows, verdict
from tightz.judge.clamps import ClampedCliques
from tightz.judge.rows import RowSums
from tightz.judge.units import UnitSums
from tightz.reductions.barren import drop_barren
from tightz.reductions.encoding import encode
from tightz.reductions.leaves import sum_out_leaves
from tightz.reductions.private import sum_out_private
from tightz.runtime.clock import Clock
from tightz.uppers.mini_bucket import mini_bucket
from verification import hostile, methods
from verification.hostile_models import KINDS
from verification.truth import enumerate_model

RNG = np.random.default_rng(0)
GRID = tz.ising_grid(3, coupling=(0.1, 0.5), field=(-1, 1), seed=0)
PLANAR = tz.ising_grid(3, coupling=(-1, 1), seed=0)
MACHINE = tz.rbm(RNG.normal(size=(3, 12)), RNG.normal(size=3), RNG.normal(size=12))
PAIR = tz.FactorGraph([3, 3], [((0, 1), RNG.normal(size=(3, 3)))])
FACTS = tz.FactorGraph([2] * 4, [((0, 1, v), RNG.normal(size=(2, 2, 2))) for v in (2, 3)])
NETWORK = tz.FactorGraph([2], [((0,), np.log([0.3, 0.7]))])
CLOCK = Clock()


def upper(method, model=GRID):
    return lambda: tz.upper_bound(model, method=method).bound.rounding


def lower(family, model=GRID):
    return lambda: tz.mean_field(model, family=family, seed=0).bound.rounding


def projected(**options):
    return lambda: (
        tz.estimate(GRID, levels=[0], trials=1, seed=0, threads=1, **options).lower_proof.rounding
    )


def clustered():
    network = ClusterMeanField(GRID, cluster_labels(GRID, 3.0), [np.ones(2) / 2] * 9)
    return next(iter(network.bounds(CLOCK))).rounding


def cutset():
    run = CutsetSum(GRID, np.zeros(9, np.int64), np.random.default_rng(0), CLOCK, 2**20)
    return next(iter(run.burn_in())).rounding


def clamped():
    evidence = mini_bucket(GRID, tz.MiniBucket(1)).bound.evidence
    found = ClampedCliques(evidence, GRID)
    return float(found.ends(found.lots[0])[0])


def split():
    return tz.split(GRID, tz.Splitting(max_splits=2), seed=0, threads=1).history[-1].rounding


ROUNDINGS = {
    "states": lambda: claims.StatesEvidence(np.eye(9, dtype=np.int64)).verdict(GRID).rounding,
    "largest entries": lambda: claims.LargestEntries().verdict(GRID).rounding,
    "log of two": lambda: claims.log_add(0.3, 0.2)[1],
    "log of some": lambda: claims.log_sum([0.3, 0.2])[1],
    "product": lower(tz.BlockMeanField(), PAIR),
    "product of spins": lower(tz.MeanField(restarts=1)),
    "forest": projected(family=tz.StructuredMeanField(width=2, restarts=1)),
    "layer": lower(tz.LayerMeanField(restarts=1), MACHINE),
    "log cosh": lambda: float(
        cosh.expected_log_2cosh(np.ones(1), np.ones((1, 2)), np.zeros((1, 2)))[0]
    ),
    "log cosh, many spins": lambda: float(
        cosh.expected_log_2cosh(np.ones(1), np.ones((1, 12)), np.zeros((1, 12)))[0]
    ),
    "codes of three states": lambda: link_of(encode(PAIR, multivalued=True)).rounding(PAIR),
    "collapse": projected(projections=tz.Projections(collapse=2, search_sweeps=0)),
    "network": clustered,
    "attractive": lambda: tz.bethe(GRID).bound.rounding,
    "cliques": upper(tz.MiniBucket(1)),
    "cliques, weights": upper(tz.MiniBucket(2, iterations=3)),
    "edges": upper(tz.TreeReweighted(max_iterations=3)),
    "quadratic": upper(tz.Quadratic(tail=3)),
    "cutset": cutset,
    "parts": split,
    "a variable fixed": clamped,
    "rows": lambda: float(RowSums(GRID, [0], range(1, 9)).logs(np.zeros((1, 1), int)).errors[0]),
    "rows added": lambda: float(
        rows.added(rows.RowLogs(np.zeros(2), np.zeros(2)), np.zeros(1, int)).errors[0]
    ),
    "units": lambda: float(UnitSums(MACHINE, range(3)).logs(np.zeros((1, 3), int)).errors[0]),
    "second elimination": lambda: elimination.second_log_z(GRID, 2**20)[1],
    "convexity": lambda: float(np.diff(convexity.Limits.of(GRID).log_states)[0]),
    "cap of a proposal": lambda: proposals.cap_excess(
        np.array([2]), np.array([0, 2]), np.array([0, 1]),
        np.array([0.5, 0.5], np.float32), np.ones(1),
    ),
    "exact": lambda: tz.exact(GRID).rounding,
    "planar": lambda: tz.exact(PLANAR, max_memory=1).rounding,
    "leaves": lambda: sum_out_leaves(PAIR).rounding,
    "barren": lambda: drop_barren(NETWORK).rounding,
    "private": lambda: sum_out_private(FACTS, fewest=1).rounding,
    "network with evidence": lambda: log_z_of_network(NETWORK.with_evidence({0: 1}))[1],
    "marginals": lambda: float(shares(np.zeros((1, 2)), np.zeros((1, 2)))[0, 0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_rounding_follows_the_one_constant(monkeypatch, kind):
    usual, larger = ROUNDINGS[kind](), 1e4 * verdict.LIBRARY
    for name, module in list(sys.modules.items()):
        if name.startswith("tightz.") and hasattr(module, "LIBRARY"):
            monkeypatch.setattr(module, "LIBRARY", larger)
    assert 0.1 * larger < abs(ROUNDINGS[kind]() - usual) < 1e6 * larger


def test_devices_are_given_the_same_numbers(monkeypatch):
    pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")
    from tightz.judge.gpu.cliques import charges

    assert charges(3, 4, 0.5)[:2] == (verdict.summation(3, 1.0), verdict.log_summation(4, 0.5))
    monkeypatch.setattr(verdict, "LIBRARY", 1e6 * verdict.LIBRARY)
    assert charges(3, 4, 0.5)[1] > 1e-10


def test_devices_say_what_their_kernels_found(monkeypatch):
    """The cap by the largest row of every clique, with a kernel that says 0.25 and was told all."""
    pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")
    from tests.errors.gpu import _CUDA, _tables
    from tightz.judge.gpu import proposals as judge

    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, pool, words, levels, at, weight, found, c, charged):
            assert charged == judge.charges(1 + 2, 2, weight)
            found[:, c] = 0.25, 3.0

    monkeypatch.setattr(judge, "cuda", _CUDA)
    monkeypatch.setattr(judge, "_largest", Kernel())
    excess, size = judge.cap_excess(_tables(), np.ones(1))
    assert 0.25 < excess < 0.25 + 1e-15
    assert size == 3.0


@pytest.mark.parametrize("weight", [1.0, 0.3, -2.5])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_a_log_sum_is_within_its_rounding(count, weight):
    rng = np.random.default_rng(count)
    for scale in (1e-3, 1.0, 30.0, 1e3):
        x = scale * rng.normal(size=count)
        top = x.max() if weight > 0 else x.min()
        found = weight * np.log(np.exp((x - top) / weight).sum())
        wide = (x.astype(np.longdouble) - np.longdouble(top)) / np.longdouble(weight)
        exact = np.longdouble(weight) * np.log(np.exp(wide).sum())
        assert abs(found - exact) <= verdict.log_summation(count, weight) < 1e-11


CANCELLED = {
    name: method
    for name, (method, _) in hostile.EVERY.items()
    if name not in ("control", "levels", "splitting tree", "log_partition")
}


@pytest.mark.parametrize("name", [*CANCELLED, "mini-bucket alone"])
def test_tables_that_cancel_are_all_rounding(name, monkeypatch):
    """Tables near 1e9 whose sums are near 1: what sums lose is what a bound must not."""
    if name.endswith(" alone"):  # each clique summed by itself, as large ones are
        monkeypatch.setattr(cliques, "ALONE", 0)
        name = name.removesuffix(" alone")
    checked = 0
    for k in itertools.count():
        model = KINDS["cancellations"](np.random.default_rng([5, k]))
        try:
            answer = CANCELLED[name](model, k)
        except tz.errors.UnsupportedModelError:
            continue
        assert isinstance(answer, methods.Answer)
        complaints, _ = hostile.judge(answer, enumerate_model(model))
        assert not complaints, (k, complaints)
        checked += 1
        if checked == 20:
            break
