"""`tightz doctor` says what is there and what is not; exit code 0 means that the core works."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import tightz as tz
from tightz.cli.doctor import BROKEN, LACKING, OK, examine
from tightz.cli.main import main
from tightz.runtime.kernels import store


def run(*args):
    return CliRunner().invoke(main, ["doctor", *args])


def found(group):
    return {check.name: check for check in examine() if check.group == group}


@pytest.fixture
def without(monkeypatch):
    """Pretend that a package is not installed."""

    def hide(name):
        version = metadata.version

        def pretend(package):
            if package == name:
                raise metadata.PackageNotFoundError(package)
            return version(package)

        monkeypatch.setattr(metadata, "version", pretend)

    return hide


def test_a_sound_installation():
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "tightz works here."
    assert "!!" not in result.stdout
    lines = result.stdout.splitlines()
    for name, value in (
        ("tightz", tz.__version__), ("numpy", metadata.version("numpy")), ("cores", "usable of"),
        ("memory", "B"), ("cuda", ""), ("plot", "matplotlib"), ("TIGHTZ_DATA", ""),
        ("folder", "new kernels go there"), ("compiled", f"for tightz {tz.__version__}"),
        ("4x4 grid", "holds"),
    ):  # fmt: skip
        assert any(name in line and value in line for line in lines), name


def test_json_is_one_record_with_the_same_checks():
    record = json.loads(run("--json").stdout)
    assert record["works"] is True
    assert [c["name"] for c in record["checks"]] == [check.name for check in examine()]
    assert {c["group"] for c in record["checks"]} == {
        "versions", "machine", "gpu", "extras", "data", "self-check", "kernels",
    }  # fmt: skip


def test_every_extra_of_the_package_is_listed():
    extras = set(metadata.metadata("tightz").get_all("Provides-Extra")) - {"lint", "test"}
    assert found("extras").keys() == extras


@pytest.mark.parametrize(
    ("package", "extra"),
    [("matplotlib", "plot"), ("distributed", "cluster"), ("ortools", "wish"), ("h5py", "h5")],
)
def test_a_missing_extra_names_the_install_that_mends_it(package, extra, without):
    without(package)
    check = found("extras")[extra]
    assert check.status == LACKING
    assert check.found == f"{package} is not installed"
    assert check.remedy == f"pip install --upgrade 'tightz[{extra}]'"
    result = run()
    assert result.exit_code == 0
    assert check.remedy in result.stdout


def test_an_old_extra_is_said_to_be_old(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda p: "3.1.3" if p == "matplotlib" else version(p))
    assert found("extras")["plot"].found == "matplotlib 3.1.3 is too old, expected 3.8 or later"


def test_a_missing_dependency_of_the_core_is_exit_code_1(without):
    without("scipy")
    result = run()
    assert result.exit_code == 1
    assert "!!  scipy          is not installed; pip install --upgrade tightz" in result.stdout
    assert result.stdout.splitlines()[-1] == "tightz does not work here: see !! above."
    assert json.loads(run("--json").stdout)["works"] is False


def test_without_metadata_the_rest_is_still_checked(without):
    without("tightz")
    checks = list(examine())
    first = checks[0]
    assert (first.group, first.status) == ("versions", BROKEN)
    assert "reinstall" in first.remedy
    assert checks[-1].group == "kernels"


def test_a_wrong_bound_is_broken(monkeypatch):
    monkeypatch.setattr(tz, "exact", lambda *_, **__: SimpleNamespace(log_z=1e9), raising=False)
    assert found("self-check")["4x4 grid"].status == BROKEN
    assert run().exit_code == 1


def test_an_error_of_the_self_check_is_shown_with_advice(monkeypatch):
    def fail(*_, **__):
        raise ImportError("cannot import name 'f'")

    monkeypatch.setattr(tz, "mean_field", fail, raising=False)
    check = found("self-check")["error"]
    assert check.status == BROKEN
    assert "cannot import name" in check.found
    assert "reinstall" in check.remedy


def test_a_gpu_and_why_there_is_none(monkeypatch):
    from tightz.paper.gpu import availability

    monkeypatch.setattr(availability, "why_no_device", lambda: "no driver")
    check = found("gpu")["cuda"]
    assert (check.status, check.found) == (LACKING, "the CPU does the work: no driver")
    device = SimpleNamespace(
        cuda=SimpleNamespace(
            get_current_device=lambda: SimpleNamespace(name=b"H200", compute_capability=(9, 0)),
            cudadrv=SimpleNamespace(
                driver=SimpleNamespace(driver=SimpleNamespace(get_version=lambda: (12, 8)))
            ),
        ),
        free_bytes=lambda: 139 * 10**9,
    )
    monkeypatch.setattr(availability, "why_no_device", lambda: "")
    monkeypatch.setitem(sys.modules, "tightz.runtime.gpu.device", device)
    check = found("gpu")["cuda"]
    assert check.status == OK
    assert "H200, 139 GB free, compute capability 9.0, driver for CUDA 12.8" in check.found
    device.cuda.get_current_device = lambda: 1 / 0
    check = found("gpu")["error"]
    assert (check.status, check.found) == (LACKING, "ZeroDivisionError: division by zero")
    assert run().exit_code == 0


def test_no_gpu_code_at_all(monkeypatch):
    monkeypatch.setitem(sys.modules, "tightz.paper.gpu.availability", None)
    assert found("gpu")["error"].status == LACKING


@pytest.mark.parametrize(
    ("value", "status", "told"),
    [
        (None, LACKING, "unset"),
        ("/nonexistent", LACKING, "/nonexistent is not a folder"),
        ("HERE", OK, ": mnist, rbm"),
    ],
)
def test_the_data_folder(value, status, told, monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "rbm").mkdir()
    monkeypatch.delenv("TIGHTZ_DATA", raising=False)
    if value:
        monkeypatch.setenv("TIGHTZ_DATA", value.replace("HERE", str(tmp_path)))
    check = found("data")["TIGHTZ_DATA"]
    assert check.status == status
    assert told in check.found


def test_no_folder_takes_kernels(monkeypatch):
    monkeypatch.setattr(store, "takes_files", lambda folder: False)
    check = found("kernels")["folder"]
    assert check.status == LACKING
    assert "none takes files" in check.found
    assert "NUMBA_CACHE_DIR" in check.remedy
    assert run().exit_code == 0


def test_kernels_that_are_not_compiled(monkeypatch):
    monkeypatch.setattr(store, "has", lambda name: False)
    check = found("kernels")["compiled"]
    assert check.status == LACKING
    assert check.found.startswith("0 of ")
    assert "tightz compile takes about" in check.remedy


def test_a_system_that_tells_no_memory(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert found("machine")["memory"].found == "not told by this system"
