"""Streams on spins: mean field, layers, the splitting tree."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import UnsupportedModelError
from tightz.families.evidence import JENSEN, lower_bound_of
from tightz.families.layer import LayerMeanField, layer_mean_field
from tightz.families.mean_field import MeanField
from tightz.judge import Audited
from tightz.models.spin_polynomial import MAX_ARITY, SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator, stream
from tightz.search.pool import rank, thin
from tightz.splitting import Splitting, SplittingTree
from tightz.workspace.findings import Finding, Marginals, PointEstimate
from tightz.workspace.working import Handout, Working, is_dense
from tightz.workspace.workspace import SEARCH


def encoding_of(working: Working) -> SpinEncoding | None:
    """The spins, or None where zeros leave no polynomial or no state."""
    try:
        encoding = working.encoding
    except UnsupportedModelError:
        return None
    return None if encoding.reason else encoding


def contradiction(working: Working, clock: Clock) -> Iterator[Bound]:
    """Z = 0 where linear algebra over the parities in the tables shows it."""
    try:
        reason = working.encoding.reason
    except UnsupportedModelError:
        return
    if reason:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "linear algebra", confidence=1.0,
            why=reason, evidence=Audited(-math.inf),
        )  # fmt: skip


TRIES = 0.5
"""Part of the time left that further starts of mean field may take."""

FEW_SPINS, FIRST_SWEEPS = 20_000, 5
"""Spins above which the first start of mean field is cut short, and its sweeps."""


def _tries(n: int) -> list[tuple[int, int]]:
    """Starts and sweeps of mean field, try by try."""
    whole = [(1, 1000), (8, 1000)]
    return whole if n <= FEW_SPINS else [(1, FIRST_SWEEPS), *whole]


def plain_mean_field(working: Working, clock: Clock) -> Iterator[Finding]:
    """Mean field from a few random starts: a first lower end."""
    encoding = encoding_of(working)
    if encoding is None or encoding.bits is not None:  # a table per variable does better there
        return
    coset = Coset.build(encoding.polynomial)
    begun = clock.elapsed
    for restarts, sweeps in _tries(encoding.polynomial.n):
        # No step may hold a worker for long: on 10^5 spins one start takes seconds.
        if restarts * (clock.elapsed - begun) > TRIES * clock.left:
            return
        begun = clock.elapsed
        q = MeanField(restarts, max_sweeps=sweeps).project(coset, generator(working.seed, restarts))
        marginals = list(encoding.marginals(q.spin_means()))
        bound = lower_bound_of(q, "mean field", JENSEN, working.link)
        yield Finding(bound, Marginals(marginals, "mean field", q.log_gamma))


LAYER_LEAVES = 16
"""Parts into which the kept layer is split where a summed-out layer took little time."""


def first_layer(working: Working, clock: Clock) -> Iterator[Finding]:
    """A layer summed out, from one random start: a lower end before the search for states."""
    encoding = encoding_of(working)
    if encoding is not None and is_dense(encoding.polynomial):
        yield from _one_layer(working, restarts=1)


def layers(working: Working, clock: Clock) -> Iterator[Finding]:
    """The same from the states that mean field likes best; then, if cheap, in parts."""
    encoding = encoding_of(working)
    if encoding is None or not is_dense(encoding.polynomial):
        return
    states = working.spins.original_states()
    if states is not None:
        states = _ranked(clock, encoding.polynomial, states)
    begun = clock.elapsed
    yield from _one_layer(working, restarts=4, states=states)
    # Splitting costs about a fit for each part: only where all of them fit into a third of the
    # time.
    spent = clock.elapsed - begun
    if LAYER_LEAVES * spent < 0.3 * clock.left:
        few = None if states is None else states[:2]
        yield from _one_layer(working, restarts=1, states=few, leaves=LAYER_LEAVES)


def _ranked(clock: Clock, polynomial: SpinPolynomial, states: NDArray) -> NDArray:
    """States by the value mean field reaches, as many as a tenth of the time allows."""
    begun = clock.elapsed
    best, _ = rank(polynomial, thin(states, 32))
    spent = max(clock.elapsed - begun, 1e-3)
    more = int(min(512, 32 * 0.1 * clock.left / spent))
    if more > 64:
        best, _ = rank(polynomial, thin(states, more))
    return best


def _one_layer(
    working: Working, *, restarts: int, states: NDArray | None = None, leaves: int = 1
) -> Iterator[Finding]:
    """Sum out an independent set exactly, mean field on the rest, also from given states."""
    try:
        r = layer_mean_field(
            working.encoding.polynomial,
            LayerMeanField(restarts=restarts, leaves=leaves),
            seed=stream(working.seed, SEARCH, restarts),
            starts=None if states is None else states[:16],
            link=working.link,
        )
    except UnsupportedModelError:  # couplings too large for its integral
        return
    marginals = list(working.encoding.marginals(r.spin_means))
    yield Finding(r.bound, Marginals(marginals, r.bound.method, r.log_z))


_DRAWS = 20_000
"""States drawn for marginals where spins are not the model's variables."""

_LOOK = 1.5
"""The mixture is read whenever the tree has run this many times as long as at the last reading."""


def splitting(working: Working, clock: Clock) -> Generator[Finding | Bound | Handout, Any, None]:
    """The tree round by round; what its mixture says, now and then and at the end."""
    encoding = encoding_of(working)
    # The tree's upper bounds tabulate every term; parities may have made long ones.
    if encoding is None or encoding.bits is not None or encoding.polynomial.degree > MAX_ARITY:
        return
    tree = SplittingTree(
        working.spins,
        Splitting(),
        clock=clock.child(0.95 * clock.left),
        seed=stream(working.seed, SEARCH, 1),
        backend=working.backend,
        hands=working.hands,
        travels=working.executor is not None,
        ahead=working.executor is not None,  # threads have other streams to turn to
    )
    look, results = 0.5, None
    steps = tree.shared_run()
    while True:
        tree.hands = working.hands
        try:
            item = next(steps) if results is None else steps.send(results)
        except StopIteration:
            break
        results = yield item
        if isinstance(item, Handout):
            continue
        if clock.elapsed > look and tree.tree is not None and tree.tree.n_leaves > 1:
            yield from _mixture(working, tree)
            look = _LOOK * clock.elapsed
    if tree.tree is not None and tree.tree.trouble:
        yield Finding(note=tree.tree.trouble)
    yield from _mixture(working, tree)


def _mixture(working: Working, tree: SplittingTree) -> Iterator[Finding]:
    """The leaves' q's, each weighted by its bound, as one distribution to draw from."""
    result = tree.result()
    shares = result.mixture.weights
    if result.lower == -math.inf or not shares.size or np.isnan(shares).any():
        return  # Z = 0, or the clock ended before the tree had a q
    # Importance weights of draws from the leaves' q's: unbiased for Z as far as the mixture covers
    # the space, hence "tree" needs another family beside it before its error counts.
    value, error = result.sampled_log_z(1000, stream(working.seed, SEARCH, 2))
    effective = result.sample(1000, stream(working.seed, SEARCH, 2)).effective_size
    source = "importance samples from the splitting tree's mixture"
    if working.encoding.direct:
        marginals = list(result.marginals)
    else:  # a spin that follows from others has no mean of its own
        states = result.sample(_DRAWS, stream(working.seed, SEARCH, 3)).states
        cards = working.graph.cardinalities
        counts = (np.bincount(x, minlength=d) for x, d in zip(states.T, cards, strict=True))
        marginals = [count / _DRAWS for count in counts]
    yield Finding(
        marginals=Marginals(marginals, "splitting tree", result.lower),
        estimate=PointEstimate(value, error, source, "tree", effective),
        sampler=result.sample,
    )
