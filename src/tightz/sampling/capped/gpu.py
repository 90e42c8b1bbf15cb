"""Draws from a mini-bucket bound whose tables lie on a device, a thread a lane.

As `tightz.sampling.capped.kernels`, but q is formed from messages and shifts as it is needed:
log E_c = F_c - m_c, and all that a bucket adds up is one list of terms.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.judge.gpu.proposals import Table, Tables, cap_excess, check_weights
from tightz.judge.verdict import UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.gpu import alone
from tightz.runtime.gpu.device import SIMULATED, cuda, device_kernel
from tightz.runtime.switching import LAUNCHES, switching
from tightz.sampling.capped.kernels import _FLUSH, _next
from tightz.sampling.capped.lanes import Capped, Lanes
from tightz.uppers.mini_bucket.gpu import DeviceDescent

THREADS = 2 if SIMULATED else 64
MOST_STATES = 64
"""Of a variable: a thread keeps the masses of all of them."""

FEWEST, MOST, HELD = 1 << 10, 1 << 17, 1 << 29
"""Lanes, fewest and most, and entries of all their states, about. A lane is a thread that waits for
memory most of the time: fewer than this leave the device half idle."""


@device_kernel
def _draw(pool, book, levels, words, states, log_x):
    """One state per lane: states (variables, lanes), log_x (lanes,) = log prod_i S_i.

    book: buckets; then for each its variable, states and terms; per term its place, sign, place of
    its level, stride of the bucket's variable, number of other axes, and of each of these variable
    and stride.
    """
    lane = cuda.grid(1)
    if lane >= log_x.size:
        return
    mass = cuda.local.array(MOST_STATES, np.float64)
    total_log, product = 0.0, 1.0
    at = 1
    for _ in range(book[0]):
        variable, count, terms = book[at], book[at + 1], book[at + 2]
        at += 3
        for v in range(count):
            mass[v] = 0.0
        for _ in range(terms):
            place, own = book[at], book[at + 3]
            axes = book[at + 4]
            for a in range(at + 5, at + 5 + 2 * axes, 2):
                place += states[book[a], lane] * book[a + 1]
            for v in range(count):
                value = np.float64(pool[place + v * own]) - levels[book[at + 2]]
                mass[v] += value if book[at + 1] > 0 else -value
            at += 5 + 2 * axes
        total = 0.0
        for v in range(count):
            mass[v] = math.exp(mass[v])
            total += mass[v]
        chosen = count - 1
        rest = total
        for v in range(count - 1):
            # the rarer side is the one that a small number picks, which has all its digits
            e = mass[v]
            rest = 0.0
            for w in range(v + 1, count):
                rest += mass[w]
            u = _next(words, lane) * (e + rest)
            if (u <= e) if e < rest else (u > rest):
                chosen = v
                break
        states[variable, lane] = chosen
        product *= total
        if product < _FLUSH or product > 1.0 / _FLUSH:
            total_log += math.log(product) if product > 0.0 else -math.inf
            product = 1.0
    log_x[lane] = total_log + math.log(product)


@dataclass(frozen=True, eq=False)
class DeviceProposal(Capped):
    """`Capped` with its tables on a device."""

    tables: Tables

    @classmethod
    @alone
    def of(cls, model: FactorGraph, descent: DeviceDescent) -> DeviceProposal:
        parts, program = descent.parts, descent.program
        if parts.cardinalities.max(initial=1) > MOST_STATES:
            raise ResourceError(f"variables of more than {MOST_STATES} states: no draws on a GPU")
        taken = descent.snapshot()
        levels = taken.levels.tolist()
        tables = Tables(
            pool=taken.pool,
            tables=[
                [
                    *(
                        Table(t.place, t.sign, levels[t.child] if t.child >= 0 else 0.0, t.scope)
                        for t in program.terms[c]
                    ),
                    Table(program.message_at[c], -1, 0.0, scope[:-1]),
                ]
                for c, scope in enumerate(parts.cliques)
            ],
            scopes=parts.cliques,
            bucket_ptr=parts.bucket_ptr,
            cardinalities=parts.cardinalities,
        )
        with switching(LAUNCHES):
            excess, magnitude = cap_excess(tables, taken.weights)
        magnitude += float(np.abs(taken.levels).sum())  # of log U
        return cls(
            model=model,
            parts=parts,
            log_u=taken.log_u,
            log_cap=taken.log_u + excess,
            # factors are those of float32, sums in float64
            rounding=program.blur + 64.0 * UNIT * magnitude,
            tables=tables,
        )

    @property
    def lanes(self) -> int:
        if SIMULATED:
            return 8
        fair = HELD // max(1, self.cardinalities.size)
        return int(min(MOST, max(FEWEST, 1 << fair.bit_length())))

    @cached_property
    def book(self) -> tuple[Any, Any]:
        """What `_draw` reads: buckets in reverse, and levels."""
        words, levels = [int(self.parts.bucket_ptr.size - 1)], [0.0]
        cards = self.cardinalities.tolist()
        for low, high in reversed(list(pairwise(self.parts.bucket_ptr.tolist()))):
            own = self.parts.cliques[low][-1]
            terms = [table for c in range(low, high) for table in self.tables.tables[c]]
            words += [own, cards[own], len(terms)]
            for place, sign, level, scope in terms:
                strides, stride = [], 1
                for v in reversed(scope):
                    strides.append((v, stride))
                    stride *= cards[v]
                held = dict(strides)
                words += [place, sign, len(levels), held.pop(own, 0), len(held)]
                words += [word for pair in held.items() for word in pair]
                levels.append(level)
        return cuda.to_device(np.array(words)), cuda.to_device(np.array(levels))

    def drawing(self, words: NDArray[np.uint64]) -> DeviceDrawing:
        return DeviceDrawing(self, words)

    @alone
    def check(self, drawing: Lanes, count: int = 32) -> None:
        rows = drawing.states[:, :count].T.astype(np.int64)
        check_weights(
            self.model, self.tables, rows, drawing.log_x[:count] + self.log_u,
            2.0 * self.rounding + 1e-9,
        )  # fmt: skip


class DeviceDrawing(Lanes):
    """Draws batch by batch on the device; their states are fetched when they are asked for."""

    @alone
    def __init__(self, proposal: DeviceProposal, words: NDArray[np.uint64]) -> None:
        self.proposal = proposal
        self._words = cuda.to_device(words)
        self.log_x = np.empty(words.size)
        shape = (proposal.cardinalities.size, words.size)
        self._states = cuda.device_array(shape, np.uint8)
        self._log_x = cuda.to_device(self.log_x)
        self._fetched: NDArray[np.uint8] | None = None

    @property
    def states(self) -> NDArray[np.uint8]:  # type: ignore[override]
        if self._fetched is None:
            self._fetched = self._fetch()
        return self._fetched

    @alone
    def _fetch(self) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self._states.copy_to_host()
        return found

    @alone
    def batch(self) -> NDArray[np.float64]:
        book, levels = self.proposal.book
        blocks = -(-self.log_x.size // THREADS)
        pool = self.proposal.tables.pool
        _draw[blocks, THREADS](pool, book, levels, self._words, self._states, self._log_x)
        self._log_x.copy_to_host(self.log_x)
        self._fetched = None
        return self.log_x.copy()
