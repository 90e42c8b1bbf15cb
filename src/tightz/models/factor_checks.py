"""What a factor graph is built from, checked: cardinalities, scopes, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError
from tightz.models.inputs import as_index, shown

MAX_STATES = 2**31 - 1
"""Cardinalities are stored as 32-bit integers."""


def check_factors(
    cards: NDArray,
    scope_ptr: NDArray[np.int64],
    scope_vars: NDArray[np.int64],
    table_ptr: NDArray[np.int64],
    log_tables: NDArray[np.float64],
) -> None:
    for name, array in (
        ("scope_ptr", scope_ptr),
        ("scope_vars", scope_vars),
        ("table_ptr", table_ptr),
        ("log_tables", log_tables),
    ):
        if array.ndim != 1:
            raise ModelError(f"{name} has shape {array.shape}; expected a flat array")
    if scope_ptr.size != table_ptr.size or scope_ptr.size < 1:
        raise ModelError(
            f"scope_ptr has {scope_ptr.size} entries and table_ptr has {table_ptr.size}; expected "
            "one more than there are factors, in both"
        )
    _check_pointers(scope_ptr, scope_vars.size, "scope_ptr", "scope_vars")
    _check_pointers(table_ptr, log_tables.size, "table_ptr", "log_tables")
    outside = (scope_vars < 0) | (scope_vars >= cards.size)
    if outside.any():
        at = int(np.argmax(outside))
        f = int(np.searchsorted(scope_ptr, at, side="right") - 1)
        raise ModelError(
            f"factor {f} names variable {scope_vars[at]}; the model has variables 0 to "
            f"{cards.size - 1}"
        )
    # Scope sizes in log2 first, so that an absurd scope is reported and not computed.
    owner = np.repeat(np.arange(scope_ptr.size - 1), np.diff(scope_ptr))
    log2_size = np.bincount(owner, np.log2(cards)[scope_vars], minlength=scope_ptr.size - 1)
    expected = np.rint(np.exp2(np.minimum(log2_size, 62.0)))
    wrong = expected != np.diff(table_ptr)
    if wrong.any():
        f = int(np.argmax(wrong))
        scope = tuple(scope_vars[scope_ptr[f] : scope_ptr[f + 1]].tolist())
        shape = " x ".join(str(cards[v]) for v in scope) or "no"
        raise ModelError(
            f"factor {f} lists {np.diff(table_ptr)[f]} entries; its scope {scope} with {shape} "
            f"states needs {expected[f]:.0f}"
        )
    by_scope = np.sort(owner * cards.size + scope_vars)
    repeated = by_scope[1:] == by_scope[:-1]
    if repeated.any():
        f, v = divmod(int(by_scope[np.argmax(repeated)]), cards.size)
        raise ModelError(f"factor {f} names variable {v} twice in its scope")
    bad = np.isnan(log_tables) | (log_tables == np.inf)
    if bad.any():
        at = int(np.argmax(bad))
        f = int(np.searchsorted(table_ptr, at, side="right") - 1)
        raise ModelError(
            f"factor {f}, entry {at - table_ptr[f]}: log potential is {log_tables[at]}; "
            "expected a finite number or -inf"
        )


def _check_pointers(ptr: NDArray[np.int64], size: int, name: str, into: str) -> None:
    """Refuse what does not cut an array of `size` entries into one part for each factor."""
    falls = ptr[1:] < ptr[:-1]
    if ptr[0] == 0 and ptr[-1] == size and not falls.any():
        return
    at = 0 if ptr[0] != 0 else int(np.argmax(falls)) + 1 if falls.any() else ptr.size - 1
    raise ModelError(
        f"{name}[{at}] is {ptr[at]}; expected pointers that never fall, from 0 to {size}, the "
        f"length of {into}"
    )


def checked_cardinalities(given: ArrayLike) -> NDArray[np.int64]:
    cards = np.asarray(given) if not isinstance(given, np.ndarray) else given
    # an empty list is an array of floats
    if cards.ndim != 1 or cards.dtype.kind not in ("iu" if cards.size else "iuf"):
        raise ModelError(
            f"cardinalities have shape {cards.shape} and type {cards.dtype}; expected a flat list "
            "of integers, the number of states of each variable"
        )
    bad = (cards < 1) | (cards > MAX_STATES)
    if bad.any():
        v = int(np.argmax(bad))
        raise ModelError(f"variable {v} has {cards[v]} states; expected 1 to {MAX_STATES}")
    return cards


def listed_factors(factors: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """(scope, table) of each factor as the caller listed them."""
    if not isinstance(factors, Iterable) or isinstance(factors, Mapping | str):
        raise ModelError(
            f"factors are {shown(factors)}; expected a list of pairs (scope, table), such as "
            "[((0, 1), [[1, 2], [3, 4]])]"
        )
    for f, pair in enumerate(factors):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ModelError(
                f"factor {f} is {shown(pair)}; expected a pair (scope, table), such as "
                "((0, 1), [[1, 2], [3, 4]])"
            )
        yield pair[0], pair[1]


def checked_scope(f: int, scope: Any) -> tuple[int, ...]:
    """Numbers of variables; whether the model has them is seen with all factors together."""
    if not isinstance(scope, Iterable) or isinstance(scope, str | bytes | Mapping):
        raise ModelError(
            f"factor {f} has the scope {scope!r}; expected a sequence of variables, such as (0, 1)"
        )
    return tuple(
        v if type(v) is int and v >= 0 else as_index(v, f"factor {f}: a variable") for v in scope
    )
