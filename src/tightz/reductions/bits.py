"""Multi-valued variables as bits: the same Z over binary variables, no constraint added.

A variable of d states takes k = ceil(log2 d) bits. Codes 0 to d-1 are the states; each of the
2^k - d spare codes repeats a state, and the codes of one state share its weight equally: a factor
of -log(number of codes) is added on the variable's bits. So the sum over codes is the sum over
states. Guarantees stated for n binary variables hold with n = the number of bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError, UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import MAX_ARITY, SpinPolynomial


@dataclass(frozen=True, eq=False, repr=False)
class BitModel:
    """`binary` has variable v's bits at ptr[v] to ptr[v+1], most significant first.

    log Z of `binary` is log Z of `model`. A one-state variable has no bits.
    """

    model: FactorGraph
    binary: FactorGraph
    ptr: NDArray[np.int64]

    def states(self, bits: NDArray) -> NDArray[np.int64]:
        """(S, n) states of the model's variables from rows of bits (S, bits)."""
        rows = np.atleast_2d(np.asarray(bits, dtype=np.int64))
        out = np.zeros((len(rows), self.model.n_variables), dtype=np.int64)
        for v, states in enumerate(self.model.cardinalities):
            code = np.zeros(len(rows), dtype=np.int64)
            for b in range(self.ptr[v], self.ptr[v + 1]):
                code = 2 * code + rows[:, b]
            out[:, v] = state_of_code(int(states))[code]
        return out

    def marginals_from_products(self, means: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """One probability vector per variable from the means of products of its bits' spins.

        `means` lists E[chi_a] for the non-empty subsets a of each variable's bits, as binary
        numbers; P(code) = 2^-k sum_a chi_a(code) E[chi_a].
        """
        out, at = [], 0
        for v, states in enumerate(self.model.cardinalities):
            count = int(self.ptr[v + 1] - self.ptr[v])
            codes = 1 << count
            chi = np.concatenate([[1.0], means[at : at + codes - 1]]).reshape((2,) * count)
            at += codes - 1
            for axis in range(chi.ndim):
                even, odd = np.take(chi, 0, axis=axis), np.take(chi, 1, axis=axis)
                chi = np.stack([even + odd, even - odd], axis=axis)
            total = np.zeros(int(states))
            np.add.at(total, state_of_code(int(states)), chi.ravel() / codes)
            out.append(np.maximum(total, 0.0))  # rounding
        return out

    def __repr__(self) -> str:
        return f"BitModel({self.model!r} in {self.binary.n_variables} bits)"


@dataclass(frozen=True, eq=False, repr=False)
class BlockPolynomial(SpinPolynomial):
    """A polynomial whose spins are bits of larger variables: spins of one block are one variable's.

    `blocks` (n,) is ascending. Families that keep a table per variable read it.
    """

    blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, poly: SpinPolynomial, blocks: NDArray[np.int64]) -> BlockPolynomial:
        """The same polynomial with its blocks."""
        return cls(poly.n, poly.constant, poly.ptr, poly.spins, poly.theta, blocks)

    def carried(self, poly: SpinPolynomial, kept: NDArray[np.int64]) -> BlockPolynomial:
        """The blocks on `poly`, whose spins are this one's spins `kept`: what a collapse leaves."""
        return BlockPolynomial.of(poly, self.blocks[kept])


def bit_counts(cardinalities: NDArray) -> NDArray[np.int64]:
    """ceil(log2 d) for each number of states d, in whole numbers."""
    return np.array([(int(d) - 1).bit_length() for d in cardinalities], dtype=np.int64)


def state_of_code(states: int) -> NDArray[np.int64]:
    """The state that each code stands for: itself, or for a spare code one of the first states."""
    codes = np.arange(1 << (states - 1).bit_length())
    return np.where(codes < states, codes, codes - states)


def to_bits(model: FactorGraph) -> BitModel:
    """Write every variable in bits; refuses a factor of more than 16 bits. No evidence allowed."""
    if model.evidence:
        raise ModelError(
            f"the model has evidence on {len(model.evidence)} variables; expected none here. Pass "
            "model.condition()"
        )
    counts = bit_counts(model.cardinalities)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    width = np.bincount(owner, counts[model.scope_vars], minlength=model.n_factors)
    if (width > MAX_ARITY).any():
        f = int(np.argmax(width))
        raise UnsupportedModelError(
            f"factor {f} over variables {model.factor(f).scope} takes {width[f]:.0f} bits, so up "
            f"to 2^{width[f]:.0f} terms; expected at most {MAX_ARITY} bits. tz.log_partition "
            "and tz.exact take the variables as they are"
        )
    factors: list[tuple[list[int], NDArray[np.float64]]] = []
    bits = [list(range(ptr[v], ptr[v + 1])) for v in range(model.n_variables)]
    codes = [state_of_code(int(d)) for d in model.cardinalities]
    for scope, table in model.factors:
        expanded = table[np.ix_(*(codes[v] for v in scope))] if scope else table
        named = [b for v in scope for b in bits[v]]
        factors.append((named, expanded.reshape((2,) * len(named))))
    for v, states in enumerate(model.cardinalities):
        shared = np.bincount(codes[v], minlength=int(states))[codes[v]]
        if (shared > 1).any():
            factors.append((bits[v], -np.log(shared).reshape((2,) * len(bits[v]))))
    binary = FactorGraph(np.full(int(ptr[-1]), 2), factors, name=model.name)
    return BitModel(model, binary, ptr)
