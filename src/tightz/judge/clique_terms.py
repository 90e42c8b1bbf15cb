"""Terms of cliques' tables as arrays: what of factors, shifts and messages each entry adds up."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FACTOR, SHIFT, MESSAGE = 0, 1, 2


class Terms(NamedTuple):
    """What tables of cliques are made of: terms ptr[c]:ptr[c + 1] are those of clique c.

    Entry x of c's table takes sign * source[start + x @ strides], where x are the states of c's
    variables and the source is the model's log tables, the shifts, or the messages by their kind.
    Of a message `start` is the clique that sends it.
    """

    ptr: NDArray[np.int64]
    kind: NDArray[np.int64]
    sign: NDArray[np.float64]
    start: NDArray[np.int64]
    strides: NDArray[np.int64]  # (terms, longest scope); 0 for variables that it does not depend on


def strides_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(k, axes) how far apart neighbours along each axis are in a table of these sizes."""
    out = np.ones_like(sizes)
    for axis in range(sizes.shape[1] - 2, -1, -1):
        out[:, axis] = out[:, axis + 1] * sizes[:, axis + 1]
    return out


@lru_cache(maxsize=256)
def states_of(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """(axes, entries) the states that each entry of a table of this shape stands for."""
    return np.indices(shape).reshape(len(shape), -1)
