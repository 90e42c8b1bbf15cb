"""The seam: order, bounded flight, one parcel a worker, lost workers, and refusals."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests.errands import (
    die_answering,
    die_at_six,
    die_once,
    fail_at_five,
    fork_and_die,
    square,
)
from tightz.errors import ParameterError
from tightz.families.mean_field import MeanField, PointMass
from tightz.interval.board import Board
from tightz.interval.portfolio import annealing
from tightz.paper.trials import MIN_BATCHES, TrialPlan, batch_size
from tightz.projections.hashing import DenseParity, FirstColumns
from tightz.reductions.encoding import encode
from tightz.runtime import blas_threads, executors, local_workers, parcels
from tightz.runtime.executors import IN_FLIGHT, LIVES, Crew, map_ordered
from tightz.runtime.local_workers import ONE_THREAD, LocalWorkers
from tightz.runtime.local_workers import KilledWorker as KilledWorkerHere
from tightz.runtime.parcels import KEPT, ExecutorError, TaskError, pack, run_parcel
from tightz.runtime.provenance import versions

GRID = tz.ising_grid(5, coupling=(-2, 2), field=(-1, 1), seed=3)
PLAIN = {"collapse": 0, "search_sweeps": 0}
RUN = {
    "levels": range(4),
    "trials": 40,
    "projections": tz.Projections(restarts=2, **PLAIN),
    "seed": 5,
}


class Here(Executor):
    """Runs a task in this process as a worker elsewhere would: after pickling both ways."""

    def __init__(self, before=lambda number: None, workers=2):
        self.before, self._max_workers, self.sent = before, workers, []

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        self.sent.append(args)
        try:
            self.before(len(self.sent) - 1)
            called = pickle.loads(pickle.dumps((function, args)))
            future.set_result(pickle.loads(pickle.dumps(called[0](*called[1]))))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(autouse=True)
def no_parcels():
    parcels.opened.cache_clear()


@given(st.lists(st.integers()), st.integers(1, 5))
def test_results_come_in_the_order_of_the_tasks(tasks, threads):
    expected = [x * x for x in tasks]
    assert list(map_ordered(square, tasks, threads=threads)) == expected
    assert list(map_ordered(square, tasks, executor=Here(workers=threads))) == expected


def test_slow_tasks_do_not_change_the_order():
    first_may_end = threading.Event()

    def work(x):
        if x == 0:
            assert first_may_end.wait(30)
        elif x == 3:
            first_may_end.set()
        return x

    assert list(map_ordered(work, range(12), threads=2)) == list(range(12))


@pytest.mark.parametrize("workers", [1, 3])
def test_flight_is_bounded_by_the_workers(workers):
    taken = itertools.count()
    pool = Here(workers=workers)
    results = map_ordered(square, taken, executor=pool)  # endless
    for x in range(50):
        assert next(results) == x * x
        assert len(pool.sent) <= x + IN_FLIGHT * workers
    results.close()


def test_closing_early_cancels_what_has_not_begun():
    begun, hold = [], threading.Event()

    def work(x):
        begun.append(x)
        assert x == 0 or hold.wait(30)
        return x

    with ThreadPoolExecutor(1) as pool:
        results = map_ordered(work, itertools.count(), executor=pool)
        assert next(results) == 0
        results.close()
        hold.set()
    assert len(begun) <= 2


def test_a_parcel_is_packed_once_and_opened_once(monkeypatch):
    packed, opened = [], []
    monkeypatch.setattr(executors, "pack", lambda function: packed.append(1) or pack(function))
    count = SimpleNamespace(**{**vars(pickle), "loads": lambda x: opened.append(1) or loads(x)})
    loads = pickle.loads
    monkeypatch.setattr(parcels, "pickle", count)
    big = partial(np.add, np.arange(1000.0))
    for x, y in zip(range(40), map_ordered(big, range(40), executor=Here()), strict=True):
        np.testing.assert_array_equal(y, np.arange(1000.0) + x)
    assert len(packed) == len(opened) == 1


def test_a_parcel_goes_to_each_process_once(monkeypatch):
    sent, put = [], local_workers._put
    monkeypatch.setattr(
        local_workers, "_put", lambda pipe, message: sent.append(len(message)) or put(pipe, message)
    )
    big = partial(np.add, np.arange(1000.0))
    with LocalWorkers(1) as pool:
        crew = Crew(pool)
        for _ in range(2):
            for wanted in (1, 0):
                sent.clear()
                for x in range(6):
                    np.testing.assert_array_equal(
                        crew.send(big, x).result().value, np.arange(1000.0) + x
                    )
                assert sum(size > 8000 for size in sent) == wanted
                assert sum(size < 600 for size in sent) >= 6
            os.kill(pool.pids[0], signal.SIGKILL)  # who comes next has nothing
        crew.dismiss()


@given(st.lists(st.integers(0, 2 * KEPT), max_size=40))
def test_workers_keep_few_parcels_and_are_sent_those_that_they_lack(numbers):
    with Echo() as pool:
        shared = [pool.share(bytes([k])) for k in range(2 * KEPT + 1)]
        for k in numbers:
            assert pool.submit(bytes.hex, shared[k]).result() == f"{k:02x}"
            assert len(local_workers._kept) <= KEPT
        local_workers._kept.clear()


class Echo(LocalWorkers):
    """One process, which is this one."""

    def __init__(self):
        super().__init__(1)
        self.here = SimpleNamespace(kept=[], ask=local_workers._answer)

    def _start(self, me):
        return self.here


def test_workers_open_few_parcels():
    packed = [pack(partial(np.add, i)) for i in range(KEPT + 1)]
    for i, parcel in enumerate(packed):
        assert run_parcel(versions(), parcel, 10).value == 10 + i
    assert parcels.opened.cache_info().currsize == KEPT
    assert run_parcel(versions(), packed[1], 10).value == 11
    assert parcels.opened.cache_info().hits == 1  # not opened again


def test_other_versions_on_a_worker_are_refused_with_both_named(monkeypatch):
    mine = {**versions(), "numba": "0.1.2", "tightz": "9.9.9"}
    monkeypatch.setattr(executors, "versions", lambda: mine)
    theirs = versions()
    pool = Here()
    with pytest.raises(ExecutorError) as error:
        list(map_ordered(square, range(20), executor=pool))
    for number in (*mine.values(), *theirs.values()):
        assert number in str(error.value)


def test_a_bug_is_raised_as_it_is_and_not_retried():
    pool = Here()
    results = map_ordered(fail_at_five, range(100), executor=pool)
    assert list(itertools.islice(results, 5)) == list(range(5))
    with pytest.raises(ZeroDivisionError, match="a bug at 5"):
        next(results)
    assert [args[-1] for args in pool.sent].count(5) == 1


class TwoParts(Exception):
    """Cannot be pickled, whatever other libraries teach exceptions (dask's tblib does)."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def raise_one(error):
    raise TwoParts("this", "that") if error is TwoParts else error("over")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, TwoParts])
def test_what_cannot_be_raised_in_another_process_is_told(error):
    text = "this and that" if error is TwoParts else "over"
    with pytest.raises(TaskError, match=f"{error.__name__} on a worker: {text}"):
        list(map_ordered(raise_one, [error], executor=Here()))


def test_a_thread_that_wants_to_exit_is_heard():
    with ThreadPoolExecutor(1) as pool:
        crew = Crew(pool)
        assert isinstance(crew.send(raise_one, SystemExit).exception(60), SystemExit)
        assert crew.send(square, 3).result(60).value == 9


def test_an_executor_that_takes_no_tasks_says_so():
    pool = LocalWorkers(1)
    pool.shutdown()
    with pytest.raises(ExecutorError, match="LocalWorkers takes no tasks: RuntimeError"):
        list(map_ordered(square, range(3), executor=pool))


def test_a_pool_that_breaks_says_so():
    def broken(number):
        if number >= 4:
            raise BrokenExecutor("the room is on fire")

    with pytest.raises(ExecutorError, match="Here broke: the room is on fire"):
        list(map_ordered(square, range(20), executor=Here(broken)))


class KilledWorker(Exception):
    """Named as dask's."""


def test_a_killed_worker_reported_by_the_executor_costs_a_life():
    def lose(times, number):
        if 3 <= number < 3 + times:
            raise KilledWorker("gone")

    wanted = [x * x for x in range(20)]
    pool = Here(partial(lose, LIVES))
    assert list(map_ordered(square, range(20), executor=pool)) == wanted
    assert len(pool.sent) == 20 + LIVES
    with pytest.raises(ExecutorError, match=f"lost its worker {LIVES + 1} times"):
        list(map_ordered(square, range(20), executor=Here(partial(lose, 1000))))


class Closing(Executor):
    """Loses what it has when told to, and takes one task after that."""

    def __init__(self):
        self._max_workers, self.out, self.left = 2, queue.Queue(), 3

    def submit(self, function, /, *args, **kwargs):
        if not self.left:
            raise ExecutorError("closed")
        self.left -= 1
        future = Future()
        self.out.put((future, args[-1]))
        return future


def test_who_waits_for_a_last_life_hears_that_nobody_takes_it(monkeypatch):
    monkeypatch.setattr(executors, "LIVES", 1)
    pool = Closing()
    crew = Crew(pool)
    promises = {task: crew.send(square, task) for task in (3, 4)}
    for future, _ in [pool.out.get(timeout=60) for _ in promises]:
        # both are on their last lives: one is sent, the other waits
        future.set_exception(KilledWorker("gone"))
    future, first = pool.out.get(timeout=60)
    second = promises[7 - first]
    with pytest.raises(queue.Empty):
        pool.out.get(timeout=0.2)
    assert not second.done()
    future.set_result(parcels.Done(first**2, 0.0))
    assert promises[first].result(60).value == first**2
    with pytest.raises(ExecutorError, match="closed"):
        second.result(60)


def test_what_is_no_executor_is_refused():
    with pytest.raises(ParameterError, match="executor is 4; expected a concurrent"):
        list(map_ordered(square, range(3), executor=4))
    with pytest.raises(ParameterError, match="executor is <class"):
        list(map_ordered(square, range(3), executor=ThreadPoolExecutor))


@pytest.mark.parametrize("call", [tz.log_partition, tz.estimate, tz.theorem_run])
def test_what_is_no_executor_is_refused_before_a_store_is_made(tmp_path, call):
    store = tmp_path / "run.db"
    with pytest.raises(ParameterError, match="executor is 4"):
        call(GRID, executor=4, store=store)
    assert not store.exists()


def test_a_submit_that_waits_for_a_place_keeps_nobody():
    """A bounded queue that is full: the run ends at its time, not when there is a place."""
    place, asked, made = threading.Event(), threading.Event(), Future()

    class Full(Executor):
        def submit(self, *_):
            asked.set()
            place.wait(600)
            return made

    crew = Crew(Full())
    promise = crew.send(square, 3)
    assert asked.wait(60)
    crew.dismiss()
    assert not promise.done()
    place.set()
    with pytest.raises(CancelledError):
        promise.result(60)
    assert made.cancelled()


FORKED = """
import os, sys
from tightz.runtime.local_workers import LocalWorkers
pool = LocalWorkers(1)
first = pool.submit(os.getpid).result()
if os.fork() == 0:
    sys.exit()
os.wait()
print(pool.submit(os.getpid).result() == first)
"""


def test_a_fork_that_ends_leaves_the_workers_alone():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "True\n", done.stderr


def test_work_that_cannot_travel_is_refused():
    lock = threading.Lock()
    with pytest.raises(ParameterError, match="cannot travel to another process"):
        list(map_ordered(lambda x: lock, range(3), executor=Here()))
    assert list(map_ordered(square, range(3), executor=Here())) == [0, 1, 4]


@pytest.mark.parametrize("pool", [LocalWorkers, ProcessPoolExecutor])
@pytest.mark.parametrize("die", [die_once, die_answering])
def test_a_killed_process_loses_nothing(tmp_path, pool, die):
    work = partial(die, str(tmp_path / "died"))
    with pool(2) as pool:
        assert list(map_ordered(work, range(40), executor=pool)) == list(range(40))
        assert (tmp_path / "died").exists()
        assert pool.submit(square, 1).result() == 1


def test_a_process_pool_lends_its_number_and_its_initializer():
    with ProcessPoolExecutor(3, initializer=os.putenv, initargs=("TIGHTZ_TOLD", "yes")) as pool:
        crew = Crew(pool)
        assert crew.size == 3
        assert crew.send(partial(subprocess.getoutput), "echo $TIGHTZ_TOLD").result().value == "yes"
        crew.dismiss()
        assert crew._pool.pids == []


def raises_at_start():
    raise LookupError("no such library")


def test_an_initializer_that_fails_is_named_to_every_task():
    with LocalWorkers(1, raises_at_start) as pool:
        for _ in range(2):
            with pytest.raises(
                ExecutorError, match=r"initializer .* LookupError.'no such library'"
            ):
                pool.submit(square, 2).result(60)
    with pytest.raises(ParameterError, match="cannot travel to another process"):
        LocalWorkers(1, partial(print, threading.Lock()))


def test_workers_that_nobody_shut_down_end_with_their_pool():
    pool = LocalWorkers(2)
    assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
    pids = pool.pids
    del pool
    gc.collect()
    assert pids
    assert not any(alive(pid) for pid in pids)


def test_workers_end_after_their_last_task_without_anybody_waiting():
    pool = LocalWorkers(1)
    last = pool.submit(square, 3)
    pool.shutdown(wait=False)
    assert last.result(60) == 9
    until = time.monotonic() + 60
    while pool.pids and time.monotonic() < until:
        time.sleep(0.01)
    assert not pool.pids


def test_a_worker_that_died_idle_costs_the_next_task_nothing():
    with LocalWorkers(1) as pool:
        first = pool.submit(os.getpid).result(60)
        (process,) = pool._processes.values()
        os.kill(first, signal.SIGKILL)
        process.wait(60)  # until all its threads are gone: a task sent before would be lost
        assert pool.submit(os.getpid).result(60) != first


def test_a_task_left_with_a_fork_hides_no_death():
    with LocalWorkers(1) as pool:
        with pytest.raises(KilledWorkerHere):
            pool.submit(fork_and_die).result(60)
        assert pool.submit(square, 3).result(60) == 9


def test_what_starts_with_python_may_print(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('hello from the start')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with LocalWorkers(1) as pool:
        assert pool.submit(square, 3).result(60) == 9


def test_a_listener_that_fails_ends_its_worker():
    code = "import os; from tightz.runtime import local_workers as w; w._listen(None, None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 1  # not by a traceback of its main thread: it has left before
    assert b"Traceback" not in done.stderr


def test_a_task_that_kills_every_worker_is_named():
    with LocalWorkers(2) as pool:
        results = map_ordered(die_at_six, range(30), executor=pool)
        assert list(itertools.islice(results, 6)) == list(range(6))
        with pytest.raises(ExecutorError, match=f"task 6 lost its worker {LIVES + 1} times"):
            next(results)


SCRIPT = """
from tightz.runtime.executors import map_ordered
from tightz.runtime.local_workers import KilledWorker as KilledWorkerHere
from tightz.runtime.local_workers import ONE_THREAD, LocalWorkers
print("script", flush=True)
class Seen(Exception):
    pass
class Answer:
    def __init__(self, value):
        self.value = value
def work(x):
    print("a task prints")
    if x == 3:
        raise Seen("at three")
    return Answer(x)
with LocalWorkers(2) as pool:
    found = list(map_ordered(work, range(3), executor=pool))
    print([one.value for one in found], {type(one) is Answer for one in found})
    try:
        list(map_ordered(work, [3], executor=pool))
    except Seen as error:
        print(error, *error.__notes__)
"""


@pytest.mark.parametrize("piped", [False, True])
def test_what_a_script_defines_travels_and_it_needs_no_guard(tmp_path, piped):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-"] if piped else [sys.executable, script],
        input=SCRIPT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == ["script", "[0, 1, 2] {True}"], done.stderr
    assert lines[2].startswith("at three on a local worker:")
    assert done.stderr.count("a task prints") == 4


def test_matrix_products_on_a_worker_take_one_thread(monkeypatch):
    if blas_threads._calls() is None:
        pytest.skip("numpy has another library than OpenBLAS")
    for name in ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    with LocalWorkers(1) as pool:
        assert pool.submit(lambda: blas_threads._calls()[0]()).result() == 1
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with LocalWorkers(1) as pool:
        assert pool.submit(lambda: blas_threads._calls()[0]()).result() == min(2, os.cpu_count())


def table(result):
    return result.log_gammas, result.marginals, result.marginal_spread, result.sweeps, result.ranks


def assert_same(a, b):
    for x, y in zip(table(a), table(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_estimate_on_local_workers_that_are_killed_midway():
    serial = tz.estimate(GRID, threads=1, **RUN)
    with LocalWorkers(2) as pool:
        assert_same(serial, tz.estimate(GRID, executor=pool, **RUN))
        seen = []

        def strike(batch):
            seen.append(batch)
            if len(seen) == 5:
                for pid in pool.pids:
                    os.kill(pid, signal.SIGKILL)

        before = set(pool.pids)
        assert_same(serial, tz.estimate(GRID, executor=pool, on_batch=strike, **RUN))
        assert len(seen) > 20
        assert pool.submit(square, 7).result() == 49
        assert not before & set(pool.pids)


@pytest.fixture
def until_draws(monkeypatch):
    """Runs end with their first draws: processes take as long to start as the machine is busy."""
    count = Board._count

    def counted(board, draws):
        count(board, draws)
        if draws.source.track.startswith("annealing"):
            board.clock.stop()

    monkeypatch.setattr(Board, "_count", counted)


@pytest.mark.usefixtures("until_draws")
def test_log_partition_draws_on_processes():
    model = tz.ising_grid(9, coupling=(-2, 2), seed=1)
    with LocalWorkers(1) as pool:
        r = tz.log_partition(
            model, time_limit=200, seed=0, exact=False, only=(annealing,), executor=pool
        )
        assert pool.pids
    assert any(a.source.track.startswith("annealing") and a.drawn for a in r.ledger.accounts)


def plan(model=GRID, **changes):
    parts = {
        "polynomial": encode(model).polynomial,
        "family": MeanField(restarts=8),
        "hashing": DenseParity(),
        "pivots": FirstColumns(),
        "seed": np.random.SeedSequence(0),
        "pairs": np.zeros((0, 2), dtype=np.int64),
    }
    return TrialPlan(**{**parts, **changes})


def test_batches_shrink_as_trials_get_longer():
    levels, trials = range(21), 10**6
    size = batch_size(plan(), levels, trials)
    assert size == batch_size(plan(), levels, trials) > 1
    assert 1 <= batch_size(plan(polish=True), levels, trials) < size
    assert 1 <= batch_size(plan(family=MeanField(restarts=80)), levels, trials) < size
    assert 1 <= batch_size(plan(tz.ising_grid(20, seed=0)), levels, trials) < size
    assert batch_size(plan(), [0], trials) > batch_size(plan(), [12], trials)
    assert batch_size(plan(tz.ising_grid(200, seed=0), polish=True), levels, trials) == 1
    assert batch_size(plan(family=PointMass()), levels, trials) == 1


@given(st.integers(1, 10_000))
def test_a_run_is_cut_into_many_batches(trials):
    size = batch_size(plan(), range(5), trials)
    assert size == 1 or 5 * trials / size >= MIN_BATCHES


def test_batches_do_not_depend_on_who_computes_them():
    sizes = []
    for options in ({"threads": 1}, {"threads": 5}, {"executor": Here(workers=7)}):
        seen = []
        tz.estimate(
            GRID, on_batch=lambda batch, seen=seen: seen.append(len(batch)), **options, **RUN
        )
        sizes.append(seen)
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(sizes[0]) >= MIN_BATCHES


ORPHAN = """
import os, time
from tightz.runtime.local_workers import KilledWorker as KilledWorkerHere
from tightz.runtime.local_workers import ONE_THREAD, LocalWorkers
if __name__ == "__main__":
    pool = LocalWorkers(1)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_local_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)  # there
        parent.kill()
    for _ in range(300):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().split()[2] != "Z"
    except FileNotFoundError:
        return False
