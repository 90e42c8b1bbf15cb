"""What estimates, certificates, theorems, splitting and the anytime driver say."""

from __future__ import annotations

import math
import sys

import numpy as np

import tightz as tz
from tests.errors.table import Case, refuses
from tightz.bounds import Bound, Proof, Side
from tightz.errors import MissingExtraError, ModelError, ParameterError, TightzError
from tightz.families.evidence import link_of
from tightz.interval.board import judged
from tightz.judge import RefutedError, StatesEvidence
from tightz.paper.equal_work import Outcome, at_equal_work
from tightz.paper.theorem_run import theorem_run
from tightz.paper.theorems import required_trials
from tightz.reductions.encoding import encode
from tightz.sampling import certificates
from tightz.sampling.calibration import combine
from tightz.sampling.ledger import Ledger
from tightz.splitting import SplittingTree, StateTree, evidence
from tightz.splitting.evidence import Standing
from tightz.workspace.workspace import Workspace

GRID = tz.ising_grid(3, seed=0)
NAN = float("nan")
STATE = StatesEvidence(np.zeros((1, 9), dtype=np.int64))
IMPOSSIBLE = tz.FactorGraph([2], [((0,), [-math.inf, -math.inf])])


def _estimate(**options):
    return tz.estimate(
        GRID,
        projections=tz.Projections(restarts=1, collapse=0),
        levels=[0, 1],
        trials=2,
        seed=0,
        **options,
    )


def _idle(**budget):
    return at_equal_work({"idler": lambda _: Outcome(0.0, 0)}, **budget)


def _refused(text, side, log_z, evidence=None):
    """A case of a bound that does not get past the judge."""
    bound = Bound(side, log_z, Proof.DETERMINISTIC, "some method", evidence=evidence)
    return Case(RefutedError, text, lambda: judged(bound, GRID))


def _split():
    grid = tz.ising_grid(5, coupling=(-3, 3), seed=0)
    settings = tz.Splitting(collapse=0, family=tz.MeanField(), exact_width=0, max_splits=2)
    tree = SplittingTree(Workspace.build(encode(grid), seed=0), settings, seed=0, threads=1)
    for _ in tree.run():
        pass
    return tree


def _overlapping_parts(patch):
    patch.setattr(evidence, "_partitions", lambda *_: False)
    evidence.check_tree(_split().tree)


def _boasting_leaf(patch):
    patch.setattr(evidence, "_attained", lambda *_: -math.inf)
    evidence.check_tree(_split().tree)


ESTIMATES = [
    refuses("restarts is 0; expected at least 1", tz.Projections, restarts=0),
    refuses("trials is 0; expected at least 1", tz.estimate, GRID, trials=0),
    refuses(
        "levels are [1, 1]; expected distinct numbers of parities",
        tz.estimate,
        GRID,
        levels=[1, 1],
        projections=tz.Projections(collapse=0),
    ),
    refuses(
        "pair (0, 0): expected two different unobserved binary variables of the model",
        tz.estimate,
        GRID,
        projections=tz.Projections(pairs=[(0, 0)]),
    ),
    refuses(
        "pair (0, 1): one of these spins was summed out; use collapse=0 with pairs",
        tz.estimate,
        GRID,
        projections=tz.Projections(pairs=[(0, 1)], collapse=2),
    ),
    refuses(
        "search_sweeps is -1; expected at least 0",
        tz.estimate,
        GRID,
        projections=tz.Projections(search_sweeps=-1),
    ),
    refuses(
        "certificate kind is 'best'; expected 'anytime', 'mean', 'median' or 'product'",
        lambda: _estimate().certificate(kind="best"),
    ),
    refuses(
        "no trial found a proven heaviest state, which Theorem 2 speaks of; run "
        "tz.estimate(model, family=tz.PointMass()) or tz.wish(model)",
        lambda: _estimate().theorem_2(),
    ),
    refuses(
        "matrix has shape (3, 9); expected 2 x 9 entries 0 or 1 (m parities over the "
        "working model's spins)",
        tz.coset_sum,
        GRID,
        2,
        matrix=np.ones((3, 9)),
    ),
    refuses("m is 30; expected between 0 and 20", tz.coset_sum, tz.ising_grid(6, seed=0), 30),
    refuses(
        "delta is 0.0; expected a probability strictly between 0 and 1",
        certificates.mean_certificate,
        [0.0],
        0.0,
    ),
    refuses(
        "log_g has shape (0,) and 0 NaN; a certificate needs at least one trial, and no NaN",
        certificates.mean_certificate,
        [],
        0.05,
    ),
    refuses(
        "levels are 5; expected a list of whole numbers, such as [0, 5, 10]",
        tz.estimate,
        GRID,
        levels=5,
    ),
    refuses(
        "planned_levels is 2 and log_g has 3 levels; expected at least 3: the plan made before the "
        "first draw",
        certificates.anytime_certificate,
        np.zeros((3, 1)),
        0.1,
        planned_levels=2,
    ),
    refuses(
        "delta is 1.0; expected a probability strictly between 0 and 1",
        certificates.anytime_certificate,
        [0.0],
        1.0,
    ),
    refuses(
        "log_g has shape (1, 1) and no trial that was run; expected at least one trial",
        certificates.anytime_certificate,
        [NAN],
        0.05,
    ),
    refuses("n is 0; expected at least 1", required_trials, 0, 0.05),
    refuses("delta is 5; expected a probability strictly between 0 and 1", required_trials, 16, 5),
    refuses("delta is 2.0; expected a probability strictly between 0 and 1", Ledger, 2.0),
    refuses("alpha is 0.1; the theorems need 0 < alpha <= 0.0042", required_trials, 16, 0.05, 0.1),
    refuses(
        "updates is 10 and seconds is 1.0; expected one budget and the other None",
        _idle,
        updates=10,
        seconds=1.0,
    ),
    refuses("budget is 0; expected at least 1e-09", _idle, updates=0),
    refuses(
        "idler reports 0 updates for a run; expected at least 1. Compare it by seconds",
        _idle,
        updates=10,
    ),
    refuses("time_limit is -1.0; expected at least 0.0", tz.wish, GRID, time_limit=-1.0),
    refuses("trials is 0; expected at least 1", tz.wish, GRID, trials=0),
    refuses("levels are []; expected distinct numbers of parities", tz.wish, GRID, levels=[]),
]

INTERVALS = [
    refuses("trials is 0; expected at least 1", theorem_run, GRID, trials=0),
    refuses(
        "time_limit is 0; expected a positive number of seconds",
        tz.log_partition,
        GRID,
        time_limit=0,
    ),
    refuses("threads is 0; expected at least 1", tz.log_partition, GRID, threads=0),
    refuses(
        "delta is 1.5; expected a probability strictly between 0 and 1",
        tz.log_partition,
        GRID,
        delta=1.5,
    ),
    _refused("it is not a number", Side.LOWER, NAN, STATE),
    _refused(
        "a bound that holds always needs evidence; Bound(evidence=...) takes any of "
        "tightz.judge, such as StatesEvidence(states) or ProductEvidence(marginals)",
        Side.LOWER,
        0.0,
    ),
    _refused(
        "its evidence proves ... <= log Z <= inf, not a value",
        Side.BOTH,
        0.0,
        STATE,
    ),
    _refused("its evidence gives ...", Side.LOWER, 100.0, STATE),
    Case(
        ValueError,
        "the interval is [1.0, 0.0]; expected lower <= upper",
        lambda: combine([], 1.0, 0.0),
    ),
]

SPLITTING = [
    refuses(
        "time_limit is 0.0; expected a positive number of seconds, or None",
        tz.split,
        GRID,
        time_limit=0.0,
    ),
    refuses(
        "family is PointMass(restarts=8, enumerate_up_to=20, max_sweeps=1000); expected "
        "tz.MeanField(...) or tz.StructuredMeanField(...)",
        tz.Splitting,
        family=tz.PointMass(),
    ),
    refuses("exact_width is 21; expected between 0 and 20", tz.Splitting, exact_width=21),
    refuses("collapse is -1; expected between 0 and 20", tz.Splitting, collapse=-1),
    refuses("max_leaves is 0; expected at least 1", tz.Splitting, max_leaves=0),
    refuses("max_splits is -1; expected at least 0", tz.Splitting, max_splits=-1),
    Case(ParameterError, "k is -1; expected at least 0", lambda: _split().result().sample(-1)),
    Case(ParameterError, "k is 1; expected at least 2", lambda: _split().result().sampled_log_z(1)),
    Case(
        ArithmeticError,
        "lower bound 1000000.0 above upper bound -1000000.0: this is a bug",
        lambda: Standing(encode(GRID), link_of(encode(GRID))).improve(1e6, -1e6),
    ),
    Case(
        TightzError,
        "there is nothing to draw from: the run ended before it had its first q. Give it more "
        "time (time_limit)",
        lambda: SplittingTree(Workspace.build(GRID, seed=0), seed=0, threads=1).result().sample(1),
    ),
    Case(
        TightzError,
        "there is nothing to draw from: the run ended before it had its first q. Give it more "
        "time (time_limit)",
        lambda: StateTree(GRID, seed=0).result().sample(1),
    ),
    Case(
        TightzError,
        "Z = 0: the model has no state of positive weight to draw",
        lambda: tz.split(IMPOSSIBLE, seed=0, threads=1).sample(1),
    ),
    Case(ArithmeticError, "the parts of node 0 do not partition it", _overlapping_parts),
    Case(ArithmeticError, "leaf 3 claims ...; its q attains -inf", _boasting_leaf),
]


def _no_pandas(patch):
    patch.setitem(sys.modules, "pandas", None)
    tz.exact(GRID).to_dataframe()


QUERIES = [
    Case(
        ParameterError,
        "variable 1 was not asked for; expected variable 0",
        lambda: tz.query(GRID, [0])[1],
    ),
    Case(
        ParameterError,
        "time_limit is 0; expected a positive number of seconds",
        lambda: tz.query(GRID, [0], time_limit=0),
    ),
    Case(
        ModelError,
        "query names variable 9; the model has variables 0 to 8...",
        lambda: tz.query(GRID, [9]),
    ),
    Case(
        TightzError,
        "the run ended without marginals; give it more time (time_limit), and marginals=True",
        lambda: tz.log_partition(IMPOSSIBLE, marginals=False, seed=0).marginal(0),
    ),
    Case(
        TightzError,
        "MeanFieldResult proves nothing about marginals; "
        "tz.log_partition(model).marginal_bound(variable) does",
        lambda: tz.mean_field(GRID, seed=0).marginal_bound(0),
    ),
    Case(
        TightzError,
        "MeanFieldResult says nothing about pairs of variables; "
        "tz.log_partition(model).pair_marginal(i, j) does",
        lambda: tz.mean_field(GRID, seed=0).pair_marginal(0, 1),
    ),
    Case(
        ParameterError,
        "variable 0 and variable 8 are no pair that was asked for; give tz.estimate(model, "
        "projections=tz.Projections(pairs=[(0, 8)])), or ask tz.log_partition(model), which knows "
        "any two",
        lambda: tz.estimate(GRID, levels=[0], trials=1, seed=0).pair_marginal(0, 8),
    ),
    Case(
        ParameterError,
        "correlation is one of spins, and variable 1 has 3 states; pair_marginal has the joint "
        "distribution of any two variables",
        lambda: tz.exact(tz.potts_grid(2, states=3, seed=0)).correlation(1, 2),
    ),
    Case(
        ParameterError,
        "time_limit is -1.0; expected a positive number of seconds",
        lambda: tz.log_partition(GRID, seed=0).pair_marginal(0, 1, time_limit=-1.0),
    ),
    Case(
        ParameterError,
        "draws is 1; expected at least 2",
        lambda: tz.log_partition(GRID, seed=0).pair_marginal(0, 1, draws=1),
    ),
    Case(MissingExtraError, "to_dataframe needs pandas: pip install pandas", _no_pandas),
]

CASES = [*ESTIMATES, *INTERVALS, *SPLITTING, *QUERIES]
