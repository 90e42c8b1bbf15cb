"""Zeros that are parities: what they say is solved over GF(2), and the model runs on what is free.

The states that a table of binary variables allows lie in an affine subspace, its hull: the parity
checks A x = b that all of them satisfy. The checks of all tables make one linear system. Its
solutions are a coset, so the model becomes a polynomial over the coset's free spins with the same
Z. A zero that no check explains remains a zero, and is refused like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.gf2 import pack, row_reduce, unpack
from tightz.projections.hashing import Parities, Reliability

MAX_HULL = 20
"""Tables over more variables than this are not searched for parities."""

_MAX_SYSTEM, _MAX_WORK = 1 << 30, 1 << 34
"""Entries of the linear system and words read while it is solved (some 10 s); beyond either the
model is left to methods that take zeros."""


class Hull(NamedTuple):
    """Checks matrix (k, r) x = rhs (k,); variable own[k] is in row k alone, so it follows."""

    matrix: NDArray[np.uint8]
    rhs: NDArray[np.uint8]
    own: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AffineModel:
    """A binary model restricted to the coset that its zeros describe.

    `polynomial` is over the free spins of `coset` (whose own polynomial has the model's spins and
    no terms). Its constant is -inf where the zeros contradict each other; `reason` says how.
    """

    polynomial: SpinPolynomial
    coset: Coset
    reason: str = ""


def absorb(model: FactorGraph) -> AffineModel:
    """Solve the parities that follow from the zeros of a binary model without evidence.

    Checks found in one table may rule out entries of another, whose hull then shrinks: repeated
    until no table adds a check.
    """
    n = model.n_variables
    bare = SpinPolynomial.from_blocks(n, 0.0, [])
    coset = Coset.build(bare)
    if not _has_checks(model):  # clauses: refused without a look at every table
        return AffineModel(SpinPolynomial.from_factor_graph(model), coset)
    zero = model.log_tables == -np.inf
    hard = np.logical_or.reduceat(zero, model.table_ptr[:-1]) if model.n_factors else zero
    narrow = np.flatnonzero(hard & (model.arities <= MAX_HULL)).tolist()
    factors = {f: model.factor(f) for f in narrow}
    # Few terms grow when the spins that follow from others are in few tables.
    policy = Reliability(np.bincount(model.scope_vars, minlength=n))
    hulls: dict[int, Hull] = {}
    patterns: dict[tuple[int, bytes], Hull] = {}
    grown = True
    while grown:
        for f, (scope, table) in factors.items():
            # What the table allows and what the checks found so far allow on its variables: checks
            # from one table may leave fewer states in another, whose hull then says more.
            allowed = table > -np.inf
            if not (coset.pivot_row[list(scope)] >= 0).any():  # no check is on its variables
                key = table.ndim, allowed.tobytes()
                if key not in patterns and allowed.any():
                    patterns[key] = affine_hull(allowed)
                if key in patterns:
                    hulls[f] = patterns[key]
                    continue
            allowed &= satisfying(_implied(coset, scope))
            if not allowed.any():
                reason = f"parities elsewhere leave no state for the table over variables {scope}"
                return AffineModel(_nothing(coset.n_free), coset, reason)
            hulls[f] = affine_hull(allowed)
        solved = Coset.build(bare, _system(model, hulls), policy)
        if not solved.feasible:
            reason = "the parities that follow from the zeros of the tables contradict each other"
            return AffineModel(_nothing(solved.n_free), solved, reason)
        grown = solved.rank > coset.rank
        coset = solved
    # Each zero must be outside the coset, where it takes no part; the entries inside are a
    # positive table, extended to the zeros by any finite number. One that is not explained stays
    # -inf and is refused by the expansion.
    explained = [_explained(factor, hulls.get(f)) for f, factor in enumerate(model.factors)]
    whole = SpinPolynomial.from_factor_graph(FactorGraph(model.cardinalities, explained))
    return AffineModel(coset.substitute(whole), coset)


def affine_hull(allowed: NDArray[np.bool_]) -> Hull:
    """All checks that every allowed state of a (2,) * r table satisfies; one must be allowed."""
    points = np.argwhere(allowed).astype(np.uint8)
    # Differences of allowed states span a linear space; the checks are what is orthogonal to all
    # of it, and one allowed state fixes their right-hand sides.
    checks, own = _kernel(points ^ points[0])
    return Hull(checks, (checks @ points[0] % 2).astype(np.uint8), own)


def _has_checks(model: FactorGraph) -> bool:
    """Whether some table of at most MAX_HULL variables has a check, or no state at all."""
    for _, scopes, tables in model.batches():
        if scopes.shape[1] <= MAX_HULL:
            allowed = tables.reshape(len(tables), -1) > -np.inf
            _, first = np.unique(np.packbits(allowed, axis=1), axis=0, return_index=True)
            for pattern in allowed[first]:
                if not pattern.any() or affine_hull(pattern.reshape(tables.shape[1:])).own.size:
                    return True
    return False


def satisfying(hull: Hull) -> NDArray[np.bool_]:
    """(2,) * r: which states satisfy the checks."""
    r = hull.matrix.shape[1]
    codes = np.arange(1 << r)
    out = np.ones(1 << r, dtype=bool)
    for row, value in zip(hull.matrix, hull.rhs, strict=True):
        # The first axis is the highest bit of the code (C order), so the row reads as a binary
        # number.
        mask = int("".join(map(str, row)), 2)
        out &= np.bitwise_count(codes & mask) % 2 == value
    return out.reshape((2,) * r)


def _kernel(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A basis (k, r) of {a : rows a = 0 mod 2}, and for each of it a column no other has."""
    r = rows.shape[1]
    packed = pack(rows)
    pivots = np.full(len(rows), -1, dtype=np.int64)
    rank = int(row_reduce(packed, np.zeros(len(rows), np.uint8), np.arange(r), pivots))
    own = np.setdiff1d(np.arange(r), pivots[:rank])
    basis = np.zeros((own.size, r), np.uint8)
    basis[np.arange(own.size), own] = 1
    basis[:, pivots[:rank]] = unpack(packed[:rank], r)[:, own].T
    return basis, own


def _implied(coset: Coset, scope: tuple[int, ...]) -> Hull:
    """The checks on the variables of `scope` alone that hold on the whole coset."""
    words, signs = coset.images(np.arange(len(scope) + 1), np.array(scope))
    reached = np.ascontiguousarray(words[:, words.any(axis=0)])
    bits = unpack(reached, 64 * reached.shape[1]) if reached.size else np.zeros((len(scope), 0))
    checks, own = _kernel(np.ascontiguousarray(bits.T, dtype=np.uint8))
    return Hull(checks, (checks @ (signs < 0) % 2).astype(np.uint8), own)


def _system(model: FactorGraph, hulls: dict[int, Hull]) -> Parities:
    """All checks of all tables over the model's variables."""
    count, n = sum(len(h.rhs) for h in hulls.values()), model.n_variables
    if count * n > _MAX_SYSTEM or count * count * n // 64 > _MAX_WORK:
        raise UnsupportedModelError(
            f"{count} parities over {n} variables follow from zeros, too many to solve; "
            "tz.log_partition and tz.exact treat the zeros as they are"
        )
    matrix, rhs = np.zeros((count, n), np.uint8), np.zeros(count, np.uint8)
    at = 0
    for f, hull in hulls.items():
        rows = slice(at, at + len(hull.rhs))
        matrix[rows, list(model.factor(f).scope)] = hull.matrix
        rhs[rows] = hull.rhs
        at = rows.stop
    return Parities(matrix, rhs)


def _explained(
    factor: tuple[tuple[int, ...], NDArray[np.float64]], hull: Hull | None
) -> tuple[list[int], NDArray[np.float64]]:
    """A factor over the variables that its checks leave free: one state of the hull for each."""
    scope, table = factor
    if hull is None:
        return list(scope), table
    inside = np.where(satisfying(hull), table, -np.inf)
    return np.delete(scope, hull.own).tolist(), inside.max(axis=tuple(hull.own.tolist()))


def _nothing(n: int) -> SpinPolynomial:
    return SpinPolynomial.from_blocks(n, -np.inf, [])
