"""DIMACS CNF files, with literal weights as in model-counting competitions (`c p weight`).

Variable v of the file is variable v - 1 of the model, state 1 is true. Z is the (weighted) number
of satisfying assignments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.text_files import FilePath, read_bytes, write_atomically

MAX_CLAUSE = 16
"""A clause of k literals becomes a table of 2^k entries; longer ones are refused."""

_ROOM = 1 << 16
"""Variables allowed however short the file."""


@dataclass
class _Cnf:
    label: str
    variables: int = -1
    clauses: int = 0
    weights: dict[int, float] = field(default_factory=dict)
    factors: list[tuple[list[int], NDArray[np.float64]]] = field(default_factory=list)
    read: int = 0

    def fail(self, message: str, line: int) -> NoReturn:
        raise ModelError(f"{message} ({self.label}, line {line})")


def read_cnf(path: FilePath) -> FactorGraph:
    """The model in a DIMACS CNF file.

    `c p weight LITERAL W 0` weighs a literal; unweighted variables count 1 in both states. Where
    only one literal of a variable is weighted, the other weighs 1 - W (0 <= W <= 1 is required).
    Other comments are ignored. A clause that holds a literal and its negation says nothing.
    """
    data = read_bytes(path)
    cnf = _Cnf(str(path))
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
    return FactorGraph(np.full(cnf.variables, 2), factors, name=Path(path).name)


def _number(cnf: _Cnf, word: str, line: int, what: str) -> int:
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        cnf.fail(f"{what} is {word[:30]!r}; expected a whole number of at most 18 digits", line)
    return int(word)


def _read_header(cnf: _Cnf, words: list[str], line: int, size: int) -> None:
    if cnf.variables >= 0:
        cnf.fail("a second line `p`; expected one", line)
    if len(words) != 4 or words[1] not in ("cnf", "wcnf"):
        cnf.fail("expected `p cnf VARIABLES CLAUSES`", line)
    if words[1] == "wcnf":
        cnf.fail("`p wcnf` is a MaxSAT file; expected `p cnf`", line)
    cnf.variables = _number(cnf, words[2], line, "the number of variables")
    cnf.clauses = _number(cnf, words[3], line, "the number of clauses")
    if cnf.variables < 0 or cnf.clauses < 0:
        cnf.fail("negative counts in the line `p`", line)
    if cnf.variables > _ROOM + 16 * size:
        cnf.fail(f"{cnf.variables} variables are too many for a file of {size} bytes", line)


def _literal(cnf: _Cnf, word: str, line: int) -> int:
    literal = _number(cnf, word, line, "a literal")
    if cnf.variables < 0:
        cnf.fail("a clause or weight stands before the line `p cnf VARIABLES CLAUSES`", line)
    if abs(literal) > cnf.variables:
        cnf.fail(f"literal {literal} names a variable beyond {cnf.variables}", line)
    return literal


def _read_weight(cnf: _Cnf, words: list[str], line: int) -> None:
    if len(words) not in (2, 3) or (len(words) == 3 and words[2] != "0"):
        cnf.fail("expected `c p weight LITERAL WEIGHT 0`", line)
    literal = _literal(cnf, words[0], line)
    if literal == 0:
        cnf.fail("literal 0 cannot be weighted", line)
    try:
        weight = float(words[1].replace("_", "?"))
    except ValueError:
        cnf.fail(f"weight {words[1][:30]!r} is not a number", line)
    if not 0.0 <= weight < math.inf:
        cnf.fail(f"weight {words[1][:30]!r}; expected a finite number >= 0", line)
    if cnf.weights.setdefault(literal, weight) != weight:
        cnf.fail(
            f"literal {literal} weighs {cnf.weights[literal]:g} above and {weight:g} here", line
        )


def _read_literals(cnf: _Cnf, words: list[str], clause: list[int], line: int) -> list[int]:
    for word in words:
        literal = _literal(cnf, word, line)
        if literal:
            clause.append(literal)
            continue
        cnf.read += 1
        literals = sorted(set(clause), key=abs)
        clause = []
        if any(-k in literals for k in literals):
            continue
        if len(literals) > MAX_CLAUSE:
            cnf.fail(
                f"a clause of {len(literals)} literals needs a table of 2^{len(literals)}; the "
                f"limit is {MAX_CLAUSE}. Split it by auxiliary variables",
                line,
            )
        table = np.zeros((2,) * len(literals))
        table[tuple(int(k < 0) for k in literals)] = -np.inf  # all literals false
        cnf.factors.append(([abs(k) - 1 for k in literals], table))
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
    if model.evidence:
        raise ModelError("a CNF file holds no evidence; write model.condition()[0]")
    if (model.cardinalities != 2).any():
        v = int(np.argmax(model.cardinalities != 2))
        raise ModelError(f"variable {v} has {model.cardinalities[v]} states; CNF variables have 2")
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
                "clauses cannot express them"
            )
        for index in np.argwhere(table == -np.inf):
            literals = [-(v + 1) if x else v + 1 for v, x in zip(scope, index, strict=True)]
            clauses.append(" ".join(map(str, [*literals, 0])))
    lines = [f"p cnf {model.n_variables} {len(clauses)}"]
    for v in sorted(weighted):
        for sign, log in ((-1, weights[v, 0]), (1, weights[v, 1])):
            if log > 709.0 or (-np.inf < log < -708.0):
                raise ModelError(f"variable {v} has a log weight of {log:g}, beyond doubles")
            lines.append(f"c p weight {sign * (v + 1)} {math.exp(log)!r} 0")
    write_atomically([(path, ("\n".join([*lines, *clauses]) + "\n").encode())])
