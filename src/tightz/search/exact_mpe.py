"""The heaviest state of a coset, proven: enumeration by Walsh transform, or OR-tools CP-SAT.

Three routes to max {log p~(x) : A x = b mod 2}, each with an upper bound on that maximum:

- few free spins: all 2^n_free log weights, in blocks that fit the cache, by the fast Walsh-Hadamard
  transform of the projected polynomial. A weight is a sum along a tree of n additions, so rounding
  is bounded a priori (a running Gray-code total drifts with the number of steps);
- many cosets of one small model (`StateTable`): every weight once, then each coset either scans the
  heaviest states for the first that satisfies the parities, or walks its own states by Gray code;
- otherwise CP-SAT, with integer objective coefficients whose rounding is added to its bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError, ParameterError, require_range
from tightz.families.mean_field import PointMass
from tightz.families.projection import IProjection, Status, evaluate
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.collapse_kernels import walsh_hadamard
from tightz.runtime.kernels import inner, kernel

BLOCK_SPINS = 14
"""A block of 2^14 log weights (128 KiB) stays in a core's own cache."""

OBJECTIVE_BITS = 50
"""Bits of CP-SAT's integer objective: exact in its float64 bound, and no slower than 32 bits."""

PROOF_TOLERANCE = 1e-10
"""Largest gap, relative to the sum of |theta|, that rounding may leave in a proven optimum."""


@dataclass(frozen=True, eq=False)
class ExactProjection(IProjection):
    """The heaviest state found; every state of the coset has log weight <= `log_upper`.

    Status.OPTIMAL means that the search was exhaustive and the two agree up to rounding.
    """

    log_upper: float = math.inf


@dataclass(frozen=True, eq=False)
class Bars:
    """Codes of spins that weigh nothing: for each of `scopes` a table, True where it is barred.

    A bit is 1 where its spin is -1. Zeros have no logarithm that a polynomial could hold: it has a
    finite number there instead, and these say which of its states do not count.
    """

    scopes: tuple[tuple[int, ...], ...] = ()
    tables: tuple[NDArray[np.bool_], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.scopes)

    def allow(self, spins: NDArray) -> NDArray[np.bool_]:
        """(S,) which rows of spins +1 or -1 no table bars."""
        bits = (np.atleast_2d(spins) < 0).astype(np.int64)
        out = np.ones(len(bits), dtype=bool)
        for scope, table in zip(self.scopes, self.tables, strict=True):
            out &= ~table[tuple(bits[:, i] for i in scope)]
        return out


def without_zeros(binary: FactorGraph) -> tuple[FactorGraph, Bars]:
    """The model with each zero as small as its table's least other entry, and what zeros bar.

    A table of nothing but zeros stays: no state has weight.
    """
    factors, scopes, tables = [], [], []
    for scope, table in binary.factors:
        barred = np.isneginf(table)
        if barred.any() and not barred.all():
            scopes.append(tuple(scope))
            tables.append(barred)
            table = np.where(barred, table[~barred].min(), table)
        factors.append((scope, table))
    if not scopes:
        return binary, Bars()
    return FactorGraph(binary.cardinalities, factors), Bars(tuple(scopes), tuple(tables))


@dataclass(frozen=True)
class ExactPointMass:
    """q on the heaviest state of the coset, with proof: the I-projection onto the paper's D.

    enumerate_up_to   visit all states when at most this many spins are free (2^25: under a second)
    time_limit        seconds for one CP-SAT problem beyond that; 0 solves nothing at all
    workers           CP-SAT threads per problem; 1 makes runs reproducible
    """

    enumerate_up_to: int = 25
    time_limit: float = 60.0
    workers: int = 1

    def __post_init__(self) -> None:
        require_range("enumerate_up_to", self.enumerate_up_to, 0, 40)
        require_range("time_limit", self.time_limit, 0.0)
        require_range("workers", self.workers, 1)

    @property
    def restarts(self) -> int:
        """One: an exhaustive search has nothing to restart."""
        return 1

    def project(
        self,
        coset: Coset,
        rng: np.random.Generator,
        states: NDArray | None = None,
        bars: Bars | None = None,
    ) -> ExactProjection:
        """The heaviest state, or the heaviest found in time; `status` and `log_upper` say which.

        With `bars` the heaviest that is not barred, -inf where there is none or none was found.
        """
        bars = bars or Bars()
        if not coset.feasible or coset.polynomial.constant == -np.inf:
            status = Status.OPTIMAL if coset.feasible else Status.INFEASIBLE
            return _result(coset, np.ones(coset.n_free), -math.inf, status)
        if self.time_limit == 0.0:
            return _result(coset, np.ones(coset.n_free), math.inf, Status.NOT_CONVERGED, bars)
        if coset.n_free <= self.enumerate_up_to:
            state = _enumerate(coset)
            top = float(evaluate(coset, state)[0]) + 3.0 * rounding(coset.polynomial)
            if bars.allow(coset.spins_from_free(state))[0]:  # the heaviest of all is none of them
                return _result(coset, state, top, Status.OPTIMAL)
        start = PointMass(restarts=8, enumerate_up_to=0).project(coset, rng)
        seed = int(rng.integers(2**31 - 1))
        state, top, proven = _solve(coset, start.means, self, seed, bars)
        if top == -math.inf:
            none = np.array([-math.inf])
            return ExactProjection(coset, top, none, state, 0, Status.INFEASIBLE, log_upper=top)
        if not bars and start.log_gamma > float(evaluate(coset, state)[0]):
            state = start.means
        return _result(coset, state, top, Status.OPTIMAL if proven else Status.NOT_CONVERGED, bars)


def _result(
    coset: Coset,
    state: NDArray[np.float64],
    log_upper: float,
    status: Status,
    bars: Bars | None = None,
) -> ExactProjection:
    """Evaluate `state` independently of the solver; OPTIMAL is withdrawn if the gap says so."""
    value = float(evaluate(coset, state)[0])
    # The solver's bound and the sum of magnitudes both hold; the smaller counts.
    top = min(log_upper, weight_ceiling(coset.polynomial)) if value > -math.inf else value
    if bars and not bars.allow(coset.spins_from_free(state))[0]:
        value = -math.inf
    if status is Status.OPTIMAL and top - value > PROOF_TOLERANCE * _scale(coset.polynomial):
        status = Status.NOT_CONVERGED
    return ExactProjection(coset, value, np.array([value]), state, 0, status, log_upper=top)


def _scale(poly: SpinPolynomial) -> float:
    return max(1.0, abs(poly.constant) + float(np.abs(poly.theta).sum()))


def rounding(poly: SpinPolynomial) -> float:
    """Bounds the rounding of one log weight summed in float64, in any order (Higham 2002, 4.2)."""
    if poly.constant == -np.inf:
        return 0.0
    magnitude = abs(poly.constant) + float(np.abs(poly.theta).sum())
    return (poly.n + poly.n_terms + 4) * 2.0**-52 * magnitude


def weight_ceiling(poly: SpinPolynomial) -> float:
    """No state has a log weight above constant + sum |theta|."""
    return poly.constant + float(np.abs(poly.theta).sum()) + rounding(poly)


def _enumerate(coset: Coset) -> NDArray[np.float64]:
    """Free spins of the heaviest of all 2^n_free states."""
    poly = coset.polynomial
    words, signs = coset.images(poly.ptr, poly.spins)  # few free spins: one word holds them
    block = np.empty(2 ** min(coset.n_free, BLOCK_SPINS))
    code = _heaviest_vertex(words[:, 0].astype(np.int64), signs * poly.theta, coset.n_free, block)
    return 1.0 - 2.0 * ((code >> np.arange(coset.n_free)) & 1)


@dataclass(frozen=True, eq=False)
class StateTable:
    """All 2^n log weights of a small model, for the heaviest states of many cosets.

    A coset of rank r holds one state in 2^r, so about 2^r of the heaviest are scanned before one
    satisfies the parities; a coset with fewer free spins than that is walked instead. A problem
    thus costs about 2^(n / 2) steps at worst. Bit i of a state's code is set when spin i is -1.
    """

    polynomial: SpinPolynomial
    bars: Bars = field(default_factory=Bars)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(log weights by code, codes of the heaviest states in descending order)."""
        poly = self.polynomial
        table = np.zeros(2**poly.n)
        owner = np.repeat(np.arange(poly.n_terms), poly.arities)
        words = np.zeros(poly.n_terms, dtype=np.int64)
        np.add.at(words, owner, np.int64(1) << poly.spins.astype(np.int64))
        # The coefficient of a term stands at the code of its spins. The Walsh-Hadamard transform
        # of that is sum_a theta_a (-1)^|a and x| = log p~(x) - constant for every x at once.
        table[words] = poly.theta
        walsh_hadamard(table)
        grid = table.reshape((2,) * poly.n)  # the first axis is the last spin
        for scope, barred in zip(self.bars.scopes, self.bars.tables, strict=True):
            order = np.argsort(scope)[::-1]
            shape = [2 if poly.n - 1 - axis in scope else 1 for axis in range(poly.n)]
            grid += np.where(barred.transpose(order), -np.inf, 0.0).reshape(shape)
        # A coset of rank r <= n / 2 is scanned in the order of weight: 2^(n/2 + 4) states hold one
        # of it except with probability about e^-16; then it is walked instead.
        keep = min(table.size, 2 ** ((poly.n + 1) // 2 + 4))
        top = np.argpartition(table, table.size - keep)[table.size - keep :]
        return table, top[np.argsort(-table[top], kind="stable")].astype(np.int64)

    def prepare(self) -> None:
        """Build the table now: threads that share it should not each start to."""
        _ = self._arrays

    def __getstate__(self) -> dict[str, Any]:
        """Travel light: a worker rebuilds the table, which takes less time than sending it."""
        return {"polynomial": self.polynomial, "bars": self.bars}

    def heaviest(
        self, matrices: NDArray[np.uint8], rhs: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(log weight, code) of the heaviest x with A x = b, for matrices (T, m, n), rhs (T, m).

        -inf and -1 where the system is infeasible, -inf where all its states are barred. Weights
        are evaluated anew from the terms.
        """
        poly = self.polynomial
        table, order = self._arrays
        # A row of [A | b] as one word: bit i is the coefficient of spin i, bit n the right-hand
        # side.
        rows = matrices.astype(np.int64) @ (np.int64(1) << np.arange(poly.n, dtype=np.int64))
        rows |= rhs.astype(np.int64) << np.int64(poly.n)
        codes = np.empty(len(rows), dtype=np.int64)
        _heaviest_by_coset(rows.reshape(len(rows), -1), table, order, poly.n, codes)
        values = np.full(len(rows), -np.inf)
        distinct, which = np.unique(codes[codes >= 0], return_inverse=True)
        spins = 1 - 2 * ((distinct[:, None] >> np.arange(poly.n)) & 1)
        weights = np.where(self.bars.allow(spins), poly.log_weight(spins), -np.inf)
        values[codes >= 0] = weights[which]
        return values, codes


@inner
def _odd(word):  # type: ignore[no-untyped-def]
    """Whether an odd number of bits is set in a non-negative int64."""
    for shift in (32, 16, 8, 4, 2, 1):
        word ^= word >> np.int64(shift)
    return (word & 1) == 1


@kernel
def _heaviest_vertex(words, theta, n, block):  # type: ignore[no-untyped-def]
    """Code of the x in 0..2^n-1 with the largest sum_a theta_a (-1)^|words_a & x|.

    The high bits of x are fixed per block: their signs fold the terms onto the low bits.
    """
    low = np.int64(block.size - 1)
    low_bits = 0
    while (1 << low_bits) < block.size:
        low_bits += 1
    best, top = np.int64(0), -np.inf
    for high in range(np.int64(1) << np.int64(n - low_bits)):
        block[:] = 0.0
        for a in range(theta.size):
            # With the high bits of x fixed, a term is its low part times a known sign: terms that
            # share their low part add up, and one transform of the block gives 2^low_bits weights.
            flip = _odd((words[a] >> np.int64(low_bits)) & high)
            block[words[a] & low] += -theta[a] if flip else theta[a]
        walsh_hadamard(block)
        for at in range(block.size):
            if block[at] > top:
                top = block[at]
                best = (high << np.int64(low_bits)) | at
    return best


@kernel
def _heaviest_by_coset(systems, table, order, n, codes):  # type: ignore[no-untyped-def]
    """codes[t]: the heaviest x with systems[t] x = 0, bit n of a row being its right-hand side."""
    one = np.int64(1)
    basis = np.empty(n + 1, dtype=np.int64)
    pivots = np.empty(n + 1, dtype=np.int64)
    for t in range(systems.shape[0]):
        # Gauss-Jordan over GF(2) on words. Afterwards every pivot column has a single one.
        rows = systems[t].copy()
        rank, used = 0, np.int64(0)
        for column in range(n + 1):  # the last column is b: a pivot there is a contradiction
            found = -1
            for r in range(rank, rows.size):
                if (rows[r] >> column) & one:
                    found = r
                    break
            if found < 0:
                continue
            rows[rank], rows[found] = rows[found], rows[rank]
            for r in range(rows.size):
                if r != rank and (rows[r] >> column) & one:
                    rows[r] ^= rows[rank]
            pivots[rank] = column
            used |= one << column
            rank += 1
        codes[t] = -1
        # A pivot in the last column reads 0 = 1: no state satisfies the parities.
        if (used >> n) & one:
            continue
        # Few parities: the first state in descending weight that satisfies them is the heaviest.
        if rank <= n - rank:
            codes[t] = _first_in_order(rows[:rank], order, one << n)
        if codes[t] >= 0:
            continue
        # Many parities: one solution (free spins at 0) and a basis of the null space. Toggling the
        # basis vector at the lowest set bit of the step number visits all 2^free solutions, each
        # once, one xor apiece (Gray code). The table was computed beforehand, so no rounding
        # builds up.
        x, free = np.int64(0), 0
        for r in range(rank):
            x |= ((rows[r] >> n) & one) << pivots[r]
        for column in range(n):
            if not (used >> column) & one:
                basis[free] = one << column
                for r in range(rank):
                    basis[free] |= ((rows[r] >> column) & one) << pivots[r]
                free += 1
        codes[t] = x
        for step in range(1, one << free):
            k = 0
            while not (step >> k) & 1:
                k += 1
            x ^= basis[k]
            if table[x] > table[codes[t]]:
                codes[t] = x


@inner
def _first_in_order(rows, order, rhs_bit):  # type: ignore[no-untyped-def]
    """The first state of `order` that satisfies every row; -1 if none does."""
    for code in order:
        satisfied = True
        for r in range(rows.size):
            if _odd(rows[r] & (code | rhs_bit)):
                satisfied = False
                break
        if satisfied:
            return code
    return np.int64(-1)


def _solve(
    coset: Coset, start: NDArray[np.float64], settings: ExactPointMass, seed: int, bars: Bars
) -> tuple[NDArray[np.float64], float, bool]:
    """CP-SAT: (free spins of the best state, upper bound on the maximum, whether it is proven).

    The bound is -inf where it is proven that all states of the coset are barred.
    The model over all n spins, x = 1 where s = -1. A product of two spins is 1 - 2z with z = x xor
    y as four linear inequalities, the convex hull of the relation; longer products chain such z,
    sharing prefixes. A parity is one XOR constraint.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingExtraError(
            f"a coset with {coset.n_free} free spins is beyond enumeration and needs OR-tools: "
            "pip install 'tightz[wish]'"
        ) from error
    poly = coset.polynomial
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(poly.n)]
    products: dict[tuple[int, ...], Any] = {(i,): x[i] for i in range(poly.n)}

    def xor_of(members: tuple[int, ...]) -> Any:
        if members not in products:
            a, b, z = xor_of(members[:-1]), x[members[-1]], model.new_bool_var("")
            model.add(z <= a + b)
            model.add(z <= 2 - a - b)
            model.add(z >= a - b)
            model.add(z >= b - a)
            products[members] = z
        return products[members]

    total = float(np.abs(poly.theta).sum())
    if not math.isfinite(total):
        raise ParameterError(
            f"the magnitudes of the model's coefficients sum to {total}; CP-SAT needs a finite "
            "sum. Rescale the model"
        )
    # CP-SAT maximises integers. Coefficients are scaled by a power of two and rounded; `lost`
    # bounds what that changes in any state, and is added to the bound on the way back.
    unit = 2.0 ** (OBJECTIVE_BITS - 1 - max(-900, math.frexp(total)[1]))  # total * unit < 2^49
    scaled = np.rint(poly.theta * unit)
    # unit is a power of two, so scaled / unit is exact; the factor covers the sum itself.
    lost = float(np.abs(poly.theta - scaled / unit).sum()) * (1.0 + 1e-9)
    variables = [
        xor_of(tuple(poly.spins[low:high].tolist()))
        for low, high in zip(poly.ptr[:-1], poly.ptr[1:], strict=True)
    ]
    # theta (1 - 2z) summed over the terms: the constant part sum(scaled) is added to the bound
    # below.
    model.maximize(cp_model.LinearExpr.weighted_sum(variables, (-2 * scaled).astype(int).tolist()))
    free = coset.free.tolist()
    for row, pivot in enumerate(coset.pivots.tolist()):
        bits = np.unpackbits(coset.support[row].view(np.uint8), bitorder="little")
        literals = [x[free[k]] for k in np.flatnonzero(bits)]
        # add_bool_xor asks for an odd number of true literals; sign +1 means an even parity.
        literals.append(~x[pivot] if coset.sign[row] > 0 else x[pivot])
        model.add_bool_xor(literals)
    for scope, barred in zip(bars.scopes, bars.tables, strict=True):
        model.add_forbidden_assignments([x[i] for i in scope], np.argwhere(barred).tolist())
    for i, spin in enumerate(coset.spins_from_free(start)[0]):
        model.add_hint(x[i], bool(spin < 0))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = settings.time_limit
    solver.parameters.num_workers = settings.workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status == cp_model.UNKNOWN:  # its bound may not be initialised yet: use none
        return start, math.inf, False
    if status == cp_model.INFEASIBLE and bars:
        return start, -math.inf, True
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise ArithmeticError(
            f"CP-SAT answers {solver.status_name(status)} on a feasible coset: this is a bug"
        )
    state = np.array([1.0 - 2.0 * solver.value(x[k]) for k in free])
    # The proven bound in the polynomial's units, plus what scaling lost, plus the rounding of a
    # log weight on either side: no state of the coset lies above.
    reach = (solver.best_objective_bound + float(scaled.sum())) / unit + lost
    return state, poly.constant + reach + 2.0 * rounding(poly), status == cp_model.OPTIMAL
