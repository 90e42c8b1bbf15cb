"""The splitting tree over states of any model, and its judge, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import tightz as tz
from tests import naive
from tests.strategies import models_with_zeros
from tightz.bounds import Side
from tightz.interval.streams.states import reversed_tables
from tightz.judge.domains import DomainCourt, DomainsEvidence, Part, Summed, whole, within
from tightz.judge.verdict import RefutedError
from tightz.runtime.clock import Clock
from tightz.splitting import Splitting, StateTree
from tightz.workspace.findings import Finding
from tightz.workspace.working import Working

SETTINGS = Splitting(exact_width=1)


def grown(model, settings=SETTINGS, seed=0):
    tree = StateTree(model, settings, seed=seed)
    return tree, [bound for bound in tree.run() if bound is not None]


def hard(seed=0, n=9):
    """Three states a variable, a third of all pairs of neighbours barred, a cycle of tables."""
    rng = np.random.default_rng(seed)
    factors = []
    for i in range(n):
        for j in (i + 1, i + 2):
            table = rng.normal(size=(3, 3))
            factors.append(((i, j % n), np.where(rng.random((3, 3)) < 0.3, -np.inf, table)))
    return tz.FactorGraph([3] * n, factors)


@given(model=models_with_zeros())
@settings(max_examples=60, deadline=None)
def test_every_bound_holds_and_the_tree_closes(model):
    log_z, marginals = naive.enumerate_model(model.cardinalities, model.factors, model.evidence)
    tree, bounds = grown(model)
    for bound in bounds:
        verdict = bound.evidence.verdict(model)
        assert verdict.lower <= log_z <= verdict.upper
        held = bound.log_z <= log_z if bound.side is Side.LOWER else bound.log_z >= log_z
        assert held
    result = tree.result()
    assert result.closed
    assert result.lower <= log_z <= result.upper
    if log_z == -math.inf:
        assert result.upper == -math.inf
        return
    assert result.upper - result.lower < 1e-6
    for got, expected in zip(result.marginals, marginals, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    drawn = result.sample(20, 0)
    np.testing.assert_allclose(drawn.log_weights, log_z, atol=1e-6)
    assert np.isfinite(model.log_weight(drawn.states)).all()
    for v, state in model.evidence.items():
        assert (drawn.states[:, v] == state).all()


@pytest.mark.parametrize("seed", range(3))
def test_ends_move_inward_split_by_split(seed):
    model = hard(seed)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    widths = []
    for most in (0, 2, 6, 20):
        tree, _ = grown(model, Splitting(exact_width=1, max_splits=most))
        assert tree.splits <= most
        assert tree.lower <= log_z <= tree.upper
        widths.append(tree.upper - tree.lower)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0]


def test_leaves_partition_the_states():
    model = hard(1)
    tree, _ = grown(model, Splitting(exact_width=1, max_splits=12))
    states = naive.all_states(model.cardinalities)
    weight = np.exp(naive.log_weights(model.cardinalities, model.factors, states))
    inside = np.zeros(len(states), dtype=int)
    for leaf in tree.root.leaves():
        member = [np.isin(states[:, v], d) for v, d in enumerate(leaf.domains)]
        inside += np.all(member, axis=0)
        part = weight[np.all(member, axis=0)].sum()
        if part > 0.0:
            assert leaf.own.lower <= math.log(part) <= leaf.own.upper
    assert (inside[weight > 0] == 1).all()
    assert inside.max() == 1


def test_positive_models_of_many_states_get_both_ends_from_tables():
    model = tz.potts_grid(4, 4, states=4, coupling=(-1.0, 1.0), seed=3)
    log_z = tz.exact(model).log_z
    result = tz.split(model, Splitting(exact_width=5, max_splits=6), seed=0)
    assert result.lower <= log_z <= result.upper
    assert result.upper - result.lower < 2.0
    assert result.splits == 6
    assert not result.exact.all()
    assert math.isfinite(result.sampled_log_z(200, 0).log_z)
    assert "leaves" in result.summary()
    again = tz.split(model, Splitting(exact_width=5, max_splits=6), seed=0)
    assert (again.lower, again.upper) == (result.lower, result.upper)


def test_the_number_of_leaves_and_the_upper_end_are_the_caller_s():
    model = hard(2)
    few = tz.split(model, Splitting(exact_width=1, max_leaves=3), seed=0)
    assert len(few.depths) <= 3
    below = tz.split(model, Splitting(exact_width=1, upper=False, max_splits=2), seed=0)
    assert below.lower > -math.inf
    late = tz.split(model, time_limit=1e-9)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    assert late.lower <= log_z <= late.upper


# --- The judge --------------------------------------------------------------------------------


def test_the_judge_refuses_parts_that_are_no_partition():
    model = hard(0, n=5)
    court = DomainCourt(model)
    summed = Summed(2**12)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)

    def two(states, variable=0):
        return Part((), variable, states, (Part((summed,)), Part((summed,))))

    for states in [(0,), (1,), (0, 2)]:
        verdict = DomainsEvidence(court, two(states)).verdict(model)
        assert verdict.lower <= log_z <= verdict.upper
        assert verdict.upper - verdict.lower < 1e-9
    for states, variable in [((), 0), ((0, 1, 2), 0), ((0, 7), 0), ((0,), 9), ((0,), -1)]:
        with pytest.raises(RefutedError):
            court.verdict(two(states, variable))
    one = Part((summed,))
    with pytest.raises(RefutedError, match="counted twice"):
        court.verdict(Part((), 0, (0,), (one, one)))
    with pytest.raises(RefutedError, match="entries"):
        court.verdict(Part((Summed(2),)))
    with pytest.raises(RefutedError, match="another model"):
        DomainsEvidence(court, two((0,))).verdict(hard(1, n=5))
    half = court.verdict(Part((), 0, (0,), (Part((summed,)), Part(()))))
    assert half.lower < log_z
    assert half.upper == math.inf


def test_a_proof_of_one_part_is_judged_on_the_part_it_is_shown_for():
    """Tables made for one side are refused, or say nothing false, on the other."""
    model = tz.potts_grid(3, 3, states=3, seed=0)
    log_z = tz.exact(model).log_z
    tree, _ = grown(model, Splitting(exact_width=2, max_splits=1))
    root = tree.root.part
    swapped = Part(root.proofs, root.variable, root.states, root.sides[::-1])
    try:
        verdict = DomainCourt(model).verdict(swapped)
    except RefutedError:
        return
    assert verdict.lower <= log_z <= verdict.upper


def test_domains_and_the_model_within_them():
    model = tz.FactorGraph([3, 2, 2], [((0, 1), np.arange(6.0)), ((), 1.5)], evidence={2: 1})
    domains = whole(model)
    assert [d.tolist() for d in domains] == [[0, 1, 2], [0, 1], [1]]
    domains[0] = np.array([0, 2])
    part = within(model, domains)
    assert part.cardinalities.tolist() == [2, 2]
    assert part.factor(0)[1].tolist() == [[0.0, 1.0], [4.0, 5.0]]


# --- Streams ----------------------------------------------------------------------------------


def test_tables_from_below_are_lower_ends_that_rise():
    model = tz.potts_grid(7, 7, states=3, coupling=(-1.0, 1.0), seed=2)
    log_z = tz.exact(model).log_z
    working = Working(model, Clock(30.0), exact=False)
    found = []
    for item in reversed_tables(working, working.clock):
        if not isinstance(item, Finding):
            assert item.evidence.verdict(working.graph).lower <= log_z
            found.append((item.method, item.log_z))
        if len({method for method, _ in found}) > 1:
            break
    assert max(value for _, value in found) > log_z - 1.0
    assert not list(reversed_tables(Working(hard(0)), Clock(1.0)))
