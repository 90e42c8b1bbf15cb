"""The splitting tree: both ends, and from its mixture an estimate, marginals and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tightz.bounds import Bound
from tightz.interval.streams.spins import encoding_of
from tightz.models.spin_polynomial import MAX_ARITY
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import Seed, stream
from tightz.splitting import SplittingTree
from tightz.workspace.findings import Finding, Marginals, PointEstimate
from tightz.workspace.samples import Samples
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
        encoding,
        time_limit=0.95 * clock.left,
        seed=stream(working.seed, SEARCH, 1),
        exact_width=NARROW,
        backend=working.backend,
    )
    look = 0.5
    for bound in tree.run():
        yield bound
        if clock.elapsed > look and tree.tree is not None and tree.tree.n_leaves > 1:
            yield from _mixture(working, encoding, tree)
            look = _LOOK * clock.elapsed
    yield from _mixture(working, encoding, tree)


def _mixture(working: Working, encoding: SpinEncoding, tree: SplittingTree) -> Iterator[Finding]:
    """The leaves' q's, each weighted by its bound, as one distribution to draw from."""
    result = tree.result()
    if result.lower == -math.inf:
        return
    sample = _decoded(result.sample, encoding)
    # Importance weights of draws from the leaves' q's: unbiased for Z as far as the mixture covers
    # the space, hence "tree" needs another family beside it before its error counts.
    value, error = result.estimate(1000, stream(working.seed, SEARCH, 2))
    effective = result.sample(1000, stream(working.seed, SEARCH, 2)).effective_size
    source = "importance samples from the splitting tree's mixture"
    if encoding.direct:
        marginals = list(encoding.marginals(1.0 - 2.0 * result.marginals[:, 1]))
    else:  # a spin that follows from others has no mean of its own
        states = sample(_DRAWS, stream(working.seed, SEARCH, 3)).states
        cards = working.graph.cardinalities
        counts = (np.bincount(x, minlength=d) for x, d in zip(states.T, cards, strict=True))
        marginals = [count / _DRAWS for count in counts]
    yield Finding(
        marginals=Marginals(marginals, "splitting tree", result.lower),
        estimate=PointEstimate(value, error, source, "tree", effective),
        sampler=sample,
    )


def _decoded(sample: Callable[..., Samples], encoding: SpinEncoding) -> Callable[..., Samples]:
    """A sampler of the polynomial's states as one of the encoded model's."""

    def decoded(k: int, seed: Seed = None) -> Samples:
        drawn = sample(k, seed)
        return replace(drawn, states=encoding.lift_states(1 - 2 * drawn.states))

    return decoded
