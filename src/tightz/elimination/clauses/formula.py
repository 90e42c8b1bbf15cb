"""A model of binary variables as clauses and weights of literals, with the same Z.

Zeros of a table become clauses: cubes of states, all zero, as large as they can be made. A table of
one variable gives weights to its literals. A table with several weights w_1 < w_2 < ... gets an
auxiliary variable for each but the least: with weights 1 and w_j / w_1 - 1 and clauses that allow
it only in states of weight w_j, summing it out multiplies exactly those states by w_j / w_1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.clauses.setup import Weights
from tightz.elimination.refused import Refused
from tightz.models.factor_graph import FactorGraph

LARGEST = 65_535
"""Variables, and clauses of three or more literals: cache keys number them in 16 bits."""

WIDEST = 1e6
"""Nats between two weights of one variable or table; rounding bounds are worked out up to here."""

_LN2 = math.log(2.0)
_LN2_HIGH = float(np.float32(_LN2))  # 24 bits: its product with 29 bits is exact
_LN2_LOW = -1.904654299957768e-09  # the rest of it, to 53 bits

Clause = tuple[int, ...]


@dataclass(eq=False)
class ClauseModel:
    """Clauses over `n` variables, the first `n_model` of which are the model's.

    terms[x] lists the logs whose sum is the log weight of literal x; `gains` the logs w_j / w_1 of
    the auxiliaries, `constants` what all states have in common, `single` variables of one state.
    """

    n_model: int
    n: int
    clauses: list[Clause] = field(default_factory=list)
    terms: dict[int, list[float]] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    n_tables: int = 0
    n_logical: int = 0
    n_with_zeros: int = 0
    single: frozenset[int] = frozenset()

    @property
    def share(self) -> float:
        """Of the tables over two or more variables, those of zeros and one other number."""
        return self.n_logical / self.n_tables if self.n_tables else 1.0

    @property
    def contradiction(self) -> bool:
        """Whether an empty clause, or two of one literal, show that no state has weight."""
        units = {c[0] for c in self.clauses if len(c) == 1}
        return () in self.clauses or any(x ^ 1 in units for x in units)

    def weights(self) -> tuple[Weights, list[float]]:
        """Weights on a scale where the larger of a variable's two is 1; the logs of that scale."""
        w = Weights.ones(self.n)
        scale = list(self.constants)
        for v in sorted({x >> 1 for x in self.terms}):
            logs = [self.terms.get(2 * v + s, []) for s in (0, 1)]
            high = int(math.fsum(logs[1]) > math.fsum(logs[0]))
            scale += logs[high]
            gap = math.fsum([*logs[1 - high], *(-t for t in logs[high])])
            _set(w, 2 * v + 1 - high, _exp(gap))
        for k, gain in enumerate(self.gains, start=self.n - len(self.gains)):
            _set(w, 2 * k + 1, _exp_less_one(gain))
        return w, scale


def _set(w: Weights, literal: int, value: tuple[float, int, float]) -> None:
    w.mantissa[literal], w.exponent[literal], w.error[literal] = value


def _exp(x: float) -> tuple[float, int, float]:
    """exp(x) as (mantissa, exponent, error in units); x itself was rounded once."""
    k = round(x / _LN2)
    m, shift = math.frexp(math.exp((x - k * _LN2_HIGH) - k * _LN2_LOW))
    # x and k ln 2 err by a unit of their size each, exp by 8, the subtractions by one each.
    return m, k + shift, (3.0 * abs(x) + 12.0 if x else 0.0)


def _exp_less_one(x: float) -> tuple[float, int, float]:
    """exp(x) - 1 for x > 0, which was rounded once."""
    if x > 50.0:  # the 1 is less than a unit
        m, k, error = _exp(x)
        return m, k, error + 1.0
    m, k = math.frexp(math.expm1(x))
    return m, k, x + 12.0


def log_of(mantissa: float, exponent: int, scale: Iterable[float]) -> tuple[float, float]:
    """(log of mantissa * 2^exponent times the scale, its rounding in units); mantissa > 0."""
    parts = [math.log(mantissa), exponent * _LN2_HIGH, exponent * _LN2_LOW]
    total = math.fsum([*scale, *parts])
    return total, abs(total) + 8.0 + 2.0 * abs(parts[1])


def normal(clauses: Iterable[Sequence[int]]) -> list[Clause]:
    """Each clause once, literals ascending and once; tautologies left out."""
    seen: dict[Clause, None] = {}
    for c in clauses:
        literals = sorted(set(c))
        if not any(x ^ 1 in literals for x in literals):
            seen[tuple(literals)] = None
    return list(seen)


def cover(must: NDArray[np.bool_], may: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Cubes inside `may` that cover `must`, as large as they get; -1 in a cube: either state."""
    left, cubes = must.copy(), []
    while left.any():
        state = np.unravel_index(int(np.argmax(left)), left.shape)
        place: list[int | slice] = [int(s) for s in state]
        for axis in range(must.ndim):
            kept = place[axis]
            place[axis] = slice(None)
            if not may[tuple(place)].all():
                place[axis] = kept
        left[tuple(place)] = False
        cubes.append(tuple(-1 if isinstance(p, slice) else p for p in place))
    return cubes


def _excluded(scope: Sequence[int], cube: Sequence[int]) -> Clause:
    """The clause that forbids a cube."""
    return tuple(2 * v + 1 - s for v, s in zip(scope, cube, strict=True) if s >= 0)


def clause_model(model: FactorGraph) -> ClauseModel | Refused:
    """`model` (evidence taken out) as clauses, or why not."""
    if model.evidence:
        return Refused("the model has evidence; take it out first")
    if (model.cardinalities > 2).any():
        v = int(np.argmax(model.cardinalities))
        return Refused(f"variable {v} has {model.cardinalities[v]} states; all must be binary")
    builder = _Builder(model)
    for f in range(model.n_factors):
        why = builder.add(f)
        if why:
            return Refused(why)
    return builder.done()


class _Builder:
    """Tables in, clauses out; patterns that come again are covered once."""

    def __init__(self, model: FactorGraph) -> None:
        self.model = model
        n = model.n_variables
        single = np.flatnonzero(model.cardinalities == 1).tolist()
        self.out = ClauseModel(n, n, [(2 * v,) for v in single], single=frozenset(single))
        self.covers: dict[tuple[int, bytes, bytes], list[tuple[int, ...]]] = {}

    def add(self, f: int) -> str:
        """Take factor f in; the reason where it cannot be."""
        factor, out = self.model.factor(f), self.out
        alive = [v for v in factor.scope if self.model.cardinalities[v] == 2]
        table = np.asarray(factor.log_table, dtype=np.float64).reshape((2,) * len(alive))
        zeros = np.asarray(np.isneginf(table))  # of a constant numpy makes a number
        levels = np.unique(table[~zeros])
        if levels.size and levels[-1] - levels[0] > WIDEST:
            return f"factor {f} has weights more than {WIDEST:g} nats apart"
        if len(alive) > 1:
            out.n_tables += 1
            out.n_logical += levels.size <= 1
            out.n_with_zeros += bool(zeros.any())
        if zeros.any():
            out.clauses += [_excluded(alive, c) for c in self._cover(zeros, zeros)]
        if len(alive) == 1:
            for s in (0, 1):
                if not zeros[s]:
                    out.terms.setdefault(2 * alive[0] + s, []).append(float(table[s]))
        elif levels.size:
            out.constants.append(float(levels[0]))
            for level in levels[1:]:
                self._raise(alive, table == level, zeros, float(level) - float(levels[0]))
        if out.n > LARGEST or len(out.clauses) > 4 * LARGEST:
            return f"more than {LARGEST} variables or clauses"
        return ""

    def _raise(
        self, scope: list[int], here: NDArray[np.bool_], zeros: NDArray[np.bool_], gain: float
    ) -> None:
        """Multiply the states `here` by exp(gain): a new variable that only they allow."""
        out = self.out
        literal = 2 * out.n
        out.clauses += [(*_excluded(scope, c), literal) for c in self._cover(~here & ~zeros, ~here)]
        out.n += 1
        out.gains.append(gain)

    def _cover(self, must: NDArray[np.bool_], may: NDArray[np.bool_]) -> list[tuple[int, ...]]:
        key = must.ndim, must.tobytes(), may.tobytes()
        if key not in self.covers:
            self.covers[key] = cover(must, may)
        return self.covers[key]

    def done(self) -> ClauseModel | Refused:
        out = self.out
        out.clauses = normal(out.clauses)
        if sum(len(c) > 2 for c in out.clauses) > LARGEST:
            return Refused(f"more than {LARGEST} clauses")
        for (x,) in (c for c in out.clauses if len(c) == 1 and c[0] < 2 * out.n_model):
            out.terms[x ^ 1] = out.terms.get(x, [])  # excluded: its weight says nothing
        for v in range(out.n_model):
            logs = [out.terms.get(2 * v + s, []) for s in (0, 1)]
            gap = math.fsum([*logs[0], *(-t for t in logs[1])])
            if abs(gap) > WIDEST:
                return Refused(f"variable {v} has weights more than {WIDEST:g} nats apart")
        return out
