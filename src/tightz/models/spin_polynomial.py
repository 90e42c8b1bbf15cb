"""The Walsh expansion: log p~ = constant + sum_a theta_a * prod_{i in a} s_i, spins s = 1 - 2x."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_index, as_model, as_number
from tightz.runtime.kernels import kernel

MAX_ARITY = 16
"""A factor of arity r may give 2^r terms; wider factors are refused."""

_BLOCK = 256
"""States weighed side by side: the block of spins stays in cache and the lane loops vectorise."""


@dataclass(frozen=True, eq=False, repr=False)
class SpinPolynomial:
    """Term a covers spins `spins[ptr[a]:ptr[a+1]]` (ascending) with coefficient `theta[a]`.

    Terms are distinct, non-empty and sorted by arity. `constant` is -inf for a model whose
    partition function is zero.
    """

    model_kind: ClassVar[str] = "SpinPolynomial"
    n: int
    constant: float
    ptr: NDArray[np.int64]
    spins: NDArray[np.int32]
    theta: NDArray[np.float64]

    @property
    def n_terms(self) -> int:
        return int(self.theta.size)

    @cached_property
    def arities(self) -> NDArray[np.int64]:
        return np.diff(self.ptr)

    @property
    def degree(self) -> int:
        return int(self.arities.max(initial=0))

    @classmethod
    def from_terms(
        cls, n: int, constant: float, terms: Iterable[tuple[Iterable[int], float]]
    ) -> SpinPolynomial:
        """Build from (spins, theta) pairs; repeated spins cancel (s^2 = 1), equal terms merge."""
        by_arity: dict[int, tuple[list[list[int]], list[float]]] = {}
        for members, theta in terms:
            odd: set[int] = set()
            for i in members:
                odd ^= {as_index(i, "a spin of a term")}
            if any(not 0 <= i < n for i in odd):
                raise ModelError(f"term {sorted(odd)} names a spin outside 0 to {n - 1}")
            rows, thetas = by_arity.setdefault(len(odd), ([], []))
            rows.append(sorted(odd))
            thetas.append(as_number(theta, f"the coefficient of term {sorted(odd)}"))
        blocks = [
            (np.array(rows, dtype=np.int64).reshape(len(rows), arity), np.array(thetas))
            for arity, (rows, thetas) in by_arity.items()
        ]
        return cls.from_blocks(n, constant, blocks)

    @classmethod
    def from_blocks(
        cls, n: int, constant: float, blocks: Iterable[tuple[NDArray, NDArray]]
    ) -> SpinPolynomial:
        """Build from arrays: each block is (rows of ascending spins (T, arity), theta (T,))."""
        by_arity: dict[int, list[tuple[NDArray, NDArray]]] = {}
        for rows, theta in blocks:
            if rows.shape[1] == 0:
                constant += float(theta.sum())
            elif len(rows):
                by_arity.setdefault(rows.shape[1], []).append((rows, theta))
        arities: list[int] = []
        spins: list[NDArray] = []
        thetas: list[NDArray] = []
        for arity in sorted(by_arity):
            rows = np.concatenate([r for r, _ in by_arity[arity]])
            theta = np.concatenate([t for _, t in by_arity[arity]])
            rows, theta = _merge_equal(rows, theta, n)
            spins.append(rows.ravel())
            thetas.append(theta)
            arities += [arity] * len(rows)
        return cls(
            n=n,
            constant=float(constant),
            ptr=np.concatenate([[0], np.cumsum(arities, dtype=np.int64)]).astype(np.int64),
            spins=np.concatenate(spins).astype(np.int32) if spins else np.zeros(0, np.int32),
            theta=np.concatenate(thetas) if thetas else np.zeros(0),
        )

    @classmethod
    def from_factor_graph(cls, model: FactorGraph) -> SpinPolynomial:
        """Walsh-Hadamard transform of every log table, equal terms merged. Evidence must be gone.

        A model with a table that is zero everywhere becomes the constant -inf.
        """
        as_model(model, "SpinPolynomial.from_factor_graph", only="FactorGraph")
        n = model.n_variables
        if model.evidence:
            raise ModelError(
                f"the model has evidence on {len(model.evidence)} variables; expected none here. "
                "Pass model.condition()"
            )
        if (model.cardinalities > 2).any():
            v = int(np.argmax(model.cardinalities > 2))
            raise UnsupportedModelError(
                f"variable {v} has {model.cardinalities[v]} states; this method takes binary "
                "models. tz.log_partition and tz.exact take any discrete model"
            )
        if (model.cardinalities < 2).any():
            v = int(np.argmax(model.cardinalities < 2))
            raise ModelError(
                f"variable {v} has a single state; this method expects 2. Observe it: "
                f"model.with_evidence({{{v}: 0}}).condition()"
            )
        # A log table over r spins is a polynomial of 2^r terms (its Walsh expansion); tables with
        # a zero have none, and are refused rather than approximated.
        blocks: list[tuple[NDArray, NDArray]] = []
        zeros: list[int] = []
        for indices, scopes, tables in model.batches():
            flat = tables.reshape(len(indices), -1)
            if (flat == -np.inf).all(axis=1).any():
                return cls.from_blocks(n, -np.inf, [])
            has_zero = (flat == -np.inf).any(axis=1)
            if has_zero.any():
                zeros.append(int(indices[has_zero].min()))
                continue
            arity = scopes.shape[1]
            if arity > MAX_ARITY:
                raise UnsupportedModelError(
                    f"factor {indices[0]} has arity {arity}, so up to 2^{arity} terms; expected "
                    f"arity at most {MAX_ARITY}. tz.log_partition and tz.exact may still work"
                )
            blocks += _walsh_blocks(scopes, tables)
        if zeros:
            raise UnsupportedModelError(
                f"factor {min(zeros)} has zero entries (hard constraints), which have no finite "
                "Walsh expansion; this method takes positive models. tz.log_partition and tz.exact "
                "take zeros"
            )
        return cls.from_blocks(n, 0.0, blocks)

    def log_weight(self, spins: ArrayLike) -> NDArray[np.float64]:
        """log p~(s) for each row of `spins` (S, n), entries +1 or -1."""
        s = np.atleast_2d(np.asarray(spins))
        if s.ndim != 2 or s.shape[1] != self.n or s.dtype.kind not in "fiu":
            raise ModelError(
                f"spins have shape {s.shape} and type {s.dtype}; expected rows of {self.n} numbers "
                "+1 or -1"
            )
        total = np.full(len(s), self.constant)
        for first in range(0, len(s), _BLOCK):
            block = np.array(s[first : first + _BLOCK].T, dtype=np.float64, order="C")
            _add_terms(self.ptr, self.spins, self.theta, block, total[first : first + _BLOCK])
        return total

    def flip_costs(self, spins: ArrayLike) -> NDArray[np.float64]:
        """How much log p~ falls when spin i of the state `spins` (n,) is flipped, for each i."""
        s = np.asarray(spins, dtype=np.float64)
        costs = np.zeros(self.n)
        for _, rows, theta in self.by_arity():
            products = 2.0 * theta * s[rows].prod(axis=1)
            for column in rows.T:
                costs += np.bincount(column, products, minlength=self.n)
        return costs

    def by_arity(self) -> Iterable[tuple[int, NDArray[np.int32], NDArray[np.float64]]]:
        """(arity, rows (T, arity), theta (T,)) for each arity present, ascending."""
        for arity in np.unique(self.arities):
            which = np.flatnonzero(self.arities == arity)
            yield (
                int(arity),
                self.spins[self.ptr[which][:, None] + np.arange(arity)],
                self.theta[which],
            )

    def __repr__(self) -> str:
        return f"SpinPolynomial({self.n} spins, {self.n_terms} terms of degree up to {self.degree})"


@kernel
def _add_terms(ptr, spins, theta, s, total):  # type: ignore[no-untyped-def]
    """total[lane] += sum_a theta_a prod_{i in a} s[i, lane]; s (n, lanes)."""
    lanes = s.shape[1]
    product = np.empty(lanes)
    for a in range(theta.size):
        for r in range(lanes):
            product[r] = theta[a]
        for p in range(ptr[a], ptr[a + 1]):
            i = spins[p]
            for r in range(lanes):
                product[r] *= s[i, r]
        for r in range(lanes):
            total[r] += product[r]


def _walsh_blocks(scopes: NDArray, tables: NDArray) -> list[tuple[NDArray, NDArray]]:
    """theta_a = 2^-r sum_x log t(x) chi_a(x) for all subsets a of each scope (F, r)."""
    count, arity = scopes.shape
    # The fast transform, one axis after the other: (mean, half difference) of the two entries is
    # the expansion in 1 and s along that axis, since s = +1 at state 0 and -1 at state 1.
    theta = np.array(tables, dtype=np.float64)
    for axis in range(1, arity + 1):
        zero, one = np.take(theta, 0, axis=axis), np.take(theta, 1, axis=axis)
        # Halves first: the sum of two large entries must not overflow.
        theta = np.stack([zero / 2 + one / 2, zero / 2 - one / 2], axis=axis)
    theta = theta.reshape(count, -1)
    blocks = []
    # Axis j of the table is bit arity - 1 - j of the flat index (C order).
    for subset in range(2**arity):
        columns = [j for j in range(arity) if subset >> (arity - 1 - j) & 1]
        blocks.append((np.sort(scopes[:, columns], axis=1), theta[:, subset]))
    return blocks


def _merge_equal(rows: NDArray, theta: NDArray, n: int) -> tuple[NDArray, NDArray]:
    """Sum the coefficients of equal rows, drop those that vanish, sort lexicographically."""
    arity = rows.shape[1]
    if arity * np.log2(max(n, 2)) < 62:
        key = np.ravel_multi_index(tuple(rows.T), (n,) * arity)
        unique, inverse = np.unique(key, return_inverse=True)
        merged = np.stack(np.unravel_index(unique, (n,) * arity), axis=1)
    else:
        merged, inverse = np.unique(rows, axis=0, return_inverse=True)
    total = np.bincount(inverse.ravel(), theta, minlength=len(merged))
    keep = total != 0.0
    return merged[keep], total[keep]
