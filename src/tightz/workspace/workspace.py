"""The working model: encoded, collapsed, and with what a search knows about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.evidence import collapse_link, link_of
from tightz.families.projection import IProjection
from tightz.judge.links import SpinLink
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.hashing import FirstColumns, PivotPolicy, Reliability
from tightz.reductions.bits import BlockPolynomial
from tightz.reductions.collapse import AUTO_NEIGHBOURS, Collapsed, collapse
from tightz.reductions.encoding import Model, SpinEncoding, encode
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.search.pool import StatePool, distinct, joined, sample_pool, with_states
from tightz.workspace.once import Once

MAX_STATES = 1500
"""Heavy states kept as starts; repairing and weighing them costs a few milliseconds a coset."""

MAX_HEAVY = 8
"""Heaviest states that go with the samples where these are to stand for the model."""


@dataclass(frozen=True, eq=False)
class Guide:
    """What a pool of the original's states says about the working polynomial.

    states        (S, n) distinct heavy states, heaviest first: starts
    samples       (T, n) states at temperature 1 and the few heaviest, heaviest first: their means
                  stand for the model's where a split is chosen; they prove nothing
    reliability   (n,) what flipping a spin costs in the heaviest state; the cheapest flips make
                  the best constrained spins
    """

    states: NDArray[np.int8]
    samples: NDArray[np.int8]
    reliability: NDArray[np.float64]


def search_effort(polynomial: SpinPolynomial) -> int:
    """Tempering sweeps: 1000, fewer where a sweep is dear (many incidences), at least 100."""
    incidences = max(1, int(polynomial.spins.size))
    return int(np.clip(4_000_000 // incidences, 100, 1000))


def read_pool(pool: StatePool, working: SpinPolynomial, kept: NDArray[np.int64]) -> Guide:
    """The original's pool on the working polynomial, whose spins are the `kept` ones.

    Tempering runs on the original, where cluster moves apply, so one run serves every collapse.
    """
    rows = distinct(np.concatenate([pool.states, pool.samples])[:, kept])
    states = rows[_heaviest(working, rows)[:MAX_STATES]].astype(np.int8)
    drawn = pool.samples if len(pool.samples) else pool.states
    drawn = np.concatenate([pool.states[:MAX_HEAVY], drawn])[:, kept].astype(np.int8)
    return Guide(states, drawn[_heaviest(working, drawn)], working.flip_costs(states[0]))


def _heaviest(working: SpinPolynomial, rows: NDArray) -> NDArray[np.int64]:
    return np.argsort(-working.log_weight(rows), kind="stable")


SEARCH = 2**31
"""Key of the search's random stream; levels never reach it."""

SAMPLES = 1000
"""States at temperature 1 that a pool has about."""


@dataclass(frozen=True, eq=False)
class Search:
    """Tempers a polynomial; what it finds depends on the seed, unless time cuts it short."""

    polynomial: SpinPolynomial
    sweeps: int
    time_limit: float | None
    threads: int | None

    def __call__(self, seed: np.random.SeedSequence) -> StatePool:
        return sample_pool(
            self.polynomial, sweeps=self.sweeps, time_limit=self.time_limit, seed=seed,
            samples=SAMPLES, threads=self.threads,
        )  # fmt: skip


@dataclass(frozen=True)
class Auto:
    """A collapse picked by cost: spins with at most `most` neighbours, and fewer where less than
    `at_least` spins would be left.
    """

    most: int = AUTO_NEIGHBOURS
    at_least: int = 0


SHARED = Auto(most=6)
"""Where a splitting tree shares the collapse. Projections gain a little from 8 or 10, but the terms
that this makes slow the tree's look-aheads: after 10 s its upper ends were 0.1 to 1.5 nats worse.
"""


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model as the methods work on it. Every part is made at its first use, and once.

    Nothing is computed before it is asked for; threads that ask for the same part wait for the
    one that came first. So one encoding, one collapse and one tempering run serve all who share it.

    source        the model, or its encoding
    collapse      spins with at most this many neighbours are summed out; 0 is off
    sweeps        tempering sweeps; None picks by cost, 0 is off
    time_limit    seconds that may cut the search short, at the price of repeatability
    known         (S, n) states of spins, from elsewhere, that go into the pool
    """

    source: Model | SpinEncoding
    seed: np.random.SeedSequence
    collapse: int | Auto = field(default_factory=Auto)
    sweeps: int | None = None
    time_limit: float | None = None
    threads: int | None = None
    known: NDArray[np.int8] | None = None
    shared: Workspace | None = None
    _once: Once = field(default_factory=Once, repr=False)

    @classmethod
    def build(
        cls,
        model: Model | SpinEncoding,
        *,
        seed: Seed,
        collapse: int | Auto | None = None,
        search_sweeps: int | None = None,
        time_limit: float | None = None,
        threads: int | None = None,
        known: NDArray[np.int8] | None = None,
    ) -> Workspace:
        """The workspace of a model; costs nothing until something is asked of it.

        collapse=None is Auto().
        """
        require_range("search_sweeps", search_sweeps or 0, 0)
        root = seed_sequence(seed)
        chosen = Auto() if collapse is None else collapse
        return cls(model, root, chosen, search_sweeps, time_limit, threads, known)

    def recollapsed(self, k: int) -> Workspace:
        """The same encoding and pool with another collapse."""
        made = self.shared or self
        return replace(self, collapse=k, shared=made, _once=Once())

    @property
    def encoding(self) -> SpinEncoding:
        """The model's polynomial of spins; UnsupportedModelError where it has none."""
        if self.shared is not None:
            return self.shared.encoding
        return self._once("encoding", self._encode)

    def _encode(self) -> SpinEncoding:
        if isinstance(self.source, SpinEncoding):
            return self.source
        return encode(self.source, multivalued=True)

    @property
    def original(self) -> SpinPolynomial:
        """The encoded model's polynomial."""
        return self.encoding.polynomial

    @property
    def collapsed(self) -> Collapsed | None:
        """The record of summed-out spins; None when collapse is off."""
        return self._once("collapsed", lambda: collapse_safely(self.original, self.collapse))

    @property
    def polynomial(self) -> SpinPolynomial:
        """What cosets are drawn on: the encoded model, collapsed where that is on."""
        return self._once("polynomial", self._polynomial)

    def _polynomial(self) -> SpinPolynomial:
        if self.collapsed is None:
            return self.original
        if isinstance(self.original, BlockPolynomial):
            return self.original.carried(self.collapsed.polynomial, self.collapsed.kept)
        return self.collapsed.polynomial

    @property
    def kept(self) -> NDArray[np.int64]:
        """The spins of `original` that `polynomial` is over."""
        return np.arange(self.original.n) if self.collapsed is None else self.collapsed.kept

    @property
    def search_sweeps(self) -> int:
        """Tempering sweeps of the search, 0 where it is off."""
        return search_effort(self.original) if self.sweeps is None else self.sweeps

    @property
    def pool(self) -> StatePool | None:
        """What tempering found on `original`; None where the search is off or has nothing to do."""
        if self.shared is not None:
            return self.shared.pool
        return self._once("pool", self._temper)

    def _temper(self) -> StatePool | None:
        if self.searches is None:
            return None
        return self._with_known(self.searches(stream(self.seed, SEARCH)))

    def _with_known(self, pool: StatePool) -> StatePool:
        if self.known is None or self.known.shape[1] != self.original.n:
            return pool
        return with_states(self.original, pool, self.known)

    @property
    def found_pool(self) -> StatePool | None:
        """The pool where there is one already; nothing is searched for."""
        found: StatePool | None = self._once.made("pool")
        return found

    @property
    def searches(self) -> Search | None:
        """The tempering run as a function of its seed, for others to do; None where it is off."""
        if not self.search_sweeps or self.original.n == 0 or self.original.constant == -np.inf:
            return None
        return Search(self.original, self.search_sweeps, self.time_limit, self.threads)

    def seeds(self, count: int) -> list[np.random.SeedSequence]:
        """Of so many searches; the first is that of `pool`."""
        return [stream(self.seed, SEARCH), *(stream(self.seed, SEARCH, k) for k in range(1, count))]

    def adopt(self, pools: Sequence[StatePool]) -> None:
        """Take what searches found elsewhere, unless there is a pool already."""
        self._once("pool", lambda: self._with_known(joined(self.original, pools, SAMPLES)))

    @property
    def guide(self) -> Guide | None:
        """The pool on `polynomial`; None where there is none, or no spin is left."""
        return self._once("guide", self._guide)

    def _guide(self) -> Guide | None:
        if self.polynomial.n == 0 or self.pool is None:
            return None
        return read_pool(self.pool, self.polynomial, self.kept)

    @property
    def encoded_link(self) -> SpinLink:
        """How `original` stands for the model, for the judge; checked once."""
        if self.shared is not None:
            return self.shared.encoded_link
        return self._once("encoded_link", lambda: link_of(self.encoding))

    @property
    def link(self) -> SpinLink:
        """How `polynomial` stands for the model."""
        return self._once("link", self._link)

    def _link(self) -> SpinLink:
        if self.collapsed is None:
            return self.encoded_link
        return SpinLink(self.encoded_link.encoding, collapse_link(self.collapsed))

    @property
    def states(self) -> NDArray[np.int8] | None:
        """Heavy states of `polynomial`, heaviest first; None without a search."""
        return None if self.guide is None else self.guide.states

    def original_states(self) -> NDArray[np.int8] | None:
        """The guide's states with summed-out spins at their heaviest values."""
        if self.guide is None or self.collapsed is None:
            return self.states
        return self.collapsed.lift_states(self.guide.states)

    @property
    def k(self) -> int:
        """The collapse in force, 0 for none."""
        return 0 if self.collapsed is None else self.collapsed.k

    def pivots(self, chosen: PivotPolicy | None = None) -> PivotPolicy:
        """The chosen policy; by default the least reliable spins where a search was made."""
        if chosen is not None:
            return chosen
        return FirstColumns() if self.guide is None else Reliability(self.guide.reliability)


def collapse_safely(polynomial: SpinPolynomial, k: int | Auto) -> Collapsed | None:
    """The collapsed model, its constant lowered by the rounding it declares; None when off."""
    if k == 0 or polynomial.n == 0 or polynomial.constant == -np.inf:
        return None
    if isinstance(k, Auto):
        collapsed = collapse(polynomial, most=k.most)
        while collapsed.polynomial.n < k.at_least:
            if collapsed.k <= 1:
                return None
            collapsed = collapse(polynomial, collapsed.k - 1)
    else:
        collapsed = collapse(polynomial, k)
    safe = replace(collapsed.polynomial, constant=collapsed.polynomial.constant - collapsed.dropped)
    return replace(collapsed, polynomial=safe)


def lifted_means(best: IProjection, collapsed: Collapsed | None) -> NDArray[np.float64]:
    """E s_i of all the encoded model's spins: summed-out ones follow from the kept ones."""
    if collapsed is None:
        return best.spin_means()
    if best.log_gamma == -np.inf:
        return np.full(collapsed.original.n, np.nan)
    return collapsed.lift_means(best.expectations)
