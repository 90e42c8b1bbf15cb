"""Bounds that add up disjoint parts: what the judge refuses, and ends held to exact sums.

Truths here are sums of integers (every float64 is one, times a power of two), so lower <= log Z <=
upper is asked for without any tolerance but 1e-15 nats for the last logarithm.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import tightz as tz
from tightz.families import mean_field, projection
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.families.structured import family as structured
from tightz.interval.streams.cutset_sum import CutsetSum
from tightz.judge import RefutedError
from tightz.judge.claims import log_add, log_sum
from tightz.judge.cosets import CosetsEvidence
from tightz.judge.cutsets import Conditioned, CutsetEvidence
from tightz.judge.parts import Cell, Court, PartsEvidence, added
from tightz.judge.regions import (
    Ceiling,
    Conditionals,
    Eliminated,
    Product,
    distance,
    halves,
    restricted,
    whole,
)
from tightz.judge.spins import SpinTerms
from tightz.judge.verdict import Verdict
from tightz.paper.coset_sum import coset_sum
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock
from tightz.runtime.local_workers import LocalWorkers
from tightz.splitting import Splitting, SplittingTree
from tightz.splitting.evidence import cell_of
from tightz.workspace import workspace
from tightz.workspace.workspace import Workspace

PRODUCT = MeanField(restarts=2, max_sweeps=50)
TREES = StructuredMeanField(width=1, restarts=1, max_sweeps=30)
LOGARITHM = Fraction(1e-15)
SCALE = 2**300


def all_states(model):
    return np.array(list(itertools.product(*[range(int(c)) for c in model.cardinalities])))


def true_log_z(model, inside=None):
    """log Z as a fraction, over the states where `inside` holds."""
    states = all_states(model)
    total = np.zeros(len(states), dtype=object)
    alive = np.ones(len(states), dtype=bool) if inside is None else inside(states)
    for scope, table in model.factors:
        at = tuple(states[:, v] for v in scope)
        alive &= np.isfinite(table[at])
        whole_ = [0 if x == -math.inf else int(Fraction(float(x)) * SCALE) for x in table.ravel()]
        total = total + np.array(whole_, dtype=object).reshape(table.shape)[at]
    weights = total[alive]
    top = max(weights)
    rest = math.fsum(math.exp(float(Fraction(int(w - top), SCALE))) for w in weights)
    return Fraction(int(top), SCALE) + Fraction(math.log(rest))


def brackets(lower, upper, truth):
    below = lower == -math.inf or Fraction(lower) <= truth + LOGARITHM
    above = upper == math.inf or Fraction(upper) >= truth - LOGARITHM
    return below and above


def dense_model(rng, weight, cards=None):
    cards = [2] * int(rng.integers(3, 7)) if cards is None else cards
    factors = []
    for i, d in enumerate(cards):
        factors.append(((i,), rng.uniform(-weight, weight, d)))
        for j in range(i):
            factors.append(((j, i), rng.uniform(-weight, weight, (cards[j], d))))
    return tz.FactorGraph(cards, factors)


def grown(family, model=None, splits=6, width=1, collapse=0):
    model = tz.ising_grid(3, 4, coupling=(-2, 2), seed=6) if model is None else model
    settings = Splitting(family=family, collapse=collapse, exact_width=width, max_splits=splits)
    work = Workspace.build(encode(model), seed=0, collapse=collapse)
    tree = SplittingTree(work, settings, seed=0, threads=1, backend="cpu")
    list(tree.run())
    return model, tree


def tree_cells(cell):
    yield cell
    for side in cell.sides or ():
        yield from tree_cells(side)


def replaced(cell, old, new):
    """The tree with one cell in another's place."""
    if cell is old:
        return new
    if cell.sides is None:
        return cell
    return Cell(cell.proofs, cell.parity, tuple(replaced(s, old, new) for s in cell.sides))


def without_own(cell):
    """Parts alone: no bound of the whole covers for them."""
    return Cell((), cell.parity, cell.sides)


# --- Regions ----------------------------------------------------------------------------------


def contains(region, spins):
    follow = np.where(region.rep < 0, 1, spins[:, np.maximum(region.rep, 0)]) * region.sign
    return (follow == spins).all(axis=1)


def test_halves_partition_and_wrong_parities_are_refused():
    spins = 1 - 2 * np.array(list(itertools.product((0, 1), repeat=5)))
    region = halves(halves(whole(5), (3,))[1], (0, 4))[1]
    for parity in ((1,), (0, 2)):
        one, other = (contains(half, spins) for half in halves(region, parity))
        assert not (one & other).any()
        np.testing.assert_array_equal(one | other, contains(region, spins))
    for parity in ((), (3,), (4,), (1, 1), (0, 1, 2), (5,), (-1,), (1, 4)):
        with pytest.raises(RefutedError, match="no parity"):
            halves(region, parity)


def test_a_restricted_model_is_the_model_on_its_region():
    rng = np.random.default_rng(0)
    model = dense_model(rng, 2.0)
    terms = SpinTerms.of(encode(model).polynomial)
    region = halves(halves(whole(model.n_variables), (1,))[1], (0, 2))[1]
    graph, rounding = restricted(terms, region)
    spins = 1 - 2 * all_states(model)
    inside = contains(region, spins)
    found = graph.log_weight((1 - spins[inside][:, region.free]) // 2)
    np.testing.assert_allclose(found, terms.log_weights(spins[inside])[0], atol=1e-12)
    assert distance(graph, terms, region) < 1e-12 + rounding
    wrong = tz.FactorGraph(graph.cardinalities, [*graph.factors, ((0,), np.array([0.25, -0.25]))])
    assert distance(wrong, terms, region) == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(RefutedError, match="one binary variable"):
        distance(graph, terms, whole(model.n_variables))


def test_sums_are_within_the_rounding_they_declare():
    rng = np.random.default_rng(1)
    for scale in (1.0, 1e3, 1e6):
        values = rng.uniform(-scale, scale, 50)
        spread = values.max() - values
        exact = Fraction(values.max()) + Fraction(math.log(math.fsum(np.exp(-spread).tolist())))
        value, rounding = log_sum(values)
        assert abs(Fraction(value) - exact) <= Fraction(rounding)
    assert log_add(-math.inf, 2.0) == (2.0, 0.0)
    assert log_sum([]) == (-math.inf, 0.0)


def test_two_parts_together_are_within_their_rounding():
    rng = np.random.default_rng(2)
    for scale in (1.0, 30.0, 1e6):
        for _ in range(50):
            x = float(scale * rng.normal())
            y = float(x + 10.0 * rng.normal())
            found = added(Verdict(x, x), Verdict(y, y))
            exact = (Decimal(x).exp() + Decimal(y).exp()).ln()
            assert Decimal(found.lower) <= exact <= Decimal(found.upper)
            assert found.upper - found.lower <= 4.0 * found.rounding <= 1e-13 * (1.0 + scale)


# --- The tree: what is refused, and what does not get through -----------------------------------


@pytest.mark.parametrize("family", [PRODUCT, TREES])
def test_a_broken_q_is_refused(family):
    model, tree = grown(family)
    root = cell_of(tree.tree.root)
    leaf = next(c for c in tree_cells(root) if c.sides is None)
    q = leaf.proofs[0]
    if isinstance(q, Product):
        wrong = [Product(q.spins, 2.0 * np.ones_like(q.means)), Product(q.spins, q.means * np.nan)]
        wrong += [Product(q.spins[:-1], q.means)]
    else:
        shape = q.spin_of, q.sep_ptr, q.sep
        wrong = [Conditionals(*shape, -q.tables), Conditionals(*shape, q.tables[:-2])]
        wrong += [Conditionals(*shape, np.full_like(q.tables, 0.5))]  # weight outside its region
    for proof in wrong:
        broken = PartsEvidence(tree.standing.court, replaced(root, leaf, Cell((proof,))))
        with pytest.raises(RefutedError):
            broken.verdict(model)


@pytest.mark.parametrize("family", [PRODUCT, TREES])
def test_overlapping_parts_are_refused_or_bound_what_they_are_put_for(family):
    model, tree = grown(family)
    truth = true_log_z(model)
    root = cell_of(tree.tree.root)
    one, other = root.sides
    with pytest.raises(RefutedError):  # counted twice; a structured q is outside its region first
        PartsEvidence(tree.standing.court, Cell((), root.parity, (one, one))).verdict(model)
    swapped = PartsEvidence(tree.standing.court, Cell((), root.parity, (other, one)))
    try:
        found = swapped.verdict(model)
    except RefutedError:
        return
    assert brackets(found.lower, found.upper, truth)
    with pytest.raises(RefutedError, match="no parity"):
        PartsEvidence(tree.standing.court, Cell((), root.parity, (root, other))).verdict(model)


def test_a_missing_leaf_adds_nothing_and_leaves_the_upper_end_open():
    model, tree = grown(PRODUCT)
    truth = true_log_z(model)
    root = without_own(cell_of(tree.tree.root))
    full = tree.standing.court.verdict(root, model)
    for leaf in [c for c in tree_cells(root) if c.sides is None]:
        found = tree.standing.court.verdict(replaced(root, leaf, Cell(())), model)
        assert found.lower < full.lower
        assert found.upper >= full.upper
        assert brackets(found.lower, found.upper, truth)


def test_an_inflated_leaf_does_not_get_through():
    model, tree = grown(PRODUCT)
    before = tree.standing.court.verdict(cell_of(tree.tree.root), model)
    for node in tree.tree.root.subtree():
        node.own_lower += 1.0
        node.part = node.part._replace(q=replace(node.part.q, log_gamma=node.own_lower))
        node.refresh()
    assert tree.tree.root.lower > true_log_z(model)  # the search believes it
    after = Court(tree.standing.court.source, model.n_variables, tree.standing.court.encoding)
    found = after.verdict(cell_of(tree.tree.root), model)
    assert found.lower == pytest.approx(before.lower, abs=1e-12)
    assert brackets(found.lower, found.upper, true_log_z(model))


@pytest.mark.parametrize("family", [PRODUCT, TREES])
def test_a_stale_evaluator_does_not_get_through(family, monkeypatch):
    honest = projection.evaluate, structured.structured_bound
    for module in (projection, mean_field):
        monkeypatch.setattr(module, "evaluate", lambda *a: honest[0](*a) + 1.0)
    monkeypatch.setattr(structured, "structured_bound", lambda *a: honest[1](*a) + 1.0)
    model, tree = grown(family, splits=12, width=0)
    result = tree.result()
    truth = true_log_z(model)
    assert tree.tree.root.lower > truth
    assert brackets(result.lower, result.upper, truth)


def test_a_ceiling_of_another_region_is_paid_for():
    model, tree = grown(PRODUCT)
    terms = tree.standing.court.source
    court = Court(terms, model.n_variables, tree.standing.court.encoding)
    parts = halves(whole(model.n_variables), (5,))
    graphs = [restricted(terms, part)[0] for part in parts]
    proofs = [tz.upper_bound(graph).bound.evidence for graph in graphs]
    true_sides = [true_log_z(model, lambda s, x=x: s[:, 5] == x) for x in (0, 1)]
    for region, truth in zip(parts, true_sides, strict=True):
        for graph, proof in zip(graphs, proofs, strict=True):
            ceiling = Ceiling(graph, proof)
            assert brackets(-math.inf, ceiling.judge(court, region).upper, truth)
            assert ceiling.judge(court, region) == ceiling.judge(court, region)
            with pytest.raises(RefutedError, match="shown for another"):
                ceiling.judge(court, whole(model.n_variables))
    # Control: believed without a look at its region, the lighter side's ceiling bounds the other.
    light = int(true_sides[0] > true_sides[1])
    assert not brackets(-math.inf, proofs[light].verdict(graphs[light]).upper, max(true_sides))


def test_elimination_needs_an_order_of_all_spins_and_brackets_the_region():
    model, tree = grown(PRODUCT)
    court, n = tree.standing.court, model.n_variables
    region = halves(whole(n), (5,))[1]
    truth = true_log_z(model, lambda s: s[:, 5] == 1)
    found = Eliminated(np.arange(n - 1)).judge(court, region)
    assert brackets(found.lower, found.upper, truth)
    assert found.upper - found.lower < 1e-11
    for order in (np.arange(n), np.arange(n - 2), np.zeros(n - 1, np.int64)):
        with pytest.raises(RefutedError, match="order"):
            Eliminated(order).judge(court, region)


def test_evidence_about_another_model_is_refused():
    model, tree = grown(PRODUCT)
    other = tz.ising_grid(3, 4, coupling=(-2, 2), seed=7)
    with pytest.raises(RefutedError, match="away from the model"):
        tree.standing.evidence.verdict(other)
    assert tree.standing.evidence.verdict(model).lower == tree.lower


def test_a_wrong_collapse_is_refused(monkeypatch):
    honest = workspace.collapse

    def inflated(*arguments, **options):
        done = honest(*arguments, **options)
        constant = done.polynomial.constant + 1.0
        return replace(done, polynomial=replace(done.polynomial, constant=constant))

    monkeypatch.setattr(workspace, "collapse", inflated)
    with pytest.raises(RefutedError, match="away from its original"):
        grown(PRODUCT, collapse=2)


def test_judged_cells_are_not_judged_again(monkeypatch):
    model, tree = grown(PRODUCT)
    root = cell_of(tree.tree.root)
    first = tree.standing.court.verdict(root, model)
    monkeypatch.setattr(Product, "judge", None)
    assert tree.standing.court.verdict(root, model) == first


def test_an_encoding_with_parities_is_bounded_from_below_alone():
    table = np.full((2, 2, 2), -np.inf)
    for x in itertools.product((0, 1), repeat=3):
        table[x] = 0.3 * x[0] if sum(x) % 2 == 0 else -np.inf
    model = tz.FactorGraph([2] * 4, [((0, 1, 2), table), ((2, 3), np.arange(4.0).reshape(2, 2))])
    tree = SplittingTree(Workspace.build(model, seed=0), seed=0, threads=1)
    list(tree.run())
    found = tree.standing.evidence.verdict(model)
    assert brackets(found.lower, found.upper, true_log_z(model))
    assert float(true_log_z(model)) - found.lower < 1e-9
    assert found.upper == math.inf


# --- Coset and cutset sums ------------------------------------------------------------------------


def test_cosets_counted_twice_or_exchanged_are_refused():
    model = tz.ising_grid(3, coupling=(-2, 2), seed=1)
    found = coset_sum(model, 3, seed=0, threads=1)
    e = found.bound.evidence
    assert e.verdict(model).lower == found.log_z
    assert brackets(found.log_z, math.inf, true_log_z(model))
    twice = e.rhs.copy()
    twice[1] = twice[0]
    parts = e.link, e.matrix
    with pytest.raises(RefutedError, match="twice"):
        CosetsEvidence(*parts, twice, e.values, e.roundings, e.qs).verdict(model)
    with pytest.raises(RefutedError, match="stay in its coset"):
        CosetsEvidence(*parts, e.rhs, e.values, e.roundings, e.qs[::-1]).verdict(model)
    claims = CosetsEvidence(*parts, e.rhs, e.values + 1.0, e.roundings, e.qs)
    assert claims.verdict(model).lower == found.log_z


def test_a_coset_sum_on_processes_is_that_of_one_thread():
    model = tz.ising_grid(4, coupling=(-2, 2), seed=1)
    here = coset_sum(model, 3, seed=0, threads=1)
    with LocalWorkers(2) as pool:
        away = coset_sum(model, 3, seed=0, executor=pool)
    assert away.log_gammas.tolist() == here.log_gammas.tolist()
    assert away.log_z == here.log_z


def test_assignments_count_once_and_all_of_them_are_z():
    rng = np.random.default_rng(3)
    model = dense_model(rng, 3.0, cards=[2, 3, 2, 3])
    held, order = np.array([1, 2]), np.array([3, 0])
    rows = [np.array(x) for x in itertools.product(range(3), range(2))]
    truth = true_log_z(model)
    every = CutsetEvidence(Conditioned(held, order), rows).verdict(model)
    assert brackets(every.lower, every.upper, truth)
    assert every.upper - every.lower < 1e-12
    some = CutsetEvidence(Conditioned(held, order), rows[:2] + rows[:2]).verdict(model)
    part = true_log_z(model, lambda s: s[:, 1] == 0)
    assert brackets(some.lower, math.inf, part)
    assert float(part) - some.lower < 1e-12
    assert some.upper == math.inf
    with pytest.raises(RefutedError, match="state that it does not have"):
        CutsetEvidence(Conditioned(held, order), [np.array([3, 0])]).verdict(model)
    with pytest.raises(RefutedError, match="one state to each"):
        CutsetEvidence(Conditioned(held, order), [np.array([0])]).verdict(model)
    with pytest.raises(RefutedError, match="each once"):
        CutsetEvidence(Conditioned(held, order[:1]), rows).verdict(model)


def test_a_stale_elimination_does_not_get_through(monkeypatch):
    from tightz.elimination.conditioning import ConditionedElimination

    rng = np.random.default_rng(4)
    model = dense_model(rng, 2.0, cards=[3] * 6)
    honest = ConditionedElimination.log_z
    monkeypatch.setattr(ConditionedElimination, "log_z", lambda *a: honest(*a) + 1.0)
    run = CutsetSum(model, np.zeros(6, np.int64), rng, Clock(5.0), 1 << 20)
    truth = true_log_z(model)
    bounds = [*run.burn_in(), *run.sums((3, 4))]
    assert bounds
    for bound in bounds:
        found = bound.evidence.verdict(model)
        assert brackets(found.lower, found.upper, truth)
        assert abs(bound.log_z - min(found.upper, bound.log_z)) <= bound.rounding


# --- Hunts ----------------------------------------------------------------------------------------


def hunted(seed):
    rng = np.random.default_rng([17, seed])
    weight = 10.0 ** rng.uniform(0, 6)
    if seed % 3 == 0:
        span = (-weight, weight)
        return rng, tz.ising_grid(2, 3, coupling=span, field=span, seed=seed)
    return rng, dense_model(rng, weight)


@pytest.mark.parametrize("family", [PRODUCT, TREES])
def test_ends_hold_strictly_and_the_search_s_own_would_not(family):
    crossed = 0
    for seed in range(40):
        rng, model = hunted(seed)
        truth = true_log_z(model)
        settings = Splitting(
            family=family, collapse=int(rng.integers(2)), exact_width=int(rng.integers(3)),
            max_splits=int(rng.integers(6)),
        )  # fmt: skip
        work = Workspace.build(encode(model), seed=seed, collapse=settings.collapse)
        tree = SplittingTree(work, settings, seed=seed, threads=1, backend="cpu")
        for bound in tree.run():
            found = bound.evidence.verdict(model)
            assert brackets(found.lower, found.upper, truth), seed
            assert found.lower <= found.upper
        result = tree.result()
        assert brackets(result.lower, result.upper, truth), seed
        crossed += not brackets(tree.tree.root.lower, tree.tree.root.upper, truth)
    assert crossed > 0  # control: without the judge's rounding this hunt finds violations


def test_coset_and_cutset_sums_hold_strictly():
    crossed = 0
    for seed in range(30):
        rng, model = hunted(seed)
        truth = true_log_z(model)
        found = coset_sum(
            model,
            int(rng.integers(4)),
            projections=tz.Projections.as_printed(),
            seed=seed,
            threads=1,
        )
        assert brackets(found.log_z, math.inf, truth), seed
        n = model.n_variables
        order = rng.permutation(n)
        held = np.sort(order[:2])
        rows = list(all_states(tz.FactorGraph([2, 2], [])))
        judged = CutsetEvidence(Conditioned(held, order[2:]), rows).verdict(model)
        assert brackets(judged.lower, judged.upper, truth), seed
        middle = (judged.lower + judged.upper) / 2.0
        crossed += not brackets(middle, middle, truth)
    assert crossed > 0
