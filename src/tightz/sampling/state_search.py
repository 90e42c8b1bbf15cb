"""Heavy states of any discrete model: tempering over states, and moves of whole blocks.

Copies of parallel tempering (Geyer, 1991) move on a model whose zeros are soft, so that chains pass
through forbidden states on their way; only states that the model allows are kept. Another chain
moves in blocks: a cutset is held and all other variables are drawn at once at a low temperature
(Jensen, Kjaerulff and Kong, 1995), which crosses what zeros put between single changes.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.runtime.interrupts import Stop
from tightz.runtime.seeds import generator
from tightz.sampling.ais.state_moves import Sites, sites_of, softened, temper
from tightz.search.feasible import Feasibility, feasible_states
from tightz.search.ground_state import MIN_QUIET, Found, Search, SearchStatus

LADDER = 24
"""Temperatures of a copy."""

HOT, COLD = 0.3, 30.0
"""The hottest and the coldest, as beta times what the tables of a variable can change."""

SWEEPS = 20
"""Between two looks at what was found; more where sweeps are short."""

FEASIBLE = 0.3
"""Part of the time for the first state that the model allows."""

MOST_ROUNDS = 20
"""Cutsets at one look, at most."""

BLOCK = 10.0
"""log2 of the largest table of a block move."""

MOVES, NOISE = 4, 3.0
"""Moves with one cutset, and what makes cutsets differ: added to the choice's scores."""

BLOCKS, MOST_FACTORS = 0.5, 20_000
"""Part of the time for moves in blocks; above so many tables a cutset takes too long to choose."""


def search_states(
    model: FactorGraph,
    search: Search,
    root: np.random.SeedSequence,
    *,
    k: int = 1,
    time_limit: float | None = None,
    stop: Stop | None = None,
) -> Found:
    """The k heaviest states (S, n) found by the time limit, or until `stop` is set; `model` has
    variables, and no evidence.

    ZERO where a complete search shows that no state has weight, NONE where none was found.
    """
    clock = Clock(math.inf if time_limit is None else time_limit, stop=stop)
    kept = _Kept(model, k)
    starts: list[NDArray[np.int64]] = []
    if model.has_zeros:
        first = clock.child(FEASIBLE * clock.left if clock.left < math.inf else 10.0)
        for found in itertools.islice(feasible_states(model, clock=first, seed=root), 100):
            if found.status is Feasibility.IMPOSSIBLE:
                return Found(np.zeros((0, model.n_variables), np.int64), SearchStatus.ZERO)
            if found.state is not None:
                starts.append(found.state)
                kept.offer(found.state[None], 0)
                if len(starts) == 2 * search.runs:
                    break
    copies = [_Copy.of(model, starts, generator(root, 2, c)) for c in range(search.runs)]
    blocks = _Blocks(model, generator(root, 3)) if model.n_factors <= MOST_FACTORS else None
    goal = math.inf if search.target is None else search.target
    most = math.inf if search.sweeps is None else search.sweeps
    made, status, pace = 0, SearchStatus.LIMIT, SWEEPS
    while made < most and not clock.expired:
        begun = time.perf_counter()
        count = int(min(pace, most - made))
        made += count
        for copy in copies:
            copy.run(count)
            copy.note(kept.offer(copy.best.T, made), made)
        spent = time.perf_counter() - begun
        if blocks is not None and len(kept.states):
            rounds = 1 if search.sweeps is not None else MOST_ROUNDS  # repeatable without a clock
            for _ in range(rounds):
                kept.offer(blocks.moved(kept.states[0]), made)
                if time.perf_counter() - begun > spent / (1.0 - BLOCKS):
                    break
        if kept.top >= goal:
            status = SearchStatus.TARGET
            break
        if _agreed(copies, kept, search.patience, made):
            status = SearchStatus.AGREED
            break
        if spent < 0.02:
            pace *= 2
    if not len(kept.states):
        status = SearchStatus.NONE
    return Found(kept.states, status, made, kept.top_at)


@dataclass(eq=False)
class _Kept:
    """The k heaviest states that the model allows, and by which sweep the first was found."""

    model: FactorGraph
    k: int
    states: NDArray[np.int64] = field(init=False)
    logs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    top_at: int = 0

    def __post_init__(self) -> None:
        self.states = np.zeros((0, self.model.n_variables), dtype=np.int64)

    @property
    def top(self) -> float:
        return float(self.logs[0]) if self.logs.size else -math.inf

    def offer(self, rows: NDArray, made: int) -> float:
        """Keep what is heavy enough; the largest log weight among the rows."""
        logs = self.model.log_weight(rows)
        before = self.top
        every = np.concatenate([self.states, rows.astype(np.int64)])
        values = np.concatenate([self.logs, logs])
        order = np.argsort(-values, kind="stable")
        seen: dict[bytes, int] = {}
        for i in order[values[order] > -math.inf].tolist():
            if len(seen) < self.k:
                seen.setdefault(every[i].tobytes(), i)
        chosen = list(seen.values())
        self.states, self.logs = every[chosen], values[chosen]
        if self.top > before + 1e-9 * (1.0 + abs(self.top)):
            self.top_at = made
        return float(logs.max(initial=-math.inf))


@dataclass(eq=False)
class _Copy:
    """One run of tempering: lanes at temperatures of a ladder, which they exchange."""

    sites: Sites
    betas: NDArray[np.float64]
    order: NDArray[np.int64]
    x: NDArray[np.int32]
    words: NDArray[np.uint64]
    best: NDArray[np.int32]
    best_soft: NDArray[np.float64]
    energy: NDArray[np.float64]
    top: float = -math.inf
    top_at: int = 0

    @classmethod
    def of(
        cls, model: FactorGraph, starts: list[NDArray[np.int64]], rng: np.random.Generator
    ) -> _Copy:
        spread = _spreads(model)
        # Deep enough that no finite entry makes up for a zero.
        soft = softened(model, 20.0 + 2.0 * spread)
        sites = sites_of(soft)
        scale = max(spread, 1e-12)
        betas = np.geomspace(HOT / scale, COLD / scale, LADDER)
        x = rng.integers(0, model.cardinalities[:, None], size=(model.n_variables, LADDER))
        for lane, start in enumerate(starts[:LADDER]):
            x[:, LADDER - 1 - lane] = start  # at the cold end
        words = rng.integers(2**64, size=(4, LADDER), dtype=np.uint64)
        lowest = np.full(LADDER, -np.inf)
        return cls(
            sites, betas, np.arange(LADDER), x.astype(np.int32), words, x.astype(np.int32), lowest,
            np.empty(LADDER),
        )  # fmt: skip

    def run(self, sweeps: int) -> None:
        temper(
            self.sites, self.betas, self.order, self.x, self.energy, self.words, self.best,
            self.best_soft, sweeps,
        )  # fmt: skip

    def note(self, found: float, made: int) -> None:
        if found > self.top + 1e-9 * (1.0 + abs(found)):
            self.top, self.top_at = found, made


def _spreads(model: FactorGraph) -> float:
    """What the finite entries of a variable's tables can change, on average over variables."""
    logs, starts = model.log_tables, model.table_ptr[:-1]
    if not logs.size:
        return 0.0
    low = np.minimum.reduceat(np.where(np.isneginf(logs), np.inf, logs), starts)
    high = np.maximum.reduceat(logs, starts)
    known = np.isfinite(low) & np.isfinite(high)
    spread = np.where(known, np.where(known, high, 0.0) - np.where(known, low, 0.0), 0.0)
    per_variable = np.bincount(
        model.scope_vars, np.repeat(spread, model.arities), minlength=model.n_variables
    )
    return float(per_variable.mean())


def _agreed(copies: list[_Copy], kept: _Kept, patience: float, made: int) -> bool:
    """Whether all copies found the best and none has improved for long; no proof."""
    tops = [copy.top for copy in copies]
    slack = 1e-9 * (1.0 + abs(kept.top))
    if kept.top == -math.inf or min(tops) < kept.top - slack:
        return False
    return all(made - c.top_at >= max(MIN_QUIET, patience * c.top_at) for c in copies)


class _Blocks:
    """A chain that is moved in blocks: a fresh cutset each time, all others drawn given it.

    Cutsets that differ matter more than many moves with each: on linkage_11, 4 s of one core,
    fresh ones led to -172.8 where four in turn stayed at -178.
    """

    def __init__(self, model: FactorGraph, rng: np.random.Generator) -> None:
        self.rng, self.state = rng, np.zeros(0, dtype=np.int64)
        beta = COLD / max(_spreads(model), 1e-12)
        self.cold = FactorGraph.from_arrays(
            model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr,
            model.log_tables * beta,
        )  # fmt: skip

    def moved(self, start: NDArray[np.int64]) -> NDArray[np.int64]:
        """States (MOVES, n) on the chain's way, which begins at `start`, an allowed state."""
        if not self.state.size:
            self.state = start
        noise = self.rng.uniform(0.0, NOISE, self.cold.n_variables)
        block = ConditionedElimination(self.cold, choose_cutset(self.cold, BLOCK, noise=noise))
        found = []
        for _ in range(MOVES):
            if block.log_z(self.state) > -math.inf:
                self.state = block.sample(self.state, self.rng)
            found.append(self.state)
        return np.array(found)
