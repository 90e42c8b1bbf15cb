"""Passes and adjoints with thresholds so small that every path of them runs on small models."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from tests import hostile
from tightz.elimination.exact import adjoints, chains, passes, planning, tables
from tightz.elimination.exact import run as running
from tightz.elimination.exact.passes import Turn, pass_layout
from tightz.elimination.exact.planning import build_plan
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.schedule import Placed, checkpointed_steps
from tightz.elimination.exact.skeleton import Skeleton
from tightz.elimination.exact.slices import Sliced, run_slices
from tightz.elimination.graph import scopes_of
from tightz.elimination.trees import tree_by_order
from tightz.judge import RefutedError
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph

UNIT = 2.0**-53


def set_sizes(patch, rng):
    """Some of the sizes that decide who does what, as small as they may be."""
    rows = int(rng.choice([4, 8, 32, 256]))
    shared = {
        "MOST_ROWS": rows,
        "MOST_TILE": int(rng.choice([1, 2, 4, 512])),
        "BLOCK_ENTRIES": rows * int(rng.choice([1, 4, 64])),
        "LEAST_TILE": int(rng.choice([1, 1, 1, 4, 8])),
        "GOOD_TILE": int(rng.choice([1, 2, 4, 32])),
    }
    for name, value in shared.items():  # modules import these by name
        for module in (passes, chains, adjoints):
            patch.setattr(module, name, value, raising=module is passes)
    patch.setattr(chains, "PASS_ENTRIES", int(rng.choice([1, 1, 4, 16])))
    patch.setattr(chains, "CHAIN_ROWS", int(rng.choice([4, 32])))
    patch.setattr(running, "MEET", int(rng.choice([1, 1, 16])))
    patch.setattr(running, "PRIVATE", int(rng.choice([1, 1 << 16])))
    patch.setattr(tables, "_PARALLEL_ENTRIES", int(rng.choice([1, 1 << 18])))
    patch.setattr(planning, "LOG2_STATES", float(rng.choice([0.0, 1.0, 3.0, 8.0])))
    patch.setattr(planning, "GROUP_ENTRIES", int(rng.choice([1, 4, 4096])))
    patch.setattr(planning, "TILE_ENTRIES", int(rng.choice([1, 8, 1024])))


def wild(rng):
    """(cards, factors): 1 to 7 states, wide and repeated scopes, constants, zeros, all depths."""
    cards: list[int] = []
    most = int(rng.integers(2, 8))
    for _ in range(int(rng.integers(1, 12))):
        cards.append(int(rng.integers(2 if rng.random() < 0.8 else 1, most + 1)))
        if np.prod(cards) > 5000:
            cards[-1] = 1
    n = len(cards)
    mild, mixed, wide = rng.random() < 0.4, rng.random() < 0.5, int(rng.integers(2, 6))
    kind, scale, depth = 0, 1.0, 0.0
    factors = []
    for k in range(int(rng.integers(1, 2 * n + 4))):
        if not mild and (mixed or k == 0):
            kind = int(rng.integers(0, 5))
            scale, depth = rng.choice(hostile.SCALES), rng.choice(hostile.DEPTHS)
        least = 0 if rng.random() < 0.1 else 1
        scope = rng.permutation(n)[: rng.integers(least, wide + 1)].tolist()
        table = hostile._table(rng, kind, [cards[v] for v in scope], scale, depth)
        table = table + (rng.choice([-300.0, 300.0, 1e3]) if rng.random() < 0.1 else 0.0)
        factors += [(scope, table)] * (2 if rng.random() < 0.1 else 1)
    return cards, factors


def random_plan(model, rng):
    order = rng.permutation(model.n_variables)
    if rng.random() < 0.4 or not scopes_of(model).members.size:
        return build_plan(model, order, "random order")
    tree = tree_by_order(scopes_of(model), model.cardinalities, order)
    found = tree.annealed(int(rng.integers(0, 60)), seed=int(rng.integers(100)))
    return build_plan(model, Skeleton.of(found), "random tree")


def run_within(plan, model, steps):
    """Follow `steps`; the arena never grows beyond the plan, whatever falls back to logs."""
    run = Elimination(model, plan)
    run.run(steps)
    assert run._space.arena.size == plan.peak_bytes(steps) // 8
    return run


def assert_marginals(run, model, factors, truth):
    depth = sum(np.max(t) for _, t in factors) - run.log_z + math.log(truth.joint.size)
    slack = 1e-10 + 8 * UNIT * abs(depth)
    for v, found in enumerate(run.marginals):
        np.testing.assert_allclose(found, truth.marginal([v]), rtol=0, atol=slack)
    for f, (scope, _) in enumerate(factors):
        first, last = model.table_ptr[f : f + 2]
        found = run.factor_marginals[first:last].reshape(model.factor(f).log_table.shape)
        np.testing.assert_allclose(found, truth.marginal(scope), rtol=0, atol=slack)


def counted(patch):
    """How often each way was taken, and whether it went through."""
    ways: Counter[tuple[str, bool]] = Counter()

    def watched(name, inner):
        def call(self, *args):
            found = inner(self, *args)
            ways[name, found is not None and found is not False] += 1
            return found

        return call

    for name in ("_pass", "_meet"):
        patch.setattr(Elimination, name, watched(name, getattr(Elimination, name)))
    return ways


def test_every_path_against_enumeration(monkeypatch):
    """log Z within its rounding, marginals, and the planned memory, by random orders and trees."""
    ways = counted(monkeypatch)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        cards, factors = wild(rng)
        truth = hostile.truth(cards, factors)
        model = FactorGraph(cards, factors)
        with pytest.MonkeyPatch.context() as patch:
            set_sizes(patch, rng)
            plan = random_plan(model, rng)
            run = run_within(plan.in_place, model, plan.log_z_schedule())
            cuts = [(), (2,), (2, 2)][seed % 3]
            steps = list(checkpointed_steps(plan.buckets, plan.sizes(), cuts))
            both = run_within(plan, model, steps)
        if truth is None:
            assert run.log_z == both.log_z == -math.inf
            continue
        for r in (run, both):
            assert truth.error(r.log_z) <= r.rounding, f"seed {seed}"
        if both.rounding - UNIT * abs(both.log_z) <= 0.01 and not np.isnan(both.marginals[0]).any():
            assert_marginals(both, model, factors, truth)
    for way in ("_pass", "_meet"):
        assert min(ways[way, True], ways[way, False]) > 20


@pytest.mark.parametrize("scopes", [[(0, 1)] * 3, [(0, 1), (1, 2), (0, 2)]], ids=repr)
def test_tables_that_disagree_are_within_the_rounding(scopes):
    """No state is near the sum of the largest entries: what is relative to that depth counts."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        factors = [(scope, 1e9 * rng.random((4, 4))) for scope in scopes]
        model = FactorGraph([4] * 3, factors)
        run = run_within((plan := build_plan(model, np.arange(3), "natural")).in_place, model,
                         plan.log_z_schedule())  # fmt: skip
        assert hostile.truth([4] * 3, factors).error(run.log_z) <= run.rounding < 1e-4


def test_messages_that_disagree_are_within_the_rounding(monkeypatch):
    """The best state is far below the product of the messages' largest entries: so is its error."""
    monkeypatch.setattr(planning, "LOG2_STATES", 0.0)  # a bucket for each variable
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one, two = -1e9 * rng.random((2, 3, 3))
        one[0, 0] = two[1, 1] = 0.0
        tables = [one, two, *rng.normal(size=(2, 3, 3))]
        best = float((one.max(axis=0) + two.max(axis=0)).max())
        factors = [*zip([(0, 2), (1, 2), (2, 3), (3, 4)], tables, strict=True), ((), -best)]
        model = FactorGraph([3] * 5, factors)
        plan = build_plan(model, np.arange(5), "natural")
        run = run_within(plan.in_place, model, plan.log_z_schedule())
        truth = hostile.truth([3] * 5, [(s, np.asarray(t)) for s, t in factors])
        assert truth.error(run.log_z) <= run.rounding < 1e-6


@pytest.mark.parametrize("depth", [0.0, 20_000.0])
@pytest.mark.parametrize("leaves", [1, 12])
def test_terms_below_the_last_digit_are_within_the_rounding(leaves, depth):
    """Sums of 1 and of many numbers that are each lost beside it; in logs where depths differ."""
    small = np.full(600, -36.8)
    small[0] = 0.0
    table = np.stack([small, small - depth / leaves])
    model = FactorGraph([2] + [600] * leaves, [((0, v + 1), table) for v in range(leaves)])
    plan = build_plan(model, np.arange(leaves + 1)[::-1].copy(), "leaves first")
    run = run_within(plan.in_place, model, plan.log_z_schedule())
    inner = np.log1p(599 * np.exp(np.longdouble(-36.8)))
    exact = leaves * inner + np.log1p(np.exp(np.longdouble(-depth)))
    assert abs(np.longdouble(run.log_z) - exact) <= run.rounding
    assert exact - run.log_z > 1e-14 * leaves


@pytest.mark.parametrize("coupling", [1.0, 50.0, 1000.0])
def test_chains_of_a_grid_in_range_and_out_of_it(monkeypatch, coupling):
    """Tables leave the ordinary scale in the middle of a chain: the rest goes by logs."""
    monkeypatch.setattr(chains, "PASS_ENTRIES", 4)
    monkeypatch.setattr(chains, "LEAST_TILE", 1)
    monkeypatch.setattr(passes, "LEAST_TILE", 1)
    ways = counted(monkeypatch)
    for seed in range(8):
        model = ising_grid(4, coupling=(-coupling, coupling), field=(-1, 1), seed=seed)
        truth = hostile.truth(model.cardinalities, list(model.factors))
        plan = build_plan(model, np.arange(16), "rows")
        assert any(chain.before for chain in plan.in_place.chains.values())
        run = run_within(plan.in_place, model, plan.log_z_schedule())
        assert truth.error(run.log_z) <= run.rounding < 1e-9
    assert (ways["_pass", True] > 0) == (coupling < 1000.0)
    assert (ways["_pass", False] > 0) == (coupling > 1.0)


def test_a_variable_that_one_of_two_tables_has_alone(monkeypatch):
    """A tree's node sums it out with the others; the adjoint of its partner ended in a KeyError."""
    monkeypatch.setattr(running, "MEET", 1)
    rng = np.random.default_rng(0)
    scopes = [(0, 1, 2, 3), (0, 1, 4, 5), (2, 4, 6), (3, 5, 7, 8)]  # 6, 7 and 8 are in one each
    factors = [(s, rng.normal(size=(2,) * len(s))) for s in scopes]
    model = FactorGraph([2] * 9, factors)
    skeleton = Skeleton(((), (0,), (1,)), ((0, 1), (2,), (3,)))
    plan = build_plan(model, skeleton, "a line")
    run = run_within(plan, model, list(checkpointed_steps(plan.buckets, plan.sizes(), ())))
    truth = hostile.truth(model.cardinalities, factors)
    assert truth.error(run.log_z) <= run.rounding
    assert_marginals(run, model, factors, truth)


def test_a_slice_follows_the_plan_of_the_whole():
    """Fixing a variable makes numbers of its own tables; they were multiplied in twice."""
    for seed in range(120):
        rng = np.random.default_rng(seed)
        cards, factors = wild(rng)
        v = int(rng.integers(len(cards)))
        factors.append(((v,), rng.normal(size=cards[v])))
        model = FactorGraph(cards, factors)
        truth = hostile.truth(cards, factors)
        inner = model.with_evidence({v: 0}).condition()
        plan = random_plan(model, rng)
        sliced = Sliced((v,), inner, build_plan(inner, plan.skeleton, plan.heuristic))
        for marginals in (False, True):
            log_z, rounding, singles, _ = run_slices(model, sliced, 1 << 30, marginals=marginals)
            if truth is None:
                assert log_z == -math.inf
                continue
            assert truth.error(log_z) <= rounding, f"seed {seed}"
            if marginals and rounding - UNIT * abs(log_z) <= 1e-9:
                for u, found in enumerate(singles):
                    np.testing.assert_allclose(found, truth.marginal([u]), rtol=0, atol=1e-8)


def hanging_path(width, length):
    """A wide table with a path from its first variable to its second; an order along the path."""
    rng = np.random.default_rng(0)
    last = width + length
    line = [0, *range(width, last), 1]
    factors = [((last, *range(width)), rng.normal(size=(2,) * (width + 1)))]
    factors += [((a, b), rng.normal(size=(2, 2))) for a, b in itertools.pairwise(line)]
    factors.append((tuple(range(1, width)), rng.normal(size=(2,) * (width - 1))))
    order = np.array([last, 0, *range(width, last), *range(1, width)])
    return FactorGraph([2] * (last + 1), factors), order


def test_chains_end_before_their_states_are_too_many():
    """Variables that come and go need no rows, but the audit sums over all of them: 2^200 here."""
    model, order = hanging_path(14, 200)
    plan = build_plan(model, order, "along the path")
    assert any(len(chain.before) > 3 for chain in plan.in_place.chains.values())
    run = run_within(plan.in_place, model, plan.log_z_schedule())
    other = build_plan(model, order[::-1].copy(), "the other way")
    again = run_within(other, model, list(checkpointed_steps(other.buckets, other.sizes(), ())))
    assert abs(run.log_z - again.log_z) <= run.rounding + again.rounding < 1e-10


@pytest.mark.parametrize(
    ("main", "summed", "sides", "run"),
    [
        ((0, 1, 2, 3, 4, 5), (0,), [(0, 3)], 16),  # a touched axis parts the tile into long runs
        ((0, 1, 2, 3, 4, 5), (1,), [(1,)], 96),
        ((0, 1, 2, 3, 4, 5), (0,), [(0, 3), (0, 5)], 1),
        ((0, 1, 2, 3, 4, 5), (0, 1), [(0, 6), (1, 3)], 16),  # another axis comes in
    ],
)
def test_a_pass_sums_products_whatever_runs_it_copies(main, summed, sides, run):
    cards, rng = [3, 4, 3, 2, 4, 4, 2], np.random.default_rng(0)
    out = tuple(sorted({*main, *(a for side in sides for a in side)} - {*summed}))
    scopes = [main, *sides, out]
    sizes = [math.prod(cards[a] for a in scope) for scope in scopes]
    *starts, end = itertools.accumulate(sizes, initial=0)
    placed = [Placed(start, scope) for start, scope in zip(starts, scopes, strict=True)]
    arena = rng.random(end)
    layout = pass_layout(placed[0], [Turn(summed, tuple(placed[1:-1]))], placed[-1], cards)
    assert layout.source.run == run < layout.source.tile.size
    operands = [
        part
        for table, size in zip(placed[:-1], sizes, strict=False)
        for part in (
            arena[table.start : table.start + size].reshape([cards[a] for a in table.axes]),
            list(table.axes),
        )
    ]
    passes.run_pass(arena, layout, 0, layout.n_outer)
    expected = np.einsum(*operands, list(out))
    np.testing.assert_allclose(arena[starts[-1] :], expected.ravel(), rtol=1e-13)


# What must be noticed --------------------------------------------------------------------------


def places(layout, low, high):
    """(blocks, rows, tile) where the pass wrote."""
    target, dims = layout.target, tuple(layout.dims.tolist())
    digits = np.array(np.unravel_index(np.arange(low, high), dims)) if dims else np.zeros((0, 1))
    base = target.base + target.outer @ digits.astype(np.int64)
    return base[:, None, None] + target.row[:, None] + target.tile


def scaled(eps):
    def spoil(arena, at):
        arena[at] *= 1.0 + eps

    return spoil


def swapped(arena, at):
    """The first two rows of every block; where it has one, that row is turned round."""
    turned = at[:, [1, 0]] if at.shape[1] > 1 else at[:, :, ::-1]
    arena[at[:, : turned.shape[1]]] = arena[turned]


def one_entry(arena, at):
    """The largest of all."""
    worst = at.ravel()[np.argmax(arena[at])]
    arena[worst] *= 1.0 + 1e-6


def wrong_pass(spoil):
    kernel = passes.run_pass

    def broken(arena, layout, low, high):
        kernel(arena, layout, low, high)
        spoil(arena, places(layout, low, high))

    return broken


GRID = ising_grid(5, 8, coupling=(-1, 1), field=(-1, 1), seed=0)
DENSE = FactorGraph(
    [3] * 7,
    [((i, j), np.sin(np.arange(9.0) + i + 7 * j)) for i in range(7) for j in range(i)],
)


@pytest.fixture
def small(monkeypatch):
    for module in (passes, chains):
        monkeypatch.setattr(module, "LEAST_TILE", 1)
    monkeypatch.setattr(chains, "PASS_ENTRIES", 4)
    monkeypatch.setattr(running, "MEET", 16)


@pytest.mark.parametrize("spoil", [scaled(1e-9), scaled(-1e-11), swapped, one_entry])
@pytest.mark.parametrize("model", [GRID, DENSE])
def test_a_wrong_pass_is_refuted(small, monkeypatch, model, spoil):
    plan = build_plan(model, np.arange(model.n_variables), "natural")
    Elimination(model, plan.in_place).run(plan.log_z_schedule())
    monkeypatch.setattr(running, "run_pass", wrong_pass(spoil))
    with pytest.raises(RefutedError, match="bucket"):
        Elimination(model, plan.in_place).run(plan.log_z_schedule())


def wrong_meet(spoil):
    kernel = adjoints.run_meet

    def broken(arena, layout, onto, low, high):
        kernel(arena, layout, onto, low, high)
        spoil(onto)

    return broken


def shrink(onto):
    onto *= 1.0 - 1e-8


def swap_ends(onto):
    onto[[0, -1]] = onto[[-1, 0]]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("run_pass", wrong_pass(scaled(1e-8))),
        ("run_pass", wrong_pass(swapped)),
        ("run_meet", wrong_meet(shrink)),
        ("run_meet", wrong_meet(swap_ends)),
    ],
)
@pytest.mark.parametrize("model", [GRID, DENSE])
def test_a_wrong_step_back_is_refuted(small, monkeypatch, model, name, broken):
    plan = build_plan(model, np.arange(model.n_variables), "natural")
    steps = list(checkpointed_steps(plan.buckets, plan.sizes(), ()))
    Elimination(model, plan).run(steps)
    monkeypatch.setattr(running, name, broken)
    with pytest.raises(RefutedError, match=r"sums to|differs from its own"):
        Elimination(model, plan).run(steps)
