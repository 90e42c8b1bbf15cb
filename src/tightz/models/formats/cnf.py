"""DIMACS CNF files, with literal weights as in model-counting competitions (`c p weight`).

Variable v of the file is variable v - 1 of the model, state 1 is true. Z is the (weighted) number
of satisfying assignments.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models import large_scopes
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.bulk import (
    Arrays,
    as_numbers,
    pointers,
    potentials,
    ranks,
    word_edges,
)
from tightz.models.formats.evidence import Evidence, given
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, read_bytes, write_atomically
from tightz.models.inputs import as_model

MAX_CLAUSE = 12
"""A clause of k literals becomes a table of 2^k entries; longer ones a chain of small tables."""

_ROOM = 1 << 16
"""Variables allowed however short the file."""

_HEADER = re.compile(
    rb"(?:[ \t\r\v\f]*\n)*p[ \t]+cnf[ \t]+([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t\r]*(?:\n|$)"
)
_END = re.compile(rb"^%(?!\S)", re.MULTILINE)
_WEIGHT = re.compile(
    rb"^c[ \t\r\v\f]+p[ \t\r\v\f]+weight(?!\S)"
    rb"(?:[ \t]+(-?[1-9][0-9]{0,17})[ \t]+([^\s_]+)(?:[ \t]+0)?[ \t\r]*$)?",
    re.MULTILINE,
)
"""Both groups are empty in a weight that is not as it should be."""

_QUESTION = re.compile(
    rb"^[ \t]*c[ \t]+(t|p[ \t]+show|p[ \t]+weight)(?!\S)[ \t]*([^\n]*)$", re.MULTILINE
)
_ANNOUNCED = re.compile(rb"^[ \t]*p[ \t]+cnf[ \t]+([0-9]{1,18})(?!\S)", re.MULTILINE)


@dataclass
class _Cnf:
    label: str
    variables: int = -1
    clauses: int = 0
    weights: dict[int, float] = field(default_factory=dict)
    factors: list[tuple[list[int], NDArray[np.float64]]] = field(default_factory=list)
    long_clauses: list[tuple[list[int], list[int]]] = field(default_factory=list)
    read: int = 0

    def fail(self, message: str, line: int) -> NoReturn:
        raise ModelError(f"{message} ({self.label}, line {line})")


def read_cnf(path: FilePath, evidence: Evidence | None = None) -> FactorGraph:
    """The model in a DIMACS CNF file.

    `c p weight LITERAL W 0` weighs a literal; unweighted variables count 1 in both states. Where
    only one literal of a variable is weighted, the other weighs 1 - W (0 <= W <= 1 is required).
    A clause that holds a literal and its negation says nothing.

    `c t` tells what is counted: mc, or wmc with weights. Projected counts (`c t pmc`, `c t pwmc`,
    lines `c p show` that leave a variable out) are refused, since Z sums over all variables. Other
    comments are ignored, `c ind` too: an independent support changes no count.

    A clause of more than 12 literals is written with auxiliary variables, numbered after those of
    the file, each the disjunction of some of its literals: Z and the other marginals are unchanged.
    """
    data = read_bytes(path)
    name = Path(path).name
    _check_question(_Cnf(str(path)), data)
    arrays = _read_in_bulk(data)
    if arrays is not None:
        return given(FactorGraph.from_arrays(*arrays, name=name), evidence)
    return given(FactorGraph(*_read_carefully(data, str(path)), name=name), evidence)


def _check_question(cnf: _Cnf, data: bytes) -> None:
    """Refuse a file that asks for another number than the (weighted) count of its models."""
    header = _ANNOUNCED.search(data)
    variables = int(header[1]) if header else 0
    asked: dict[str, int] = {}  # kind -> its first line
    shown: set[int] = set()
    for found in _QUESTION.finditer(data):
        words = found[2].decode(errors="replace").split()
        kind = found[1].split()[-1].decode()
        if kind == "show":
            shown |= {int(word) for word in words if word.isdecimal() and len(word) <= 18}
        elif kind == "t":
            if len(words) != 1:
                continue  # some other comment
            kind = words[0][:20]
        if kind not in asked:
            asked[kind] = data.count(b"\n", 0, found.start()) + 1
    if "show" in asked and sum(1 <= v <= variables for v in shown) == variables:
        projected = set()
    else:
        projected = asked.keys() & {"pmc", "pwmc", "show"}
    for kind, line in asked.items():
        if kind in projected:
            cnf.fail(
                f"a projected count is asked for; expected `c t mc` or `c t wmc` and no line "
                f"`c p show`, for the count over all {variables} variables",
                line,
            )
        if kind in ("mc", "pmc") and "weight" in asked:
            cnf.fail(
                f"`c t {kind}` asks for a count without weights, and line {asked['weight']} gives "
                f"one; expected `c t wmc`, or no line `c p weight`",
                line,
            )
        if kind not in ("mc", "wmc", "pmc", "pwmc", "show", "weight"):
            cnf.fail(f"`c t {kind}` is no count known here; expected `c t mc` or `c t wmc`", line)


def _read_in_bulk(data: bytes) -> Arrays | None:
    """Clauses and weights by array operations; None where anything is amiss."""
    if not data.isascii() or any(sign in data for sign in b"\x1c\x1d\x1e\x1f"):  # spaces of text
        return None
    if b"%" in data and (end := _END.search(data)):
        data = data[: end.start()]
    comments, rest = _comments_and_rest(data)
    header = _HEADER.match(rest)
    if header is None or _WEIGHT.search(data, 0, _first_line(data, b"p")):
        return None
    variables, announced = int(header[1]), int(header[2])
    if variables > _ROOM + 16 * len(data) or variables * announced > 2**60:
        return None
    literals = _literals(rest[header.end() :])
    weights = _weights(_WEIGHT.findall(comments), variables)
    if literals is None or weights is None:
        return None
    # not by abs, which leaves the least of all int64 negative
    if literals.max(initial=0) > variables or literals.min(initial=0) < -variables:
        return None
    ends = np.flatnonzero(literals == 0)
    if ends.size != announced or (literals.size and literals[-1]):
        return None
    return _arrays(variables, literals, np.diff(ends, prepend=-1) - 1, *weights)


def _comments_and_rest(data: bytes) -> tuple[bytes, bytes]:
    """The lines that begin with the word c, and all others."""
    letters = np.frombuffer(data + b"\n", dtype=np.uint8)
    starts = pointers(np.diff(np.flatnonzero(letters == ord("\n")), prepend=-1))
    after = np.isin(letters[np.minimum(starts[:-1] + 1, letters.size - 1)], list(b" \t\n\r\v\f"))
    comment = (letters[starts[:-1]] == ord("c")) & after
    if not comment.any():
        return b"", data
    flags = np.repeat(comment, np.diff(starts))
    return letters[flags].tobytes(), letters[~flags].tobytes()


def _first_line(data: bytes, letter: bytes) -> int:
    """Where the first line starts that begins with `letter`."""
    return 0 if data[:1] == letter else data.find(b"\n" + letter) + 1


def _literals(text: bytes) -> NDArray[np.int64] | None:
    """Whole numbers, none with a zero ahead."""
    if text.translate(None, b"0123456789- \t\n\r\v\f"):
        return None
    letters = np.frombuffer(b" " + text + b" ", dtype=np.uint8)
    digit = letters >= ord("0")
    minus = np.flatnonzero(letters == ord("-"))
    zero = np.flatnonzero(letters == ord("0"))
    apart = letters[minus - 1] < ord("-")  # what is neither a digit nor a minus is a space
    led = digit[zero + 1] & ~digit[zero - 1]
    if not (apart & digit[minus + 1]).all() or led.any():
        return None
    if not digit.any():
        return np.zeros(0, dtype=np.int64)
    return np.fromstring(text, dtype=np.int64, sep=" ")


def _weights(
    found: list[tuple[bytes, bytes]], variables: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Variables with a weight, and the logs of their weights (variables, 2)."""
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros((0, 2))
    if (b"", b"") in found:
        return None
    literals, texts = (b" ".join(words) for words in zip(*found, strict=True))
    named = np.fromstring(literals, dtype=np.int64, sep=" ")
    try:
        values = as_numbers(texts, *word_edges(texts)).values
    except ValueError:
        return None
    which = np.abs(named)
    if which.max() > variables or not ((values >= 0.0) & (values < np.inf)).all():
        return None
    pairs = np.full((variables + 1, 2), np.nan)
    pairs[which, (named > 0).astype(np.int64)] = values
    if (pairs[which, (named > 0).astype(np.int64)] != values).any():  # two weights of a literal
        return None
    weighted = np.flatnonzero(~np.isnan(pairs).all(axis=1))
    pairs = pairs[weighted]
    lone = np.isnan(pairs)
    if (pairs[lone.any(axis=1)] > 1.0).any():
        return None
    with np.errstate(divide="ignore"):
        return weighted - 1, np.log(np.where(lone, 1.0 - pairs[:, ::-1], pairs))


def _arrays(
    variables: int,
    literals: NDArray[np.int64],
    sizes: NDArray[np.int64],
    weighted: NDArray[np.int64],
    log_weights: NDArray[np.float64],
) -> Arrays:
    """Tables of the clauses, of the weights, and of clauses too long for a table of their own."""
    span = 2 * (variables + 1)
    owner = np.repeat(np.arange(sizes.size), sizes)
    named = literals[literals != 0]
    keys = np.sort(owner * span + 2 * np.abs(named) + (named < 0))
    keys = keys[np.diff(keys, prepend=-1) > 0]  # a literal named twice counts once
    said = np.ones(sizes.size, dtype=bool)
    said[keys[1:][keys[1:] >> 1 == keys[:-1] >> 1] // span] = False  # a or not a says nothing
    owner, keys = np.divmod(keys, span)
    names, off = (keys >> 1) - 1, keys & 1
    sizes = np.bincount(owner, minlength=sizes.size)
    short = said & (sizes <= MAX_CLAUSE)
    inside = short[owner]
    false = np.bincount(
        owner[inside], off[inside] * 2.0 ** (sizes[owner] - 1 - ranks(sizes))[inside], sizes.size
    )
    table_ptr = pointers(1 << sizes[short])
    tables = np.zeros(table_ptr[-1])
    tables[table_ptr[:-1] + false[short].astype(np.int64)] = -np.inf  # all literals false
    scopes, logs = [names[inside], weighted], [tables, log_weights.ravel()]
    arities = [sizes[short], np.ones(weighted.size, dtype=np.int64)]
    first = pointers(sizes)
    for clause in np.flatnonzero(said & ~short).tolist():
        where = slice(first[clause], first[clause + 1])
        for scope, table in large_scopes.clause(
            names[where].tolist(), off[where].tolist(), first_auxiliary=variables
        ):
            scopes.append(np.array(scope))
            arities.append(np.array([len(scope)]))
            logs.append(table.ravel())
        variables += large_scopes.auxiliaries(int(sizes[clause]))
    every = np.concatenate(arities)
    return Arrays(
        np.full(variables, 2),
        pointers(every),
        np.concatenate(scopes),
        pointers(1 << every),
        np.concatenate(logs),
    )


def _read_carefully(
    data: bytes, label: str
) -> tuple[NDArray[np.int64], list[large_scopes.ScopedTable]]:
    """Line by line, which finds the first thing that is wrong."""
    cnf = _Cnf(label)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        cnf.fail("the file is not text; expected DIMACS CNF", data.count(b"\n", 0, error.start) + 1)
    open_clause: list[int] = []
    number = 0
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if not words:
            continue
        if words[0] == "c":
            if words[1:3] == ["p", "weight"]:
                _read_weight(cnf, words[3:], number)
        elif words[0] == "p":
            _read_header(cnf, words, number, len(data))
        elif words[0] == "%":
            break  # the end mark of an old benchmark collection
        else:
            open_clause = _read_literals(cnf, words, open_clause, number)
    if cnf.variables < 0:
        cnf.fail("the file has no line `p cnf VARIABLES CLAUSES`", number)
    if open_clause:
        cnf.fail("the last clause does not end with 0", number)
    if cnf.read != cnf.clauses:
        cnf.fail(f"{cnf.clauses} clauses are announced; {cnf.read} follow", number)
    factors = cnf.factors + _weight_factors(cnf)
    variables = cnf.variables
    for names, off in cnf.long_clauses:
        factors += large_scopes.clause(names, off, first_auxiliary=variables)
        variables += large_scopes.auxiliaries(len(names))
    return np.full(variables, 2), factors


def _number(cnf: _Cnf, word: str, line: int, what: str) -> int:
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        cnf.fail(f"{what} is {word[:30]!r}; expected a whole number of at most 18 digits", line)
    return int(word)


def _read_header(cnf: _Cnf, words: list[str], line: int, size: int) -> None:
    if cnf.variables >= 0:
        cnf.fail("a second line `p`; expected a single one", line)
    if len(words) != 4 or words[1] not in ("cnf", "wcnf"):
        cnf.fail(f"found {' '.join(words)[:40]!r}; expected `p cnf VARIABLES CLAUSES`", line)
    if words[1] == "wcnf":
        cnf.fail("`p wcnf` is a MaxSAT file; expected `p cnf`", line)
    cnf.variables = _number(cnf, words[2], line, "the number of variables")
    cnf.clauses = _number(cnf, words[3], line, "the number of clauses")
    if cnf.variables < 0 or cnf.clauses < 0:
        cnf.fail(f"{cnf.variables} variables and {cnf.clauses} clauses; expected counts >= 0", line)
    if cnf.variables > _ROOM + 16 * size:
        cnf.fail(
            f"{cnf.variables} variables; a file of {size} bytes may have {_ROOM + 16 * size}", line
        )


def _literal(cnf: _Cnf, word: str, line: int) -> int:
    literal = _number(cnf, word, line, "a literal")
    if cnf.variables < 0:
        cnf.fail("a clause or weight stands before the line `p cnf VARIABLES CLAUSES`", line)
    if abs(literal) > cnf.variables:
        cnf.fail(f"literal {literal}; the file announces variables 1 to {cnf.variables}", line)
    return literal


def _read_weight(cnf: _Cnf, words: list[str], line: int) -> None:
    if len(words) not in (2, 3) or (len(words) == 3 and words[2] != "0"):
        found = " ".join(words)[:40]
        cnf.fail(f"found `c p weight {found}`; expected `c p weight LITERAL WEIGHT 0`", line)
    literal = _literal(cnf, words[0], line)
    if literal == 0:
        cnf.fail(f"literal 0 has a weight; expected 1 to {cnf.variables}, or negated", line)
    try:
        weight = float(words[1].replace("_", "?"))
    except ValueError:
        cnf.fail(f"weight is {words[1][:30]!r}; expected a number", line)
    if not 0.0 <= weight < math.inf:
        cnf.fail(f"weight is {words[1][:30]!r}; expected a finite number >= 0", line)
    if cnf.weights.setdefault(literal, weight) != weight:
        cnf.fail(
            f"literal {literal} weighs {cnf.weights[literal]:g} above and {weight:g} here; "
            "expected one weight",
            line,
        )


def _read_literals(cnf: _Cnf, words: list[str], clause: list[int], line: int) -> list[int]:
    for word in words:
        literal = _literal(cnf, word, line)
        if literal:
            clause.append(literal)
            continue
        cnf.read += 1
        distinct = set(clause)
        clause = []
        if any(-k in distinct for k in distinct):
            continue
        literals = sorted(distinct, key=abs)
        names = [abs(k) - 1 for k in literals]
        off = [int(k < 0) for k in literals]
        if len(literals) > MAX_CLAUSE:
            cnf.long_clauses.append((names, off))
            continue
        table = np.zeros((2,) * len(literals))
        table[tuple(off)] = -np.inf  # all literals false
        cnf.factors.append((names, table))
    return clause


def _weight_factors(cnf: _Cnf) -> list[tuple[list[int], NDArray[np.float64]]]:
    factors = []
    for v in sorted({abs(k) for k in cnf.weights}):
        pair = [cnf.weights.get(-v), cnf.weights.get(v)]
        known = pair[0] if pair[1] is None else pair[1]
        assert known is not None
        if None in pair and known > 1.0:
            raise ModelError(
                f"variable {v} has a weight of {known:g} for one literal and none for the other; "
                f"give both, or one of at most 1 ({cnf.label})"
            )
        weights = np.array([1.0 - known if w is None else w for w in pair])
        with np.errstate(divide="ignore"):
            factors.append(([v - 1], np.log(weights)))
    return factors


def write_cnf(model: FactorGraph, path: FilePath) -> None:
    """Write a DIMACS CNF file, atomically, one clause for each zero of a table.

    The model must be binary and without evidence; tables over two variables or more (or none) may
    hold only zeros and ones. Tables over one variable become weights.
    """
    as_model(model, "write", only="FactorGraph")
    if model.evidence:
        raise ModelError(
            f"the model has evidence on {len(model.evidence)} variables, which a CNF file cannot "
            "hold; write model.condition()"
        )
    if (model.cardinalities != 2).any():
        v = int(np.argmax(model.cardinalities != 2))
        raise ModelError(
            f"variable {v} has {model.cardinalities[v]} states; CNF variables have 2. A .uai "
            "file holds any model"
        )
    clauses: list[str] = []
    weights = np.zeros((model.n_variables, 2))
    weighted: set[int] = set()
    for f, (scope, table) in enumerate(model.factors):
        if len(scope) == 1 and not np.isin(table, (0.0, -np.inf)).all():
            weights[scope[0]] += table
            weighted.add(scope[0])
            continue
        if not np.isin(table, (0.0, -np.inf)).all():
            raise ModelError(
                f"factor {f} over variables {scope} holds potentials other than 0 and 1; CNF "
                "clauses cannot express them. A .uai file holds any model"
            )
        for index in np.argwhere(table == -np.inf):
            literals = [-(v + 1) if x else v + 1 for v, x in zip(scope, index, strict=True)]
            clauses.append(" ".join(map(str, [*literals, 0])))
    lines = [f"p cnf {model.n_variables} {len(clauses)}"]
    for v in sorted(weighted):
        for sign, log in ((-1, weights[v, 0]), (1, weights[v, 1])):
            if log > 709.0 or (-np.inf < log < -708.0):
                raise ModelError(
                    f"variable {v} has a log weight of {log:g}; weights are doubles, which hold "
                    "-708 to 709. tz.write(model, 'm.uai', wide=True) writes such models"
                )
            lines.append(f"c p weight {sign * (v + 1)} {potentials(log).item()!r} 0")
    write_atomically([(path, ("\n".join([*lines, *clauses]) + "\n").encode())])


FORMAT = Format(("cnf",), read_cnf, write_cnf, "DIMACS CNF, literals weighted or not")
