"""What the reference methods say: exact elimination, upper bounds, AIS, Bethe."""

from __future__ import annotations

import math

import numpy as np

import tightz as tz
from tests.errors.table import Case, refuses
from tightz.bounds import Side
from tightz.elimination import conditioning as conditioning
from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.elimination.exact import kernels, plan, tables
from tightz.elimination.exact import run as running
from tightz.elimination.exact.schedule import Arena
from tightz.elimination.order import Order, Orders
from tightz.errors import ModelError, ParameterError, ResourceError, UnsupportedModelError
from tightz.judge import RefutedError
from tightz.models import SpinPolynomial
from tightz.uppers.mini_bucket import mini_bucket, mini_bucket_bounds

GRID = tz.ising_grid(3, seed=0)
LARGE = tz.ising_grid(40, seed=0)
MEDIUM = tz.ising_grid(12, seed=0)
DENSE = tz.rbm(np.ones((90, 90)), np.zeros(90), np.zeros(90))
TRIPLE = tz.FactorGraph([2, 2, 2], [((0, 1, 2), np.arange(8.0))])
CUBIC = tz.FactorGraph([2, 2, 2], [((0, 1, 2), np.arange(8.0) ** 3)])
ONE_STATE = tz.FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [0.0, 0.0]])])
TERNARY = tz.FactorGraph([2, 3])


def _full_arena():
    arena = Arena()
    arena._holes.clear()
    arena.take(1)


def _ais():
    return tz.ais(GRID, chains=2, temperatures=3, seed=0)


# ---- kernels that return slightly wrong numbers -------------------------------------------------


def _wrong_assignment(patch):
    given = ConditionedElimination(MEDIUM, choose_cutset(MEDIUM, 3.0))
    forward = conditioning._forward

    def broken(buckets, base, cards, data):
        forward(buckets, base, cards, data)
        data[MEDIUM.log_tables.size :] += 1e-6

    patch.setattr(conditioning, "_forward", broken)
    given.audit(np.zeros(MEDIUM.n_variables, dtype=np.int64))


def _lost_factor(patch):
    merged = running.Elimination._merged
    patch.setattr(
        running.Elimination,
        "_merged",
        lambda self, axes, members: merged(self, axes, members[:1]),
    )
    tz.exact(GRID, marginals=False)


def _wrong_beliefs(patch, spoil):
    """`spoil` has its way with every array of beliefs."""

    def spoiled(kernel):
        def broken(arena, *args):
            kernel(arena, *args)
            spoil(next(a for a in args if isinstance(a, np.ndarray) and a.dtype == np.float64))

        return broken

    for name in ("spread_belief", "spread_ratio"):
        patch.setattr(kernels, name, spoiled(getattr(kernels, name)))
    tz.exact(GRID)


def _shrunk(patch):
    _wrong_beliefs(patch, lambda beliefs: np.multiply(beliefs, 0.99, out=beliefs))


def _exchanged(patch):
    _wrong_beliefs(patch, lambda beliefs: np.copyto(beliefs, np.roll(beliefs, 1)))


def _wrong_scale(patch):
    kernel = tables.scale_in_place

    def broken(values, low, high, *args):
        kernel(values, low, high, *args)
        values[low:high] *= 1.001

    patch.setattr(tables, "scale_in_place", broken)
    for seed in range(20):  # at some strength tables leave the ordinary scale and come back
        tz.exact(tz.ising_grid(6, coupling=(-60, 60), seed=seed))


AUDITS = [
    Case(
        RefutedError,
        "conditioning: an assignment sums to ...; a second elimination finds ...",
        _wrong_assignment,
    ),
    Case(
        RefutedError,
        "exact: the tables of all buckets give a state the log weight ...; the model gives it ...",
        _lost_factor,
    ),
    Case(
        RefutedError,
        "exact: the belief of bucket ... (variable ..., group 0) sums to 0.9...; expected 1 "
        "within ...",
        _shrunk,
    ),
    Case(
        RefutedError,
        "exact: factor ... gives variable ... a marginal that differs from its own by ...",
        _exchanged,
    ),
    Case(
        RefutedError,
        "exact: a table over ... changed its entries when it was rescaled",
        _wrong_scale,
    ),
]

METHODS = [
    Case(
        ModelError,
        "exact was given a model whose factor 0 over (0,), entry (1,) is -1.79769e+308; expected "
        "-inf (a zero) or a number from -1e+100 to 1e+100, of which float64 holds all sums: where "
        "it was written for a zero, model.with_zeros() makes zeros of such numbers (tightz ... "
        "--zeros-below -1e+09)",
        lambda: tz.exact(tz.FactorGraph([2], [((0,), [0.0, np.nan_to_num(-np.inf)])])),
    ),
    Case(
        ModelError,
        "mean_field was given a model whose term 0 is 2e+100; expected -inf (a zero) or a number "
        "from -1e+100 to 1e+100, of which float64 holds all sums: scale the model down, or take a "
        "constant off its tables",
        lambda: tz.mean_field(SpinPolynomial.from_terms(1, 0.0, [((0,), 2e100)])),
    ),
    Case(
        ModelError,
        "marginals of FactorGraph(2 variables of 2 states, 3 factors of arity up to 2) have no "
        "digits: log weights of this size round by 4.4e+14 nats. model.scale_warnings() names the "
        "entries; finite entries that stand for zeros become zeros by model.with_zeros()",
        lambda: tz.exact(PENALISED).marginals,
    ),
    Case(
        ModelError,
        "marginals of FactorGraph(3 variables of 2 states, 5 factors of arity up to 2) have no "
        "digits: log weights of this size round by 7.2e+11 nats. model.scale_warnings() names the "
        "entries; finite entries that stand for zeros become zeros by model.with_zeros()",
        lambda: tz.exact(BLURRED).marginals,
    ),
    Case(
        ResourceError,
        "exact log Z of FactorGraph('grid 40x40, w in [-1, 1]', 1600 variables of 2 "
        "states, 4720 factors of arity up to 2) needs 22 TB (width 40, 6.7e+14 "
        "operations, by diagonals); max_memory allows 1 MB, and looping over slices"
        " would take more than 1800 s. tz.log_partition(model) gives an "
        "interval on log Z and tz.mean_field(model) a lower bound within any memory",
        lambda: tz.exact(LARGE, max_memory="1MB"),
    ),
    Case(
        ResourceError,
        "exact elimination of FactorGraph('rbm', 180 variables of 2 states, 8280 factors "
        "of arity up to 2) needs tables over 90 variables at once by any order, 10^28 B "
        "or more; max_memory allows 8 GB. tz.log_partition(model) gives an interval on "
        "log Z and tz.mean_field(model) a lower bound within any memory",
        lambda: tz.exact(DENSE),
    ),
    Case(
        ParameterError,
        "EliminationPlan(144 variables, width ... by ..., ... flops, log Z in ..., marginals in "
        "...) is not of FactorGraph(...): its variables, states or scopes differ; call exact "
        "without plan, or with what plan(model) returns for this model",
        lambda: tz.exact(GRID, plan=plan(MEDIUM)),
    ),
    Case(
        ParameterError,
        "orders are of FactorGraph(...); expected Orders(model) of FactorGraph(...)",
        lambda: mini_bucket(GRID, orders=Orders(MEDIUM)),
    ),
    Case(
        ParameterError,
        "Order.PLANNED needs an order that is known already; expected "
        "orders=Orders(model, plan(model).variables)",
        lambda: mini_bucket(GRID, tz.MiniBucket(order=Order.PLANNED)),
    ),
    Case(
        ParameterError,
        "factor 99 does not exist; the model has 21 factors",
        lambda: tz.exact(GRID).factor_marginal(99),
    ),
    Case(ArithmeticError, "the arena has no endless hole: this is a bug", _full_arena),
    refuses(
        "method is 'trw'; expected TreeReweighted(...), MiniBucket(...) or Quadratic(...)",
        tz.upper_bound,
        GRID,
        method="trw",
    ),
    refuses("ibound is 0; expected between 1 and 40", tz.MiniBucket, ibound=0),
    refuses("iterations is -1; expected at least 0", tz.MiniBucket, iterations=-1),
    refuses("tol is -1.0; expected at least 0.0", tz.MiniBucket, tol=-1.0),
    refuses("side is Side.BOTH; expected Side.UPPER or Side.LOWER", tz.MiniBucket, side=Side.BOTH),
    refuses("time_limit is -1.0; expected at least 0.0", tz.MiniBucket, time_limit=-1.0),
    refuses(
        "time_limit is -1.0; expected at least 0.0",
        lambda: list(mini_bucket_bounds(GRID, time_limit=-1.0)),
    ),
    Case(
        ResourceError,
        "mini-bucket with ibound 10 needs ... kB; max_memory allows 100 kB. ibound ... would fit",
        lambda: tz.upper_bound(MEDIUM, method=tz.MiniBucket(ibound=10, max_memory="100kB")),
    ),
    refuses("max_iterations is 0; expected at least 1", tz.TreeReweighted, max_iterations=0),
    refuses("tol is -1.0; expected at least 0.0", tz.TreeReweighted, tol=-1.0),
    refuses("damping is 1.0; expected between 0.0 and 0.99", tz.TreeReweighted, damping=1.0),
    refuses("edge_updates is -1; expected at least 0", tz.TreeReweighted, edge_updates=-1),
    Case(
        UnsupportedModelError,
        "factor 0 has arity 3; tree-reweighted bounds need arity at most 2. Use "
        "tz.MiniBucket(), which takes any factor graph",
        lambda: tz.upper_bound(TRIPLE, method=tz.TreeReweighted()),
    ),
    refuses("tail is 40; expected between 0 and 22", tz.Quadratic, tail=40),
    refuses("iterations is -1; expected at least 0", tz.Quadratic, iterations=-1),
    refuses("tol is -1.0; expected at least 0.0", tz.Quadratic, tol=-1.0),
    refuses("time_limit is -1.0; expected at least 0.0", tz.Quadratic, time_limit=-1.0),
    Case(
        UnsupportedModelError,
        "quadratic elimination takes couplings of pairs of spins, but this model has products of "
        "3; use tz.MiniBucket(), which takes any factor graph",
        lambda: tz.upper_bound(CUBIC, method=tz.Quadratic()),
    ),
    Case(
        UnsupportedModelError,
        "quadratic elimination sums over all states of spins, but tables of this model have "
        "zeros; use tz.MiniBucket(), which takes any factor graph",
        lambda: tz.upper_bound(
            tz.FactorGraph([2], [((0,), [0.0, -np.inf])]), method=tz.Quadratic()
        ),
    ),
    Case(
        UnsupportedModelError,
        "quadratic elimination keeps all pairs of spins, at most 8192 spins, but this model has "
        "8193; use tz.MiniBucket(), which takes sparse models of any size",
        lambda: tz.upper_bound(tz.FactorGraph([2] * 8193), method=tz.Quadratic()),
    ),
    refuses("chains is 0; expected at least 1", tz.ais, GRID, chains=0),
    refuses("time_limit is -1.0; expected at least 0.0", tz.ais, GRID, time_limit=-1.0),
    refuses("temperatures is 1; expected at least 2", tz.ais, GRID, temperatures=1),
    refuses(
        "temperatures are [0.  0.5]; expected betas rising from 0 (the base) to 1 (the model)",
        tz.ais,
        GRID,
        temperatures=[0.0, 0.5],
    ),
    refuses(
        "delta is 0.0; expected a probability strictly between 0 and 1",
        lambda: _ais().certificate(0.0),
    ),
    refuses(
        "confidence is 95; expected a probability strictly between 0 and 1",
        lambda: _ais().interval(95),
    ),
    refuses("resamples is 0; expected at least 1", lambda: _ais().interval(resamples=0)),
    refuses("k is -1; expected at least 0", tz.sample, GRID, -1),
    refuses(
        "time_limit is 0.0; expected a positive number of seconds",
        lambda: tz.sample(GRID, 1, time_limit=0.0),
    ),
    Case(
        ModelError,
        "every state of FactorGraph(...) has weight zero: there is nothing to draw",
        lambda: tz.sample(tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])]), 1),
    ),
    Case(
        ResourceError,
        "drawing from FactorGraph(...) by elimination needs more than 1 MB or 60 s; raise "
        "max_memory or time_limit, or draw weighted states by tz.log_partition(model).sample(k)",
        lambda: tz.sample(tz.potts_grid(12, states=4, seed=0), 1, max_memory="1MB"),
    ),
    refuses("max_iterations is 0; expected at least 1", tz.bethe, GRID, max_iterations=0),
    refuses("tol is -1.0; expected at least 0.0", tz.bethe, GRID, tol=-1.0),
    refuses("damping is 1.0; expected between 0.0 and 0.99", tz.bethe, GRID, damping=1.0),
    refuses("starts is 0; expected a whole number of at least 1", tz.bethe, GRID, starts=0),
    Case(
        ModelError,
        "starts[0] has 2 entries; expected a state or a probability vector for each of the model's "
        "9 variables",
        lambda: tz.bethe(GRID, starts=[[0, 1]]),
    ),
    Case(
        ModelError,
        "starts[0] has 2 for variable 0; expected one of its 2 states, or a probability for each",
        lambda: tz.bethe(GRID, starts=[[2] * 9]),
    ),
    Case(
        ModelError,
        "starts[0] has [inf, 0] for variable 0; expected one of its 2 states, or a probability for "
        "each",
        lambda: tz.bethe(GRID, starts=[[[math.inf, 0]] * 9]),
    ),
    Case(
        ModelError,
        "starts[0] has 'up' for variable 0; expected one of its 2 states, or a probability for "
        "each",
        lambda: tz.bethe(GRID, starts=[["up"] * 9]),
    ),
    Case(
        ModelError,
        "starts[0] has 0 entries; expected a state or a probability vector for each of the model's "
        "9 variables",
        lambda: tz.bethe(GRID, starts=[5]),
    ),
    Case(
        ModelError,
        "parity 0 has right-hand side 2; expected 0 or 1",
        lambda: tz.bethe(GRID, parities=[([0, 1], 2)]),
    ),
    Case(
        ModelError,
        "parity 0 names variable 9; the model has variables 0 to 8",
        lambda: tz.bethe(GRID, parities=[([0, 9], 1)]),
    ),
    Case(
        ModelError,
        "parity 0 names variable 1, which has 3 states; parities bind binary variables",
        lambda: tz.bethe(TERNARY, parities=[([1], 0)]),
    ),
]

PENALISED = tz.FactorGraph(
    [2, 2],
    [((1, 0), [[0.0, 0.0], [0.0, -1e30]]), ((0,), [-1e30, 0.0]), ((1,), [-1e30, 0.0])],
)
"""Three states weigh exp(-1e30): log 2 is lost beside it."""

BLURRED = tz.FactorGraph(
    [2, 2, 2],
    [
        ((0, 1), [[0.0, -4e21], [0.0, -6e3]]),
        ((1, 2), [[0.0, 5e20], [0.0, -4e26]]),
        ((0,), [-3.0, 0.0]),
        ((1,), [5e24, 7e18]),
        ((2,), [0.0, -4e7]),
    ],
)
"""Found by the hostile hunt: beliefs whose sums are off by what entries of 4e26 lose."""

CASES = [*METHODS, *AUDITS]
