"""Compiled kernels: never stale, never lost, never in the way."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numba import typeof

import tightz as tz
from tests import kernel_check
from tightz.cli.main import main
from tightz.errors import ParameterError
from tightz.runtime.clock import Clock
from tightz.runtime.kernels import farm, registry, store
from tightz.runtime.kernels.signatures import from_text, to_text
from tightz.search.moves import Best
from verification import kernels as recorder

SRC = Path(tz.__file__).resolve().parent.parent

TOY = """
import pathlib, sys
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root))
from tightz.runtime.kernels import registry, store
registry.sources = store.sources = lambda: ("toy_outer.py", "toy_inner.py")
store.PACKAGE = root
"""
"""A process whose kernels are those of two files in a folder instead of the package's."""

OUTER = """
from tightz.runtime.kernels import kernel
from toy_inner import value

@kernel
def call(x):
    return x + value()
"""

INNER = """
from tightz.runtime.kernels import inner

@inner
def value():
    return {value}
"""


def toy(folder: Path, value: int) -> None:
    (folder / "toy_outer.py").write_text(OUTER)
    (folder / "toy_inner.py").write_text(INNER.format(value=value))


def process(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TOY + code, str(folder)],
        env={**environment(folder), **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "XDG_CACHE_HOME"}
    return {**env, "PYTHONPATH": str(SRC), "NUMBA_CACHE_DIR": str(folder / "cache")}


CALL = "from toy_outer import call\nprint(call(0), sum(call.stats.cache_hits.values()))"


def answer(folder: Path, code: str = CALL, **env: str) -> tuple[int, int]:
    """What the kernel returns, and whether it came from the folder."""
    done = process(folder, code, **env)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    value, hits = done.stdout.split()
    return int(value), int(hits)


# Never stale --------------------------------------------------------------------------------


def test_an_upgrade_that_changes_a_called_function_is_compiled_anew(tmp_path):
    toy(tmp_path, 1)
    assert answer(tmp_path) == (1, 0)
    assert answer(tmp_path) == (1, 1)
    toy(tmp_path, 2)  # the caller's file is as it was
    assert answer(tmp_path) == (2, 0)
    toy(tmp_path, 1)  # and back: the old folder is still right
    assert answer(tmp_path) == (1, 1)


def test_control_numbas_own_cache_answers_from_before_the_upgrade(tmp_path):
    def write(value):
        (tmp_path / "old_inner.py").write_text(
            f"from numba import njit\n@njit(cache=True)\ndef value():\n    return {value}\n"
        )

    (tmp_path / "old_outer.py").write_text(
        "from numba import njit\nfrom old_inner import value\n"
        "@njit(cache=True)\ndef call(x):\n    return x + value()\n"
    )
    code = "from old_outer import call\nprint(call(0), 0)"
    write(1)
    assert answer(tmp_path, code)[0] == 1
    write(2)
    assert answer(tmp_path, code)[0] == 1


def test_the_folder_depends_on_every_source(tmp_path, monkeypatch):
    for source in registry.sources():
        place = tmp_path / source
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((store.PACKAGE / source).read_bytes())
    assert _fingerprint() == store.fingerprint()
    monkeypatch.setattr(store, "PACKAGE", tmp_path)
    names = {_fingerprint()}
    for source in registry.sources():
        text = (tmp_path / source).read_bytes()
        (tmp_path / source).write_bytes(text + b"\n")
        names.add(_fingerprint())
        (tmp_path / source).write_bytes(text)
    assert len(names) == 1 + len(registry.sources())
    (tmp_path / registry.sources()[0]).unlink()
    assert _fingerprint() is None


def _fingerprint() -> str | None:
    return store.fingerprint.__wrapped__()


def test_a_file_that_is_not_listed_is_not_kept(tmp_path):
    toy(tmp_path, 1)
    code = 'registry.sources = lambda: ("toy_inner.py",)\n' + CALL
    assert answer(tmp_path, code) == (1, 0)
    assert answer(tmp_path, code) == (1, 0)


def test_a_process_that_runs_through_an_upgrade_keeps_nothing(tmp_path):
    """It has imported the old sources; the folder would be named after the new ones."""
    toy(tmp_path, 1)
    code = (
        "import toy_outer\nfile = root / 'toy_inner.py'\n"
        "file.write_text(file.read_text().replace('return 1', 'return 22'))\n" + CALL
    )
    assert answer(tmp_path, code) == (1, 0)
    assert answer(tmp_path) == (22, 0)


def test_a_module_that_is_imported_after_an_upgrade_finds_nothing_old(tmp_path):
    toy(tmp_path, 1)
    assert answer(tmp_path) == (1, 0)
    code = (
        "store.unchanged()\nfile = root / 'toy_inner.py'\n"
        "file.write_text(file.read_text().replace('return 1', 'return 22'))\n"
        "from toy_inner import value\nfrom numba import njit\n"
        "print(njit(lambda: value())(), sum(value.stats.cache_hits.values()))"
    )
    assert answer(tmp_path, code) == (22, 0)
    assert answer(tmp_path) == (22, 0)


def test_settings_of_numba_have_code_of_their_own(tmp_path):
    toy(tmp_path, 1)
    assert answer(tmp_path) == (1, 0)
    assert answer(tmp_path, NUMBA_BOUNDSCHECK="1") == (1, 0)
    assert answer(tmp_path, NUMBA_OPT="0") == (1, 0)  # numba cannot keep such code
    assert answer(tmp_path) == (1, 1)


# The registry -------------------------------------------------------------------------------


def test_the_registry_lists_every_source_of_kernels():
    listed = list(registry.sources())
    assert listed == recorder.sources(), "run `make kernels`"


def test_names_that_kernels_use_are_defined_where_the_registry_looks():
    """Not handed on by a third file, whose change would go unnoticed."""
    for source in registry.sources():
        tree = ast.parse((store.PACKAGE / source).read_text())
        used = {
            n.id
            for k in recorder.kernel_functions(tree)
            for n in ast.walk(k)
            if isinstance(n, ast.Name)
        }
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tightz"):
                for name in node.names:
                    if (name.asname or name.name) in used:
                        assert _defined(node.module or "", name.name), (source, name.name)


def _defined(module: str, name: str) -> bool:
    folder = store.PACKAGE.joinpath(*module.split(".")[1:])
    if (folder / f"{name}.py").exists():
        return True
    path = folder.with_suffix(".py")
    path = path if path.exists() else folder / "__init__.py"
    for node in ast.parse(path.read_text()).body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names = {n.id for t in targets if t is not None for n in ast.walk(t) if hasattr(n, "id")}
        if name in names or getattr(node, "name", None) == name:
            return True
    return False


def test_every_listed_kernel_is_there():
    for each in registry.everything():
        module, _, name = each.function.partition(":")
        path = store.PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        declared = {f.name for f in recorder.kernel_functions(ast.parse(path.read_text()))}
        assert name in declared, f"{each.function}: run `make kernels`"
        assert each.seconds > 0.0


def test_every_stream_is_listed():
    streams = set(recorder.streams())
    openers = {"annealing", "elimination", "solved", "contradiction"}  # run no kernel of their own
    assert streams - openers <= set(registry.tasks())


def test_nothing_in_python_calls_an_inner_kernel():
    """Without a wrapper such a call would end the process."""
    wrong = kernel_check.inner_called_from_python(SRC.parent)
    assert wrong == []


def test_the_check_of_inner_kernels_finds_a_call(tmp_path):
    package = tmp_path / "src" / "tightz"
    package.mkdir(parents=True)
    (package / "a.py").write_text(
        "from tightz.runtime.kernels import inner, kernel\n"
        "@inner\ndef f(): pass\n@kernel\ndef g(): f()\ndef h(): f()\n"
    )
    assert kernel_check.inner_called_from_python(tmp_path) == ["src/tightz/a.py: f"]


def test_signatures_survive_as_text():
    fixed = np.ones(3)
    fixed.flags.writeable = False
    best = Best(np.ones((3, 8), np.int8), np.ones(3), np.zeros(3, np.uint64), np.zeros(1, int))
    values = [
        1, 2.0, True, None, np.uint64(3), np.ones((2, 2)), np.ones((2, 2)).T, np.ones(6)[::2],
        fixed, best, (1, 2.0), (1, 2), np.zeros(2, bool), np.ones((2, 2, 2), np.float32),
    ]  # fmt: skip
    signature = tuple(typeof(v) for v in values)
    assert from_text(to_text(signature)) == signature
    assert from_text("") == ()
    for each in registry.everything():
        assert to_text(from_text(each.signature)) == each.signature
    with pytest.raises(ValueError, match="not a signature"):
        from_text("int64; float64")


# Never in the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 100, None])
def test_a_damaged_file_is_compiled_anew(data, tmp_path):
    toy(tmp_path, 1)
    assert answer(tmp_path) == (1, 0)
    for file in (tmp_path / "cache").rglob("*.kernel"):
        file.write_bytes(file.read_bytes()[:-1] if data is None else data)
    assert answer(tmp_path) == (1, 0)
    assert answer(tmp_path) == (1, 1)


def test_without_a_home_the_temporary_folder_serves(tmp_path):
    toy(tmp_path, 1)
    code = (
        "import os, platformdirs\nos.chdir(root)\n"
        "platformdirs.user_cache_path = lambda name: pathlib.Path('~/.cache', name)\n" + CALL
    )
    (tmp_path / "tmp").mkdir()
    env = {"NUMBA_CACHE_DIR": "", "TMPDIR": str(tmp_path / "tmp")}
    assert answer(tmp_path, code, **env) == (1, 0)
    assert answer(tmp_path, code, **env) == (1, 1)
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "FILE"])
def test_a_folder_that_cannot_be_made(place, tmp_path):
    """The temporary folder takes its part; without one, nothing is kept and all the same works."""
    toy(tmp_path, 1)
    (tmp_path / "file").write_text("")
    chosen = place.replace("FILE", str(tmp_path / "file"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"NUMBA_CACHE_DIR": chosen, "TMPDIR": str(temporary)}
    assert answer(tmp_path, **env) == (1, 0)
    assert answer(tmp_path, **env) == (1, 1)
    none = "import tempfile\ntempfile.tempdir = '/proc/nowhere'\n" + CALL
    assert answer(tmp_path, none, **env) == (1, 0)
    assert answer(tmp_path, none, **env) == (1, 0)


def test_a_full_disk(tmp_path):
    """Writing fails in the middle: no traceback, the right number, nothing half-written."""
    toy(tmp_path, 1)
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
    env = {"TMPDIR": str(tmp_path / "cache")}
    (tmp_path / "cache").mkdir()
    assert answer(tmp_path, full + CALL, **env) == (1, 0)
    assert not list((tmp_path / "cache").rglob("*.kernel"))
    assert not list((tmp_path / "cache").rglob("*.part"))
    assert answer(tmp_path, **env) == (1, 0)
    assert answer(tmp_path, **env) == (1, 1)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no user ids")
def test_a_folder_of_somebody_else_is_not_read(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    folder = tmp_path / "base" / "1-0"
    folder.mkdir(parents=True)
    assert store._trusted(folder)
    folder.chmod(0o777)
    assert not store._trusted(folder)
    folder.chmod(0o700)
    (tmp_path / "base").chmod(0o777)
    assert not store._trusted(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # chosen by the user
    assert store._trusted(folder)
    assert not store._trusted(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no user ids")
def test_folders_that_others_could_change_are_not_read(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    base = tmp_path / "tmp" / "base"
    folder = base / "1-0"
    folder.mkdir(parents=True)
    for place in (folder, base):
        place.chmod(0o770)  # a group
        assert not store._trusted(folder)
        place.chmod(0o700)
    (tmp_path / "tmp").chmod(0o777)  # where anybody may put another folder in its place
    assert not store._trusted(folder)
    (tmp_path / "tmp").chmod(0o1777)
    assert store._trusted(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))  # says nothing of this one
    base.chmod(0o777)
    assert not store._trusted(folder)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="for root to try")
def test_a_link_of_somebody_else_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "mine" / "1-0").mkdir(parents=True)
    (tmp_path / "base").symlink_to(tmp_path / "mine")
    assert store._trusted(tmp_path / "base" / "1-0")
    os.chown(tmp_path / "base", 12345, 12345, follow_symlinks=False)
    assert not store._trusted(tmp_path / "base" / "1-0")


def test_who_may_read_what_is_kept(tmp_path):
    """A chosen folder is read by the later users of an image; the user's own by nobody else."""
    toy(tmp_path, 1)
    code = "import os\nos.umask(0o002)\n" + CALL
    answer(tmp_path, code)
    chosen = [*(tmp_path / "cache").rglob("*")]
    assert {oct(p.stat().st_mode & 0o777) for p in chosen} == {"0o775", "0o644"}
    (tmp_path / "tmp").mkdir()
    env = {"NUMBA_CACHE_DIR": "/proc/nowhere", "TMPDIR": str(tmp_path / "tmp")}
    assert answer(tmp_path, code, **env) == (1, 0)
    assert answer(tmp_path, code, **env) == (1, 1)
    own = [p for p in (tmp_path / "tmp").rglob("*") if p.is_dir()]
    assert {oct(p.stat().st_mode & 0o777) for p in own} == {"0o700"}


def test_a_claim_goes_to_the_folder_that_takes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "places", lambda: (Path("/proc/nowhere/1-0"), tmp_path / "a" / "b"))
    store.claim("kernel")
    assert [p.name for p in tmp_path.rglob("*.lock")] == ["kernel.lock"]
    store.release("kernel")
    assert not list(tmp_path.rglob("*.lock"))


def test_what_another_folder_holds_is_brought(tmp_path, monkeypatch):
    best, other = tmp_path / "a" / "b", tmp_path / "c" / "d"
    monkeypatch.setattr(store, "places", lambda: (other,))
    assert store.write("kernel", b"code")
    monkeypatch.setattr(store, "places", lambda: (best, other))
    store.bring("nothing")
    store.bring("kernel")
    monkeypatch.setattr(store, "places", lambda: (best,))
    assert store.read("kernel") == b"code"
    assert not store.has("nothing")


def test_old_folders_are_cleaned(tmp_path):
    now = time.time()
    for k in range(8):
        folder = tmp_path / f"0.{k}.0-{k:016x}"
        folder.mkdir()
        (folder / "f.kernel").write_text("")
        os.utime(folder, (now, now - k * 1800.0))
    (tmp_path / "mine").mkdir()
    os.utime(tmp_path / "mine", (now, now - 1e7))
    current = tmp_path / f"0.0.0-{0:016x}"
    store._clean(tmp_path, current)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == [*(f"0.{k}.0-{k:016x}" for k in range(5)), "mine"]


def test_processes_that_compile_at_once(tmp_path):
    """Each gets the right number; one compiles, the others wait for it."""
    toy(tmp_path, 7)
    waiting = (
        "import time, pathlib\nimport toy_outer\n"
        "while not pathlib.Path(sys.argv[1], 'go').exists(): time.sleep(0.005)\n" + CALL
    )
    for _ in range(3):
        for file in (tmp_path / "cache").rglob("*"):
            if file.is_file():
                file.unlink()
        (tmp_path / "go").unlink(missing_ok=True)
        running = [
            subprocess.Popen(
                [sys.executable, "-c", TOY + waiting, str(tmp_path)],
                env=environment(tmp_path), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for _ in range(3)
        ]  # fmt: skip
        time.sleep(0.5)
        (tmp_path / "go").touch()
        ended = [p.communicate(timeout=300) for p in running]
        assert [err for _, err in ended] == ["", "", ""]
        values, hits = zip(*(map(int, out.split()) for out, _ in ended), strict=True)
        assert values == (7, 7, 7)
        assert sum(hits) == 2
        assert not list((tmp_path / "cache").rglob("*.lock"))


def test_a_lock_that_is_never_released_holds_nobody_for_ever(tmp_path):
    toy(tmp_path, 1)
    holder = process(
        tmp_path,
        "store.PATIENCE = 0.2\n"
        "from filelock import FileLock\nimport toy_outer\n"
        "name = registry.file_name('toy_outer:call', 'int64')\n"
        "place = store.places()[0]; place.mkdir(parents=True)\n"
        "lock = FileLock(place / (name + '.lock')); lock.acquire()\n" + CALL,
    )
    assert holder.stdout.split() == ["1", "0"], holder.stderr


def test_a_kernel_that_fails_to_compile_holds_nobody(tmp_path):
    toy(tmp_path, 1)
    outer = tmp_path / "toy_outer.py"
    outer.write_text(outer.read_text().replace("value()", "value() + nothing"))
    code = """
from toy_outer import call
try:
    call(0)
except Exception:
    print(len(store._held), 0)
"""
    assert answer(tmp_path, code) == (0, 0)
    assert not list((tmp_path / "cache").rglob("*.lock"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_claimed_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "places", lambda: (tmp_path / "a" / "b",))
    store.claim("kernel")
    child = os.fork()
    if child == 0:
        os._exit(len(store._held))
    assert os.waitpid(child, 0)[1] == 0
    store.release("kernel")


# The farm -----------------------------------------------------------------------------------


@pytest.fixture
def short() -> registry.Kernel:
    """A kernel that compiles soon."""
    return min(registry.everything(), key=lambda kernel: kernel.seconds)


def farm_process(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    head = (
        "import os, sys, time, signal\n"
        "from tightz.runtime.kernels import farm, registry, store\n"
        "wanted = sorted(registry.everything(), key=lambda k: k.seconds)[:2]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        env=environment(folder), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def kept(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*.kernel"))


def test_the_farm_compiles_what_is_missing(tmp_path):
    code = """
told = []
with farm.Farm(told=lambda *a: told.append(a)) as f:
    f.want(wanted[:1])
    assert not f.finished and not f.ready(wanted)
    f.wait()
    assert f.ready(wanted) and f.finished and not f.failed, f.failed
    spent = f.elapsed
    time.sleep(0.1)
    assert f.elapsed == spent > 0
    f.want(wanted)
    assert not f.finished and f.wanted == 2
    f.wait()
assert [t for t in told if t[0] == t[1]] == [(1, 1), (2, 2)], told
assert not farm.missing(wanted)
assert f.seconds > 0 and f.elapsed > spent
with farm.Farm() as again:
    again.want(wanted)
    assert again.finished and again.elapsed == 0.0 and again.wanted == 0
from tightz.runtime.kernels.worker import dispatcher_of
from tightz.runtime.kernels.signatures import from_text
kernel = dispatcher_of(wanted[0].function)
kernel.compile(from_text(wanted[0].signature))
assert sum(kernel.stats.cache_hits.values()) == 1
"""
    farm_process(tmp_path, code)
    assert len(kept(tmp_path)) >= 2


def test_what_is_under_way_is_finished_after_the_end(tmp_path):
    farm_process(tmp_path, "farm.Farm(processes=1).want(wanted[:1])\ntime.sleep(0.3)\nos._exit(0)")
    deadline = time.monotonic() + 120.0
    while not kept(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kept(tmp_path)


def test_a_killed_worker_leaves_the_rest_to_the_caller(tmp_path):
    code = """
f = farm.Farm(processes=1)
f.want(wanted)
os.kill(f._workers[0].pid, signal.SIGKILL)
f.wait()
assert f.finished
assert "killed" in f.failed[0] and len(f.failed) == 1
assert wanted[1] not in farm.missing(wanted)  # compiled in this process, and kept
"""
    farm_process(tmp_path, code)


@pytest.mark.parametrize(
    "how", ["no process", "no interpreter", "frozen", "inside", "no folder", "full disk"]
)
def test_where_other_processes_are_no_help_all_is_compiled_here(how, monkeypatch, short):
    if how == "no process":
        monkeypatch.setattr(farm.subprocess, "Popen", _refuse)
    if how == "no interpreter":
        monkeypatch.setattr(sys, "executable", "")
    if how == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    if how == "inside":
        monkeypatch.setenv(farm.INSIDE, "1")
    if how == "no folder":
        monkeypatch.setattr(store, "places", lambda: ())
    if how == "full disk":  # found out by the worker
        monkeypatch.setattr(farm, "ask", lambda *_: {"kept": False, "seconds": 0.0})
    else:
        monkeypatch.setattr(farm, "ask", None)  # not even asked
    monkeypatch.setattr(store, "has", lambda name: False)
    told = []
    with farm.Farm(told=lambda *a: told.append(a)) as f:
        f.want([short])
        f.wait()
    assert from_text(short.signature) in farm.overloads(short)
    assert not f.failed
    if how != "no folder":  # there it may have been compiled by another test
        assert told[-1] == (1, 1)
    with farm.Farm(here=False) as f:
        f.want([short])
        f.wait()


def _refuse(*_, **__):
    raise OSError("no more processes")


@pytest.mark.parametrize("line", ["", "42", "[]", "no json"])
def test_an_interpreter_that_answers_something_else(line):
    class Odd:
        stdin, stdout = io.StringIO(), io.StringIO(line)

    assert farm.ask(Odd(), registry.Kernel("f", "int64")) is None


def test_progress_that_cannot_be_shown_stops_nothing(monkeypatch, short):
    def told(done, total):
        raise BrokenPipeError("the terminal is gone")

    monkeypatch.setattr(store, "has", lambda name: False)
    monkeypatch.setattr(farm, "ask", lambda *_: {"kept": True})
    with farm.Farm(processes=1, told=told) as f:
        f.want([short])
        f.wait()
    assert f.done == 1


def test_what_workers_are_given(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [Path("/odd"), "", "/a.zip", None])
    assert farm._environment()["PYTHONPATH"].split(os.pathsep) == [str(SRC), "/a.zip"]
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    assert farm._fitting() == 1


def test_a_worker_does_not_import_from_the_working_folder(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    code = f"""
os.chdir({str(tmp_path)!r})
with farm.Farm() as f:
    f.want(wanted[:1])
    f.wait()
assert not f.failed, f.failed
"""
    farm_process(tmp_path, code)


def test_without_compilation_there_is_nothing_to_wait_for(tmp_path):
    code = "f = farm.Farm()\nf.want(wanted)\nassert f.finished and not f.wanted"
    done = farm_process(tmp_path, "import numba; numba.config.DISABLE_JIT = 1\n" + code)
    assert done.stderr == ""


def test_a_farm_that_stands_still_is_given_up(monkeypatch, short):
    monkeypatch.setattr(farm, "STALLED", 0.0)
    monkeypatch.setattr(store, "has", lambda name: False)
    monkeypatch.setattr(farm, "ask", lambda *_: time.sleep(3.0))
    with farm.Farm(processes=1) as f:
        f.want([short])
        f.wait()
    assert f.finished


# The clock and the streams ------------------------------------------------------------------


def test_a_held_clock_counts_nothing():
    clock = Clock(0.2)
    child = clock.child(0.1)
    clock.hold()
    clock.hold()
    time.sleep(0.25)
    assert clock.left > 0.15
    assert child.left > 0.05
    assert clock.elapsed > 0.25
    later = clock.child(0.1)
    time.sleep(0.15)
    assert not later.expired
    clock.release()
    clock.release()
    time.sleep(0.12)
    assert child.expired
    assert later.expired
    assert not clock.expired
    clock.stop()
    clock.hold()
    assert clock.expired


class SlowFarm:
    """Kernels that take a while."""

    def __init__(self, seconds=1.0):
        self.seconds, self.until, self.closed, self.asked = seconds, None, False, []

    @property
    def finished(self):
        return self.until is not None and time.monotonic() >= self.until

    elapsed = 1.0

    def want(self, kernels):
        self.until = self.until or time.monotonic() + self.seconds
        self.asked += kernels

    def ready(self, kernels):
        return self.finished or not kernels

    def close(self, *, finish):
        self.closed, self.finish = True, finish


def test_a_farm_that_is_not_to_finish_ends_its_processes(monkeypatch):
    monkeypatch.setattr(farm, "missing", list)
    code, started, popen = "input(); import time; time.sleep(1000)", [], subprocess.Popen

    def start(_, **options):
        started.append(popen([sys.executable, "-c", code], **options))
        return started[-1]

    monkeypatch.setattr(farm.subprocess, "Popen", start)
    busy = farm.Farm(processes=1)
    busy.want([next(iter(registry.everything()))])
    busy.close(finish=False)
    assert started[0].poll() is not None


@pytest.mark.parametrize("compile", ["before", "beside"])
def test_compilation_counts_or_does_not(compile, monkeypatch):
    slow = SlowFarm()
    monkeypatch.setattr("tightz.interval.log_partition.Farm", lambda: slow)
    began = {}

    def quick(working, clock):
        began["quick"] = clock.elapsed
        while True:
            time.sleep(0.02)
            yield from ()
            if clock.expired:
                return

    def needy(working, clock):
        began["needy"] = clock.elapsed
        yield from ()

    monkeypatch.setattr(
        "tightz.interval.lanes.kernels_of",
        lambda name, kind: ("k",) if name == "needy" else (),
    )
    grid = tz.ising_grid(4, seed=0)
    r = tz.log_partition(grid, only=[quick, needy], time_limit=1.5, compile=compile)
    assert began["needy"] - began["quick"] > 0.9  # when its kernels were there
    assert r.compile_seconds == 1.0
    assert "compiling, once on this machine" in r.summary()
    assert slow.closed
    assert slow.finish == (compile == "beside")
    assert (r.seconds > 2.4) == (compile == "before")


def test_a_cold_run_starts_all_streams_and_a_warm_one_does_not(monkeypatch):
    """Where the exact sum's kernels are still being compiled annealing does not wait for them."""
    from tightz.interval import log_partition as main_job
    from tightz.interval.portfolio import SIDE_BY_SIDE

    started = []
    monkeypatch.setattr(main_job, "race", lambda w, b, methods, *_, **__: started.append(methods))
    grid = tz.ising_grid(4, seed=0)
    monkeypatch.setattr(main_job, "missing", lambda kernels: [])
    tz.log_partition(grid, time_limit=1.0)
    monkeypatch.setattr(main_job, "missing", list)
    tz.log_partition(grid, time_limit=1.0)
    assert len(started[0]) == 1
    assert len(started[1]) == 1 + len(SIDE_BY_SIDE)


def test_kernels_are_wanted_when_their_stream_is_launched():
    from tightz.interval.lanes import Schedule
    from tightz.interval.opening import opening
    from tightz.interval.portfolio import SIDE_BY_SIDE
    from tightz.workspace.working import Working

    slow = SlowFarm()
    schedule = Schedule(Working(tz.ising_grid(3, seed=0)), 1.0, slow)
    schedule.add([opening])
    assert set(slow.asked) == set(registry.kernels_of("opening", "spins"))
    slow.asked.clear()
    schedule.add(SIDE_BY_SIDE)
    first = registry.kernels_of("capped", "spins")
    assert set(slow.asked[: len(first)]) == set(first)
    assert set(registry.kernels_of("splitting", "spins")) <= set(slow.asked)  # launched later


def test_the_kernels_of_annealing_come_first():
    wanted = registry.needed(["annealed", "opening"], "spins")
    first = registry.kernels_of("annealed", "spins")
    assert set(wanted[: len(first)]) == set(first)
    rest = [k.seconds for k in wanted[len(first) :]]
    assert rest == sorted(rest, reverse=True)


def test_while_the_clock_is_held_streams_take_little():
    """They would take the processors from the compilation that all wait for."""
    from tightz.interval.lanes import EARLY, Schedule
    from tightz.workspace.working import Working

    clock = Clock(10.0)
    schedule = Schedule(Working(tz.ising_grid(3, seed=0), clock), 1.0, SlowFarm(0.0))

    def quick(working, clock):
        yield from ()

    def slow(working, clock):
        yield from ()

    schedule.add([quick, slow])
    for lane in schedule.lanes:
        lane.kernels = registry.kernels_of("annealed", "spins")
    clock.hold()
    first = schedule.take().lane
    assert not any(schedule._early(lane) for lane in schedule.lanes)  # one at a time
    schedule.give_back(first, EARLY / 2, ended=False)
    assert all(schedule._early(lane) for lane in schedule.lanes)
    schedule.give_back(schedule.take().lane, EARLY, ended=False)
    assert not any(schedule._early(lane) for lane in schedule.lanes)
    clock.release()
    assert schedule.take() is not None


def test_a_stream_that_is_launched_twice_runs_once():
    from tightz.interval.lanes import Schedule
    from tightz.workspace.working import Working

    schedule = Schedule(Working(tz.ising_grid(3, seed=0)), 1.0, SlowFarm(0.0))

    def stream(working, clock):
        yield from ()

    schedule.add([stream])
    schedule.add([stream, stream])
    assert len(schedule.lanes) == 1
    schedule.add([Weighted(np.ones(2)), Weighted(np.ones(2))])  # equality says nothing
    assert len(schedule.lanes) == 3


@dataclass(frozen=True)
class Weighted:
    """A stream that is an object with an array."""

    weights: np.ndarray

    def __call__(self, working, clock):
        yield from ()


def test_compile_is_before_or_beside():
    with pytest.raises(ParameterError, match="expected 'before' or 'beside'"):
        tz.log_partition(tz.ising_grid(3, seed=0), compile="never")


# The command --------------------------------------------------------------------------------


def test_tightz_compile(tmp_path, monkeypatch, short):
    from click.testing import CliRunner

    runner = CliRunner()
    monkeypatch.setattr(registry, "everything", lambda: (short,))
    result = runner.invoke(main, ["compile"])
    assert result.exit_code == 0, result.output
    assert "1 kernels in" in result.stdout
    record = json.loads(runner.invoke(main, ["compile", "--json"]).stdout)
    assert record["kernels"] == 1
    assert record["lacking"] == []
    result = runner.invoke(main, ["compile", "nonsense"])
    assert result.exit_code == 2
    assert "'nonsense' is no task; expected some of" in result.output
    assert runner.invoke(main, ["compile", "-j", "0"]).exit_code == 2


def test_tightz_compile_where_nothing_is_kept(monkeypatch, short):
    from click.testing import CliRunner

    monkeypatch.setattr(registry, "everything", lambda: (short,))
    monkeypatch.setattr(store, "has", lambda name: False)
    monkeypatch.setattr(farm, "ask", lambda *_: {"kept": False, "seconds": 0.0})
    result = CliRunner().invoke(main, ["compile"])
    assert result.exit_code == 1
    assert "1 of 1 kernels are not kept in" in result.stdout


def test_progress_is_a_line_where_somebody_looks(monkeypatch, capsys):
    farm._line(1, 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    farm._line(1, 3)
    assert "compiling kernels, once on this machine: 1 of 3" in capsys.readouterr().err
    farm._line(3, 3)
    assert "compiling" not in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)
    farm._line(1, 3)


def test_a_task_prepares_once_and_not_inside_another(monkeypatch, tmp_path):
    from tightz.models import prepared as module

    asked = []
    monkeypatch.setattr(module, "prepare", lambda task, kind: asked.append((task, kind)))
    grid = tz.ising_grid(3, seed=0)

    @module.prepared("inner")
    def second(model):
        return model

    @module.prepared("outer")
    def first(model):
        return second(model)

    assert first(grid) is grid
    assert second(model=grid) is grid
    assert first(3) == 3
    assert asked == [("outer", "spins"), ("inner", "spins")]
    path = tmp_path / "grid.npz"
    tz.write(grid, path)
    assert first(str(path)).digest == second(model=path).digest == grid.digest
    assert asked[2:] == [("outer", "spins"), ("inner", "spins")]


def test_kinds_of_models():
    from tightz.models.kinds import kind_of
    from tightz.reductions.encoding import encode

    for kind in recorder.KINDS:
        for model in recorder.models(kind):
            assert kind_of(model) == kind
    spins, terms = recorder.models("spins")[0], recorder.models("terms")[0]
    assert kind_of(encode(spins).polynomial) == "spins"
    assert kind_of(encode(terms).polynomial) == "terms"
    assert kind_of(encode(recorder.models("dense")[1]).polynomial) == "dense"


def test_the_watch_sees_what_python_calls_and_not_what_kernels_call():
    seen = recorder.Calls()
    with seen.watch():
        seen.clear()
        tz.exact(tz.ising_grid(4, seed=0), marginals=False)
    functions = {function for function, _ in seen.seen}
    assert functions
    declared = {
        f"tightz.{source.removesuffix('.py').replace('/', '.')}:{f.name}"
        for source in registry.sources()
        for f in recorder.kernel_functions(ast.parse((store.PACKAGE / source).read_text()))
        if any("kernel" in ast.unparse(d) for d in f.decorator_list)
    }
    assert functions <= declared
