"""What search, projections and the runtime say."""

from __future__ import annotations

import math
import sys

import numpy as np

import tightz as tz
from tests.errors.table import Case, refuses
from tightz.errors import (
    MissingExtraError,
    ModelError,
    ParameterError,
    TightzError,
)
from tightz.models import SpinPolynomial
from tightz.projections import Coset, Parities
from tightz.runtime.memory import parse_memory
from tightz.runtime.seeds import seed_sequence
from tightz.search.exact_mpe import ExactPointMass
from tightz.search.ladder import Ladder
from tightz.search.parallel_tempering import ParallelTempering
from tightz.search.pool import sample_pool

GRID = tz.ising_grid(3, seed=0)
SPINS = SpinPolynomial.from_factor_graph(GRID)
NAN = float("nan")


def _solve(spins=SPINS):
    coset = Coset.build(spins)
    ExactPointMass(enumerate_up_to=0).project(coset, np.random.default_rng(0))


def _no_ortools(patch):
    patch.setitem(sys.modules, "ortools.sat.python", None)
    _solve()


def _overflowing():
    with np.errstate(over="ignore"):
        _solve(SpinPolynomial.from_terms(3, 0.0, [((i,), 1.5e308) for i in range(3)]))


def _impossible(patch):
    from ortools.sat.python import cp_model

    patch.setattr(cp_model.CpSolver, "solve", lambda *_: cp_model.MODEL_INVALID)
    patch.setattr(cp_model.CpSolver, "status_name", lambda *_: "MODEL_INVALID")
    _solve()


SEARCH = [
    refuses("enumerate_up_to is 41; expected between 0 and 40", ExactPointMass, enumerate_up_to=41),
    refuses("time_limit is -1.0; expected at least 0.0", ExactPointMass, time_limit=-1.0),
    refuses("workers is 0; expected at least 1", ExactPointMass, workers=0),
    Case(
        MissingExtraError,
        "a coset with 9 free spins is beyond enumeration and needs OR-tools: pip install "
        "'tightz[wish]'",
        _no_ortools,
    ),
    Case(
        ParameterError,
        "the magnitudes of the model's coefficients sum to inf; CP-SAT needs a finite "
        "sum. Rescale the model",
        _overflowing,
    ),
    Case(
        ArithmeticError,
        "CP-SAT answers MODEL_INVALID on a feasible coset: this is a bug",
        _impossible,
    ),
    refuses("runs is 0; expected at least 1", tz.Search, runs=0),
    refuses("patience is nan; expected at least 0.0", tz.Search, patience=NAN),
    refuses(
        "enumerate_up_to is -1; expected between 0 and 40",
        tz.Search,
        enumerate_up_to=-1,
    ),
    refuses("sweeps is 0; expected at least 1", tz.Search, sweeps=0),
    refuses(
        "time_limit is 0.0; expected a positive number of seconds",
        tz.ground_state,
        GRID,
        time_limit=0.0,
    ),
    refuses(
        "time_limit and sweeps are None and patience is infinite; set one of them, or the"
        " search would never end",
        tz.ground_state,
        GRID,
        tz.Search(patience=math.inf),
        time_limit=None,
    ),
    refuses("search is an int, 5; expected a tz.Search(...)", tz.ground_state, GRID, 5),
    refuses("k is 0; expected at least 1", tz.ground_state, GRID, k=0),
    refuses(
        "a spin polynomial has no evidence; expected a FactorGraph with it",
        tz.ground_state,
        SPINS,
        evidence={0: 1},
    ),
    Case(
        TightzError,
        "there is no state: proven: every state has weight zero; expected a model that has one "
        "(`contradiction` says which evidence rules all out)",
        lambda: tz.ground_state(tz.FactorGraph([2], [((0,), [-math.inf] * 2)])).state,
    ),
    refuses("samples is -1; expected at least 0", sample_pool, SPINS, samples=-1),
    refuses("runs is 0; expected at least 1", sample_pool, SPINS, runs=0),
    refuses("sweeps is 0; expected at least 1", sample_pool, SPINS, sweeps=0),
    refuses(
        "time_limit is -2.0; expected a positive number of seconds",
        sample_pool,
        SPINS,
        time_limit=-2.0,
    ),
    refuses(
        "replicas is 3; expected an even number, cluster moves take pairs",
        ParallelTempering,
        replicas=3,
    ),
    refuses("cluster_every is -1; expected at least 0", ParallelTempering, cluster_every=-1),
    refuses("quench_every is 0; expected at least 1", ParallelTempering, quench_every=0),
    refuses("quench_coldest is 0; expected at least 1", ParallelTempering, quench_coldest=0),
    refuses("keep_best is 0; expected at least 1", ParallelTempering, keep_best=0),
    refuses("keep_samples is -1; expected at least 0", ParallelTempering, keep_samples=-1),
    refuses("step is 0.0; expected at least 0.01", Ladder, step=0.0),
    refuses("coldest is -1.0; expected at least 0.0", Ladder, coldest=-1.0),
    refuses("max_temperatures is 3; expected at least 4", Ladder, max_temperatures=3),
    refuses("restarts is 0; expected at least 1", tz.AnnealedMeanField, restarts=0),
    refuses("sweeps is -1; expected at least 0", tz.AnnealedMeanField, sweeps=-1),
    refuses("hot is 0.0; expected at least 1e-12", tz.AnnealedMeanField, hot=0.0),
    refuses("spread is 1.5; expected between 0.0 and 1.0", tz.AnnealedMeanField, spread=1.5),
    refuses("tol is -1e-06; expected at least 0.0", tz.AnnealedMeanField, tol=-1e-6),
    refuses("max_sweeps is 0; expected at least 1", tz.AnnealedMeanField, max_sweeps=0),
]

PROJECTIONS = [
    refuses("density is 0.7; expected more than 0 and at most 0.5", tz.SparseParity, density=0.7),
    refuses(
        "reliability has shape (2,); expected 2 scores without NaN",
        tz.Reliability([1.0, NAN]).order,
        2,
    ),
    Case(
        ModelError,
        "parities have shapes (2, 8) and (2,); a model of 9 spins needs (m, 9) and (m,)",
        lambda: Coset.build(SPINS, Parities(np.zeros((2, 8), np.uint8), np.zeros(2, np.uint8))),
    ),
    refuses("m is 10; a model of 9 binary variables takes 0 <= m <= 9", tz.mfrp, GRID, 10),
]

RUNTIME = [
    refuses(
        'memory is \'lots\'; expected a number with a unit such as "8GB", "500MB" or '
        '"2GiB", or an int of bytes',
        parse_memory,
        "lots",
    ),
    refuses('memory is True; expected an int of bytes or text such as "8GB"', parse_memory, True),
    refuses('memory is 0; expected more than 0 bytes, such as "8GB"', parse_memory, 0),
    refuses(
        "seed is -1; expected a whole number >= 0, a SeedSequence, a Generator or None",
        seed_sequence,
        -1,
    ),
    refuses(
        "seed is 0.5; expected a whole number >= 0, a SeedSequence, a Generator or None",
        seed_sequence,
        0.5,
    ),
]

CASES = [*SEARCH, *PROJECTIONS, *RUNTIME]
