"""The command line in a newcomer's hands: one clear line, exit code 2, and no work done in vain."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import tightz as tz
from tests.schema import check, loads
from tightz.cli import exits
from tightz.cli.main import main

NOWHERE = "its folder does not exist; create it first"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a good model and several bad ones, which is also the working directory."""
    tz.write(tz.ising_grid(3, seed=0), tmp_path / "grid.uai")
    whole = (tmp_path / "grid.uai").read_text()
    (tmp_path / "truncated.uai").write_text(whole[: len(whole) // 2])
    (tmp_path / "empty.uai").write_text("")
    (tmp_path / "binary.uai").write_bytes(bytes(range(256)))
    (tmp_path / "model.doc").write_text("x")
    (tmp_path / "rows.csv").write_text("0,1,0,1,0,1,0,1,0\n")
    (tmp_path / "folder.uai").mkdir()
    (tmp_path / "wrong.evid").write_text("1 99 0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("exact missing.uai", "missing.uai does not exist"),
        ("exact folder.uai", "folder.uai is a directory; expected a file"),
        ("exact empty.uai", "the file is empty"),
        ("exact truncated.uai", "truncated.uai, line 61"),
        ("exact binary.uai", "expected a text file"),
        ("exact model.doc", "unknown ending '.doc'; expected .uai"),
        ("exact grid.uai -e wrong.evid", "evidence names variable 99"),
        ("mean-field grid.uai --seed -1", "seed is -1"),
        ("mfrp grid.uai --levels 5:1", "levels are '5:1'"),
        ("marginals grid.uai --levels x", "levels are 'x'"),
        ("marginals grid.uai --uai-output no/x", f"cannot write no/x: {NOWHERE}"),
        ("logz grid.uai --plot no/x.png", f"cannot write no/x.png: {NOWHERE}"),
        ("logz grid.uai --plot x.doc", "unknown ending '.doc'; expected .avif, .eps"),
        ("logz grid.uai --uai-output no/x", f"cannot write no/x.PR: {NOWHERE}"),
        ("generate ising-grid 3 -o folder.uai", "it is a directory"),
        ("train-rbm -o no/x.npz", f"cannot write no/x.npz: {NOWHERE}"),
        ("demo --output grid.uai/x.png", "cannot write grid.uai/x.png"),
    ],
)
def test_a_mistake_is_one_line_and_costs_no_time(line, message, folder):
    result = run(*line.split())
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert message.partition("expected .avif")[0] in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


SMALL = {
    "logz": "grid.uai -T 5",
    "mean-field": "grid.uai -j 2",
    "mfrp": "grid.uai --levels 0,1 -t 2 -j 2",
    "marginals": "grid.uai --method mfrp --levels 0,1 -t 2",
    "query": "grid.uai -e 0=1 -q 3",
    "likelihood": "grid.uai rows.csv -T 5",
    "sweep": "grid.uai rows.csv",  # a record for each row
    "free-energy": "grid.uai --temperatures 1:2:3 -T 5",
    "info": "grid.uai",
    "exact": "grid.uai",
    "upper": "grid.uai --iterations 2",
    "ais": "grid.uai --chains 4 --temperatures 5",
    "map": "grid.uai --time-limit 1",
    "wish": "grid.uai -t 2",
    "theorem": "grid.uai --levels 0,1 -t 2 -j 2 --backend cpu",
    "train-rbm": "",  # needs MNIST: tests/test_train_rbm.py
    "doctor": "",
    "compile": "bethe",
}
"""A quick call of every command with --json."""


def test_every_command_with_json_is_called_here():
    with_json = {
        name
        for name, command in main.commands.items()
        if any(p.name == "as_json" for p in command.params if isinstance(p, click.Option))
    }
    assert with_json == SMALL.keys()


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("train-rbm", "sweep")])
def test_json_is_one_valid_record(name, folder):
    result = run(name, *SMALL[name].split(), "--json")
    assert result.exit_code == 0, result.output
    record = loads(result.stdout)
    assert record["command"] == name
    check(record)


def test_a_sweep_is_a_valid_record_for_each_row(folder):
    result = run("sweep", *SMALL["sweep"].split(), "--json")
    assert result.exit_code == 0, result.output
    (record,) = map(loads, result.stdout.splitlines())
    assert record["row"] == 0
    check(record)


def test_a_closed_pipe_is_silent(folder):
    line = f"{sys.executable} -m tightz marginals grid.uai | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert result.stdout == "0\n"
    assert result.stderr == ""


def test_a_full_disk_is_one_line(folder):
    line = f"{sys.executable} -m tightz info grid.uai > /dev/full"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert result.returncode == exits.FULL
    assert result.stderr == "error: No space left on device\n"


def test_ctrl_c_is_one_line_and_exit_code_130(folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tz, "mean_field", interrupt, raising=False)
    result = run("mean-field", "grid.uai")
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"
