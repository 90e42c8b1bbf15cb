"""Runs that are asked to end: by an event, by Ctrl-C and other signals, at any moment.

What is known is returned and stored, and nothing of the run goes on. Faults are injected by what a
run does, never by the clock: limits are hours, and a run that ended was ended.
"""

from __future__ import annotations

import errno
import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tightz as tz
from tightz.cli import exits
from tightz.cli.main import main
from tightz.elimination.exact import tables
from tightz.errors import (
    FullDiskError,
    LostStoreError,
    MissingExtraError,
    ModelError,
    ResourceError,
    StoreError,
)
from tightz.interval import ground_state as ground_state_module
from tightz.interval.streams import exact as exact_stream
from tightz.runtime.clock import leave_if_over
from tightz.runtime.cores import usable_cores
from tightz.runtime.interrupts import Interrupts
from tightz.runtime.parcels import ExecutorError
from tightz.runtime.store import RunReader, RunStore, RunWriter
from tightz.search.ground_state import SearchStatus
from tightz.workspace.findings import Mixing

HOURS = 36_000.0
MODEL = tz.ising_grid(4, coupling=(-1, 1), seed=0)
LOG_Z = tz.exact(MODEL).log_z

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def first_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a process does, which nobody has interrupted yet."""
    monkeypatch.setattr(Interrupts, "_ended", -math.inf)  # a process's own, on purpose


def ctrl_c(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


def once() -> Callable[[object], None]:
    """Ctrl-C with the first bound: a machine that is busy may take a while for the next."""
    seen: list[object] = []
    return lambda bound: None if seen else (seen.append(bound) or ctrl_c())


def still_running() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("tightz")]


def endless(working: object, clock: object) -> Iterator[None]:
    """A step that never ends by itself."""
    while True:
        leave_if_over()
    yield


def run(**options):
    return tz.log_partition(MODEL, **{"time_limit": HOURS, "exact": False, "seed": 0, **options})


# An event ------------------------------------------------------------------------------------


def test_an_event_ends_a_run_and_nothing_of_it_goes_on():
    stop = threading.Event()
    found = run(only=[endless], stop=stop, on_bound=lambda _: stop.set())
    assert found.interrupted
    assert found.lower <= LOG_Z <= found.upper
    assert still_running() == []


def test_an_event_that_is_set_ends_a_run_before_it_begins():
    stop = threading.Event()
    stop.set()
    found = run(stop=stop)
    assert found.interrupted
    assert found.lower <= LOG_Z <= found.upper


# Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_run_and_the_second_one_the_loop_of_runs():
    finished = []

    def loop():
        for _ in range(3):
            finished.append(run(on_bound=once()))

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert [found.interrupted for found in finished] == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert still_running() == []


def test_an_application_that_handles_ctrl_c_goes_on_doing_so(monkeypatch):
    heard, stop = [], threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1) or stop.set())
    try:
        assert run(on_bound=once(), stop=stop).interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard


def interrupted_at(moment: int, **options: object) -> tuple[object, int]:
    """A run with Ctrl-C at the call of a function with this number, and how many there were."""
    numbers = count()

    def trace(frame: object, event: str, argument: object) -> None:
        if next(numbers) == moment:
            ctrl_c()

    sys.settrace(trace)
    try:
        found = run(**options)
    finally:
        sys.settrace(None)
    return found, next(numbers)


@pytest.mark.parametrize("exact", [True, False])
def test_ctrl_c_at_any_moment_loses_nothing(exact, tmp_path, monkeypatch):
    """Moments all over a run: while it opens, between streams, while its result is made."""
    options = {"exact": exact, "time_limit": 0.3, "threads": 2}
    _, calls = interrupted_at(-1, store=tmp_path / "whole.db", **options)
    for number in range(40):
        monkeypatch.setattr(Interrupts, "_ended", -math.inf)
        path = tmp_path / f"{number}.db"
        moment = calls * (number + 1) // 42  # neither before the call nor after it
        found, _ = interrupted_at(moment, store=path, **options)
        assert found.lower <= LOG_Z <= found.upper
        with RunReader(path) as stored:
            assert [b.log_z for b in stored.bounds()] == [b.log_z for b in found.bounds]
            assert stored.answer() is not None
            assert stored.sessions()[-1].state in ("finished", "interrupted")


def test_who_was_shown_a_bound_finds_it_in_the_store(tmp_path):
    """Also where being shown it ends the run."""
    for moment in range(1, 5):
        path, seen = tmp_path / f"{moment}.db", []

        def show(bound, seen=seen, moment=moment):
            seen.append(bound)
            if len(seen) == moment:
                raise KeyboardInterrupt

        run(store=path, on_bound=show)
        with RunReader(path) as stored:
            kept = [bound.log_z for bound in stored.bounds()]
        assert [bound.log_z for bound in seen] == kept[: len(seen)]


def test_a_query_of_several_runs_is_ended_as_one():
    model = tz.ising_grid(4, coupling=(-1, 1), seed=0).with_evidence({0: 1})
    found = tz.query(model, [5], time_limit=HOURS, on_bound=once())
    assert found.interval.lower <= found.interval.upper


# States, chains, regions ---------------------------------------------------------------------


def test_ground_state_returns_the_states_it_has(monkeypatch):
    grid = tz.ising_grid(5, coupling=(-1, 1), seed=0)
    monkeypatch.setattr(ground_state_module, "uncut", lambda *_, **__: ctrl_c())
    found = tz.ground_state(grid, time_limit=HOURS, seed=0)
    assert found.status in (SearchStatus.LIMIT, SearchStatus.AGREED)
    assert found.log_weight == pytest.approx(float(grid.log_weight(found.states)[0]))


def test_ais_returns_the_chains_that_have_ended(monkeypatch):
    from tightz.sampling.ais.paths import SpinPath

    walks, walk = [], SpinPath.walk

    def second_is_interrupted(self, betas, states, **options):
        walks.append(len(states))
        if len(walks) == 2:
            ctrl_c()
        return walk(self, betas, states, **options)

    grid, betas = tz.ising_grid(10, coupling=(-1, 1), seed=0), [k / 50 for k in range(51)]
    whole = tz.ais(grid, chains=512, temperatures=betas, seed=0, threads=1)
    monkeypatch.setattr(SpinPath, "walk", second_is_interrupted)
    found = tz.ais(grid, chains=512, temperatures=betas, seed=0, threads=1)
    np.testing.assert_allclose(found.log_weights, whole.log_weights[:256], rtol=1e-12)
    monkeypatch.setattr(Interrupts, "_ended", -math.inf)
    monkeypatch.setattr(SpinPath, "walk", lambda *_, **__: ctrl_c() or leave_if_over())
    with pytest.raises(KeyboardInterrupt):
        tz.ais(grid, chains=512, temperatures=betas, seed=0, threads=1)


@pytest.mark.parametrize(
    "model", [MODEL, tz.potts_grid(4, states=3, seed=0)], ids=["spins", "states"]
)
def test_split_returns_the_regions_it_has(model, monkeypatch):
    from tightz.splitting.run import SplittingTree
    from tightz.splitting.states import StateTree

    for tree in (SplittingTree, StateTree):
        news = tree._news

        def interrupted(self, news=news):
            ctrl_c()
            return news(self)

        # private, since no public call is made between two rounds
        monkeypatch.setattr(tree, "_news", interrupted)
    log_z = tz.exact(model).log_z
    settings = tz.Splitting(exact_width=1)
    found = tz.split(model, settings, time_limit=HOURS, seed=0)
    assert found.lower <= log_z <= found.upper
    assert not found.closed


# Exact sums ----------------------------------------------------------------------------------


def test_a_sum_is_stopped_between_two_blocks_of_a_table(monkeypatch):
    from tightz.elimination.exact.elimination import solve
    from tightz.elimination.exact.ways import choose_way

    grid = tz.ising_grid(14, coupling=(-1, 1), field=(-1, 1), seed=0)
    way = choose_way(grid, None, 2**30, marginals=False, backend="cpu")

    def asked(last: float = math.inf) -> int:
        """How often a sum asks whether to stop, which it should do at the last of these."""
        numbers = count(1)
        try:
            solve(grid, way, max_memory=2**30, stop=lambda: next(numbers) >= last)
        except tables.StoppedError:
            assert last < math.inf
        return next(numbers) - 1

    between_tables = asked()
    monkeypatch.setattr(tables, "BLOCK", 1)
    often = asked()
    assert often > 2 * between_tables
    assert asked(often // 2) <= often // 2 + 4 * usable_cores()  # those under way in other threads


def test_log_z_is_returned_where_marginals_do_not_fit(monkeypatch):
    plain = exact_stream._solve

    def late(*given, **options):
        if options.get("marginals"):
            raise tables.StoppedError("as where the time is over")
        return plain(*given, **options)

    # the sum itself, as if it had been stopped
    monkeypatch.setattr(exact_stream, "_solve", late)
    grid = tz.ising_grid(8, coupling=(-1, 1), field=(-1, 1), seed=0)
    found = tz.log_partition(grid, time_limit=HOURS, seed=0)
    assert found.is_exact
    assert found.marginal_status is not Mixing.EXACT
    assert exact_stream.LATE in found.notes
    monkeypatch.setattr(exact_stream, "MARGINALS", math.inf)  # predicted, and not begun
    monkeypatch.setattr(exact_stream, "_solve", plain)
    found = tz.log_partition(grid, time_limit=HOURS, seed=0)
    assert found.is_exact
    assert exact_stream.LATE in found.notes


# Stores that are lost ------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise FullDiskError("run.db: the disk is full")


@pytest.mark.parametrize("method", ["append_bound", "write_accounts", "append_answer"])
def test_a_full_disk_ends_a_run_with_what_is_known(method, tmp_path, monkeypatch):
    monkeypatch.setattr(RunWriter, method, full)
    found = run(store=tmp_path / "run.db", time_limit=HOURS if "answer" not in method else 0.5)
    assert isinstance(found.store_error, FullDiskError)
    assert -math.inf < found.lower <= LOG_Z <= found.upper < math.inf
    assert any("the disk is full" in failure for failure in found.failures)
    assert "the disk is full" in found.summary()


def test_draws_that_are_not_stored_are_not_shown(tmp_path, monkeypatch):
    """A later session would bet with a wealth that does not know of them."""
    monkeypatch.setattr(RunWriter, "write_accounts", full)
    found = run(store=tmp_path / "run.db")
    assert isinstance(found.store_error, FullDiskError)
    assert (found.confident.lower, found.confident.upper) == (found.lower, found.upper)


def test_a_store_that_another_process_resumed_ends_a_run_with_what_is_known(tmp_path):
    path = tmp_path / "run.db"

    def resume(_: object) -> None:
        with RunReader(path) as reader:
            identity = reader.meta().identity
        if not taken:
            taken.append(RunStore(path).open(identity, {}, resume=True))

    taken: list[RunWriter] = []
    found = run(store=path, on_bound=resume)
    taken[0].finish()
    assert isinstance(found.store_error, LostStoreError)
    assert found.lower <= LOG_Z <= found.upper


# The command line ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopping")
    tz.write(tz.ising_grid(10, coupling=(-3, 3), field=(-1, 1), seed=0), path / "grid.uai")
    return path


def started(folder, *words, ctrl_c=signal.SIG_DFL):
    """`tightz logz` that runs for hours, after its first bound."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tightz", "logz", "grid.uai", "--no-exact", "-T", "36000", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        # a shell without job control has its background jobs ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )  # fmt: skip
    while " lower " not in (line := process.stderr.readline()):
        assert line or process.poll() is None
    return process


@pytest.mark.parametrize(
    ("number", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_IGN),  # as in a job that a script put into the background
        (signal.SIGHUP, signal.SIG_DFL),
    ],
)
def test_a_signal_prints_what_is_known(folder, number, ctrl_c):
    process = started(folder, ctrl_c=ctrl_c)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "log Z in [" in out
    assert "Traceback" not in err


def test_a_signal_leaves_a_record_and_a_store(folder):
    process = started(folder, "--json", "--store", "run.db")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, err
    told = json.loads(out)
    assert told["interrupted"]
    with RunReader(folder / "run.db") as stored:
        assert stored.answer().record["lower"] == told["lower"]
        assert stored.sessions()[-1].state == "interrupted"


@pytest.mark.parametrize("module", ["tightz.cli.main", "click", "tightz.interval.log_partition"])
def test_a_signal_while_modules_load_is_one_line_at_most(folder, module):
    code = (
        "import signal, sys\n"
        "class Moment:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Moment())\n"
        "sys.argv = ['tightz', 'logz', 'grid.uai', '-T', '36000', '--no-exact']\n"
        "from tightz.cli import entry\n"
        "entry()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_and_the_help_have_the_table_of_exit_codes():
    page = (Path(__file__).parents[1] / "docs" / "howto" / "stop.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page.replace("`", ""), re.MULTILINE)
    plain = {code: what.replace("`", "") for code, what in exits.CODES.items()}
    assert {int(code): what for code, what in rows} == plain
    shown = " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    assert all(f"{code} {what}" in shown for code, what in exits.CODES.items())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError("damaged"), 2),
        (StoreError("holds another run"), 2),
        (ResourceError("too wide"), 3),
        (ExecutorError("nobody is there"), 3),
        (MissingExtraError("pip install it"), 6),
        (LostStoreError("taken over"), 7),
        (FullDiskError("full"), 8),
        (OSError(errno.ENOSPC, "No space left on device"), 8),
        (FileNotFoundError(errno.ENOENT, "vanished"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_tells_what_ended_a_command(error, code, folder, monkeypatch):
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tz, "mean_field", raises, raising=False)
    done = CliRunner().invoke(main, ["mean-field", str(folder / "grid.uai")])
    assert done.exit_code == code
    assert len(done.stderr.splitlines()) == 1


def test_a_lost_store_prints_the_interval_and_says_so(folder, monkeypatch):
    monkeypatch.setattr(RunWriter, "write_accounts", full)
    words = ["logz", str(folder / "grid.uai"), "--no-exact", "-T", "36000", "--store"]
    done = CliRunner().invoke(main, [*words, str(folder / "full.db")])
    assert done.exit_code == exits.FULL
    assert "log Z in [" in done.stdout
    assert done.stderr.splitlines()[-1] == "error: run.db: the disk is full"


@pytest.mark.parametrize(("name", "ended"), [("log_partition", "answer"), ("read", "raised")])
def test_ctrl_c_while_a_name_loads_is_for_the_call(name, ended):
    """No module is left half loaded, and an answer is given where one is asked for."""
    code = (
        "import signal, sys, tightz as tz\n"
        "model = tz.ising_grid(3, seed=0)\n"
        "class Moment:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == tz._HOME[{name!r}]:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Moment())\n"
        "for module in list(sys.modules):\n"
        f"    if module.startswith(tz._HOME[{name!r}]): del sys.modules[module]\n"
        "try:\n"
        f"    call = tz.{name}\n"
        "    r = call(model, time_limit=36000, exact=False)\n"
        "    print('answer', r.interrupted and r.lower < r.upper)\n"
        "except KeyboardInterrupt: print('raised', True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), check=False,
    )  # fmt: skip
    assert done.stdout == f"{ended} True\n", done.stderr
