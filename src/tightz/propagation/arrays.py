"""A factor graph with parity constraints as the flat arrays of belief propagation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph

Parities = Iterable[tuple[Sequence[int], int]]


class BetheArrays(NamedTuple):
    """Variable v owns states `var_ptr[v]:var_ptr[v + 1]` of `unary`.

    Factor f (arity two or more) covers slots `scope_ptr[f]:scope_ptr[f + 1]` of `scope_vars` and
    `tables[table_ptr[f]:table_ptr[f + 1]]`; slot k keeps its message at `message_ptr[k]`.
    Parity p says that the bits `parity_vars[parity_ptr[p]:parity_ptr[p + 1]]` sum to
    `parity_bits[p]` modulo 2; its messages are log odds, one per slot.
    """

    var_ptr: NDArray[np.int64]
    unary: NDArray[np.float64]
    scope_ptr: NDArray[np.int64]
    scope_vars: NDArray[np.int64]
    table_ptr: NDArray[np.int64]
    tables: NDArray[np.float64]
    message_ptr: NDArray[np.int64]
    parity_ptr: NDArray[np.int64]
    parity_vars: NDArray[np.int64]
    parity_bits: NDArray[np.int64]


class BetheState(NamedTuple):
    """Log messages of tables, log odds sent by parities, log beliefs, and which states live."""

    messages: NDArray[np.float64]
    odds: NDArray[np.float64]
    beliefs: NDArray[np.float64]
    alive: NDArray[np.bool_]


def checked_parities(model: FactorGraph, parities: Parities) -> list[tuple[list[int], int]]:
    """Constraints over unobserved two-state variables; repeated and known bits are taken out."""
    checked = []
    for p, (variables, b) in enumerate(parities):
        if b not in (0, 1):
            raise ModelError(f"parity {p} has right-hand side {b}; expected 0 or 1")
        bit, odd = int(b), set[int]()
        for v in (int(v) for v in variables):
            if not 0 <= v < model.n_variables:
                raise ModelError(
                    f"parity {p} names variable {v}; the model has variables 0 to "
                    f"{model.n_variables - 1}"
                )
            if model.cardinalities[v] > 2:
                raise ModelError(
                    f"parity {p} names variable {v}, which has {model.cardinalities[v]} states; "
                    "parities bind binary variables"
                )
            if v in model.evidence:
                bit ^= model.evidence[v]
            elif model.cardinalities[v] == 2:
                # x + x = 0 modulo 2: a variable named twice drops out, an observed one moves to
                # the right-hand side.
                odd ^= {v}
        if odd or bit:
            checked.append((sorted(odd), bit))
    return checked


def bethe_arrays(
    free: FactorGraph, numbers: NDArray, constraints: list[tuple[list[int], int]]
) -> tuple[float, BetheArrays]:
    """The constant of log Z and the kernels' arrays; unary factors become priors."""
    cards = free.cardinalities.astype(np.int64)
    var_ptr = np.concatenate([[0], np.cumsum(cards)])
    constant, unary = 0.0, np.zeros(int(var_ptr[-1]))
    for batch in free.batches():
        if batch.scopes.shape[1] == 0:
            constant += float(batch.log_tables.sum())
        elif batch.scopes.shape[1] == 1:
            at = var_ptr[batch.scopes[:, 0]][:, None] + np.arange(batch.log_tables.shape[1])
            np.add.at(unary, at, batch.log_tables)
    wide = free.arities >= 2
    slot = np.repeat(wide, free.arities)
    entry = np.repeat(wide, np.diff(free.table_ptr))
    scope_vars = free.scope_vars[slot].astype(np.int64)
    new_number = {int(v): k for k, v in enumerate(numbers)}
    rows = [[new_number[v] for v in variables] for variables, _ in constraints]
    return constant, BetheArrays(
        var_ptr=var_ptr,
        unary=unary,
        scope_ptr=np.concatenate([[0], np.cumsum(free.arities[wide])]),
        scope_vars=scope_vars,
        table_ptr=np.concatenate([[0], np.cumsum(np.diff(free.table_ptr)[wide])]),
        tables=free.log_tables[entry],
        message_ptr=np.concatenate([[0], np.cumsum(cards[scope_vars])]),
        parity_ptr=np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64),
        parity_vars=np.array([v for r in rows for v in r], dtype=np.int64),
        parity_bits=np.array([bit for _, bit in constraints], dtype=np.int64),
    )


def start_state(arrays: BetheArrays) -> BetheState:
    return BetheState(
        messages=np.zeros(int(arrays.message_ptr[-1])),
        odds=np.zeros(arrays.parity_vars.size),
        beliefs=np.zeros(arrays.unary.size),
        alive=arrays.unary > -np.inf,
    )


def message_states(arrays: BetheArrays) -> NDArray[np.int64]:
    """For each entry of `messages` the state that it is about, an index into `unary`."""
    slots, starts = arrays.scope_vars, arrays.message_ptr[:-1]
    first, sizes = arrays.var_ptr[slots] - starts, np.diff(arrays.message_ptr)
    found: NDArray[np.int64] = np.arange(int(arrays.message_ptr[-1])) + np.repeat(first, sizes)
    return found


def start_at(arrays: BetheArrays, logs: NDArray[np.float64]) -> BetheState:
    """Messages with which every variable first says `logs`, one entry per state, to its factors.

    A variable of d factors says its unary part and d - 1 messages: each holds an equal part of
    what the unary part lacks.
    """
    state = start_state(arrays)
    cards, slots, at = np.diff(arrays.var_ptr), arrays.scope_vars, message_states(arrays)
    degree = np.bincount(slots, minlength=cards.size)
    missing = (logs - np.where(state.alive, arrays.unary, 0.0)) / np.repeat(
        np.maximum(degree - 1, 1), cards
    )
    starts = arrays.message_ptr[:-1]
    messages = np.where(state.alive[at], missing[at], -np.inf)
    if starts.size:
        messages -= np.repeat(np.maximum.reduceat(messages, starts), cards[slots])
    return state._replace(messages=np.where(state.alive[at], messages, 0.0))


def widest_scope(arrays: BetheArrays) -> int:
    """Most states in one scope, counted slot by slot: the kernels' work space."""
    ends = arrays.message_ptr[arrays.scope_ptr]
    return int(np.diff(ends).max(initial=1))


def message_cap(arrays: BetheArrays) -> float:
    """A magnitude that no log message of a tree-structured model exceeds.

    A message compares two states of one variable: everything else in the model can weigh in by
    at most the range of its finite entries, and by the number of states summed over.
    """
    ranges = 0.0
    for ptr, values in ((arrays.var_ptr, arrays.unary), (arrays.table_ptr, arrays.tables)):
        if values.size:
            finite = np.isfinite(values)
            high = np.maximum.reduceat(np.where(finite, values, -np.inf), ptr[:-1])
            low = np.minimum.reduceat(np.where(finite, values, np.inf), ptr[:-1])
            ranges += float(np.maximum(high - low, 0.0).sum())
    return ranges + float(np.log(np.diff(arrays.var_ptr)).sum()) + 50.0


def largest_entry(arrays: BetheArrays) -> float:
    """The largest finite log potential in absolute value."""
    values = np.concatenate([arrays.unary, arrays.tables])
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
