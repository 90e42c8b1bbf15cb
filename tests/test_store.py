"""The run store: what is stored comes back, survives kills and damage, and is refused by name."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tightz as tz
from tightz.paper.results import Estimate
from tightz.paper.stored import model_shape, read_estimate
from tightz.paper.trials import all_positions
from tightz.runtime.store import BatchRow, RunReader, RunStore, RunWriter, StoreError, TrialColumns
from tightz.runtime.store.reader import positions
from tightz.runtime.store.records import canonical
from tightz.runtime.store.salvage import salvage
from tightz.sampling.ledger import Ledger
from tightz.workspace.findings import Draws, Source

MODEL = tz.ising_grid(4, coupling=(-2, 2), seed=1)
PRINTED = tz.Projections.as_printed(restarts=3)
RUN: dict[str, Any] = {
    "levels": range(6),
    "trials": 40,
    "projections": PRINTED,
    "seed": 5,
    "threads": 1,
    "backend": "cpu",
}


@pytest.fixture(scope="module")
def plain() -> Estimate:
    return tz.estimate(MODEL, **RUN)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "run.db"
    tz.estimate(MODEL, store=path, **RUN)
    return path


def assert_same(a: Estimate, b: Estimate) -> None:
    """Bit for bit: the table and everything averaged over it."""
    for name in ("levels", "log_gammas", "sweeps", "ranks", "statuses", "marginals"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.marginal_spread, b.marginal_spread)


def stop_after(batches: int) -> Any:
    """An on_batch that interrupts the run once so many batches are committed."""
    count = itertools.count(1)

    def on_batch(done: object) -> None:
        if next(count) == batches:
            raise KeyboardInterrupt

    return on_batch


def test_a_stored_run_is_the_same_run(plain: Estimate, finished: Path) -> None:
    assert_same(plain, read_estimate(finished))
    with RunReader(finished) as run:
        np.testing.assert_array_equal(run.table(), plain.log_gammas)
        assert run.progress() == (240, 240)
        assert run.meta().kind == "estimate"
        assert run.meta().model_sha256 == MODEL.digest
        assert run.meta().seed == {"entropy": 5, "spawn_key": []}
        assert run.meta().shape == (4, 4)
        assert run.meta().parameters["family"] == repr(tz.MeanField(restarts=3))
        assert run.verify() == []
        assert [s.state for s in run.sessions()] == ["finished"]
        np.testing.assert_array_equal(np.array(run.marginals()), plain.marginals)
        assert run.bounds() == []
        spins = np.array([packed for _, packed, _ in run.moments()])
        assert spins.shape[1] == 2 + 2 * 16
    assert [p.name for p in finished.parent.iterdir()] == ["run.db"]


def test_every_trial_is_stored_once_with_its_own_numbers(plain: Estimate, finished: Path) -> None:
    with RunReader(finished) as run:
        rows, names = run.trials(), run.meta().statuses
    places = list(zip(rows.levels.tolist(), rows.trials.tolist(), strict=True))
    assert places == list(all_positions(range(6), 40))
    for name, column in (("ranks", rows.ranks), ("sweeps", rows.sweeps)):
        np.testing.assert_array_equal(getattr(plain, name)[rows.levels, rows.trials], column)
    assert [plain.statuses[p].name for p in places] == [names[code] for code in rows.statuses]
    assert plain.statuses[3, 0].name in names


def test_positions_of_a_batch_are_pieces_of_the_run(finished: Path) -> None:
    with RunReader(finished) as run:
        meta = run.meta()
        count = len(run.stored_batches())
    pieces = [np.stack(positions(meta, k), axis=1) for k in range(count)]
    assert np.concatenate(pieces).tolist() == [list(p) for p in all_positions(range(6), 40)]
    assert 240 % meta.batch == 0 or len(pieces[-1]) < meta.batch


@pytest.mark.parametrize("batches", [1, 7, 30])
def test_an_interrupted_run_goes_on(tmp_path: Path, plain: Estimate, batches: int) -> None:
    path = tmp_path / "run.db"
    with pytest.raises(KeyboardInterrupt):
        tz.estimate(MODEL, store=path, on_batch=stop_after(batches), **RUN)
    with RunReader(path) as run:
        assert len(run.stored_batches()) == batches
        done = run.progress()[0]
        assert np.isfinite(run.table()[:, :, 0]).sum() <= done
        assert [s.state for s in run.sessions()] == ["interrupted"]
    seen: list[int] = []
    again = tz.estimate(
        MODEL, store=path, resume=True, on_batch=lambda b: seen.append(len(b)), **RUN
    )
    assert_same(plain, again)
    assert sum(seen) == 240
    with RunReader(path) as run:
        assert len(run.trials()) == 240
        assert [s.state for s in run.sessions()] == ["interrupted", "finished"]
        assert run.seconds() >= run.sessions()[0].seconds > 0


def test_resume_starts_a_run_that_is_not_there_and_keeps_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    free = {**RUN, "seed": None}
    first = tz.estimate(MODEL, store=path, resume=True, **free)
    assert_same(first, tz.estimate(MODEL, store=path, resume=True, **free))


KILLER = """
import itertools, os, signal, sys, threading
import tightz as tz
from tests.test_store import MODEL, RUN

path, trials, *moments = sys.argv[1:]
tz.estimate(MODEL, **{**RUN, "trials": 1})  # children inherit what this loads
for moment in map(float, moments):
    child = os.fork()
    if child == 0:
        count = itertools.count(1)
        end = threading.Timer(0.01 * (moment % 1), os.kill, (os.getpid(), signal.SIGKILL))
        on_batch = lambda done: end.start() if next(count) == int(moment) else None
        run = {**RUN, "trials": int(trials), "on_batch": on_batch}
        tz.estimate(MODEL, store=path, resume=True, **run)
        os._exit(0)
    print(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
"""


def test_kill_9_at_random_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Five processes in turn take up the run and are killed; what they leave is whole batches.

    The moment is drawn in batches (10 ms for its fraction), so a fast machine is no luckier.
    """
    path, trials, root = tmp_path / "run.db", 250, Path(__file__).parent.parent
    moments = np.random.default_rng(8).uniform(1, 10, size=5) + 9 * np.arange(5)
    killer = subprocess.run(
        [sys.executable, "-c", KILLER, str(path), str(trials), *map(str, moments)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        check=True,
    )
    assert killer.stdout.split() == [b"True"] * 5
    with RunReader(path) as run:
        assert run.verify() == []
        done, total = run.progress()
        assert len(run.trials()) == done
        assert 0 < done < total
    long = {**RUN, "trials": trials}
    assert_same(tz.estimate(MODEL, store=path, resume=True, **long), tz.estimate(MODEL, **long))
    with RunReader(path) as run:
        rows = run.trials()
        assert len(set(zip(rows.levels.tolist(), rows.trials.tolist(), strict=True))) == total
        assert len(rows) == total


def test_readers_see_whole_batches_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    seen = []

    def look(batch: object) -> None:
        with RunReader(path) as run:
            rows = run.trials()
            assert len(rows) == run.progress()[0]
            assert run.verify() == []
            assert run.answer() is None
            seen.append(len(rows))
        time.sleep(0.05)  # four batches or so share a transaction

    tz.estimate(MODEL, store=path, on_batch=look, **{**RUN, "trials": 8})
    assert seen == sorted(seen)
    assert 3 < len(set(seen)) < len(seen)
    with RunReader(path) as run:
        assert run.progress() == (48, 48)


def test_rows_cannot_be_changed(finished: Path, tmp_path: Path) -> None:
    path = shutil.copy(finished, tmp_path / "run.db")
    with sqlite3.connect(path) as db:
        for statement in ("UPDATE trials SET rank = 0", "DELETE FROM batches"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)
    db.close()


def test_a_second_process_shuts_the_first_out(tmp_path: Path) -> None:
    first, second = small_writer(tmp_path), small_writer(tmp_path)
    second.append_note("mine")
    with pytest.raises(StoreError, match="another process resumed this run"):
        first.append_note("mine")
    first._connection.close()
    second.finish()
    with RunReader(tmp_path / "small.db") as run:
        assert run.notes() == ["mine"]
        assert [s.state for s in run.sessions()] == ["killed or still running", "finished"]


# refusals


def small_writer(folder: Path, **parameters: Any) -> RunWriter:
    identity = {
        "kind": "estimate",
        "model_sha256": "abc",
        "seed": {"entropy": 1, "spawn_key": []},
        "parameters": {"trials": 1000, **parameters},
    }
    shape = {"n": 4, "levels": [0, 1], "trials": 1000, "restarts": 2, "batch": 4}
    return RunStore(folder / "small.db").open(identity, shape, resume=True)


def small_batch(k: int) -> BatchRow:
    place = np.arange(4 * k, 4 * k + 4)
    zero = np.zeros(4, dtype=np.int64)
    columns = TrialColumns(place % 2, place // 2, zero, zero, zero, np.full((4, 2), -np.inf))
    return BatchRow(columns, np.full(200, float(k)), np.zeros(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 41}, "trials is 40 in the store, 41 given"),
        ({"seed": 6}, 'seed is {"entropy":5,"spawn_key":[]} in the store, {"entropy":6'),
        (
            {"projections": tz.Projections.as_printed(restarts=4)},
            r"family is MeanField(restarts=3, tol=1e-06, max_sweeps=1000) in the",
        ),
        (
            {"projections": replace(PRINTED, pivots=tz.Reliability(np.arange(16.0)))},
            "pivots is FirstColumns in the store, Rel",
        ),
        ({"levels": range(5)}, "levels is [0,1,2,3,4,5] in the store, [0,1,2,3,4] given"),
    ],
)
def test_other_parameters_are_refused_by_name(
    finished: Path, change: dict[str, Any], message: str
) -> None:
    before = finished.read_bytes()
    with pytest.raises(StoreError) as error:
        tz.estimate(MODEL, store=finished, resume=True, **{**RUN, **change})
    assert message in str(error.value)
    assert finished.read_bytes() == before


def test_another_model_and_another_kind_are_refused(finished: Path) -> None:
    other = tz.ising_grid(4, coupling=(-2, 2), seed=2)
    with pytest.raises(StoreError, match=f"model_sha256 is {MODEL.digest[:20]}"):
        tz.estimate(other, store=finished, resume=True, **RUN)
    with pytest.raises(StoreError, match="kind is estimate in the store, log_partition given"):
        tz.log_partition(MODEL, store=finished, resume=True, seed=5)


def test_a_path_that_cannot_serve_is_refused_at_once(finished: Path, tmp_path: Path) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("not a database, and longer than the hundred bytes of a header " * 3)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    newer = Path(shutil.copy(finished, tmp_path / "newer.db"))
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for path, resume, message in [
        (text, False, "is not a run store"),
        (text, True, "is not a run store"),
        (other, True, "another program's SQLite file"),
        (newer, True, "store version 99; this tightz reads 3"),
        (finished, False, "already holds a run; continue it with --resume"),
        (tmp_path / "no" / "such" / "run.db", False, "its folder does not exist"),
    ]:
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(StoreError, match=message):
            tz.estimate(MODEL, store=path, resume=resume, **RUN)
        assert before is None or path.read_bytes() == before
    with pytest.raises(StoreError, match="there is no run store here"):
        RunReader(tmp_path / "none.db")


# disk full, read-only


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 100 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is committed at once, as where batches take their time."""
    monkeypatch.setattr("tightz.runtime.store.writer.GROUP_SECONDS", 0.0)


def fill(writer: RunWriter, batches: range) -> int:
    """Append until the store refuses; how many batches went in."""
    done: list[int] = []

    def append() -> None:
        with writer:
            for k in batches:
                writer.append_batch(k, small_batch(k))
                done.append(k)

    with pytest.raises(StoreError, match="what was stored before is intact"):
        append()
    return len(done)


@pytest.mark.usefixtures("one_by_one")
def test_a_full_disk_leaves_earlier_rows_intact(tmp_path: Path) -> None:
    writer = small_writer(tmp_path)
    writer._connection.execute("PRAGMA max_page_count = 60")
    done = fill(writer, range(400))
    with RunReader(tmp_path / "small.db") as run:
        assert run.stored_batches() == list(range(done))
        assert run.verify() == []
    assert 10 < done < 400
    with small_writer(tmp_path) as writer:  # space again: the run goes on
        for k in range(done, 400):
            writer.append_batch(k, small_batch(k))
    with RunReader(tmp_path / "small.db") as run:
        assert run.progress() == (1600, 2000)


@pytest.mark.usefixtures("one_by_one", "small_files")
def test_a_refused_write_leaves_earlier_rows_intact(tmp_path: Path) -> None:
    done = fill(small_writer(tmp_path), range(400))
    assert 5 < done < 400
    with RunReader(tmp_path / "small.db") as run:
        assert run.stored_batches() == list(range(done))
        assert run.verify() == []


def test_batches_in_one_transaction_go_together(tmp_path: Path) -> None:
    with small_writer(tmp_path) as writer:
        writer.append_batch(0, small_batch(0))
        writer.append_note("commits what came before")
    writer = small_writer(tmp_path)
    writer.append_batch(1, small_batch(1))
    with pytest.raises(StoreError, match="UNIQUE"):  # a batch is never stored twice
        writer.append_batch(0, small_batch(0))
    writer.append_batch(2, small_batch(2))
    writer.finish()
    with RunReader(tmp_path / "small.db") as run:
        assert run.stored_batches() == [0, 2]
        assert run.verify() == []


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder, and no rights beyond those of an ordinary user while the test runs."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.geteuid() != os.getuid():
        os.seteuid(os.getuid())
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_store_is_named_and_readable(nobody: Path, finished: Path) -> None:
    path = Path(shutil.copy(finished, nobody / "run.db"))
    path.chmod(0o444)
    nobody.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(StoreError, match="is read-only, or its folder is"):
        tz.estimate(MODEL, store=path, resume=True, **RUN)
    with pytest.raises(StoreError, match="is read-only, or its folder is"):
        tz.estimate(MODEL, store=nobody / "new.db", **RUN)
    with RunReader(path) as run:
        assert run.verify() == []
        assert run.progress() == (240, 240)
    assert [p.name for p in nobody.iterdir()] == ["run.db"]


# damage


def test_a_reader_undoes_what_a_killed_process_left(
    tmp_path: Path, plain: Estimate, finished: Path
) -> None:
    """A copy in the middle of a transaction is what a kill leaves: a file and its hot journal."""
    path = Path(shutil.copy(finished, tmp_path / "run.db"))
    (tmp_path / "left").mkdir()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA cache_size = 5")  # so that pages reach the file before the commit
    db.execute("BEGIN")
    for i in range(1000):
        db.execute("INSERT INTO notes VALUES (?, 1, ?, 0)", (i, "half done " * 20))
    for name in ("run.db", "run.db-journal"):
        shutil.copy(tmp_path / name, tmp_path / "left" / name)
    db.execute("ROLLBACK")
    db.close()
    left = tmp_path / "left" / "run.db"
    assert left.stat().st_size > finished.stat().st_size
    with RunReader(left) as run:
        assert run.notes() == []
        assert run.verify() == []
        np.testing.assert_array_equal(run.table(), plain.log_gammas)


def damaged(finished: Path, folder: Path, where: slice, fill: bytes) -> Path:
    data = bytearray(finished.read_bytes())
    data[where] = fill * len(data[where])
    path = folder / "run.db"
    path.write_bytes(data)
    return path


def page_of(finished: Path, table: str) -> slice:
    """The last page that holds rows of a table."""
    with sqlite3.connect(finished) as db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        (page,) = db.execute(
            "SELECT max(pageno) FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)
        ).fetchone()
    db.close()
    return slice((page - 1) * size, page * size)


def has_dbstat() -> bool:
    with sqlite3.connect(":memory:") as db:
        options = [row[0] for row in db.execute("PRAGMA compile_options")]
    db.close()
    return "ENABLE_DBSTAT_VTAB" in options


@pytest.mark.skipif(not has_dbstat(), reason="this SQLite cannot tell which page holds what")
@pytest.mark.parametrize("table", ["trials", "batches"])
def test_a_lost_page_costs_its_rows_only(
    tmp_path: Path, plain: Estimate, finished: Path, table: str
) -> None:
    path = damaged(finished, tmp_path, page_of(finished, table), b"\xa5")
    with RunReader(path) as run:
        assert run.verify() != []
    assert_same(plain, tz.estimate(MODEL, store=path, resume=True, **RUN))
    with RunReader(path) as run:
        (note,) = run.notes()
        assert run.verify() == []
        assert len(run.trials()) == 240
        kept = [s.session for s in run.sessions()]
    assert "run.db was damaged and is kept as run.db.damaged1" in note
    assert "trials (to be computed again) lost" in note
    assert kept == [1, 2]
    assert (tmp_path / "run.db.damaged1").exists()


def test_a_changed_number_is_found_by_its_checksum(
    tmp_path: Path, plain: Estimate, finished: Path
) -> None:
    data = finished.read_bytes()
    at = data.index(plain.log_gammas[2, 3].tobytes())
    path = damaged(finished, tmp_path, slice(at + 2, at + 3), b"\x00")
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    with RunReader(path) as run:
        (problem,) = run.verify()
        assert "checksum or positions do not match" in problem
        with pytest.raises(StoreError, match="not intact"):
            run.batch(int(problem.split()[1].rstrip(":")))
    assert_same(plain, tz.estimate(MODEL, store=path, resume=True, **RUN))


def test_a_truncated_file_keeps_its_first_part(
    tmp_path: Path, plain: Estimate, finished: Path
) -> None:
    path = tmp_path / "run.db"
    data = finished.read_bytes()
    path.write_bytes(data[: 4096 * (len(data) // 4096 * 3 // 4)])
    computed: list[int] = []
    again = tz.estimate(
        MODEL, store=path, resume=True, on_batch=lambda b: computed.append(len(b)), **RUN
    )
    assert_same(plain, again)
    with RunReader(path) as run:
        assert run.verify() == []
        assert any("lost" in note for note in run.notes())


def test_a_run_that_no_longer_says_what_it_is_is_refused(tmp_path: Path, finished: Path) -> None:
    at = finished.read_bytes().index(MODEL.digest.encode())
    path = damaged(finished, tmp_path, slice(at, at + 4), b"x")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is damaged where it says which run it holds"):
        tz.estimate(MODEL, store=path, resume=True, **RUN)
    assert path.read_bytes() == before


def test_damage_anywhere_is_mended_or_refused(
    tmp_path: Path, plain: Estimate, finished: Path
) -> None:
    rng = np.random.default_rng(3)
    size = finished.stat().st_size
    ends = {"mended": 0, "refused": 0}
    for case in range(16):
        folder = tmp_path / str(case)
        folder.mkdir()
        start = int(rng.integers(size))
        fill = bytes([int(rng.integers(256))])
        path = damaged(finished, folder, slice(start, start + 100), fill)
        try:
            assert_same(plain, tz.estimate(MODEL, store=path, resume=True, **RUN))
            ends["mended"] += 1
            with RunReader(path) as run:
                assert run.verify() == []
        except StoreError:
            ends["refused"] += 1
    assert ends["mended"] > 8


FUZZ = int(os.environ.get("TIGHTZ_FUZZ", "100"))


def test_fuzz_readers(tmp_path: Path, finished: Path) -> None:
    """Of a damaged store each question is answered, or the error names the store."""
    rng = np.random.default_rng(0)
    whole = finished.read_bytes()
    path = tmp_path / "fuzz.db"
    answered, said = 0, []
    for _ in range(FUZZ):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 30))):
            at, length = int(rng.integers(len(data))), int(rng.integers(1, 64))
            data[at : at + length] = rng.bytes(length) if rng.random() < 0.7 else bytes(length)
        if rng.random() < 0.1:
            del data[int(rng.integers(len(data))) :]
        path.write_bytes(data)
        try:
            with RunReader(path) as run:
                for ask in (run.verify, run.sessions, run.notes, run.seconds, run.bounds,
                            run.answer, run.accounts, run.progress, run.table,
                            lambda: list(run.moments())):  # fmt: skip
                    try:
                        ask()
                        answered += 1
                    except StoreError as error:
                        said.append(str(error))
                if run.verify():
                    salvage(path)
        except StoreError as error:
            said.append(str(error))
        for left in tmp_path.glob("fuzz.db*"):
            left.unlink()
    assert answered > FUZZ
    assert all("fuzz.db" in text for text in said)


# intervals


def test_an_interval_is_stored_as_it_is_found_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    model = tz.ising_grid(6, coupling=(-2, 2), seed=3)
    options: dict[str, Any] = {"exact": False, "seed": 1, "delta": 0.1, "store": path}
    first = tz.log_partition(model, time_limit=1.0, **options)
    with RunReader(path) as run:
        assert run.bounds() == first.bounds
        answer = run.answer()
        assert answer is not None
        assert answer.record["lower"] == first.lower
        for stored, told in zip(run.marginals() or [], first.marginals or [], strict=True):
            np.testing.assert_array_equal(stored, told)
    again = tz.log_partition(model, time_limit=1.0, resume=True, **options)
    assert again.bounds[: len(first.bounds)] == first.bounds
    assert again.lower >= first.lower
    assert again.upper <= first.upper
    assert again.seconds > first.seconds
    assert [b.seconds for b in again.bounds] == sorted(b.seconds for b in again.bounds)
    with RunReader(path) as run:
        assert run.bounds() == again.bounds
        assert [s.options["time_limit"] for s in run.sessions()] == [1.0, 1.0]
        assert any("session 2" in note for note in run.notes())
    exact = tz.exact(model).log_z
    assert again.lower <= exact + 1e-9
    assert again.upper >= exact - 1e-9


DRAWS = """
import os, signal, sys, time
import numpy as np
import tightz as tz
from tightz.workspace.findings import Draws, Finding, Source

MODEL = tz.ising_grid(4, coupling=(-2, 2), seed=1)
LOG_Z = tz.exact(MODEL).log_z

def draws(working, clock):
    # log-normal weights of mean Z under a cap that they never reach
    rng = np.random.default_rng(working.seed)
    source = Source("mini-bucket", LOG_Z, LOG_Z + 6.0, spread=0.5, expected=1e5)
    for _ in range(20):
        logs = LOG_Z + rng.normal(-0.125, 0.5, size=1000)
        yield Finding(draws=Draws(source, np.minimum(logs, LOG_Z + 6.0)))

def run(path, on_bound=None, methods=(draws,)):
    return tz.log_partition(MODEL, only=list(methods), delta=0.1, seed=0, store=path, resume=True,
                            on_bound=on_bound)
"""
KILLED = """
shown = []
def kill(bound):
    if bound.proof is tz.Proof.CONFIDENCE:
        print(bound.side.value, repr(bound.log_z), flush=True)
        shown.append(bound)
        if len(shown) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
run(sys.argv[1], kill)
"""
STREAM: dict[str, Any] = {}
exec(DRAWS, STREAM)


def stored_ledger(path: Path) -> Ledger:
    with RunReader(path) as reader:
        assert reader.verify() == []
        return Ledger.from_records(0.1, reader.accounts().values())


def test_a_ledger_comes_back_from_its_records_as_it_was() -> None:
    rng = np.random.default_rng(0)
    ledger = Ledger(0.1)
    for k, cap in enumerate((3.0, np.inf, 2.0)):
        source = Source(f"track {k % 2}", 0.1, cap, spread=np.nan if k else 0.3, rounding=1e-9)
        ledger.add(Draws(source, np.minimum(rng.normal(-0.1, 0.4, size=500), cap)))
    ledger.add(Draws(Source("zeros", 0.0), np.full(5, -np.inf)))
    text = [(json.loads(canonical(told)), bins) for told, bins in ledger.records()]
    again = Ledger.from_records(0.1, text)
    assert (again.lower(), again.upper()) == (ledger.lower(), ledger.upper())
    assert again.shares(upper=False) == ledger.shares(upper=False)
    assert [a.drawn for a in again.accounts] == [500, 500, 500, 5]
    void = Ledger(0.1)
    void.add(Draws(Source("a", 0.0), np.array([np.nan])))
    assert Ledger.from_records(0.1, void.records()).accounts[0].void


def test_the_certificate_goes_on_at_the_same_delta(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first, second, third = (STREAM["run"](path) for _ in range(3))
    assert [r.confident.confidence for r in (first, second, third)] == [0.9] * 3
    assert third.confident.width < second.confident.width < first.confident.width
    assert first.confident.lower <= STREAM["LOG_Z"] <= first.confident.upper
    ledger = stored_ledger(path)
    assert [a.drawn for a in ledger.accounts] == [20_000] * 3
    # the best that was read at any time, of which what the ledger says last is one
    ends = [b for b in third.bounds if b.proof is tz.Proof.CONFIDENCE]
    assert third.confident.lower == max(b.log_z for b in ends if b.side is tz.Side.LOWER)
    assert third.confident.upper == min(b.log_z for b in ends if b.side is tz.Side.UPPER)
    assert ledger.lower() <= third.confident.lower <= STREAM["LOG_Z"]
    assert STREAM["LOG_Z"] <= third.confident.upper <= ledger.upper()
    # fresh draws in every session
    bins = [told[1].tobytes() for told in ledger.records()]
    assert len(set(bins)) == 3
    assert "the certificate goes on from 40,000 draws" in third.summary()
    assert "with confidence 0.9, both ends: mini-bucket, 60,000 draws" in third.summary()
    with RunReader(path) as reader:
        answer = reader.answer()
        assert answer is not None
        told = {"lower": third.confident.lower, "upper": third.confident.upper, "confidence": 0.9}
        assert answer.record["confident"] == told
        assert reader.bounds() == third.bounds
    sides = {b.side for b in third.bounds if b.proof is tz.Proof.CONFIDENCE}
    assert sides == {tz.Side.LOWER, tz.Side.UPPER}


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_killed_session_loses_no_draw_that_was_seen(tmp_path: Path, moment: int) -> None:
    """The ends that were shown follow from what is on disk, to the bit."""
    path = tmp_path / "run.db"
    command = [sys.executable, "-c", DRAWS + KILLED, str(path), str(moment)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr
    shown = dict(line.split() for line in done.stdout.splitlines())
    ledger = stored_ledger(path)
    side = done.stdout.splitlines()[-1].split()[0]
    assert repr(getattr(ledger, side)()) == shown[side]
    drawn = ledger.accounts[0].drawn
    again = STREAM["run"](path)
    assert [a.drawn for a in stored_ledger(path).accounts] == [drawn, 20_000]
    assert again.confident.lower >= ledger.lower()
    assert again.confident.confidence == 0.9


def test_lost_draws_take_their_certificate_with_them(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = STREAM["run"](path)
    STREAM["run"](path)
    data = path.read_bytes()
    point = stored_ledger(path).accounts[0].record()[1].tobytes()[:8]
    assert data.count(point) == 1
    path.write_bytes(data.replace(point, bytes(8)))
    again = STREAM["run"](path)
    (note,) = [n for n in again.notes if "was damaged" in n]
    assert "1 of accounts (with all ends that held with confidence) lost" in note
    assert [a.drawn for a in stored_ledger(path).accounts] == [20_000] * 2
    assert not {b for b in first.bounds if b.proof is tz.Proof.CONFIDENCE} & set(again.bounds)
    assert "mini-bucket, 40,000 draws" in again.summary()


def test_a_session_s_number_never_comes_twice(tmp_path: Path) -> None:
    """Its draws outlived the record of it: the same number would draw the same again."""
    path = tmp_path / "run.db"
    STREAM["run"](path)
    STREAM["run"](path)
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        for table in ("sessions", "ends", "bounds", "notes", "answers"):
            store.execute(f"DROP TRIGGER {table}_delete")
            store.execute(f"DELETE FROM {table} WHERE session = 2")
    STREAM["run"](path)
    bins = [told[1].tobytes() for told in stored_ledger(path).records()]
    assert len(bins) == len(set(bins)) == 3


def test_a_certificate_of_a_stream_s_own_is_paid_for_beside_the_ledger(tmp_path: Path) -> None:
    streams = []

    def certify(working: Any, clock: Any) -> Iterator[tz.Bound]:
        streams.append(int(np.random.default_rng(working.seed).integers(2**62)))
        assert working.delta == 0.1
        value = STREAM["LOG_Z"] - 1e-4 * len(streams)
        yield tz.Bound(tz.Side.LOWER, value, tz.Proof.CONFIDENCE, "bet", confidence=0.98)

    for _ in range(3):
        r = STREAM["run"](tmp_path / "r.db", methods=[certify, STREAM["draws"]])
        assert r.confident.confidence == pytest.approx(1 - 0.1 - 0.02)
        # those of earlier sessions are not in the answer
        assert r.confident.lower == STREAM["LOG_Z"] - 1e-4 * len(streams)
    assert len(set(streams)) == 3


def test_an_exact_answer_is_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = tz.log_partition(MODEL, store=path, seed=0)
    calls: list[tz.Bound] = []
    again = tz.log_partition(MODEL, store=path, seed=0, resume=True, on_bound=calls.append)
    assert again.is_exact
    assert again.lower == first.lower
    assert calls == first.bounds
    for a, b in zip(again.marginals or [], first.marginals or [], strict=True):
        np.testing.assert_array_equal(a, b)


def test_damaged_bounds_are_dropped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = tz.log_partition(MODEL, store=path, seed=0)
    data = path.read_bytes()
    text = b'"method":"largest entries"'
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, b'"method":"largest entriez"'))
    again = tz.log_partition(MODEL, store=path, seed=0, resume=True)
    assert len(again.bounds) == len(first.bounds) - 1
    assert again.lower == first.lower
    assert any("1 of bounds" in note for note in again.notes)


# shapes


def test_the_shape_of_a_lattice_is_found(tmp_path: Path) -> None:
    tz.write(tz.ising_grid(3, 5, seed=0), tmp_path / "g.uai")
    assert model_shape(tz.read(tmp_path / "g.uai")) == (3, 5)
    assert model_shape(tz.ising_grid(3, 5, seed=0)) == (3, 5)
    chain = tz.ising({(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0}, np.zeros(4))
    assert model_shape(chain) is None
    assert model_shape(tz.rbm(np.ones((3, 2)), np.zeros(3), np.zeros(2))) is None


def test_a_caller_may_say_more(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.db", kind="digits", shape=(2, 8), detail={"epoch": 3})
    tz.estimate(MODEL, store=store, **{**RUN, "trials": 2})
    with RunReader(store.path) as run:
        meta = run.meta()
    assert (meta.kind, meta.shape, meta.detail) == ("digits", (2, 8), {"epoch": 3})


def test_averages_that_are_not_of_variables_are_no_marginals(tmp_path: Path) -> None:
    """A run that was cut off has averages of spins; they are marginals of binary variables only."""
    potts = tz.potts_grid(2, states=3, seed=0)
    for model, rows in ((MODEL, MODEL.n_variables), (potts, 0)):
        path = tmp_path / f"{rows}.db"

        def stop(batch: Any) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            tz.estimate(model, levels=[0, 1], trials=2, seed=0, store=path, on_batch=stop)
        assert len(read_estimate(path).marginals) == rows
        whole = tz.estimate(model, levels=[0, 1], trials=2, seed=0, store=path, resume=True)
        for a, b in zip(read_estimate(path).marginals, whole.marginals, strict=True):
            np.testing.assert_array_equal(a, b)
