"""The judge of upper bounds: true to the last digit on hostile models, and not to be fooled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.precise import hostile_model, precise_log_z
from tightz.bounds import Bound, Side
from tightz.elimination.order import Order
from tightz.judge import RefutedError
from tightz.judge import cliques as cliques_module
from tightz.judge.cliques import CliquesEvidence
from tightz.judge.elimination import bucket_tree
from tightz.judge.spanning import Forests, components, uniform_forest
from tightz.models.builders import ising, ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.sampling.capped.stream import CappedDraws
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket, mini_bucket_bounds
from tightz.uppers.mini_bucket import descent as descent_module
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted
from tightz.workspace.working import Working

SEEDS = st.integers(0, 2**32)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([Side.UPPER, Side.LOWER]), st.integers(1, 3), st.integers(0, 15))
def test_mini_buckets_are_true_to_the_last_digit(seed, side, ibound, iterations):
    model = hostile_model(np.random.default_rng(seed))
    truth = precise_log_z(model)
    result = mini_bucket(model, MiniBucket(ibound, iterations, tol=0.0, side=side))
    value = Decimal(result.log_z)
    assert value >= truth if side is Side.UPPER else value <= truth
    if result.side is Side.BOTH and truth.is_finite():
        assert abs(value - truth) <= Decimal(result.rounding)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 20))
def test_tree_reweighted_bounds_are_true_to_the_last_digit(seed, iterations):
    model = hostile_model(np.random.default_rng(seed), arity=2)
    truth = precise_log_z(model)
    result = tree_reweighted(model, TreeReweighted(max_iterations=iterations, tol=0.0))
    assert Decimal(result.log_z) >= truth
    if result.bound.side is Side.BOTH and truth.is_finite():
        assert abs(Decimal(result.log_z) - truth) <= Decimal(result.rounding)


def test_float64_values_alone_would_lie():
    """Negative control: the optimiser's own sums are below log Z on some of these models."""
    lies = 0
    for seed in range(150):
        model = hostile_model(np.random.default_rng(seed))
        result = mini_bucket(model, MiniBucket(1, 5, tol=0.0))
        lies += Decimal(result.history[-1]) < precise_log_z(model)
    assert lies > 0


def tightening(model: FactorGraph) -> Iterator[object]:
    """What the stream of capped draws yields before it draws for good."""
    clock = Clock(30.0)
    return CappedDraws(Working(model, clock, exact=False), clock).tighten()


def test_every_bound_of_a_stream_carries_evidence():
    model = ising_grid(7, coupling=(-2, 2), field=(-1, 1), seed=2)
    streams = [
        mini_bucket_bounds(model, ibounds=[1, 2, 3], iterations=15),
        (b for b in tightening(model) if isinstance(b, Bound)),
        mini_bucket_bounds(model, ibounds=[1, 2], iterations=15, side=Side.LOWER),
    ]
    for stream in streams:
        bounds = list(stream)
        assert bounds
        for bound in bounds:
            verdict = bound.evidence.verdict(model)
            assert bound.log_z == (verdict.lower if bound.side is Side.LOWER else verdict.upper)
            assert 0.0 <= bound.rounding < 1e-9


def cut_model() -> FactorGraph:
    rng = np.random.default_rng(3)
    upper = np.triu(rng.normal(size=(8, 8)), 1)
    return ising(upper + upper.T, rng.normal(size=8))


def cut_evidence(model: FactorGraph):
    """Fresh evidence, not yet judged, so that it can be spoiled."""
    result = mini_bucket(model, MiniBucket(3, iterations=10, order=Order.MIN_FILL))
    return replace(result.bound.evidence)


def spoiled_weights(evidence):
    return replace(evidence, weights=np.where(evidence.weights < 1.0, 0.9, 1.0) * evidence.weights)


def spoiled_scope(evidence):
    last = evidence.scopes[0][-1]
    names = [v for v in evidence.order.tolist() if v not in evidence.scopes[0]]
    return replace(
        evidence, scopes=((names[0], *evidence.scopes[0][1:-1], last), *evidence.scopes[1:])
    )


def spoiled_factors(evidence):
    return replace(evidence, factors=(evidence.factors[0][1:], *evidence.factors[1:]))


def spoiled_twice(evidence):
    return replace(evidence, factors=(evidence.factors[0] * 2, *evidence.factors[1:]))


def spoiled_parent(evidence):
    parents = evidence.parents.copy()
    parents[0] = -1
    return replace(evidence, parents=parents)


def spoiled_loop(evidence):
    parents = evidence.parents.copy()
    parents[-1] = len(parents) - 1
    return replace(evidence, parents=parents)


def spoiled_order(evidence):
    return replace(evidence, order=evidence.order[::-1].copy())


def spoiled_zero(evidence):
    shifts = evidence.shifts.copy()
    shifts[0] = -np.inf
    return replace(evidence, shifts=shifts)


def spoiled_number(evidence):
    shifts = evidence.shifts.copy()
    shifts[0] = np.nan
    return replace(evidence, shifts=shifts)


def spoiled_pointer(evidence):
    ends = evidence.shift_ptr.copy()
    ends[-2] = ends[-1]
    return replace(evidence, shift_ptr=ends)


def spoiled_sign(evidence):
    weights = evidence.weights.copy()
    pair = np.flatnonzero(weights < 1.0)[:2]
    weights[pair] += [-1.0, 1.0]
    return replace(evidence, weights=weights)


def stale_shifts(evidence):
    """Shifts of an earlier iterate: they prove something, but not what is claimed."""
    return replace(evidence, shifts=0.0 * evidence.shifts)


@pytest.mark.parametrize(
    "spoil",
    [
        spoiled_weights, spoiled_scope, spoiled_factors, spoiled_twice, spoiled_parent,
        spoiled_loop, spoiled_order, spoiled_zero, spoiled_number, spoiled_pointer, spoiled_sign,
        stale_shifts,
    ],
)  # fmt: skip
def test_spoiled_cliques_are_refuted(spoil):
    model = cut_model()
    evidence = cut_evidence(model)
    assert evidence.verdict(model).upper >= float(precise_log_z(model))
    spoilt = spoil(cut_evidence(model))
    if spoil is not stale_shifts:  # refused for what is wrong, not for the number that is claimed
        spoilt = replace(spoilt, claimed=np.inf)
    with pytest.raises(RefutedError):
        spoilt.verdict(model)


def test_a_variable_without_a_table_is_summed_too():
    model = FactorGraph([2, 3], [((0,), [0.3, 0.7])])
    whole = bucket_tree(model, np.arange(2))
    assert Decimal(whole.verdict(model).upper) >= precise_log_z(model)
    parts = {"scopes": [(0,)], "factors": [[0]], "parents": np.array([-1]), "weights": np.ones(1)}
    with pytest.raises(RefutedError, match="free variables"):
        replace(whole, order=np.zeros(1, dtype=np.int64), **parts).verdict(model)


def test_a_copy_with_other_tables_is_judged_for_itself():
    model = cut_model()
    evidence = cut_evidence(model)
    upper = evidence.verdict(model).upper
    other = replace(evidence, shifts=0.0 * evidence.shifts, claimed=np.inf)
    assert other.verdict(model).upper > upper
    begun = replace(evidence, shift_ptr=np.concatenate([[-1], evidence.shift_ptr[1:]]))
    with pytest.raises(RefutedError, match="shifts and pairs differ in number"):
        begun.verdict(model)


def test_broken_kernels_are_refuted(monkeypatch):
    """A forward pass that loses a hundredth of a nat, or a message of one clique."""
    model = cut_model()
    sound = descent_module.forward
    monkeypatch.setattr(descent_module, "forward", lambda *args: sound(*args) - 0.01)
    with pytest.raises(RefutedError, match="claimed"):
        mini_bucket(model, MiniBucket(3, iterations=5))

    def half(skel, tables):
        sound(skel, tables)
        tables.up[skel.message_ptr[3] : skel.message_ptr[4]] -= 0.5  # as if one sum were short
        roots = np.flatnonzero(skel.parents < 0)
        return float(tables.up[skel.message_ptr[roots]].sum()) - 0.5

    monkeypatch.setattr(descent_module, "forward", half)
    with pytest.raises(RefutedError, match="claimed"):
        mini_bucket(model, MiniBucket(3, iterations=5))


@pytest.fixture(params=[cliques_module.ALONE, 0], ids=["together", "alone"])
def summing(request, monkeypatch):
    """Small cliques summed together, and each by itself as large ones are."""
    monkeypatch.setattr(cliques_module, "ALONE", request.param)


@pytest.mark.usefixtures("summing")
def test_any_shifts_and_weights_prove_something_true():
    """What the optimiser found is not trusted: random numbers in its place still give a bound."""
    model = cut_model()
    truth = precise_log_z(model)
    rng = np.random.default_rng(0)
    for _ in range(20):
        evidence = cut_evidence(model)
        evidence = replace(evidence, shifts=rng.normal(size=evidence.shifts.size), claimed=np.inf)
        assert Decimal(evidence.verdict(model).upper) >= truth


def one_shift(states, shifts, cliques=2):
    """A table of zeros over all variables in cliques that sum them out one by one, and cliques of
    the last variable, with shifts from the first clique to each of these."""
    n, more = len(states), cliques - 1
    model = FactorGraph(states, [(range(n), np.zeros(states))])
    return model, CliquesEvidence(
        np.arange(n)[::-1], [tuple(range(k)) for k in range(n, 0, -1)] + [(0,)] * more,
        [[0]] + [[]] * (n - 1 + more), np.array([*range(1, n), *[-1] * cliques]),
        np.array([1.0] * (n - 1) + [1.0 / cliques] * cliques),
        np.array([(0, n + k) for k in range(more)]), np.arange(cliques) * states[0], shifts, np.inf,
    )  # fmt: skip


@pytest.mark.parametrize(
    "shifts",
    [
        np.array([-1.0, -500.0, -1.0, 0.0])[::2], np.array([[-1.0, -500.0], [-1.0, 0.0]])[:, 0],
        np.broadcast_to(-3.0, 2), np.full(2, 200, dtype=np.uint8), np.full(2, -128, dtype=np.int8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [1, 11])
@pytest.mark.usefixtures("summing")
def test_both_cliques_see_the_same_shifts(n, shifts):
    """Whatever their type and layout in memory: as arrays of floats one after the other."""
    model, evidence = one_shift([2] * n, shifts)
    plain = replace(evidence, shifts=shifts.astype(np.float64).copy())
    assert evidence.verdict(model).upper == plain.verdict(model).upper
    assert Decimal(evidence.verdict(model).upper) >= precise_log_z(model)


def test_a_parent_between_two_numbers_is_the_one_that_was_checked():
    model, evidence = one_shift([2, 2], np.zeros(2))
    half = replace(evidence, parents=np.where(evidence.parents < 0, -0.5, evidence.parents))
    with pytest.raises(RefutedError, match="does not fit"):
        half.verdict(model)


@pytest.mark.usefixtures("summing")
def test_shifts_whose_sum_overflows_say_nothing():
    """Each is finite; added up in one clique they would be a zero."""
    model, evidence = one_shift([2], np.full(4, -1.7e308), cliques=3)
    assert evidence.verdict(model).upper == np.inf


def test_sums_together_and_alone_are_the_same(monkeypatch):
    """To the last digits, with tables of 3e15 as well, where every entry is charged for itself."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        cards = rng.integers(1, 5, size=8)
        scopes = [rng.choice(8, size=rng.integers(1, 4), replace=False) for _ in range(16)]
        tables = [rng.normal(size=cards[scope]) * rng.choice([1.0, 3e15]) for scope in scopes]
        tables = [np.where(rng.random(t.shape) < 0.1, -np.inf, t) for t in tables]
        model = FactorGraph(cards, zip(scopes, tables, strict=True))
        evidence = mini_bucket(model, MiniBucket(2, iterations=3)).bound.evidence
        if not isinstance(evidence, CliquesEvidence):
            continue
        found = []
        for alone in (cliques_module.ALONE, 8, 0):
            monkeypatch.setattr(cliques_module, "ALONE", alone)
            tree = cliques_module.CliqueTree(evidence, model)
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append((tree.value(+1.0), tree.magnitude))
        monkeypatch.undo()
        np.testing.assert_allclose(found, found[:1] * 3, rtol=1e-14, atol=1e-12)


@pytest.mark.parametrize("off", [-8e-10, 8e-10])
def test_what_weights_miss_of_one_is_paid_for(off):
    """Two equal tables, each in a clique of its own: Hoelder's inequality is an equality there."""
    model = FactorGraph([50], [((0,), np.zeros(50)), ((0,), np.zeros(50))])
    truth = precise_log_z(model)
    none = np.zeros(0, dtype=np.int64)
    for weights, side in (((0.5, 0.5 + off), 1), ((2.0, -1.0 + off), -1)):
        verdict = CliquesEvidence(
            np.zeros(1, dtype=np.int64), [(0,), (0,)], [[0], [1]], np.array([-1, -1]),
            np.array(weights), none.reshape(0, 2), np.zeros(1, dtype=np.int64), np.zeros(0),
            side * np.inf,
        ).verdict(model)  # fmt: skip
        assert Decimal(verdict.lower) <= truth <= Decimal(verdict.upper)
        assert min(verdict.upper - float(truth), float(truth) - verdict.lower) < 1e-8


@pytest.mark.usefixtures("summing")
def test_claimed_zeros_need_a_proof():
    """A zero that follows from the tables is found, wherever it was inferred from."""
    proven = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scopes = [(i, j) for i in range(5) for j in range(i)]
        tables = [np.where(rng.random((3, 3)) < 0.45, -np.inf, rng.normal()) for _ in scopes]
        model = FactorGraph([3] * 5, zip(scopes, tables, strict=True))
        result = mini_bucket(model, MiniBucket(2, iterations=10, order=Order.MIN_FILL))
        proven += bool(np.isneginf(result.bound.evidence.shifts).any())
        assert Decimal(result.log_z) >= precise_log_z(model)
    assert proven > 5


def test_large_evidence_lets_its_tables_go(monkeypatch):
    monkeypatch.setattr(cliques_module, "_HELD", 0)
    model = cut_model()
    evidence = mini_bucket(model, MiniBucket(3, iterations=5)).bound.evidence
    assert evidence.shifts is None
    assert np.isfinite(evidence.verdict(model).upper)
    with pytest.raises(RefutedError, match="another model"):
        evidence.verdict(ising_grid(2, seed=0))


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_numbers_beyond_float64_say_nothing():
    model = FactorGraph([2, 2], [((0, 1), np.full((2, 2), -1.5e308)), ((0,), [-1.5e308] * 2)])
    for result in (mini_bucket(model, MiniBucket(3)), tree_reweighted(model)):
        assert result.log_z == np.inf


@pytest.mark.parametrize("number", [1.5e308, -1.5e308, 6e307])
def test_parts_that_overflow_when_they_are_added_say_nothing(number):
    """Each is finite, their sum is not: no error but a verdict without ends."""
    models = [
        FactorGraph([2] * 4, [((v,), [number] * 2) for v in range(4)]),
        FactorGraph([2] * 4, [((), number)] * 4),
    ]
    for model in models:
        evidence = bucket_tree(model, np.arange(4))
        assert evidence.verdict(model)[:2] == (-np.inf, np.inf)


def grid_edges(side: int) -> np.ndarray:
    model = ising_grid(side, seed=0)
    return np.unique(
        model.scope_vars[np.repeat(model.arities == 2, model.arities)].reshape(-1, 2), axis=0
    )


def test_uniform_forest_is_bounded_from_below():
    """The complete graph has 2/n everywhere, a cycle (n - 1)/n, a tree 1."""
    for n in (5, 100):
        complete = np.stack(np.triu_indices(n, 1), axis=1)
        least = uniform_forest(complete)
        assert (least <= 2.0 / n).all()
        assert least == pytest.approx(2.0 / n, rel=1e-11)
    ring = np.stack([np.arange(1000), np.roll(np.arange(1000), -1)], axis=1)
    assert (uniform_forest(ring) <= 0.999).all()
    assert uniform_forest(ring) == pytest.approx(0.999, rel=1e-9)
    assert (uniform_forest(ring[:-1]) == 1.0).all()
    assert uniform_forest(grid_edges(12)).sum() == pytest.approx(143, abs=1e-8)


def test_components_are_those_of_a_search():
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(1, 60))
        u, v = rng.integers(0, n, size=(2, int(rng.integers(0, 70))))
        expected = np.arange(n)
        for _ in range(n):
            for a, b in zip(u, v, strict=True):
                expected[[a, b]] = min(expected[a], expected[b])
        assert (components(n, u, v) == expected).all()


def test_spoiled_forests_are_refuted():
    edges = np.array([[0, 1], [0, 2], [1, 2], [2, 3]])
    trees = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]], dtype=bool)
    rho = np.array([0.66, 0.66, 0.66, 1.0])
    Forests(edges, trees).check(rho, np.ones(1))
    Forests(edges, None).check(rho, np.ones(1))
    mixed = Forests(edges, None)
    mixed.add(trees[0])
    mixed.check(np.array([0.83, 0.83, 0.33, 1.0]), np.array([0.5, 0.5]))
    for start, wrong, weights in (
        (trees, rho + 0.01, [1.0]),
        (None, np.array([0.67, 0.66, 0.66, 1.0]), [1.0]),
        (None, np.array([1.0, 0.66, 0.66, 1.0]), [1.0]),
        (None, rho, [1.1]),
        (None, rho, [0.5, 0.5]),
        (np.ones((1, 4), dtype=bool), rho, [1.0]),
        (None, 0.0 * rho, [1.0]),
    ):
        with pytest.raises(RefutedError):
            Forests(edges, start).check(wrong, np.array(weights))
    looped = Forests(edges, None)
    looped.add(np.ones(4, dtype=bool))
    with pytest.raises(RefutedError, match="cycle"):
        looped.check(rho, np.array([0.5, 0.5]))


def test_spoiled_edges_are_refuted():
    model = ising_grid(3, coupling=(-2, 2), seed=0)
    sound = tree_reweighted(model, TreeReweighted(max_iterations=30, tol=0.0)).bound.evidence
    assert sound.weights.size > 5
    for change in (
        {"rho": np.minimum(1.0, 1.2 * sound.rho)},
        {"rho": (1.0 + 1e-6) * sound.rho},
        {"rho": np.ones_like(sound.rho)},
        {"weights": 1.01 * sound.weights},
        {"into_first": sound.into_first[:-1]},
        {"into_second": np.where(np.arange(sound.into_second.size) == 2, np.nan, 0.0)},
        {"forests": Forests(sound.forests.edges[::-1].copy(), None)},
    ):
        with pytest.raises(RefutedError):
            replace(sound, **change).verdict(model)
    free = replace(sound, into_first=np.zeros_like(sound.into_first))
    assert Decimal(free.verdict(model).upper) >= precise_log_z(model)


def test_any_messages_prove_something_true():
    """Where both edges of a vertex would rather sum it out first only one of them may."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        factors = [((v, v + 1), 0.1 * rng.normal(size=(3, 3))) for v in range(2)]
        model = FactorGraph([3] * 3, [*factors, ((1,), rng.normal(size=3))])
        sound = tree_reweighted(model, TreeReweighted(max_iterations=2, tol=0.0)).bound.evidence
        middle, none = 2.0 * rng.normal(size=3), np.zeros(3)
        one, two = np.concatenate([none, middle]), np.concatenate([middle, none])
        found = replace(sound, into_first=one, into_second=two).verdict(model)
        assert Decimal(found.lower) <= precise_log_z(model) <= Decimal(found.upper)


def test_pairs_that_cancel_are_true_to_the_last_digit():
    """Trees, where the bound has nothing to spare, of tables near 1e9 that sum to some near 1."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        factors = []
        for v in range(1, 6):
            scope = (int(rng.integers(v)), v)
            one, two = 1e9 * rng.normal(size=(2, 3, 3))
            rest = rng.normal(size=(3, 3)) - (one + two)
            factors += [(scope, one), (scope[::-1], two.T), (scope, rest)]
        model = FactorGraph([3] * 6, factors)
        result = tree_reweighted(model, TreeReweighted(max_iterations=5, tol=0.0))
        assert Decimal(result.log_z) >= precise_log_z(model)
        assert result.rounding < 1e-3


def test_many_vertices_start_from_explicit_trees():
    model = ising_grid(40, coupling=(-1, 1), seed=0)
    result = tree_reweighted(model, TreeReweighted(max_iterations=12, tol=0.0))
    assert result.bound.evidence.weights.size > 1
    assert np.isfinite(result.log_z)
    assert result.rounding < 1e-8
