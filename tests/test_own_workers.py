"""Processes that a run on many cores starts by itself: when, and in whose script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import CancelledError

import pytest

import tightz as tz
from tests.errands import square
from tightz.interval import log_partition as module
from tightz.interval.portfolio import tempering
from tightz.runtime import local_workers
from tightz.runtime.local_workers import KilledWorker, LocalWorkers
from tightz.runtime.parcels import ExecutorError


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 9)


@pytest.mark.usefixtures("many_cores")
def test_who_gets_processes(monkeypatch):
    made = module._own_workers(None, None, 60.0)
    assert made.size == 7
    made.shutdown()
    assert module._own_workers(None, None, None).size == 7
    assert module._own_workers(None, 4, 60.0) is None  # threads were asked for
    assert module._own_workers(object(), None, 60.0) is None
    assert module._own_workers(None, None, 5.0) is None
    with LocalWorkers(1) as pool:
        assert pool.submit(local_workers.is_worker).result()
    # an application with an interpreter inside would start itself, and each of these further ones
    monkeypatch.setenv(local_workers.WORKER, "1")
    assert module._own_workers(None, None, 60.0) is None
    monkeypatch.delenv(local_workers.WORKER)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert module._own_workers(None, None, 60.0) is None
    with pytest.raises(ExecutorError, match="no local processes can be started by"):
        LocalWorkers(1)
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(module, "usable_cores", lambda: module.MANY_CORES - 1)
    assert module._own_workers(None, None, 60.0) is None


@pytest.mark.usefixtures("many_cores")
def test_a_model_that_is_summed_at_once_starts_none(monkeypatch):
    made = []

    class Watched(LocalWorkers):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

        def submit(self, *_, **__):
            raise AssertionError("started")

    monkeypatch.setattr(local_workers, "LocalWorkers", Watched)
    r = tz.log_partition(tz.ising_grid(6, seed=1), time_limit=60)
    assert r.lower == r.upper or r.upper - r.lower < 1e-9
    assert len(made) == 1
    # with streams of the caller's there are none at all: their functions may be a script's
    tz.log_partition(tz.ising_grid(4, seed=1), time_limit=60, only=(tempering,), exact=False)
    assert len(made) == 1


@pytest.mark.parametrize("ready", [0, 1])
def test_workers_that_nobody_needs_any_more_end_at_once(ready):
    pool = LocalWorkers(2)
    for _ in range(ready):
        pool.submit(square, 3).result()
    tasks = [pool.submit(time.sleep, 600.0) for _ in range(4)]
    while len(pool.pids) < 2:
        time.sleep(0.001)
    pids = pool.pids
    pool.shutdown(wait=False, cancel_futures=True)
    for task in tasks:
        with pytest.raises((KilledWorker, CancelledError)):
            task.result(timeout=60.0)
    assert pool.pids == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RuntimeError):
        pool.submit(square, 3)


UNGUARDED = """
import tightz as tz
from tightz.interval import log_partition as module
print("script", flush=True)
module.usable_cores, module.LONG = (lambda: 6), 0.0
made = []
whole = module._own_workers
module._own_workers = lambda *args: made.append(whole(*args)) or made[-1]
model = tz.ising_grid(12, coupling=(-2, 2), seed=5)
away = set()
from tightz.interval.lanes import Schedule
deliver = Schedule.deliver
def counted(self, job, *args, **options):
    deliver(self, job, *args, **options)
    if options.get("away"):
        away.add(job.lane.name)
        if len(away) > 1:
            self.working.clock.stop()
Schedule.deliver = counted
r = tz.log_partition(model, time_limit=120, exact=False, seed=3)
exact = tz.exact(model).log_z
print(r.lower <= exact <= r.upper, made[0].size, len(away) > 1, r.failures)
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:2] == ["script", "True 4 True []"]


EARLY = """
import os, signal, time
from tightz.runtime.local_workers import LocalWorkers
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
with LocalWorkers(1) as pool:
    future = pool.submit(os.getpid)
    while not pool.pids:
        time.sleep(0.001)
    (first,) = pool.pids
    while not future.done():  # while it starts
        os.killpg(0, signal.SIGINT)  # as a terminal does
        time.sleep(0.002)
    print(future.result() == first, len(heard) > 9, flush=True)
"""


def test_a_process_that_starts_hears_no_interrupt(tmp_path):
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, timeout=600,
        start_new_session=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr[-2000:]
    assert "KeyboardInterrupt" not in done.stderr
