"""Messages from several starts: where they come to rest, which is best, and whether it is stable.

On a graph with cycles there may be many fixed points, and the one that uniform messages lead to
may be a saddle of the Bethe free energy (a ferromagnet without field in its ordered phase). So
messages start in several ways, the best fixed point is kept, and it is tested: messages that are
changed a little must come back to it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.judge.attractive import AttractiveEvidence
from tightz.judge.spanning import components
from tightz.judge.verdict import Verdict
from tightz.models.factor_graph import FactorGraph
from tightz.propagation.arrays import (
    BetheArrays,
    BetheState,
    largest_entry,
    message_cap,
    message_states,
    start_at,
    start_state,
    widest_scope,
)
from tightz.propagation.kernels import bethe_log_z, propagate

_SAFE = 1e290
"""Log potentials below this cannot overflow to -inf in sums and so feign a contradiction."""

_STALL = 50
"""Iterations in which the residual must fall by a tenth, or messages are damped more."""

_COLD = 4.0
"""Inverse temperature at which messages first settle on heavy states; they start from there."""

_COLD_SWEEPS = 100

_STEP = 1e-5
"""Change of the messages, in nats, by which a fixed point is tested."""

_TESTS = 40
"""Double sweeps of that test; the growth is measured over the second half."""

_GROWS = 1.001
"""Growth in a double sweep from which a fixed point counts as unstable."""

_LEAVES = 0.1
"""Nats by which messages are moved off an unstable fixed point."""

_RARE = 1e-6
"""Least probability of a state where messages start: no start rules any out."""

_MOST = 1e300
"""Larger numbers are no weights of states: sums of them overflow."""


class BetheStatus(enum.Enum):
    """How belief propagation ended; the value is the advice."""

    CONVERGED = "converged: messages changed by less than tol"
    UNSTABLE = (
        "converged to an unstable fixed point: a saddle of the Bethe free energy, whose estimate "
        "may be far off; raise starts, or give your own"
    )
    NOT_CONVERGED = "not converged: raise max_iterations or damping; the estimate may be far off"
    IMPOSSIBLE = "Z = 0: the zero potentials contradict each other"


@dataclass(frozen=True, eq=False)
class Run:
    """Where messages came to from one start; `beside` are messages off an unstable fixed point."""

    state: BetheState
    log_z: float
    status: BetheStatus
    iterations: int = 0
    residual: float = 0.0
    evidence: AttractiveEvidence | None = None
    verdict: Verdict = field(default_factory=Verdict)
    growth: float = 0.0
    beside: BetheState | None = None

    @property
    def converged(self) -> bool:
        return self.status in (BetheStatus.CONVERGED, BetheStatus.UNSTABLE)

    def rank(self) -> tuple[bool, float, bool, float]:
        """Larger is better: what is proven, then whether it converged, then its value."""
        value = self.log_z if self.converged else -self.residual
        impossible = self.status is BetheStatus.IMPOSSIBLE
        return impossible, _rounded(self.verdict.lower), self.converged, _rounded(value)


def _rounded(value: float) -> float:
    """To ten digits, so that equal fixed points compare equal, whatever led to them."""
    return float(f"{value:.9e}")


@dataclass(frozen=True, eq=False)
class Runs:
    """Belief propagation on one model from several starts."""

    model: FactorGraph
    numbers: NDArray
    constant: float
    arrays: BetheArrays
    max_iterations: int
    tol: float
    damping: float
    constrained: bool

    def impossible(self) -> Run:
        return self._judged(Run(start_state(self.arrays), -math.inf, BetheStatus.IMPOSSIBLE))

    def of(self, state: BetheState) -> Run:
        """The messages' course from `state`, which is changed."""
        arrays = self.arrays
        starts = arrays.var_ptr[:-1]
        if starts.size and not np.logical_or.reduceat(state.alive, starts).all():
            return self.impossible()
        made, residual, status = _settle(arrays, state, self.max_iterations, self.tol, self.damping)
        log_z = -math.inf
        if status is not BetheStatus.IMPOSSIBLE:
            log_z = self.constant + float(bethe_log_z(arrays, state, widest_scope(arrays)))
        growth = 0.0 if is_forest(arrays) else math.nan
        return self._judged(Run(state, log_z, status, made, residual, growth=growth))

    def _judged(self, run: Run) -> Run:
        # The lower bound for attractive models needs no convergence: the judge evaluates the free
        # energy at whatever beliefs came out, made exactly consistent. Under parities there is no
        # such theorem.
        if self.constrained:
            return run
        evidence = AttractiveEvidence(
            _full_beliefs(self.model, self.numbers, self.arrays, run.state)
        )
        return replace(run, evidence=evidence, verdict=evidence.verdict(self.model))

    def states(self, starts: int | Sequence[Any], rng: np.random.Generator) -> Iterator[BetheState]:
        """Messages to start from, beside uniform ones."""
        if not isinstance(starts, int):
            for number, one in enumerate(starts):
                yield start_at(self.arrays, self._logs(one, number))
            return
        for k in range(1, starts):
            state = start_at(self.arrays, rng.normal(size=self.arrays.unary.size))
            if k == 1 and _COLD * largest_entry(self.arrays) < _SAFE:
                cold = self.arrays._replace(
                    unary=_COLD * self.arrays.unary, tables=_COLD * self.arrays.tables
                )
                _settle(cold, state, min(_COLD_SWEEPS, self.max_iterations), self.tol, self.damping)
            yield state

    def _logs(self, start: Any, number: int) -> NDArray[np.float64]:
        """A start of the caller's as one log probability for each state of each free variable."""
        cards = self.model.cardinalities
        rows = list(start) if isinstance(start, Iterable) else []
        if len(rows) != cards.size:
            raise ModelError(
                f"starts[{number}] has {len(rows)} entries; expected a state or a probability "
                f"vector for each of the model's {cards.size} variables"
            )
        found = []
        for v in self.numbers.tolist():
            vector = _numbers(rows[v])
            if vector.ndim == 0:
                vector = (np.arange(cards[v]) == vector).astype(np.float64)
            good = vector.shape == (cards[v],) and bool(((vector >= 0.0) & (vector < _MOST)).all())
            if not good or not vector.any():
                raise ModelError(
                    f"starts[{number}] has {rows[v]!r} for {self.model.naming.said(v)}; expected "
                    f"one of its {cards[v]} states, or a probability for each"
                )
            found.append(np.log(np.maximum(vector / vector.sum(), _RARE)))
        return np.concatenate(found) if found else np.zeros(0)

    def tested(self, run: Run, rng: np.random.Generator) -> Run:
        """Whether messages come back to the fixed point after a small change.

        Power iteration on the differences that double sweeps make of a change. They are damped,
        so that only a change that grows without turning its sign counts: messages that cycle may
        still rest at a minimum of the Bethe free energy.
        """
        if run.status is not BetheStatus.CONVERGED:
            return run
        first, second = run.state.messages, run.state.odds
        ptr, alive = self.arrays.var_ptr[self.arrays.parity_vars], run.state.alive
        step = [  # what is said of dead states stays as it is
            rng.normal(size=first.size) * alive[message_states(self.arrays)],
            rng.normal(size=second.size) * (alive[ptr] & alive[ptr + 1]),
        ]
        still = self._swept(run.state, None)
        logs: list[float] = []
        for _ in range(_TESTS):
            size = max(float(np.abs(part).max(initial=0.0)) for part in step)
            if size == 0.0:
                return replace(run, growth=0.0)
            step = [part * (_STEP / size) for part in step]
            moved = self._swept(run.state, step)
            if moved is None or still is None:
                return run
            step = [a - b for a, b in zip(moved, still, strict=True)]
            size = max(float(np.abs(part).max(initial=0.0)) for part in step)
            logs.append(math.log(max(size, 1e-300) / _STEP))
        growth = math.exp(float(np.mean(logs[_TESTS // 2 :])))
        if growth < _GROWS:
            return replace(run, growth=growth)
        away = [part * (_LEAVES / size) for part in step]
        beside = BetheState(
            first + away[0], second + away[1], run.state.beliefs.copy(), run.state.alive.copy()
        )
        return replace(run, growth=growth, status=BetheStatus.UNSTABLE, beside=beside)

    def _swept(
        self, state: BetheState, step: list[NDArray[np.float64]] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Messages after a damped sweep forth and back; None where a state died."""
        first, second = (0.0, 0.0) if step is None else step
        moved = BetheState(
            state.messages + first, state.odds + second, state.beliefs.copy(), state.alive.copy()
        )
        widest, cap = widest_scope(self.arrays), message_cap(self.arrays)
        for backward in (False, True):
            if propagate(self.arrays, moved, 0.5, cap, widest, backward)[1]:
                return None
        return moved.messages, moved.odds


def _numbers(given: Any) -> NDArray[np.float64]:
    """As floats; NaN where it holds something else."""
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([math.nan])


def is_forest(arrays: BetheArrays) -> bool:
    """Whether the graph of variables, factors and parities has no cycle."""
    n, factors = arrays.var_ptr.size - 1, arrays.scope_ptr.size - 1
    joined = np.concatenate([arrays.scope_ptr, arrays.scope_ptr[-1] + arrays.parity_ptr[1:]])
    variables = np.concatenate([arrays.scope_vars, arrays.parity_vars])
    nodes = n + np.repeat(np.arange(joined.size - 1), np.diff(joined))
    total = n + factors + arrays.parity_ptr.size - 1
    parts = np.unique(components(total, variables, nodes)).size
    return variables.size == total - parts


def _settle(
    arrays: BetheArrays, state: BetheState, max_iterations: int, tol: float, damping: float
) -> tuple[int, float, BetheStatus]:
    """Sweep forth and back until messages rest; (iterations, residual, status)."""
    widest, cap = widest_scope(arrays), message_cap(arrays)
    keep, checkpoint, residual = damping, np.inf, np.inf
    for iteration in range(1, max_iterations + 1):
        residual, contradiction = propagate(arrays, state, keep, cap, widest, iteration % 2 == 0)
        # A state dies only where sums are -inf; with entries near overflow that may be rounding,
        # and then nothing is claimed.
        if contradiction:
            certain = largest_entry(arrays) < _SAFE and cap < _SAFE
            status = BetheStatus.IMPOSSIBLE if certain else BetheStatus.NOT_CONVERGED
            return iteration, float(residual), status
        if residual <= tol * (1.0 - keep):  # a damped step understates how far there is to go
            return iteration, float(residual), BetheStatus.CONVERGED
        # Messages that cycle: damp more, for good. Damping changes the way, not the fixed points.
        if iteration % _STALL == 0:
            if residual > 0.9 * checkpoint:
                keep = max(keep, min(0.9, 0.5 + 0.5 * keep))
            checkpoint = residual
    return max_iterations, float(residual), BetheStatus.NOT_CONVERGED


def _full_beliefs(
    model: FactorGraph, numbers: NDArray, arrays: BetheArrays, state: BetheState
) -> NDArray[np.float64]:
    """Log beliefs over all states of the model; zero where evidence leaves nothing to say."""
    blocks = [np.zeros(c) for c in model.cardinalities.tolist()]
    for k, v in enumerate(numbers.tolist()):
        blocks[v] = state.beliefs[arrays.var_ptr[k] : arrays.var_ptr[k + 1]].copy()
    return np.concatenate(blocks) if blocks else np.zeros(0)
