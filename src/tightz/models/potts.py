"""Potts models: variables of any number of states, weights for neighbours that agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.factor_graph import FactorGraph, Grid, Layout
from tightz.models.inputs import as_count, as_range, coupled_pairs, real_array
from tightz.runtime.seeds import Seed, generator


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
