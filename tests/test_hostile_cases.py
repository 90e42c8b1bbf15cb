"""Bounds that were once wrong, each reduced to the few lines that show it.

Found by `python -m verification 1 hostile`; the truth is enumerated where the model is small and
known in closed form where it is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

import tightz as tz
from tightz.elimination.exact.elimination import solve
from tightz.elimination.exact.ways import ByPfaffians
from tightz.elimination.planar import PlanarPlan, planar_plan
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.models.ends import around, odds
from tightz.reductions.preparation import prepare
from tightz.runtime.clock import Clock
from tightz.uppers.tree_reweighted import TreeReweightedStatus
from verification.events import Events
from verification.hostile import EVERY, attack, marginal_error
from verification.hostile_models import KINDS
from verification.hunting import CONTROL
from verification.truth import enumerate_model

INF = math.inf
EQUAL = np.array([[0.0, -INF], [-INF, 0.0]])
PSEUDO_ZERO = -1e30


def dense_ising(n: int, strength: float, seed: int) -> tz.FactorGraph:
    rng = np.random.default_rng(seed)
    couplings = np.triu(strength * rng.normal(size=(n, n)), 1)
    return tz.ising(couplings + couplings.T, strength * rng.normal(size=n))


def holds(bound: tz.Bound, model: tz.FactorGraph) -> bool:
    """Whether a record is true of an enumerable model: to the last bit where it says so."""
    truth = enumerate_model(model)
    if bound.proof is not tz.Proof.DETERMINISTIC:
        return True
    slack = 0.0 if bound.rounding else 1e-9 * max(1.0, abs(float(truth.high)))
    if bound.side is tz.Side.BOTH:
        slack = max(slack, bound.rounding)
    above = bound.log_z - slack > truth.high and bound.side is not tz.Side.UPPER
    below = bound.log_z + slack < truth.low and bound.side is not tz.Side.LOWER
    return not (above or below or math.isnan(bound.log_z))


def tied_chain(n: int, order: Iterator[int] | range) -> tz.FactorGraph:
    """Hard x0 = x1 = ... with x_(n-1) = 1 for sure and 800 nats against x0 = 1: log Z = -800."""
    links = [((int(i), int(i) + 1), EQUAL) for i in order]
    return tz.FactorGraph([2] * n, [*links, ((0,), [0.0, -800.0]), ((n - 1,), [-INF, 0.0])])


# Bethe on attractive models: a belief of exp(-800) is 0 in float64, and 0 / 0 was skipped.


@pytest.mark.parametrize("max_iterations", [1, 2, 1000])
def test_bethe_proves_nothing_false_about_three_tied_spins(max_iterations):
    r = tz.bethe(tied_chain(3, range(2)), max_iterations=max_iterations)
    assert holds(r.bound, tied_chain(3, range(2)))
    assert r.lower == -np.inf or r.lower <= -800.0


def test_bethe_proves_nothing_false_about_a_chain_longer_than_its_iterations():
    """Links in random order: news travels a few links a sweep, 2,600 need more than a thousand."""
    order = np.random.default_rng(0).permutation(2600)
    r = tz.bethe(tied_chain(2601, order))
    assert r.lower == -np.inf or r.lower <= -800.0


# Exact marginals: messages whose entries span more than float64's exponents.


@pytest.mark.parametrize("seed", [190, 585, 942, 1040])
def test_exact_marginals_of_strong_couplings(seed):
    model = dense_ising(9, 100.0, seed)
    r = tz.exact(model)
    assert holds(r.bound, model)
    assert marginal_error(r.marginals, enumerate_model(model)) <= 1e-8


def test_exact_marginals_of_four_spins_with_ties_at_300():
    """A scale of exp(900) was taken out of a message and could not be put back."""
    model = tz.FactorGraph(
        [2] * 4,
        [
            ((0, 1), [[0.0, 300.0], [0.0, 0.0]]),
            ((2, 0), [[0.0, 0.0], [300.0, 0.0]]),
            ((3, 0), [[300.0, 0.0], [-300.0, 0.0]]),
            ((2, 1), [[0.0, 300.0], [0.0, 0.0]]),
            ((1, 3), [[0.0, 0.0], [-300.0, 300.0]]),
            ((3, 2), np.zeros((2, 2))),
        ],
    )
    assert marginal_error(tz.exact(model).marginals, enumerate_model(model)) <= 1e-8


def test_exact_marginals_of_quantised_cliques():
    for number in range(120):
        model = KINDS["quantised cliques"](np.random.default_rng([number]))
        assert marginal_error(tz.exact(model).marginals, enumerate_model(model)) <= 1e-8, number


@pytest.mark.parametrize(("seed", "spin"), [(1040, 2), (942, 5), (190, 0), (942, 1)])
def test_clustered_mean_field_rests_on_marginals_that_are_right(seed, spin):
    """Nine strong spins in one cluster and a tenth beside it: 24 nats above log Z, or NaN."""
    nine = dense_ising(9, 100.0, seed).factors
    model = tz.FactorGraph([2] * 10, [*nine, ((spin, 9), [[0.0, 0.0], [0.0, 50.0]])])
    labels = np.array([0] * 9 + [1])
    sweeps = ClusterMeanField(model, labels, [np.full(2, 0.5)] * 10).bounds(Clock(60.0))
    assert all(holds(bound, model) for bound in itertools.islice(sweeps, 4))


# Pseudo-zeros: sums in which -1e30 cancels leave 1e14 behind.


def hard_core(n: int, zero: float) -> tz.FactorGraph:
    pair = np.array([[0.0, 0.0], [0.0, zero]])
    at = np.arange(n * n).reshape(n, n)
    links = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True)]
    links += zip(at[:-1].flat, at[1:].flat, strict=True)
    return tz.FactorGraph([2] * (n * n), [((int(i), int(j)), pair) for i, j in links])


def test_pseudo_zeros_on_a_hard_core_lattice():
    r = tz.log_partition(hard_core(40, PSEUDO_ZERO), exact=False, time_limit=2.0, seed=0)
    assert r.lower <= r.upper
    assert r.lower <= 1600 * math.log(2.0)  # there are 2^1600 states, of weight 1 at most
    assert r.upper >= 800 * math.log(2.0)  # every other site may be anything


TWO_FORBIDDEN_STATES = tz.FactorGraph(
    [2, 2], [((0,), [0.0, PSEUDO_ZERO])] * 2 + [((1,), [0.0, PSEUDO_ZERO])] * 3
)
FORBIDDEN_BESIDE_THREE = tz.FactorGraph([3, 2], [((1,), [0.0, PSEUDO_ZERO])])
ONE_SPIN = tz.FactorGraph([2], [((0,), [1.0657023039929898, -5e10])])
ONE_SPIN_HIGH = tz.FactorGraph([2], [((0,), [-2e23, 6.7e7])])
PENALTY = tz.FactorGraph(
    [2, 2], [((1, 0), [[0.0, 0.0], [-1e10, -1e10]]), ((0, 1), [[0.0, 0.0], [-2.0, 0.0]])]
)

PENALISED = [TWO_FORBIDDEN_STATES, FORBIDDEN_BESIDE_THREE, PENALTY, ONE_SPIN, ONE_SPIN_HIGH]


@pytest.mark.parametrize("model", PENALISED)
@pytest.mark.parametrize("restarts", [1, 2])
def test_mean_field_with_pseudo_zeros(model, restarts):
    assert holds(tz.mean_field(model, family=tz.MeanField(restarts=restarts), seed=24).bound, model)


@pytest.mark.parametrize("model", PENALISED)
def test_log_partition_with_pseudo_zeros(model):
    r = tz.log_partition(model, exact=False, time_limit=1.0, seed=0)
    assert r.lower <= r.upper
    assert all(holds(bound, model) for bound in [r.lower_proof, r.upper_proof, *r.bounds])


def test_clustered_mean_field_with_pseudo_zeros():
    model = tz.FactorGraph(
        [2, 2, 2],
        [
            ((0,), [PSEUDO_ZERO, 0.0]),
            ((0, 1), [[0.0, 0.0], [0.0, PSEUDO_ZERO]]),
            ((0, 2), [[0.0, 0.0], [PSEUDO_ZERO, -20.0]]),
        ],
    )
    starts = [np.full(2, 0.5)] * 3
    sweeps = ClusterMeanField(model, cluster_labels(model, 2.0), starts).bounds(Clock(60.0))
    assert all(holds(bound, model) for bound in itertools.islice(sweeps, 5))


TRIANGLE = tz.FactorGraph(
    [2, 2, 2],
    [(pair, [[0.0, 0.0], [0.0, PSEUDO_ZERO]]) for pair in ((0, 1), (2, 0), (2, 1))]
    + [((1,), [0.0, PSEUDO_ZERO])],
)


def test_layer_mean_field_with_pseudo_zeros():
    assert holds(
        tz.mean_field(TRIANGLE, family=tz.LayerMeanField(restarts=2), seed=882).bound, TRIANGLE
    )


def test_coset_sum_with_pseudo_zeros():
    assert holds(tz.coset_sum(TRIANGLE, 2, seed=882, threads=1).bound, TRIANGLE)


def test_splitting_with_pseudo_zeros():
    tree = tz.split(TRIANGLE, tz.Splitting(max_splits=2), seed=882, threads=1)
    assert tree.lower <= tree.upper
    assert tree.lower <= enumerate_model(TRIANGLE).high + 1e-9
    assert all(holds(bound, TRIANGLE) for bound in tree.history)


PAIRS = [(0, 2), (4, 0), (5, 0), (4, 1), (5, 1), (2, 3), (2, 4), (5, 2)]


def test_mini_bucket_lower_bound_beside_a_pseudo_zero():
    factors = [((0, 1), [[0.0, 0.0], [0.0, PSEUDO_ZERO]]), *((p, np.zeros((2, 2))) for p in PAIRS)]
    model = tz.FactorGraph([2] * 6, factors)
    config = tz.MiniBucket(ibound=2, iterations=2, side=tz.Side.LOWER)
    assert holds(tz.upper_bound(model, method=config).bound, model)


def test_mini_buckets_do_not_cross_on_a_uniform_model():
    """Every table is zero: the ends differed in the last bit, the wrong way round."""
    model = tz.FactorGraph([2] * 6, [(pair, np.zeros((2, 2))) for pair in PAIRS])
    lower, upper = (
        tz.upper_bound(model, method=tz.MiniBucket(ibound=2, iterations=2, side=side)).log_z
        for side in (tz.Side.LOWER, tz.Side.UPPER)
    )
    assert lower <= upper


def refuses_marginals(model: tz.FactorGraph) -> None:
    """log Z is right up to its rounding, which is large: marginals have no digits, and say so."""
    r = tz.exact(model)
    assert holds(r.bound, model)
    with pytest.raises(tz.errors.ModelError, match=r"no digits.*with_zeros"):
        r.marginals  # noqa: B018


def test_exact_marginals_where_every_state_is_penalised():
    """Three of four states weigh exp(-1e30): log 2 is lost beside 1e30 on the way."""
    pair = ((1, 0), [[0.0, 0.0], [0.0, PSEUDO_ZERO]])
    refuses_marginals(
        tz.FactorGraph([2, 2], [pair, *(((v,), [PSEUDO_ZERO, 0.0]) for v in range(2))])
    )


def test_exact_marginals_beside_a_huge_entry():
    table = np.zeros((3, 2))
    table[2, 0] = 4e18
    refuses_marginals(tz.FactorGraph([2, 3], [((1, 0), table), ((0,), [0.0, 3e24])]))


# Rounding of sums near 1e6: the two ends met from the wrong sides.


@pytest.mark.parametrize("seed", [14, 3, 7])
def test_ends_do_not_cross_where_weights_are_large(seed):
    r = tz.log_partition(dense_ising(13, 1e5, seed), exact=False, time_limit=1.0, seed=0)
    assert r.lower <= r.upper
    assert all(holds(bound, dense_ising(13, 1e5, seed)) for bound in r.bounds)


# Tree-reweighted: one damped sweep of a tree is not exact.


@pytest.mark.parametrize("damping", [0.5, 0.9])
def test_damped_tree_reweighted_is_not_called_exact_too_early(damping):
    model = tz.ising_grid(1, 6, coupling=(-3, 3), seed=0)
    r = tz.upper_bound(model, method=tz.TreeReweighted(max_iterations=1, damping=damping))
    log_z = float(enumerate_model(model).high)
    assert r.log_z >= log_z - 1e-9
    if r.status is TreeReweightedStatus.EXACT:
        assert r.log_z == pytest.approx(log_z, abs=1e-9)


def test_tree_reweighted_is_not_called_exact_beside_a_pseudo_zero():
    model = tz.FactorGraph([2], [((0,), [PSEUDO_ZERO, 0.0])])
    r = tz.upper_bound(model, method=tz.TreeReweighted())
    assert r.log_z >= 0.0
    if r.status is TreeReweightedStatus.EXACT:
        assert r.log_z == pytest.approx(0.0, abs=1e-9)


# Streams of log_partition that misbehave.


def honest(working, clock) -> Iterator[tz.Bound]:
    yield tz.Bound(tz.Side.UPPER, 50.0, tz.Proof.DETERMINISTIC, "honest", confidence=1.0)


def broken(working, clock) -> Iterator[tz.Bound]:
    raise ZeroDivisionError("a bug in a user's stream")
    yield


def false_lower(working, clock) -> Iterator[tz.Bound]:
    yield tz.Bound(tz.Side.LOWER, 40.0, tz.Proof.DETERMINISTIC, "false", confidence=1.0)


def test_a_stream_that_raises_leaves_the_others_alone():
    model = tz.ising_grid(4, coupling=(-1, 1), seed=0)
    r = tz.log_partition(model, only=[broken, honest], time_limit=2.0, seed=0)
    log_z = tz.exact(model).log_z
    assert r.lower <= log_z <= r.upper <= 50.0
    assert r.lower > -INF


def test_a_lower_bound_without_evidence_does_not_become_the_answer():
    model = tz.ising_grid(4, coupling=(-1, 1), seed=0)
    r = tz.log_partition(model, only=[false_lower, honest], time_limit=2.0, seed=0)
    assert r.lower <= tz.exact(model).log_z
    assert r.lower <= r.upper


def test_a_stream_that_yields_nan_is_not_the_answer():
    def nan(working, clock) -> Iterator[tz.Bound]:
        yield tz.Bound(tz.Side.LOWER, math.nan, tz.Proof.DETERMINISTIC, "nan", confidence=1.0)

    model = tz.ising_grid(4, coupling=(-1, 1), seed=0)
    r = tz.log_partition(model, only=[nan, honest], time_limit=2.0, seed=0)
    assert r.lower <= tz.exact(model).log_z <= r.upper


# Crashes.


@pytest.mark.parametrize("model", [tz.FactorGraph([]), tz.FactorGraph([2], evidence={0: 1})])
def test_clustered_mean_field_without_variables(model):
    free = model.condition()
    sweeps = ClusterMeanField(free, cluster_labels(free, 3.0), []).bounds(Clock(60.0))
    assert all(holds(bound, model) for bound in itertools.islice(sweeps, 3))


def test_no_hostile_model_breaks_a_bound():
    rows = list(attack(0.01, 1, str))
    assert {row.check for row in rows} == {
        *(f"hostile: {name}" for name in EVERY if name != CONTROL),
        *(f"hostile to: {kind}" for kind in KINDS),
    }
    for row in rows:
        assert row.passed, row


def test_layer_mean_field_of_a_huge_entry():
    """Squares of couplings overflowed at 1e218."""
    model = tz.FactorGraph([2, 2], [((1, 0), [[0.0, 1e100], [0.0, 0.0]])])
    assert holds(tz.mean_field(model, family=tz.LayerMeanField(restarts=2), seed=0).bound, model)


# Ends of marginals where log weights have no digits left: NaN, and underflow taken for a proof.


def test_ends_of_marginals_are_numbers_however_large_the_entries():
    """Odds times e^nats overflowed: NaN as an upper end, and NaN as a marginal beside it."""
    rng = np.random.default_rng(0)
    pairs = [((i, j), 1e19 * rng.normal(size=(2, 2))) for i in range(12) for j in range(i)]
    leaf = [((0, 12), 1e19 * rng.normal(size=(2, 3)))]
    r = tz.log_partition(tz.FactorGraph([2] * 12 + [3], pairs + leaf), exact=False, time_limit=0.3)
    for ends in (*r.marginal_bounds, *r.confident.marginal_bounds):
        assert (ends[:, 0] <= ends[:, 1]).all()
    assert all(np.isfinite(q).all() for q in r.marginals or [])
    assert around(np.array([0.0, 1.0]), 5000.0).tolist() == [[0.0, 1.0]] * 2
    high = np.array([0.0, 1e-300, 0.5, 1.0])
    assert odds(high, 1e4).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert odds(high, -1e4).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_a_sum_that_loses_its_digits_is_no_reason_to_stop():
    """1e18 + 65 + 65 + ... in float64: the first state's weight came out a thousand nats off."""
    fields = [[1e18, 0.0], *[[65.0, 65.0]] * 20, [-1e18, 0.0]]
    model = tz.FactorGraph([2], [((0,), field) for field in fields])
    for exact in (True, False):
        r = tz.log_partition(model, exact=exact, time_limit=0.3)
        assert r.lower <= 1300.0 + math.log(2.0) <= r.upper
        assert (r.marginal_bounds[0][:, 0] <= 0.5).all()
        assert (r.marginal_bounds[0][:, 1] >= 0.5).all()


# Correlations from the inverse of a Pfaffian's matrix have no bound on their rounding.


@pytest.mark.parametrize("fields", [False, True])
def test_ends_of_marginals_by_pfaffians(fields):
    """Rare pairs, and rare states where fields sit on one face: ends were off by a factor."""
    for seed, strength in ((1, 6.0), (5, 12.0), (21, 12.0)):
        rng = np.random.default_rng(seed)
        grid = tz.ising_grid(2, 3, coupling=(-strength, strength), field=(0, 0), seed=seed)
        factors = [(scope, table) for scope, table in grid.factors if len(scope) == 2]
        if fields:
            unary = rng.normal(size=6)[:, None] * [strength, -strength]
            factors += [((v,), unary[v]) for v in range(6)]
        model = tz.FactorGraph([2] * 6, factors)
        planar = planar_plan(model)
        assert isinstance(planar, PlanarPlan)
        r, truth = solve(model, ByPfaffians(planar), max_memory=2**30), Events.of(model)
        for v, ends in enumerate(r.marginal_bounds):
            low, high = truth.shares((v,), {})
            assert (ends[:, 0] <= high).all()
            assert (ends[:, 1] >= low).all()
            assert fields or (ends[:, 1] - ends[:, 0] < 1e-9).all()
        for scope, _ in model.factors:
            if len(scope) == 2:
                i, j = map(int, scope)
                low, high = truth.shares((i, j), {})
                ends = r.pair_marginal(i, j).bounds
                assert (ends[..., 0] <= high).all()
                assert (ends[..., 1] >= low).all()
                assert (ends[..., 1] <= 1.001 * high + 1e-299).all()


def test_leaves_beside_a_huge_constant_declare_no_negative_rounding():
    """The heaviest state's weight is rounded too: ends of marginals came out as [2, 1e-13]."""
    constants = [((2,), [5.736949991578233e99]), ((0, 2), [[-2.977691750850856e93]])]
    for more in ([], [((2, 0), [[6.758639860556968e50]])]):
        model = tz.FactorGraph([1, 2, 1], [*constants, *more])
        assert prepare(model).rounding >= 0.0
        for ends in tz.log_partition(model, time_limit=1.0).marginal_bounds:
            assert ((ends >= 0.0) & (ends <= 1.0)).all()
            assert (ends[:, 0] <= ends[:, 1]).all()
