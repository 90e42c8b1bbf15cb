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
        for states, members in _by_states(self.model):
            code = np.zeros((len(rows), members.size), dtype=np.int64)
            for k in range((states - 1).bit_length()):
                code = 2 * code + rows[:, self.ptr[members] + k]
            out[:, members] = state_of_code(states)[code]
        return out

    def marginals_from_products(self, means: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """One probability vector per variable from the means of products of its bits' spins.

        `means` lists E[chi_a] for the non-empty subsets a of each variable's bits, as binary
        numbers; P(code) = 2^-k sum_a chi_a(code) E[chi_a].
        """
        first = np.concatenate([[0], np.cumsum(2 ** np.diff(self.ptr) - 1)])
        out: list[NDArray[np.float64]] = [np.ones(1)] * self.model.n_variables
        for states, members in _by_states(self.model):
            count = (states - 1).bit_length()
            codes = 1 << count
            chi = np.ones((members.size, codes))
            chi[:, 1:] = means[first[members][:, None] + np.arange(codes - 1)]
            chi = chi.reshape(members.size, *(2,) * count)
            for axis in range(1, chi.ndim):
                even, odd = np.take(chi, 0, axis=axis), np.take(chi, 1, axis=axis)
                chi = np.stack([even + odd, even - odd], axis=axis)
            total = np.zeros((members.size, states))
            np.add.at(total.T, state_of_code(states), chi.reshape(members.size, codes).T / codes)
            for v, vector in zip(members.tolist(), np.maximum(total, 0.0), strict=True):  # rounding
                out[v] = vector
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


def _by_states(model: FactorGraph) -> list[tuple[int, NDArray[np.int64]]]:
    """(number of states, variables of so many) for every number that occurs."""
    cards = model.cardinalities
    return [(int(d), np.flatnonzero(cards == d)) for d in np.unique(cards)]


def _edges(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def bit_counts(cardinalities: NDArray) -> NDArray[np.int64]:
    """ceil(log2 d) for each number of states d, in whole numbers."""
    distinct, place = np.unique(cardinalities, return_inverse=True)
    return np.array([(int(d) - 1).bit_length() for d in distinct], dtype=np.int64)[place]


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
    # One factor more on the bits of each variable whose states share codes.
    groups = [(d, vs) for d, vs in _by_states(model) if d & (d - 1)]
    spare = np.sort(np.concatenate([np.zeros(0, np.int64), *(vs for _, vs in groups)]))
    widths = np.concatenate([width.astype(np.int64), counts[spare]])
    scope_ptr, table_ptr = _edges(widths), _edges(1 << widths)
    scopes, tables = np.empty(scope_ptr[-1], np.int64), np.empty(table_ptr[-1])

    def fill(factors: NDArray[np.int64], named: NDArray[np.int64], logs: NDArray) -> None:
        flat = logs.reshape(len(factors), -1)
        scopes[scope_ptr[factors][:, None] + np.arange(named.shape[1])] = named
        tables[table_ptr[factors][:, None] + np.arange(flat.shape[1])] = flat

    for fs, given, logs in model.batches():
        named = [np.zeros((len(fs), 0), np.int64)]
        for axis, d in enumerate(logs.shape[1:]):
            logs = np.take(logs, state_of_code(d), axis=axis + 1)
            named.append(ptr[given[:, axis]][:, None] + np.arange((d - 1).bit_length()))
        fill(fs, np.concatenate(named, axis=1), logs)
    for d, members in groups:
        code = state_of_code(d)
        shared = -np.log(np.bincount(code, minlength=d)[code])
        own = ptr[members][:, None] + np.arange((d - 1).bit_length())
        places = model.n_factors + np.searchsorted(spare, members)
        fill(places, own, np.broadcast_to(shared, (members.size, shared.size)))
    binary = FactorGraph.from_arrays(
        np.full(int(ptr[-1]), 2), scope_ptr, scopes, table_ptr, tables, name=model.name
    )
    return BitModel(model, binary, ptr)
