"""What executors, clusters and backends say."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import tightz as tz
from tests.errors.table import Case, refuses
from tightz.errors import MissingExtraError, ParameterError, UnsupportedModelError
from tightz.runtime import cluster
from tightz.runtime.backends import on_device
from tightz.runtime.cluster import connect, open_executor
from tightz.runtime.executors import GivenUpError, map_ordered
from tightz.runtime.kernels import store
from tightz.runtime.kernels.signatures import from_text
from tightz.runtime.local_workers import KilledWorker, LocalWorkers
from tightz.runtime.parcels import ExecutorError, TaskError, pack, run_parcel
from tightz.runtime.provenance import versions
from tightz.shown import as_json
from tightz.workspace.once import Once


class _Losing(Executor):
    """Every task loses its worker."""

    def __init__(self, error):
        self.error = error

    def submit(self, *_):
        future = Future()
        future.set_exception(self.error)
        return future


class CommClosedError(OSError):
    """The name by which dask says that a connection ended."""


def _raised(error):
    raise error


def _run_here(error):
    run_parcel(versions(), pack(_raised), error)


def _refused_twice():
    once = Once()
    with suppress(UnsupportedModelError):
        once("part", lambda: _raised(UnsupportedModelError("refused once, and for all who ask")))
    once("part", lambda: None)


class _Refusing(Executor):
    """Was shut down."""

    def submit(self, *_):
        raise RuntimeError("shut down")


class _Forgetting(Executor):
    """Gives nothing for what a task returned."""

    def submit(self, *_):
        future = Future()
        future.set_result(None)
        return future


def _deadly():
    with LocalWorkers(1) as pool:
        list(map_ordered(os._exit, [7], executor=pool))


def _stillborn():
    with LocalWorkers(1, partial(os._exit, 1)) as pool:
        pool.submit(abs, 1).result()


def _ill_prepared():
    with LocalWorkers(1, partial(_raised, LookupError("no such library"))) as pool:
        pool.submit(abs, 1).result()


def _open_folder(tmp):
    folder = tmp / "a" / "b"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    chosen, store.CHOSEN = store.CHOSEN, "TIGHTZ_NO_SUCH_VARIABLE"
    try:
        store._make(folder)
    finally:
        store.CHOSEN = chosen


class _Distributed:
    """A dask whose scheduler answers and has no workers."""

    class Client:
        def __init__(self, *_, **__): ...

        def wait_for_workers(self, *_, **__):
            raise TimeoutError

        def close(self): ...


def _no_scheduler(patch):
    async def refuse(*_):
        raise OSError("refused")

    patch.setattr(cluster, "_knock", refuse)
    patch.setitem(sys.modules, "distributed", _Distributed)
    connect("tcp://here:8786")


def _no_workers(patch):
    async def answer(*_):
        return None

    patch.setattr(cluster, "_knock", answer)
    patch.setitem(sys.modules, "distributed", _Distributed)
    connect("tcp://here:8786")


def _no_dask(patch):
    patch.setitem(sys.modules, "distributed", None)
    connect("tcp://here:8786")


def _frozen():
    sys.frozen = True
    try:
        LocalWorkers(1)
    finally:
        del sys.frozen


def _run(executor):
    return list(map_ordered(abs, [-1], executor=executor))


def _pack_a_lock():
    pack(partial(print, threading.Lock()))


CASES = [
    Case(
        TypeError,
        "object has no JSON; expected numbers, text, arrays or dataclasses, or a field with "
        "metadata=ASIDE",
        lambda: as_json({"a": object()}),
    ),
    refuses("backend is 'tpu'; expected 'auto', 'cpu' or 'cuda'", on_device, "tpu", lambda _: ""),
    refuses("backend='cuda' cannot be used: no device", on_device, "cuda", lambda _: "no device"),
    refuses("workers is 0; expected between 1 and ...", LocalWorkers, 0),
    refuses(
        "stop is True; expected a threading.Event",
        tz.log_partition,
        tz.ising_grid(2, seed=0),
        stop=True,
    ),
    Case(
        ExecutorError,
        "no local processes can be started by '...', an application with an interpreter inside; "
        "leave out executor, or use threads",
        _frozen,
    ),
    Case(
        ExecutorError,
        "no dask scheduler answers at tcp://here:8786 within 10 s; expected an address like "
        "tcp://host:8786, as `dask scheduler` prints it (OSError: refused)",
        _no_scheduler,
    ),
    Case(
        ExecutorError,
        "the scheduler at tcp://here:8786 has no workers after 10 s; start some with "
        "`dask worker tcp://here:8786 --nthreads 1`",
        _no_workers,
    ),
    Case(
        ParameterError,
        "workers is 2 and cluster is tcp://here:8786; expected one of the two",
        lambda: open_executor(2, "tcp://here:8786").__enter__(),
    ),
    Case(
        MissingExtraError,
        "a dask cluster needs dask.distributed; pip install 'tightz[cluster]'",
        _no_dask,
    ),
    Case(
        GivenUpError,
        "task -1 lost its worker 9 times and was given up: the worker is killed, runs out"
        " of memory, or cannot start",
        lambda: _run(_Losing(KilledWorker("worker 3"))),
    ),
    Case(
        ExecutorError,
        "the cluster stopped answering: Stream is closed",
        lambda: _run(_Losing(CommClosedError("Stream is closed"))),
    ),
    Case(
        ExecutorError,
        "the dask cluster stopped answering; see whether its scheduler and workers run "
        "(its client is connecting)",
        lambda: cluster.DaskPool(SimpleNamespace(status="connecting")).submit(abs, 1),
    ),
    Case(
        GivenUpError,
        "task 7 lost its worker 9 times and was given up: the worker is killed, runs out"
        " of memory, or cannot start",
        _deadly,
    ),
    Case(KilledWorker, "it dies while it starts", _stillborn),
    Case(
        ExecutorError,
        "the initializer of local workers raised LookupError('no such library')",
        _ill_prepared,
    ),
    Case(
        ExecutorError,
        "_Refusing takes no tasks: RuntimeError: shut down",
        lambda: _run(_Refusing()),
    ),
    Case(
        ExecutorError,
        "_Forgetting gave NoneType for what a task returned",
        lambda: _run(_Forgetting()),
    ),
    Case(
        TaskError,
        "SystemExit on a worker: over",
        lambda: _run_here(SystemExit("over")),
    ),
    Case(
        UnsupportedModelError,
        "refused once, and for all who ask",
        _refused_twice,
    ),
    Case(
        ExecutorError,
        "_Losing broke: all processes ended",
        lambda: _run(_Losing(BrokenExecutor("all processes ended"))),
    ),
    Case(
        ParameterError,
        "executor is 'threads'; expected a concurrent.futures.Executor, a dask client or "
        "another object with `submit`",
        lambda: _run("threads"),
    ),
    *(
        Case(
            ParameterError,
            "executor is 4; expected a concurrent.futures.Executor, a dask client or "
            "another object with `submit`",
            lambda call=call: call(tz.ising_grid(2, seed=0), executor=4),
        )
        for call in (tz.log_partition, tz.estimate, tz.theorem_run)
    ),
    Case(
        ParameterError,
        "the work cannot travel to another process: ...; leave that out of families and "
        "hashings of your own, or run on threads",
        _pack_a_lock,
    ),
    Case(
        ExecutorError,
        "worker process ... on ... has tightz ..., numpy ..., numba ...; this run "
        "was started with numpy 1.0. Install the same versions on both, since numbers "
        "depend on them",
        lambda: run_parcel({"numpy": "1.0"}, b"", 0),
    ),
    Case(
        ParameterError,
        "compile is 'never'; expected 'before' or 'beside'",
        lambda: tz.log_partition(tz.ising_grid(2, seed=0), compile="never"),
    ),
    Case(ValueError, "not a signature: 'int64; bool'", lambda: from_text("int64; bool")),
    Case(PermissionError, "TMP/a/b can be written by others", _open_folder),
]
