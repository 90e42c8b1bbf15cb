"""Deterministic lower bounds by conditioning: hold a cutset, sum out the rest, add up assignments.

The states that agree with one assignment of a cutset are a part of the space, and different
assignments give disjoint parts. So the sum of Z(assignment) over any set of assignments is a lower
bound on Z, with no probability involved. Which assignments are worth their time is found by
sampling: block Gibbs steps (Jensen, Kjaerulff and Kong, 1995) draw all variables outside a random
cutset at once, which crosses the barriers that zero potentials put between single changes.

What is reported is the judge's: each assignment that counts was eliminated again by plain numpy
(`tightz.judge.cutsets`), heaviest first and in batches, and one that was not adds nothing.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.judge import Verdict
from tightz.judge.cutsets import Conditioned, CutsetEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock

_STEPS = 12
"""Random cutsets kept for block Gibbs steps."""

_STEP_LOG2_SIZE = 12.0
"""Their tables: small, so that a step takes milliseconds."""

SIZES = (12, 14, 16, 18, 20, 22, 24)
"""log2 of the tables allowed while summing out, phase by phase."""

_STALE = 40
"""Steps without a new assignment after which a phase has found what it will find."""

_CHAINS = 6
"""Starts of the sampler that are compared before one is followed."""

_POOL = 4000

_WORTH = 7.0
"""An assignment lighter than the sum by more nats than this adds less than a thousandth."""

_FAINT = 16.0
"""Assignments lighter than the sum by more nats than this are not judged: they add nothing."""

_JUDGING = 0.25
"""Share of the time that judging may take while a sum grows."""

_LAST = 0.03
"""The same for what is left to judge when the time is up."""

_AT_LEAST = 20.0
"""Evaluations that must fit in the time left for a larger table size to be tried."""


class _Part:
    """One cutset: the assignments added up so far, and where to look for more."""

    def __init__(self, model: FactorGraph, log2_size: float, cost: NDArray[np.float64]) -> None:
        self.elimination = ConditionedElimination(model, choose_cutset(model, log2_size, cost=cost))
        self.held = self.elimination.cutset.held
        self.cards = model.cardinalities[self.held].astype(np.int64)
        self.seen: set[bytes] = set()
        self.total = -math.inf
        self.told = -math.inf
        self.stale = 0
        self.seconds = 0.0
        self.waiting: list[NDArray[np.int64]] = []
        self.conditioned = Conditioned(self.held, self.elimination.cutset.order)
        self.judged: list[NDArray[np.int64]] = []
        self._parents: list[tuple[float, int, NDArray[np.int64]]] = []
        self._unjudged: list[tuple[float, int, NDArray[np.int64]]] = []

    @property
    def complete(self) -> bool:
        """Whether every assignment was added: the sum is then Z itself."""
        return len(self.seen) >= math.prod(self.cards.tolist())

    @property
    def pace(self) -> float:
        """Seconds per number read, from the evaluations so far."""
        return self.seconds / max(1.0, len(self.seen) * self.elimination.work)

    def add(self, state: NDArray[np.int64]) -> bool:
        """Add the assignment that `state` makes, unless it is known."""
        row = state[self.held]
        key = row.tobytes()
        self.stale += 1
        # Each assignment once: parts counted twice would no longer be a bound. The judge merges
        # repeats too, this only saves the work.
        if key in self.seen:
            return False
        self.seen.add(key)
        started = time.perf_counter()
        value = self.elimination.log_z(state)
        self.seconds += time.perf_counter() - started
        # New and heavy enough to matter: the sampler is still finding things.
        if value > self.total - _WORTH:
            self.stale = 0
        heapq.heappush(self._unjudged, (-value, len(self.seen), row))
        if value > -math.inf:
            heapq.heappush(self._parents, (-value, len(self.seen), state))
            self.total = float(np.logaddexp(self.total, value))
        return True

    def evidence(self, most: int | None = None) -> CutsetEvidence:
        """What is worth judging, the heaviest first; `most` bounds how many are new."""
        # Light assignments may be left out of a lower bound; of a complete sum, which is Z itself,
        # none may.
        least = math.inf if self.complete else _FAINT - self.total
        while self._unjudged and self._unjudged[0][0] <= least and most != 0:
            self.judged.append(heapq.heappop(self._unjudged)[2])
            most = None if most is None else most - 1
        return CutsetEvidence(self.conditioned, tuple(self.judged))

    def explore(self) -> bool:
        """Queue every change of one held variable of the heaviest assignment not yet explored."""
        if not self._parents:
            return False
        _, _, parent = heapq.heappop(self._parents)
        for v, states in zip(self.held, self.cards, strict=True):
            for x in range(int(states)):
                if x != parent[v]:
                    near = parent.copy()
                    near[v] = x
                    self.waiting.append(near)
        return True


@dataclass
class CutsetSum:
    """One run from a `state` of positive weight: call `burn_in()`, then `sums()`.

    The model has no evidence and at least one variable. `fresh` gives further states of positive
    weight where sampling finds nothing new. `pool` holds the states drawn since the
    burn-in, `best` the largest bound so far.
    """

    model: FactorGraph
    state: NDArray[np.int64]
    rng: np.random.Generator
    clock: Clock
    max_bytes: int
    fresh: Iterator[NDArray[np.int64]] | None = None
    pool: list[NDArray[np.int64]] = field(default_factory=list)
    best: float = -math.inf

    def __post_init__(self) -> None:
        self._judging, self._weighed = 0.0, 0
        self._begun = time.perf_counter()
        self.counts = [np.zeros(int(c)) for c in self.model.cardinalities]
        self._steps: list[ConditionedElimination] = []

    def sums(self, log2_sizes: Sequence[int] = SIZES, *, whole: bool = True) -> Iterator[Bound]:
        """Ever larger lower bounds until the clock ends or Z itself is reached.

        `log2_sizes` are the tables allowed while summing out, as powers of two, phase by phase;
        `whole`: whether they may be so large that nothing is held.
        """
        best: _Part | None = None
        for log2_size in log2_sizes:
            if self.clock.expired:
                return
            # Larger tables mean fewer held variables, so each assignment covers more of Z but
            # costs more. Which size wins is found by trying each for a while.
            part = _Part(self.model, log2_size, self._entropies())
            work = part.elimination.work
            if not whole and not part.held.size:
                break
            if 8 * part.elimination.entries > self.max_bytes or (
                best is not None and _AT_LEAST * best.pace * work > self.clock.left
            ):
                break
            # States met before are assignments of the new cutset too: they come first.
            part.waiting = self.pool[::-1]
            yield from self._extend(part, Clock(0.15 * self.clock.left))
            if part.complete:
                return
            if best is None or part.total >= best.total:
                best = part
        if best is not None:
            yield from self._extend(best, self.clock)

    @property
    def marginals(self) -> list[NDArray[np.float64]]:
        """Frequencies of the states drawn."""
        return [c / max(c.sum(), 1.0) for c in self.counts]

    def _entropies(self) -> NDArray[np.float64]:
        """Entropy of each variable over the states drawn, smoothed: what holding it costs."""
        out = np.zeros(len(self.counts))
        for v, count in enumerate(self.counts):
            # Holding a variable that hardly moves costs few assignments; one of high entropy
            # should be summed out. Smoothed, since a state not met yet is not impossible.
            p = (count + 0.05) / (count + 0.05).sum()
            out[v] = -(p * np.log(p)).sum()
        return out + 0.02

    @property
    def _affordable(self) -> bool:
        return self._judging <= _JUDGING * (time.perf_counter() - self._begun)

    def _weigh(self, evidence: CutsetEvidence) -> Iterator[Bound]:
        """The judge's number, where it is news."""
        begun, known = time.perf_counter(), len(evidence.conditioned.lowers)
        verdict = evidence.verdict(self.model)
        self._judging += time.perf_counter() - begun
        self._weighed += len(evidence.conditioned.lowers) - known
        if verdict.lower > self.best or verdict.upper < math.inf:
            self.best = max(self.best, verdict.lower)
            yield _bound(verdict, evidence)

    def _step(self) -> tuple[float, CutsetEvidence]:
        """One block Gibbs step: log Z of the assignment it conditioned on, and what proves it."""
        if len(self._steps) < _STEPS:
            noise = self.rng.uniform(0.0, 3.0, self.model.n_variables)
            cutset = choose_cutset(self.model, _STEP_LOG2_SIZE, noise=noise)
            self._steps.append(ConditionedElimination(self.model, cutset))
            step = self._steps[-1]
        else:
            step = self._steps[int(self.rng.integers(_STEPS))]
        # Conditioning on the held variables' states and drawing the others exactly is a Gibbs step
        # on a block: it leaves the model's distribution invariant.
        value = step.log_z(self.state)
        conditioned = Conditioned(step.cutset.held, step.cutset.order)
        evidence = CutsetEvidence(conditioned, (self.state[step.cutset.held],))
        self.state = step.sample(self.state, self.rng)
        for v, x in enumerate(self.state):
            self.counts[v][x] += 1.0
        if len(self.pool) < _POOL:
            self.pool.append(self.state)
        return value, evidence

    def _jump(self) -> bool:
        """Go on from a fresh state: zeros may cut the space into islands that no step leaves."""
        if self.fresh is None:
            return False
        state = next(self.fresh, None)
        if state is not None:
            self.state = state
        return state is not None

    def burn_in(self) -> Iterator[Bound]:
        """Chains from several states, each until its weight stops rising; the heaviest goes on."""
        clock = Clock(0.15 * self.clock.left)
        heaviest, start = -math.inf, self.state
        waiting: tuple[float, CutsetEvidence | None] = (-math.inf, None)
        for _ in range(_CHAINS):
            top, since = -math.inf, 0
            while since < 2 * _STEPS and not clock.expired and not self.clock.expired:
                value, evidence = self._step()
                # The chain has arrived when its assignments stop getting heavier.
                since = 0 if value > top + 0.5 else since + 1
                top = max(top, value)
                waiting = max(waiting, (value, evidence), key=lambda one: one[0])
                if waiting[1] is not None and waiting[0] > self.best and self._affordable:
                    yield from self._weigh(waiting[1])
                    waiting = (-math.inf, None)
            if top > heaviest:
                heaviest, start = top, self.state
            if clock.expired or not self._jump():
                break
        if waiting[1] is not None and waiting[0] > self.best:
            yield from self._weigh(waiting[1])
        self.state = start
        for count in self.counts:
            count[:] = 0.0
        self.pool.clear()
        for _ in range(_STEPS):
            if self.clock.expired:
                return
            self._step()

    def _extend(self, part: _Part, clock: Clock) -> Iterator[Bound]:
        """Add assignments that the sampler meets, and their neighbours where it meets none."""
        turn = 0
        while not clock.expired and not self.clock.expired and not part.complete:
            if part.waiting:
                state = part.waiting.pop()
            # While sampling finds new assignments it goes on; then it takes turns with looking
            # around the heaviest known ones.
            elif part.stale < _STALE or turn % 2:
                self._step()
                state = self.state
                turn += 1
            else:
                turn += 1
                astray = not part.explore() or turn % 8 == 0
                if astray and not self._jump() and part.stale > 100 * _STALE:
                    return
                continue
            new = part.add(state) and part.total > max(self.best, part.told) + 1e-4
            if part.complete or (new and self._affordable):
                part.told = part.total
                yield from self._weigh(part.evidence())
        if part.total > max(self.best, part.told) and not part.complete:
            spare = _LAST * (time.perf_counter() - self._begun)
            pace = self._judging / max(self._weighed, 1)
            part.told = part.total
            yield from self._weigh(part.evidence(1 + int(spare / max(pace, 1e-9))))


def _bound(verdict: Verdict, evidence: CutsetEvidence) -> Bound:
    complete = verdict.upper < math.inf
    name = f"{evidence.conditioned.held.size} held, {len(evidence.rows)} assignments"
    closed = complete and verdict.lower > -math.inf
    value = (verdict.lower + verdict.upper) / 2.0 if closed else verdict.lower
    return Bound(
        Side.BOTH if complete else Side.LOWER, value, Proof.DETERMINISTIC, f"cutset sum, {name}",
        confidence=1.0,
        why=f"{'all' if complete else 'disjoint'} parts of the space, each summed by elimination",
        rounding=verdict.rounding, evidence=evidence,
    )  # fmt: skip
