"""Ising and Potts models, lattices and restricted Boltzmann machines as factor graphs.

State 0 of a variable is spin +1, state 1 is spin -1 (s = 1 - 2x); RBM units are on in state 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.couplings import Coupled, coupled, fields_of
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid, Layout
from tightz.models.inputs import as_count, as_range, real_array, vector
from tightz.runtime.seeds import Seed, generator

_SPIN = np.array([1.0, -1.0])
SPIN_STATES = ("+1", "-1")
"""Names of a spin's states, where spins have names."""


def ising(
    couplings: Any, fields: ArrayLike | Mapping[Any, float] | None = None, *, name: str = "ising"
) -> FactorGraph:
    """log p~(s) = sum_{i<j} J_ij s_i s_j + sum_i h_i s_i, spins s_i in {-1, +1}.

    couplings   an (n, n) matrix, symmetric or a triangle, so that each pair counts once, with a
                zero diagonal: an array, one of scipy's sparse matrices (entries that are listed
                twice add up) or a pandas DataFrame (its labels become names). A mapping
                (i, j) -> J_ij with each pair once; i and j are numbers, or else names or
                coordinates of a lattice: {((0, 0), (0, 1)): 1.2}. A networkx graph, whose edges
                have an attribute `coupling` or `weight` (see `from_networkx`)
    fields      h_i for each spin, one number for all, or a mapping i -> h_i that leaves out
                zeros; an array over the lattice where couplings name its coordinates

    Spins that are no numbers keep what they were called as names (str of it), and their states are
    called +1 and -1. Coordinates are sorted, other names stand in the order of their appearance.
    """
    return spins(coupled(couplings), fields, name=name)


def spins(
    found: Coupled,
    fields: Any = None,
    *,
    name: str,
    layout: Layout = None,
) -> FactorGraph:
    """The Ising model of pairs that were found, and fields in any form."""
    found, field = fields_of(found, fields)
    tables = found.weights[:, None] * np.outer(_SPIN, _SPIN).ravel()
    return _pairwise(field[:, None] * _SPIN, found, tables, name, layout, SPIN_STATES)


def ising_grid(
    rows: int,
    cols: int | None = None,
    *,
    coupling: float | tuple[float, float] = (-1.0, 1.0),
    field: float | tuple[float, float] = (-1.0, 1.0),
    seed: Seed = None,
    field_per_edge: bool = False,
    periodic: bool = False,
) -> FactorGraph:
    """A rows x cols lattice with couplings and fields drawn uniformly from the given ranges.

    One number in place of a range is the value of all.

    `field_per_edge=True` is the paper's potential psi_ij = exp(w_ij s_i s_j + f_i s_i + f_j s_j):
    a site's field then counts once for each of its edges. `periodic=True` wraps both directions
    (a side of length 2 or less is not wrapped: its bonds would be doubled).
    """
    rows = as_count(rows, "rows")
    cols = rows if cols is None else as_count(cols, "cols")
    low_high = as_range(coupling, "coupling")
    rng = generator(seed)
    edges = _lattice(rows, cols, periodic)
    weights = rng.uniform(*low_high, size=len(edges))
    fields = rng.uniform(*as_range(field, "field"), size=rows * cols)
    if field_per_edge:
        fields = fields * np.bincount(edges.ravel(), minlength=rows * cols)
    shape = "torus" if periodic else "grid"
    name = f"{shape} {rows}x{cols}, w {_told(low_high)}"
    found = Coupled(rows * cols, edges, weights)
    return spins(found, fields, name=name, layout=Grid(rows, cols, periodic))


def rbm(
    weights: ArrayLike,
    visible_bias: ArrayLike = 0.0,
    hidden_bias: ArrayLike = 0.0,
    *,
    transposed: bool = False,
    name: str = "rbm",
) -> FactorGraph:
    """log p~(v, h) = b'v + c'h + v'Wh with binary units in {0, 1}; W[i, j] joins v_i and h_j.

    Variables 0 .. visible-1 are the visible units, the hidden ones follow. A bias that is one
    number holds for all units of its layer. Where W is stored the other way round,
    (hidden, visible) as a layer of PyTorch has it, say `transposed=True`. With as many visible as
    hidden units no shape tells the two apart: W is then what you say it is.
    """
    w = real_array(weights, "W")
    if w.ndim != 2:
        raise ModelError(f"W has shape {w.shape}; expected a matrix (visible, hidden)")
    w = w.T if transposed else w
    b = _bias(visible_bias, "visible_bias", w.shape[0])
    c = _bias(hidden_bias, "hidden_bias", w.shape[1])
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
    found = Coupled(b.size + c.size, pairs, w[visible, hidden])
    return _pairwise(unary_tables, found, pair_tables, name, Bipartite(b.size, c.size))


def _bias(values: ArrayLike, what: str, size: int) -> NDArray[np.float64]:
    bias = real_array(values, what)
    return np.full(size, bias) if bias.ndim == 0 else vector(bias, what)


def _pairwise(
    unary: NDArray,
    found: Coupled,
    tables: NDArray,
    name: str,
    layout: Layout,
    called: tuple[str, ...] | None = None,
) -> FactorGraph:
    """A table (n, states) for each variable and one (E, states^2) for each pair."""
    (n, states), count = unary.shape, len(found.pairs)
    names = found.names
    square = states * states
    return FactorGraph.from_arrays(
        np.full(n, states),
        np.concatenate([np.arange(n + 1), n + 2 * np.arange(1, count + 1)]),
        np.concatenate([np.arange(n), found.pairs.ravel()]),
        np.concatenate([states * np.arange(n + 1), states * n + square * np.arange(1, count + 1)]),
        np.concatenate([unary.ravel(), tables.ravel()]),
        name=name,
        layout=layout,
        names=names,
        states=None if names is None or called is None else [called] * n,
    )


def potts(
    couplings: Any,
    states: int,
    fields: ArrayLike | Mapping[Any, ArrayLike] | None = None,
    *,
    name: str = "potts",
) -> FactorGraph:
    """log p~(x) = sum_(i,j) J_ij [x_i = x_j] + sum_i fields[i, x_i], x_i in 0 .. states-1.

    `couplings` in all forms that `ising` takes. `fields` is (n, states), one row for all variables,
    or a mapping i -> row; a mapping of couplings names only variables that have some, and the
    fields may name further ones.
    """
    return _potts(coupled(couplings), as_count(states, "states"), fields, name=name)


def _potts(
    found: Coupled, states: int, fields: Any, *, name: str, layout: Layout = None
) -> FactorGraph:
    found, field = fields_of(found, fields, states)
    tables = found.weights[:, None] * np.eye(states).ravel()
    return _pairwise(field, found, tables, name, layout)


def potts_grid(
    rows: int,
    cols: int | None = None,
    *,
    states: int = 3,
    coupling: float | tuple[float, float] = (-1.0, 1.0),
    field: float | tuple[float, float] = (-1.0, 1.0),
    seed: Seed = None,
    periodic: bool = False,
) -> FactorGraph:
    """A rows x cols Potts lattice, couplings and fields drawn uniformly from the given ranges.

    One number in place of a range is the value of all.

    `periodic=True` wraps both directions (a side of length 2 or less is not wrapped).
    """
    rows = as_count(rows, "rows")
    cols = rows if cols is None else as_count(cols, "cols")
    states = as_count(states, "states")
    low_high = as_range(coupling, "coupling")
    pairs = _lattice(rows, cols, periodic)
    rng = generator(seed)
    weights = rng.uniform(*low_high, size=len(pairs))
    fields = rng.uniform(*as_range(field, "field"), size=(rows * cols, states))
    name = f"potts {rows}x{cols}, {states} states, w {_told(low_high)}"
    found = Coupled(rows * cols, pairs, weights)
    return _potts(found, states, fields, name=name, layout=Grid(rows, cols, periodic))


def _lattice(rows: int, cols: int, periodic: bool) -> NDArray[np.int64]:
    """Pairs of neighbours: along rows, along columns, then those that wrap around."""
    site = np.arange(rows * cols).reshape(rows, cols)
    joined = [(site[:, :-1], site[:, 1:]), (site[:-1], site[1:])]
    if periodic and cols > 2:
        joined.append((site[:, 0], site[:, -1]))
    if periodic and rows > 2:
        joined.append((site[0], site[-1]))
    return np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in joined])


def _told(low_high: tuple[float, float]) -> str:
    low, high = low_high
    return f"= {low:g}" if low == high else f"in [{low:g}, {high:g}]"
