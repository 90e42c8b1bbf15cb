"""A factor graph read as spins that like or dislike each other in pairs, without fields."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.refused import Refused
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph

NO_FIELD = 1e-12
"""Nats: a weaker field is left out, and counts as error (log Z moves by at most |field|)."""


class SpinGraph(NamedTuple):
    """log p~(s) = sum of parts + sum_e coupling[e] s[first[e]] s[second[e]], every pair once.

    With `ghost` the last spin is an added one: a field h s_i is the pair h s_i s_ghost, and every
    state of the model stands for two of these, equal by symmetry. `slack` bounds how far these
    numbers move log Z against the tables as given; `pair_of` names each factor's edge (-1: none).
    """

    n: int
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    coupling: NDArray[np.float64]
    ghost: bool
    parts: list[float]
    slack: float
    pair_of: NDArray[np.int64]

    @property
    def n_edges(self) -> int:
        return self.first.size

    def log_prefactor(self) -> tuple[float, float]:
        """(log of 2^n prod cosh J times the constants, its rounding error)."""
        size = np.abs(self.coupling)
        cosh = size + np.log1p(np.exp(-2.0 * size)) - math.log(2.0)
        spins = (self.n - self.ghost) * math.log(2.0)
        value = math.fsum([*self.parts, *cosh.tolist(), spins])
        rounding = (LIBRARY + 2 * UNIT) * float((size + 2.0).sum() + spins)
        return value, 2.0 * rounding + 2.0 * UNIT * abs(value) + self.slack


def spin_graph(model: FactorGraph) -> SpinGraph | Refused:
    """The model's pairs, fields on a ghost spin; or the first reason why it has no such form."""
    reason = _unsuitable(model)
    if reason:
        return Refused(reason)
    n = model.n_variables
    parts: list[float] = []
    field, field_size, count = np.zeros(n), np.zeros(n), np.zeros(n)
    pair_of = np.full(model.n_factors, -1)
    keys, weights = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    members = [np.zeros(0, dtype=np.int64)]
    slack = 0.0
    for batch in model.batches():
        scopes = batch.scopes.astype(np.int64)
        table = batch.log_tables.reshape(len(scopes), -1)
        parts += (table.mean(axis=1)).tolist()
        if table.shape[1] == 1:
            continue
        # A table J, -J, -J, J or h, -h is read without any rounding.
        plain = (table[:, :1] == -table[:, 1:2]).all(axis=1) & (
            table[:, 0] == table[:, -1] * (1.0 if table.shape[1] == 4 else -1.0)
        )
        if table.shape[1] == 2:
            found = [(scopes[:, 0], 0.5 * (table[:, 0] - table[:, 1]))]
        else:
            plain &= table[:, 1] == table[:, 2]
            a, b, c, d = table.T
            found = [
                (scopes[:, 0], 0.25 * ((a - c) + (b - d))),
                (scopes[:, 1], 0.25 * ((a - b) + (c - d))),
            ]
            keys.append(scopes.min(axis=1) * n + scopes.max(axis=1))
            weights.append(0.25 * ((a - b) + (d - c)))
            members.append(batch.indices)
        slack += 4.0 * UNIT * float(np.abs(table[~plain]).sum())
        for at, value in found:
            np.add.at(field, at, value)
            np.add.at(field_size, at, np.abs(value))
            np.add.at(count, at, value != 0.0)
    slack += UNIT * float((field_size * np.maximum(count - 1.0, 0.0)).sum())
    distinct, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    strength = np.concatenate(weights)
    coupling = np.bincount(inverse, strength, minlength=distinct.size)
    many = np.bincount(inverse, minlength=distinct.size)
    size = np.bincount(inverse, np.abs(strength), minlength=distinct.size)
    slack += UNIT * float((size * (many - 1)).sum())
    pair_of[np.concatenate(members)] = inverse
    weak = np.abs(field) <= NO_FIELD
    slack += float(np.abs(field[weak]).sum())
    held = np.flatnonzero(~weak)
    first = np.concatenate([distinct // max(n, 1), held])
    second = np.concatenate([distinct % max(n, 1), np.full(held.size, n)])
    ghost = held.size > 0
    return SpinGraph(
        n + ghost, first, second, np.concatenate([coupling, field[held]]), ghost, parts,
        2.0 * slack + 8.0 * UNIT * sum(map(abs, parts)), pair_of,
    )  # fmt: skip


def _unsuitable(model: FactorGraph) -> str:
    """Why the tables are not those of pairs of spins; empty if they are."""
    if model.evidence:
        return "the model has evidence: condition on it first"
    if (model.cardinalities != 2).any():
        v = int(np.argmax(model.cardinalities != 2))
        return f"variable {v} has {model.cardinalities[v]} states, and a spin has 2"
    if (model.arities > 2).any():
        f = int(np.argmax(model.arities > 2))
        return f"factor {f} is a table over {model.arities[f]} variables, and pairs are needed"
    if np.isneginf(model.log_tables).any():
        entry = int(np.argmax(np.isneginf(model.log_tables)))
        f = int(np.searchsorted(model.table_ptr, entry, side="right")) - 1
        return f"factor {f} has a zero, and a coupling is finite"
    return ""
