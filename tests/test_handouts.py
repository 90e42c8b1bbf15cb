"""Work that streams hand out: by threads, processes or a cluster, with the same result."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future

import numpy as np
import pytest

import tightz as tz
from tests.test_executors import Here
from tightz.interval.lanes import Pieces, Schedule
from tightz.runtime import blas_threads
from tightz.runtime.clock import Clock
from tightz.runtime.kernels.farm import Farm
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.seeds import stream
from tightz.sampling.annealed import Annealing
from tightz.sampling.annealed_rounds import Drawer
from tightz.sampling.capped.pieces import Lot, Sampler, Scout, Trials
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.capped.tally import Tally
from tightz.splitting import Splitting, SplittingTree
from tightz.splitting.luggage import Luggage
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import Run
from tightz.workspace.findings import Draws, Finding, Source
from tightz.workspace.working import Handout, Working, alone
from verification.clusters import local_cluster

MODEL = tz.ising_grid(8, coupling=(-2, 2), field=(-1, 1), seed=5)
LONG = 300.0
HANDS = 4


def square(x):
    return x * x


def fail_at_two(x):
    if x == 2:
        raise ZeroDivisionError("a bug at 2")
    return x


def die_at_two(x):
    if x == 2:
        os._exit(1)
    return x


class Sum:
    """A stream that hands out numbers and keeps what comes back."""

    __name__ = "Sum"

    def __init__(self, function=square, rounds=3, near=False):
        self.function, self.rounds, self.near, self.seen = function, rounds, near, []

    def __call__(self, working, clock):
        if working.executor is not None:
            working.crewed.wait(5.0)  # until then threads do it
        for k in range(self.rounds):
            self.seen.append((yield Handout(self.function, range(10 * k, 10 * k + 5), self.near)))


def run(*methods, **options):
    return tz.log_partition(MODEL, time_limit=LONG, seed=1, only=methods, exact=False, **options)


EXPECTED = [[x * x for x in range(10 * k, 10 * k + 5)] for k in range(3)]


class Bears:
    """A stream that goes on after a piece failed, with tasks still under way when it did."""

    __name__ = "Bears"

    def __init__(self):
        self.seen = []

    def __call__(self, working, clock):
        for k in range(3):
            tasks = range(10 * k, 10 * k + 5)
            try:
                self.seen.append((yield Handout(fail_at_two, tasks, keep=2)))
            except ZeroDivisionError as error:
                self.seen.append(str(error))
        self.seen.append((yield Handout(fail_at_two, ())))


@pytest.mark.parametrize("executor", [None, Here()], ids=["threads", "executor"])
def test_a_stream_may_go_on_after_a_piece_that_failed(executor):
    method = Bears()
    assert not run(method, executor=executor).failures
    assert method.seen == ["a bug at 2", [10, 11, 12], [13, 14, 20, 21, 22], [23, 24]]


@pytest.mark.parametrize("executor", [None, Here()], ids=["threads", "executor"])
def test_results_come_back_in_the_order_of_the_tasks(executor):
    method = Sum()
    r = run(method, executor=executor)
    assert method.seen == EXPECTED
    assert not r.failures
    if executor is not None:
        assert len(executor.sent) == 2 + 15  # two calls wake the workers


def test_pieces_that_stay_near_are_done_by_threads():
    executor, method = Here(), Sum(near=True)
    assert not run(method, executor=executor).failures
    assert method.seen == EXPECTED
    assert len(executor.sent) == 2  # to wake them


@pytest.mark.parametrize("executor", [None, Here()], ids=["threads", "executor"])
def test_a_bug_in_a_piece_ends_its_stream_by_name(executor):
    r = run(Sum(fail_at_two), executor=executor)
    (failure,) = r.failures
    assert "stream Sum ended early: ZeroDivisionError: a bug at 2" in failure


def test_an_empty_handout_goes_on():
    def stream(working, clock):
        assert (yield Handout(square, [])) == []
        yield Finding(note="went on")

    assert "went on" in run(stream).notes


class Gone(Executor):
    """Takes a few tasks and then is no more."""

    _max_workers = 2

    def __init__(self, after):
        self.after, self.sent = after, 0

    def submit(self, function, /, *args):
        self.sent += 1
        future = Future()
        if self.sent > self.after:
            future.set_exception(BrokenExecutor("unplugged"))
        else:
            future.set_result(function(*args))
        return future


@pytest.mark.parametrize("after", [0, 1, 5])
def test_without_its_executor_a_run_goes_on_by_threads(after):
    method = Sum()
    r = run(method, executor=Gone(after))
    assert method.seen == EXPECTED
    (failure,) = r.failures
    assert failure == "the run went on without its executor: Gone broke: unplugged"


class ShutDown(Gone):
    """Refuses what comes after a few tasks, as executors do that were shut down."""

    def submit(self, function, /, *args):
        if self.sent == self.after:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return super().submit(function, *args)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_an_executor_that_is_shut_down_leaves_the_work_to_threads(after):
    method = Sum()
    r = run(method, executor=ShutDown(after))
    assert method.seen == EXPECTED
    (failure,) = r.failures
    assert failure.startswith("the run went on without its executor: ShutDown takes no tasks")


class Never(Gone):
    """A queue of jobs in which nobody's turn ever comes."""

    _max_workers = 64

    def submit(self, function, /, *args):
        return Future()


@pytest.mark.parametrize("executor", [Never(0), Gone(1)])
def test_rounds_are_made_for_those_who_are_there(monkeypatch, executor):
    """Rounds for 64 hands that two threads do would take the whole time."""
    monkeypatch.setattr("tightz.interval.race.PATIENCE", 0.2)
    hands = []

    def asks(working, clock):
        hands.append(working.hands)
        yield Handout(square, range(3))
        assert working.alone.wait(60)
        hands.append(working.hands)
        yield Handout(square, range(3))

    executor._max_workers = 64
    r = run(asks, executor=executor, threads=2)
    assert hands[0] in (8, 64)  # the latter where the first has answered
    assert hands[1] == 2
    assert not [each for each in r.failures if "asks" in each]


class Forgets(Gone):
    """Gives nothing for what a task returned."""

    def submit(self, function, /, *args):
        future = super().submit(function, *args)
        forgotten = Future()
        forgotten.set_result(None)
        return future if self.sent < self.after else forgotten


@pytest.mark.parametrize("after", [0, 5])
def test_an_executor_that_forgets_results_leaves_the_work_to_threads(after):
    method = Sum()
    r = run(method, executor=Forgets(after))
    assert method.seen == EXPECTED
    assert r.failures == [
        "the run went on without its executor: Forgets gave NoneType for what a task returned"
    ]


def leave_at_two(x):
    if x == 2:
        raise SystemExit
    return x


def test_a_piece_that_wants_to_exit_ends_its_stream():
    r = run(Sum(leave_at_two, rounds=1))
    assert any("stream Sum ended early: SystemExit" in failure for failure in r.failures)


def test_a_piece_that_kills_every_worker_ends_its_stream_and_nothing_else():
    with LocalWorkers(1) as pool:
        r = run(Sum(die_at_two, rounds=1), executor=pool)
    assert any("GivenUpError: task 2 lost its worker" in failure for failure in r.failures)


def test_pieces_are_taken_by_promise_and_each_once():
    schedule = Schedule(Working(MODEL, Clock(100.0)), memory=10.0, farm=Farm())
    schedule.working.crewed.set()
    schedule.add([Sum(), Sum()])
    one, two = schedule.lanes
    for lane in schedule.lanes:
        schedule.hand_out(lane, Handout(square, range(3)))
    one.away.seconds = 5.0
    taken = [schedule.take_away() for _ in range(6)]
    assert [job.lane for job in taken] == [two] * 3 + [one] * 3
    assert [job.piece.number for job in taken[:3]] == [0, 1, 2]
    assert schedule.take_away() is None
    schedule.return_piece(taken[4])  # the executor is gone: threads take what is left
    assert not schedule.working.crewed.is_set()
    assert schedule.take_away() is None
    assert schedule.take().piece is taken[4].piece


def test_pieces_know_when_they_are_done():
    pieces = Pieces()
    pieces.add(Handout(square, [7, 8]))
    assert pieces.waiting
    first, second = pieces.take(), pieces.take()
    assert not pieces.waiting
    assert not pieces.done
    pieces.put(second, 64, None)
    assert not pieces.done
    pieces.put(first, 49, None)
    assert pieces.done
    assert pieces.collect() == [49, 64]


def test_pieces_that_are_not_due_are_not_waited_for():
    pieces = Pieces()
    pieces.add(Handout(square, [1, 2, 3], keep=2))
    one, two, three = (pieces.take() for _ in range(3))
    pieces.put(three, 9, None)
    assert not pieces.done
    pieces.put(one, 1, None)
    assert pieces.done
    assert pieces.collect() == [1]
    pieces.add(Handout(square, [4], keep=3))  # more may be kept than is out
    assert pieces.done
    assert pieces.collect() == []
    pieces.add(Handout(square, [], keep=1))
    assert not pieces.done
    pieces.put(two, 4, None)
    assert pieces.collect() == [4, 9]


def ahead(seen):
    """A stream that hands out the next tasks before it takes the last ones' results."""

    def stream(working, clock):
        for k in range(4):
            seen.append((yield Handout(square, range(3 * k, 3 * k + 3), keep=3)))
            yield Finding(note=f"round {k}")
        seen.append((yield Handout(square, [])))

    return stream


@pytest.mark.parametrize("executor", [None, Here()], ids=["threads", "executor"])
def test_what_is_kept_comes_with_a_later_handout(executor):
    seen, by_itself = [], []
    assert not run(ahead(seen), executor=executor).failures
    assert seen == [[], [0, 1, 4], [9, 16, 25], [36, 49, 64], [81, 100, 121]]
    working = Working(MODEL, Clock(LONG), exact=False)
    assert len(list(alone(ahead(by_itself)(working, working.clock)))) == 4
    assert by_itself == seen


def test_luggage_stays_behind():
    big, small = np.arange(10_000.0), np.arange(3.0)
    luggage = Luggage((big,))
    packed = luggage.pack({"a": big, "b": (small, big)})
    assert len(packed) < 1000
    back = luggage.unpack(packed)
    assert back["a"] is back["b"][1] is big
    np.testing.assert_array_equal(back["b"][0], small)


# --- The main job's own pieces, and workers that are killed -----------------------------------


def annealed_lots(working, clock):
    """Annealing with everything settled beforehand: so many lots of one plan."""
    run = Annealing.of(working.spins, np.random.default_rng(3))
    run.pace = 1e-6
    plan = run._plan("fields", run.path, 10.0)
    drawer = Drawer(plan, run.collapsed, run._most)
    for _ in range(4):
        rounds = yield Handout(drawer, [run._lot(plan, 12) for _ in range(HANDS)])
        yield Finding(draws=Draws(plan.source, np.concatenate([r.groups for r in rounds])))


def capped_lots(working, clock):
    """Draws under a cap, likewise."""
    mini_buckets = Run(working.orders, MiniBucket(4, iterations=5), 0.0)
    for _ in mini_buckets.steps:
        pass
    proposal = Proposal.of(mini_buckets.model, mini_buckets.descent)
    level = proposal.log_u - 2.0
    sampler, tally = Sampler(proposal, level), Tally.of(proposal, level)
    source = Source("mini-bucket", level, log_cap=proposal.log_cap, expected=4e4)
    for k in range(4):
        lots = [Lot(stream(7, k, i), 3, tally.least) for i in range(HANDS)]
        portions = yield Handout(sampler, lots)
        for portion in portions:
            tally.merge(portion)
        yield Finding(draws=Draws(source, np.concatenate([p.log_weights for p in portions])))
    yield Finding(estimate=tally.estimate())


def tree(working, clock):
    """A splitting tree of so many splits."""
    tree = SplittingTree(
        working.spins, Splitting(max_splits=12, exact_width=4), seed=2, hands=HANDS,
        travels=working.executor is not None, ahead=True,
    )  # fmt: skip
    yield from tree.shared_run()


def orders(working, clock):
    """Bounds of different orders."""
    scout = Scout(working.orders, working.max_memory)
    found = yield Handout(scout, [Trials(5, (), [k, k + HANDS]) for k in range(HANDS)])
    values = [attempt.scouted.value for part in found for attempt in part]
    assert len(values) == 2 * HANDS
    yield Finding(note=f"orders {values}")


def everything(working, clock):
    for part in (annealed_lots, capped_lots, tree, orders):
        yield from part(working, clock)


def summary(r):
    """All that a run of settled work leads to."""
    accounts = [(a.source.track, a.drawn) for a in r.ledger.accounts]
    ends = [(b.side, b.log_z, b.method) for b in r.bounds if b.confidence == 1.0]
    confident = r.confident.lower, r.confident.upper
    return accounts, ends, confident, r.estimate, [n for n in r.notes if n.startswith("orders")]


@pytest.fixture(scope="module")
def undisturbed():
    r = run(everything)
    assert not r.failures
    assert not r.quarantined
    truth = tz.exact(MODEL).log_z
    assert r.lower <= truth <= r.upper
    assert r.confident.lower <= truth <= r.confident.upper
    assert len({drawn for _, drawn in summary(r)[0]}) == 2
    assert math.isfinite(r.estimate)
    return summary(r)


class Killer(threading.Thread):
    """Kills a random worker now and then, sometimes all of them; then lets them work.

    A worker takes seconds to start on a busy machine: killed faster than that, none gets to work.
    """

    def __init__(self, pids, every, most=5):
        super().__init__(daemon=True)
        self.pids, self.every, self.over, self.killed = pids, every, threading.Event(), 0
        self.most = most
        self.rng = random.Random(1)

    def run(self):
        while self.killed < self.most:
            if self.over.wait(self.every * self.rng.uniform(0.5, 1.5)):
                return
            victims = self.pids()
            if victims and self.rng.random() < 0.7:
                victims = [self.rng.choice(victims)]
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    pass

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def test_local_workers_that_are_killed_change_no_certificate(undisturbed):
    with LocalWorkers(2) as pool:
        with Killer(lambda: pool.pids, 2.0) as killer:
            r = run(everything, executor=pool)
        assert killer.killed > 0
    assert not r.failures
    assert summary(r) == undisturbed


def test_a_dask_cluster_whose_workers_are_killed_changes_no_certificate(undisturbed):
    distributed = pytest.importorskip("distributed")
    with (
        local_cluster(2) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):

        def pids():
            nannies = list(cluster.workers.values())
            return [n.pid for n in nannies if n.pid is not None]

        with Killer(pids, 2.0) as killer:
            r = run(everything, executor=client)
        assert killer.killed > 0
    assert not r.failures
    assert summary(r) == undisturbed


def test_alone_does_handouts_by_itself():
    working = Working(MODEL, Clock(LONG), exact=False)
    notes = [f.note for f in alone(orders(working, working.clock))]
    assert len(notes) == 1


def test_streams_side_by_side_multiply_on_one_thread_and_one_alone_on_all():
    if blas_threads._calls() is None:
        pytest.skip("numpy has another library than OpenBLAS")
    get, put = blas_threads._calls()
    before = get()
    put(2)

    class Asks:
        def __init__(self, wanted):
            self.wanted, self.seen = wanted, 0

        def __call__(self, working, clock):
            until = time.perf_counter() + 30.0
            while self.seen != self.wanted and time.perf_counter() < until:
                time.sleep(0.2)
                self.seen = get()
            yield from ()

    try:
        one, two, alone = Asks(1), Asks(1), Asks(2)
        run(one, two)
        run(alone)
        assert (one.seen, two.seen, alone.seen, get()) == (1, 1, 2, 2)
    finally:
        put(before)
