"""Tables over parts of a clique: its factors in float32, and how an index moves in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.uppers.mini_bucket.partition import Partition

MERGED = 1 << 12
"""Entries up to which the factors of a clique are added up to one table."""

Scope = tuple[int, ...]


class FactorTables(NamedTuple):
    """All tables one after another, per clique (first entry, scope) of its own, and the nats by
    which their sum may differ from the model."""

    flat: NDArray[np.float32]
    placed: list[list[tuple[int, Scope]]]
    blur: float


def factor_tables(parts: Partition) -> FactorTables:
    """Factors of one clique are added up where that stays small."""
    flat: list[NDArray[np.float32]] = []
    placed: list[list[tuple[int, Scope]]] = []
    size, blur = 0, 0.0
    for clique, factors in zip(parts.cliques, parts.sources, strict=True):
        placed.append([])
        for scope, table in _merged(parts, clique, factors):
            placed[-1].append((size, scope))
            rounded = table.astype(np.float32)
            blur += float(np.abs(table - rounded).max())
            flat.append(rounded.ravel())
            size += table.size
    return FactorTables(np.concatenate([np.zeros(0, np.float32), *flat]), placed, blur)


def _merged(
    parts: Partition, clique: Scope, factors: Sequence[int]
) -> list[tuple[Scope, NDArray[np.float64]]]:
    """(scope, table) with axes in the clique's order."""
    model, cards = parts.model, parts.cardinalities.tolist()
    groups: list[tuple[set[int], list[tuple[list[int], NDArray[np.float64]]]]] = []
    for f in factors:
        axes = model.scope_vars[model.scope_ptr[f] : model.scope_ptr[f + 1]].tolist()
        table = model.log_tables[model.table_ptr[f] : model.table_ptr[f + 1]]
        joined = groups[-1][0].union(axes) if groups else set()
        if not groups or math.prod(cards[v] for v in joined) > MERGED:
            groups.append((set(axes), []))
        else:
            groups[-1][0].update(axes)
        groups[-1][1].append((axes, table.reshape([cards[v] for v in axes])))
    out = []
    for held, tables in groups:
        scope = tuple(v for v in clique if v in held)
        total = np.zeros([cards[v] for v in scope])
        for axes, table in tables:
            turned = table.transpose(
                sorted(range(len(axes)), key=[*map(scope.index, axes)].__getitem__)
            )
            total += turned.reshape([cards[v] if v in axes else 1 for v in scope])
        out.append((scope, total))
    return out


def strides_of(axes: Sequence[int], scope: Sequence[int], cards: Sequence[int]) -> list[int]:
    """Of a table over `scope`, for each of the axes; 0 where it has it not."""
    strides, stride = {}, 1
    for v in reversed(scope):
        strides[v] = stride
        stride *= cards[v]
    return [strides.get(v, 0) for v in axes]


def runs_of(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """What `kernels._offset` reads: neighbouring axes that move together are one run."""
    runs: list[list[int]] = []
    divisor = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if stride:
            last = runs[-1] if runs else [0, 0, 0]
            if last[0] * last[1] == divisor and last[2] * last[1] == stride:
                last[1] *= size
            else:
                runs.append([divisor, size, stride])
        divisor *= size
    if all(_power(d) and _power(m) for d, m, _ in runs):
        bits = [[d.bit_length() - 1, m - 1, s] for d, m, s in runs]
        return [-len(runs), *(word for run in bits for word in run)]
    return [len(runs), *(word for run in runs for word in run)]


def _power(size: int) -> bool:
    return size & (size - 1) == 0
