"""Deterministic bounds on log Z by splitting the space, two-sided and anytime.

The space is cut into regions by parities of one or two spins, or by the states of a variable where
there are more than two or zeros that no parities explain; each region has an I-projection as
its lower bound and elimination or mini-buckets as its upper bound. Z is the sum over regions, so
both sides add up, with no probability involved (the coset sum of Hsu, Achim and Ermon's setting,
with the parities chosen; anytime search trees for Z: Lou, Dechter and Ihler, 2017).
"""

from __future__ import annotations

import math

import numpy as np

from tightz.errors import ParameterError, UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import ModelOrPath, given_model
from tightz.models.prepared import prepared
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.encoding import encode
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.interrupts import interruptible
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.splitting.results import SplittingResult
from tightz.splitting.run import PRODUCT, SEARCH_SHARE, STRUCTURED, Splitting, SplittingTree
from tightz.splitting.states import StateTree
from tightz.workspace.workspace import SHARED, Auto, Workspace

__all__ = [
    "PRODUCT",
    "STRUCTURED",
    "Splitting",
    "SplittingResult",
    "SplittingTree",
    "StateTree",
    "split",
]


@prepared("split")
def split(
    model: ModelOrPath,
    settings: Splitting | None = None,
    *,
    time_limit: float | None = None,
    seed: Seed = None,
    threads: int | None = None,
    backend: Backend = "auto",
) -> SplittingResult:
    """Both ends of log Z by splitting, with the leaves and their mixture; see `Splitting`.

    A binary model whose zeros, if any, are parities is split by parities of its spins; any other by
    the states of its variables (`settings.collapse`, `settings.family` and `backend` are then of no
    use). With no limit at all it runs until the interval is closed. `backend`: "cuda" bounds the
    leaves of a MeanField tree on the GPU, "auto" does so where there is one, "cpu" never. Ctrl-C
    returns what is known.
    """
    model = given_model(model, "split")
    if time_limit is not None and not time_limit > 0.0:
        raise ParameterError(
            f"time_limit is {time_limit}; expected a positive number of seconds, or None"
        )
    with interruptible() as asked:
        clock = Clock(math.inf if time_limit is None else time_limit, stop=asked)
        return _split(model, settings or Splitting(), clock, seed_sequence(seed), threads, backend)


def _split(
    model: FactorGraph | SpinPolynomial,
    settings: Splitting,
    clock: Clock,
    root: np.random.SeedSequence,
    threads: int | None,
    backend: Backend,
) -> SplittingResult:
    try:
        encoding = encode(model)
    except UnsupportedModelError:
        if not isinstance(model, FactorGraph):
            raise
        states = StateTree(model, settings, clock=clock, seed=root)
        for _ in states.run():
            pass
        return states.result()
    automatic = Auto(most=min(SHARED.most, settings.exact_width))
    work = Workspace.build(
        encoding,
        seed=root,
        collapse=automatic if settings.collapse is None else settings.collapse,
        time_limit=None if clock.limit == math.inf else SEARCH_SHARE * clock.limit,
        threads=threads,
    )
    tree = SplittingTree(work, settings, clock=clock, seed=root, threads=threads, backend=backend)
    for _ in tree.run():
        pass
    return tree.result()
