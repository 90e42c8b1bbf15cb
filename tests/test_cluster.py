"""dask clusters and the command line: same numbers, killed workers, clear refusals."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner

import tightz as tz
from tests.errands import die_at_six, fail_at_five, square
from tests.test_executors import GRID, RUN, assert_same, until_draws
from tightz.cli.main import main
from tightz.errors import MissingExtraError, ParameterError
from tightz.interval.portfolio import annealing
from tightz.runtime import executors
from tightz.runtime.cluster import DaskPool, connect, open_executor
from tightz.runtime.executors import Crew, map_ordered
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.parcels import ExecutorError, run_parcel
from tightz.runtime.provenance import versions
from verification.clusters import QUIET, local_cluster

dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")

__all__ = ["until_draws"]  # a fixture of both files


@pytest.fixture(scope="module")
def cluster():
    # A worker that is not back after 15 s is forgotten; on a busy machine its start takes longer.
    # `connect` is also how long a result is asked for that its dead worker had.
    patience = {
        "distributed.comm.timeouts.connect": "1 minute",
        "distributed.comm.timeouts.tcp": "10 minutes",
        "distributed.deploy.lost-worker-timeout": "10 minutes",
    }
    with (
        dask.config.set(patience),
        local_cluster(2) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        if len(cluster.workers) < 2 or any(has_ended(each) for each in cluster.workers.values()):
            cluster.scale(0)  # a nanny whose worker is killed while it starts ends with it
            while cluster.workers:
                time.sleep(0.05)
            cluster.scale(2)
        client.wait_for_workers(2)
        yield client


def has_ended(nanny):
    return nanny.status.name in ("closed", "closing", "failed")


def worker_pids(client):
    return list(client.run(os.getpid).values())


def test_a_client_and_its_executor_give_the_serial_numbers(client):
    serial = tz.estimate(GRID, threads=1, **RUN)
    assert_same(serial, tz.estimate(GRID, executor=client, **RUN))
    with client.get_executor() as pool:
        assert_same(serial, tz.estimate(GRID, executor=pool, **RUN))


@pytest.mark.parametrize("victims", [1, 2])
def test_killed_workers_lose_nothing(client, victims):
    options = {**RUN, "projections": tz.Projections.as_printed(restarts=32)}
    seen, struck = [], []

    def strike(batch):
        seen.append(batch)
        if len(seen) == 5:
            struck.extend(worker_pids(client)[:victims])
            for pid in struck:
                os.kill(pid, signal.SIGKILL)

    before = set(worker_pids(client))
    killed = tz.estimate(GRID, executor=client, on_batch=strike, **options)
    assert_same(tz.estimate(GRID, threads=1, **options), killed)
    assert len(seen) > 20
    assert len(struck) == victims
    assert before.issuperset(struck)


def test_nannies_that_ended_with_their_workers_are_replaced(monkeypatch):
    monkeypatch.setattr("tightz.runtime.executors.LOOK", 0.1)
    # a cluster of its own: a nanny that is bringing back a worker does not end when it is told to
    with (
        local_cluster(1) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        before = set(worker_pids(client))
        for nanny in list(cluster.workers.values()):
            cluster.sync(nanny.close)
        assert all(has_ended(each) for each in cluster.workers.values())
        assert_same(tz.estimate(GRID, threads=1, **RUN), tz.estimate(GRID, executor=client, **RUN))
        assert before.isdisjoint(worker_pids(client))


def test_a_worker_that_dask_forgot_is_started_again(monkeypatch):
    monkeypatch.setattr("tightz.runtime.executors.LOOK", 0.1)
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        local_cluster(2) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        victim = cluster.workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        while cluster.workers.get(0) is victim:
            time.sleep(0.05)
        crew = Crew(client)
        until = time.monotonic() + 300
        while not (len(cluster.workers) == len(client.nthreads()) == 2):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert crew.send(square, 3).result(60).value == 9
        crew.dismiss()


def test_the_plan_is_shared_and_not_sent_with_tasks(client):
    sent = []

    class Watched(DaskPool):
        def submit(self, fn, /, *args):
            if fn is run_parcel:
                sent.append(args)
            return super().submit(fn, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightz.runtime.cluster.DaskPool", Watched)
        tz.estimate(GRID, executor=client, **RUN)
    assert len(sent) > 20
    shared = {content.key for _, content, _ in sent}
    assert len(shared) == 1


def test_progress_arrives_batch_by_batch_in_order(client):
    seen = []
    tz.estimate(GRID, executor=client, on_batch=seen.append, **RUN)
    at = [(t, m) for b in seen for t, m in zip(b.trials, b.levels, strict=True)]
    assert at == sorted(at)
    assert len(at) == 160


def test_a_bug_on_a_worker_is_raised_here(client):
    with pytest.raises(ZeroDivisionError, match="a bug at 5"):
        list(map_ordered(fail_at_five, range(20), executor=client))


def test_other_versions_on_the_cluster_are_refused(client, monkeypatch):
    monkeypatch.setattr(executors, "versions", lambda: {**versions(), "tightz": "9.9.9"})
    with pytest.raises(ExecutorError, match=rf"tightz {versions()['tightz']}.*tightz 9\.9\.9"):
        list(map_ordered(square, range(4), executor=client))


@pytest.mark.usefixtures("until_draws")
def test_log_partition_draws_on_a_cluster(client):
    model = tz.ising_grid(9, coupling=(-2, 2), seed=1)
    r = tz.log_partition(
        model, time_limit=200, seed=0, exact=False, only=(annealing,), executor=client
    )
    assert any(a.source.track.startswith("annealing") and a.drawn for a in r.ledger.accounts)


def test_a_task_that_kills_every_worker_is_named(monkeypatch):
    monkeypatch.setattr(executors, "LIVES", 1)  # starting workers is what takes long here

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        results = map_ordered(die_at_six, range(10), executor=client)
        assert list(itertools.islice(results, 6)) == list(range(6))
        with pytest.raises(ExecutorError, match="task 6 lost its worker 2 times"):
            next(results)


def test_connecting(cluster):
    address = cluster.scheduler_address
    with connect(address) as client:
        assert len(client.scheduler_info()["workers"]) == 2
    with open_executor(cluster=address) as executor:
        assert list(map_ordered(square, range(5), executor=executor)) == [0, 1, 4, 9, 16]


def test_a_scheduler_that_does_not_answer():
    with pytest.raises(ExecutorError, match=r"no dask scheduler answers at tcp://127.0.0.1:9 "):
        connect("tcp://127.0.0.1:9", timeout=0.5)
    with pytest.raises(ExecutorError, match="expected an address like tcp://host:8786"):
        connect("nonsense://host", timeout=0.5)


def test_a_server_of_another_kind():
    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(ExecutorError, match="no dask scheduler answers"):
            connect(f"tcp://127.0.0.1:{server.server_port}", timeout=2)


def test_a_scheduler_without_workers():
    with (
        distributed.LocalCluster(n_workers=0, processes=False, **QUIET) as empty,
        pytest.raises(ExecutorError, match=r"no workers after .* start some"),
    ):
        connect(empty.scheduler_address, timeout=0.5)


def test_without_the_extra_the_advice_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tightz\[cluster\]'"):
        connect("tcp://127.0.0.1:9")


def test_which_executor():
    with open_executor() as nothing:
        assert nothing is None
    with (
        pytest.raises(ParameterError, match="expected one of the two"),
        open_executor(2, "tcp://a"),
    ):
        pass
    begun = time.monotonic()
    with open_executor(1) as pool:  # a command that has its answer waits for nobody
        pool.submit(time.sleep, 600.0)
    assert time.monotonic() < begun + 300.0
    assert not pool.pids
    with pytest.raises(ParameterError, match="workers is 1000000;"):
        LocalWorkers(10**6)
    with pytest.raises(ParameterError, match="workers is 0; expected between 1 and"):
        LocalWorkers(0)


def test_command_line(tmp_path, cluster):
    path = str(tmp_path / "grid.uai")
    tz.write(GRID, path)
    command = ["mfrp", path, "--levels", "0:3", "--trials", "20", "--json"]
    tables = []
    for where in ([], ["--workers", "1"], ["--cluster", cluster.scheduler_address]):
        result = CliRunner().invoke(main, [*command, *where])
        assert result.exit_code == 0, result.output
        tables.append(json.loads(result.stdout)["log_gammas"])
    assert np.shape(tables[0]) == (4, 20, 8)
    assert tables[0] == tables[1] == tables[2]


# The last test of the shared cluster: nobody has to start its workers again.
def test_a_cluster_without_workers_is_given_up_with_the_remedy(client, monkeypatch):
    monkeypatch.setattr("tightz.runtime.cluster.DESERTED", 1.0)
    monkeypatch.setattr("tightz.runtime.executors.LOOK", 0.1)
    client.cluster.scale(0)
    while client.nthreads():
        time.sleep(0.1)
    with pytest.raises(ExecutorError, match=r"no worker for 1 s.*start some"):
        tz.estimate(GRID, executor=client, **RUN)
