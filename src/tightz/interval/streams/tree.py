"""The splitting tree: both ends, and from its mixture an estimate, marginals and samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tightz.bounds import Bound
from tightz.interval.streams.spins import encoding_of
from tightz.models.spin_polynomial import MAX_ARITY
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import stream
from tightz.splitting import Splitting, SplittingTree
from tightz.workspace.findings import Finding, Marginals, PointEstimate
from tightz.workspace.working import NARROW, Working
from tightz.workspace.workspace import SEARCH

_DRAWS = 20_000
"""States drawn for marginals where spins are not the model's variables."""

_LOOK = 1.5
"""The mixture is read whenever the tree has run this many times as long as at the last reading."""


def splitting(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """The tree round by round; what its mixture says, now and then and at the end."""
    encoding = encoding_of(working)
    # The tree's upper bounds tabulate every term; parities may have made long ones.
    if encoding is None or encoding.bits is not None or encoding.polynomial.degree > MAX_ARITY:
        return
    tree = SplittingTree(
        working.spins,
        Splitting(exact_width=NARROW),
        clock=clock.child(0.95 * clock.left),
        seed=stream(working.seed, SEARCH, 1),
        backend=working.backend,
    )
    look = 0.5
    for bound in tree.run():
        yield bound
        if clock.elapsed > look and tree.tree is not None and tree.tree.n_leaves > 1:
            yield from _mixture(working, tree)
            look = _LOOK * clock.elapsed
    yield from _mixture(working, tree)


def _mixture(working: Working, tree: SplittingTree) -> Iterator[Finding]:
    """The leaves' q's, each weighted by its bound, as one distribution to draw from."""
    result = tree.result()
    if result.lower == -math.inf:
        return
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
