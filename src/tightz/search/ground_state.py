"""The heaviest state of a model: enumeration when small, parallel tempering otherwise."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_range, require_seconds
from tightz.families.ascent import best_vertex
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import ModelOrPath, given_model
from tightz.models.inputs import shown
from tightz.models.prepared import prepared
from tightz.projections.coset import Coset
from tightz.reductions.encoding import SpinEncoding, encode, model_digest
from tightz.results import OneBound
from tightz.runtime.backends import Backend
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.search.copies import run_copies
from tightz.search.ladder import Ladder
from tightz.search.parallel_tempering import ParallelTempering, Problem, Tempering, tune_ladder
from tightz.search.pool import merge_best

SEARCHER = ParallelTempering(ladder=Ladder(step=1.5), cluster_every=4, keep_best=16)
MIN_QUIET = 500
"""Sweeps without an improvement before a search may call itself done."""


class SearchStatus(enum.Enum):
    """How a search ended; the value advises."""

    OPTIMAL = "proven heaviest: every state was weighed"
    AGREED = "not proven: independent runs found the same weight and have not improved since"
    TARGET = "the target was reached"
    LIMIT = "not proven: stopped by the limit, raise time_limit or sweeps"
    ZERO = "every state has weight zero"


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


@dataclass(frozen=True, eq=False, repr=False)
class GroundState(OneBound):
    """The heaviest state found.

    state        (variables,) the model's variables, evidence included
    log_weight   log p~(state), evaluated by the model itself; a lower bound on log Z
    spins        (n,) the free binary variables as spins, +1 for state 0
    sweeps       per run; found_at: the sweep by which the first run had found it, 0 if enumerated
    """

    state: NDArray[np.int64]
    log_weight: float
    spins: NDArray[np.int8]
    status: SearchStatus
    sweeps: int
    found_at: int
    seconds: float
    provenance: dict[str, Any]

    @property
    def bound(self) -> Bound:
        """The state's weight as a lower bound on log Z; both ends where there is no state."""
        side = Side.BOTH if self.status is SearchStatus.ZERO else Side.LOWER
        return Bound(
            side, self.log_weight, Proof.DETERMINISTIC, "heaviest state", self.seconds, 1.0,
            "one state's weight is part of Z",
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"GroundState(log_weight={self.log_weight:.6f}, {self.status.name.lower()}, "
            f"{self.state.size} variables, {self.seconds:.2f} s)"
        )


@prepared("ground_state")
def ground_state(
    model: ModelOrPath,
    search: Search | None = None,
    *,
    time_limit: float | None = 5.0,
    seed: Seed = None,
    threads: int | None = None,
    backend: Backend = "auto",
) -> GroundState:
    """Search for the heaviest state (MAP) of a binary model.

    Independent copies temper for `time_limit` seconds, or until `search` says that it is enough.
    Small models are enumerated and the result is proven. A GPU (`backend`) pays for many runs:
    "auto" takes one from 32 on.
    """
    model = given_model(model, "ground_state")
    search = Search() if search is None else search
    _check(time_limit, search)
    start = time.perf_counter()
    encoding = encode(model)
    poly = encoding.polynomial
    root = seed_sequence(seed)
    origin = provenance(root, model_digest(model), time_limit=time_limit, search=search)
    made = found = 0
    spins = np.ones(poly.n, dtype=np.int8)
    if poly.constant == -np.inf:
        status = SearchStatus.ZERO
    elif poly.n <= search.enumerate_up_to:
        vertex = np.ones(poly.n)
        best_vertex(Coset.build(poly).grouped, vertex)
        spins, status = vertex.astype(np.int8), SearchStatus.OPTIMAL
    else:
        problem = Problem.build(poly)
        betas = tune_ladder(problem, search.tempering, root)
        copies = [
            Tempering(problem, search.tempering, betas, root, 1, c) for c in range(search.runs)
        ]
        # Energies leave the constant out.
        goal = math.inf if search.target is None else search.target - poly.constant
        stopped = run_copies(
            copies,
            sweeps=search.sweeps,
            deadline=None if time_limit is None else start + time_limit,
            threads=threads,
            backend=backend,
            finished=lambda: _reached(copies, goal) or _agreed(copies, search.patience),
        )
        states, _ = merge_best(poly, [c.best for c in copies], 1)
        spins = states[0]
        made = copies[0].sweeps
        top = max(c.top for c in copies)
        found = min((c.top_at for c in copies if c.top >= top - 1e-9 * (1 + abs(top))), default=0)
        status = SearchStatus.LIMIT
        if stopped:
            status = SearchStatus.TARGET if _reached(copies, goal) else SearchStatus.AGREED
    state = _to_variables(encoding, spins)
    weigher = model.log_weight(state if isinstance(model, FactorGraph) else spins)
    return GroundState(
        state=state,
        log_weight=float(weigher[0]),
        spins=spins,
        status=status,
        sweeps=made,
        found_at=found,
        seconds=time.perf_counter() - start,
        provenance=origin,
    )


def _reached(copies: Sequence[Tempering], goal: float) -> bool:
    return max(c.top for c in copies) >= goal


def _agreed(copies: Sequence[Tempering], patience: float) -> bool:
    tops = [c.top for c in copies]
    if max(tops) - min(tops) > 1e-9 * (1.0 + abs(max(tops))) or min(tops) == -math.inf:
        return False
    # Quiet for a multiple of the time that the best took to find: a rule that scales with the
    # difficulty, and still no proof.
    return all(c.sweeps - c.top_at >= max(MIN_QUIET, patience * c.top_at) for c in copies)


def _to_variables(encoding: SpinEncoding, spins: NDArray[np.int8]) -> NDArray[np.int64]:
    """States of all model variables: observed ones as observed, one-state ones 0."""
    return encoding.lift_states(spins)[0]


def _check(time_limit: float | None, search: Search) -> None:
    if not isinstance(search, Search):
        raise ParameterError(f"search is {shown(search)}; expected a tz.Search(...)")
    if time_limit is not None:
        require_seconds("time_limit", time_limit)
    elif search.sweeps is None and search.patience == math.inf:
        raise ParameterError(
            "time_limit and sweeps are None and patience is infinite; set one of them, or the "
            "search would never end"
        )
