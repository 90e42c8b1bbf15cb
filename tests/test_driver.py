"""The driver: findings merged in one thread, false ones set aside, failures survived."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tightz.bounds import Bound, Proof, Side
from tightz.interval import log_partition as driver
from tightz.interval import opening as opening_module
from tightz.interval import portfolio
from tightz.interval.board import Board, Doubt
from tightz.interval.lanes import Schedule
from tightz.interval.opening import opening
from tightz.interval.streams.exact import exact_marginals
from tightz.judge import Audited, ProductEvidence, StatesEvidence
from tightz.runtime.clock import Clock
from tightz.runtime.kernels.farm import Farm
from tightz.sampling.ledger import Ledger
from tightz.workspace import working as working_module
from tightz.workspace import workspace as workspace_module
from tightz.workspace.findings import Draws, Finding, Marginals, Mixing, PointEstimate, Source
from tightz.workspace.working import Launch, Planned, Working, name_of

MODEL = tz.ising_grid(3, coupling=(-2, 2), seed=0)
LOG_Z, TRUTH = naive.enumerate_model(MODEL.cardinalities, MODEL.factors, MODEL.evidence)


def lower(value, evidence=None, method="mine"):
    return Bound(Side.LOWER, value, Proof.DETERMINISTIC, method, confidence=1.0, evidence=evidence)


def upper(value, evidence=None, method="mine"):
    return Bound(Side.UPPER, value, Proof.DETERMINISTIC, method, confidence=1.0, evidence=evidence)


def uniform(working, clock):
    return ProductEvidence([np.full(int(d), 1.0 / d) for d in working.graph.cardinalities])


def test_a_bound_without_evidence_is_not_an_answer():
    def liar(working, clock):
        yield lower(LOG_Z + 30.0)

    result = tz.log_partition(MODEL, time_limit=5, only=[liar])
    assert result.lower <= LOG_Z <= result.upper
    [refused] = result.quarantined
    assert refused.bound.log_z == LOG_Z + 30.0
    assert "needs evidence" in refused.reason
    assert "DEFECT: mine" in result.summary()
    assert all(bound.method != "mine" for bound in result.bounds)


def test_the_judge_s_number_counts_not_the_maker_s():
    def boaster(working, clock):
        yield lower(LOG_Z + 0.3, uniform(working, clock))

    result = tz.log_partition(MODEL, time_limit=5, only=[boaster])
    assert result.lower <= LOG_Z
    assert not [b for b in result.bounds if b.log_z > LOG_Z and b.side is Side.LOWER]

    def honest(working, clock):
        evidence = uniform(working, clock)
        yield lower(evidence.verdict(working.graph).lower, evidence)

    result = tz.log_partition(MODEL, time_limit=5, only=[honest])
    assert not result.quarantined
    assert result.lower_proof.rounding > 0.0


def test_a_claim_far_above_its_evidence_is_reported():
    def liar(working, clock):
        yield lower(LOG_Z + 30.0, uniform(working, clock))

    result = tz.log_partition(MODEL, time_limit=5, only=[liar])
    assert result.lower <= LOG_Z
    assert "its evidence gives" in result.quarantined[0].reason


def test_ends_that_contradict_each_other_never_reach_the_answer():
    def crossed(working, clock):
        yield Bound(
            Side.BOTH, LOG_Z, Proof.DETERMINISTIC, "right", confidence=1.0,
            evidence=Audited(LOG_Z, 1e-9),
        )  # fmt: skip
        time.sleep(0.1)

    def low(working, clock):
        yield Bound(
            Side.BOTH, LOG_Z - 1.0, Proof.DETERMINISTIC, "wrong", confidence=1.0,
            evidence=Audited(LOG_Z - 1.0, 1e-9),
        )  # fmt: skip

    board = Board(Clock(5.0))
    board.take(lower(3.0))
    board.take(upper(2.0))
    assert (board.ends.lower, board.ends.upper) == (3.0, math.inf)
    assert board.quarantined[0].bound.log_z == 2.0
    assert "log Z >= 3.0 is proven" in board.quarantined[0].reason
    for methods in ([crossed, low], [low, crossed]):
        result = tz.log_partition(MODEL, time_limit=5, only=methods)
        assert result.lower <= result.upper


def test_a_certificate_above_a_proven_end_is_dropped_with_a_note():
    board = Board(Clock(5.0))
    board.take(upper(2.0))
    board.take(Bound(Side.LOWER, 2.5, Proof.CONFIDENCE, "luck", confidence=0.95))
    assert board.confident_lower.log_z == -math.inf
    assert not board.quarantined
    assert "dropped" in board.notes[0]
    board.take(Bound(Side.LOWER, 2.6, Proof.CONFIDENCE, "luck", confidence=0.95))
    assert len(board.notes) == 1


def test_certificates_that_contradict_each_other_or_a_proof():
    board = Board(Clock(5.0))
    board.take(Bound(Side.UPPER, 2.0, Proof.CONFIDENCE, "first", confidence=0.99))
    board.take(Bound(Side.LOWER, 2.5, Proof.CONFIDENCE, "second", confidence=0.98))
    assert (board.confident_lower.log_z, board.confident_upper.log_z) == (-math.inf, 2.0)
    assert "[-inf, 2.0] was certified before" in board.notes[0]
    # the ledger's 0.05 and both streams' own shares: whichever carries the end
    assert board.confidence == pytest.approx(1 - 0.05 - 0.01 - 0.02)
    board.take(lower(3.0))
    board.take(upper(4.0))
    assert (board.confident_lower.log_z, board.confident_upper.log_z) == (3.0, 4.0)
    assert "first: 2.0 was certified with confidence 0.99 and is refuted by" in board.notes[1]


def test_draws_are_written_down_before_what_they_lead_to_is_shown():
    order = []
    board = Board(
        Clock(5.0),
        on_bound=lambda b: order.append((b.side, b.proof)),
        keep_ledger=lambda ledger: order.append(ledger.accounts[0].drawn),
    )
    source = Source("mini-bucket", 0.0, 1.0, spread=0.1, expected=1000)
    for size in (1000, 2000):
        board.merge(Finding(draws=Draws(source, np.full(size, -0.1))))
        board.read()
        board.take(lower(-5.0 + size / 1000))
        board.take(upper(5.0 - size / 1000))
    shown = [(Side.LOWER, Proof.CONFIDENCE), (Side.UPPER, Proof.CONFIDENCE)]
    proven = [(Side.LOWER, Proof.DETERMINISTIC), (Side.UPPER, Proof.DETERMINISTIC)]
    assert order == [1000, *shown, *proven, 3000, *shown, *proven]


class Panic(BaseException):
    """What an extension raises that `except Exception` misses."""


@pytest.mark.parametrize("error", [RuntimeError, Panic, MemoryError, AssertionError])
def test_a_failing_stream_costs_only_itself(error, caplog):
    def failing(working, clock):
        yield lower(-1e6, StatesEvidence(np.zeros((1, working.graph.n_variables), dtype=np.int64)))
        raise error("no luck")

    result = tz.log_partition(MODEL, time_limit=20, only=[failing, opening])
    assert result.is_exact
    assert result.lower <= LOG_Z <= result.upper
    alone = tz.log_partition(MODEL, time_limit=5, only=[failing])
    assert alone.lower <= LOG_Z <= alone.upper
    [failure] = alone.failures
    assert "stream failing ended early" in failure
    assert "no luck" in failure
    assert failure in alone.notes
    assert "Traceback" in caplog.text


def test_nan_is_set_aside():
    def broken(working, clock):
        yield lower(float("nan"), uniform(working, clock))

    result = tz.log_partition(MODEL, time_limit=5, only=[broken])
    assert "not a number" in result.quarantined[0].reason


def test_exact_marginals_are_not_replaced_by_a_late_mean_field():
    done = threading.Event()
    wrong = [np.array([1.0, 0.0])] * MODEL.n_variables

    def exact(working, clock):
        yield from opening(working, clock)
        done.set()

    def late(working, clock):
        done.wait(20)
        yield Finding(marginals=Marginals(wrong, "late", 1e9))

    result = tz.log_partition(MODEL, time_limit=20, only=[late, exact])
    assert result.marginal_source == "exact"
    assert result.marginal_status is Mixing.EXACT
    np.testing.assert_allclose(result.marginals, TRUTH, atol=1e-9)


def test_marginals_come_from_the_stream_that_closed_the_interval():
    """Another stream's end must not cut the wait short."""

    def quick(working, clock):
        return
        yield

    def slow(working, clock):
        yield Bound(
            Side.BOTH, LOG_Z, Proof.DETERMINISTIC, "slow", confidence=1.0,
            evidence=Audited(LOG_Z, 1e-9),
        )  # fmt: skip
        time.sleep(0.5)
        yield from exact_marginals(tz.exact(working.graph))

    result = tz.log_partition(MODEL, time_limit=20, only=[slow, quick])
    assert result.marginal_status is Mixing.EXACT


def test_marginals_that_are_no_distributions_are_dropped():
    def broken(working, clock):
        bad = [np.array([0.9, 0.9])] * working.graph.n_variables
        yield Finding(marginals=Marginals(bad, "broken", 0.0))

    result = tz.log_partition(MODEL, time_limit=5, only=[broken])
    assert result.marginals is None
    assert "no distributions" in result.failures[0]


def test_many_draws_that_may_have_missed_a_part_come_before_a_q():
    few, many = -math.inf, 500.0
    drawn = [
        Marginals([], "few draws", few, Mixing.NOT_MIXED),
        Marginals([], "q", 1e3, Mixing.VARIATIONAL),
        Marginals([], "many draws", many, Mixing.NOT_MIXED),
        Marginals([], "draws that cover", 60.0, Mixing.MIXED),
    ]
    for order in (drawn, drawn[::-1]):
        board = Board(Clock(5.0))
        told = []
        for one in order:
            board.merge(Finding(marginals=one))
            told.append(board.marginals.source)
        assert told[-1] == "draws that cover"
    board = Board(Clock(5.0))
    board.merge(Finding(marginals=drawn[2]))
    board.merge(Finding(marginals=drawn[1]))
    assert board.marginals.source == "many draws"


@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_the_estimate_lies_in_the_confident_interval(delta):
    board = Board(Clock(5.0), ledger=Ledger(delta))
    board.take(lower(0.0))
    board.take(upper(100.0))
    for side, value in ((Side.LOWER, 10.0), (Side.UPPER, 20.0)):
        board._take(Bound(side, value, Proof.CONFIDENCE, "draws", confidence=1 - delta))
    board.merge(Finding(estimate=PointEstimate(9.5, 0.6, "annealing", "ais", 500.0)))
    found = board.point_estimate()
    assert 10.0 <= found.log_z <= 20.0
    assert 0.1 < found.error < 2.5


def test_child_clocks_end_with_their_parent():
    parent = Clock(100.0)
    child = parent.child(50.0)
    assert 0.0 < child.left <= 50.0
    grandchild = child.child(math.inf)
    assert grandchild.left <= 50.0
    parent.stop()
    assert child.expired
    assert grandchild.expired


def test_a_clock_may_have_begun_before():
    assert Clock(100.0, since=time.perf_counter() - 40.0).left <= 60.0


def test_what_a_first_call_loads_is_on_its_clock(monkeypatch):
    monkeypatch.setattr(driver, "load_streams", partial(time.sleep, 1.0))
    assert tz.log_partition(MODEL, time_limit=0.5, exact=False).seconds >= 1.0


def test_others_run_beside_an_exact_sum_that_is_overdue(monkeypatch):
    """It was predicted to take no time, so it began alone."""
    others = threading.Event()

    def endless(working, clock):
        others.wait(clock.left)
        yield from ()

    def other(working, clock):
        others.set()
        yield Finding(note="here")

    monkeypatch.setattr(opening_module, "exactly", endless)
    monkeypatch.setattr(opening_module, "solved", lambda *_: iter(()))
    monkeypatch.setattr(opening_module, "takes_long", lambda *_: False)
    monkeypatch.setattr(opening_module, "alone", lambda _: 0.1)
    monkeypatch.setattr(opening_module, "side_by_side", lambda: Launch((other,)))
    result = tz.log_partition(tz.ising_grid(6, seed=0), time_limit=5.0)
    assert "here" in result.notes
    assert result.seconds < 4.0  # both ended long before the time


def test_a_sum_that_ends_in_time_stays_alone(monkeypatch):
    started = []
    monkeypatch.setattr(opening_module, "side_by_side", lambda: started.append(1) or Launch(()))
    tz.log_partition(tz.ising_grid(6, seed=0), time_limit=60.0)
    assert not started


def test_exact_results_carry_their_rounding():
    result = tz.log_partition(MODEL, time_limit=20)
    assert result.lower <= LOG_Z <= result.upper
    assert 0.0 < result.upper - result.lower < 1e-9
    assert result.lower_proof.rounding > 0.0


# --- Who is advanced next --------------------------------------------------------------------


def idle(working, clock):
    yield from ()


def schedule_of(*rates: float) -> Schedule:
    """Lanes that have each run for a second and gained so much."""
    found = Schedule(Working(MODEL, Clock(100.0)), memory=10.0, farm=Farm())
    found.add([idle] * len(rates))
    for lane, rate in zip(found.lanes, rates, strict=True):
        lane.here.hope = 0.0
        lane.here.spend(1.0, found.memory)
        lane.here.gain = rate * (lane.here.recent + lane.here.credit)
    return found


def test_the_stream_that_gains_fastest_is_advanced():
    found = schedule_of(0.1, 0.5, 0.2)
    assert found.take().lane is found.lanes[1]
    assert found.take().lane is found.lanes[2]  # the first is running


def test_a_new_stream_is_tried_and_loses_credit_without_gains():
    found = schedule_of(0.1, 0.2)
    found.add([lambda working, clock: iter(())])  # not one that runs already
    newcomer = found.lanes[2]
    assert found.take().lane is newcomer
    for _ in range(20):
        found.give_back(newcomer, 1.0, ended=False)
        newcomer.running = True
    newcomer.running = False
    assert newcomer.here.rate < 0.1
    assert found.take().lane is not newcomer


def test_no_stream_is_starved():
    found = schedule_of(0.0, 1.0)
    found.give_back(found.lanes[1], 100.0, ended=False)
    found.lanes[1].here.gain = 1e9
    assert found.take().lane is found.lanes[0]


def test_promises_beyond_all_of_the_time_are_kept_in_proportion():
    """The smallest is not starved by those that never get all they were promised."""
    found = Schedule(Working(MODEL, Clock(100.0)), memory=10.0, farm=Farm())
    shares = 0.6, 0.5, 0.2
    found.add([Planned(lambda working, clock: idle(working, clock), share) for share in shares])
    for _ in range(130):
        lane = found.take().lane
        found.give_back(lane, 1.0)
    for lane, share in zip(found.lanes, shares, strict=True):
        assert lane.here.seconds == pytest.approx(100.0 * share, abs=2.0)


def test_a_layer_is_summed_out_beside_all_that_dense_models_promise():
    """On two cores nothing was left for it, and the lower end stayed at mean field's."""
    promised = [
        Planned(idle, portfolio.DENSE_ANNEALING),
        Planned(idle, portfolio.DENSE_ELIMINATION),
    ]
    methods = [*portfolio.LOWER, *portfolio.FROM_STATES_DENSE]
    names = [name_of(method) for method in methods]
    methods = [
        replace(each, method=idle) if isinstance(each, Planned) else partial(idle)
        for each in methods
    ]
    found = Schedule(Working(MODEL, Clock(1000.0)), memory=10.0, farm=Farm())
    found.add([*promised, *methods])
    spent = dict(zip(names, (lane.here for lane in found.lanes[2:]), strict=True))
    for _ in range(60):
        found.give_back(found.take().lane, 1.0)
    assert spent["first_layer"].seconds >= 4.0
    assert spent["layers"].seconds >= 4.0


def test_gains_fade():
    lane = schedule_of(1.0).lanes[0].here
    before = lane.rate
    for _ in range(10):
        lane.spend(1.0, 2.0)
    assert lane.rate < 0.05 * before


def test_what_counts_as_a_gain():
    wide = Doubt(-math.inf, math.inf, (-math.inf, math.inf), math.inf)
    first = Doubt(-900.0, 10.0, (-4.0, 4.0), 2.5)
    assert wide.narrowed_to(first) == 2.0
    assert first.narrowed_to(first) == 0.0
    assert first.narrowed_to(Doubt(-900.0, 5.0, (-4.0, 4.0), 2.5)) == pytest.approx(0.25)
    assert first.narrowed_to(Doubt(-450.0, 10.0, (-4.0, 4.0), 2.5)) == pytest.approx(0.25)
    assert first.narrowed_to(Doubt(-900.0, 10.0, (-2.0, 2.0), 2.5)) == pytest.approx(0.25)
    # an estimate without an error that gets one, a confident interval of one point that is refuted
    settled = Doubt(-900.0, 10.0, (1.0, 1.0), 0.0)
    assert settled.narrowed_to(first) == 0.0
    assert first.narrowed_to(Doubt(-900.0, 10.0, (-4.0, 4.0), 1.25)) == pytest.approx(0.25)
    assert first.narrowed_to(Doubt(-900.0, 20.0, (-4.0, 4.0), 2.5)) == 0.0


def test_methods_join_the_portfolio():
    met = []

    def mine(working, clock):
        met.append(working.graph.n_variables)
        evidence = uniform(working, clock)
        yield lower(evidence.verdict(working.graph).lower, evidence)

    result = tz.log_partition(MODEL, time_limit=20, methods=[mine])
    assert met
    assert result.is_exact


def test_a_stream_of_the_portfolio_does_not_run_twice():
    """Its draws would be the same ones, and count twice."""
    found = Schedule(Working(MODEL, Clock(100.0)), memory=10.0, farm=Farm())
    found.add([portfolio.capped])
    found.add(portfolio.SIDE_BY_SIDE)
    assert [lane.name for lane in found.lanes].count("capped") == 1


def test_one_run_prepares_its_model_once(monkeypatch):
    """encode, collapse, tempering and plan: one each, whatever streams there are."""
    counts: dict[str, int] = {}

    def counted(module, name):
        original = getattr(module, name)

        def wrapper(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapper)

    for module, name in [
        (working_module, "encode"), (working_module, "plan"), (workspace_module, "encode"),
        (workspace_module, "collapse"), (workspace_module, "sample_pool"),
    ]:  # fmt: skip
        counted(module, name)
    grid = tz.ising_grid(12, coupling=(-1, 1), field=(-1, 1), seed=0)
    monkeypatch.setattr(Working, "way", None)  # no exact sum
    result = tz.log_partition(grid, time_limit=6, seed=0)
    assert any("tempering starts" in b.method or "structured" in b.method for b in result.bounds)
    assert counts == {"encode": 1, "plan": 1, "collapse": 1, "sample_pool": 1}
