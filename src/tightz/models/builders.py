"""Ising models, lattices and restricted Boltzmann machines as factor graphs.

State 0 of a variable is spin +1, state 1 is spin -1 (s = 1 - 2x); RBM units are on in state 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite, require_range
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid, Layout
from tightz.runtime.seeds import Seed, generator

_SPIN = np.array([1.0, -1.0])


def ising(
    couplings: ArrayLike | Mapping[tuple[int, int], float],
    fields: ArrayLike | Mapping[int, float] | None = None,
    *,
    name: str = "ising",
) -> FactorGraph:
    """log p~(s) = sum_{i<j} J_ij s_i s_j + sum_i h_i s_i, spins s_i in {-1, +1}.

    `couplings` is a symmetric (n, n) matrix (each pair counted once, zero diagonal) or a mapping
    (i, j) -> J_ij; `fields` is an (n,) vector or a mapping i -> h_i.
    """
    if isinstance(couplings, Mapping):
        pairs = np.array([sorted(p) for p in couplings], dtype=np.int64).reshape(-1, 2)
        weights = np.array(list(couplings.values()), dtype=np.float64)
        n = int(pairs.max(initial=-1)) + 1
    else:
        matrix = np.asarray(couplings, dtype=np.float64)
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
        n = len(matrix)
        pairs = np.argwhere(np.triu(matrix, 1))
        weights = matrix[pairs[:, 0], pairs[:, 1]]
    if isinstance(fields, Mapping):
        n = max(n, max(fields, default=-1) + 1)
        field = np.zeros(n)
        field[list(fields)] = list(fields.values())
    elif fields is None:
        field = np.zeros(n)
    else:
        field = np.asarray(fields, dtype=np.float64).ravel()
        if isinstance(couplings, Mapping):
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
    cols = rows if cols is None else cols
    require_range("rows", rows, 1)
    require_range("cols", cols, 1)
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
    weights = rng.uniform(*_range("coupling", coupling), size=len(edges))
    fields = rng.uniform(*_range("field", field), size=rows * cols)
    if field_per_edge:
        fields = fields * np.bincount(edges.ravel(), minlength=rows * cols)
    shape = "torus" if periodic else "grid"
    name = f"{shape} {rows}x{cols}, w in [{coupling[0]:g}, {coupling[1]:g}]"
    return _spin_pairs(
        rows * cols, edges, weights, fields, name=name, layout=Grid(rows, cols, periodic)
    )


def rbm(
    weights: ArrayLike,
    visible_bias: ArrayLike,
    hidden_bias: ArrayLike,
    *,
    name: str = "rbm",
) -> FactorGraph:
    """log p~(v, h) = b'v + c'h + v'Wh with binary units in {0, 1}; W is (visible, hidden).

    Variables 0 .. visible-1 are the visible units, the hidden ones follow.
    """
    w = np.asarray(weights, dtype=np.float64)
    b = np.asarray(visible_bias, dtype=np.float64).ravel()
    c = np.asarray(hidden_bias, dtype=np.float64).ravel()
    if w.shape != (b.size, c.size):
        raise ModelError(
            f"W has shape {w.shape}; {b.size} visible and {c.size} hidden biases need "
            f"({b.size}, {c.size})"
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


def _range(label: str, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(x) for x in bounds)
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ModelError(f"{label} range is {bounds}; expected finite (low, high) with low <= high")
    return low, high


def _spin_pairs(
    n: int, pairs: NDArray, weights: NDArray, fields: NDArray, *, name: str, layout: Layout = None
) -> FactorGraph:
    require_finite_couplings(pairs, weights)
    require_finite("fields", fields)
    same = pairs[:, 0] == pairs[:, 1]
    if same.any():
        i = pairs[same][0, 0]
        raise ModelError(
            f"coupling of spin {i} with itself; expected pairs of different spins, since s_i * s_i "
            f"is constant: leave ({i}, {i}) out"
        )
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
