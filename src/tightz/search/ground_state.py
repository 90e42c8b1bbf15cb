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

from tightz.errors import ParameterError, require_range
from tightz.families.ascent import best_vertex
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.projections.coset import Coset
from tightz.reductions.encoding import Model, SpinEncoding, encode, model_digest
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


@dataclass(frozen=True, eq=False, repr=False)
class GroundState:
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

    def __repr__(self) -> str:
        return (
            f"GroundState(log_weight={self.log_weight:.6f}, {self.status.name.lower()}, "
            f"{self.state.size} variables, {self.seconds:.2f} s)"
        )


def ground_state(
    model: Model,
    *,
    time_limit: float | None = 5.0,
    sweeps: int | None = None,
    seed: Seed = None,
    target: float | None = None,
    runs: int = 2,
    patience: float = 2.0,
    enumerate_up_to: int = 20,
    method: ParallelTempering = SEARCHER,
    threads: int | None = None,
    backend: Backend = "auto",
) -> GroundState:
    """Search for the heaviest state (MAP) of a binary model.

    `runs` independent copies temper until one of these: `time_limit` seconds; `sweeps` sweeps; a
    state at least as heavy as `target` (a log weight); or all copies agree on the best weight and
    none has improved for `patience` times the sweeps that it took (math.inf: never stop so).
    Models of at most `enumerate_up_to` free variables are enumerated and the result is proven.
    A GPU (`backend`) pays for many runs: "auto" takes one from 32 on.
    """
    as_model(model, "ground_state")
    _check(time_limit, sweeps, runs, patience, enumerate_up_to)
    start = time.perf_counter()
    encoding = encode(model)
    poly = encoding.polynomial
    root = seed_sequence(seed)
    origin = provenance(
        root, model_digest(model), time_limit=time_limit, sweeps=sweeps, target=target, runs=runs,
        patience=patience, enumerate_up_to=enumerate_up_to, method=method,
    )  # fmt: skip
    made = found = 0
    spins = np.ones(poly.n, dtype=np.int8)
    if poly.constant == -np.inf:
        status = SearchStatus.ZERO
    elif poly.n <= enumerate_up_to:
        vertex = np.ones(poly.n)
        best_vertex(Coset.build(poly).grouped, vertex)
        spins, status = vertex.astype(np.int8), SearchStatus.OPTIMAL
    else:
        problem = Problem.build(poly)
        betas = tune_ladder(problem, method, root)
        copies = [Tempering(problem, method, betas, root, 1, c) for c in range(runs)]
        # Energies leave the constant out.
        goal = math.inf if target is None else target - poly.constant
        stopped = run_copies(
            copies,
            sweeps=sweeps,
            deadline=None if time_limit is None else start + time_limit,
            threads=threads,
            backend=backend,
            finished=lambda: _reached(copies, goal) or _agreed(copies, patience),
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
    free = ((1 - spins.astype(np.int64)) // 2).astype(np.int64)
    if not isinstance(encoding.model, FactorGraph):
        return free
    state = np.zeros(encoding.model.n_variables, dtype=np.int64)
    for v, observed in encoding.model.evidence.items():
        state[v] = observed
    state[encoding.variables] = free
    return state


def _check(
    time_limit: float | None,
    sweeps: int | None,
    runs: int,
    patience: float,
    enumerate_up_to: int,
) -> None:
    require_range("runs", runs, 1)
    require_range("patience", patience, 0.0)
    require_range("enumerate_up_to", enumerate_up_to, 0, 40)
    if sweeps is not None:
        require_range("sweeps", sweeps, 1)
    if time_limit is not None and not time_limit > 0.0:
        raise ParameterError(f"time_limit is {time_limit}; expected a positive number of seconds")
    if time_limit is None and sweeps is None and patience == math.inf:
        raise ParameterError(
            "time_limit and sweeps are None and patience is infinite; set one of them, or the "
            "search would never end"
        )
