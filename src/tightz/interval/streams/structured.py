"""The stream of structured families: q of growing width, begun at the heaviest state known."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.block import family_for
from tightz.families.evidence import JENSEN, lower_bound_of
from tightz.families.projection import Family, IProjection
from tightz.families.structured import StructuredMeanField, StructuredProjection
from tightz.interval.streams.spins import encoding_of
from tightz.projections.coset import Coset
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator, stream
from tightz.sampling.capped.heavy import heavy_states
from tightz.search.recombination import recombined
from tightz.workspace.findings import Finding, Marginals
from tightz.workspace.working import Handout, Working, is_dense
from tightz.workspace.workspace import SEARCH, Workspace, lifted_means

WIDTHS = (2, 4, 6, 8, 10, 12)
"""Structured families tried in turn."""

GROWTH = 2.5
"""Times as long as at the width before: measured on grids from 1.3 (narrow) to 3 (wide)."""

SETTLED = 0.05
"""Nats that a shape must gain for the next one of its width not to be varied."""

MANY_TERMS = 20_000
"""Terms from which families start once, and bits of many states are left to tables of states."""

HUGE = 200_000
"""Terms from which nobody knows what a width costs: the narrowest first."""

PER_SPIN = 1e-6
"""Nats that a sweep must gain for another: shapes differ by far more."""

AGAIN = 1.5
"""Times as late as the last time at which a sampler's means are asked for again."""

VARIED = 24
"""Shapes of the last width that may fail one after the other."""

HANDS = 4
"""Hands for each shape that is tried at a time: the stream is promised a fifth of them."""


class Shaped(NamedTuple):
    """A shape to try: its width, the means that it is made for and started from, what varies it."""

    width: int
    shaped: NDArray[np.float64]
    start: NDArray[np.float64]
    seed: np.random.SeedSequence | None


class Tried(NamedTuple):
    """The q that came of it, and its seconds."""

    q: StructuredProjection
    seconds: float


@dataclass(frozen=True, eq=False)
class Fit:
    """Tries shapes of one model: what it returns depends on the task alone."""

    coset: Coset
    tol: float

    def __call__(self, task: Shaped) -> Tried:
        begun = time.perf_counter()
        rng = None if task.seed is None else np.random.default_rng(task.seed)
        family = StructuredMeanField(width=task.width, tol=self.tol)
        q = family.fit(self.coset, task.shaped, task.start, rng)
        return Tried(q, time.perf_counter() - begun)


@dataclass(eq=False)
class Known:
    """The heaviest state of the spins before collapse: of the pool, and put together with draws.

    Draws under a mini-bucket cap are near the model where tempering is not: on a 100x100 grid,
    w = 10, its best state was 540 nats lighter than what ten of them make, and q stays in the
    valley that it starts in.
    """

    working: Working
    state: NDArray[np.int8] | None = None
    weight: float = -math.inf
    _told: NDArray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        pool = self.working.spins.pool
        if pool is not None and len(pool.states):
            self.state, self.weight = pool.states[0], float(pool.log_weights[0])
        self.news()

    def news(self) -> bool:
        """Take what draws told since the last time; whether it led to a heavier state."""
        drawn = self.working.sampled.states
        if drawn is None or drawn is self._told:
            return False
        self._told = drawn
        return self.join(drawn)

    def join(self, drawn: NDArray) -> bool:
        """Put states of the model's variables together with this one; whether that is heavier."""
        rows, polynomial = self.working.encoding.spins_of(drawn), self.working.spins.original
        if rows is None or not polynomial.n:
            return False
        if self.state is not None:
            rows = np.vstack([rows, self.state])
        state = recombined(polynomial, rows)
        weight = float(polynomial.log_weight(state[None])[0])
        heavier = weight > self.weight + 1e-9 * (1.0 + abs(weight))
        if heavier:
            self.state, self.weight = state, weight
        return heavier

    @property
    def starts(self) -> NDArray[np.int8] | None:
        """States of the collapsed model's spins: this one and the pool's."""
        spins = self.working.spins
        if self.state is None:
            return spins.states
        mine = self.state[None, spins.kept]
        return mine if spins.states is None else np.concatenate([mine, spins.states])


def structured(working: Working, clock: Clock) -> Generator[Finding | Handout, Any, None]:
    """Mean field from the states found, then families of growing width, on the collapsed model."""
    encoding = encoding_of(working)
    if encoding is None:
        return
    many = encoding.polynomial.n_terms >= MANY_TERMS
    if many and encoding.bits is not None:
        return  # tables of states do better, and one step of bits took minutes
    spins, known = working.spins, Known(working)
    if working.sampled.states is None and not is_dense(spins.original):
        drawn = yield from heavy_states(working)
        if drawn is not None:
            known.join(drawn)
    coset = Coset.build(spins.polynomial)
    restarts = 4 if spins.polynomial.n_terms < MANY_TERMS else 1
    tol = PER_SPIN * coset.n_free
    best: IProjection | None = None
    families: list[Family] = [family_for(spins.polynomial, restarts=4 * restarts)]
    if not MANY_TERMS <= spins.polynomial.n_terms < HUGE:
        # Between, the narrowest is worth little: a shape made for what mean field found comes next.
        families.append(StructuredMeanField(width=WIDTHS[0], restarts=restarts, tol=tol))
    for family in families:
        width, begun = getattr(family, "width", 0), clock.elapsed
        q = family.project(coset, generator(working.seed, SEARCH, width), known.starts)
        seconds = (clock.elapsed - begun) / restarts
        if best is None or q.log_gamma > best.log_gamma:
            best = q
            yield _structured_finding(spins, q)
    assert best is not None
    if math.isfinite(best.log_gamma):
        yield from _Reshaping(working, clock, known, Fit(coset, tol), best, seconds).run()


@dataclass(eq=False)
class _Reshaping:
    """Shapes made for the best q so far: wider while there is time for it, then again and varied.

    With many hands several shapes are tried at a time. The first is what one hand would try; the
    others differ from it by chance, and by the means that they are made for.
    """

    working: Working
    clock: Clock
    known: Known
    fit: Fit
    best: IProjection
    seconds: float  # that the narrowest took

    def __post_init__(self) -> None:
        self.made = 0
        self.sampled: NDArray[np.float64] | None = None

    @property
    def count(self) -> int:
        """Shapes at a time."""
        return max(1, self.working.hands // HANDS)

    def run(self) -> Generator[Finding | Handout, Any, None]:
        failed, wider, widths = 0, True, list(WIDTHS)
        asked = -math.inf
        while failed < VARIED:
            wider = wider and len(widths) > 1 and GROWTH * self.seconds < self.clock.left
            widths = widths[1:] if wider else widths
            start = None
            due = self.clock.elapsed > AGAIN * asked
            if due and (means := _sampled_means(self.working)) is not None:
                self.sampled = start = means
                asked, failed = self.clock.elapsed, 0
            tasks = [self._task(widths[0], k, failed, start) for k in range(self.count)]
            if self.known.news():
                means = self._valley()
                tasks[0] = Shaped(widths[0], means, means, None)
            tried: list[Tried] = yield Handout(self.fit, tasks)
            self.seconds = max(one.seconds for one in tried)
            found = max((one.q for one in tried), key=lambda q: q.log_gamma)
            gain = found.log_gamma - self.best.log_gamma
            if gain > 0.0:
                self.best = found
            yield _structured_finding(self.working.spins, found) if gain > 0.0 else Finding()
            if found.trace.size == 1:  # nothing was cut: log Z itself
                return
            width = max(one.q.forest.width for one in tried)
            if width < widths[0]:  # there was no room for it
                wider, widths = False, [max(width, 1)]
            if not wider:
                failed = 0 if gain > SETTLED else failed + 1

    def _task(
        self, width: int, number: int, failed: int, start: NDArray[np.float64] | None
    ) -> Shaped:
        """One shape of a round: q's own and the sampler's in turn."""
        varied = failed > 0 or number > 0
        self.made += varied
        seed = stream(self.working.seed, SEARCH, 1, self.made) if varied else None
        own = (failed + number) % 2 == 1 or self.sampled is None
        shaped = self.best.means if own else self.sampled
        assert shaped is not None
        return Shaped(width, shaped, self.best.means if start is None else start, seed)

    def _valley(self) -> NDArray[np.float64]:
        """Means of mean field from the heaviest state."""
        assert self.known.state is not None
        spins = self.working.spins
        rng = generator(self.working.seed, SEARCH, 2)
        family = family_for(spins.polynomial, restarts=1)
        found = family.project(self.fit.coset, rng, self.known.state[None, spins.kept])
        means: NDArray[np.float64] = found.means
        return means


def _sampled_means(working: Working) -> NDArray[np.float64] | None:
    """Means of the collapsed model's spins by a sampler that stands for the model.

    Mean field sits in the valley that it started in. Made for a sampler's means, a shape keeps what
    moves between valleys: on a 50x50 grid, w = 10, the end moved from -3.6 to -0.6 nats.
    """
    known = working.sampled.marginals
    if known is None:
        return None
    return working.encoding.spin_means(known.vectors)[working.spins.kept]


def _structured_finding(spins: Workspace, q: IProjection) -> Finding:
    """The bound of q as the judge has it, and its marginals."""
    width = q.forest.width if isinstance(q, StructuredProjection) else 0
    name = f"structured mean field, width {width}" if width else "mean field, tempering starts"
    if spins.collapsed is None:
        marginals = spins.encoding.marginals_of(q.expectations)
    else:
        marginals = spins.encoding.marginals(lifted_means(q, spins.collapsed))
    offered = Marginals(list(marginals), name, q.log_gamma)
    return Finding(lower_bound_of(q, name, JENSEN, spins.link), offered)
