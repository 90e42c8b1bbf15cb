"""Messages of a judged clique tree on a CUDA device, for tables that numpy would sum for minutes.

The same sums as in `tightz.judge.cliques`, in float64, a thread a row: every entry is formed anew
from the model's factors, the shifts and the messages before it, and moved outward by its rounding.
Only messages that wait for their parent are held. Nothing is shared with the maker's kernels; the
maker's shifts are read where they lie.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.judge.clique_terms import FACTOR, MESSAGE, SHIFT
from tightz.judge.verdict import RefutedError, log_summation, summation

if not hasattr(np, "row_stack"):  # gone from numpy 2.5, still asked for by numba.cuda
    np.row_stack = np.vstack  # noqa: NPY201

from numba import cuda as numba_cuda
from numba.core import config

if TYPE_CHECKING:
    from tightz.judge.cliques import _DeviceTree

cuda: Any = numba_cuda
SIMULATED = bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
THREADS = 2 if SIMULATED else 128
BLOCKS = 2 if SIMULATED else 1 << 14

MOST_TERMS = 64
"""Of a clique: factors, shifts and messages."""


@cuda.jit
def _infinite(shifts, found):
    """found[0] = 1 where a shift is not a finite number."""
    for k in range(cuda.grid(1), shifts.size, cuda.gridsize(1)):
        if not abs(shifts[k]) < np.inf:
            found[0] = 1


@cuda.jit
def _send(logs, shifts, messages, book, at, weight, side, charges):
    """One clique's message. book[at:]: where it goes, axes, terms; sizes of the axes, own one last;
    then per term its kind, sign, first entry and stride for each axis.

    charges: rounding per size of what an entry adds up, of log sum exp, and per size of its result.
    """
    out, axes, terms = book[at], book[at + 1], book[at + 2]
    first = at + 3 + axes
    states, rows = book[first - 1], 1
    for a in range(axes - 1):
        rows *= book[at + 3 + a]
    share = side * charges[0]
    places = cuda.local.array(MOST_TERMS, np.int64)
    for row in range(cuda.grid(1), rows, cuda.gridsize(1)):
        for t in range(terms):
            places[t] = book[first + t * (3 + axes) + 2]
        rest = np.uint32(row)
        for a in range(axes - 2, -1, -1):
            dim = np.uint32(book[at + 3 + a])
            ahead = np.uint32(rest // dim)
            digit = np.int64(np.uint32(rest - ahead * dim))
            rest = ahead
            if digit > 0:
                for t in range(terms):
                    places[t] += digit * book[first + t * (3 + axes) + 3 + a]
        top, total = -math.inf, 0.0
        for turn in range(2):  # the largest, then the sum
            for v in range(states):
                value, size = 0.0, 0.0
                for t in range(terms):
                    term = first + t * (3 + axes)
                    place = places[t] + v * book[term + 2 + axes]
                    if book[term] == FACTOR:
                        x = logs[place]
                    elif book[term] == SHIFT:
                        x = np.float64(shifts[place])
                    else:
                        x = messages[place]
                    value += book[term + 1] * x
                    size += abs(x)
                value += share * size
                if turn == 0:
                    # a value that is no number must not be passed over
                    top = value if not value <= top else top
                else:
                    total += math.exp((value - top) / weight)
        sent = top + weight * math.log(total)
        messages[out + row] = sent + side * (charges[1] + charges[2] * abs(sent))


def charges(terms: int, states: int, weight: float) -> tuple[float, float, float]:
    """What the kernels charge for rounding: CUDA's exp and log are good to 2 units."""
    return summation(terms, 1.0), float(log_summation(states, weight)), summation(2, 1.0)


class _Room:
    """Places in one array: the first gap that is large enough."""

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = []  # (low, high), ascending, none of them neighbours
        self.peak = 0

    def take(self, size: int) -> int:
        for number, (low, high) in enumerate(self.gaps):
            if high - low >= size:
                self.gaps[number : number + 1] = [(low + size, high)] if high - low > size else []
                return low
        low = self.peak
        if self.gaps and self.gaps[-1][1] == self.peak:
            low = self.gaps.pop()[0]
        self.peak = low + size
        return low

    def free(self, low: int, size: int) -> None:
        at, high = bisect.bisect(self.gaps, (low, low)), low + size
        first, last = at, at
        if at and self.gaps[at - 1][1] == low:
            first, low = at - 1, self.gaps[at - 1][0]
        if at < len(self.gaps) and self.gaps[at][0] == high:
            last, high = at + 1, self.gaps[at][1]
        self.gaps[first:last] = [(low, high)]


def root_messages(tree: _DeviceTree, side: float) -> list[float]:
    """The message of every root; positive weights and no zeros only."""
    found = cuda.to_device(np.zeros(1, dtype=np.int32))
    if tree.shifts.size:
        _infinite[BLOCKS, THREADS](tree.shifts, found)
    if found.copy_to_host()[0]:
        raise RefutedError("a shift in device memory is not a finite number")
    book: list[int] = []
    starts, room = [], _Room()
    places: dict[int, int] = {}
    roots = []
    rows = [math.prod(shape[:-1]) for shape in tree.shapes]
    for c in tree.visits:
        places[c] = room.take(rows[c])
        starts.append(len(book))
        book += _page(tree, c, places)
        for child in tree.children[c]:
            room.free(places.pop(child), rows[child])
        if tree.parents[c] < 0:
            roots.append(places[c])
    messages = cuda.device_array(max(1, room.peak), np.float64)
    logs = cuda.to_device(np.ascontiguousarray(tree.model.log_tables, dtype=np.float64))
    shifts = tree.shifts if tree.shifts.size else cuda.to_device(np.zeros(1, dtype=np.float32))
    words = cuda.to_device(np.array(book, dtype=np.int64))
    for c, at in zip(tree.visits, starts, strict=True):
        blocks, states = min(BLOCKS, -(-rows[c] // THREADS)), tree.shapes[c][-1]
        charged = charges(book[at + 2] + 1, states, tree.weights[c])
        _send[blocks, THREADS](logs, shifts, messages, words, at, tree.weights[c], side, charged)
    return [float(messages[at : at + 1].copy_to_host()[0]) for at in roots]


def _page(tree: _DeviceTree, c: int, places: dict[int, int]) -> list[int]:
    """What `_send` reads of clique c."""
    shape, terms = tree.shapes[c], tree.terms_of
    of_c = range(terms.ptr[c], terms.ptr[c + 1])
    if len(of_c) > MOST_TERMS or math.prod(shape) >= 2**32:
        raise ValueError(f"clique {c} has {len(of_c)} terms over {shape}: numpy judges it")
    book = [places[c], len(shape), len(of_c), *shape]
    for t in of_c:
        start = int(terms.start[t])
        first = places[start] if terms.kind[t] == MESSAGE else start
        strides = terms.strides[t, : len(shape)].tolist()
        book += [int(terms.kind[t]), int(terms.sign[t]), first, *strides]
    return book
