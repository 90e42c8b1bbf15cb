"""A pairwise model as flat arrays: zero states removed, parallel factors merged, no dead ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.kernels import kernel


class PairwiseArrays(NamedTuple):
    """What the kernels read. Variable s owns `unary[var_ptr[s]:var_ptr[s + 1]]` (finite).

    Edge e joins `first[e] < second[e]`; its table (row: state of first) is
    `tables[edge_ptr[e]:edge_ptr[e + 1]]`, and every row and column has a finite entry.
    Edges at variable s: `incident[incident_ptr[s]:incident_ptr[s + 1]]`. Messages along edge e:
    into first at `message_ptr[2 * e]`, into second at `message_ptr[2 * e + 1]`.
    """

    var_ptr: NDArray[np.int64]
    unary: NDArray[np.float64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    tables: NDArray[np.float64]
    incident_ptr: NDArray[np.int64]
    incident: NDArray[np.int64]
    message_ptr: NDArray[np.int64]


class PairwiseModel(NamedTuple):
    """The arrays, the constant added to log Z, and where their states sit in the source model.

    `live` marks the states of the source model that survive (flat, one block per variable);
    a constant of -inf means that Z = 0.
    """

    arrays: PairwiseArrays
    constant: float
    live: NDArray[np.bool_]


def pairwise_model(model: FactorGraph) -> PairwiseModel:
    """Flatten a model without evidence and of arity at most 2; log Z is unchanged.

    States without support in some table are removed (arc consistency), so that every message of
    a propagation method is finite; edges at a variable left with one state become unary.
    """
    if (model.arities > 2).any():
        f = int(np.argmax(model.arities > 2))
        raise UnsupportedModelError(
            f"factor {f} has arity {model.arities[f]}; tree-reweighted bounds need arity at most "
            "2. Use tz.MiniBucket(), which takes any factor graph"
        )
    cards = model.cardinalities.astype(np.int64)
    var_ptr = np.concatenate([[0], np.cumsum(cards)])
    constant, unary, pairs, edge_ptr, tables = _merged(model, var_ptr)
    owner, row, col = _entry_indices(pairs, edge_ptr, cards)
    live = unary > -np.inf
    if (tables == -np.inf).any() or not live.all():
        _remove_unsupported(live, var_ptr, pairs, edge_ptr, tables, cards)
    kept = np.bincount(np.repeat(np.arange(cards.size), cards), live, minlength=cards.size)
    if constant == -np.inf or (kept == 0).any():
        return PairwiseModel(_empty_arrays(), -np.inf, np.zeros(unary.size, dtype=bool))
    cards = kept.astype(np.int64)
    offset = np.cumsum(live) - 1
    flat_row, flat_col = var_ptr[pairs[owner, 0]] + row, var_ptr[pairs[owner, 1]] + col
    keep = live[flat_row] & live[flat_col]
    owner, tables = owner[keep], tables[keep]
    flat_row, flat_col = offset[flat_row[keep]], offset[flat_col[keep]]
    unary = unary[live]
    # An edge with a one-state end is a function of the other end alone.
    alone = (cards[pairs] == 1).any(axis=1)
    onto_second = (cards[pairs[:, 0]] == 1) if len(pairs) else np.zeros(0, dtype=bool)
    fold = alone[owner]
    np.add.at(unary, np.where(onto_second[owner], flat_col, flat_row)[fold], tables[fold])
    pairs, tables = pairs[~alone], tables[~fold]
    return PairwiseModel(_arrays(cards, unary, pairs, tables), constant, live)


def _merged(
    model: FactorGraph, var_ptr: NDArray[np.int64]
) -> tuple[float, NDArray, NDArray, NDArray, NDArray]:
    """Constant, unary sums, sorted distinct pairs (E, 2), their pointers and summed tables."""
    n = model.n_variables
    constant = 0.0
    unary = np.zeros(int(var_ptr[-1]))
    keys: list[NDArray] = []
    blocks: list[NDArray] = []
    for batch in model.batches():
        arity = batch.scopes.shape[1]
        scopes = batch.scopes.astype(np.int64)
        if arity == 0:
            constant += float(batch.log_tables.sum())
        elif arity == 1:
            at = var_ptr[scopes[:, 0]][:, None] + np.arange(batch.log_tables.shape[1])
            np.add.at(unary, at, batch.log_tables)
        else:
            swapped = scopes[:, 0] > scopes[:, 1]
            for which, table in (
                (~swapped, batch.log_tables),
                (swapped, batch.log_tables.transpose(0, 2, 1)),
            ):
                if which.any():
                    low, high = scopes[which].min(axis=1), scopes[which].max(axis=1)
                    keys.append(low * n + high)
                    blocks.append(table[which].reshape(int(which.sum()), -1))
    if not keys:
        none = np.zeros((0, 2), dtype=np.int64)
        return constant, unary, none, np.zeros(1, dtype=np.int64), np.zeros(0)
    distinct = np.unique(np.concatenate(keys))
    pairs = np.stack([distinct // n, distinct % n], axis=1)
    cards = np.diff(var_ptr)
    edge_ptr = np.concatenate([[0], np.cumsum(cards[pairs[:, 0]] * cards[pairs[:, 1]])])
    tables = np.zeros(int(edge_ptr[-1]))
    for key, block in zip(keys, blocks, strict=True):
        at = edge_ptr[np.searchsorted(distinct, key)][:, None] + np.arange(block.shape[1])
        np.add.at(tables, at, block)
    return constant, unary, pairs, edge_ptr, tables


def _entry_indices(
    pairs: NDArray, edge_ptr: NDArray, cards: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Edge, row and column of every table entry."""
    owner = np.repeat(np.arange(len(pairs)), np.diff(edge_ptr))
    within = np.arange(int(edge_ptr[-1])) - edge_ptr[owner]
    width = cards[pairs[owner, 1]]
    return owner, within // width, within % width


def _arrays(
    cards: NDArray[np.int64], unary: NDArray, pairs: NDArray[np.int64], tables: NDArray
) -> PairwiseArrays:
    n, count = cards.size, len(pairs)
    ends = pairs.ravel()
    by_end = np.argsort(ends, kind="stable")
    degree = np.bincount(ends, minlength=n)
    return PairwiseArrays(
        var_ptr=np.concatenate([[0], np.cumsum(cards)]),
        unary=unary,
        first=np.ascontiguousarray(pairs[:, 0]),
        second=np.ascontiguousarray(pairs[:, 1]),
        edge_ptr=np.concatenate([[0], np.cumsum(cards[pairs[:, 0]] * cards[pairs[:, 1]])]),
        tables=np.ascontiguousarray(tables),
        incident_ptr=np.concatenate([[0], np.cumsum(degree)]),
        incident=np.repeat(np.arange(count), 2)[by_end],
        message_ptr=np.concatenate([[0], np.cumsum(cards[ends])]),
    )


def _empty_arrays() -> PairwiseArrays:
    none = np.zeros(0, dtype=np.int64)
    return _arrays(none, np.zeros(0), none.reshape(0, 2), np.zeros(0))


@kernel
def _remove_unsupported(
    live: NDArray,
    var_ptr: NDArray,
    pairs: NDArray,
    edge_ptr: NDArray,
    tables: NDArray,
    cards: NDArray,
) -> None:
    """Arc consistency in place: a state dies when a table offers it no live partner."""
    # To a fixed point: each death may take a neighbour's last partner. Dead states are in no state
    # of positive weight, so removing them changes nothing but the work.
    changed = True
    while changed:
        changed = False
        for e in range(len(pairs)):
            i, j = pairs[e, 0], pairs[e, 1]
            for side in range(2):
                s, t = (i, j) if side == 0 else (j, i)
                step_s, step_t = (cards[j], 1) if side == 0 else (1, cards[j])
                for a in range(cards[s]):
                    if not live[var_ptr[s] + a]:
                        continue
                    supported = False
                    for b in range(cards[t]):
                        if live[var_ptr[t] + b]:
                            entry = tables[edge_ptr[e] + a * step_s + b * step_t]
                            if entry > -np.inf:
                                supported = True
                                break
                    if not supported:
                        live[var_ptr[s] + a] = False
                        changed = True
