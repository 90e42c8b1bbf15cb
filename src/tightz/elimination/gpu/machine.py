"""What a pass runs on: a flat array of doubles and two kernels. Here in plain numpy.

`PlainMachine` reads the same words and coefficients as the device does, so that whatever plans,
lays out or lowers passes is tested without one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.gpu.lowering import FUSED, Header, Lowered
from tightz.elimination.gpu.program import BITS, MATRIX, ROW


class Range(NamedTuple):
    """The smallest entry of a message that is not zero (inf if none is), and its largest.

    The largest is not finite where an entry is no number.
    """

    small: float
    large: float


class Machine(Protocol):
    """Where passes run. `load` takes all of them at once, before the first `run`."""

    def load(self, passes: list[Lowered]) -> None: ...

    def run(self, k: int, scale: float) -> Range:
        """Pass k, its first input multiplied by `scale`."""
        ...

    def gather(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Entries of the flat array."""
        ...

    def read(self, start: int, size: int) -> NDArray[np.float64]: ...

    def write(self, start: int, values: NDArray[np.float64]) -> None: ...

    def close(self) -> None: ...


class PlainMachine:
    """Passes by numpy, for tests: some thousand times slower than a device."""

    def __init__(self, entries: int) -> None:
        self._memory = np.full(entries, np.nan)
        self._passes: list[Lowered] = []

    def load(self, passes: list[Lowered]) -> None:
        self._passes = passes
        for one in passes:
            at = one.coefficients_at
            self._memory[at : at + one.coefficients.size] = one.coefficients

    def gather(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._memory[places]

    def read(self, start: int, size: int) -> NDArray[np.float64]:
        return self._memory[start : start + size].copy()

    def write(self, start: int, values: NDArray[np.float64]) -> None:
        self._memory[start : start + values.size] = values

    def close(self) -> None:
        self._memory = np.zeros(0)

    def run(self, k: int, scale: float) -> Range:
        one = self._passes[k]
        head = Header(*one.words[: len(Header._fields)].tolist())
        at = _addresses(one.words, head)
        found = (self._fused if one.kind == FUSED else self._joined)(one.words, head, at, scale)
        positive = found[found > 0.0]
        return Range(float(positive.min(initial=np.inf)), float(found.max(initial=0.0)))

    def _fused(
        self, words: NDArray[np.int64], head: Header, at: NDArray[np.int64], scale: float
    ) -> NDArray[np.float64]:
        memory = self._memory
        tables = (head.program - head.locals) // BITS
        local = words[head.locals : head.program].reshape(tables, BITS)
        bits = np.arange(1 << BITS)[:, None] >> np.arange(BITS) & 1
        offsets = bits @ local.T  # (registers, tables)
        loaded = (np.arange(1 << BITS) & ~head.loaded) == 0
        stored = (np.arange(1 << BITS) & ~head.stored) == 0
        registers = np.zeros((at.shape[1], 1 << BITS))
        registers[:, loaded] = scale * memory[at[0][:, None] + offsets[loaded, 0]]
        registers = _exchanged(registers, head.lanes_read, head)
        program = words[head.program : head.inner].reshape(head.steps, 3).tolist()
        for kind, bit, row in program:
            if kind == MATRIX:
                start = head.coefficients + at[row]
                matrices = memory[start[:, None] + np.arange(ROW - 2)]
                registers = _applied(registers, matrices.reshape(-1, 1 << (BITS - 1), 2, 2), bit)
            else:
                registers *= memory[at[row][:, None] + offsets[:, row]]
        out = _exchanged(registers, head.lanes_written, head)[:, stored]
        memory[at[1][:, None] + offsets[stored, 1]] = out
        return out

    def _joined(
        self, words: NDArray[np.int64], head: Header, at: NDArray[np.int64], scale: float
    ) -> NDArray[np.float64]:
        offsets = words[head.locals : head.program].reshape(head.rows - 1, head.states)
        product = np.full((at.shape[1], head.states), scale)
        for row in range(1, head.rows):
            product *= self._memory[at[row][:, None] + offsets[row - 1]]
        out: NDArray[np.float64] = product.sum(axis=1)
        self._memory[at[0]] = out
        return out


def _addresses(words: NDArray[np.int64], head: Header) -> NDArray[np.int64]:
    """(rows, threads): where each row's table is read by each thread."""
    radices = words[head.radices : head.bases]
    bases = words[head.bases : head.locals].reshape(head.rows, 1 + head.axes)
    inner = words[head.inner :].reshape(head.rows, head.tile)
    digits = np.array(np.unravel_index(np.arange(head.outer), radices)) if head.axes else None
    outer = bases[:, :1] + (0 if digits is None else bases[:, 1:] @ digits)
    return (outer[:, :, None] + inner[:, None, :]).reshape(head.rows, -1)


def _exchanged(registers: NDArray[np.float64], lanes: int, head: Header) -> NDArray[np.float64]:
    """Bits of the register's number and of the thread's, exchanged as `lanes` says."""
    for bit in range(BITS):
        lane = (lanes >> (4 * bit) & 15) - 1
        if lane >= 0:
            shape = (head.outer, -1, 2, 1 << lane, 1 << (BITS - 1 - bit), 2, 1 << bit)
            registers = np.swapaxes(registers.reshape(shape), 2, 5).reshape(registers.shape)
    return registers


def _applied(
    registers: NDArray[np.float64], matrices: NDArray[np.float64], bit: int
) -> NDArray[np.float64]:
    """2x2 matrices (threads, others, w, v) on one bit of the register's number."""
    shaped = registers.reshape(-1, 1 << (BITS - 1 - bit), 2, 1 << bit)
    pairs = np.moveaxis(shaped, 2, 3).reshape(len(registers), -1, 2)
    mixed = np.einsum("tiwv,tiv->tiw", matrices, pairs)
    back = mixed.reshape(-1, 1 << (BITS - 1 - bit), 1 << bit, 2)
    return np.moveaxis(back, 3, 2).reshape(registers.shape)
