"""Probabilities that are said to lie between ends, always: of states, pairs, rows and fixed sums.

Every piece that proves ends of marginals is called by itself on models that are enumerated, and
whole runs beside them; no tolerance, the enumeration's own rounding is in its intervals. In runs
components are not summed by themselves and first tables are small: on models of this size nothing
would be left for the streams.
The controls say the same with all ends moved inwards: they have to be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import tightz as tz
from tightz.elimination.order import Orders
from tightz.interval.board import Board, judged
from tightz.interval.interval import LogPartition
from tightz.interval.marginal_bounds import marginal_bounds
from tightz.interval.opening import trivial
from tightz.interval.streams.fixed import fixed_states
from tightz.judge.clamps import ClampedCliques
from tightz.models.observed import per_variable
from tightz.runtime.clock import Clock
from tightz.sampling.capped import tightening
from tightz.sampling.capped.stream import capped
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.partition import partition
from tightz.workspace import working as workspace
from tightz.workspace.findings import Clamped, Finding
from tightz.workspace.working import Working
from verification.events import Events, Interval
from verification.hostile_models import KINDS as HOSTILE
from verification.hostile_models import hostile_model
from verification.hunting import CONTROL, Case, Tally, examine_cases, run
from verification.models import KINDS as PLAIN
from verification.models import random_model
from verification.rows import Row

MODELS = 20_000
SEED = 20261118
SECONDS = 0.2
STATES = 4096
"""Joint states of a model at most; larger ones are left out."""

Array = NDArray[np.float64]
Nats = Mapping[str, float]


class Statement(NamedTuple):
    """(states of the variables, 2) ends of p(x_variables | given); of log Z with them if `logs`."""

    what: str
    variables: tuple[int, ...]
    ends: Array
    given: Mapping[int, int] = {}
    logs: bool = False


Statements = list[Statement]
Source = Callable[[tz.FactorGraph, int], Statements]


def singles(what: str, ends: list[Array] | None) -> Statements:
    return [Statement(what, (v,), each) for v, each in enumerate(ends or [])]


def exact(model: tz.FactorGraph, seed: int) -> Statements:
    """Ends apart by rounding, of states and of pairs: with a factor over both and without."""
    r = tz.exact(model)
    if r.log_z == -math.inf:
        return []
    said: Statements = []
    try:
        said += singles("exact", r.marginal_bounds)
        rng = np.random.default_rng(seed)
        i, j = (int(v) for v in rng.integers(max(1, model.n_variables), size=2))
        pair = r.pair_marginal(i, j) if model.n_variables else None
    except tz.errors.ModelError as error:
        if "no digits" not in str(error):
            raise
        return said
    if pair is not None:
        # of a variable with itself: those of one, on the diagonal
        ends = pair.bounds if i != j else np.einsum("iik->ik", pair.bounds)
        said.append(Statement("exact pair", (i, j) if i != j else (i,), ends))
    return said


def clamps(model: tz.FactorGraph, seed: int) -> Statements:
    """What mini-buckets of either side prove of every fixed state."""
    said, cards = [], model.cardinalities
    for judge in _fixed(model, seed):
        above = judge.side > 0.0
        for v, part in enumerate(per_variable(_ends(judge), cards)):
            rest = np.full(part.size, -judge.side * math.inf)
            ends = np.stack([rest, part] if above else [part, rest], axis=1)
            said.append(Statement(f"clamped {'above' if above else 'below'}", (v,), ends, {}, True))
    return said


def _fixed(model: tz.FactorGraph, seed: int) -> tuple[ClampedCliques, ClampedCliques]:
    """From below and from above, by orders at random and tables of a few variables."""
    orders, rng, found = Orders(model), np.random.default_rng(seed), []
    for lower in (True, False):
        order = rng.permutation(orders.model.n_variables)
        parts = partition(orders.model, order, 1 + seed % 3)
        with np.errstate(all="ignore"):
            descent = Descent(orders.model, parts, lower=lower and not model.has_zeros)
            for _ in range(seed % 5 if math.isfinite(descent.best) else 0):
                descent.advance()
        found.append(ClampedCliques(descent.evidence(orders.numbers), model))
    return found[0], found[1]


def _ends(judge: ClampedCliques) -> Array:
    ends = judge.unsaid()
    for lot in judge.lots:
        ends[judge.places(lot)] = judge.ends(lot)
    return ends


def lifted(model: tz.FactorGraph, seed: int) -> Statements:
    """The same through reductions and the board, as a run has them."""
    with mock.patch.object(workspace, "NARROW", (0, 3)[seed % 2]):
        working = Working(model, Clock(60.0), exact=False)
        board = Board(working.clock)
        board.slack = lambda: working.reduction.rounding
        for bound in trivial(model):
            board.take(judged(bound, model))
        graph = working.graph
        if board.ends.upper == -math.inf or not model.n_variables:
            return []
        if graph.n_variables:
            for judge in _fixed(graph, seed):
                ends = _ends(judge)
                nothing = np.full(ends.size, -judge.side * math.inf)
                pair = (nothing, ends) if judge.side > 0.0 else (ends, nothing)
                board.merge(Finding(clamped=Clamped(*pair, "")))
        return singles("lifted", marginal_bounds(working, board).always)


def query(model: tz.FactorGraph, seed: int) -> Statements:
    rng = np.random.default_rng(seed)
    targets = None if seed % 4 == 0 else [int(v) for v in rng.permutation(model.n_variables)[:2]]
    found = tz.query(model, targets, time_limit=5.0, seed=seed)
    if found.impossible:
        return []
    return [Statement("query", (v,), t.bounds) for v, t in found.tables.items()]


def _rows(model: tz.FactorGraph, rng: np.random.Generator) -> list[dict[int, int]]:
    """Evidence at random, against the model's own now and then, impossible rows among them."""
    rows = []
    for _ in range(6):
        seen = np.flatnonzero(rng.random(model.n_variables) < rng.random())
        rows.append({int(v): int(rng.integers(model.cardinalities[v])) for v in seen})
    return rows


def sweep(model: tz.FactorGraph, seed: int) -> Statements:
    rng = np.random.default_rng(seed)
    rows = _rows(model, rng)
    targets = [int(v) for v in rng.permutation(model.n_variables)[:2]]
    said = []
    for row in tz.sweep(model, rows, targets, time_limit=1.0, seed=seed):
        if row.problem:
            raise AssertionError(row.problem)
        given = rows[row.row]
        ends = np.array([row.lower, row.upper])
        said.append(Statement("sweep log Z", (), ends, given, True))
        p = row.probability
        if p is not None:
            said.append(Statement("sweep log P", (), np.array([p.lower, p.upper]), given))
        if row.upper > -math.inf:
            said += [Statement("sweep", (v,), t.bounds, given) for v, t in row.tables.items()]
    return said


def likelihood(model: tz.FactorGraph, seed: int) -> Statements:
    rng = np.random.default_rng(seed)
    rows = _rows(model, rng)
    if not model.n_variables:
        return []
    found = tz.log_likelihood(model, rows, time_limit=1.0, seed=seed).examples
    return [
        Statement("likelihood", (), np.array([low, high]), given)
        for given, low, high in zip(rows, found.lower, found.upper, strict=True)
    ]


def whole(model: tz.FactorGraph, seed: int) -> Statements:
    """The stream of fixed states alone, beside draws, or the portfolio: marginals, pairs, log Z."""
    only = (None, None, [fixed_states], [fixed_states], [fixed_states, capped])[seed // 2 % 5]
    with mock.patch.object(workspace, "NARROW", 0), mock.patch.object(tightening, "FIRST", 2):
        r = tz.log_partition(
            model, exact=seed // 2 % 5 == 0, time_limit=SECONDS, seed=seed, threads=1, only=only
        )
    if r.quarantined or r.failures:
        raise AssertionError(f"{r.quarantined} {r.failures}")
    said = [Statement("run log Z", (), np.array([r.lower, r.upper]), {}, True)]
    if r.upper == -math.inf or not model.n_variables:
        return said
    return said + singles("run", r.marginal_bounds) + _pairs(r, seed)


def _pairs(r: LogPartition, seed: int) -> Statements:
    rng = np.random.default_rng(seed)
    i, j = (int(v) for v in rng.integers(r.model.n_variables, size=2))
    if i == j or r.lower == -math.inf:  # a model without a state has nothing to draw
        return []
    pair = r.pair_marginal(i, j, exact=False, draws=50)
    return [Statement("run pair", (i, j), pair.bounds)]


SOURCES: dict[str, tuple[Source, int]] = {
    "exact": (exact, 2),
    "fixed states": (clamps, 2),
    "lifted": (lifted, 1),
    "query": (query, 40),
    "sweep": (sweep, 10),
    "log_likelihood": (likelihood, 10),
    "whole runs": (whole, 10),
}
"""what is called -> every how many models."""

INWARDS: Nats = {"exact": 1e-6, "fixed states": 1e-3, "lifted": 0.1, "query": 1e-6,
                 "sweep": 1e-6, "log_likelihood": 1e-6, "whole runs": 1e-3}  # fmt: skip
"""Nats (of odds, where ends are probabilities) by which the controls move ends inwards."""


def moved(source: Source, nats: float, model: tz.FactorGraph, seed: int) -> Statements:
    """A control: the same statements, ends inwards."""
    out = []
    for one in source(model, seed):
        low, high = one.ends[..., 0], one.ends[..., 1]
        if one.logs or not one.variables:
            low, high = low + nats, high - nats
        else:
            low, high = (p * f / (p * f + 1.0 - p) for p, f in
                         ((low, math.exp(nats)), (high, math.exp(-nats))))  # fmt: skip
        out.append(one._replace(ends=np.stack([low, high], axis=-1)))
    return out


EVERY = {
    **{name: (source, k) for name, (source, k) in SOURCES.items()},
    **{
        f"{CONTROL}: {name}": (partial(moved, source, INWARDS[name]), 10 * k)
        for name, (source, k) in SOURCES.items()
    },
}


def wrong(one: Statement, truth: Events) -> str:
    """What is wrong with a statement, in words; "" if nothing is."""
    low, high = (one.ends[..., k].astype(np.longdouble) for k in (0, 1))
    told = f"{one.what} {one.variables} given {dict(one.given)}"
    if np.isnan(low).any() or np.isnan(high).any():
        return f"{told}: an end is NaN"
    real = _real(one, truth)
    above, below = low > real.high, high < real.low
    if not (above | below).any():
        return f"{told}: ends the wrong way round" if (low > high).any() else ""
    k = int(np.argmax(above | below))
    pair = [float(x.flat[k]) for x in (low, high, *real)]
    return f"{told}, state {k}: [{pair[0]!r}, {pair[1]!r}] against [{pair[2]!r}, {pair[3]!r}]"


def _real(one: Statement, truth: Events) -> Interval:
    if one.logs:
        return truth.logs(one.variables, one.given)
    if one.variables:
        return truth.shares(one.variables, one.given)
    part, all_ = truth.logs((), one.given), truth.logs((), {})
    if not truth.possible:  # log of 0 / 0: anything may be said
        return Interval(np.longdouble(-np.inf), np.longdouble(np.inf))
    return Interval(part.low - all_.high, part.high - all_.low)


def judge(said: Statements, truth: Events) -> tuple[list[str], bool]:
    return [found for one in said if (found := wrong(one, truth))][:2], False


def cases(numbers: range) -> Iterator[Case[Events]]:
    """Hostile and plain models in turn."""
    for i in numbers:
        if i % 2:
            kind = PLAIN[i // 2 % len(PLAIN)]
            model = random_model(np.random.default_rng([SEED, i]), kind)
            number = i // 2 // len(PLAIN)
        else:
            kind, model = hostile_model(SEED, i // 2)
            number = i // 2 // len(HOSTILE)
        if np.prod(model.cardinalities.astype(float)) <= STATES:
            yield Case(i, number, kind, model, Events.of(model))


def examine(numbers: range) -> Tally:
    """All sources on the models with these numbers."""
    return examine_cases(cases(numbers), EVERY, judge)  # type: ignore[arg-type]


def marginals(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """A row for each source over 20,000 * scale models."""
    tally = run(examine, max(700, int(MODELS * scale)), workers, progress)
    for name in SOURCES:
        control = f"{CONTROL}: {name}"
        share = f"control caught on {tally.failed[control]:,} of {tally.cases[control]:,}"
        detail = f"{tally.first.get(name, '')} {share}, refused {tally.refused[name]}".strip()
        caught = tally.failed[control] > 0
        yield Row(f"marginals: {name}", tally.cases[name], tally.failed[name], detail, caught)
