"""The graph, the elimination game, orders and bucket trees that all who eliminate share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tightz.elimination import order as order_module
from tightz.elimination.buckets import bucket_tree, padded
from tightz.elimination.cut_game import play_with_cuts
from tightz.elimination.exact import exact, plan
from tightz.elimination.game import DEGREE, FILL, SIZE, Rules, play
from tightz.elimination.graph import Scopes, interaction_graph, scopes_from, scopes_of
from tightz.elimination.order import Order, Orders, choose_order
from tightz.errors import ParameterError
from tightz.models.builders import ising_grid, potts_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket, mini_bucket_bounds


@st.composite
def some_scopes(draw):
    n = draw(st.integers(1, 14))
    members = st.lists(st.integers(0, n - 1), max_size=4, unique=True)
    return n, draw(st.lists(members, max_size=25))


def matrix(scopes: Scopes) -> np.ndarray:
    graph = interaction_graph(scopes)
    out = np.zeros((graph.n, graph.n), dtype=bool)
    out[np.repeat(np.arange(graph.n), graph.degrees), graph.neighbours] = True
    return out


@given(some_scopes())
def test_graph_joins_what_shares_a_scope(case):
    n, rows = case
    joined = np.zeros((n, n), dtype=bool)
    for row in rows:
        joined[np.ix_(row, row)] = True
    np.fill_diagonal(joined, False)
    assert (matrix(scopes_from(n, rows)) == joined).all()


@given(some_scopes(), st.integers(0, 2**32 - 1))
def test_scopes_can_be_cut(case, seed):
    n, rows = case
    rng = np.random.default_rng(seed)
    scopes = scopes_from(n, rows)
    held = rng.random(n) < 0.4
    cut = scopes.without(held)
    assert np.diff(scopes.ptr).tolist() == [len(row) for row in rows]
    for k, row in enumerate(rows):
        assert scopes.members[scopes.ptr[k] : scopes.ptr[k + 1]].tolist() == row
        kept = [v for v in row if not held[v]]
        assert cut.members[cut.ptr[k] : cut.ptr[k + 1]].tolist() == kept


def test_polynomials_and_factor_graphs_have_one_graph():
    model = ising_grid(4, seed=0)
    pairs = [tuple(map(int, model.factor(f).scope)) for f in range(model.n_factors)]
    terms = [(pair, 1.0) for pair in pairs if len(pair) == 2]
    poly = SpinPolynomial.from_terms(16, 0.0, terms)
    assert (matrix(scopes_of(model)) == matrix(scopes_of(poly))).all()


@settings(max_examples=150, deadline=None)
@given(some_scopes(), st.sampled_from([SIZE, FILL, DEGREE]), st.integers(0, 2**32 - 1))
def test_the_game_is_the_naive_game(case, cost, seed):
    """Fill is carried along from step to step in the kernel, and counted afresh here."""
    scopes = scopes_from(*case)
    rng = np.random.default_rng(seed)
    bits, weight = rng.integers(1, 4, (2, scopes.n)).astype(np.float64)
    limit = int(rng.integers(0, 8)) if cost == DEGREE else 1 << 40

    def size(near, v):
        return bits[v] + sum(bits[u] for u in near[v])

    keys = {
        SIZE: lambda near, v: (size(near, v),),
        FILL: lambda near, v: (naive.fill_in(near, v, weight), size(near, v)),
        DEGREE: lambda near, v: (len(near[v]), naive.fill_in(near, v, weight)),
    }
    found = play(interaction_graph(scopes), Rules(cost, limit), log2_card=bits, weight=weight)
    order, touched = naive.elimination_game(matrix(scopes), keys[cost], limit)
    assert found.order.tolist() == order
    assert found.touched.tolist() == touched
    assert found.finished == (len(order) == scopes.n)
    tree = bucket_tree(scopes, found.order, log2_card=bits)
    if order:
        assert found.log2_total == pytest.approx(tree.log2_total)
        assert found.log2_largest == pytest.approx(tree.log2_sizes.max())
        assert max(touched) == tree.width


def test_the_game_ends_where_its_rules_say():
    graph = interaction_graph(scopes_of(ising_grid(8, seed=0)))
    whole = play(graph, Rules(FILL))
    assert whole.finished
    assert sorted(whole.order) == list(range(64))
    capped = play(graph, Rules(FILL, log2_total=whole.log2_total - 0.1))
    assert not capped.finished
    assert capped.log2_total > whole.log2_total - 0.1
    assert not play(graph, Rules(FILL, work=whole.work / 2)).finished
    assert play(graph, Rules(FILL, work=10.0)).order.size == 0
    held = play(graph, Rules(SIZE, log2_table=4.0))
    assert held.finished
    assert held.log2_largest <= 4.0
    assert sorted([*held.order, *np.flatnonzero(held.held)]) == list(range(64))
    dear = np.where(held.held, 1e6, 1.0)
    others = play(graph, Rules(SIZE, log2_table=4.0), price=dear)
    assert (others.held & held.held).sum() < held.held.sum() / 2
    kept = np.arange(64) < 8
    free = play(graph, Rules(SIZE), free=~kept)
    assert free.finished
    assert sorted(free.order) == list(range(8, 64))


@settings(max_examples=150, deadline=None)
@given(some_scopes())
def test_the_game_with_cuts_is_least_fill_where_nothing_is_cut(case):
    scopes = scopes_from(*case)
    found = play_with_cuts(scopes, log2_card=1.0, log2_table=14.0, cut=3.0)
    order, _ = naive.elimination_game(matrix(scopes), lambda near, v: (naive.fill_in(near, v),))
    assert found.tolist() == order


@settings(max_examples=150, deadline=None)
@given(some_scopes(), st.integers(0, 2**32 - 1))
def test_the_game_with_cuts_takes_every_vertex_once(case, seed):
    scopes = scopes_from(*case)
    rng = np.random.default_rng(seed)
    found = play_with_cuts(
        scopes,
        log2_card=rng.choice([0.0, 1.0, 1.5, 3.0], scopes.n),
        log2_table=rng.uniform(0, 8),
        cut=rng.uniform(0, 20),
        noise=rng.uniform(0, 1, scopes.n),
    )
    assert sorted(found) == list(range(scopes.n))


def test_an_order_made_for_cuts_cuts_less():
    model = ising_grid(16, seed=0)
    orders = Orders(model)
    scopes, made = orders.scopes, []
    for trial in range(4):
        order = orders.cutting(8.0, trial)
        assert order is orders.cutting(8.0, trial)
        assert sorted(order) == list(range(256))
        made.append(bucket_tree(scopes, order, log2_table=8.0))
    usual = bucket_tree(scopes, orders[Order.MIN_FILL], log2_table=8.0)
    assert usual.cut
    assert max(tree.parent.size for tree in made) < usual.parent.size
    assert min(tree.log2_total for tree in made) < usual.log2_total
    short = play_with_cuts(scopes, log2_card=1.0, log2_table=8.0, cut=7.0, work=1e4)
    assert short.size < 256
    assert short.tolist() == orders.cutting(8.0)[: short.size].tolist()


@settings(max_examples=150, deadline=None)
@given(some_scopes(), st.integers(0, 2**32 - 1))
def test_padded_mini_buckets_still_fit(case, seed):
    """The same tree; what is added lies in the parent and in a sibling, and within the limit."""
    n, rows = case
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)[: rng.integers(0, n + 1)]
    bits, limit = rng.choice([1.0, 1.5, 2.0], n), rng.uniform(1, 8)
    tree = bucket_tree(scopes_from(n, rows), order, log2_card=bits, log2_table=limit)
    wide = padded(tree, log2_card=bits, log2_table=limit)
    for name in ("order", "bucket_ptr", "parent", "home"):
        assert getattr(wide, name) is getattr(tree, name)
    place = {v: k for k, v in enumerate(order.tolist())}
    bucket = np.repeat(np.arange(order.size), np.diff(tree.bucket_ptr))
    for c, (old, new) in enumerate(zip(tree.scopes, wide.scopes, strict=True)):
        turns = [place.get(v, n + v) for v in new]
        assert turns == sorted(turns)
        assert new[0] == old[0]
        added = set(new) - set(old)
        assert set(old) <= set(new)
        assert wide.log2_sizes[c] == pytest.approx(bits[new].sum())
        assert not added or wide.log2_sizes[c] <= limit + 1e-6
        if wide.parent[c] >= 0:
            assert set(new[1:]) <= set(wide.scopes[wide.parent[c]])
        siblings = [d for d in np.flatnonzero(bucket == bucket[c]) if d != c]
        assert added <= set().union(*(wide.scopes[d] for d in siblings))


@settings(max_examples=150, deadline=None)
@given(some_scopes(), st.integers(0, 2**32 - 1))
def test_bucket_trees_are_the_naive_ones(case, seed):
    n, rows = case
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)[: rng.integers(0, n + 1)]
    tree = bucket_tree(scopes_from(n, rows), order)
    found, parents, homes = naive.buckets(rows, order.tolist())
    assert [set(s) for s in tree.scopes] == found
    assert not tree.cut
    assert tree.parent.tolist() == [parents.get(b, -1) for b in range(order.size)]
    assert tree.home.tolist() == [homes.get(f, -1) for f in range(len(rows))]
    place = {v: k for k, v in enumerate(order.tolist())}
    for b, scope in enumerate(tree.scopes):
        assert scope[0] == order[b]
        turns = [place.get(v, n + v) for v in scope]
        assert turns == sorted(turns)
    np.testing.assert_allclose(tree.log2_sizes, [len(s) for s in found])
    post = tree.post_order()
    assert sorted(post) == list(range(order.size))
    turn = np.argsort(post)
    assert all(turn[b] < turn[p] for b, p in parents.items())
    again = bucket_tree(scopes_from(n, rows), order[post])
    assert {frozenset(s) for s in again.scopes} == {frozenset(s) for s in found}


@settings(max_examples=100, deadline=None)
@given(some_scopes(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_cut_buckets_hold_every_scope_and_message_once(case, limit, seed):
    n, rows = case
    order = np.random.default_rng(seed).permutation(n)
    tree = bucket_tree(scopes_from(n, rows), order, log2_table=limit)
    scopes = [set(s) for s in tree.scopes]
    largest = max([limit, *map(len, rows)])
    assert max(map(len, scopes)) <= largest
    for f, row in enumerate(rows):
        if row:
            assert set(row) <= scopes[tree.home[f]]
        else:
            assert tree.home[f] == -1
    for c, parent in enumerate(tree.parent):
        rest = scopes[c] - {tree.scopes[c][0]}
        assert (parent < 0) == (not rest)
        if rest:
            assert rest <= scopes[parent]
            assert tree.scopes[parent][0] in rest
    # Nothing in a clique that neither a scope nor a message brought.
    for c, scope in enumerate(scopes):
        brought = {tree.scopes[c][0]}.union(
            *(rows[f] for f in tree.sources[c]),
            *(scopes[k] - {tree.scopes[k][0]} for k in tree.children[c]),
        )
        assert scope == brought
    whole = bucket_tree(scopes_from(n, rows), order)
    assert tree.cut or (tree.parent == whole.parent).all()


def test_a_tree_is_given_up_beyond_its_cap():
    scopes = scopes_of(ising_grid(6, seed=0))
    whole = bucket_tree(scopes, np.arange(36))
    assert whole.complete
    assert whole.width == 6
    assert bucket_tree(scopes, np.arange(36), log2_total=whole.log2_total + 1e-9).complete
    assert not bucket_tree(scopes, np.arange(36), log2_total=whole.log2_total - 0.01).complete


def test_cuthill_mckee_sweeps_from_a_rim():
    rows, cols = np.divmod(np.random.default_rng(0).permutation(60), 20)
    site = {(r, c): v for v, (r, c) in enumerate(zip(rows.tolist(), cols.tolist(), strict=True))}
    edges = [
        (site[r, c], site[r + dr, c + dc])
        for r, c in site
        for dr, dc in ((0, 1), (1, 0))
        if (r + dr, c + dc) in site
    ]
    scopes = scopes_from(62, edges)  # two variables by themselves
    order = interaction_graph(scopes).cuthill_mckee()
    assert sorted(order) == list(range(62))
    assert bucket_tree(scopes, order).width <= 4  # a strip of three rows


def test_weighted_fill_is_worth_a_try_where_states_differ():
    model = FactorGraph(
        [2, 9] * 6, [((v, w), np.zeros([[2, 9][v % 2], [2, 9][w % 2]])) for v in range(12)
                     for w in range(v + 1, 12) if (v * 7 + w) % 3 == 0]
    )  # fmt: skip
    chosen = choose_order(model, seconds=0.05)
    tree = bucket_tree(
        scopes_of(model), chosen.order, log2_card=np.log2(model.cardinalities.astype(float))
    )
    assert chosen.log2_cost == pytest.approx(tree.log2_total)
    assert chosen.log2_largest == pytest.approx(tree.log2_sizes.max())
    assert chosen.width == tree.width


@pytest.mark.parametrize("marginals", [False, True])
def test_a_plan_is_followed_and_not_made_again(monkeypatch, marginals):
    model = potts_grid(4, states=3, seed=1).with_evidence({5: 2})
    found = plan(model)
    assert sorted(found.variables) == [v for v in range(16) if v != 5]
    expected = exact(model).log_z
    with monkeypatch.context() as patch:
        patch.setattr("tightz.elimination.exact.ways.choose_plan", None)
        result = exact(model, plan=found, marginals=marginals)
        assert result.plan is found
        assert result.log_z == pytest.approx(expected, abs=1e-9)
        assert len(result.marginals) == 16  # computed now: from the same plan


def test_fields_make_no_table_larger():
    """A factor over one variable waits for nobody: a 12 x 12 torus with fields took 32 times the
    memory of one without."""
    torus = ising_grid(12, coupling=1.0, field=0.3, periodic=True)
    pairs = FactorGraph(torus.cardinalities, [f for f in torus.factors if len(f[0]) == 2])
    assert plan(torus).log_z_bytes <= 2 * plan(pairs).log_z_bytes


def test_a_plan_of_another_model_is_refused():
    model = ising_grid(3, seed=0)
    for other in (
        ising_grid(4, seed=0),
        model.with_evidence({0: 1}),
        FactorGraph([2] * 9, [((0, 1), np.zeros((2, 2)))]),
        FactorGraph([3] * 9, [((v, v + 1), np.zeros((3, 3))) for v in range(8)]),
    ):
        with pytest.raises(ParameterError, match="variables, states or scopes differ"):
            exact(model, plan=plan(other))


def test_orders_are_worked_out_once_for_all_mini_buckets(monkeypatch):
    model = ising_grid(6, coupling=(-1, 1), seed=0).with_evidence({7: 1})
    truth = exact(model).log_z
    orders = Orders(model, plan(model).variables)
    games = []
    find = Orders._find
    monkeypatch.setattr(Orders, "_find", lambda s, kind: games.append(kind) or find(s, kind))
    cuts, play = [], order_module.play_with_cuts

    def played(scopes, *, log2_table, **rules):
        cuts.append((log2_table, rules["cut"], np.sum(rules["noise"])))
        return play(scopes, log2_table=log2_table, **rules)

    monkeypatch.setattr(order_module, "play_with_cuts", played)
    for bound in mini_bucket_bounds(model, ibounds=[2, 3, 4], iterations=4, orders=orders):
        assert bound.log_z >= truth - 1e-9
    for ibound in (6, 8):
        assert mini_bucket(model, MiniBucket(ibound), orders=orders).log_z >= truth - 1e-9
    assert sorted(k.name for k in games) == [
        "AS_NUMBERED", "BREADTH_FIRST", "MIN_FILL", "MIN_SIZE"
    ]  # fmt: skip
    assert len(cuts) == len(set(cuts)) == 4 * 5  # trials of five sizes
    planned = MiniBucket(20, order=Order.PLANNED)
    assert mini_bucket(model, planned, orders=orders).log_z == pytest.approx(truth, abs=1e-8)
    with pytest.raises(ParameterError, match="orders are of"):
        mini_bucket(ising_grid(6, seed=1), orders=orders)
    with pytest.raises(ParameterError, match=r"Order\.PLANNED needs"):
        mini_bucket(model, planned)
