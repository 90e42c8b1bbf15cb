"""Where tables lie in one flat array, and how a message takes the place of the one it came from.

A table may have holes: strides that no axis uses just now. An axis that is summed out leaves one,
and the next variable that comes fills it; so the largest table of an elimination, and not twice
its size, is what has to fit.
"""

from __future__ import annotations

from typing import NamedTuple

from tightz.elimination.gpu.program import NOTHING, Program

_BLOCK = 32
"""Entries between the starts of tables; a hole at a smaller stride would waste memory's time."""

_MOST_HOLES = 1


class Placed(NamedTuple):
    """A table in the flat array: entry x lies at start + sum of strides * x, within `size`."""

    start: int
    size: int
    strides: dict[int, int]
    holes: tuple[int, ...] = ()


def align(entries: int) -> int:
    """Up to a multiple of a block."""
    return -(-entries // _BLOCK) * _BLOCK


def in_place(work: Program, main: Placed) -> Placed | None:
    """The message of `work` in the place of its main table, as if that could grow; else None.

    A thread reads all its entries before it writes the first, and no other thread has them: any of
    its places will do for any new variable. The smallest strides are used, so that what is left
    over is at the end, where the table then shrinks.
    """
    strides = {a: main.strides.get(a, 0) for a in work.rest}
    loaded = [main.strides.get(v, 0) for v in work.loaded if v != NOTHING]
    if 0 in loaded or 0 in strides.values():
        return None
    new = [v for v in work.stored if v != NOTHING]
    room = sorted([*loaded, *main.holes])
    size = main.size
    while len(room) < len(new):
        if size % _BLOCK:
            return None
        room.append(size)
        size *= 2
    used, holes = room[: len(new)], room[len(new) :]
    while size // 2 in holes and size % 2 == 0:
        holes.remove(size // 2)
        size //= 2
    if len(holes) > _MOST_HOLES or (holes and holes[0] < _BLOCK):
        return None
    # A variable that takes over a bit keeps its stride where that is used, the others fill up.
    for gone, born in zip(work.loaded, work.stored, strict=True):
        if NOTHING not in (gone, born) and main.strides[gone] in used:
            strides[born] = main.strides[gone]
            used.remove(strides[born])
    late = [v for v in new if v not in strides]
    return Placed(main.start, size, strides | dict(zip(late, used, strict=True)), tuple(holes))


class TwoEnds:
    """Tables from both ends of an array whose length is not known yet: starts from the far end
    are negative. Where a table is made from another, the two grow towards each other, and no more
    room is needed than both take."""

    def __init__(self) -> None:
        self._live: tuple[dict[int, int], dict[int, int]] = {}, {}  # distance from the end -> size
        self.peak = 0

    def take(self, size: int) -> int:
        """Room for a new table: its start."""
        size = align(size)
        found = [_first_gap(live, size) for live in self._live]
        total = [max(found[k] + size, _reach(self._live[k])) + _reach(self._live[1 - k])
                 for k in (0, 1)]  # fmt: skip
        end = min((0, 1), key=lambda k: (total[k], len(self._live[k])))
        self._live[end][found[end]] = size
        self._note()
        return -(found[end] + size) if end else found[end]

    def give_back(self, table: Placed) -> None:
        end, at = _at(table)
        del self._live[end][at]

    def replace(self, old: Placed, new: Placed) -> Placed | None:
        """`new` in the place of `old`, longer or shorter; None if something is in the way.

        From the far end a table grows towards lower addresses, and shrinks from higher ones.
        """
        end, at = _at(old)
        live = self._live[end]
        size = align(new.size)
        more = size - live[at]
        if more > 0 and any(at < other < at + size for other in live):
            return None
        start = old.start
        was = live.pop(at)
        if end:
            start = old.start if more <= 0 else old.start - more
            at = -start - size
        live[at] = size
        assert was + more == size
        self._note()
        return new._replace(start=start)

    def _note(self) -> None:
        self.peak = max(self.peak, _reach(self._live[0]) + _reach(self._live[1]))


def _at(table: Placed) -> tuple[int, int]:
    """(end, distance of the table from it)."""
    if table.start < 0:
        return 1, -table.start - align(table.size)
    return 0, table.start


def _reach(live: dict[int, int]) -> int:
    return max((at + size for at, size in live.items()), default=0)


def _first_gap(live: dict[int, int], size: int) -> int:
    at = 0
    for start, length in sorted(live.items()):
        if start - at >= size:
            break
        at = max(at, start + length)
    return at
