"""The bound of a structured q over free spins, from its conditional tables alone.

q(y) = prod_k q(y_k | y_{S_k}) over nodes k in an order where every member of S_k comes after k: a
Bayesian network, normalised whatever the tables hold once each pair is divided by its sum (the
judge does that: q *is* the normalised network). Marginals need S_k to lie in the bucket
{p} + S_p of its first member p, which is checked; then q(y_{S_k}) is a sum over that bucket.

The Walsh transform of a bucket's joint table holds the moments of all its subsets; a product that
no bucket holds is a sum-product in which its members carry their spins' signs, all such products
walked through the forest together. Products over different trees are products of means.

Rounding (u = 2^-53, first order, doubled at the end): probabilities are sums and products of
non-negative numbers, so their relative errors add up: a normalised entry 4 u (scale, sum, divide),
a joint 5 u more than the marginal above, a marginal u for each spin summed out; call it eps_k for
the joint of k. A moment is then within eps_k + (w + 1) u (butterflies over w spins of numbers that
add up to 1). A signed elimination over N nodes is within 7 N u of its exact value (at each node 4 u
for the entry, 1 for the product, 1 for the sum, 1 for taking it to the parent) and 2^w u for the
sum over the top's separator. What underflows is below 2^-1022 and drowned by the first u.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.spins import SpinMap, SpinTerms, combine, plogp, segment_products
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError

MAX_WIDTH = 24
"""Separators beyond this are refused: a table would have 2^25 entries."""

_MAX_ENTRIES = 1 << 22
"""Entries of signed messages at one node that are held at a time."""


@dataclass(frozen=True, eq=False)
class ForestQ:
    """Node k is free spin spin_of[k], its separator nodes sep[sep_ptr[k]:sep_ptr[k+1]], all > k.

    tables holds 2^(|S_k| + 1) entries a node: bit 0 of the index is k, bit j + 1 the j-th member
    of S_k (ascending); a set bit is spin -1.
    """

    chart: SpinMap
    spin_of: NDArray[np.int64]
    sep_ptr: NDArray[np.int64]
    sep: NDArray[np.int64]
    tables: NDArray[np.float64]

    def value(self, terms: SpinTerms) -> tuple[float, float]:
        """The bound of this q and its rounding, not yet subtracted."""
        self.chart.check()
        terms.check()
        self._check()
        if terms.impossible:
            return -np.inf, 0.0
        # Terms over the model's spins become signed products of free spins; only those are
        # expected under q.
        row, free, signs = self.chart.images(terms)
        expected, errors = self._expectations(row, self._node_of[free], signs.size)
        return combine(terms, signs * expected, errors, *self._entropy())

    @property
    def n(self) -> int:
        """Spins of the polynomial."""
        return self.chart.n

    @property
    def _nodes(self) -> int:
        return int(self.spin_of.size)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return np.diff(self.sep_ptr)

    @cached_property
    def _at(self) -> NDArray[np.int64]:
        """Where the pairs (k = +1, k = -1) of each node begin."""
        return np.concatenate([[0], np.cumsum(1 << self._sizes)]).astype(np.int64)

    @cached_property
    def _node_of(self) -> NDArray[np.int64]:
        out = np.empty(self._nodes, dtype=np.int64)
        out[self.spin_of] = np.arange(self._nodes)
        return out

    def _check(self) -> None:
        """RefutedError unless this is a network of known spins with tables of the right size."""
        n, sizes = self._nodes, self._sizes
        fits = n == self.chart.n_free and self.sep_ptr.size == n + 1
        fits = fits and self.sep_ptr[0] == 0 and self.sep_ptr[-1] == self.sep.size
        if not fits or not np.array_equal(np.sort(self.spin_of), np.arange(n)):
            raise RefutedError("the nodes of a forest are not the free spins, each once")
        if (sizes < 0).any() or sizes.max(initial=0) > MAX_WIDTH:
            raise RefutedError(f"a separator is wider than {MAX_WIDTH} spins")
        # Separators of later nodes only: the network has no directed cycle, so the product of
        # conditionals is a distribution, whatever the numbers in the tables.
        owner = np.repeat(np.arange(n), sizes)
        ascending = (np.diff(self.sep) > 0) | (np.diff(owner) > 0)
        if not ascending.all() or not ((self.sep > owner) & (self.sep < n)).all():
            raise RefutedError("a separator is not made of later nodes in ascending order")
        if self.tables.shape != (2 * int(self._at[-1]),):
            raise RefutedError("conditional tables have the wrong number of entries")
        if not ((self.tables >= 0.0) & (self.tables < np.inf)).all():
            raise RefutedError("a conditional table holds a number that is no weight")

    @cached_property
    def _pairs(self) -> NDArray[np.float64]:
        """(rows, 2) normalised conditionals; a row of zeros becomes one of halves."""
        pairs = np.asarray(self.tables, dtype=np.float64).reshape(-1, 2)
        tops = pairs.max(axis=1, keepdims=True, initial=0.0)
        # Scaled before the sum, so that neither overflow nor underflow of the maker's numbers can
        # spoil the division.
        scaled = np.where(tops > 0.0, pairs / np.where(tops > 0.0, tops, 1.0), 1.0)
        return scaled / scaled.sum(axis=1, keepdims=True)

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self._nodes), self._sizes) * self._nodes + self.sep

    def _places(self, node: NDArray, other: NDArray) -> NDArray[np.int64]:
        """Which bit of node's table is `other`; -1 where it is not in the bucket."""
        keys = node * self._nodes + other
        found = np.searchsorted(self._keys, keys)
        inside = found < self._keys.size
        inside[inside] = self._keys[found[inside]] == keys[inside]
        return np.where(node == other, 0, np.where(inside, found - self.sep_ptr[node] + 1, -1))

    @cached_property
    def _parents(self) -> NDArray[np.int64]:
        first = np.full(self._nodes, -1, dtype=np.int64)
        has = self._sizes > 0
        first[has] = self.sep[self.sep_ptr[:-1][has]]
        return first

    @cached_property
    def _places_above(self) -> NDArray[np.int64]:
        """Of each separator member, its bit in the table of the node's parent."""
        owner = np.repeat(np.arange(self._nodes), self._sizes)
        places = self._places(self._parents[owner], self.sep)
        if (places < 0).any():
            raise RefutedError("a separator does not lie in the bucket of its first member")
        return places

    @cached_property
    def _marginals(
        self,
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]], NDArray[np.float64]]:
        """(q(y_S_k), q(y_k, y_S_k) flat, relative error of the latter) for every node."""
        n, at, pairs = self._nodes, self._at.tolist(), self._pairs
        parents, ptr, places = self._parents.tolist(), self.sep_ptr.tolist(), self._places_above
        above: list[NDArray[np.float64]] = [np.ones(1)] * n
        joints: list[NDArray[np.float64]] = [np.ones(1)] * n
        eps = np.zeros(n)
        # Parents come later in the order, so walking backwards their joints are known: the
        # separator's marginal is the parent's joint with the other bits summed out.
        for k in range(n - 1, -1, -1):
            p = parents[k]
            if p >= 0:
                kept = set(places[ptr[k] : ptr[k + 1]].tolist())
                width = ptr[p + 1] - ptr[p] + 1
                table = joints[p]
                for bit in range(width - 1, -1, -1):
                    if bit not in kept:
                        halves = table.reshape(-1, 2, 1 << bit)
                        table = halves[:, 0] + halves[:, 1]
                above[k] = table.reshape(-1)
                eps[k] = eps[p] + UNIT * (width - len(kept))
            joints[k] = (above[k][:, None] * pairs[at[k] : at[k + 1]]).reshape(-1)
            eps[k] += 5 * UNIT
        return above, joints, eps

    def _entropy(self) -> tuple[NDArray[np.float64], float]:
        """(entropy of each conditional, averaged over what it depends on; the error of the sum)."""
        if not self._nodes:
            return np.zeros(0), 0.0
        above, _, eps = self._marginals
        parts, _ = plogp(self._pairs)
        # Chain rule: H(q) is the sum over nodes of the conditional's entropy, averaged over its
        # separator.
        rows = np.concatenate(above) * parts.sum(axis=1)
        each = np.add.reduceat(rows, self._at[:-1])
        # -p log p with p off by 4 u p: 4 u (p |log p| + p); products and sum of two: 4 u.
        relative = eps + LIBRARY + UNIT * (8.0 + (1 << self._sizes))
        return each, float((relative * each).sum()) + 5 * UNIT * self._nodes

    def _expectations(
        self, row: NDArray[np.int64], node: NDArray[np.int64], count: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(E_q of the product of each row's nodes, its absolute error)."""
        tree = self._trees[node]
        order = np.lexsort((node, tree, row))
        row, node, tree = row[order], node[order], tree[order]
        # Cut every product into pieces by tree: trees are independent under q, so means of pieces
        # multiply. A piece inside one bucket is a moment of its joint table; the rest goes through
        # the tree.
        starts = np.ones(row.size, dtype=bool)
        starts[1:] = (np.diff(row) != 0) | (np.diff(tree) != 0)
        first = np.flatnonzero(starts)
        piece = np.cumsum(starts) - 1
        home = node[first][piece]
        place = self._places(home, node)
        outside = np.zeros(first.size, dtype=bool)
        outside[piece[place < 0]] = True
        # The members are distinct, so adding powers of two sets bits.
        mask = np.zeros(first.size, dtype=np.int64)
        np.add.at(mask, piece, np.int64(1) << np.maximum(place, 0))
        _, _, eps = self._marginals
        means = self._moments(node[first], np.where(outside, 0, mask))
        errors = eps[node[first]] + UNIT * (self._sizes[node[first]] + 2.0)
        if outside.any():
            long = ~np.repeat(~outside, np.diff(np.append(first, row.size)))
            number = np.cumsum(outside) - 1
            means[outside] = self._signed(number[piece[long]], node[long], int(outside.sum()))
            errors[outside] = eps.max() + UNIT * (7.0 * self._nodes + (1 << int(self._sizes.max())))
        pieces = np.bincount(row[first], minlength=count)
        total = np.bincount(row[first], errors + UNIT, minlength=count).astype(np.float64)
        return segment_products(means, pieces), total

    @cached_property
    def _trees(self) -> NDArray[np.int64]:
        """The root of each node."""
        root = np.arange(self._nodes)
        for k in range(self._nodes - 1, -1, -1):
            if self._parents[k] >= 0:
                root[k] = root[self._parents[k]]
        return root

    def _moments(self, node: NDArray, mask: NDArray) -> NDArray[np.float64]:
        """E_q[prod of the spins of `mask` in the bucket of `node`], by Walsh transforms."""
        _, joints, _ = self._marginals
        out = np.empty(node.size)
        used = np.unique(node)
        for size in np.unique(self._sizes[used]).tolist():
            group = used[self._sizes[used] == size]
            table = np.stack([joints[k] for k in group.tolist()])
            # Butterflies over a joint table: entry m of the result is E of the product of the
            # spins in mask m.
            for bit in range(size + 1):
                halves = table.reshape(len(group), -1, 2, 1 << bit)
                a, b = halves[:, :, 0], halves[:, :, 1]
                table = np.stack([a + b, a - b], axis=2)
            table = table.reshape(len(group), -1)
            chosen = np.flatnonzero(self._sizes[node] == size)
            out[chosen] = table[np.searchsorted(group, node[chosen]), mask[chosen]]
        return out

    def _signed(self, piece: NDArray, node: NDArray, count: int) -> NDArray[np.float64]:
        """E_q of products within one tree that no bucket holds, in groups that fit in memory."""
        step = max(1, _MAX_ENTRIES >> int(self._sizes.max(initial=0) + 1))
        out = np.empty(count)
        for low in range(0, count, step):
            high = min(low + step, count)
            some = (piece >= low) & (piece < high)
            members = [x.astype(np.int64).tobytes() for x in (piece[some] - low, node[some])]
            out[low:high] = self._signed_group(_walk(self._parents.tobytes(), *members), high - low)
        return out

    def _signed_group(self, walk: list[_Stop], count: int) -> NDArray[np.float64]:
        """Signed messages up the forest, E[members at or below k | y_S_k], all pieces at once."""
        above, _, _ = self._marginals
        at, ptr, places = self._at.tolist(), self.sep_ptr.tolist(), self._places_above.tolist()
        waiting: dict[int, NDArray[np.float64]] = {}
        out = np.empty(count)
        # Ascending order visits children before parents. A message carries E[product of members at
        # or below k | separator]; a member's own spin enters as a sign on its entries.
        for stop in walk:
            k = stop.node
            size = 2 * (at[k + 1] - at[k])
            product = np.ones((size, stop.signs.size))
            for child, here, there in stop.sent:
                spread = _spread(tuple(places[ptr[child] : ptr[child + 1]]), size)
                product[:, here] *= waiting.pop(child).take(there, axis=1).take(spread, axis=0)
            pair = self._pairs[at[k] : at[k + 1]]
            below = product[0::2] * pair[:, :1] + product[1::2] * (pair[:, 1:] * stop.signs)
            # All members are below: what is left of the tree sums to 1, so the mean over the
            # separator ends it.
            out[stop.ended] = above[k] @ below[:, stop.ended_columns]
            waiting[k] = np.concatenate([below, np.ones((len(below), 1))], axis=1)
        return out


@lru_cache(maxsize=4096)
def _spread(places: tuple[int, ...], size: int) -> NDArray[np.int64]:
    """For each entry of a parent's table, the entry of the separator at `places` it belongs to."""
    index = np.arange(size)
    out = np.zeros(size, dtype=np.int64)
    for j, place in enumerate(places):
        out |= ((index >> place) & 1) << j
    return out


_Sent = tuple[int, "NDArray[np.int64] | slice", NDArray[np.int64]]


class _Stop(NamedTuple):
    """A node on the way of signed products up a forest.

    Products with the same members at or below the node have the same message: one column for all.

    signs   of each column: -1 where the node itself is a member
    sent    of the messages from below: the child, columns here, and their columns there; the last
            one there is of ones, for products without a member below, where `here` is all columns
    ended   products whose members are all here or below, and their columns
    """

    node: int
    signs: NDArray[np.float64]
    sent: list[_Sent]
    ended: NDArray[np.int64]
    ended_columns: NDArray[np.int64]


@lru_cache(maxsize=8)
def _walk(parents: bytes, pieces: bytes, nodes: bytes) -> list[_Stop]:
    """The way of the products `pieces`, whose members are `nodes`, up a forest.

    It depends on no table: the q's of a splitting tree, which share a forest, share it.
    """
    piece, node = (np.frombuffer(each, np.int64).tolist() for each in (pieces, nodes))
    total = Counter(piece)
    members: dict[int, list[int]] = defaultdict(list)
    for i, k in zip(piece, node, strict=True):
        members[k].append(i)
    waiting: dict[int, list[tuple[int, dict[int, tuple[int, int]]]]] = defaultdict(list)
    stops = []
    for k, parent in enumerate(np.frombuffer(parents, np.int64).tolist()):
        arrived = waiting.pop(k, [])
        # A product is known here by whether it has the node, and by its columns at the children.
        known: dict[int, list[tuple[int, int]]] = defaultdict(list)
        seen: Counter[int] = Counter(members[k])
        for i in members[k]:
            known[i].append((-1, 0))
        for j, (_, coming) in enumerate(arrived):
            for i, (column, below) in coming.items():
                known[i].append((j, column))
                seen[i] += below
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        column_of = {i: numbers.setdefault(tuple(key), len(numbers)) for i, key in known.items()}
        ended = [i for i in column_of if seen[i] == total[i]]
        left = {i: (column_of[i], seen[i]) for i in column_of if seen[i] < total[i]}
        if left:
            waiting[parent].append((k, left))
        if numbers:
            signs = np.where([key[0][0] < 0 for key in numbers], -1.0, 1.0)
            sent = _sent([child for child, _ in arrived], list(numbers))
            ends = np.array(ended, np.int64), np.array([column_of[i] for i in ended], np.int64)
            stops.append(_Stop(k, signs, sent, *ends))
    return stops


def _sent(children: list[int], keys: list[tuple[tuple[int, int], ...]]) -> list[_Sent]:
    """Which columns of each child's message go where; `keys` say so column by column."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in children]
    for here, key in enumerate(keys):
        for j, there in key:
            if j >= 0:
                pairs[j].append((here, there))
    out: list[_Sent] = []
    for child, found in zip(children, pairs, strict=True):
        at, column = np.array(found, np.int64).T
        if 2 * at.size > len(keys):  # multiplying by ones is faster than picking columns
            padded = np.full(len(keys), -1)
            padded[at] = column
            out.append((child, slice(None), padded))
        else:
            out.append((child, at, column))
    return out
