"""Draws under a mini-bucket cap: the proposal, its weights, the cap, the stream that uses them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import tightz as tz
from tests.streams import outcome
from tightz.elimination.order import Order, Orders
from tightz.judge import RefutedError
from tightz.judge.proposals import cap_excess, check_weights
from tightz.runtime.clock import Clock
from tightz.sampling.capped.forecast import Outlook
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.capped.stream import BESIDE, MAIN, CappedDraws, capped
from tightz.sampling.capped.tally import Tally
from tightz.sampling.capped.wide import WideDraws
from tightz.sampling.ledger import Ledger
from tightz.uppers.mini_bucket.run import MiniBucket, Run, Tried
from tightz.workspace.findings import Draws, Mixing, Source
from tightz.workspace.working import Working, alone


def random_model(seed: int, *, zeros: bool = False, states: int = 2) -> tz.FactorGraph:
    """Ten variables on a ring with chords, so that ibound 1 cuts buckets."""
    rng = np.random.default_rng(seed)
    n = 10
    cards = rng.integers(2, states + 1, n)
    pairs = [(i, (i + 1) % n) for i in range(n)] + [(i, (i + 3) % n) for i in range(n)]
    factors = []
    for a, b in pairs:
        table = rng.normal(0.0, 1.5, (cards[a], cards[b]))
        if zeros:
            table[rng.random(table.shape) < 0.15] = -np.inf
        factors.append(((a, b), table))
    factors.append(((0, 4, 7), rng.normal(size=(cards[0], cards[4], cards[7]))))
    return tz.FactorGraph(cards, factors)


def proposal_of(model: tz.FactorGraph, ibound: int = 1, iterations: int = 12) -> Proposal:
    run = Run(Orders(model), MiniBucket(ibound, iterations), 0.0)
    for _ in run.steps:
        pass
    assert run.descent is not None
    assert not run.descent.parts.exact
    return Proposal.of(model, run.descent)


def all_states(model: tz.FactorGraph) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, model.cardinalities))))


def by_hand(p: Proposal, x: np.ndarray) -> tuple[float, float]:
    """(q(x), product of the S) of one state, straight from the definition."""
    q, product = 1.0, 1.0
    skel = p.skeleton
    for b in range(len(skel.bucket_ptr) - 2, -1, -1):
        own = p.parts.cliques[skel.bucket_ptr[b]][-1]
        mass = np.ones(int(p.cardinalities[own]))
        for c in range(skel.bucket_ptr[b], skel.bucket_ptr[b + 1]):
            scope = p.parts.cliques[c]
            table = p.tables[skel.table_ptr[c] : skel.table_ptr[c + 1]].astype(np.float64)
            table = table.reshape([p.cardinalities[v] for v in scope])
            mass = mass * table[tuple(x[v] for v in scope[:-1])]
        total = mass.sum()
        if total == 0.0:
            return 0.0, 0.0
        q *= mass[x[own]] / total
        product *= total
    return q, product


MODELS = [
    pytest.param({"seed": 1}, id="positive"),
    pytest.param({"seed": 2, "zeros": True}, id="zeros"),
    pytest.param({"seed": 3, "states": 3}, id="three states"),
    pytest.param({"seed": 4, "states": 4, "zeros": True}, id="four states, zeros"),
]


@pytest.mark.parametrize("kind", MODELS)
def test_weights_are_unbiased_and_capped_over_all_states(kind):
    model = random_model(**kind)
    p = proposal_of(model)
    states = all_states(model)
    if len(states) > 20_000:
        states = states[:: len(states) // 20_000 + 1]
    pairs = np.array([by_hand(p, x) for x in states])
    q, product = pairs.T
    weights = np.exp(model.log_weight(states) - p.log_u)
    alive = q > 0
    # p~ / q is U times the product of the S, for every state
    assert weights[alive] / q[alive] == pytest.approx(product[alive], rel=1e-5)
    assert product.max() <= math.exp(p.log_cap - p.log_u) + 1e-12
    if len(states) == math.prod(model.cardinalities.tolist()):
        assert weights[~alive].sum() == 0.0  # nothing that has weight is never drawn
        dead = 1.0 - q.sum()  # contexts that lead nowhere
        assert -1e-9 < dead < 1.0 - 1e-6
        assert (q * product).sum() == pytest.approx(weights.sum(), rel=1e-5)


def test_weights_at_the_cap_are_within_what_is_said_of_them():
    """Tables that couple nothing: every weight is U, to the seven digits that tables have."""
    rng = np.random.default_rng(0)
    beyond = off = 0.0
    for _ in range(20):
        own = [((v,), rng.normal(size=3)) for v in range(12)]
        flat = [((0, 1), np.zeros((3, 3))), ((0, 2), np.zeros((3, 3))), ((1, 2), np.zeros((3, 3)))]
        model = tz.FactorGraph([3] * 12, [*own, *flat])
        p = proposal_of(model)
        x = rng.integers(3, size=12)
        q, product = by_hand(p, x)
        beyond = max(beyond, math.log(product))
        assert math.log(product) <= p.log_cap - p.log_u
        wrong = abs(float(model.log_weight(x[None])[0]) - math.log(q) - p.log_u - math.log(product))
        off = max(off, wrong)
        assert wrong <= p.rounding
    assert beyond > 1e-9
    assert off > 1e-9


@pytest.mark.parametrize("kind", MODELS)
def test_the_kernel_draws_from_that_distribution(kind):
    model = random_model(**kind)
    p = proposal_of(model)
    drawing = p.drawing(np.random.default_rng(5).integers(2**64, size=1024, dtype=np.uint64))
    rows, logs = [], []
    for _ in range(40):
        logs.append(drawing.batch())
        rows.append(drawing.states.T.astype(np.int64).copy())
    states, log_x = np.concatenate(rows), np.concatenate(logs)
    for k in range(0, 60):
        q, product = by_hand(p, states[k])
        assert log_x[k] == pytest.approx(math.log(product) if product else -math.inf, abs=1e-5)
    # frequencies of single states and of pairs against q, for the states met most
    found, counts = np.unique(states[log_x > -math.inf], axis=0, return_counts=True)
    n = len(states)
    for i in np.argsort(-counts)[:50]:
        q, _ = by_hand(p, found[i])
        assert abs(counts[i] / n - q) < 5.0 * math.sqrt(q / n)
    # the mean of the weights is Z, by its own error
    x = np.exp(log_x)
    exact = tz.exact(model).log_z
    off = x.mean() * math.exp(p.log_u - exact) - 1.0
    error = x.std() / x.mean() / math.sqrt(n)
    assert abs(off) < 4.5 * error + 1e-6
    p.check(drawing)


def test_a_biased_sampler_would_be_seen():
    """The control of the test above: one lane's coin in ten is wrong."""
    model = random_model(seed=1)
    p = proposal_of(model)
    drawing = p.drawing(np.random.default_rng(5).integers(2**64, size=1024, dtype=np.uint64))
    x = np.exp(np.concatenate([drawing.batch() for _ in range(40)]))
    inflated = 1.1 * x
    off = inflated.mean() * math.exp(p.log_u - tz.exact(model).log_z) - 1.0
    assert abs(off) > 4.5 * inflated.std() / inflated.mean() / math.sqrt(x.size)


def test_the_judge_refuses_wrong_weights_tables_and_caps():
    model = random_model(seed=1)
    p = proposal_of(model)
    skel, cliques = p.skeleton, p.parts.cliques
    drawing = p.drawing(np.random.default_rng(1).integers(2**64, size=64, dtype=np.uint64))
    drawing.batch()
    states = drawing.states.T.astype(np.int64)
    good = drawing.log_x + p.log_u

    def check(tables, logs):
        check_weights(model, cliques, skel.table_ptr, skel.bucket_ptr, tables, states, logs, 1e-4)

    check(p.tables, good)
    with pytest.raises(RefutedError, match="differs from p~ / q"):
        check(p.tables, good + 1e-3)
    wrong = p.tables.copy()
    wrong[skel.table_ptr[-2] :] *= np.float32(0.9)
    with pytest.raises(RefutedError, match="differs from p~ / q"):
        check(wrong[::-1].copy(), good)
    run = Run(Orders(model), MiniBucket(1, 0), 0.0)
    next(run.steps)
    found, skel = run.descent.conditionals(), run.descent.skeleton
    w, tables = found.weights, found.tables
    own = skel.dims[skel.axis_ptr[1:] - 1]
    assert 0.0 <= cap_excess(own, skel.table_ptr, skel.bucket_ptr, tables, w) < 1e-5
    raised = cap_excess(own, skel.table_ptr, skel.bucket_ptr, tables * np.float32(1.01), w)
    assert raised == pytest.approx(len(own) * math.log(1.01), rel=0.05)
    with pytest.raises(RefutedError, match="not positive"):
        cap_excess(own, skel.table_ptr, skel.bucket_ptr, tables, -w)
    with pytest.raises(RefutedError, match="sum to"):
        cap_excess(own, skel.table_ptr, skel.bucket_ptr, tables, 2.0 * w)
    with pytest.raises(RefutedError, match="not finite"):
        cap_excess(own, skel.table_ptr, skel.bucket_ptr, tables * np.float32(np.inf), w)


def test_tallies_give_marginals_estimate_and_samples_of_the_model():
    model = random_model(seed=3, states=3)
    p = proposal_of(model, ibound=2)
    exact = tz.exact(model)
    drawing = p.drawing(np.random.default_rng(2).integers(2**64, size=1024, dtype=np.uint64))
    tally = Tally.of(p, exact.log_z)
    rng = np.random.default_rng(3)
    for _ in range(60):
        drawing.batch()
        tally.add(drawing, rng)
    estimate = tally.estimate()
    assert abs(estimate.log_z - exact.log_z) < 4.0 * estimate.error
    worst = max(
        np.abs(a - b).max() for a, b in zip(tally.marginals(), exact.marginals, strict=True)
    )
    assert worst < 0.03
    sampler = tally.sampler(estimate, tz.log_partition(model, time_limit=1).marginal_status)
    drawn = sampler(4000, seed=1).states
    for i, marginal in enumerate(exact.marginals):
        counts = np.bincount(drawn[:, i], minlength=len(marginal)) / len(drawn)
        assert np.abs(counts - marginal).max() < 0.05


def soft_pigeons(pigeons: int, holes: int, penalty: float) -> tz.FactorGraph:
    """Maps of pigeons to holes, a penalty for every two that share one."""
    pairs = itertools.combinations(range(pigeons), 2)
    return tz.FactorGraph([holes] * pigeons, [(p, -penalty * np.eye(holes)) for p in pairs])


@pytest.mark.parametrize("seed", range(4))
def test_under_a_far_cap_no_small_error_is_claimed(seed):
    """Draws of one weight miss most of Z: their scatter alone (the control) says 1e-4."""
    model = soft_pigeons(7, 6, 20.0)
    p, log_z = proposal_of(model, ibound=2), tz.exact(model).log_z
    tally = Tally.of(p, log_z)
    rng = np.random.default_rng(seed)
    drawing = p.drawing(rng.integers(2**64, size=1024, dtype=np.uint64))
    for _ in range(20):
        drawing.batch()
        tally.add(drawing, rng)
    estimate = tally.estimate()
    scatter = math.sqrt(max(0.0, tally.square / tally.mass**2 - 1.0 / tally.drawn))
    assert abs(estimate.log_z - log_z) > 10.0 * scatter
    assert abs(estimate.log_z - log_z) <= 2.0 * estimate.error


@pytest.mark.parametrize("batches", [2, 8])
def test_kept_states_stand_for_the_model_however_many_were_drawn(batches):
    """Fewer draws than are kept come from q, not from p: without weights they are off."""
    model = random_model(seed=1)
    rng = np.random.default_rng(0)
    p, exact = proposal_of(model, iterations=1), tz.exact(model)
    drawing = p.drawing(rng.integers(2**64, size=1024, dtype=np.uint64))
    tally = Tally.of(p, exact.log_z)
    for _ in range(batches):
        drawing.batch()
        tally.add(drawing, rng)
    drawn = tally.sampler(tally.estimate(), Mixing.MIXED)(2000, seed=1)
    shares = np.exp(drawn.log_weights - drawn.log_weights.max())
    shares /= shares.sum()
    states = all_states(model)
    logs = model.log_weight(states)
    mean, found = np.exp(logs - exact.log_z) @ logs, model.log_weight(drawn.states)
    error = math.sqrt(float(shares**2 @ (found - shares @ found) ** 2))
    assert abs(shares @ found - mean) < 4.0 * error
    if batches == 2:
        assert abs(found.mean() - mean) > 6.0 * error


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
def test_more_states_than_a_byte_has(order):
    """They were once drawn modulo 256: an estimate that was 37 of its errors too high."""
    rng = np.random.default_rng(0)
    cards = [300, 3, 2, 2, 2]
    pairs = itertools.combinations(range(5), 2)
    model = tz.FactorGraph(
        cards, [((i, j), rng.normal(size=(cards[i], cards[j]))) for i, j in pairs]
    )
    run = Run(Orders(model), MiniBucket(9, 12), 0.0, [Tried(Order.CUTS, np.array(order))])
    for _ in run.steps:
        pass
    assert run.descent is not None
    assert not run.descent.parts.exact
    p, exact = Proposal.of(model, run.descent), tz.exact(model)
    drawing = p.drawing(rng.integers(2**64, size=1024, dtype=np.uint64))
    tally = Tally.of(p, exact.log_z)
    for _ in range(40):
        drawing.batch()
        tally.add(drawing, rng)
    p.check(drawing)
    estimate = tally.estimate()
    assert abs(estimate.log_z - exact.log_z) < 4.5 * estimate.error
    assert np.abs(tally.marginals()[0] - exact.marginals[0]).max() < 0.01


def test_an_outlook_forecasts_what_draws_give():
    rng = np.random.default_rng(0)
    logs = np.minimum(rng.normal(-3.0 - 0.125, 0.5, 20_000), 0.0)
    outlook = Outlook.of(logs, 1.0)
    assert outlook.gap == pytest.approx(3.0, abs=0.05)
    assert outlook.log_excess == pytest.approx(0.25, abs=0.05)
    widths = [outlook.width(t) for t in (0.001, 0.1, 1.0, 10.0, 1000.0)]
    assert all(a > b for a, b in itertools.pairwise(widths))
    # far from the cap the width falls as one over the root of the draws
    assert widths[3] / widths[4] == pytest.approx(10.0, rel=0.05)
    far = Outlook(20.0, 0.25, 1e4)
    assert far.width(10.0) > 20.0 - math.log(1e5)  # the cap keeps the upper end away
    assert Outlook.of(np.full(100, -np.inf), 1.0).width(10.0) == math.inf
    assert outlook.tightened(1.5).width(1.0) < outlook.width(1.0)


@pytest.mark.parametrize("gap", [1.0, 4.0, 7.0, 10.0])
@pytest.mark.parametrize("draws", [3_000, 100_000, 2_000_000])
def test_an_outlook_forecasts_the_width_that_the_ledger_gives(gap, draws):
    """Also where an unseen weight at the cap is all that keeps the upper end away."""
    outlook = Outlook(gap, 0.25, 1e4)
    promised = outlook.width(draws / 1e4)
    logs = np.random.default_rng(draws).normal(-gap - 0.125, 0.5, draws)
    source = Source("mini-bucket", -gap, 0.0, spread=math.sqrt(math.expm1(0.25)), expected=draws)
    ledger = Ledger(0.05)
    ledger.add(Draws(source, np.minimum(logs, 0.0)))
    assert 0.5 < (ledger.upper() - ledger.lower()) / promised < 2.0


SURE = 1e-6
"""delta where the truth must be inside: at 0.05 a test would fail once in a thousand runs."""


@pytest.mark.parametrize("seed", range(4))
def test_both_ends_enclose_the_truth_and_are_narrow(seed):
    model = tz.ising_grid(12, coupling=(-2, 2), field=(-0.5, 0.5), seed=seed)
    exact = tz.exact(model).log_z
    options = {"exact": False, "only": [capped], "delta": SURE}
    r = tz.log_partition(model, time_limit=4, seed=seed, **options)
    assert r.lower <= exact <= r.upper
    assert r.confident.lower <= exact <= r.confident.upper
    assert not r.failures
    assert not r.quarantined
    assert not r.is_exact
    if not math.isinf(r.estimate_error):
        assert abs(r.estimate - exact) < 5.0 * r.estimate_error


@pytest.mark.parametrize("kind", MODELS)
def test_any_discrete_model_goes_through_the_stream(kind):
    model = random_model(**kind)
    options = {"exact": False, "only": [capped], "delta": SURE}
    r = tz.log_partition(model, time_limit=3, seed=1, **options)
    exact = tz.exact(model).log_z
    assert r.upper >= exact - 1e-9
    assert r.confident.lower <= exact <= r.confident.upper
    assert not r.failures


def test_the_next_step_needs_no_measured_pace():
    """A run that settles at once measures nothing: the next one is made all the same."""
    working = Working(random_model(seed=1), Clock(30.0), exact=False)
    bounds = CappedDraws(working, working.clock).bounds
    run = Run(working.orders, MiniBucket(1, 0), 0.0)
    assert bounds.pace == bounds.setup == 0.0
    assert outcome(bounds.larger(run, 1)) is not None


@pytest.mark.parametrize(("a_clique", "starts"), [(1e-4, True), (1.0, False)])
def test_tables_that_cannot_be_judged_in_the_time_do_not_start(monkeypatch, a_clique, starts):
    monkeypatch.setattr("tightz.sampling.capped.tightening.JUDGING", a_clique)
    working = Working(tz.ising_grid(9, seed=1), Clock(30.0), exact=False)
    bounds = CappedDraws(working, working.clock).bounds
    assert bool(list(alone(bounds.scout()))) == starts


def test_iterations_end_while_there_is_time_for_a_judgement(monkeypatch):
    working = Working(tz.ising_grid(9, seed=1), Clock(30.0), exact=False)
    bounds = CappedDraws(working, working.clock).bounds
    run = Run(working.orders, MiniBucket(2, 10**6), 0.0)
    monkeypatch.setattr("tightz.sampling.capped.tightening.JUDGING", 1.0)
    list(bounds.iterate(run))
    assert run.passes <= 1 + len(run.candidates)
    monkeypatch.setattr("tightz.sampling.capped.tightening.JUDGING", 1e-4)
    list(bounds.iterate(run))
    assert run.passes > 4


def test_draws_that_begin_after_all_tables_have_a_share():
    """Where no proposal was any good while tightening, the first outlook comes after it."""
    working = Working(random_model(seed=1), Clock(30.0), exact=False)
    job = CappedDraws(working, working.clock)
    run = Run(working.orders, MiniBucket(2, 5), 0.0)
    assert math.isinf(outcome(job._look(run)).gap)  # made when the time was over
    for _ in run.steps:
        pass
    for _ in job._look(run):
        pass
    assert job.best is not None
    assert not job.bounds.gaps
    assert 0.0 < job.share < 1.0


def test_evidence_and_an_empty_model():
    model = tz.ising_grid(10, seed=3).with_evidence({0: 1, 55: 0})
    options = {"exact": False, "only": [capped], "delta": SURE}
    r = tz.log_partition(model, time_limit=3, seed=1, **options)
    exact = tz.exact(model).log_z
    assert r.confident.lower <= exact <= r.confident.upper
    assert len(r.marginals) == model.n_variables
    nothing = tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf))])
    assert tz.log_partition(nothing, time_limit=1, only=[capped]).upper == -math.inf


def test_exact_false_forbids_the_exact_answer_and_nothing_else():
    model = tz.ising_grid(9, seed=1)
    clock = Clock(30.0)
    working = Working(model, clock, exact=False)
    job = CappedDraws(working, clock)
    bounds = [f for f in alone(job.tighten()) if isinstance(f, tz.bounds.Bound)]
    assert all(b.side is tz.bounds.Side.UPPER for b in bounds)
    widest = max(int(b.method.split()[-1]) for b in bounds)
    assert widest < 9
    strong = Working(tz.ising_grid(16, coupling=(-8, 8), seed=1), Clock(30.0), exact=False)
    job = CappedDraws(strong, strong.clock)
    found = (f for f in alone(job(strong, strong.clock)) if isinstance(f, tz.bounds.Bound))
    assert any(int(b.method.split()[-1]) > 10 for b in found)


def test_huge_numbers_are_bounded_but_not_drawn():
    """Weights that float64 cannot tell apart to a hundredth are no draws; upper ends go on."""
    rng = np.random.default_rng(1)
    model = tz.ising_grid(8, coupling=(-1e13, 1e13), seed=rng)
    options = {"exact": False, "only": [capped], "delta": SURE}
    r = tz.log_partition(model, time_limit=3, seed=1, **options)
    assert math.isfinite(r.upper)
    assert r.ledger is not None
    assert not r.ledger.accounts
    assert not r.failures


def drawing_stream(kind: type[CappedDraws], working: Working) -> CappedDraws:
    """The stream at the moment when its draws until the end begin."""
    found = kind(working, working.clock)
    found.best = proposal_of(working.graph), Outlook(1.0, 0.5, 1e6)
    found._prepare(*found.best)
    return found


def test_of_two_streams_one_draws_for_a_track():
    """What the second drew enters after all that the first had begun: the proof asks for an order
    of a track's draws that does not depend on them."""
    working = Working(random_model(seed=1), Clock(60.0), exact=False, threads=2)
    first, second = drawing_stream(CappedDraws, working), drawing_stream(WideDraws, working)
    cores = alone(first.draws(working, working.clock))
    device = second.draws(working, working.clock)
    entered = [next(cores).draws.source.track for _ in range(2)]
    assert set(entered) == {MAIN}
    assert next(device).draws is None  # a batch of the cores is under way
    entered = [next(cores).draws.source.track for _ in range(3)]
    assert entered == [MAIN, BESIDE, BESIDE]  # that one, and the next go elsewhere
    held = [next(device).draws for _ in range(2)]  # the batch that waited, and one more
    assert all(draws.source.track == MAIN for draws in held)


def test_a_stream_that_ends_leaves_the_track_to_the_other():
    working = Working(random_model(seed=1), Clock(60.0), exact=False, threads=2)
    first, second = drawing_stream(CappedDraws, working), drawing_stream(WideDraws, working)
    cores = alone(first.draws(working, working.clock))
    device = second.draws(working, working.clock)
    next(cores)
    assert next(device).draws is None
    cores.close()
    assert next(device).draws.source.track == MAIN
