"""libDAI factor-graph files (.fg): sparse tables on the ordinary scale, first variable fastest.

A file is the number of factors and, for each, the number of its variables, their labels, their
numbers of states, the number of non-zero entries, and a line `index value` for each of those.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_checks import MAX_STATES
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.bulk import Arrays, pointers, potentials, ranks
from tightz.models.formats.evidence import Evidence, given
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, Words, write_atomically
from tightz.models.inputs import as_model

_LOG_RANGE = -708.0, 709.0
"""Log potentials whose exponentials are normal doubles."""

MAX_SCOPE = 60
"""numpy arrays have 64 axes at most."""

_ROOM = 1 << 16
"""Labels and table entries allowed however short the file."""


def read_fg(path: FilePath, evidence: Evidence | None = None) -> FactorGraph:
    """The model in a libDAI file. Variable v is label v; a label never named has one state.

    Entries not listed are zero potentials. A file whose tables (or labels) are out of proportion
    to its length is refused: dense tables need memory that the file does not show.
    """
    words = Words(path, comment=b"#")
    count = words.count(0, "the number of factors")
    if 2 * count > len(words) - 1:
        words.fail(f"{count} factors are announced; only {len(words) - 1} words follow")
    name = Path(path).name
    arrays = _read_in_bulk(words, count)
    if arrays is not None:
        return given(FactorGraph.from_arrays(*arrays, name=name), evidence)
    return given(FactorGraph(*_read_carefully(words, count), name=name), evidence)


def _read_in_bulk(words: Words, count: int) -> Arrays | None:
    """All factors by array operations; None where anything is amiss, for the careful reader."""
    first = _factor_starts(words, count)
    if first is None:
        return None
    counts = words.counts
    arity = counts[first]
    owner = np.repeat(np.arange(count), arity)
    place = first[owner] + 1 + ranks(arity)
    labels, states = counts[place], counts[place + arity[owner]]
    allowed = (labels >= 0) & (labels <= _ROOM + len(words)) & (states > 0) & (states <= MAX_STATES)
    if not allowed.all():
        return None
    cards = np.ones(labels.max(initial=-1) + 1, dtype=np.int64)
    cards[labels] = states
    by_scope = np.sort(owner * cards.size + labels)
    if (cards[labels] != states).any() or (by_scope[1:] == by_scope[:-1]).any():
        return None
    needed = np.ones(count)
    with np.errstate(over="ignore"):  # an absurd scope needs inf entries
        np.multiply.at(needed, owner, states.astype(np.float64))
    listed = counts[first + 1 + 2 * arity]
    if needed.sum() > _ROOM + 1024 * len(words) or (listed > needed).any():
        return None
    scope_ptr = pointers(arity)
    table_ptr = pointers(needed.astype(np.int64))
    logs = _entries_in_bulk(words, first + 2 + 2 * arity, listed, states, scope_ptr, table_ptr)
    return None if logs is None else Arrays(cards, scope_ptr, labels, table_ptr, logs)


def _factor_starts(words: Words, count: int) -> NDArray[np.int64] | None:
    """The position of each factor's first word, where they fill the file to its last word."""
    first = np.empty(count, dtype=np.int64)
    counts, places, end = words.counts.data, first.data, len(words)
    at = 1
    for f in range(count):
        places[f] = at
        if at >= end or not 0 <= counts[at] <= MAX_SCOPE:
            return None
        at += 1 + 2 * counts[at]
        if at >= end or counts[at] < 0:
            return None
        at += 1 + 2 * counts[at]
    return first if at == end else None


def _entries_in_bulk(
    words: Words,
    first: NDArray[np.int64],
    listed: NDArray[np.int64],
    states: NDArray[np.int64],
    scope_ptr: NDArray[np.int64],
    table_ptr: NDArray[np.int64],
) -> NDArray[np.float64] | None:
    """Log tables, last variable fastest, of the entries listed from the words `first` on."""
    owner = np.repeat(np.arange(listed.size), listed)
    place = first[owner] + 2 * ranks(listed)
    index, values = words.counts[place], words.values[place + 1]
    vanished = (values == 0.0) & ~words.exact[place + 1]
    if vanished.any():  # 0e0 is zero, 1e-400 is not
        vanished &= words.having(b"123456789")[place + 1]
    fine = (index >= 0) & (index < np.diff(table_ptr)[owner]) & (values >= 0) & (values < np.inf)
    if not fine.all() or vanished.any():
        return None
    at = table_ptr[owner] + _last_fastest(index, owner, states, scope_ptr)
    logs = np.full(table_ptr[-1], -np.inf)
    with np.errstate(divide="ignore"):
        logs[at] = np.log(values)
    seen = np.zeros(logs.size, dtype=bool)
    seen[at] = True
    return logs if np.count_nonzero(seen) == at.size else None


def _last_fastest(
    index: NDArray[np.int64],
    owner: NDArray[np.int64],
    states: NDArray[np.int64],
    scope_ptr: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Indices into tables with the first variable fastest, as those with the last one fastest."""
    arity = np.diff(scope_ptr)
    out = index.copy()
    for k in np.unique(arity[arity > 1]).tolist():
        which = np.flatnonzero(arity[owner] == k)
        shape = states[scope_ptr[owner[which], None] + np.arange(k)]
        rest, turned = index[which], np.zeros(which.size, dtype=np.int64)
        for j in range(k):
            rest, state = np.divmod(rest, shape[:, j])
            turned = turned * shape[:, j] + state
        out[which] = turned
    return out


def _read_carefully(
    words: Words, count: int
) -> tuple[NDArray[np.int64], list[tuple[list[int], NDArray[np.float64]]]]:
    """Word by word, which finds the first thing that is wrong."""
    states: dict[int, int] = {}
    factors: list[tuple[list[int], NDArray[np.float64]]] = []
    at, entries = 1, 0
    for f in range(count):
        scope, shape, at = _read_scope(words, at, f, states)
        size = 1
        for d in shape:
            size *= d
        entries += size
        if entries > _ROOM + 1024 * len(words):
            words.fail(
                f"factor {f} brings the tables to {entries} entries; a file of {len(words)} words "
                f"may have {_ROOM + 1024 * len(words)}",
                at,
            )
        table, at = _read_entries(words, at, f, size)
        factors.append((scope, table.reshape(shape[::-1]).transpose()))
    words.require_end(at, "the last factor")
    cards = np.ones(max(states, default=-1) + 1, dtype=np.int64)
    cards[list(states)] = list(states.values())
    return cards, factors


def _read_scope(
    words: Words, at: int, f: int, states: dict[int, int]
) -> tuple[list[int], list[int], int]:
    arity = words.count(at, f"the number of variables of factor {f}")
    if arity > MAX_SCOPE:
        words.fail(f"factor {f} announces {arity} variables; at most {MAX_SCOPE} are read", at)
    if 2 * arity > len(words) - at - 1:
        words.fail(f"factor {f} announces {arity} variables; the file ends too early", at)
    scope: list[int] = []
    shape: list[int] = []
    for i in range(at + 1, at + 1 + arity):
        v = words.count(i, f"a variable of factor {f}")
        if v > _ROOM + len(words):
            words.fail(f"label {v} is too large for a file of {len(words)} words; renumber", i)
        if v in scope:
            words.fail(f"factor {f} names variable {v} twice in its scope", i)
        d = words.count(i + arity, f"the number of states of variable {v}")
        if not 1 <= d <= MAX_STATES:
            words.fail(f"variable {v} has {d} states; expected 1 to {MAX_STATES}", i + arity)
        if states.setdefault(v, d) != d:
            words.fail(
                f"variable {v} has {states[v]} states above and {d} here; expected the same",
                i + arity,
            )
        scope.append(v)
        shape.append(d)
    return scope, shape, at + 1 + 2 * arity


def _read_entries(words: Words, at: int, f: int, size: int) -> tuple[NDArray[np.float64], int]:
    listed = words.count(at, f"the number of non-zero entries of factor {f}")
    if listed > size:
        words.fail(f"factor {f} announces {listed} entries; its table holds {size}", at)
    if 2 * listed > len(words) - at - 1:
        words.fail(f"factor {f} announces {listed} entries; the file ends too early", at)
    table = np.full(size, -np.inf)
    seen: set[int] = set()
    for i in range(at + 1, at + 1 + 2 * listed, 2):
        index = words.count(i, f"an index into the table of factor {f}")
        if index >= size:
            words.fail(f"index {index} lies outside factor {f}, which has {size} entries", i)
        if index in seen:
            words.fail(f"factor {f} lists entry {index} twice", i)
        seen.add(index)
        value = words.values[i + 1]
        if not 0.0 <= value < np.inf:
            words.fail(
                f"factor {f}, entry {index} is {words.shown(i + 1)}; potentials are finite "
                "numbers >= 0",
                i + 1,
            )
        if value > 0.0:
            table[index] = np.log(value)
        elif words.raw(i + 1).strip(b"+-0.eE"):
            mantissa = words.raw(i + 1).lower().split(b"e")[0]
            if mantissa.strip(b"+-0."):
                words.fail(
                    f"factor {f}, entry {index} is {words.shown(i + 1)}, too small for a double; "
                    "expected 0 or at least 5e-324",
                    i + 1,
                )
    return table, at + 1 + 2 * listed


def write_fg(model: FactorGraph, path: FilePath) -> None:
    """Write a libDAI file, atomically. Evidence and potentials beyond doubles are refused."""
    as_model(model, "write", only="FactorGraph")
    if model.evidence:
        raise ModelError(
            f"the model has evidence on {len(model.evidence)} variables, which an .fg file cannot "
            "hold; write model.condition()"
        )
    low, high = _LOG_RANGE
    logs = model.log_tables
    outside = (logs != -np.inf) & ((logs < low) | (logs > high))
    if outside.any():
        k = int(np.argmax(outside))
        f = int(np.searchsorted(model.table_ptr, k, side="right") - 1)
        raise ModelError(
            f"factor {f} has a log potential of {logs[k]:g}; .fg tables are doubles, which hold "
            f"{low:g} to {high:g}. tz.write(model, 'm.uai', wide=True) writes such models"
        )
    lonely = sorted(set(range(model.n_variables)) - set(model.scope_vars.tolist()))
    factors = list(model.factors)
    blocks = [str(len(factors) + len(lonely))]
    for scope, table in factors:
        # First variable fastest is C order of the transposed table.
        flat = potentials(table.transpose().ravel())
        blocks.append(_block(list(scope), list(table.shape), flat))
    for v in lonely:
        states = int(model.cardinalities[v])
        blocks.append(_block([v], [states], np.ones(states)))
    write_atomically([(path, ("\n\n".join(blocks) + "\n").encode())])


def _block(scope: list[int], shape: list[int], flat: NDArray[np.float64]) -> str:
    listed = np.flatnonzero(flat)
    lines = [str(len(scope)), " ".join(map(str, scope)), " ".join(map(str, shape))]
    lines.append(str(listed.size))
    lines += [f"{k} {value!r}" for k, value in zip(listed, flat[listed].tolist(), strict=True)]
    return "\n".join(lines)


FORMAT = Format(("fg",), read_fg, write_fg, "libDAI factor graphs")
