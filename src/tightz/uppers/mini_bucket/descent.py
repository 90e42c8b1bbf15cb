"""Tightening one mini-bucket bound: cost shifts and weights, never accepting a worse bound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.layout import Skeleton, own_tables, skeleton
from tightz.uppers.mini_bucket.partition import Partition
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
_NEGATIVE_WEIGHT = -0.3
"""Where negative weights start: nearer to 0 the ascent takes longer and ends lower (100x100 grid,
60x60 Potts, both w = 1, relational_4: 0.3 to 5 nats after 25 iterations), further off it fails."""


def predicted_bytes(parts: Partition) -> float:
    """Memory of a `Descent` and its judgement."""
    return parts.peak_bytes


@dataclass(frozen=True, eq=False)
class Conditionals:
    """log U, exp(F_c - m_c) and weights of all cliques; `magnitude`: what rounding scales with."""

    log_u: float
    tables: NDArray[np.float32]
    weights: NDArray[np.float64]
    magnitude: float


class Steps(ABC):
    """A mini-bucket bound and the state that improves it, wherever its tables lie.

    Each `advance` goes down the elimination order reversed, matches the cliques of every cut bucket
    (fixed point of Liu and Ihler 2011) and moves their weights by exponentiated gradient; the way
    up then says what that was worth. The fixed point is not a descent method: a step that made the
    bound worse is taken back and the next one is shorter. Matching on the way up as well costs as
    much again and gains nothing (six grids).
    """

    def __init__(self, model: FactorGraph, parts: Partition, *, lower: bool = False) -> None:
        self.parts = parts
        self._sign = -1.0 if lower else 1.0
        self._constant = float(model.log_tables[model.table_ptr[:-1][model.arities == 0]].sum())
        self._step = 1.0
        self._begin(first_weights(parts.bucket_ptr, lower=lower))
        self.best = self._forward()
        self.iterates = [self.best]
        self._keep()

    @abstractmethod
    def _begin(self, weights: NDArray[np.float64]) -> None:
        """Make the tables."""

    @abstractmethod
    def _forward(self) -> float:
        """Sum all buckets out; the bound."""

    @abstractmethod
    def _backward(self, step: float, weight_rate: float) -> None:
        """Match cliques and move weights, after a forward pass."""

    @abstractmethod
    def _keep(self) -> None:
        """Remember the parameters as the best ones."""

    @abstractmethod
    def _restore(self) -> None:
        """Go back to the best parameters."""

    @abstractmethod
    def evidence(self, numbers: NDArray[np.int64]) -> CliquesEvidence:
        """The best bound so far, for the judge; `numbers`: what the model calls the variables."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to gain: exact, infinite, or no step improves the bound."""
        return self.parts.exact or not np.isfinite(self.best) or self._step < _LEAST_STEP

    def advance(self) -> float:
        """One iteration; returns the best bound so far."""
        self._backward(self._step, _WEIGHT_RATE * self._step)
        value = self._forward()
        self.iterates.append(value)
        if self._sign * value <= self._sign * self.best:
            self.best = value
            self._keep()
            self._step = min(1.0, self._step * _GROW)
        else:
            self._restore()
            self._step *= _SHRINK
            self._forward()
        return self.best


class Descent(Steps):
    """`Steps` on the CPU, in float64.

    `lower=True` gives one clique of each bucket a positive weight and the others negative ones
    (sum 1): Hoelder's inequality is then reversed and the value is a lower bound.
    """

    def _begin(self, weights: NDArray[np.float64]) -> None:
        self._skeleton = skeleton(self.parts)
        self._clean = own_tables(self.parts, self._skeleton)
        self._tables: Tables = allocate(self._skeleton, self._clean.copy(), weights)

    @property
    def skeleton(self) -> Skeleton:
        return self._skeleton

    def _forward(self) -> float:
        return float(self._constant + forward(self._skeleton, self._tables))

    def _backward(self, step: float, weight_rate: float) -> None:
        backward(self._skeleton, self._tables, step, weight_rate)

    def _keep(self) -> None:
        tables = self._tables
        self._kept = tables.own.copy(), tables.weights.copy(), tables.shift.copy()

    def _restore(self) -> None:
        tables = self._tables
        tables.own[:], tables.weights[:], tables.shift[:] = self._kept

    def conditionals(self) -> Conditionals:
        """The best bound as a proposal: exp(F_c - m_c) of every clique, from clean tables.

        log p~(x) = log U + sum_c log of its entries at x, as real numbers: messages are added once
        and taken away once, so nothing that was rounded in them matters. The descent goes on from
        the best bound afterwards.
        """
        skel, tables = self._skeleton, self._tables
        self._restore()
        tables.own[:] = self._clean
        apply_shifts(skel, tables)
        log_u = self._forward()
        out = np.empty(int(skel.table_ptr[-1]), dtype=np.float32)
        magnitude = conditionals(skel, tables, out) + abs(self._constant)
        self._keep()
        return Conditionals(log_u, out, tables.weights.copy(), float(magnitude))

    def evidence(self, numbers: NDArray[np.int64]) -> CliquesEvidence:
        parts, (_, weights, shift) = self.parts, self._kept
        names = numbers.tolist()
        return CliquesEvidence(
            order=numbers[parts.order],
            scopes=tuple(tuple(names[v] for v in scope) for scope in parts.cliques),
            factors=parts.sources,
            parents=parts.parents,
            weights=weights,
            pairs=self._skeleton.pairs,
            shift_ptr=self._skeleton.shift_ptr,
            shifts=shift,
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
