"""Streams for dense pairwise models such as RBMs: sum a layer out, put q on the other."""

from __future__ import annotations

from collections.abc import Iterator

from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.layer import LayerMeanField, layer_mean_field
from tightz.interval.streams.spins import encoding_of
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import stream
from tightz.search.pool import thin
from tightz.search.ranking import rank
from tightz.workspace.findings import Finding, Marginals
from tightz.workspace.working import Working, is_dense
from tightz.workspace.workspace import SEARCH

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
