"""A region of the space: some spins fixed, some tied in pairs; and the model restricted to it.

Every parity of one or two spins makes a spin a constant or a signed copy of another, so a
polynomial restricted to a region is again a polynomial over the spins left, of no larger degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial

Parity = tuple[int, ...]
"""The spins whose product is split on: one of them or two."""

CONSTANT = -1


@dataclass(frozen=True, eq=False)
class Region:
    """The states with s_i = sign_i * s_rep_i, or s_i = sign_i where rep_i is CONSTANT.

    rep    (n,) the free spin that spin i copies: itself if it is free
    sign   (n,) +1 or -1
    """

    rep: NDArray[np.int64]
    sign: NDArray[np.int8]

    @classmethod
    def whole(cls, n: int) -> Region:
        """The whole space of n spins."""
        return cls(np.arange(n), np.ones(n, dtype=np.int8))

    def restrict(self, parity: Parity, sign: int) -> Region:
        """The part where the product of one or two different free spins is `sign`."""
        rep, signs = self.rep.copy(), self.sign.copy()
        moved = rep == parity[-1]
        signs[moved] *= np.int8(sign)
        rep[moved] = parity[0] if len(parity) == 2 else CONSTANT
        return Region(rep, signs)

    @cached_property
    def free(self) -> NDArray[np.int64]:
        """Spins that are still free, ascending."""
        return np.flatnonzero(self.rep == np.arange(self.rep.size))

    @cached_property
    def pinned(self) -> NDArray[np.int64]:
        """Spins that are constant."""
        return np.flatnonzero(self.rep == CONSTANT)

    @cached_property
    def copies(self) -> NDArray[np.int64]:
        """Spins that copy another one."""
        return np.flatnonzero((self.rep != CONSTANT) & (self.rep != np.arange(self.rep.size)))

    def contains(self, spins: NDArray) -> NDArray[np.bool_]:
        """Which rows of `spins` (S, n) lie in the region."""
        return (self.complete(spins) == spins).all(axis=1)

    def complete(self, spins: NDArray) -> NDArray[np.int8]:
        """Keep the free spins of each row and let all others follow."""
        out = np.where(self.rep == CONSTANT, 1, spins[:, np.maximum(self.rep, 0)]) * self.sign
        return out.astype(np.int8)

    def lifted(self, kept: NDArray[np.int64], n: int) -> Region:
        """The same region in a model of n spins of which `kept` are these."""
        whole = Region.whole(n)
        rep, sign = whole.rep, whole.sign
        rep[kept] = np.where(self.rep == CONSTANT, CONSTANT, kept[np.maximum(self.rep, 0)])
        sign[kept] = self.sign
        return Region(rep, sign)

    def restricted(self, poly: SpinPolynomial) -> SpinPolynomial:
        """`poly` over the free spins alone, numbered by their place in `free`."""
        number = np.full(self.rep.size + 1, -1, dtype=np.int64)
        number[self.free] = np.arange(self.free.size)
        image = number[self.rep]  # CONSTANT reads the last entry, -1
        sign = self.sign.astype(np.float64)
        constant = poly.constant
        blocks = []
        for _, rows, theta in poly.by_arity():
            values = theta * sign[rows].prod(axis=1)
            members = np.sort(image[rows], axis=1)
            for c in range(members.shape[1] - 1):  # s * s = 1: equal neighbours cancel in pairs
                equal = (members[:, c] == members[:, c + 1]) & (members[:, c] >= 0)
                members[equal, c : c + 2] = -1
            members.sort(axis=1)
            length = (members >= 0).sum(axis=1)
            for count in np.unique(length):
                some = length == count
                blocks.append((members[some, members.shape[1] - count :], values[some]))
        return SpinPolynomial.from_blocks(self.free.size, constant, blocks)


def as_factor_graph(poly: SpinPolynomial) -> FactorGraph:
    """A factor graph with the same weights; terms inside a larger one share its table."""
    scopes: list[tuple[int, ...]] = []
    tables: list[NDArray[np.float64]] = []
    holders: list[list[int]] = [[] for _ in range(poly.n)]
    spin = np.array([1.0, -1.0])
    for a in range(poly.n_terms - 1, -1, -1):
        members = poly.spins[poly.ptr[a] : poly.ptr[a + 1]].tolist()
        home = -1
        if len(members) <= 2 or poly.degree > 2:  # a pair of a pairwise model holds no other pair
            few = min((holders[i] for i in members), key=len)
            wanted = set(members)
            home = next((f for f in few if wanted <= set(scopes[f])), -1)
        if home < 0:
            home = len(scopes)
            scopes.append(tuple(members))
            tables.append(np.zeros((2,) * len(members)))
            for i in members:
                holders[i].append(home)
        shape = [2 if i in members else 1 for i in scopes[home]]
        chi = np.ones((1,) * len(shape))
        for axis, size in enumerate(shape):
            if size == 2:
                chi = chi * spin.reshape([-1 if d == axis else 1 for d in range(len(shape))])
        tables[home] += poly.theta[a] * chi
    factors = list(zip(scopes, tables, strict=True))
    return FactorGraph(np.full(poly.n, 2), [*factors, ((), np.array(poly.constant))])
