"""Heavy states of spins: enumeration when there are few, parallel tempering otherwise."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.ascent import best_vertex
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.runtime.backends import Backend
from tightz.search.copies import run_copies
from tightz.search.ladder import Ladder
from tightz.search.parallel_tempering import ParallelTempering, Problem, Tempering, tune_ladder
from tightz.search.pool import merge_best

SEARCHER = ParallelTempering(ladder=Ladder(step=1.5), cluster_every=4, keep_best=16)
MIN_QUIET = 500
"""Sweeps without an improvement before a search may call itself done."""


class SearchStatus(enum.Enum):
    """How a search ended; the value advises."""

    OPTIMAL = "proven heaviest: no other state weighs more"
    AGREED = "not proven: independent runs found the same weight and have not improved since"
    TARGET = "the target was reached"
    LIMIT = "not proven: stopped by the limit, raise time_limit or sweeps"
    ZERO = "proven: every state has weight zero"
    NONE = "no state of positive weight was found: raise time_limit"


@dataclass(frozen=True)
class Search:
    """How the heaviest state is looked for, and when the search may stop.

    sweeps            per run at most; None: no limit
    target            stop at a state at least as heavy as this log weight
    runs              independent copies; a GPU pays for many
    patience          stop when all copies agree on the best weight and none has improved for this
                      many times the sweeps that it took (math.inf: never stop so)
    enumerate_up_to   models of at most this many free variables are enumerated, and proven
    tempering         temperatures, moves and replicas of a run
    """

    sweeps: int | None = None
    target: float | None = None
    runs: int = 2
    patience: float = 2.0
    enumerate_up_to: int = 20
    tempering: ParallelTempering = SEARCHER

    def __post_init__(self) -> None:
        require_range("runs", self.runs, 1)
        require_range("patience", self.patience, 0.0)
        require_range("enumerate_up_to", self.enumerate_up_to, 0, 40)
        if self.sweeps is not None:
            require_range("sweeps", self.sweeps, 1)


@dataclass(frozen=True, eq=False)
class Found:
    """What a search came to: states, heaviest first, spins or states of variables.

    sweeps   per run; found_at: the sweep by which the first run had found the best
    """

    states: NDArray
    status: SearchStatus
    sweeps: int = 0
    found_at: int = 0


def search_spins(
    poly: SpinPolynomial,
    search: Search,
    root: np.random.SeedSequence,
    *,
    k: int = 1,
    time_limit: float | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """The k heaviest spin states (S, n) that copies of tempering find; few spins are enumerated.

    What was found when `stop()` says so is returned then.
    """
    if poly.constant == -np.inf:
        return Found(np.ones((1, poly.n), dtype=np.int8), SearchStatus.ZERO)
    if poly.n <= search.enumerate_up_to and k == 1:
        vertex = np.ones(poly.n)
        best_vertex(Coset.build(poly).grouped, vertex)
        return Found(vertex.astype(np.int8)[None], SearchStatus.OPTIMAL)
    start = time.perf_counter()
    problem = Problem.build(poly)
    betas = tune_ladder(problem, search.tempering, root)
    copies = [Tempering(problem, search.tempering, betas, root, 1, c) for c in range(search.runs)]
    # Energies leave the constant out.
    goal = math.inf if search.target is None else search.target - poly.constant
    stopped = run_copies(
        copies,
        sweeps=search.sweeps,
        deadline=None if time_limit is None else start + time_limit,
        threads=threads,
        backend=backend,
        finished=lambda: _reached(copies, goal) or _agreed(copies, search.patience),
        stop=stop,
    )
    states, _ = merge_best(poly, [c.best for c in copies], k)
    top = max(c.top for c in copies)
    found = min((c.top_at for c in copies if c.top >= top - 1e-9 * (1 + abs(top))), default=0)
    status = SearchStatus.LIMIT
    if stopped:
        status = SearchStatus.TARGET if _reached(copies, goal) else SearchStatus.AGREED
    return Found(states, status, copies[0].sweeps, found)


def _reached(copies: Sequence[Tempering], goal: float) -> bool:
    return max(c.top for c in copies) >= goal


def _agreed(copies: Sequence[Tempering], patience: float) -> bool:
    tops = [c.top for c in copies]
    if max(tops) - min(tops) > 1e-9 * (1.0 + abs(max(tops))) or min(tops) == -math.inf:
        return False
    # Quiet for a multiple of the time that the best took to find: a rule that scales with the
    # difficulty, and still no proof.
    return all(c.sweeps - c.top_at >= max(MIN_QUIET, patience * c.top_at) for c in copies)
