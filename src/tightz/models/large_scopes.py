"""Factors over many variables as chains of small ones: clauses and noisy-or tables.

"Some cause is active" over k causes needs a table of 2^k entries. A chain of auxiliary variables
z_j, "some cause up to link j is active", needs k / 6 tables of 2^8. Summing the auxiliaries out
gives the large table back, so Z and the marginals of all other variables are unchanged (the
temporal decomposition of noisy-or: Heckerman, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.inputs import as_index, as_number

LINK = 6
"""Causes that join the chain at each link; a link's table is over LINK + 2 variables at most."""

ScopedTable = tuple[list[int], NDArray[np.float64]]


def clause(
    variables: Sequence[int], off: Sequence[int], *, first_auxiliary: int
) -> list[ScopedTable]:
    """Log tables of "not every variable v is in its state off": zero weight where all are.

    Auxiliary binary variables are numbered from `first_auxiliary`; there are
    `auxiliaries(len(variables))` of them.
    """
    return _chain(list(variables), off, [0.0] * len(variables), 0.0, None, first_auxiliary)


def noisy_or(
    child: int,
    parents: Sequence[int],
    inhibitors: Sequence[float],
    *,
    leak: float = 0.0,
    first_auxiliary: int,
) -> list[ScopedTable]:
    """Log tables of P(child = 0 | parents) = (1 - leak) prod_{i active} inhibitors[i].

    All are binary, state 1 is active. Auxiliary variables are numbered from `first_auxiliary`;
    there are `auxiliaries(len(parents), output=True)` of them.
    """
    child = as_index(child, "child")
    parents = [as_index(v, "a parent") for v in parents]
    first_auxiliary = as_index(first_auxiliary, "first_auxiliary")
    inhibitors = [as_number(value, "an inhibitor") for value in inhibitors]
    leak = as_number(leak, "leak")
    if len(inhibitors) != len(parents):
        raise ModelError(
            f"{len(inhibitors)} inhibitors for {len(parents)} parents; expected as many"
        )
    for value in (*inhibitors, leak):
        if not 0.0 <= value <= 1.0:
            raise ModelError(f"a noisy-or probability is {value}; expected a number from 0 to 1")
    off = [0] * len(parents)
    return _chain(list(parents), off, inhibitors, leak, child, first_auxiliary)


def auxiliaries(count: int, *, output: bool = False) -> int:
    """How many auxiliary variables a chain of `count` causes takes; `output`: of a noisy-or."""
    return max(0, math.ceil((count - (LINK if output else LINK + 1)) / LINK))


def _chain(
    variables: list[int],
    off: Sequence[int],
    inhibitors: Sequence[float],
    leak: float,
    output: int | None,
    first: int,
) -> list[ScopedTable]:
    """Link by link; the last link ends in `output`, or (None) demands that a cause is active."""
    count = auxiliaries(len(variables), output=output is not None)
    factors: list[ScopedTable] = []
    at, quiet = 0, 1.0 - leak
    for link in range(count + 1):
        last = link == count
        taken = len(variables) - at if last else LINK
        scope = variables[at : at + taken]
        inactive = np.full((), quiet)  # P(no cause is active | states so far)
        for k in range(at, at + taken):
            factor = np.full(2, inhibitors[k])
            factor[off[k]] = 1.0
            inactive = inactive[..., None] * factor
        # The auxiliary before this link says whether a cause was active already; then this link's
        # output is active for certain: a table of zeros and ones in that half.
        if link:
            scope = [first + link - 1, *scope]
            inactive = np.stack([inactive, np.zeros_like(inactive)])
        with np.errstate(divide="ignore"):
            if last and output is None:
                factors.append((scope, np.log(1.0 - inactive)))
            else:
                scope.append(output if last and output is not None else first + link)
                table = np.stack([inactive, 1.0 - inactive], axis=-1)
                factors.append((scope, np.log(table)))
        at, quiet = at + taken, 1.0
    return factors
