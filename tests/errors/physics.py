"""What models at other temperatures, their builders and commands say."""

from __future__ import annotations

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.cli.main import main
from tightz.cli.thermal import parse_grid
from tightz.errors import ModelError, ParameterError, UnsupportedModelError
from tightz.judge.convexity import Limits, thermal
from tightz.judge.verdict import RefutedError

GRID = tz.ising_grid(2, seed=0)


def _run(tmp, line):
    tz.write(GRID, tmp / "grid.uai")
    name, *words = line.replace("TMP", str(tmp)).split()
    main.commands[name].main(words, standalone_mode=False, help_option_names=["-h", "--help"])


def _singles_only():
    """Model counting gives marginals of variables, not of factors."""
    model = tz.FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [-np.inf, 0.0]])])
    result = tz.exact(model)
    object.__setattr__(result._tables, "factors", None)
    result.mean_of(model.log_tables)


CASES = [
    Case(
        ParameterError,
        "neither of temperatures and betas are given; expected one, such as "
        "temperatures=np.linspace(1.5, 3.5, 20)",
        lambda: tz.free_energy(GRID),
    ),
    Case(
        ParameterError,
        "temperatures have shape (0,); expected a list of at least one number",
        lambda: tz.free_energy(GRID, []),
    ),
    Case(
        ParameterError,
        "betas are more than 1000; expected fewer, in several calls where they are needed: "
        "their ends bound each other, all pairs of them",
        lambda: tz.free_energy(GRID, betas=parse_grid("0:1:1000000000000", "--betas")),
    ),
    Case(
        ParameterError,
        "temperatures[1] is -2; expected positive numbers (inf is infinite temperature): "
        "tz.ground_state(model) is for T = 0, and a model with all its logs negated for T < 0",
        lambda: tz.free_energy(GRID, [1.0, -2.0]),
    ),
    Case(
        ParameterError,
        "betas[0] is -1; expected numbers from 0, the inverse of temperatures: "
        "tz.ground_state(model) is for infinite beta, and a model with all its logs negated for "
        "beta < 0",
        lambda: tz.free_energy(GRID, betas=-1.0),
    ),
    Case(
        ParameterError,
        "time_limit is 0; expected a positive number of seconds",
        lambda: tz.free_energy(GRID, [1.0], time_limit=0),
    ),
    Case(
        ParameterError,
        "delta is 1; expected a probability strictly between 0 and 1",
        lambda: tz.free_energy(GRID, [1.0], delta=1),
    ),
    Case(
        ModelError,
        "factor 0 holds -1e+50, which times beta = 1e+51 is too large for sums in float64; "
        "expected a smaller beta, or zeros instead of large numbers: model.with_zeros()",
        lambda: tz.free_energy(tz.FactorGraph([1], [((0,), [-1e50])]), betas=1e51),
    ),
    Case(
        UnsupportedModelError,
        "elimination gives marginals of single variables only, not of factors",
        _singles_only,
    ),
    Case(
        RefutedError,
        "ends of log Z need ascending betas, one pair for each",
        lambda: thermal(np.array([1.0, 0.0]), np.zeros((2, 2)), Limits.of(GRID)),
    ),
    Case(
        RefutedError,
        "a lower end of log Z lies above its upper end",
        lambda: thermal(np.array([1.0]), np.array([[1.0, 0.0]]), Limits.of(GRID)),
    ),
    Case(
        ParameterError,
        "shape is empty; expected the length of each side, such as (6, 6, 6)",
        lambda: tz.ising_lattice(()),
    ),
    Case(
        ParameterError,
        "no graph of 5 spins gives each 3 neighbours; expected a degree below n with n * degree "
        "even",
        lambda: tz.random_regular(5, 3),
    ),
    Case(
        ModelError,
        "patterns are not rows of +1 and -1, all of one length; expected an array (p, n), or two "
        "numbers: tz.hopfield(2, 100) draws 2 patterns of 100 spins",
        lambda: tz.hopfield([[1, 0]]),
    ),
    Case(
        ParameterError,
        "share is 2; expected between 0.0 and 1.0",
        lambda: tz.PlusMinus(1.0, 2),
    ),
    Case(
        ParameterError,
        "deviation is -1.0; expected at least 0.0",
        lambda: tz.Normal(0.0, -1.0),
    ),
    Case(
        ParameterError,
        "--temperatures is '1:2'; expected LOW:HIGH:COUNT like 1.5:3.5:20, or a list like 1,2,2.5",
        lambda tmp: _run(tmp, "free-energy TMP/grid.uai --temperatures 1:2"),
    ),
    Case(
        ParameterError,
        "cannot write TMP/a/out.png: its folder does not exist; create it first",
        lambda tmp: _run(tmp, "free-energy TMP/grid.uai --betas 1 --plot TMP/a/out.png"),
    ),
    Case(
        ParameterError,
        "TMP/out.nothing: unknown ending '.nothing'; expected ...",
        lambda tmp: _run(tmp, "free-energy TMP/grid.uai --betas 1 --plot TMP/out.nothing"),
    ),
    Case(
        ParameterError,
        "--plus-minus and --normal are given; expected one of them",
        lambda tmp: _run(tmp, "generate lattice 3 --plus-minus 1 --normal 1 -o TMP/m.uai"),
    ),
    Case(
        ParameterError,
        "cannot write TMP/a/m.uai: its folder does not exist; create it first",
        lambda tmp: _run(tmp, "generate sk 3 -o TMP/a/m.uai"),
    ),
]
