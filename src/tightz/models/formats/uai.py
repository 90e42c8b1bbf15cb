"""UAI model files (MARKOV and BAYES).

Counts are checked against the file before anything is allocated, and numbers are converted in
bulk, so memory stays within a constant times the size of the file.
"""

from __future__ import annotations

import decimal
import math
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.bulk import pointers, potentials
from tightz.models.formats.evidence import Evidence, given
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, Words, write_atomically
from tightz.models.inputs import as_model

_MAX_STATES = 2**31 - 1
_LOG_RANGE = -708.0, 709.0
"""Log potentials whose exponentials are normal doubles."""


def read_uai(path: FilePath, evidence: Evidence | None = None) -> FactorGraph:
    """The model in a UAI file, with evidence from a second file or a mapping variable -> state.

    Tables hold potentials on the ordinary scale, last variable of the scope fastest. Zeros become
    log potentials of -inf; entries too large or too small for a double (1e-400) keep their log.
    A BAYES file is read as the product of its conditional tables.

    `formats.evidence.observed` tells which evidence files are read.
    """
    words = Words(path)
    words.require_keyword("MARKOV", "BAYES")
    cards, at = _read_cardinalities(words)
    scope_ptr, scope_vars, at = _read_scopes(words, at, len(cards))
    table_ptr, log_tables = _read_tables(words, at, cards, scope_ptr, scope_vars)
    name = Path(path).name
    model = FactorGraph.from_arrays(cards, scope_ptr, scope_vars, table_ptr, log_tables, name=name)
    return given(model, evidence)


def write_uai(
    model: FactorGraph,
    path: FilePath,
    *,
    evidence_path: FilePath | None = None,
    rescale: bool = False,
    wide: bool = False,
) -> float:
    """Write a MARKOV file (and its evidence), atomically; return the log constant left out of it.

    log Z of `model` is log Z of the file plus the returned value, which is 0.0 unless `rescale`
    shifted a table. Reading back gives every log potential to within rounding, and to the bit
    where it is the log of a double, as in models that were read. Names are not written.

    Other programs read tables as doubles, which hold log potentials from -708 to 709. A model
    that goes beyond is refused, naming the factor, unless the caller chooses:

    - `rescale=True` shifts each such table into that range. No shift can help a table that spans
      more than 1417, such as an Ising coupling of 1e6: it is still refused, for cutting its small
      entries to zero could make every state of a frustrated model impossible.
    - `wide=True` writes what is still out of range as decimals with long exponents
      (3.03e+434294). `read_uai` reads them; most other programs take them for 0 or inf.
    """
    as_model(model, "write", only="FactorGraph")
    if model.evidence and evidence_path is None:
        raise ModelError(
            f"the model has evidence on {len(model.evidence)} variables, which a UAI model file "
            "cannot hold; pass evidence_path=, or write model.condition()"
        )
    shifts = _shifts(model, rescale, wide)
    files = [(path, _model_text(model, shifts))]
    if evidence_path is not None:
        pairs = "".join(f" {v} {state}" for v, state in sorted(model.evidence.items()))
        files.append((evidence_path, f"{len(model.evidence)}{pairs}\n"))
    write_atomically((target, text.encode()) for target, text in files)
    return math.fsum(shifts)


def _read_cardinalities(words: Words) -> tuple[NDArray[np.int64], int]:
    """Cardinalities, and the position of the word after them."""
    n = words.count(1, "the number of variables")
    if n > len(words) - 2:
        words.fail(f"{n} variables are announced; only {len(words) - 2} words follow", 1)
    states = words.values[2 : 2 + n]
    bad = ~words.whole[2 : 2 + n] | (states < 1) | (states > _MAX_STATES)
    if bad.any():
        v = int(np.argmax(bad))
        words.fail(
            f"variable {v} has {words.shown(2 + v)} states; expected a whole number from 1 to "
            f"{_MAX_STATES}",
            2 + v,
        )
    return states.astype(np.int64), 2 + n


def _read_scopes(words: Words, at: int, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """scope_ptr, scope_vars, and the position of the first table."""
    count = words.count(at, "the number of factors")
    left = len(words) - at - 1
    if 3 * count > left:  # a factor takes at least an arity, a table size and one entry
        words.fail(
            f"{count} factors are announced, which take at least {3 * count} words; only {left} "
            "follow",
            at,
        )
    first = _scope_starts(words, at + 1, count, n)
    scope_ptr = first - first[0] - np.arange(count + 1)
    owner = np.repeat(np.arange(count), np.diff(scope_ptr))
    place = np.delete(np.arange(first[0], first[-1]), first[:-1] - first[0])
    named = words.values[place]
    bad = ~words.whole[place] | (named >= n)
    if bad.any():
        k = int(np.argmax(bad))
        words.fail(
            f"factor {owner[k]} names variable {words.shown(int(place[k]))}; the model has "
            f"variables 0 to {n - 1}",
            int(place[k]),
        )
    by_scope = owner * n + named.astype(np.int64)
    order = np.argsort(by_scope, kind="stable")
    repeated = np.diff(by_scope[order]) == 0
    if repeated.any():
        k = int(order[1:][repeated].min())
        words.fail(
            f"factor {owner[k]} names variable {named[k]:.0f} twice in its scope", int(place[k])
        )
    return scope_ptr, named.astype(np.int64), int(first[-1])


def _scope_starts(words: Words, at: int, count: int, n: int) -> NDArray[np.int64]:
    """The position of each factor's arity, from `at` on, and of the word after the last scope."""
    first = np.empty(count + 1, dtype=np.int64)
    arities, places, end = words.counts.data, first.data, len(words)
    for f in range(count):
        places[f] = at
        arity = arities[at] if at < end else -1
        if not 0 <= arity <= n or at + arity >= end:
            arity = words.count(at, f"the number of variables of factor {f}")
            if arity > n:
                words.fail(f"factor {f} announces {arity} variables; the model has {n}", at)
            words.fail(f"factor {f} announces {arity} variables; the file ends too early", at)
        at += 1 + arity
    places[count] = at
    return first


def _read_tables(
    words: Words,
    at: int,
    cards: NDArray[np.int64],
    scope_ptr: NDArray[np.int64],
    scope_vars: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """table_ptr and log_tables, read to the end of the file."""
    count = scope_ptr.size - 1
    needed = np.ones(count)
    with np.errstate(over="ignore"):  # an absurd scope needs inf entries, and is reported below
        owner = np.repeat(np.arange(count), np.diff(scope_ptr))
        np.multiply.at(needed, owner, cards[scope_vars].astype(np.float64))
    # A table larger than the file is cut to one word more than the file: positions stay small.
    sizes = np.minimum(needed, len(words) + 1).astype(np.int64)
    first = at + pointers(sizes + 1)
    announced = np.minimum(first[:-1], len(words) - 1)
    wrong = (words.values[announced] != needed) | ~words.whole[announced] | (first[1:] > len(words))
    if wrong.any():
        f = int(np.argmax(wrong))
        scope = scope_vars[scope_ptr[f] : scope_ptr[f + 1]]
        _fail_table(words, int(first[f]), f, scope, cards[scope], needed[f])
    words.require_end(int(first[-1]), "the last table")
    place = np.delete(np.arange(at, first[-1]), first[:-1] - at)
    table_ptr = pointers(sizes)
    return table_ptr, _log_entries(words, place, table_ptr)


def _fail_table(
    words: Words, at: int, f: int, scope: NDArray, shape: NDArray, needed: float
) -> NoReturn:
    if at >= len(words):
        words.fail(f"the file ends before the table of factor {f}", at)
    if words.whole[at] and words.values[at] == needed:
        words.fail(
            f"factor {f} announces {needed:.0f} entries; the file ends after {len(words) - at - 1}",
            at,
        )
    states = " x ".join(map(str, shape[:12])) or "no"
    more = ", ..." if len(scope) > 12 else ""
    told = f"{needed:.0f}" if needed < 2**53 else "more than 2^53"
    variables = ", ".join(map(str, scope[:12])) + ("," if len(scope) == 1 else more)
    listed = words.raw(at).decode() if words.whole[at] and len(words.raw(at)) < 19 else ""
    hint = f" (is the table of factor {f - 1} complete?)" if f and not listed else ""
    words.fail(
        f"factor {f} lists {listed or words.shown(at)} entries; its scope ({variables}) with "
        f"{states}{more} states needs {told}{hint}",
        at,
    )


def _log_entries(
    words: Words, place: NDArray[np.int64], table_ptr: NDArray[np.int64]
) -> NDArray[np.float64]:
    values = words.values[place]
    bad = ~(values >= 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: NDArray[np.float64] = np.log(values)
    tiny = (np.abs(values) < np.finfo(np.float64).tiny) & ~words.exact[place]
    beyond = np.isinf(values)
    if tiny.any():
        beyond |= tiny & words.having(b"123456789")[place]
    context = _wide_context(25)
    for j in np.flatnonzero(beyond):
        exact = context.create_decimal(words.raw(int(place[j])).decode())
        bad[j] = not exact.is_finite() or exact < 0
        logs[j] = np.nan if bad[j] else float(exact.ln(context))
    if bad.any():
        k = int(np.argmax(bad))
        f = int(np.searchsorted(table_ptr, k, side="right") - 1)
        words.fail(
            f"factor {f}, entry {k - table_ptr[f]} is {words.shown(int(place[k]))}; potentials are "
            "finite numbers >= 0",
            int(place[k]),
        )
    return logs


def _wide_context(digits: int) -> decimal.Context:
    """Decimal arithmetic whose exponents reach 10^18; out of range gives inf or 0, not an error."""
    return decimal.Context(digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def _shifts(model: FactorGraph, rescale: bool, wide: bool) -> NDArray[np.float64]:
    """Per factor, what is taken off its log table to bring it into the range of doubles."""
    shifts = np.zeros(model.n_factors)
    if not model.n_factors:
        return shifts
    low, high = _LOG_RANGE
    logs, first = model.log_tables, model.table_ptr[:-1]
    top = np.maximum.reduceat(logs, first)
    bottom = np.minimum.reduceat(np.where(logs == -np.inf, np.inf, logs), first)
    outside = (top > high) | (bottom < low)
    with np.errstate(over="ignore"):
        span = top - bottom
    fits = outside & (span <= high - low)
    if rescale:
        # The largest entry becomes 1, or as large as the smallest one needs.
        shifts[fits] = top[fits] - np.where(span[fits] <= -low, 0.0, high)
        outside &= ~fits
    if outside.any() and not wide:
        f = int(np.argmax(outside))
        remedy = "rescale=True shifts it there" if fits[f] else "no shift brings it there"
        raise ModelError(
            f"factor {f} has log potentials from {bottom[f]:g} to {top[f]:g}; UAI tables are read "
            f"as doubles, which hold {low:g} to {high:g}: {remedy}; wide=True writes decimals "
            "that only tightz reads"
        )
    return shifts


def _model_text(model: FactorGraph, shifts: NDArray[np.float64]) -> str:
    low, high = _LOG_RANGE
    logs = model.log_tables - np.repeat(shifts, np.diff(model.table_ptr))
    outside = (logs != -np.inf) & ((logs < low) | (logs > high))
    entries = list(map(repr, potentials(np.where(outside, 0.0, logs)).tolist()))
    context = _wide_context(18)
    for k in np.flatnonzero(outside):
        exact = decimal.Decimal(float(logs[k])).exp(context)
        if not exact.is_finite() or not exact:
            f = int(np.searchsorted(model.table_ptr, k, side="right") - 1)
            raise ModelError(
                f"factor {f} has a log potential of {logs[k]:g}; decimals end near 2e18. Scale the "
                "model down"
            )
        entries[k] = str(exact)
    scopes = np.split(model.scope_vars, model.scope_ptr[1:-1]) if model.n_factors else []
    lines = ["MARKOV", str(model.n_variables), " ".join(map(str, model.cardinalities.tolist()))]
    lines.append(str(model.n_factors))
    lines += [" ".join(map(str, [len(scope), *scope.tolist()])) for scope in scopes]
    for f in range(model.n_factors):
        table = entries[model.table_ptr[f] : model.table_ptr[f + 1]]
        lines += ["", str(len(table)), " " + " ".join(table)]
    return "\n".join(lines) + "\n"


FORMAT = Format(("uai",), read_uai, write_uai, "UAI models, MARKOV or BAYES")
