"""The heaviest states, draws and annealing over states of any model, against enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.elimination.states import CliqueStates, uncut
from tightz.errors import ModelError, ResourceError
from tightz.interval import ground_state as driver
from tightz.interval.ground_state import ground_state
from tightz.judge.heaviest import heaviest, largest_entries, weights_of
from tightz.judge.verdict import RefutedError
from tightz.reductions.preparation import substitute
from tightz.runtime.interrupts import Interrupts
from tightz.sampling.ais import state_moves
from tightz.sampling.ais.state_path import StatePath
from tightz.sampling.ancestral import sample
from tightz.sampling.state_search import search_states
from tightz.search.ground_state import Found, Search, SearchStatus
from tightz.uppers.mini_bucket import heaviest as colder
from tightz.workspace.findings import Mixing
from verification.hostile_models import KINDS


@st.composite
def discrete_models(draw, max_variables=6, zeros=(0.0, 0.2, 0.5), evidence=True):
    """1 to 4 states a variable, tables of up to three variables, zeros, ties, evidence."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, max_variables))
    cards = rng.integers(1, 5, size=n)
    share = draw(st.sampled_from(zeros))
    factors = []
    for _ in range(draw(st.integers(0, 2 * n))):
        scope = rng.choice(n, size=int(rng.integers(0, min(n, 3) + 1)), replace=False)
        table = 2.0 * rng.normal(size=cards[scope])
        if draw(st.booleans()):
            table = np.round(table)  # ties
        table = np.where(rng.random(table.shape) < share, -np.inf, table)
        factors.append((scope.tolist(), table))
    seen = {}
    if evidence and draw(st.booleans()):
        v = int(rng.integers(n))
        seen = {v: int(rng.integers(cards[v]))}
    return tz.FactorGraph(cards, factors, evidence=seen)


def every_state(model):
    """All states that agree with the evidence, and their log weights rounded once."""
    states = naive.all_states(model.cardinalities.tolist())
    for v, x in model.evidence.items():
        states = states[states[:, v] == x]
    return states, weights_of(model, states)


def check_claims(model, found, k):
    """Weights are the states', bounds hold, and what is called proven is what enumeration says."""
    states, logs = every_state(model)
    heavy = np.sort(logs[logs > -np.inf])[::-1]
    assert found.log_upper >= logs.max()
    if found.status is SearchStatus.ZERO:
        assert heavy.size == 0
        assert found.log_weight == -math.inf
        return
    if found.status is SearchStatus.NONE:
        assert found.log_weight == -math.inf
        return
    np.testing.assert_array_equal(weights_of(model, found.states), found.log_weights)
    assert (found.log_weights > -np.inf).all()
    assert (np.diff(found.log_weights) <= 0).all()
    kept = {row.tobytes() for row in found.states}
    assert len(kept) == len(found.states) <= k
    others = [log for row, log in zip(states, logs, strict=True) if row.tobytes() not in kept]
    assert found.log_others >= max(others, default=-math.inf)
    if found.status is SearchStatus.OPTIMAL:
        np.testing.assert_allclose(found.log_weights, heavy[:k], rtol=1e-9, atol=1e-9)
        assert found.gap < 1e-8


# The heaviest states


@settings(max_examples=80, deadline=None)
@given(discrete_models(), st.sampled_from([1, 3, 200]))
def test_elimination_finds_the_k_heaviest(model, k):
    found = ground_state(model, k=k, seed=0)
    assert found.status in (SearchStatus.OPTIMAL, SearchStatus.ZERO)
    check_claims(model, found, k)


@settings(max_examples=40, deadline=None)
@given(discrete_models(max_variables=5), st.sampled_from([1, 4]), st.integers(1, 3))
def test_search_and_cut_buckets_claim_nothing_wrong(model, k, ibound):
    """Where elimination is refused: a search, bounds of cut buckets, and walks along them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "uncut", lambda *args, **kwargs: None)
        patch.setattr(colder, "FIRST", ibound)
        patch.setattr(colder, "UNTIMED", ibound)
        patch.setattr("tightz.sampling.state_search.MIN_QUIET", 20)
        found = ground_state(model, k=k, seed=0, time_limit=None)
    check_claims(model, found, k)


@settings(max_examples=30, deadline=None)
@given(discrete_models(max_variables=5, evidence=False), st.integers(0, 5))
def test_the_judge_bounds_every_state_that_is_not_given(model, count):
    """For any states at all, heavy or not: what the search found decides nothing."""
    states, logs = every_state(model)
    rng = np.random.default_rng(count)
    given_states = states[rng.permutation(len(states))[:count]]
    kept = {row.tobytes() for row in given_states}
    others = [log for row, log in zip(states, logs, strict=True) if row.tobytes() not in kept]
    cliques = uncut(model, max_bytes=1e9)
    most = max(others, default=-math.inf)
    value = heaviest(cliques, model, given_states)
    assert value >= most
    assert value == most or value <= most + 1e-9 * (1.0 + abs(most))
    assert largest_entries(model) >= logs.max()


def test_the_judge_bounds_other_states_to_the_last_digit():
    """Tables near 1e9 that cancel: what weights are told apart by is rounding."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        model = KINDS["cancellations"](rng)
        states, logs = every_state(model)
        first = np.argsort(-logs)[: int(rng.integers(1, 4))]
        others = np.delete(logs, first).max(initial=-math.inf)
        assert heaviest(uncut(model, max_bytes=1e9), model, states[first]) >= others


def test_shifts_that_do_not_cancel_and_states_that_are_none_are_refuted():
    model = tz.potts_grid(3, states=3, seed=0)
    cliques = uncut(model, max_bytes=1e9)
    with pytest.raises(RefutedError, match="not a state of the model"):
        heaviest(cliques, model, np.full((1, 9), 3))
    with pytest.raises(RefutedError, match="not a state of the model"):
        weights_of(model, np.full((1, 9), -1))
    lost = replace(cliques, factors=[[] for _ in cliques.factors])
    with pytest.raises(RefutedError, match="in no clique"):
        heaviest(lost, model)


def test_cut_buckets_bound_and_guide_on_a_grid():
    """Exact by an order that fits; the same grid with tables of 2^7 must agree and prove it."""
    model = tz.potts_grid(6, states=3, coupling=(-2, 2), seed=3)
    exact = ground_state(model, k=5)
    assert exact.status is SearchStatus.OPTIMAL
    *_, cliques = colder.heavy_cliques(model, time_limit=math.inf, max_memory=10**9)
    walked = CliqueStates(model, cliques).heaviest(5, walks=200)
    upper = heaviest(cliques, model)
    assert upper >= exact.log_weight
    assert upper < exact.log_weight + 1.0
    others = heaviest(cliques, model, walked.walked)
    assert max(others, walked.log_weights[0]) >= exact.log_weight
    np.testing.assert_allclose(weights_of(model, walked.states), walked.log_weights)


@pytest.mark.parametrize("looks", [0, 5, 15, 40])
def test_when_the_time_ends_what_was_found_is_told_apart_from_what_was_asked(monkeypatch, looks):
    """Whatever is under way then: tables, walks or the judge."""
    model = tz.ising_grid(6, coupling=(-2, 2), seed=0)
    everything = ground_state(model, k=300, seed=0)
    assert everything.status is SearchStatus.OPTIMAL
    assert everything.n_proven == len(everything.states) == everything.asked == 300
    count = itertools.count()

    def late(self, entries=0.0):
        if next(count) >= looks:
            self.clock.stop()
        return self.clock.expired

    monkeypatch.setattr(driver._Hunt, "late", late)
    found = ground_state(model, k=300, seed=0)
    assert next(count) <= looks + 3
    assert found.status is not SearchStatus.OPTIMAL
    assert f"{len(found.states)} of 300 states asked for" in found.summary()
    assert found.log_upper >= everything.log_weight >= found.log_weight
    for mine, right in zip(
        found.log_weights[: found.n_proven], everything.log_weights, strict=False
    ):
        assert mine == pytest.approx(right, abs=1e-9)


def test_a_search_that_is_given_is_made():
    model = tz.potts_grid(4, states=3, coupling=(-2, 2), seed=1)
    exact = ground_state(model)
    search = Search(sweeps=200, patience=math.inf, enumerate_up_to=0)
    found = ground_state(model, search, seed=0, time_limit=None)
    assert found.status is SearchStatus.LIMIT
    assert found.sweeps == 200
    assert found.log_weight == pytest.approx(exact.log_weight)
    assert found.log_upper >= exact.log_weight
    again = ground_state(model, search, seed=0, time_limit=None)
    np.testing.assert_array_equal(found.states, again.states)
    early = ground_state(model, Search(target=exact.log_weight - 5.0, enumerate_up_to=0), seed=0)
    assert early.status is SearchStatus.TARGET
    assert early.log_weight >= exact.log_weight - 5.0


def test_walks_that_meet_no_allowed_state_prove_no_less(monkeypatch):
    """Equations modulo 3, the search finding nothing: walks along cut buckets end at zeros."""
    rng = np.random.default_rng(2)
    n, at = 60, np.indices((3, 3, 3))
    truth, factors = rng.integers(0, 3, n), [((v,), rng.normal(size=3)) for v in range(n)]
    for _ in range(n):
        scope, signs = rng.permutation(n)[:3], rng.integers(1, 3, 3)
        sums = (signs[:, None, None, None] * at).sum(axis=0) % 3
        allowed = sums == (signs * truth[scope]).sum() % 3
        factors.append((scope.tolist(), np.where(allowed, 0.0, -np.inf)))
    model = tz.FactorGraph([3] * n, factors)
    empty = Found(np.zeros((0, n), dtype=np.int64), SearchStatus.NONE)
    monkeypatch.setattr(driver, "uncut", lambda *args, **kwargs: None)
    monkeypatch.setattr(
        driver,
        "search_states",
        lambda m, *_, **__: replace(empty, states=empty.states[:, : len(m.cardinalities)]),
    )
    monkeypatch.setattr(colder, "UNTIMED", 6)
    found = ground_state(model, seed=0, time_limit=None, max_memory="1MB")
    assert found.log_upper >= model.log_weight(truth)[0]
    assert found.status in (SearchStatus.NONE, SearchStatus.LIMIT)


def test_a_constant_makes_no_two_states_equal():
    """Weights near 1e9 differ by less than a part in 1e9: the lighter one is not proven."""
    fields = [((v,), [0.0, 0.004]) for v in range(30)]
    triples = [((v, v + 1, v + 2), np.zeros((2, 2, 2))) for v in range(28)]
    model = tz.FactorGraph([2] * 30, [*fields, *triples, ((), 1e9)])
    hunt = driver._Hunt(
        model, driver._Ways(np.random.SeedSequence(0), None, 1, 1.0, 1, "cpu", Interrupts()), 10**6
    )
    hunt.add(np.zeros((1, 30), dtype=np.int64))
    assert hunt.log_upper - hunt.log_weights[0] == pytest.approx(0.12, abs=1e-5)
    assert not hunt.proven
    hunt.add(np.ones((1, 30), dtype=np.int64))
    assert hunt.proven


def test_search_starts_from_allowed_states_and_proves_that_there_are_none():
    rng = np.random.default_rng(0)
    differ = np.where(np.eye(3) > 0, -np.inf, 0.0)
    triangle = [((0, 1), differ), ((1, 2), differ), ((0, 2), differ)]
    colours = tz.FactorGraph(
        [3] * 12, [*(((i, (i + 1) % 12), differ + rng.normal(size=(3, 3))) for i in range(12))]
    )
    root = np.random.SeedSequence(0)
    found = search_states(colours, Search(sweeps=200), root, k=3)
    exact = ground_state(colours, k=3)
    np.testing.assert_allclose(colours.log_weight(found.states), exact.log_weights)
    none = tz.FactorGraph([2] * 3, [(s, t[:2, :2]) for s, t in triangle])
    assert search_states(none, Search(sweeps=20), root).status is SearchStatus.ZERO
    assert ground_state(none).status is SearchStatus.ZERO
    assert "proven" in ground_state(none).status.value


def test_a_network_with_evidence():
    model = tz.FactorGraph.from_tables(
        [2, 2, 3], [((0,), [0.9, 0.1]), ((1,), [0.7, 0.3]),
                    ((0, 1, 2), [[[1, 0, 0], [0.2, 0.8, 0]], [[0.1, 0.6, 0.3], [0, 0, 1]]])],
        evidence={2: 2},
    )  # fmt: skip
    found = ground_state(model, k=10)
    # p(1, 0, 2) = 0.1 * 0.7 * 0.3, p(1, 1, 2) = 0.1 * 0.3 * 1
    np.testing.assert_array_equal(found.states, [[1, 1, 2], [1, 0, 2]])
    np.testing.assert_allclose(np.exp(found.log_weights), [0.03, 0.021])
    assert found.log_others == -math.inf
    assert found.gap < 1e-12


# Draws


def rejected(drawn, states, expected):
    """Whether a chi-square test at 1e-4 tells draws from `expected` (one entry per state)."""
    from scipy.stats import chi2

    place = {row.tobytes(): i for i, row in enumerate(states)}
    seen = np.bincount([place[row.tobytes()] for row in drawn], minlength=len(states))
    if seen[expected == 0].any():
        return True
    hoped = len(drawn) * expected
    common = hoped >= 5
    counts = np.append(seen[common], seen[~common].sum())
    hoped = np.append(hoped[common], hoped[~common].sum())
    counts, hoped = counts[hoped > 0], hoped[hoped > 0]
    return ((counts - hoped) ** 2 / hoped).sum() > chi2.ppf(1.0 - 1e-4, counts.size - 1)


def network(seed):
    """A Bayesian network with zeros; the last variables are barren, one in the middle is seen."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 4, size=6)
    factors = []
    for v in range(6):
        parents = rng.choice(v, size=min(v, 2), replace=False)
        table = rng.random((*cards[parents], cards[v])) * (rng.random(cards[v]) > 0.2)
        table[..., 0] += 0.2
        factors.append(([*parents.tolist(), v], table / table.sum(axis=-1, keepdims=True)))
    return tz.FactorGraph.from_tables(cards, factors, evidence={3: 0})


@pytest.mark.parametrize("seed", range(6))
def test_draws_follow_the_model(seed):
    """Over all states; the same test refuses draws of a model that is a little hotter."""
    model = frustrated(seed, 0.1).with_evidence({0: 1}) if seed % 2 else network(seed)
    states, logs = every_state(model)
    log_z = np.logaddexp.reduce(logs)
    drawn = sample(model, 20_000, seed=seed)
    np.testing.assert_allclose(drawn.log_weights, log_z, atol=1e-12)
    assert drawn.status is Mixing.EXACT
    p = np.exp(logs - log_z)
    assert not rejected(drawn.states, states, p)
    hotter = np.where(p > 0, p**0.8, 0.0)
    assert rejected(drawn.states, states, hotter / hotter.sum())


def test_draws_of_nothing_and_of_too_much():
    assert sample(tz.FactorGraph([2, 3]), 0, seed=0).states.shape == (0, 2)
    assert sample(tz.FactorGraph([]), 3, seed=0).states.shape == (3, 0)
    with pytest.raises(ModelError, match="nothing to draw"):
        sample(tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])]), 1)
    with pytest.raises(ResourceError, match=r"log_partition\(model\)\.sample"):
        sample(tz.potts_grid(12, states=4, seed=0), 1, max_memory="1MB")


def test_results_draw_by_elimination_where_the_model_has_zeros():
    model = tz.FactorGraph([3, 3], [((0, 1), np.where(np.eye(3) > 0, -np.inf, 0.0))])
    drawn = tz.log_partition(model, time_limit=1.0, seed=0).sample(50, seed=0)
    assert (drawn.states[:, 0] != drawn.states[:, 1]).all()
    np.testing.assert_allclose(drawn.log_weights, math.log(6))


# Annealing over states


@settings(max_examples=25, deadline=None)
@given(discrete_models(evidence=False))
def test_touches_read_what_the_tables_hold(model):
    """Every site's row is the change of the log weight that the model itself sees."""
    soft = state_moves.softened(model, 7.0)
    sites = state_moves.sites_of(soft)
    rng = np.random.default_rng(0)
    x = rng.integers(0, model.cardinalities[:, None], size=(model.n_variables, 4)).astype(np.int32)
    for v in range(model.n_variables):
        d = int(model.cardinalities[v])
        row = np.empty(4 * d)
        state_moves.fill_rows.py_func(sites, v, x, row, np.empty(4, dtype=np.int64))
        for c in range(4):
            near = np.repeat(x[:, c][None], d, axis=0)
            near[:, v] = np.arange(d)
            logs = soft.log_weight(near)
            np.testing.assert_allclose(row[c::4] - row[c], logs - logs[0], atol=1e-9)
    out = np.empty(4)
    state_moves.log_weights.py_func(sites, x, out)
    constant = soft.log_tables[soft.table_ptr[:-1][soft.arities == 0]].sum()
    np.testing.assert_allclose(out + constant, soft.log_weight(x.T), atol=1e-9)


def frustrated(seed, zeros, n=6):
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 4, size=n)
    factors = []
    for _ in range(3 * n // 2):
        scope = rng.choice(n, size=int(rng.integers(1, 4)), replace=False)
        table = 1.5 * rng.normal(size=cards[scope])
        factors.append((scope.tolist(), np.where(rng.random(table.shape) < zeros, -np.inf, table)))
    return tz.FactorGraph(cards, factors)


def ratios(model, log_z, size, betas=5):
    """Means of groups of weights over Z: each has expectation 1."""
    path = StatePath.of(substitute(model).reduced)
    words = np.random.default_rng(7).integers(2**64, size=(16_000, 4), dtype=np.uint64)
    ladder = np.linspace(0.0, 1.0, betas)
    if size == 1:
        walk = path.walk(ladder, words, with_slopes=False, threads=1)
    else:
        walk = path.populations(ladder, words, size)
    return np.exp(walk.log_weights - log_z).reshape(-1, size).mean(axis=1)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(("seed", "zeros"), [(0, 0.0), (1, 0.1), (2, 0.15), (3, 0.2), (4, 0.15)])
def test_the_mean_weight_is_z_with_zeros(seed, zeros, size):
    model = frustrated(seed, zeros)
    log_z = np.logaddexp.reduce(every_state(model)[1])
    assert log_z > -np.inf
    found = ratios(model, log_z, size)
    error = found.std(ddof=1) / math.sqrt(found.size)
    assert abs(found.mean() - 1.0) < 4.5 * error + 1e-12
    assert error < 0.1


def test_weights_that_forget_the_zeros_are_told_apart():
    """The negative control: without the weight 0 at forbidden ends the mean is that of soft Z."""
    model = frustrated(3, 0.2)
    reduced = substitute(model).reduced
    log_z = np.logaddexp.reduce(every_state(model)[1])
    path = StatePath.of(reduced)
    soft = replace(path, sites=state_moves.sites_of(state_moves.softened(reduced, 1.0)))
    words = np.random.default_rng(7).integers(2**64, size=(16_000, 4), dtype=np.uint64)
    for judged, right in (
        (soft, True),
        (replace(soft, model=tz.FactorGraph(reduced.cardinalities)), False),
    ):
        walk = judged.walk(np.linspace(0, 1, 5), words, with_slopes=False, threads=1)
        found = np.exp(walk.log_weights - log_z)
        error = found.std(ddof=1) / math.sqrt(found.size)
        assert (abs(found.mean() - 1.0) < 4.5 * error) == right


def test_ais_on_states_zeros_and_evidence():
    model = frustrated(1, 0.1)
    model = model.with_evidence({0: 1})
    log_z = np.logaddexp.reduce(every_state(model)[1])
    result = tz.ais(model, chains=512, temperatures=60, seed=0)
    assert abs(result.log_z - log_z) < 5.0 * result.standard_error + 1e-9
    assert result.kernel == "single-site Gibbs on states"
    assert result.certificate(0.01).log_z <= log_z
    again = tz.ais(model, chains=512, temperatures=result.betas, seed=0, threads=2)
    np.testing.assert_array_equal(result.log_weights, again.log_weights)
    # two colours on a triangle: propagation does not see that nothing is left
    differ = np.where(np.eye(2) > 0, -np.inf, 0.0)
    none = tz.FactorGraph([2] * 3, [((0, 1), differ), ((1, 2), differ), ((0, 2), differ)])
    nothing = tz.ais(none, chains=16, temperatures=10, seed=0)
    assert nothing.log_z == -math.inf
    forced = tz.FactorGraph([2, 2], [((0,), [0.0, -np.inf]), ((0, 1), [[1.0, -np.inf], [0, 0]])])
    assert tz.ais(forced, chains=8).log_z == pytest.approx(1.0)


def test_annealing_bets_on_states_with_zeros():
    """The stream alone: bets from unbiased weights keep the truth inside."""
    from tightz.sampling.annealed import annealed

    for model in (tz.potts_grid(5, states=3, coupling=(-1, 1), seed=2), frustrated(2, 0.05, 20)):
        truth = tz.exact(model).log_z
        result = tz.log_partition(
            model, only=[annealed], time_limit=2.0, seed=0, exact=False, delta=1e-6
        )
        assert result.confident.lower <= truth
        assert result.confident.lower > truth - 2.0
        if math.isfinite(result.estimate_error):
            assert abs(result.estimate - truth) < 5.0 * result.estimate_error + 1e-6
