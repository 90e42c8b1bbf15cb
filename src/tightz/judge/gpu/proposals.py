"""Capped weights whose tables lie on a CUDA device: the claims of `tightz.judge.proposals`.

A clique's table is log E_c = sum of terms - message, each term a table over part of its scope, so
that nothing as large as E_c itself is held. The cap looks at every entry; the weights are a spot
check. Addresses are worked out here from scopes, sums are in float64.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.gpu.cliques import MOST_TERMS, SIMULATED, charges, cuda
from tightz.judge.verdict import UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph

THREADS = 2 if SIMULATED else 128
BLOCKS = 2 if SIMULATED else 2048


class Table(NamedTuple):
    """sign * (pool[place + ...] - level) over `scope`, the last variable fastest."""

    place: int
    sign: int
    level: float
    scope: tuple[int, ...]


class Tables(NamedTuple):
    """log E_c is the sum of tables[c], clique c over scopes[c] with its own variable last."""

    pool: Any
    tables: Sequence[Sequence[Table]]
    scopes: Sequence[tuple[int, ...]]
    bucket_ptr: NDArray[np.int64]
    cardinalities: NDArray[np.int64]


@cuda.jit
def _largest(pool, book, levels, at, weight, found, c, charges):
    """found[0, c] = max over rows of w log sum_v E^(1/w), rounded up as in `gpu.cliques`;
    found[1, c] = the largest sum of sizes of what an entry adds up.

    charges as in `gpu.cliques`; book[at:]: axes, terms; sizes of the axes, own one last; then per
    term its sign, first entry, place of its level and stride for each axis.
    """
    axes, terms = book[at], book[at + 1]
    first = at + 2 + axes
    states, rows = book[first - 1], 1
    for a in range(axes - 1):
        rows *= book[at + 2 + a]
    share = charges[0]
    places = cuda.local.array(MOST_TERMS, np.int64)
    worst, widest = -math.inf, 0.0
    for row in range(cuda.grid(1), rows, cuda.gridsize(1)):
        for t in range(terms):
            places[t] = book[first + t * (3 + axes) + 1]
        rest = np.uint32(row)
        for a in range(axes - 2, -1, -1):
            dim = np.uint32(book[at + 2 + a])
            ahead = np.uint32(rest // dim)
            digit = np.int64(np.uint32(rest - ahead * dim))
            rest = ahead
            if digit > 0:
                for t in range(terms):
                    places[t] += digit * book[first + t * (3 + axes) + 3 + a]
        top, total = -math.inf, 0.0
        for turn in range(2):
            for v in range(states):
                value, size = 0.0, 0.0
                for t in range(terms):
                    term = first + t * (3 + axes)
                    x = np.float64(pool[places[t] + v * book[term + 2 + axes]])
                    level = levels[book[term + 2]]
                    value += book[term] * (x - level)
                    size += abs(x) + abs(level)
                value += share * size
                widest = max(widest, size)
                if turn == 0:
                    top = value if not value <= top else top
                else:
                    total += math.exp((value - top) / weight)
        sent = top + weight * math.log(total)
        sent += charges[1] + charges[2] * abs(sent)
        # a value that is no number must not be passed over
        worst = sent if sent == sent and not sent <= worst else worst
        worst = math.inf if sent != sent else worst
    if worst > found[0, c]:
        cuda.atomic.max(found, (0, c), worst)
    if widest > found[1, c]:
        cuda.atomic.max(found, (1, c), widest)


def cap_excess(tables: Tables, weights: NDArray[np.float64]) -> tuple[float, float]:
    """sum_c w_c log R_c, rounded up: nats by which a weight may exceed U; and the sum over cliques
    of the largest sizes that their entries add up, with which the rounding of a weight scales."""
    book: list[int] = []
    levels: list[float] = []
    pages: list[tuple[int, int]] = []
    for c, scope in enumerate(tables.scopes):
        shape = [int(tables.cardinalities[v]) for v in scope]
        if len(tables.tables[c]) > MOST_TERMS or math.prod(shape) >= 2**32:
            raise ValueError(f"clique {c} is too large to be judged on a device")
        pages.append((len(book), math.prod(shape[:-1])))
        book += [len(scope), len(tables.tables[c]), *shape]
        for place, sign, level, held in tables.tables[c]:
            book += [sign, place, len(levels), *_strides(tables, scope, held)]
            levels.append(level)
    found = cuda.to_device(np.full((2, max(1, len(pages))), -np.inf))
    words, bases = cuda.to_device(np.array(book)), cuda.to_device(np.array(levels or [0.0]))
    shares = _shares(tables.bucket_ptr, weights)
    for c, (at, rows) in enumerate(pages):
        blocks = min(BLOCKS, -(-rows // THREADS))
        charged = charges(book[at + 1] + 2, book[at + 1 + book[at]], shares[c])
        _largest[blocks, THREADS](tables.pool, words, bases, at, shares[c], found, c, charged)
    worst, widest = found.copy_to_host()[:, : len(pages)]
    if not np.isfinite(worst).all():
        raise RefutedError("a table of the proposal is not finite")
    return math.fsum(np.maximum(worst, 0.0)) * (1.0 + 4.0 * UNIT), math.fsum(widest)


def _shares(bucket_ptr: NDArray[np.int64], weights: NDArray[np.float64]) -> list[float]:
    """Weights that sum to 1 in each bucket; RefutedError where they are not those of Hoelder."""
    out: list[float] = []
    for low, high in pairwise(bucket_ptr.tolist()):
        scale = float(weights[low:high].sum())
        if not (weights[low:high] > 0.0).all() or abs(scale - 1.0) > 1e-9:
            raise RefutedError(f"weights {weights[low:high]} of a bucket prove no cap")
        out += (weights[low:high] / scale).tolist()
    return out


def _strides(tables: Tables, scope: Sequence[int], held: Sequence[int]) -> list[int]:
    strides, stride = {}, 1
    for v in reversed(held):
        strides[v] = stride
        stride *= int(tables.cardinalities[v])
    if not set(held) <= set(scope):
        raise RefutedError(f"a table over {held} is said to lie in clique {scope}")
    return [strides.get(v, 0) for v in scope]


@cuda.jit
def _picked(pool, places, out):
    for k in range(cuda.grid(1), places.size, cuda.gridsize(1)):
        out[k] = pool[places[k]]


def check_weights(
    model: FactorGraph,
    tables: Tables,
    states: NDArray[np.int64],
    log_weights: NDArray[np.float64],
    tolerance: float,
) -> None:
    """RefutedError unless log_weights are log p~(x) - log q(x) of the given states (rows)."""
    # The numbers of all tables in one go: a transfer each would take longer than all sums.
    places = []
    for scope, held in zip(tables.scopes, tables.tables, strict=True):
        card = int(tables.cardinalities[scope[-1]])
        for table in held:
            strides = _strides(tables, scope, table.scope)
            rows = states[:, list(scope[:-1])] @ np.array(strides[:-1], np.int64)
            places.append(table.place + rows[:, None] + strides[-1] * np.arange(card))
    ends = np.cumsum([0, *(one.size for one in places)]).tolist()
    found = _read(tables.pool, np.concatenate([one.ravel() for one in places]))
    log_q, at, number = np.zeros(len(states)), np.arange(len(states)), 0
    for low, high in pairwise(tables.bucket_ptr.tolist()):
        own = tables.scopes[low][-1]
        logs = np.zeros((len(states), int(tables.cardinalities[own])))
        for table in (one for c in range(low, high) for one in tables.tables[c]):
            read = found[ends[number] : ends[number + 1]].reshape(logs.shape)
            logs += table.sign * (read - table.level)
            number += 1
        top = logs.max(axis=1, keepdims=True)
        log_q += (logs - top)[at, states[:, own]] - np.log(np.exp(logs - top).sum(axis=1))
    off = np.abs(model.log_weight(states) - log_q - log_weights)
    if not (off <= tolerance).all():
        raise RefutedError(
            f"draws under a cap: a weight differs from p~ / q by {off.max():.3g} nats"
        )


def _read(pool: Any, places: NDArray[np.int64]) -> NDArray[np.float64]:
    out = cuda.device_array(places.size, np.float32)
    _picked[min(64, -(-places.size // THREADS)), THREADS](
        pool, cuda.to_device(places.astype(np.int64)), out
    )
    found: NDArray[np.float64] = out.copy_to_host().astype(np.float64)
    return found
