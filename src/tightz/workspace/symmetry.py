"""Flips that leave a model unchanged, so that a sampler on one side may speak for both.

A set c of spins may be flipped together at no cost if every term of the Walsh expansion overlaps
c evenly: chi_a changes sign with |a and c| odd. Such sets form a group, the null space over GF(2)
of the terms' incidence matrix: the global flip of a zero-field Ising model, one flip for each
component, the gauge flips of a plaquette model. Averaging over the group changes no expectation,
so symmetrised marginals and samples are never worse: a spin that some flip moves is up with
probability exactly 1/2, whichever valley its sampler sat in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.gf2 import pack, row_reduce, unpack
from tightz.reductions.encoding import SpinEncoding

NEGLIGIBLE = 1e-12
"""Coefficients below this share of the largest are rounding of tables that cancel."""

MAX_COLUMNS = 4096
"""Groups of spins up to which terms of three and more are eliminated: about a second of work.

Beyond that no symmetry is claimed, which is safe: nothing is then averaged.
"""

SYMMETRISED = ", symmetrised"
"""Appended to the source of marginals that went through `symmetrise_marginals`."""


def flips(polynomial: SpinPolynomial) -> NDArray[np.uint8]:
    """(d, n) a basis of the flips that leave log p~ unchanged; d = 0 where there are none.

    Terms of one and two spins say that c_i = 0 and c_i = c_j: they are contracted first, so that
    a pairwise model of any size costs one search for components.
    """
    n = polynomial.n
    if n == 0 or polynomial.constant == -np.inf:
        return np.zeros((0, n), dtype=np.uint8)
    # A coefficient that is rounding noise of a table must not break a symmetry that the model has.
    real = np.abs(polynomial.theta) > NEGLIGIBLE * np.abs(polynomial.theta).max(initial=0.0)
    singles: list[NDArray] = []
    pairs: list[NDArray] = []
    longer: list[NDArray] = []
    for arity in np.unique(polynomial.arities[real]):
        which = np.flatnonzero(real & (polynomial.arities == arity))
        rows = polynomial.spins[polynomial.ptr[which][:, None] + np.arange(arity)]
        (singles if arity == 1 else pairs if arity == 2 else longer).append(rows)
    # A pair term forces c_i = c_j: contract. A field forces c_i = 0 for its whole group. What
    # longer terms ask is linear algebra over the groups that are left.
    groups, group = _groups(n, pairs)
    free = np.ones(groups, dtype=bool)
    for rows in singles:
        free[group[rows.ravel()]] = False
    count = int(free.sum())
    column = np.where(free, np.cumsum(free) - 1, -1)[group]
    if not longer:
        basis = np.eye(count, dtype=np.uint8)
    elif count > MAX_COLUMNS:
        return np.zeros((0, n), dtype=np.uint8)
    else:
        basis = _null_space(_contracted(longer, column, count), count)
    padded = np.concatenate([basis, np.zeros((len(basis), 1), dtype=np.uint8)], axis=1)
    return padded[:, column]


def flips_of(encoding: SpinEncoding) -> NDArray[np.uint8] | None:
    """The same over the model's variables; None where spins are not variables.

    Bits of larger variables and solved parities are left alone: flipping a bit of a variable is
    not flipping a variable.
    """
    if not encoding.direct:
        return None
    basis = flips(encoding.polynomial)
    if isinstance(encoding.model, SpinPolynomial):
        return basis
    return _over_variables(basis, encoding.model, encoding.variables)


def symmetrise_marginals(
    vectors: Sequence[NDArray[np.float64]], basis: NDArray[np.uint8]
) -> list[NDArray[np.float64]]:
    """Averages over the group: exactly 1/2 for a variable that some flip moves."""
    moved = np.asarray(basis.any(axis=0))
    half = np.array([0.5, 0.5])
    return [half.copy() if moved[v] else np.asarray(p) for v, p in enumerate(vectors)]


def symmetrise_states(
    states: NDArray[np.int64], basis: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each row of states (S, n; entries 0 or 1 where flips act) under a random group element.

    If the rows have law q, the result has the average of q over the group: log weights stay, and
    a sample that sat in one of several mirrored valleys is spread over all of them evenly.
    """
    if not len(basis):
        return states
    chosen = np.zeros(states.shape, dtype=np.uint8)
    for part in np.array_split(basis, -(-len(basis) // 256)):  # float32 sums of 256 bits are exact
        # A uniform random combination of basis flips is a uniform group element.
        bits = rng.integers(2, size=(len(states), len(part))).astype(np.float32)
        chosen ^= (bits @ part.astype(np.float32)).astype(np.int64).astype(np.uint8) & 1
    return states ^ chosen


def symmetrise_means(means: NDArray[np.float64], basis: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Spin means averaged over the group: 0 for a spin that some flip moves."""
    return np.where(basis.any(axis=0), 0.0, means)


def _over_variables(
    basis: NDArray[np.uint8], model: FactorGraph, variables: NDArray[np.int64]
) -> NDArray[np.uint8]:
    out = np.zeros((len(basis), model.n_variables), dtype=np.uint8)
    out[:, variables] = basis
    return out


def _groups(n: int, pairs: list[NDArray]) -> tuple[int, NDArray[np.int64]]:
    """Spins joined by pair terms: (number of groups, group of each spin)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return n, np.arange(n)
    ends = np.concatenate(pairs)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n, n))
    count, group = connected_components(graph, directed=False)
    return int(count), group.astype(np.int64)


def _contracted(longer: list[NDArray], column: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """Distinct packed rows: the parity of each term's members in each free group."""
    parts = []
    for rows in longer:
        for chunk in np.array_split(rows, -(-len(rows) // 4096)):
            bits = np.zeros((len(chunk), count + 1), dtype=np.uint8)
            np.add.at(bits, (np.arange(len(chunk))[:, None], column[chunk]), 1)
            parts.append(np.unique(pack(bits[:, :count] & 1), axis=0))
    return np.unique(np.concatenate(parts), axis=0)


def _null_space(rows: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    """All x with every row's parity even, as rows (d, count).

    Some rows are eliminated, the null space checked against all of them, and those it breaks
    join in: usually one round, since few rows more than `count` settle the rank.
    """
    rng = np.random.default_rng(0)
    todo = rows[rng.permutation(len(rows))]
    kept = np.zeros((0, rows.shape[1]), dtype=np.uint64)
    while True:
        # Few more rows than columns settle the rank almost surely; the check below finds the
        # exceptions.
        work = np.concatenate([kept, todo[: count + 64]])
        pivots = np.empty(min(len(work), count), dtype=np.int64)
        rank = row_reduce(work, np.zeros(len(work), np.uint8), np.arange(count), pivots)
        kept, pivots = work[:rank], pivots[:rank]
        others = np.setdiff1d(np.arange(count), pivots)
        basis = np.zeros((others.size, count), dtype=np.uint8)
        basis[np.arange(others.size), others] = 1
        basis[:, pivots] = unpack(kept, count)[:, others].T
        todo = todo[count + 64 :]
        if not len(todo) or not others.size:
            return basis
        todo = todo[_breaks(todo, basis)]
        if not len(todo):
            return basis


def _breaks(rows: NDArray[np.uint64], basis: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which rows overlap the sum of a random half of the basis oddly, over 64 such sums.

    A row that breaks the space escapes all of them with probability 2^-64.
    """
    rng = np.random.default_rng(1)
    # A random combination of basis vectors is orthogonal to a row that breaks the space with
    # probability 1/2: 64 of them miss it with probability 2^-64.
    halves = rng.integers(2, size=(64, len(basis))).astype(np.float32)
    probes = (halves @ basis.astype(np.float32)).astype(np.int64) & 1
    odd = np.zeros(len(rows), dtype=bool)
    for probe in pack(probes.astype(np.uint8)):
        odd |= (np.bitwise_count(rows & probe).sum(axis=1) & 1).astype(bool)
    return odd
