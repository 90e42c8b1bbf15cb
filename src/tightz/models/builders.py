"""Ising and Potts models, lattices and restricted Boltzmann machines as factor graphs.

State 0 of a variable is spin +1, state 1 is spin -1 (s = 1 - 2x); RBM units are on in state 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid, Layout
from tightz.models.inputs import (
    as_count,
    as_index,
    as_number,
    as_range,
    coupled_pairs,
    is_sparse,
    real_array,
    vector,
)
from tightz.runtime.seeds import Seed, generator

_SPIN = np.array([1.0, -1.0])


def ising(
    couplings: ArrayLike | Mapping[tuple[int, int], float],
    fields: ArrayLike | Mapping[int, float] | None = None,
    *,
    name: str = "ising",
) -> FactorGraph:
    """log p~(s) = sum_{i<j} J_ij s_i s_j + sum_i h_i s_i, spins s_i in {-1, +1}.

    `couplings` is a symmetric (n, n) matrix (each pair counted once, zero diagonal), one of scipy's
    sparse matrices (symmetric, or a triangle), or a mapping (i, j) -> J_ij with each pair once;
    `fields` is an (n,) vector or a mapping i -> h_i.
    """
    listed = isinstance(couplings, Mapping) and not is_sparse(couplings)  # scipy has a dict of keys
    if listed:
        pairs, weights = coupled_pairs(couplings)
        n = int(pairs.max(initial=-1)) + 1
    elif is_sparse(couplings):
        n, pairs, weights = _sparse_pairs(couplings)
    else:
        n, pairs, weights = _dense_pairs(real_array(couplings, "couplings"))
    if isinstance(fields, Mapping):
        named = {as_index(i, "a spin of the fields"): i for i in fields}
        n = max(n, max(named, default=-1) + 1) if listed else n
        if named and max(named) >= n:
            raise ModelError(
                f"fields name spin {max(named)}; the couplings have spins 0 to {n - 1}"
            )
        field = np.zeros(n)
        for i, key in named.items():
            field[i] = as_number(fields[key], f"fields[{key!r}]")
    elif fields is None:
        field = np.zeros(n)
    else:
        field = vector(fields, "fields")
        if listed:
            n = max(n, field.size)
    if field.size != n:
        raise ModelError(f"{field.size} fields for {n} spins; one field per spin is needed")
    return _spin_pairs(n, pairs, weights, field, name=name)


def ising_grid(
    rows: int,
    cols: int | None = None,
    *,
    coupling: tuple[float, float] = (-1.0, 1.0),
    field: tuple[float, float] = (-1.0, 1.0),
    seed: Seed = None,
    field_per_edge: bool = False,
    periodic: bool = False,
) -> FactorGraph:
    """A rows x cols lattice with couplings and fields drawn uniformly from the given ranges.

    `field_per_edge=True` is the paper's potential psi_ij = exp(w_ij s_i s_j + f_i s_i + f_j s_j):
    a site's field then counts once for each of its edges. `periodic=True` wraps both directions
    (a side of length 2 or less is not wrapped: its bonds would be doubled).
    """
    rows = as_count(rows, "rows")
    cols = rows if cols is None else as_count(cols, "cols")
    low_high = as_range(coupling, "coupling")
    rng = generator(seed)
    site = np.arange(rows * cols).reshape(rows, cols)
    pairs = [
        np.stack([site[:, :-1].ravel(), site[:, 1:].ravel()], axis=1),
        np.stack([site[:-1].ravel(), site[1:].ravel()], axis=1),
    ]
    if periodic and cols > 2:
        pairs.append(np.stack([site[:, 0], site[:, -1]], axis=1))
    if periodic and rows > 2:
        pairs.append(np.stack([site[0], site[-1]], axis=1))
    edges = np.concatenate(pairs)
    weights = rng.uniform(*low_high, size=len(edges))
    fields = rng.uniform(*as_range(field, "field"), size=rows * cols)
    if field_per_edge:
        fields = fields * np.bincount(edges.ravel(), minlength=rows * cols)
    shape = "torus" if periodic else "grid"
    name = f"{shape} {rows}x{cols}, w in [{low_high[0]:g}, {low_high[1]:g}]"
    return _spin_pairs(
        rows * cols, edges, weights, fields, name=name, layout=Grid(rows, cols, periodic)
    )


def rbm(
    weights: ArrayLike,
    visible_bias: ArrayLike,
    hidden_bias: ArrayLike,
    *,
    transposed: bool = False,
    name: str = "rbm",
) -> FactorGraph:
    """log p~(v, h) = b'v + c'h + v'Wh with binary units in {0, 1}; W[i, j] joins v_i and h_j.

    Variables 0 .. visible-1 are the visible units, the hidden ones follow. Where W is stored the
    other way round, (hidden, visible) as a layer of PyTorch has it, say `transposed=True`. With as
    many visible as hidden units no shape tells the two apart: W is then what you say it is.
    """
    w = real_array(weights, "W")
    b, c = vector(visible_bias, "visible_bias"), vector(hidden_bias, "hidden_bias")
    w = w.T if transposed else w
    if w.shape != (b.size, c.size):
        other = f"; it is the other way round: transposed={not transposed}"
        raise ModelError(
            f"W has shape {w.shape}; {b.size} visible and {c.size} hidden biases need "
            f"({b.size}, {c.size})" + (other if w.shape == (c.size, b.size) else "")
        )
    for label, values in (("W", w), ("visible_bias", b), ("hidden_bias", c)):
        require_finite(label, values)
    visible, hidden = np.nonzero(w)
    pair_tables = np.zeros((len(visible), 4))
    pair_tables[:, 3] = w[visible, hidden]
    unary_tables = np.zeros((b.size + c.size, 2))
    unary_tables[:, 1] = np.concatenate([b, c])
    pairs = np.stack([visible, hidden + b.size], axis=1)
    return _pairwise(unary_tables, pairs, pair_tables, name, Bipartite(b.size, c.size))


def require_finite_couplings(pairs: NDArray, weights: NDArray[np.float64]) -> None:
    """Refuse a NaN or infinite weight, naming its pair."""
    bad = ~np.isfinite(weights)
    if bad.any():
        k = int(np.argmax(bad))
        i, j = pairs[k]
        raise ModelError(f"coupling ({i}, {j}) is {weights[k]}; expected a finite number")


def _dense_pairs(matrix: NDArray[np.float64]) -> tuple[int, NDArray, NDArray[np.float64]]:
    """n, and the pairs i < j of a symmetric matrix with their weights."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ModelError(f"couplings have shape {matrix.shape}; expected a square matrix")
    require_finite("couplings", matrix)
    if not np.array_equal(matrix, matrix.T):
        i, j = np.argwhere(matrix != matrix.T)[0]
        raise ModelError(
            f"couplings[{i}, {j}] is {matrix[i, j]} and couplings[{j}, {i}] is {matrix[j, i]}; "
            "expected a symmetric matrix (each pair counts once; J + J.T makes a triangle one)"
        )
    if matrix.diagonal().any():
        i = int(np.argmax(matrix.diagonal() != 0.0))
        raise ModelError(
            f"couplings[{i}, {i}] is {matrix[i, i]}; expected 0, since s_i * s_i is constant"
        )
    pairs = np.argwhere(np.triu(matrix, 1))
    return len(matrix), pairs, matrix[pairs[:, 0], pairs[:, 1]]


def _sparse_pairs(couplings: Any) -> tuple[int, NDArray, NDArray[np.float64]]:
    """The same of a sparse matrix, symmetric or a triangle, without making it dense."""
    if len(couplings.shape) != 2 or couplings.shape[0] != couplings.shape[1]:
        raise ModelError(f"couplings have shape {couplings.shape}; expected a square matrix")
    entries = couplings.tocoo(copy=True)
    entries.sum_duplicates()
    values = real_array(entries.data, "couplings")
    rows, columns = entries.row.astype(np.int64), entries.col.astype(np.int64)
    rows, columns, values = (a[values != 0.0] for a in (rows, columns, values))
    require_finite_couplings(np.stack([rows, columns], axis=1), values)
    if (rows == columns).any():
        i = int(rows[rows == columns][0])
        raise ModelError(
            f"couplings[{i}, {i}] is not zero; expected 0, since s_i * s_i is constant"
        )
    n = int(couplings.shape[0])
    upper = rows < columns
    keys = np.where(upper, rows * n + columns, columns * n + rows)
    above, below = (np.argsort(keys[side], kind="stable") for side in (upper, ~upper))
    if upper.any() and not upper.all():
        same = np.array_equal(keys[upper][above], keys[~upper][below])
        if not same or not np.array_equal(values[upper][above], values[~upper][below]):
            raise ModelError(
                "couplings is a sparse matrix that is neither symmetric nor a triangle; expected "
                "each pair once, or the same value at (i, j) and (j, i): scipy.sparse.triu(J, 1) "
                "keeps the upper half"
            )
    kept, order = (upper, above) if upper.any() else (~upper, below)
    pairs = np.sort(np.stack([rows[kept], columns[kept]], axis=1), axis=1)
    return n, pairs[order], values[kept][order]


def _spin_pairs(
    n: int, pairs: NDArray, weights: NDArray, fields: NDArray, *, name: str, layout: Layout = None
) -> FactorGraph:
    require_finite("fields", fields)
    pair_tables = weights[:, None] * np.outer(_SPIN, _SPIN).ravel()
    return _pairwise(fields[:, None] * _SPIN, pairs, pair_tables, name, layout)


def _pairwise(
    unary: NDArray, pairs: NDArray, pair_tables: NDArray, name: str, layout: Layout
) -> FactorGraph:
    n, count = len(unary), len(pairs)
    return FactorGraph.from_arrays(
        np.full(n, 2),
        np.concatenate([np.arange(n + 1), n + 2 * np.arange(1, count + 1)]),
        np.concatenate([np.arange(n), pairs.ravel()]),
        np.concatenate([2 * np.arange(n + 1), 2 * n + 4 * np.arange(1, count + 1)]),
        np.concatenate([unary.ravel(), pair_tables.ravel()]),
        name=name,
        layout=layout,
    )


def potts(
    couplings: Mapping[tuple[int, int], float],
    states: int,
    fields: ArrayLike | None = None,
    *,
    name: str = "potts",
) -> FactorGraph:
    """log p~(x) = sum_(i,j) J_ij [x_i = x_j] + sum_i fields[i, x_i], x_i in 0 .. states-1.

    `couplings` maps pairs (i, j), each named once, to J_ij; `fields` is (n, states), and says how
    many variables there are where some have no coupling.
    """
    states = as_count(states, "states")
    pairs, weights = coupled_pairs(couplings)
    field = np.zeros((0, states)) if fields is None else real_array(fields, "fields")
    if field.ndim != 2 or field.shape[1] != states:
        raise ModelError(f"fields have shape {field.shape}; expected (variables, {states})")
    n = int(pairs.max(initial=-1)) + 1
    if fields is not None and len(field) < n:
        raise ModelError(
            f"fields have {len(field)} rows; couplings name variable {n - 1}, so expected {n}"
        )
    if fields is None:
        field = np.zeros((n, states))
    return _build(states, pairs, weights, field, name, None)


def potts_grid(
    rows: int,
    cols: int | None = None,
    *,
    states: int = 3,
    coupling: tuple[float, float] = (-1.0, 1.0),
    field: tuple[float, float] = (-1.0, 1.0),
    seed: Seed = None,
    periodic: bool = False,
) -> FactorGraph:
    """A rows x cols Potts lattice, couplings and fields drawn uniformly from the given ranges.

    `periodic=True` wraps both directions (a side of length 2 or less is not wrapped).
    """
    rows = as_count(rows, "rows")
    cols = rows if cols is None else as_count(cols, "cols")
    states = as_count(states, "states")
    low_high = as_range(coupling, "coupling")
    site = np.arange(rows * cols).reshape(rows, cols)
    joined = [(site[:, :-1], site[:, 1:]), (site[:-1], site[1:])]
    if periodic and cols > 2:
        joined.append((site[:, 0], site[:, -1]))
    if periodic and rows > 2:
        joined.append((site[0], site[-1]))
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in joined])
    rng = generator(seed)
    weights = rng.uniform(*low_high, size=len(pairs))
    fields = rng.uniform(*as_range(field, "field"), size=(rows * cols, states))
    name = f"potts {rows}x{cols}, {states} states, w in [{low_high[0]:g}, {low_high[1]:g}]"
    return _build(states, pairs, weights, fields, name, Grid(rows, cols, periodic))


def _build(
    states: int,
    pairs: NDArray[np.int64],
    weights: NDArray[np.float64],
    fields: NDArray[np.float64],
    name: str,
    layout: Layout,
) -> FactorGraph:
    require_finite("fields", fields)
    n, count = len(fields), len(pairs)
    tables = weights[:, None] * np.eye(states).ravel()
    square = states * states
    return FactorGraph.from_arrays(
        np.full(n, states),
        np.concatenate([np.arange(n + 1), n + 2 * np.arange(1, count + 1)]),
        np.concatenate([np.arange(n), pairs.ravel()]),
        np.concatenate([states * np.arange(n + 1), states * n + square * np.arange(1, count + 1)]),
        np.concatenate([fields.ravel(), tables.ravel()]),
        name=name,
        layout=layout,
    )
