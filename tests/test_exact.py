"""Exact elimination against enumeration, transfer matrices, closed forms and UAI references."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tightz.bounds import Side
from tightz.elimination.exact import exact, plan
from tightz.elimination.exact.planning import build_plan
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.schedule import (
    BACKWARD,
    FORWARD,
    MERGE,
    Arena,
    checkpointed_steps,
)
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.elimination.order import choose_order
from tightz.errors import ParameterError, ResourceError
from tightz.models.builders import ising, ising_grid, rbm
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.memory import format_bytes, parse_memory


@st.composite
def models(draw, max_variables=6):
    """Any cardinalities and arities, zeros, constants, evidence, couplings up to 1e6."""
    n = draw(st.integers(0, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 5, size=n)
    strength = draw(st.sampled_from([0.1, 3.0, 100.0, 3000.0, 1e6]))
    zeros = draw(st.sampled_from([0.0, 0.1, 0.4]))
    factors = []
    for _ in range(draw(st.integers(0, 9))):
        scope = rng.permutation(n)[: rng.integers(0, 5)].tolist()
        table = strength * rng.normal(size=[cards[v] for v in scope])
        factors.append((scope, np.where(rng.random(table.shape) < zeros, -np.inf, table)))
    seen = rng.permutation(n)[: rng.integers(0, 3)].tolist() if draw(st.booleans()) else []
    evidence = {v: int(rng.integers(cards[v])) for v in seen}
    return FactorGraph(cards, factors, evidence=evidence)


def assert_agrees(result, log_z, marginals):
    if log_z == -np.inf:
        assert result.log_z == -np.inf
        return
    size = max(1.0, abs(log_z))
    assert result.log_z == pytest.approx(log_z, rel=0, abs=1e-10 * size)
    # Rounding of log weights of this size is all that two exact methods may differ by.
    slack = 1e-10 + 1e-14 * size
    for found, expected in zip(result.marginals, marginals, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=slack)


@given(models())
def test_agrees_with_enumeration(model):
    expected = naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)
    assert_agrees(exact(model), *expected)


@given(models(max_variables=5))
def test_factor_and_pair_marginals_agree_with_enumeration(model):
    result = exact(model)
    if result.log_z == -np.inf:
        return
    slack = 1e-10 + 1e-13 * max(1.0, abs(result.log_z))
    factors = list(model.factors)
    for f, (scope, _) in enumerate(factors):
        expected = naive.joint_marginal(model.cardinalities, factors, scope, model.evidence)
        np.testing.assert_allclose(result.factor_marginal(f), expected, rtol=0, atol=slack)
        for i in scope:
            for j in scope:
                if i != j:
                    pair = naive.joint_marginal(
                        model.cardinalities, factors, (i, j), model.evidence
                    )
                    np.testing.assert_allclose(
                        result.pair_marginal(i, j).table, pair, rtol=0, atol=slack
                    )


@given(models(max_variables=6), st.integers(0, 2**32 - 1), st.sampled_from([(2,), (3,), (2, 2)]))
def test_any_order_and_recomputation_agree(model, seed, cuts):
    reduced = model.condition()
    order = np.random.default_rng(seed).permutation(reduced.n_variables)
    chosen = build_plan(reduced, order, "random")
    log_z, marginals = naive.enumerate_model(reduced.cardinalities, list(reduced.factors))
    for steps in (
        chosen.log_z_schedule(),
        list(checkpointed_steps(chosen.buckets, chosen.sizes(), ())),
        list(checkpointed_steps(chosen.buckets, chosen.sizes(), cuts)),
    ):
        run = Elimination(reduced, chosen)
        run.run(steps)
        if any(s.kind == BACKWARD for s in steps):
            assert_agrees(run, log_z, marginals)
        elif log_z == -np.inf:
            assert run.log_z == log_z
        else:
            assert run.log_z == pytest.approx(log_z, rel=1e-10, abs=1e-10)


def grid_arrays(model, rows, cols):
    """(horizontal, vertical, fields) of `ising_grid`: fields first, then edges by direction."""
    n = rows * cols
    fields = model.log_tables[: 2 * n : 2].reshape(rows, cols)
    edges = model.log_tables[2 * n :].reshape(-1, 4)[:, 0]
    across = rows * (cols - 1)
    return edges[:across].reshape(rows, cols - 1), edges[across:].reshape(rows - 1, cols), fields


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 9), (9, 1), (3, 4), (4, 3)])
def test_transfer_matrix_twin_agrees_with_enumeration(rows, cols):
    model = ising_grid(rows, cols, coupling=(-2, 2), seed=3)
    expected, _ = naive.enumerate_model(model.cardinalities, list(model.factors))
    found = naive.transfer_matrix_log_z(rows, cols, *grid_arrays(model, rows, cols))
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("coupling", [0.5, 10.0, 40.0])
@pytest.mark.parametrize(("rows", "cols"), [(12, 12), (18, 18), (5, 40)])
def test_grids_agree_with_transfer_matrix(rows, cols, coupling):
    # 40 leaves float64's range inside a row; the transposed strip keeps the twin's row short.
    if coupling == 40.0:
        rows, cols = 40, 4
    elif cols > rows:
        rows, cols = cols, rows
    model = ising_grid(rows, cols, coupling=(-coupling, coupling), seed=rows)
    expected = naive.transfer_matrix_log_z(rows, cols, *grid_arrays(model, rows, cols))
    assert exact(model, marginals=False).log_z == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("coupling", [1.0, 10.0, 300.0])
def test_grid_marginals_are_ratios_of_partition_functions(coupling):
    model = ising_grid(14, coupling=(-coupling, coupling), seed=1)
    result = exact(model)
    for v in (0, 13, 90, 101, 195):
        with_v = exact(model.with_evidence({v: 0}), marginals=False).log_z
        assert result.marginals[v][0] == pytest.approx(math.exp(with_v - result.log_z), abs=1e-9)
    both = exact(model.with_evidence({90: 1, 104: 0}), marginals=False).log_z
    pair = result.pair_marginal(90, 104)
    assert pair[1, 0] == pytest.approx(math.exp(both - result.log_z), abs=1e-9)
    assert result.pair_marginal(104, 90)[0, 1] == pair[1, 0]


@pytest.mark.parametrize("coupling", [1.0, 400.0])
def test_large_tables_are_split_among_threads(coupling):
    """Above 2^18 entries several ranges run; a torus also has messages without leading axes."""
    model = ising_grid(9, 10, coupling=(-coupling, coupling), seed=2, periodic=True)
    result = exact(model)
    assert result.width >= 16
    for v in (0, 44, 89):
        with_v = exact(model.with_evidence({v: 1}), marginals=False).log_z
        assert result.marginals[v][1] == pytest.approx(math.exp(with_v - result.log_z), abs=1e-9)


def test_states_far_below_a_table_s_maximum_survive():
    """A message spans 3000 nats and the next factor favours its smallest entry."""
    for span in (500.0, 1500.0, 3000.0, 1e6):
        factors = [((0, 1), [[0.0, -span], [0.0, -span]]), ((1,), [-2 * span, 0.0])]
        result = exact(FactorGraph([2, 2], factors))
        assert result.log_z == pytest.approx(-span + math.log(2), rel=1e-15)
        np.testing.assert_allclose(result.marginals[1], [0.0, 1.0], atol=1e-200)


@pytest.mark.parametrize("coupling", [1.5, 1e3, 1e6])
def test_long_chain_has_its_closed_form(coupling):
    n = 400
    model = ising({(i, i + 1): coupling for i in range(n - 1)}, name="chain")
    expected = n * math.log(2) + (n - 1) * (
        coupling + math.log1p(math.exp(-2 * coupling)) - math.log(2)
    )
    result = exact(model)
    assert result.log_z == pytest.approx(expected, rel=1e-14)
    np.testing.assert_allclose(np.array(result.marginals), 0.5, atol=1e-12)


def test_log_z_of_1e5_does_not_overflow():
    model = ising_grid(12, coupling=(400.0, 400.0), field=(0.0, 0.0), seed=0)
    result = exact(model)
    assert result.log_z == pytest.approx(400.0 * 264 + math.log(2), rel=1e-14)
    assert result.log_z > 1e5
    np.testing.assert_allclose(np.array(result.marginals), 0.5, atol=1e-10)


@pytest.mark.parametrize(("visible", "hidden", "scale"), [(30, 6, 1.0), (200, 9, 1.0), (50, 8, 90)])
def test_rbm_with_a_small_layer(visible, hidden, scale):
    rng = np.random.default_rng(visible)
    w = scale * rng.normal(size=(visible, hidden))
    b, c = rng.normal(size=visible), rng.normal(size=hidden)
    model = rbm(w, b, c)
    with np.errstate(over="ignore"):
        log_z, p_visible, p_hidden = naive.rbm_by_hidden_states(w, b, c)
    result = exact(model)
    assert result.width <= hidden
    assert result.log_z == pytest.approx(log_z, rel=1e-12)
    found = np.array(result.marginals)[:, 1]
    np.testing.assert_allclose(found, np.concatenate([p_visible, p_hidden]), atol=1e-9)
    # For log Z alone the visible units' messages are multiplied as they come.
    steps = result.plan.log_z_schedule()
    assert sum(s.kind == MERGE for s in steps) > visible / 2
    assert result.plan.log_z_bytes < result.plan.marginal_bytes / 4
    assert exact(model, marginals=False).log_z == pytest.approx(log_z, rel=1e-12)


def test_empty_models_constants_and_contradictions():
    assert exact(FactorGraph([])).log_z == 0.0
    assert exact(FactorGraph([])).marginals == []
    assert exact(FactorGraph([], [((), 2.5)])).log_z == 2.5
    free = exact(FactorGraph([3, 1, 2]))
    assert free.log_z == pytest.approx(math.log(6))
    np.testing.assert_allclose(free.marginals[0], [1 / 3] * 3)
    np.testing.assert_array_equal(free.marginals[1], [1.0])
    seen = exact(FactorGraph([2, 3], [((0, 1), np.arange(6.0))], evidence={0: 1, 1: 2}))
    assert seen.log_z == 5.0
    np.testing.assert_array_equal(seen.marginals[1], [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(seen.factor_marginal(0), [[0, 0, 0], [0, 0, 1.0]])
    for zero in ([((0,), [-np.inf] * 2)], [((), -np.inf)], [((0, 1), np.full((2, 2), -np.inf))]):
        nothing = exact(FactorGraph([2, 2], zero))
        assert nothing.log_z == -np.inf
        assert np.isnan(nothing.marginals[0]).all()


def test_disconnected_parts_multiply():
    left = ising_grid(3, seed=1)
    right = ising_grid(4, seed=2)
    factors = [*left.factors, *((tuple(v + 9 for v in s), t) for s, t in right.factors)]
    both = exact(FactorGraph([2] * 25, factors))
    assert both.log_z == pytest.approx(exact(left).log_z + exact(right).log_z, abs=1e-12)
    for found, expected in zip(
        both.marginals, exact(left).marginals + exact(right).marginals, strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize("coupling", [2.0, 200.0])
def test_little_memory_recomputes_messages(coupling):
    model = ising_grid(12, coupling=(-coupling, coupling), seed=5)
    sweep = build_plan(model, np.arange(144), "row by row")
    full = exact(model, plan=sweep)
    allowed = full.plan.marginal_bytes // 2
    steps = full.plan.marginal_schedule(allowed)
    assert steps is not None
    assert full.plan.peak_bytes(steps) <= allowed
    assert sum(s.kind == FORWARD for s in steps) > len(sweep.buckets)
    small = exact(model, max_memory=allowed, plan=sweep)
    assert small.sliced == ()
    assert small.log_z == full.log_z
    np.testing.assert_allclose(np.array(small.marginals), np.array(full.marginals), atol=1e-11)


@pytest.mark.parametrize("marginals", [True, False])
def test_less_memory_slices_variables(marginals):
    model = ising_grid(11, coupling=(-2, 2), seed=5).with_evidence({17: 1})
    full = exact(model)
    sliced = exact(model, max_memory=full.plan.log_z_bytes // 2, marginals=marginals)
    assert sliced.sliced
    assert 17 not in sliced.sliced
    assert sliced.plan.log_z_bytes <= full.plan.log_z_bytes // 2
    assert sliced.log_z == pytest.approx(full.log_z, abs=1e-11)
    if marginals:
        np.testing.assert_allclose(np.array(sliced.marginals), np.array(full.marginals), atol=1e-11)
        for f in range(model.n_factors):
            np.testing.assert_allclose(
                sliced.factor_marginal(f), full.factor_marginal(f), atol=1e-11
            )


def test_a_plan_of_fewer_variables_counts_constants_once():
    """Fixing a variable turns its own table into a constant, which belongs to no bucket."""
    model = ising_grid(5, coupling=(-2, 2), seed=5)
    fewer = model.with_evidence({12: 1}).condition()
    assert (fewer.arities == 0).any()
    known = build_plan(fewer, plan(model).skeleton, "the larger model's")
    found = exact(fewer, marginals=False, plan=known)
    assert found.log_z == pytest.approx(exact(fewer, marginals=False).log_z, abs=1e-11)


def test_slices_without_weight_count_as_nothing():
    """Every table forbids unequal neighbours: half the slices are empty."""
    equal = np.where(np.eye(2) > 0, 0.0, -np.inf)
    grid = ising_grid(9, seed=0)
    factors = [(s, t if len(s) == 1 else equal) for s, t in grid.factors]
    model = FactorGraph(grid.cardinalities, factors)
    up = math.fsum(t[0] for s, t in factors if len(s) == 1)
    expected = np.logaddexp(up, -up)
    found = plan(model)
    result = exact(model, max_memory=found.log_z_bytes // 2, plan=found)
    assert len(result.sliced) >= 1
    assert result.log_z == pytest.approx(expected, abs=1e-12)
    p_up = math.exp(up - expected)
    np.testing.assert_allclose(np.array(result.marginals)[:, 0], p_up, atol=1e-12)


def test_too_wide_is_refused_with_figures():
    rng = np.random.default_rng(0)
    dense = rbm(rng.normal(size=(784, 500)), rng.normal(size=784), rng.normal(size=500))
    with pytest.raises(ResourceError, match=r"500 variables .* 10\^151 B .*tz\.log_partition"):
        exact(dense)
    with pytest.raises(ResourceError, match="500 variables"):
        plan(dense)
    with pytest.raises(ResourceError, match=r"width 3\d, .*max_memory allows 1 MB.*tz\.mean_field"):
        exact(ising_grid(32, seed=0), max_memory="1MB", marginals=False)


def test_plan_states_cost_before_running():
    model = ising_grid(20, coupling=(-10, 10), seed=0)
    found = plan(model)
    assert found.width == 20
    assert sorted(found.order) == list(range(400))
    assert found.fits("100MB")
    assert not found.fits(found.log_z_bytes - 1)
    assert found.fits(found.log_z_bytes)
    assert found.fits(found.marginal_bytes, marginals=True)
    assert found.fits(found.marginal_bytes - 1, marginals=True)
    assert not found.fits(found.log_z_bytes, marginals=True)
    assert "\n" not in repr(found)
    small = rbm(np.ones((784, 15)), np.zeros(784), np.zeros(15))
    assert plan(small).width == 15


def test_result_says_what_it_is():
    model = ising_grid(4, seed=0)
    result = exact(model, marginals=False)
    assert "\n" not in repr(result)
    assert result.bound.side is Side.BOTH
    assert result.bound.log_z == result.log_z
    assert result.provenance["model"] == model.digest
    assert sorted(result.provenance["order"]) == list(range(16))
    assert result.seconds > 0
    np.testing.assert_array_equal(result.marginals[3], exact(model).marginals[3])
    assert exact(model).log_z == exact(model).log_z


def test_bad_arguments_are_refused():
    model = ising_grid(3, seed=0)
    result = exact(model)
    with pytest.raises(ParameterError, match="21 factors"):
        result.factor_marginal(21)
    with pytest.raises(ParameterError, match="8GB"):
        exact(model, max_memory="lots")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("500MB", 5 * 10**8),
        ("1.5 GiB", 3 * 2**29),
        ("12", 12),
        (7, 7),
        ("2kb", 2000),
        (np.int64(5), 5),
    ],
)
def test_memory_is_parsed(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "8 XB", 0, -5, 1.5, True, None, "0MB", "1e3"])
def test_bad_memory_is_refused(text):
    with pytest.raises(ParameterError, match="memory is"):
        parse_memory(text)


def test_bytes_are_formatted():
    assert format_bytes(12) == "12 B"
    assert format_bytes(2.5e9) == "2.5 GB"
    assert format_bytes(999.9e6) == "1 GB"
    assert format_bytes(8 * 2.0**500) == "10^151 B"


def test_degeneracy_of_known_graphs():
    def of(model):
        return interaction_graph(scopes_of(model)).degeneracy()

    assert of(rbm(np.ones((9, 4)), np.zeros(9), np.zeros(4))) == 4
    assert of(ising_grid(6, seed=0)) == 2
    assert of(ising_grid(6, seed=0, periodic=True)) == 4
    assert of(ising({(i, i + 1): 1.0 for i in range(9)})) == 1
    assert of(ising(np.ones((7, 7)) - np.eye(7))) == 6
    assert of(FactorGraph([2] * 3)) == 0


@given(models(max_variables=6))
def test_chosen_order_costs_what_it_says(model):
    reduced = model.condition()
    choice = choose_order(reduced)
    assert sorted(choice.order) == list(range(reduced.n_variables))
    chosen = build_plan(reduced, choice.order, choice.heuristic)
    assert sorted(v for b in chosen.buckets for v in b.summed) == list(range(reduced.n_variables))
    # Variables that are finished together are summed out together: never more than by the order.
    entries = sum(chosen.entries(bucket.axes) for bucket in chosen.buckets)
    assert np.log2(max(entries, 1e-300)) <= max(choice.log2_cost, np.log2(1e-300)) + 1e-9
    assert interaction_graph(scopes_of(reduced)).degeneracy() <= chosen.width


def test_large_sparse_models_take_the_set_path():
    rng = np.random.default_rng(0)
    n = 7000
    couplings = {
        (int(rng.integers(max(0, i - 50), i)), i): float(rng.normal()) for i in range(1, n)
    }
    model = ising(couplings)
    result = exact(model, marginals=False, plan=plan(model))
    assert result.width == 1
    expected = n * math.log(2) + sum(math.log(math.cosh(j)) for j in couplings.values())
    assert result.log_z == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60), st.integers(0, 99))
def test_arena_never_overlaps(requests, seed):
    rng = np.random.default_rng(seed)
    arena = Arena(16)
    live: list[tuple[int, int]] = []
    for take, size in requests:
        if take or not live:
            start = arena.take(size)
            assert start >= 16
            assert start + size <= arena.peak
            assert all(start + size <= s or s + k <= start for s, k in live)
            live.append((start, size))
        else:
            arena.give_back(*live.pop(int(rng.integers(len(live)))))
    for block in live:
        arena.give_back(*block)
    whole = arena.peak - 16
    if whole:
        assert arena.take(whole) == 16  # everything given back is one hole again


DATA = os.environ.get("TIGHTZ_DATA")


def uai_rows():
    index = Path(DATA or "") / "uai2014" / "INDEX.tsv"
    if not DATA or not index.exists():
        return []
    with index.open() as lines:
        return [r for r in csv.DictReader(lines, delimiter="\t") if r["PR_log10_exact_checked"]]


@pytest.mark.skipif(not uai_rows(), reason="TIGHTZ_DATA does not hold uai2014/INDEX.tsv")
def test_uai_references():
    """Every re-verified model up to 1.5e8 operations: log10 Z to 1e-8, MAR to its six digits."""
    uai = pytest.importorskip("tightz.models.formats.uai")
    results = pytest.importorskip("tightz.models.formats.uai_results")
    checked = 0
    for row in uai_rows():
        path = Path(DATA) / "uai2014" / row["file"]
        model = uai.read_uai(path, evidence=f"{path}.evid")
        if plan(model).flops > 1.5e8:
            continue
        result = exact(model)
        expected = float(row["PR_log10_exact_checked"])
        assert result.log_z / math.log(10) == pytest.approx(expected, abs=1e-8), row["file"]
        # Files print six significant digits of numbers up to 1: half a unit is 5e-7.
        for found, printed in zip(result.marginals, results.read_mar(f"{path}.MAR"), strict=True):
            np.testing.assert_allclose(found, printed, rtol=0, atol=6e-7, err_msg=row["file"])
        checked += 1
    assert checked >= 20


@pytest.mark.skipif(not DATA, reason="TIGHTZ_DATA is unset")
def test_tiny_rbm_reference():
    path = Path(DATA) / "rbm" / "rbm_mnist_tiny_15.npz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    with np.load(path) as arrays:
        model = rbm(arrays["W"], arrays["visible_bias"], arrays["hidden_bias"])
    assert exact(model, marginals=False).log_z == pytest.approx(216.0615441, abs=1e-6)
