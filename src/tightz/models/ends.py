"""Ends of marginals: (states, 2) arrays, lower and upper."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import at_most

Ends = list[NDArray[np.float64]]
"""One (states, 2) array per variable."""

DIGITS = 1e-13
"""Relative error of a few float64 operations, with room."""

NARROW = 1e-6
"""Ends closer than this are shown as a value and its error."""

FEW = 2.0**-50
"""Relative error of a handful of correctly rounded operations."""

TINY = 1e-300
"""Numbers below may have lost digits to underflow."""


def certain(states: int, state: int) -> NDArray[np.float64]:
    """Ends of a variable that stands in one state."""
    out = np.zeros((states, 2))
    out[state] = 1.0
    return out


def around(values: NDArray[np.float64], nats: float) -> NDArray[np.float64]:
    """(..., 2) ends of probabilities known up to a factor e^nats and a few digits.

    nats    as of log Z; more at rare states (`_deeper`)
    """
    loose = np.expm1(np.minimum(_deeper(values, nats), 700.0)) + DIGITS
    # what underflowed, digits or all of it, was below the smallest normal number
    low = np.where(values < TINY, 0.0, values * np.maximum(0.0, 1.0 - loose))
    return np.stack([low, np.minimum(1.0, (values + TINY) * (1.0 + loose))], axis=-1)


def odds(p: NDArray[np.float64], nats: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """p with its odds times e^nats, to a few units, however many nats; 0 and 1 stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        up = p * np.exp(nats)
        moved: NDArray[np.float64] = np.where(np.isinf(up), 1.0, up / (up + (1.0 - p)))
    return np.where((p == 0.0) | (p == 1.0), p, moved)


def loosened(ends: NDArray[np.float64], nats: float) -> NDArray[np.float64]:
    """(..., 2) ends that still hold where weights are off by as much as moves log Z by e^+-nats.

    The weights of a state and of the rest move apart by twice that, and more at rare states. What
    is certain stays so.
    """
    low, high = ends[..., 0], ends[..., 1]
    less = odds(low, -2.0 * _deeper(low, nats)) * (1.0 - FEW)
    more = odds(high, 2.0 * _deeper(high, nats)) * (1.0 + FEW)
    return np.stack([np.where(low == 1.0, 1.0, less), np.minimum(1.0, more)], axis=-1)


def _deeper(p: NDArray[np.float64], nats: float) -> NDArray[np.float64]:
    """Nats by which a part p of Z may be off where Z itself is by `nats`.

    Logs err in proportion to what they add: a + r log(1 / w) at a state of weight w. What is known
    of Z, a + r log N or more over N states, has r in it at least log 2 times (see
    `elimination.exact.precision`).
    """
    deep: NDArray[np.float64] = nats * (1.0 - 2.0 * np.log(np.clip(p, TINY, 1.0)))
    return deep


def through(conditional: NDArray[np.float64], given: NDArray[np.float64]) -> NDArray[np.float64]:
    """(states, 2) ends of sum_t K(s, t) p(t), K with ends (states, others, 2), p with `given`.

    The sum is least where p has its least everywhere and what is then missing of 1 lies on the t
    with the smallest K(s, t); greatest likewise.
    """
    low, high = given[:, 0], given[:, 1]
    missing = max(0.0, 1.0 - float(low.sum()))
    order = np.argsort(conditional * np.array([1.0, -1.0]), axis=1)
    room = (high - low)[order]
    added = np.minimum(room, np.maximum(0.0, missing - (np.cumsum(room, axis=1) - room)))
    more = (np.take_along_axis(conditional, order, axis=1) * added).sum(axis=1)
    out: NDArray[np.float64] = (conditional * low[:, None]).sum(axis=1) + more
    loose = DIGITS * (2 + len(given))
    out[:, 0] = np.maximum(0.0, out[:, 0] - loose)
    out[:, 1] = np.minimum(1.0, out[:, 1] + loose)
    return out


def unknown(cardinalities: NDArray) -> Ends:
    """[0, 1] for every state: nothing is proven."""
    flat = np.tile([0.0, 1.0], (int(np.sum(cardinalities)), 1))
    return [
        flat[end - d : end] for d, end in zip(cardinalities, np.cumsum(cardinalities), strict=True)
    ]


def width(ends: Ends) -> NDArray[np.float64]:
    """(variables,) upper - lower of each variable's widest state."""
    return np.array([(e[:, 1] - e[:, 0]).max(initial=0.0) for e in ends])


def nearest(q: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distribution inside `ends` that is q where that is possible.

    What clipping adds or takes is taken from or added to the states with room for it, in
    proportion to the room.
    """
    low, high = ends[:, 0], ends[:, 1]
    if ((q >= low) & (q <= high)).all():
        return q
    out = np.clip(q, low, high)
    missing = 1.0 - float(out.sum())
    room = high - out if missing > 0.0 else out - low
    total = float(room.sum())
    if total <= 0.0 or abs(missing) <= DIGITS:
        return out
    return np.clip(out + missing * room / total, low, high)


def joint(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """(d, e, 2) ends of p(x = s, y = t) from ends of p(x = s) and of p(y = t), by Frechet.

    Both hold with at least p(s) + p(t) - 1, and neither is likelier than both.
    """
    low = one[:, None, 0] + other[None, :, 0] - 1.0
    high = np.minimum(one[:, None, 1], other[None, :, 1])
    return np.stack([np.maximum(0.0, low - 4.0 * np.finfo(float).eps), high], axis=-1)


def shown_ends(
    p: float, always: NDArray[np.float64], likely: NDArray[np.float64]
) -> tuple[str, str]:
    """Both kinds of ends of a probability for people; "" where they say nothing more.

    An error where they are next to it.
    """
    (low, high), (below, above) = always.tolist(), likely.tolist()
    if high - low < NARROW:  # both ends would look the same
        return f"+- {at_most(max(high - p, p - low))}" if high > low else "", ""
    first = f"[{low:.6f}, {high:.6f}]" if high - low < 1.0 else ""
    second = f"[{below:.6f}, {above:.6f}]" if (below, above) != (low, high) else ""
    return first, second
