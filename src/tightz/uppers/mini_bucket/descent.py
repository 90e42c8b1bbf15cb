"""Tightening one mini-bucket bound: cost shifts and weights, never accepting a worse bound."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.partition import Partition, Skeleton, clique_tables, skeleton
from tightz.uppers.mini_bucket.passes import (
    Tables,
    allocate,
    apply_shifts,
    backward,
    conditionals,
    forward,
)

_WEIGHT_RATE = 5.0
_GROW, _SHRINK = 1.3, 0.5
_LEAST_STEP = 1e-3
_NEGATIVE_WEIGHT = -0.1


def predicted_bytes(parts: Partition) -> float:
    """Memory of a `Descent`: the kernels' arrays, a copy of the best tables, and its evidence."""
    return parts.peak_bytes + 8 * (float(parts.table_sizes.sum()) + 2 * parts.shift_entries)


@dataclass(frozen=True, eq=False)
class Conditionals:
    """log U, exp(F_c - m_c) and weights of all cliques; `magnitude`: what rounding scales with."""

    log_u: float
    tables: NDArray[np.float32]
    weights: NDArray[np.float64]
    magnitude: float


class Descent:
    """A mini-bucket bound and the state that improves it.

    Each `advance` matches the cliques of every bucket (fixed point of Liu and Ihler 2011) once on
    the way up and once on the way down the elimination order, and moves the weights by
    exponentiated gradient. The fixed point is not a descent method: a step that made the bound
    worse is taken back and the next one is shorter.

    `lower=True` gives one clique of each bucket a positive weight and the others negative ones
    (sum 1): Hoelder's inequality is then reversed and the value is a lower bound.
    """

    def __init__(self, model: FactorGraph, parts: Partition, *, lower: bool = False) -> None:
        self.parts = parts
        self._model = model
        self._skeleton = skeleton(parts)
        self._sign = -1.0 if lower else 1.0
        weights = first_weights(parts.bucket_ptr, lower=lower)
        self._tables: Tables = allocate(
            self._skeleton, clique_tables(model, parts, self._skeleton), weights
        )
        self._constant = float(model.log_tables[model.table_ptr[:-1][model.arities == 0]].sum())
        self._step = 1.0
        self.best = self._constant + forward(self._skeleton, self._tables, 0.0, 0.0)
        self.iterates = [self.best]
        self._kept: tuple[NDArray[np.float64], ...] | None = None

    @property
    def skeleton(self) -> Skeleton:
        return self._skeleton

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to gain: exact, infinite, or no step improves the bound."""
        return self.parts.exact or not np.isfinite(self.best) or self._step < _LEAST_STEP

    def advance(self) -> float:
        """One iteration; returns the best bound so far."""
        skel, tables = self._skeleton, self._tables
        if self._kept is None:
            self._kept = (tables.theta.copy(), tables.weights.copy(), tables.shift.copy())
            backward(skel, tables, 0.0)
        value = self._constant + forward(skel, tables, self._step, _WEIGHT_RATE * self._step)
        self.iterates.append(value)
        if self._sign * value <= self._sign * self.best:
            self.best = value
            self._kept[0][:] = tables.theta
            self._kept[1][:] = tables.weights
            self._kept[2][:] = tables.shift
            self._step = min(1.0, self._step * _GROW)
            backward(skel, tables, self._step)
        else:
            tables.theta[:], tables.weights[:], tables.shift[:] = self._kept
            self._step *= _SHRINK
            forward(skel, tables, 0.0, 0.0)
            backward(skel, tables, 0.0)
        return self.best

    def conditionals(self) -> Conditionals:
        """The best bound as a proposal: exp(F_c - m_c) of every clique, from clean tables.

        log p~(x) = log U + sum_c log of its entries at x, as real numbers: messages are added once
        and taken away once, so nothing that was rounded in them matters. The descent goes on from
        the best bound afterwards.
        """
        skel, tables = self._skeleton, self._tables
        if self._kept is not None:
            tables.weights[:], tables.shift[:] = self._kept[1:]
        tables.theta[:] = clique_tables(self._model, self.parts, skel)
        apply_shifts(skel, tables)
        log_u = self._constant + forward(skel, tables, 0.0, 0.0)
        out = np.empty(tables.theta.size, dtype=np.float32)
        magnitude = conditionals(skel, tables, out) + abs(self._constant)
        if self._kept is not None:
            self._kept[0][:] = tables.theta
            backward(skel, tables, 0.0)
        return Conditionals(float(log_u), out, tables.weights.copy(), float(magnitude))

    def evidence(self, numbers: NDArray[np.int64]) -> CliquesEvidence:
        """The best bound so far, for the judge; `numbers`: what the model calls the variables."""
        parts, tables = self.parts, self._tables
        _, weights, shift = self._kept or (None, tables.weights, tables.shift)
        names = numbers.tolist()
        return CliquesEvidence(
            order=numbers[parts.order],
            scopes=tuple(tuple(names[v] for v in scope) for scope in parts.cliques),
            factors=parts.sources,
            parents=parts.parents,
            weights=weights.copy(),
            pairs=self._skeleton.pairs,
            shift_ptr=self._skeleton.shift_ptr,
            shifts=shift.copy(),
            claimed=self.best,
        )


def first_weights(bucket_ptr: NDArray[np.int64], *, lower: bool) -> NDArray[np.float64]:
    """Equal weights in each bucket, or (lower) one above 1 and small negative ones."""
    weights = np.empty(int(bucket_ptr[-1]))
    for low, high in pairwise(bucket_ptr.tolist()):
        if lower:
            weights[low:high] = _NEGATIVE_WEIGHT
            weights[low] = 1.0 - _NEGATIVE_WEIGHT * (high - low - 1)
        else:
            weights[low:high] = 1.0 / (high - low)
    return weights
