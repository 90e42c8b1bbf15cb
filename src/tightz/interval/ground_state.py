"""The heaviest states of any model: exact elimination where it fits, search and a bound elsewhere.

What is claimed is the judge's: weights are added up from the model's own tables, and cliques whose
tables sum to the model bound every state that was not found (`tightz.judge.heaviest`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side, figure
from tightz.elimination.states import ENTRY_SECONDS, CliqueStates, uncut
from tightz.errors import (
    ParameterError,
    TightzError,
    require_range,
    require_seconds,
)
from tightz.interval.evidence import Contradiction, contradiction
from tightz.judge.claims import sum_rounding, total_scale
from tightz.judge.cliques import CliquesEvidence
from tightz.judge.heaviest import heaviest, largest_entries, weights_of
from tightz.judge.verdict import UNIT, summation
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import ModelOrPath, given_model
from tightz.models.inputs import shown
from tightz.models.names import Names
from tightz.models.prepared import prepared
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.encoding import encode, model_digest
from tightz.reductions.preparation import substitute
from tightz.results import OneBound
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.interrupts import Stop, interruptible
from tightz.runtime.memory import parse_memory
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.sampling.state_search import search_states
from tightz.search.ground_state import Found, Search, SearchStatus, search_spins
from tightz.shown import ASIDE, Members
from tightz.uppers.mini_bucket.heaviest import heavy_cliques

ROUNDING = 1e-9
"""Relative difference below which two log weights count as equal."""

SUMS = 256.0
"""Roundings of each sum that the judge's bounds may be off by: a state that is heavier by more than
these is no longer equal, however large a constant both weights share."""

SEARCHING = 0.4
"""Part of the time for tempering; the rest is for bounds, which bring states of their own."""

SUMMING = 0.7
"""Part of it that the tables of an exact elimination may take."""

WALKS = 400
"""States tried with the bounds of one set of cliques."""


@dataclass(frozen=True, eq=False, repr=False)
class GroundState(OneBound):
    """The heaviest states found, and what is proven about all others.

    states        (found, variables) at most k, heaviest first; evidence included; none of weight 0
    log_weights   (found,) log p~ of each, added up from the model's tables and rounded once
    log_upper     no state of the model weighs more, always; the gap to the first is `gap`
    log_others    no state beside `states` weighs more
    asked         how many states were asked for; `n_proven` of those found are the heaviest of all
    sweeps        of tempering, per run; found_at: the sweep by which the first run had found it
    """

    states: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    log_upper: float
    log_others: float
    status: SearchStatus
    sweeps: int
    found_at: int
    seconds: float
    provenance: dict[str, Any]
    model: FactorGraph | None = field(metadata=ASIDE)  # None: spins that came as a polynomial
    asked: int = 1
    _also = ("log_weight", "gap", "n_proven", *OneBound._also)

    def members(self) -> Members:
        names = self.naming
        return Members(
            {
                **super().members(),
                "states": [names.assignment(row) for row in self.states.tolist()],
                "state": names.assignment(self.state.tolist()) if len(self.states) else None,
                "evidence": {} if self.model is None else names.observed(self.model.evidence),
                "contradiction": self.contradiction,
            }
        )

    @property
    def naming(self) -> Names:
        """Names of the model's variables and states."""
        if self.model is None:
            return Names(np.full(self.states.shape[1], 2))
        return self.model.naming

    @property
    def n_proven(self) -> int:
        """How many of the states, from the first, are proven to be the heaviest ones."""
        if self.status is SearchStatus.OPTIMAL:
            return len(self.states)
        return int((self.log_weights >= self.log_others).sum())

    @property
    def state(self) -> NDArray[np.int64]:
        """(variables,) the heaviest one."""
        if not len(self.states):
            raise TightzError(
                f"there is no state: {self.status.value}; expected a model that has one "
                "(`contradiction` says which evidence rules all out)"
            )
        return self.states[0]

    @property
    def spins(self) -> NDArray[np.int8]:
        """(free variables,) the heaviest one as spins 1 - 2x; empty where one has other states."""
        if self.model is None:
            return (1 - 2 * self.state).astype(np.int8)
        free = self.model.free_variables
        binary = bool((self.model.cardinalities[free] == 2).all())
        return (1 - 2 * self.state[free if binary else []]).astype(np.int8)

    @property
    def log_weight(self) -> float:
        """log p~(state); a lower bound on log Z; -inf where there is no state."""
        return float(self.log_weights[0]) if len(self.states) else -math.inf

    @cached_property
    def contradiction(self) -> Contradiction | None:
        """Which observations no state agrees with, where P(evidence) = 0."""
        if self.status is not SearchStatus.ZERO or self.model is None:
            return None
        return contradiction(self.model)

    @property
    def gap(self) -> float:
        """Nats by which the heaviest state of all may be heavier than this one."""
        if self.log_upper == self.log_weight:
            return 0.0
        return self.log_upper - self.log_weight

    @property
    def bound(self) -> Bound:
        """The state's weight as a lower bound on log Z; both ends where there is no state."""
        side = Side.BOTH if self.status is SearchStatus.ZERO else Side.LOWER
        return Bound(
            side, self.log_weight, Proof.DETERMINISTIC, "heaviest state", self.seconds, 1.0,
            "one state's weight is part of Z",
        )  # fmt: skip

    def summary(self) -> str:
        weight, upper = figure(self.log_weight), figure(self.log_upper)
        lines = [f"heaviest state: log weight {weight}, at most {upper}"]
        if self.contradiction is not None:
            lines = [self.contradiction.summary()]
        elif self.asked > 1:
            proven = "all" if self.n_proven == len(self.states) else f"the first {self.n_proven:,}"
            proven = proven if self.n_proven else "none"
            lines.append(
                f"{len(self.states):,} of {self.asked:,} states asked for; proven to be the "
                f"heaviest: {proven}"
            )
        return "\n".join([*lines, f"status: {self.status.value}", f"{self.seconds:.2f} s"])

    def __repr__(self) -> str:
        few = f" of {self.asked}" if len(self.states) < self.asked else ""
        more = f", {len(self.states)}{few} states" if self.asked > 1 else ""
        return (
            f"GroundState(log_weight={self.log_weight:.6f}, gap={self.gap:.2g}, "
            f"{self.status.name.lower()}, {self.states.shape[1]} variables{more}, "
            f"{self.seconds:.2f} s)"
        )


@prepared("ground_state")
def ground_state(
    model: ModelOrPath,
    search: Search | None = None,
    *,
    k: int = 1,
    evidence: Evidence | None = None,
    time_limit: float | None = 5.0,
    seed: Seed = None,
    threads: int | None = None,
    backend: Backend = "auto",
    max_memory: str | int = "8GB",
) -> GroundState:
    """The heaviest state (MAP) of a model, or its k heaviest, with a bound on all others.

    Where exact elimination fits into time and memory the states are proven heaviest; zeros,
    evidence and variables of many states are all the same to it. Elsewhere independent copies
    temper, mini-bucket bounds guide a search of their own, and `log_upper` says how much heavier a
    state could be. `evidence` goes beside the model's own. A `search` that is given is made as it
    says, without elimination; models of few spins are enumerated. A GPU (`backend`) pays for many
    runs: "auto" takes one from 32 on. Ctrl-C returns what is known.
    """
    start = time.perf_counter()
    model = given_model(model, "ground_state")
    if isinstance(model, FactorGraph):
        model = given(model, evidence)
    elif evidence is not None:
        raise ParameterError("a spin polynomial has no evidence; expected a FactorGraph with it")
    _check(time_limit, search, k)
    root = seed_sequence(seed)
    origin = provenance(
        root, model_digest(model), time_limit=time_limit, search=search or Search(), k=k
    )
    with interruptible() as asked:
        ways = _Ways(root, search, k, time_limit, threads, backend, asked)
        if isinstance(model, SpinPolynomial):
            return _of_polynomial(model, ways, start, origin)
        hunt = _Hunt(model, ways, parse_memory(max_memory), start)
        few = search is not None and hunt.reduced.n_variables <= search.enumerate_up_to
        if search is None or few:
            hunt.eliminate()
        if not hunt.done:
            hunt.temper()
        if search is None and not hunt.done:
            hunt.bound()
        return hunt.result(start, origin)


class _Ways(NamedTuple):
    """What was asked for."""

    root: np.random.SeedSequence
    search: Search | None
    k: int
    time_limit: float | None
    threads: int | None
    backend: Backend
    asked: Stop  # to end, by Ctrl-C

    def spins(self, poly: SpinPolynomial, time_limit: float | None) -> Found:
        return search_spins(
            poly, self.search or Search(), self.root, k=self.k, time_limit=time_limit,
            threads=self.threads, backend=self.backend, stop=self.asked.is_set,
        )  # fmt: skip


def _of_polynomial(
    poly: SpinPolynomial, ways: _Ways, start: float, origin: dict[str, Any]
) -> GroundState:
    """Spins that came as a polynomial: searched, and bounded by its coefficients alone."""
    found = ways.spins(poly, ways.time_limit)
    logs = poly.log_weight(found.states)
    sizes = np.abs([poly.constant, *poly.theta.tolist()])
    rounding = summation(len(sizes), float(sizes[np.isfinite(sizes)].sum()))
    upper = poly.constant + float(np.abs(poly.theta).sum()) + rounding
    if found.status is SearchStatus.OPTIMAL:
        upper = float(logs[0]) + rounding
    some = logs > -math.inf
    return GroundState(
        states=(1 - found.states[some].astype(np.int64)) // 2,
        log_weights=logs[some],
        log_upper=upper,
        log_others=upper,
        status=found.status,
        sweeps=found.sweeps,
        found_at=found.found_at,
        seconds=time.perf_counter() - start,
        provenance=origin,
        model=None,
        asked=ways.k,
    )


class _Hunt:
    """States of one model as they are found, and the bound on those that were not.

    All is about `reduced`, the model without what is forced; weights and bounds are the same.
    """

    def __init__(
        self, model: FactorGraph, ways: _Ways, max_memory: int, start: float | None = None
    ) -> None:
        self.model, self.ways, self.k, self.max_memory = model, ways, ways.k, max_memory
        limit = math.inf if ways.time_limit is None else ways.time_limit
        self.clock = Clock(limit, stop=ways.asked, since=start)
        self.chain = substitute(model)
        self.reduced = self.chain.reduced
        self.states = np.zeros((0, self.reduced.n_variables), dtype=np.int64)
        self.log_weights = np.zeros(0)
        self.log_upper = self.log_others = largest_entries(self.reduced)
        self.found: Found | None = None
        self.none = self.log_upper == -math.inf
        sums = self.reduced.n_variables + self.reduced.n_factors
        self.slack = SUMS * sums * UNIT * (1.0 + total_scale(self.reduced))

    @property
    def done(self) -> bool:
        """Whether all is proven, or there are states and no time is left for more."""
        return self.proven or (self.clock.expired and len(self.states) > 0)

    def late(self, entries: float = 0.0) -> bool:
        """Whether going over so many entries of tables takes longer than what is left."""
        return ENTRY_SECONDS * entries >= self.clock.left

    @property
    def proven(self) -> bool:
        """Whether the states found are the k heaviest, or there is none."""
        if self.none:
            return True
        if not len(self.states):
            return False
        least = float(self.log_weights[-1])
        return self.log_others <= least + min(ROUNDING * (1.0 + abs(least)), self.slack) and (
            len(self.states) == self.k or self.log_others == -math.inf
        )

    def add(self, states: NDArray[np.int64]) -> None:
        """Keep the k heaviest of these and those known."""
        known = {row.tobytes() for row in self.states}
        new = {row.tobytes(): row for row in states.astype(np.int64)}
        rows = [row for key, row in new.items() if key not in known]
        if not rows:
            return
        weights = weights_of(self.reduced, np.array(rows))
        every = np.concatenate([self.states, np.array(rows)])
        logs = np.concatenate([self.log_weights, weights])
        # Of equal weights the first by state: the same for every way that they were found.
        keys = [*every.T[::-1], -logs] if every.size else [-logs]
        order = [i for i in np.lexsort(keys).tolist() if logs[i] > -math.inf][: self.k]
        self.states, self.log_weights = every[order], logs[order]
        self.log_upper = max(self.log_upper, float(self.log_weights[0]) if order else -math.inf)

    def judge(self, cliques: CliquesEvidence, walked: NDArray[np.int64]) -> None:
        """Take what the cliques prove about states that are not among those known or walked."""
        beside = np.unique(np.concatenate([self.states, walked]), axis=0)
        others = heaviest(cliques, self.reduced, beside, stop=self.late)
        top = float(self.log_weights[0]) if len(self.states) else -math.inf
        self.log_upper = min(self.log_upper, max(others, top + 2.0 * UNIT * abs(top)))
        self.none = self.log_upper == -math.inf
        # Walked states that are not kept weigh no more than the last that is: both were added up
        # and rounded once.
        if len(self.states):
            last = float(self.log_weights[-1])
            passed = last + 4.0 * UNIT * abs(last) if len(beside) > len(self.states) else -math.inf
            self.log_others = min(self.log_others, max(others, passed))

    def eliminate(self) -> None:
        if self.reduced.n_variables == 0:
            self.add(np.zeros((1, 0), dtype=np.int64))
            self.log_others = -math.inf
            return
        most = SUMMING * self.clock.left
        cliques = uncut(self.reduced, max_bytes=self.max_memory, seconds=most)
        if cliques is None:
            return
        part = self.clock.child(most)
        states = CliqueStates(
            self.reduced, cliques, stop=lambda entries: ENTRY_SECONDS * entries >= part.left
        )
        if states.stopped:
            return
        found = states.heaviest(self.k, stop=self.late)
        self.add(found.states)
        self.judge(cliques, found.states[:0])

    def temper(self) -> None:
        """States by search; what the search says of itself is kept."""
        share = SEARCHING if self.ways.search is None else 1.0
        limit = None if self.clock.limit == math.inf else share * self.clock.left
        if self.reduced.is_binary and not self.reduced.has_zeros:
            encoding = encode(self.reduced)
            self.found = self.ways.spins(encoding.polynomial, limit)
            self.add(encoding.lift_states(self.found.states))
            if self.found.status is SearchStatus.OPTIMAL:
                self.log_upper = float(self.log_weights[0]) + sum_rounding(self.reduced)
                self.log_others = self.log_upper
            return
        self.found = search_states(
            self.reduced, self.ways.search or Search(), self.ways.root, k=self.k,
            time_limit=limit, stop=self.ways.asked,
        )  # fmt: skip
        self.add(self.found.states)
        if self.found.status is SearchStatus.ZERO:
            self.none, self.log_upper, self.log_others = True, -math.inf, -math.inf

    def bound(self) -> None:
        """Cliques of growing tables, and the states that their bounds lead to."""
        for cliques in heavy_cliques(
            self.reduced, time_limit=self.clock.left, max_memory=self.max_memory,
            stop=self.ways.asked.is_set,
        ):  # fmt: skip
            states = CliqueStates(self.reduced, cliques, stop=self.late)
            if states.stopped:
                return
            found = states.heaviest(self.k, walks=WALKS, stop=self.late)
            self.add(found.walked)
            self.judge(cliques, found.walked)
            if self.proven or self.clock.expired:
                return

    def status(self) -> SearchStatus:
        if self.none:
            return SearchStatus.ZERO
        if not len(self.states):
            return SearchStatus.NONE
        if self.proven:
            return SearchStatus.OPTIMAL
        return SearchStatus.LIMIT if self.found is None else self.found.status

    def result(self, start: float, origin: dict[str, Any]) -> GroundState:
        return GroundState(
            states=self.chain.lift_states(self.states),
            log_weights=self.log_weights,
            log_upper=self.log_upper,
            log_others=self.log_others,
            status=self.status(),
            sweeps=self.found.sweeps if self.found else 0,
            found_at=self.found.found_at if self.found else 0,
            seconds=time.perf_counter() - start,
            provenance=origin,
            model=self.model,
            asked=self.k,
        )


def _check(time_limit: float | None, search: Search | None, k: int) -> None:
    if search is not None and not isinstance(search, Search):
        raise ParameterError(f"search is {shown(search)}; expected a tz.Search(...)")
    require_range("k", k, 1)
    if time_limit is not None:
        require_seconds("time_limit", time_limit)
    elif search is not None and search.sweeps is None and search.patience == math.inf:
        raise ParameterError(
            "time_limit and sweeps are None and patience is infinite; set one of them, or the "
            "search would never end"
        )
