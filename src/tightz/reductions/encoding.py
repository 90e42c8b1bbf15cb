"""From a model to the spins that the methods work on, and back to the model's variables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import Observed, observe
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.gf2 import unpack
from tightz.reductions.affine import absorb
from tightz.reductions.bits import BitModel, BlockPolynomial, state_of_code, to_bits

Expectations = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.float64]]
"""(ptr, spins) -> E_q[prod of spins[ptr[a]:ptr[a+1]]] for each a."""

Model = FactorGraph | SpinPolynomial


class Products(NamedTuple):
    """signs[a] times the product of spins[ptr[a]:ptr[a+1]]: what marginals follow from."""

    ptr: NDArray[np.int64]
    spins: NDArray[np.int32]
    signs: NDArray[np.float64]

    def are_spins(self, n: int) -> bool:
        """Whether product i is spin i of n, and nothing else."""
        return (
            self.signs.size == self.spins.size == n
            and bool((self.signs == 1.0).all())
            and np.array_equal(self.spins, np.arange(n))
        )


def mean_products(products: Products, spin_means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The products' means where the spins are independent."""
    owner = np.repeat(np.arange(products.signs.size), np.diff(products.ptr))
    values = products.signs.copy()
    with np.errstate(invalid="ignore"):  # NaN where Z = 0
        np.multiply.at(values, owner, np.asarray(spin_means, dtype=np.float64)[products.spins])
    return values


@dataclass(frozen=True, eq=False)
class SpinEncoding:
    """A model's polynomial over the spins of its unobserved variables.

    `variables[i]` is the model variable behind spin i; observed and one-state variables have no
    spin (`observed` puts them back; None for a polynomial), and one of more than two states
    (`multivalued`) has several: `bits` knows which. State 0 of a binary variable is spin +1.

    Where zeros are parities, `coset` writes all spins as signed products of the free ones, and
    the polynomial is over the free ones; `variables` is then -1 for a free bit of a larger
    variable, whose other bits may follow. `reason` says why Z = 0 where zeros contradict.
    """

    model: Model
    polynomial: SpinPolynomial
    variables: NDArray[np.int64]
    observed: Observed | None = None
    bits: BitModel | None = None
    coset: Coset | None = None
    reason: str = ""

    @property
    def direct(self) -> bool:
        """Whether spin i is variable `variables[i]` itself: nothing in bits, nothing solved."""
        return self.bits is None and self.coset is None

    def marginals(self, spin_means: NDArray[np.float64]) -> Any:
        """The probability of each state of every model variable, evidence included.

        An array (n, 2), or (n, d) where all variables have d states, otherwise a list of vectors.
        The polynomial's spins are taken as independent, which is what q says where q is a product
        over them; otherwise spins that follow from several others, and variables of several
        bits, are approximations. `marginals_of` has no such limit.
        """
        return self.from_products(mean_products(self.products, spin_means))

    def marginals_of(self, expectations: Expectations) -> Any:
        """The same from q itself: `expectations(ptr, spins)` gives E_q of products of spins."""
        ptr, spins, signs = self.products
        return self.from_products(signs * expectations(ptr, spins))

    def spin_means(self, marginals: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """(n,) means of the polynomial's spins from marginals of the model's variables.

        The spare codes of a variable in bits have equal parts of their state's probability.
        """
        observed = self.observed
        kept = self.variables if observed is None else observed.kept
        if self.bits is None:
            means = np.array([marginals[i][0] - marginals[i][1] for i in kept])
        else:
            means = np.concatenate([np.zeros(0), *(_bit_means(marginals[i]) for i in kept)])
        return means if self.coset is None else means[self.coset.free]

    def spins_of(self, states: NDArray) -> NDArray[np.int8] | None:
        """(S, n) the polynomial's spins in rows of the model's states; None where those are bits.

        Where zeros are parities the states must obey them.
        """
        if self.bits is not None:
            return None
        kept = self.variables if self.observed is None else self.observed.kept
        spins: NDArray[np.int8] = 1 - 2 * np.asarray(states)[:, kept].astype(np.int8)
        return spins if self.coset is None else spins[:, self.coset.free]

    def lift_states(self, spins: NDArray) -> NDArray[np.int64]:
        """(S, n) states of the model's variables from rows of the polynomial's spins."""
        rows = np.atleast_2d(spins)
        if self.coset is not None:
            rows = self.coset.spins_from_free(rows)
        states: NDArray[np.int64] = (1 - rows.astype(np.int64)) // 2
        if self.observed is None:
            return states
        return self.observed.lift_states(states if self.bits is None else self.bits.states(states))

    @cached_property
    def products(self) -> Products:
        """Products of the polynomial's spins whose means give all marginals: CSR and signs.

        They are chi_a for the non-empty subsets a of each variable's bits, variable by variable.
        """
        total = self.polynomial.n if self.coset is None else self.coset.polynomial.n
        if self.bits is None and self.coset is None:
            return Products(np.arange(total + 1), np.arange(total, dtype=np.int32), np.ones(total))
        if self.bits is None:
            subsets = [[i] for i in range(total)]
        else:
            edges = self.bits.ptr.tolist()
            subsets = [a for low, high in itertools.pairwise(edges) for a in _subsets(low, high)]
        ptr = np.concatenate([[0], np.cumsum([len(a) for a in subsets])]).astype(np.int64)
        spins = np.array([i for a in subsets for i in a], dtype=np.int32)
        if self.coset is None:
            return Products(ptr, spins, np.ones(len(subsets)))
        words, signs = self.coset.images(ptr, spins)
        members = [np.flatnonzero(row) for row in unpack(words, self.coset.n_free)]
        ptr = np.concatenate([[0], np.cumsum([m.size for m in members])]).astype(np.int64)
        spins = np.concatenate([np.zeros(0, np.int32), *members]).astype(np.int32)
        return Products(ptr, spins, signs)

    @property
    def product_of_spin(self) -> NDArray[np.int64]:
        """Which of `products` is spin i of the polynomial by itself."""
        spin = np.arange(self.polynomial.n) if self.coset is None else self.coset.free
        if self.bits is None:
            return spin
        counts = np.diff(self.bits.ptr)
        owner = np.repeat(np.arange(counts.size), counts)[spin]
        first = np.concatenate([[0], np.cumsum(2**counts - 1)])
        code = 1 << (counts[owner] - 1 - (spin - self.bits.ptr[owner]))
        at: NDArray[np.int64] = first[owner] + code - 1
        return at

    def from_products(self, means: NDArray[np.float64]) -> Any:
        """Marginals of the model's variables from the means of `products`."""
        pairs = np.stack([(1.0 + means) / 2.0, (1.0 - means) / 2.0], axis=1)
        if self.observed is None:
            return pairs
        cards = self.observed.model.cardinalities
        if self.bits is None and self.observed.kept.size == cards.size:
            return pairs
        tables = list(pairs) if self.bits is None else self.bits.marginals_from_products(means)
        vectors = self.observed.lift_marginals(tables)
        if cards.max(initial=0) == 2:  # one column more for variables of a single state
            return np.array([v if v.size == 2 else [1.0, 0.0] for v in vectors])
        return np.array(vectors) if np.unique(cards).size == 1 else vectors

    def spread(self, of_products: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) standard deviation of P(state 1) per model variable; 0 where it is certain.

        For a variable of several bits the largest over the products of its bits.
        """
        half = np.asarray(of_products, dtype=np.float64) / 2.0
        if self.observed is None:
            return half
        many = 1 if self.bits is None else 2 ** np.diff(self.bits.ptr) - 1
        out = np.zeros(self.observed.model.n_variables)
        with np.errstate(invalid="ignore"):  # NaN where Z = 0
            np.maximum.at(out, np.repeat(self.observed.kept, many), half)
        return out


def encode(model: Model, *, multivalued: bool = False) -> SpinEncoding:
    """Observe the evidence and expand what remains; refuses tables with zeros.

    `multivalued` is for callers that ask for Z and marginals alone. Variables of more than two
    states are then written in bits, which keeps Z (the heaviest state in bits need not be the
    heaviest of the model: the codes of one state share its weight), and zeros that are parities
    are solved, so that spin i need not be a variable of the model.
    """
    if isinstance(model, SpinPolynomial):
        return SpinEncoding(model, model, np.arange(model.n))
    observed = observe(model)
    reduced, variables = observed.reduced, observed.kept
    if not multivalued:
        polynomial = SpinPolynomial.from_factor_graph(reduced)
        return SpinEncoding(model, polynomial, variables, observed)
    # Order matters: evidence first, then bits, then the parities among the zeros of the bit
    # tables.
    bits = to_bits(reduced) if (reduced.cardinalities > 2).any() else None
    binary = reduced if bits is None else bits.binary
    owner = variables if bits is None else np.repeat(variables, np.diff(bits.ptr))
    if not binary.has_zeros:
        polynomial, coset, reason = SpinPolynomial.from_factor_graph(binary), None, ""
    else:
        solved = absorb(binary)
        polynomial, coset, reason = solved.polynomial, solved.coset, solved.reason
        owner = owner[coset.free]
    if bits is not None:
        polynomial = BlockPolynomial.of(polynomial, owner)
        if coset is not None:
            owner = np.where(model.cardinalities[owner] > 2, -1, owner)
    return SpinEncoding(model, polynomial, owner, observed, bits, coset, reason)


def _bit_means(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of (-1)^bit for each bit of a variable's code, the leading one first."""
    states = state_of_code(vector.size)
    codes = np.arange(states.size)
    each = (vector / np.bincount(states, minlength=vector.size))[states]
    count = states.size.bit_length() - 1
    bits = codes[None, :] >> np.arange(count - 1, -1, -1)[:, None] & 1
    means: NDArray[np.float64] = (1.0 - 2.0 * bits) @ each
    return means


def _subsets(low: int, high: int) -> list[list[int]]:
    """The non-empty subsets of bits low..high-1, as numbers whose first bit is the highest."""
    bits = range(low, high)
    count = high - low
    return [
        [b for j, b in enumerate(bits) if code >> (count - 1 - j) & 1]
        for code in range(1, 1 << count)
    ]


def model_digest(model: Model) -> str:
    """The model's identity, for provenance."""
    if isinstance(model, FactorGraph):
        return model.digest
    import hashlib

    h = hashlib.sha256(f"{model.n} {model.constant!r}".encode())
    for array in (model.ptr, model.spins, model.theta):
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()
