"""What the command line and the pictures say.

Commands are called past the group, which would turn an error into a line and exit code 2.
"""

from __future__ import annotations

import sys

import tightz as tz
from tests.errors.table import Case
from tightz.cli import commands, experiments, options
from tightz.cli.main import main
from tightz.errors import MissingExtraError, ModelError, ParameterError, TightzError


def _run(command, *arguments):
    words = [str(a) for a in arguments]
    # click keeps the help option of the first call: name the group's.
    command.main(words, standalone_mode=False, help_option_names=["-h", "--help"])


def _grid(tmp):
    tz.write(tz.ising_grid(2, seed=0), tmp / "grid.uai")
    return tmp / "grid.uai"


NO_FOLDER = "cannot write TMP/a/out.png: its folder does not exist; create it first"


def _run_in(tmp, line):
    """A command line with TMP for the folder, which holds grid.uai."""
    _grid(tmp)
    name, *words = line.replace("TMP", str(tmp)).split()
    _run(main.commands[name], *words)


def _load_unknown_ending(tmp):
    (tmp / "model.py").write_text("")
    options.Source(str(tmp / "model.py")).load()


def _load_result(tmp):
    tz.write(1.0, tmp / "z.PR")
    options.Source(str(tmp / "z.PR")).load()


def _weights(tmp):
    tz.write(tz.rbm([[0.0]], [0.0], [0.0]), tmp / "rbm.npz")
    return tmp / "rbm.npz"


def _no_matplotlib(patch):
    from tightz.plots import pyplot

    patch.setitem(sys.modules, "matplotlib.pyplot", None)
    pyplot()


def _no_experiments(patch):
    patch.setitem(sys.modules, "tightz_experiments", None)
    _run(experiments.reproduce, "picture", "--quick")


def _save_nowhere(tmp):
    from tightz.plots import pyplot, save

    save(pyplot().figure().subplots(), tmp / "a" / "plot.png")


CASES = [
    Case(
        ParameterError,
        "time_limit is -1.0; expected a positive number of seconds",
        lambda tmp: _run_in(tmp, "marginals TMP/grid.uai -T -1"),
    ),
    Case(
        ParameterError,
        "levels are 'a:b'; expected a range like 0:20 or a list like 0,5,10",
        lambda: options.parse_levels("a:b"),
    ),
    Case(
        ParameterError,
        "-m is 1 and --levels is '0:2'; expected one, not both",
        lambda tmp: _run(commands.mfrp, _grid(tmp), "-m", 1, "--levels", "0:2"),
    ),
    Case(
        ModelError,
        "e.evid does not exist",
        lambda tmp: options.Source(str(_weights(tmp)), ("e.evid",)).load(),
    ),
    Case(
        ParameterError,
        "--time-limit is 5 and --method trw; expected --iterations to end it",
        lambda tmp: _run(main.commands["upper"], _grid(tmp), "--method", "trw", "-T", 5),
    ),
    Case(
        ModelError,
        "TMP/z.PR holds results; expected a model",
        _load_result,
    ),
    Case(
        ModelError,
        "TMP/model.txt does not exist",
        lambda tmp: options.Source(str(tmp / "model.txt")).load(),
    ),
    Case(
        ModelError,
        "TMP/model.py: unknown ending '.py'; expected .uai, .fg, .cnf, .bif, .xml, .xmlbif, .npz, "
        ".mat, .h5, .hdf5, .PR, .MAR, or say what it is: format='uai'",
        _load_unknown_ending,
    ),
    Case(
        ParameterError,
        "format is 'txt'; expected one of .uai, .fg, ...",
        lambda: tz.read("m.uai", format="txt"),
    ),
    Case(
        ParameterError,
        "evidence is no option of .PR files (UAI results, log10 Z in the file and log Z here); "
        "expected none",
        lambda: tz.read("z.PR", {0: 1}),
    ),
    Case(
        ParameterError,
        "examples is 0; expected between 1 and 60000",
        lambda tmp: _run(main.commands["train-rbm"], "--examples", 0, "-o", tmp / "rbm.npz"),
    ),
    Case(
        ParameterError,
        "no column cd9; there are cd1-100, cd5-100, cd15-100, cd5-200, cd15-200, "
        "cd25-200, cd25-500-public",
        lambda tmp: _run(experiments.reproduce_rbm, "--only", "cd9", "--out", tmp),
    ),
    Case(
        TightzError,
        "TMP/grid.uai/x/quick/picture: cannot be created (Not a directory); choose another "
        "folder with --out",
        lambda tmp: _run(experiments.reproduce_picture, "--quick", "--out", _grid(tmp) / "x"),
    ),
    Case(
        MissingExtraError,
        "tightz reproduce runs the package tightz_experiments, which is not here; "
        "pip install --force-reinstall tightz brings both",
        _no_experiments,
    ),
    Case(MissingExtraError, "plots need matplotlib: pip install 'tightz[plot]'", _no_matplotlib),
    Case(
        TightzError,
        "TMP/a/plot.png: cannot be written (No such file or directory); choose a path in a "
        "folder that is there and writable",
        _save_nowhere,
    ),
    Case(AttributeError, "module 'tightz' has no attribute 'nothing'", lambda: tz.nothing),
    Case(
        ParameterError,
        "--resume needs --store FILE: which run is to go on?",
        lambda tmp: _run(commands.mfrp, _grid(tmp), "--resume"),
    ),
    Case(
        ParameterError,
        "cannot write TMP: it is a directory; expected a file",
        lambda tmp: options.require_writable(str(tmp)),
    ),
    *(
        Case(ParameterError, NO_FOLDER, lambda tmp, call=call: _run_in(tmp, call))
        for call in (
            "logz TMP/grid.uai --plot TMP/a/out.png",
            "likelihood TMP/grid.uai TMP/rows.npy -o TMP/a/out.png",
            "marginals TMP/grid.uai --uai-output TMP/a/out.png",
            "generate ising-grid 3 -o TMP/a/out.png",
            "train-rbm -o TMP/a/out.png",
        )
    ),
    Case(
        ParameterError,
        "cannot write TMP/grid.uai/out.png: its folder does not exist; create it first",
        lambda tmp: _run_in(tmp, "demo --output TMP/grid.uai/out.png"),
    ),
    Case(
        ParameterError,
        "TMP/out.doc: unknown ending '.doc'; expected ...",
        lambda tmp: _run_in(tmp, "demo --output TMP/out.doc"),
    ),
    Case(
        ParameterError,
        "TMP/out.doc: unknown ending '.doc'; expected ...",
        lambda tmp: _run_in(tmp, "logz TMP/grid.uai --plot TMP/out.doc"),
    ),
    Case(
        ParameterError,
        "--processes is 0; expected at least 1",
        lambda: _run(main.commands["compile"], "-j", "0"),
    ),
    Case(
        ParameterError,
        "'nonsense' is no task; expected some of ...",
        lambda: _run(main.commands["compile"], "nonsense"),
    ),
]
