"""Planar spin models by Pfaffians: against enumeration, elimination, Kac-Ward and Kaufman."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.precise import precise_log_z
from tightz.elimination.exact import ways
from tightz.elimination.planar import PlanarPlan, Refused, planar_plan
from tightz.elimination.planar import plan as planning
from tightz.elimination.planar.balls import ball_sum
from tightz.elimination.planar.embedding import genus, planar_embedding, signs
from tightz.elimination.planar.pfaffian import Pfaffian, Problem, pfaffian, smallest_singular
from tightz.elimination.planar.regions import dissect
from tightz.elimination.planar.spins import spin_graph
from tightz.errors import UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.workspace.working import Working

SPIN = np.array([1.0, -1.0])


def model_of(n, pairs, couplings, fields=()):
    """log p~ = sum J s s + sum h s; `fields` lists (spin, h)."""
    pair = np.outer(SPIN, SPIN)
    factors = [((int(a), int(b)), j * pair) for (a, b), j in zip(pairs, couplings, strict=True)]
    factors += [((int(i),), h * SPIN) for i, h in fields]
    return tz.FactorGraph([2] * n, factors)


def drawing(rng, n, keep=1.0):
    """Points and the edges of their Delaunay triangulation, some left out."""
    from scipy.spatial import Delaunay

    points = rng.random((n, 2))
    edges = {
        tuple(sorted(p))
        for t in Delaunay(points).simplices.tolist()
        for p in itertools.combinations(t, 2)
    }
    return points, [e for e in sorted(edges) if rng.random() < keep]


def planned(model) -> PlanarPlan:
    found = planar_plan(model)
    assert isinstance(found, PlanarPlan), found
    return found


def check(model, *, exactly=True, marginals=True):
    """The sum against enumeration in decimal arithmetic, no tolerance; marginals to 1e-8."""
    found = planned(model).solve()
    assert found.rounding < 1e-6
    if exactly:
        assert abs(Decimal(found.log_z) - precise_log_z(model)) <= Decimal(found.rounding)
    if marginals:
        _, wanted = naive.enumerate_model(model.cardinalities, model.factors)
        for mine, other in zip(found.marginals, wanted, strict=True):
            if not np.isnan(mine).any():
                np.testing.assert_allclose(mine, other, atol=1e-8)
        check_pairs(model, found)
    return found


def check_pairs(model, found):
    """Factor marginals against enumeration."""
    states = naive.all_states(model.cardinalities)
    logs = naive.log_weights(model.cardinalities, model.factors, states)
    p = np.exp(logs - naive.log_sum_exp(logs))
    for f, (scope, table) in enumerate(model.factors):
        wanted = np.zeros(table.shape)
        np.add.at(wanted, tuple(states[:, v] for v in scope), p)
        mine = found.factor_marginals[model.table_ptr[f] : model.table_ptr[f + 1]]
        if not np.isnan(mine).any():
            np.testing.assert_allclose(mine, wanted.ravel(), atol=1e-8)


# Against enumeration --------------------------------------------------------------------------


@st.composite
def planar_models(draw):
    """Triangulations less some edges, trees, cycles, wheels, several pieces, spins alone."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["drawing", "tree", "cycle", "wheel", "pieces", "ladder"]))
    n = draw(st.integers(4, 9))
    if kind == "drawing":
        pairs = drawing(rng, n, draw(st.sampled_from([1.0, 0.7, 0.4])))[1]
    elif kind == "tree":
        pairs = [(int(rng.integers(v)), v) for v in range(1, n)]
    elif kind == "cycle":
        pairs = [(v, (v + 1) % n) for v in range(n)]
    elif kind == "wheel":
        pairs = [(0, v) for v in range(1, n)] + [(v, v % (n - 1) + 1) for v in range(1, n)]
    elif kind == "pieces":
        pairs = [(0, 1), (1, 2), (0, 2)] + [(v, v + 1) for v in range(3, n - 1)]
    else:
        pairs = [(v, v + 1) for v in range(n - 1)] + [(v, v + 2) for v in range(n - 2)]
    scale = draw(st.sampled_from([0.0, 1e-12, 0.3, 1.0, 3.0, 10.0, 50.0]))
    couplings = scale * rng.normal(size=len(pairs))
    couplings[rng.random(len(pairs)) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    if draw(st.booleans()):
        couplings = scale * np.sign(couplings)
    return model_of(n + draw(st.integers(0, 1)), pairs, couplings)


@settings(max_examples=120, deadline=None)
@given(planar_models())
def test_any_planar_model_equals_enumeration(model):
    check(model)


@settings(max_examples=60, deadline=None)
@given(planar_models())
def test_the_rounding_of_float64_holds_also_where_it_is_large(model):
    plan = planned(model)
    found = planning._float_sum(plan, False)
    prefactor, error = plan.graph.log_prefactor()
    off = abs(Decimal(prefactor) + Decimal(found.log) - precise_log_z(model))
    assert found.rounding == math.inf or off <= Decimal(error + found.rounding)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_tiny_models(n):
    check(model_of(n, [], []))
    if n >= 2:
        check(model_of(n, [(0, 1)], [-0.7]))


def test_k4_and_repeated_factors():
    pairs = list(itertools.combinations(range(4), 2))
    check(model_of(4, pairs * 2, np.linspace(-2.0, 2.0, 12)))


def test_tables_of_any_constant_and_a_constant_factor():
    factors = [((0, 1), [[3.0, 1.0], [1.0, 3.0]]), ((1, 2), [[-9.0, 2.0], [2.0, -9.0]]), ((), 5.0)]
    model = tz.FactorGraph([2, 2, 2], factors)
    check(model, marginals=False)
    assert planned(model).solve().factor_marginals[-1] == 1.0


def test_fields_that_are_rounding_errors_count_as_errors():
    table = np.array([[0.1, 0.3], [0.3, 0.1 + 2e-13]])
    model = tz.FactorGraph([2, 2], [((0, 1), table)])
    found = check(model)
    assert found.rounding >= 1e-13


def test_a_vertex_of_many_edges_is_cut_into_a_chain():
    n = 14
    pairs = [(0, v) for v in range(1, n)] + [(v, v + 1) for v in range(1, n - 1)]
    rng = np.random.default_rng(4)
    model = model_of(n, pairs, rng.normal(size=len(pairs)))
    assert planned(model).embedding.n > n
    check(model, exactly=False)
    assert planned(model).solve().log_z == pytest.approx(tz.exact(model).log_z, abs=1e-11)


# Fields ---------------------------------------------------------------------------------------


def test_one_field_and_fields_on_one_face():
    rng = np.random.default_rng(0)
    n = 9
    pairs = [(v, (v + 1) % 8) for v in range(8)] + [(8, v) for v in range(0, 8, 2)]
    couplings = rng.normal(size=len(pairs))
    for fields in ([(3, 0.7)], [(8, -20.0)], [(v, float(rng.normal())) for v in range(8)]):
        model = model_of(n, pairs, couplings, fields)
        found = check(model)
        assert planned(model).graph.ghost
        known = [not np.isnan(p).any() for p in found.marginals]
        assert [known[i] for i, _ in fields] == [True] * len(fields)
        assert not all(known)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 5.0, 40.0]))
def test_fields_around_a_ring_with_spokes(seed, scale):
    """Fields on the outer face of a wheel, some zero, some below what counts."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 9))
    pairs = [(0, v) for v in range(1, n)] + [(v, v % (n - 1) + 1) for v in range(1, n)]
    fields = scale * rng.normal(size=n) * rng.choice([0.0, 1e-14, 1.0], size=n)
    model = model_of(
        n, pairs, scale * rng.normal(size=len(pairs)), [(v, fields[v]) for v in range(1, n)]
    )
    check(model)


def test_fields_on_a_tree_are_planar_and_all_marginals_known():
    model = model_of(5, [(0, 1), (1, 2), (1, 3), (3, 4)], [1.0, -2.0, 0.5, 3.0],
                     [(v, 0.3 * v - 0.5) for v in range(5)])  # fmt: skip
    found = check(model)
    assert not np.isnan(found.factor_marginals).any()


def test_a_piece_without_fields_has_even_marginals():
    model = model_of(4, [(0, 1), (2, 3)], [1.0, 1.0], [(0, 0.4), (1, 0.1)])
    assert not np.isnan(np.concatenate(check(model).marginals)).any()


# Larger models --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_grids_equal_elimination(scale):
    model = tz.ising_grid(12, coupling=(-scale, scale), field=(0, 0), seed=3)
    found, wanted = planned(model).solve(), tz.exact(model)
    assert abs(found.log_z - wanted.log_z) <= found.rounding + wanted.bound.rounding
    tables = [(scope, found.factor_marginals[model.table_ptr[f] : model.table_ptr[f + 1]])
              for f, (scope, _) in enumerate(model.factors)]  # fmt: skip
    assert len(tables) == model.n_factors
    assert all(abs(t.sum() - 1.0) < 1e-12 for _, t in tables)


def test_random_planar_graphs_equal_elimination_and_kac_ward():
    rng = np.random.default_rng(5)
    for n, keep in ((60, 1.0), (60, 0.8), (40, 0.5)):
        points, pairs = drawing(rng, n, keep)
        couplings = rng.normal(size=len(pairs))
        model = model_of(n, pairs, couplings)
        found, wanted = planned(model).solve(), tz.exact(model)
        assert abs(found.log_z - wanted.log_z) <= found.rounding + 1e-9
        judge = naive.kac_ward_log_z(points, pairs, couplings)
        assert found.log_z == pytest.approx(judge, abs=1e-7)


@pytest.mark.parametrize(("side", "log_z"), [(32, 940.8742031822), (64, 3785.3529174)])
def test_critical_squares(side, log_z):
    model = tz.ising_grid(side, coupling=(0.44068679, 0.44068679), field=(0, 0))
    found = planned(model).solve(marginals=False)
    assert found.log_z == pytest.approx(log_z, abs=5e-8)
    assert found.rounding < 1e-7


def test_correlations_are_the_slope_of_log_z():
    rng = np.random.default_rng(8)
    _, pairs = drawing(rng, 40)
    couplings = rng.normal(size=len(pairs))
    means = planned(model_of(40, pairs, couplings)).solve().correlations
    for e in (0, 17, 60):
        ends = []
        for step in (1e-5, -1e-5):
            moved = couplings.copy()
            moved[e] += step
            ends.append(planned(model_of(40, pairs, moved)).solve(marginals=False).log_z)
        a, b = pairs[e]
        graph = planned(model_of(40, pairs, couplings)).graph
        at = int(np.flatnonzero((graph.first == a) & (graph.second == b))[0])
        assert means[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)


# Cold and frustrated --------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 3.0, 20.0])
def test_a_spin_glass_equals_elimination(beta):
    rng = np.random.default_rng(1)
    graph = spin_graph(tz.ising_grid(10, coupling=(1, 1), field=(0, 0)))
    pairs = np.stack([graph.first, graph.second], axis=1)
    model = model_of(100, pairs, beta * rng.choice([-1.0, 1.0], size=len(pairs)))
    found, wanted = planned(model).solve(), tz.exact(model)
    assert abs(found.log_z - wanted.log_z) <= found.rounding + wanted.bound.rounding
    if beta > 1.0:
        assert found.bits > 53
        assert planning._float_sum(planned(model), False).rounding > found.rounding


def test_one_frustrated_square_keeps_its_degeneracy():
    model = model_of(4, [(0, 1), (1, 2), (2, 3), (0, 3)], [50.0, 50.0, 50.0, -50.0])
    found = check(model)
    assert found.log_z == pytest.approx(100.0 + math.log(8.0), abs=1e-12)
    np.testing.assert_allclose(found.correlations, [0.5, -0.5, 0.5, 0.5], atol=1e-12)


def test_the_proven_singular_value_is_below_the_true_one():
    rng = np.random.default_rng(2)
    for _ in range(20):
        _, pairs = drawing(rng, 9)
        plan = planned(model_of(9, pairs, 2.0 * rng.normal(size=len(pairs))))
        problem = Problem(plan.embedding, plan.fronts, plan.terms[0][1])
        true = np.linalg.svd(dense(problem), compute_uv=False)[-1]
        proven = smallest_singular(problem, 10.0 * true, 0.0)
        assert true / 1e3 < proven <= true * (1.0 + 1e-9)


def dense(problem):
    """K from its definition."""
    embedding, weight = problem.embedding, problem.weight
    matrix = np.zeros((weight.size, weight.size))
    for v in range(embedding.n):
        halves = embedding.around[embedding.ptr[v] : embedding.ptr[v + 1]]
        for h, k in itertools.combinations(halves.tolist(), 2):
            matrix[h, k], matrix[k, h] = weight[h] * weight[k], -weight[h] * weight[k]
    for e, link in enumerate(problem.links):
        matrix[2 * e, 2 * e + 1] += link
        matrix[2 * e + 1, 2 * e] -= link
    return matrix


def test_the_pfaffian_is_the_root_of_a_dense_determinant():
    rng = np.random.default_rng(6)
    _, pairs = drawing(rng, 30)
    plan = planned(model_of(30, pairs, rng.normal(size=len(pairs))))
    problem = Problem(plan.embedding, plan.fronts, plan.terms[0][1])
    _, log_det = np.linalg.slogdet(dense(problem))
    found = pfaffian(problem)
    assert found.sign == 1
    assert found.log == pytest.approx(0.5 * log_det, abs=1e-10)


# Torus ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (3, 4), (4, 3)])
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 30.0])
def test_a_torus_equals_enumeration(rows, cols, scale):
    for seed in range(2):
        model = tz.ising_grid(
            rows, cols, coupling=(-scale, scale), field=(0, 0), seed=seed, periodic=True
        )
        assert len(planned(model).terms) == 4
        check(model, exactly=rows * cols < 10)
        check(FactorGraph(model.cardinalities, model.factors), exactly=False)  # no layout given


@pytest.mark.parametrize("coupling", [0.3, 0.44068679, 0.5 * math.log1p(math.sqrt(2.0)), 0.8])
def test_a_torus_equals_kaufman(coupling):
    for rows, cols in ((16, 16), (6, 10)):
        model = tz.ising_grid(
            rows, cols, coupling=(coupling, coupling), field=(0, 0), periodic=True
        )
        found = planned(model).solve()
        assert found.bits == 53
        assert found.rounding < 1e-7
        wanted = naive.kaufman_log_z(rows, cols, coupling)
        assert found.log_z == pytest.approx(wanted, abs=found.rounding + 1e-10)
    if coupling == 0.44068679:
        model = tz.ising_grid(16, coupling=(coupling, coupling), field=(0, 0), periodic=True)
        assert planned(model).solve().log_z == pytest.approx(238.6422553, abs=5e-8)


@pytest.mark.parametrize("apart", [1e-14, 1e-13, 1e-3])
def test_pfaffians_that_cancel_have_no_digits(apart):
    """Two terms that differ by less than their errors say nothing about their difference."""
    one, other = (Pfaffian(log, 1, 1e-13, 0.0) for log in (0.0, -apart))
    found = planning._total([(1.0, one, None), (-1.0, other, None)])
    if apart < 1e-3:
        assert found.rounding == math.inf
    else:
        assert abs(found.log - math.log(-math.expm1(-apart))) <= found.rounding < 1e-9


def test_a_cylinder_is_planar():
    model = tz.ising_grid(3, 4, coupling=(-1, 1), field=(0, 0), seed=0, periodic=True)
    kept = [f for f in model.factors if set(np.array(f.scope) // 4) != {0, 2}]
    cylinder = tz.FactorGraph([2] * 12, kept)
    assert len(planned(cylinder).terms) == 1
    check(cylinder, exactly=False)


# Refusals -------------------------------------------------------------------------------------


def refusal(model) -> str:
    found = planar_plan(model)
    assert isinstance(found, Refused)
    return found.reason


def test_refusals_say_why():
    pairs = list(itertools.combinations(range(5), 2))
    k5 = model_of(5, pairs, np.ones(10))
    assert refusal(k5) == "not planar: variables 0, 1, 2, 3, 4 are the corners of a subdivided K5"
    k33 = [(a, b) for a in range(3) for b in range(3, 6)]
    assert "subdivided K3,3" in refusal(model_of(6, k33, np.ones(9)))
    wheel = [(0, v) for v in range(1, 5)] + [(1, 2), (2, 3), (3, 4), (1, 4)]
    fields = model_of(6, [*wheel, (4, 5)], np.ones(9), [(v, 0.1) for v in (0, 1, 3, 4)])
    assert "the field" in refusal(fields)
    assert "without fields it may be" in refusal(fields)
    grid = tz.ising_grid(9, seed=0)
    assert (
        refusal(grid) == "81 spins with fields and 144 edges among them do not lie around one face"
    )
    more = model_of(81, [(0, v) for v in range(2, 81, 2)], np.ones(40))
    dense = tz.FactorGraph([2] * 81, [*grid.factors, *more.factors])
    assert "too many for the plane (a field counts as an edge" in refusal(dense)
    triple = tz.FactorGraph([2] * 3, [((0, 1, 2), np.zeros((2, 2, 2)))])
    assert "factor 0 is a table over 3 variables" in refusal(triple)
    assert "variable 1 has 3 states" in refusal(tz.FactorGraph([2, 3], []))
    zero = tz.FactorGraph([2, 2], [((0,), [0.0, 1.0]), ((0, 1), [[0.0, -np.inf], [0.0, 0.0]])])
    assert "factor 1 has a zero" in refusal(zero)
    seen = tz.FactorGraph([2, 2], [((0, 1), np.zeros((2, 2)))], evidence={0: 1})
    assert "evidence" in refusal(seen)


def test_a_test_of_planarity_that_takes_too_long_is_not_begun():
    _, pairs = drawing(np.random.default_rng(0), 60)
    model = model_of(60, pairs, np.ones(len(pairs)))
    found = planar_plan(model, time_limit=1e-3)
    assert isinstance(found, Refused)
    assert f"testing {len(pairs)} edges for planarity would take about" in found.reason
    lattice = tz.ising_grid(30, coupling=(1, 1), field=(0, 0))
    assert isinstance(planar_plan(lattice, time_limit=1e-3), PlanarPlan)


def test_large_couplings_are_exact():
    check(model_of(3, [(0, 1), (1, 2), (0, 2)], [1e5, 1e5, 1e5]), marginals=False)


def test_a_plan_describes_itself_before_it_runs():
    plan = planned(tz.ising_grid(40, coupling=(1, 1), field=(0, 0)))
    assert "planar, one Pfaffian: 3120 edges" in plan.describe()
    assert 0.0 < plan.seconds < 10.0
    assert 0 < plan.bytes < 1e9


# Parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [9, 30])
def test_a_lattice_is_cut_straight(side):
    graph = spin_graph(tz.ising_grid(side, coupling=(1, 1), field=(0, 0)))
    embedding = planar_embedding(graph)
    regions = dissect(embedding.ptr, embedding.vertex[embedding.around ^ 1])
    half = regions.order[regions.low[regions.left[-1]] : regions.high[regions.left[-1]]]
    inside = np.isin(np.arange(side * side), half)
    assert (inside[graph.first] != inside[graph.second]).sum() <= side + 1


def test_embeddings_found_have_genus_zero():
    rng = np.random.default_rng(7)
    for keep in (1.0, 0.6):
        _, pairs = drawing(rng, 50, keep)
        graph = spin_graph(model_of(50, pairs, np.ones(len(pairs))))
        assert genus(planar_embedding(graph)) == 0


def test_a_wrong_orientation_gives_another_number():
    """Negative control: any one sign of an edge on a cycle flipped is far off."""
    rng = np.random.default_rng(9)
    _, pairs = drawing(rng, 8)
    model = model_of(8, pairs, np.full(len(pairs), 0.8))
    plan = planned(model)
    truth = float(precise_log_z(model))
    right = plan.solve(marginals=False).log_z
    assert right == pytest.approx(truth, abs=1e-10)
    for e in range(len(pairs)):
        wrong = signs(plan.embedding)
        wrong[e] = -wrong[e]
        problem = Problem(plan.embedding, plan.fronts, wrong)
        found = pfaffian(problem).log + plan.graph.log_prefactor()[0]
        assert abs(found - truth) > 1e-3


@pytest.mark.parametrize("fields", [(), (5,)])
def test_the_main_job_has_marginals_also_where_pfaffians_give_none(monkeypatch, fields):
    grid = tz.ising_grid(4, coupling=(-1, 1), field=(0, 0), seed=1)
    model = tz.FactorGraph([2] * 16, [*grid.factors, *(((v,), [0.3, -0.3]) for v in fields)])
    expected = tz.exact(model)
    assert expected.method == "elimination"
    monkeypatch.setattr(ways, "QUICK", -1.0)
    monkeypatch.setattr(ways.ByElimination, "seconds", property(lambda _: 1e9))
    assert tz.exact(model, marginals=False).method == "Pfaffians"
    result = tz.log_partition(model, time_limit=10, seed=0)
    assert "Pfaffian" in result.upper_proof.why
    assert result.lower <= expected.log_z <= result.upper
    for found, truth in zip(result.marginals, expected.marginals, strict=True):
        np.testing.assert_allclose(found, truth, atol=1e-9)


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (3, 4), (4, 3), (3, 5)])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_triangular_lattices_on_a_torus(rows, cols, seed):
    """Six neighbours each, without a layout to tell; an antiferromagnet, and random couplings."""
    coupling = -0.7 if seed is None else tz.Normal(0.0, 1.0)
    model = tz.ising_triangular(rows, cols, coupling=coupling, field=0.0, seed=seed, periodic=True)
    plan = planar_plan(tz.FactorGraph(model.cardinalities, model.factors))
    assert isinstance(plan, PlanarPlan)
    assert len(plan.terms) == 4
    found, truth = plan.solve(), tz.exact(model)
    assert truth.method == "elimination"
    assert abs(found.log_z - truth.log_z) <= found.rounding + truth.rounding
    assert found.rounding < 1e-6
    for f in range(model.n_factors):
        first, last = model.table_ptr[f : f + 2]
        ours = found.factor_marginals[first:last]
        np.testing.assert_allclose(ours, truth.factor_marginal(f).ravel(), atol=1e-9)


# What it takes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        tz.ising_triangular(6, coupling=-5.0, periodic=True),
        tz.ising_triangular(9, coupling=-3.0),
        tz.ising_lattice((8, 8), coupling=tz.PlusMinus(10.0), periodic=True, seed=1),
        tz.ising_lattice((12, 12), coupling=tz.PlusMinus(3.0), seed=1),
        tz.ising_grid(10, coupling=(-8, 8), field=0.0, seed=0, periodic=True),
    ],
    ids=lambda model: model.name,
)
def test_the_bits_that_cancellation_takes_are_predicted(model):
    """The first try succeeds, and half as many bits would have been too few."""
    plan = planned(model)
    assert plan.solve(marginals=False).bits == plan.bits
    assert ball_sum(plan.problems, plan.bits // 3, correlations=False) is None


def test_seconds_are_those_of_the_bits():
    """12 x 12, all triangles frustrated, cold: elimination would have to sum by logs."""
    warm, cold = (tz.ising_triangular(12, coupling=-j, periodic=True) for j in (0.5, 20.0))
    assert planned(warm).bits == 0
    assert planned(cold).seconds > 20.0 * planned(warm).seconds
    assert Working(warm).way.name == "Pfaffians"
    assert Working(cold).way.name == "Pfaffians"
    unfrustrated = tz.ising_triangular(12, coupling=20.0, periodic=True)
    assert planned(unfrustrated).bits == 0


def test_balls_end_when_they_are_told_to():
    plan = planned(tz.ising_triangular(6, coupling=-5.0, periodic=True))
    looks = itertools.count()
    end = lambda: next(looks) > 5  # noqa: E731
    assert ball_sum(plan.problems, plan.bits, correlations=True, stop=end) is None
    assert next(looks) < 40  # terms that are left look once each
    with pytest.raises(UnsupportedModelError, match="more bits take longer"):
        plan.solve(stop=lambda: True)
