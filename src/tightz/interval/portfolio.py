"""Which streams `log_partition` runs where `opening` does not close the interval, in what order.

Adding one is a function (working, clock) in `streams/` and an entry here. The driver gives the time
to those that narrow the interval fastest (`race.py`), so an entry costs little where it is no use.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from tightz.bounds import Side
from tightz.interval.streams.exact import COUNTING, counting
from tightz.interval.streams.first import solved
from tightz.interval.streams.fixed import SHARE as FIXED
from tightz.interval.streams.fixed import fixed_states
from tightz.interval.streams.spins import (
    contradiction,
    encoding_of,
    first_layer,
    layers,
    plain_mean_field,
    splitting,
)
from tightz.interval.streams.states import blocks, cutset_sums, reversed_tables
from tightz.interval.streams.structured import structured
from tightz.interval.streams.uppers import planar_fields, quadratic
from tightz.runtime.clock import Clock
from tightz.sampling.annealed import annealed, in_states
from tightz.sampling.capped.stream import capped
from tightz.sampling.capped.wide import wide_tables
from tightz.workspace.working import Handout, Launch, Method, Planned, Working, is_dense

ANNEALING, DENSE_ANNEALING = 0.3, 0.5
"""Parts of the workers' time for annealing; on dense models nothing else says much."""

ZEROS_ANNEALING = 0.1
"""The same with zeros: chains may end where the model forbids it, and then weigh nothing."""

DENSE_ELIMINATION = 0.3
"""Part of it for quadratic elimination of dense models, until that ends by itself."""


def annealing(working: Working, clock: Clock) -> Iterator[Launch]:
    """Annealing, with the time it is promised."""
    if in_states(working):
        yield Launch(
            (Planned(annealed, ZEROS_ANNEALING if working.graph.has_zeros else ANNEALING),)
        )
        return
    encoding = encoding_of(working)
    if encoding is not None:
        share = DENSE_ANNEALING if is_dense(encoding.polynomial) else ANNEALING
        yield Launch((Planned(annealed, share),))


def elimination(working: Working, clock: Clock) -> Iterator[Launch]:
    """Quadratic elimination; on dense models with time of its own, since tables say nothing."""
    encoding = encoding_of(working)
    if encoding is not None:
        dense = is_dense(encoding.polynomial)
        yield Launch((Planned(quadratic, DENSE_ELIMINATION) if dense else quadratic,))


def tempering(working: Working, clock: Clock) -> Generator[Launch | Handout, Any, None]:
    """The search for heavy states, and after it the streams that start from them."""
    if encoding_of(working) is None:
        return
    spins = working.spins
    search = spins.searches
    if search is not None:
        # A search has two runs, on two threads here and one after the other elsewhere; more of
        # them than these find little more, and all that follows waits for them.
        count = max(1, working.hands // 8)
        spins.adopt((yield Handout(search, spins.seeds(count))))
    _ = spins.states
    yield Launch(FROM_STATES_DENSE if is_dense(spins.original) else FROM_STATES)


TEMPERING, STRUCTURED = 0.15, 0.2
"""Parts of it for the search for states and for the families that start from them: on a 100x100
grid nothing of them came in a minute, and the lower end that holds always was all the width."""

CUTSETS = 0.15
"""Part for sums over a cutset's states, which only models with zeros have (linkage_11, 20 s, proven
lower bound: 23 nats below log Z; 71 without)."""

REVERSED = 0.2
"""Part for mini-buckets from below, until they turn out to be behind: where couplings are of order
one no family comes near them (60x60 Potts, 5 states: 1.8 nats below log Z, tables of strips 27)."""

LAYER = 0.15
"""Part for the layer that is summed out, which few models have: the other promises left it no step
on two cores, and the lower end of the public RBM stayed at mean field's, 6 nats below."""

LOWER: tuple[Method, ...] = (
    solved,
    plain_mean_field,
    Planned(first_layer, LAYER, proves=True),
    contradiction,
    blocks,
    Planned(reversed_tables, REVERSED, proves=True, beatable=Side.LOWER),
    Planned(tempering, TEMPERING, proves=True),
    Planned(cutset_sums, CUTSETS, proves=True, beatable=None),
)
AT_ONCE = 1.0
"""Promised to openers, which only launch a stream with a promise of its own."""

PLANAR = 0.5
"""Promised to planar models with weak fields: the sum without fields comes before any bound, and
streams that pay at once left it no step in 20 s. On other models it ends at its first one."""

UPPER: tuple[Method, ...] = (
    Planned(elimination, AT_ONCE),
    Planned(planar_fields, PLANAR),
    Planned(capped, AT_ONCE),
    Planned(wide_tables, AT_ONCE),
)
SIDE_BY_SIDE: tuple[Method, ...] = (
    Planned(annealing, AT_ONCE),
    Planned(counting, COUNTING),
    *LOWER,
    *UPPER,
    Planned(fixed_states, FIXED, proves=True, beatable=None),
)
"""Started together where exact elimination does not fit; quick ones first. Annealing is the very
first: a run of a second has its estimate and certificate before anything else. It keeps a share,
since its rounds pay at their end, and a far upper end hides what a lower one gains."""

QUICK: tuple[Method, ...] = (plain_mean_field, blocks)
"""Started first on large models, where the first step of others takes seconds."""

FROM_STATES: tuple[Method, ...] = (
    layers,
    Planned(structured, STRUCTURED, proves=True),
)
"""Started when tempering has found states."""

FROM_STATES_DENSE: tuple[Method, ...] = (
    Planned(layers, LAYER, proves=True),
    structured,
    splitting,
)
"""The same on dense models, of which a narrow shape follows little."""
