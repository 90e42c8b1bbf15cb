"""Loops that many kernels need, compiled once: numpy's own are compiled anew for every process."""

from __future__ import annotations

from tightz.runtime.kernels import inner


@inner
def sort_ints(values, count):  # type: ignore[no-untyped-def]
    """values[:count] ascending (Shell, 1959): short code and no spare room."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@inner
def largest_first(keys, order, count):  # type: ignore[no-untyped-def]
    """order[:count]: 0..count-1 by falling key, the smaller number first where keys are equal."""
    for i in range(count):
        order[i] = i
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            k, j = order[i], i
            while j >= gap:
                other = order[j - gap]
                if keys[other] > keys[k] or (keys[other] == keys[k] and other < k):
                    break
                order[j] = other
                j -= gap
            order[j] = k
        gap //= 3
