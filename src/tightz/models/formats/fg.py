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
    return given(FactorGraph(cards, factors, name=Path(path).name), evidence)


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
        flat = np.exp(table.transpose().ravel())
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
