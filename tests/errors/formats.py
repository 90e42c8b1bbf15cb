"""What the readers and writers of other formats say: BIF, XMLBIF, CNF, libDAI, MATLAB, HDF5."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace

import numpy as np

import tightz as tz
from tests.errors.table import Case, reads
from tightz.errors import MissingExtraError, ModelError, UnsupportedModelError
from tightz.models.formats.bif_writer import write_bif
from tightz.models.formats.mat import DamagedError, read_matrices

GRID = tz.ising_grid(2, seed=0)
SEEN = GRID.with_evidence({0: 1})
TERNARY = tz.FactorGraph([3])

A = "variable a { type discrete [ 2 ] { no, yes }; }\n"
B = "variable b { type discrete [ 2 ] { no, yes }; }\n"
P_A = "probability ( a ) { table 0.5, 0.5; }\n"


def _many_parents():
    names = [f"v{i}" for i in range(61)]
    declared = "".join(f"variable {v} {{ type discrete [ 1 ] {{ x }}; }}\n" for v in names)
    return declared + f"probability ( {' , '.join(names)} ) {{ table 1; }}\n"


BIF = [
    (A + A, "variable 'a' is declared twice; expected once (TMP/n.bif, line 2)"),
    (
        "variable a { type discrete [ 2 ] { no, no }; }",
        "variable 'a' has states ['no', 'no']; expected distinct names (TMP/n.bif, line 1)",
    ),
    (
        "variable a { type discrete [ 3 ] { no, yes }; }",
        "variable 'a' announces '3' states and lists 2; expected the same number "
        "(TMP/n.bif, line 1)",
    ),
    (
        "variable a { property coin; }",
        "variable 'a' has no type; expected `type discrete [ N ] { states };` (TMP/n.bif, line 1)",
    ),
    ("variable a { type real", "found 'real'; expected discrete (TMP/n.bif, line 1)"),
    (
        "variable a { type discrete [ 2 ]",
        "found the end of the file; expected { (TMP/n.bif, line 1)",
    ),
    ("factor a", "found 'factor'; expected variable or probability (TMP/n.bif, line 1)"),
    (A, "variable 'a' has no table; expected one for every variable (TMP/n.bif)"),
    (
        A + "probability ( ) { }",
        "a table names no variable; expected ( child | parents ) (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a | c ) { table 1; }",
        "a table names 'c', which is not declared; expected one of ['a'] (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a | a ) { table 1; }",
        "a table names a variable twice: ['a', 'a']; expected once (TMP/n.bif, line 2)",
    ),
    (A + P_A + P_A, "variable 'a' has two tables; expected one (TMP/n.bif, line 3)"),
    (
        A + "probability ( a ) { table 0.5; }",
        "1 numbers are listed for 'a'; expected 2 (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a ) { table half, half; }",
        "found 'half half'; expected numbers (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a ) { table 0.5, 0.9; }",
        "a column of the table of 'a' sums to 1.4; expected 1 (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a ) { table 1.5, -0.5; }",
        "the table of 'a' lacks entries or holds one that is negative or not finite; "
        "expected a probability for every state (TMP/n.bif, line 2)",
    ),
    (
        A + "probability ( a ) { values 0.5, 0.5; }",
        "found 'values' in the table of 'a'; expected table, default or ( states ) "
        "(TMP/n.bif, line 2)",
    ),
    (
        A + B + P_A + "probability ( b | a ) { (no, no) 0.5, 0.5; }",
        "2 states are given for the 1 parents of 'b'; expected one each (TMP/n.bif, line 4)",
    ),
    (
        A + B + P_A + "probability ( b | a ) { (maybe) 0.5, 0.5; }",
        "'a' has no state 'maybe'; it has ['no', 'yes'] (TMP/n.bif, line 4)",
    ),
    (_many_parents(), "'v0' has 60 parents; expected at most 59 (TMP/n.bif, line 62)"),
    (
        "".join(
            f"variable v{i} {{ type discrete [ 9 ] {{ a, b, c, d, e, f, g, h, i }}; }}\n"
            for i in range(9)
        )
        + "probability ( v0 | v1, v2, v3, v4, v5, v6, v7, v8 ) { table 1; }",
        "the table of 'v0' brings the tables to 387420489 entries; a file of 667 bytes "
        "may have 748544 (TMP/n.bif, line 10)",
    ),
]

XMLBIF = [
    (
        "<!ENTITY a 'b'>",
        "the file declares entities or is not plain text; expected XMLBIF (TMP/n.xml)",
    ),
    ("<BIF><NETWORK>", "not well-formed XML: no element found: line 1, column 14 (TMP/n.xml)"),
    (
        "<BIF><VARIABLE><OUTCOME>x</OUTCOME></VARIABLE></BIF>",
        "a VARIABLE has no NAME; expected one (TMP/n.xml)",
    ),
    (
        "<BIF><DEFINITION><TABLE>1</TABLE></DEFINITION></BIF>",
        "a DEFINITION has 0 FOR; expected one (TMP/n.xml)",
    ),
    ("<BIF></BIF>", "the file has no VARIABLE; expected XMLBIF (TMP/n.xml)"),
]

CNF = [
    (b"p cnf 1 1\n\xff\n", "the file is not text; expected DIMACS CNF (TMP/f.cnf, line 2)"),
    ("c nothing\n", "the file has no line `p cnf VARIABLES CLAUSES` (TMP/f.cnf, line 2)"),
    (
        "c t pmc\np cnf 2 1\nc p show 1 0\n1 -2 0\n",
        "a projected count is asked for; expected `c t mc` or `c t wmc` and no line `c p show`, "
        "for the count over all 2 variables (TMP/f.cnf, line 1)",
    ),
    (
        "c t mc\np cnf 2 1\n1 -2 0\nc p weight 1 0.25 0\n",
        "`c t mc` asks for a count without weights, and line 4 gives one; expected `c t wmc`, or "
        "no line `c p weight` (TMP/f.cnf, line 1)",
    ),
    (
        "p cnf 2 1\nc t amc-complex\n1 -2 0\n",
        "`c t amc-complex` is no count known here; expected `c t mc` or `c t wmc` (TMP/f.cnf, "
        "line 2)",
    ),
    ("p cnf 2 1\n1 -2\n", "the last clause does not end with 0 (TMP/f.cnf, line 3)"),
    ("p cnf 2 2\n1 -2 0\n", "2 clauses are announced; 1 follow (TMP/f.cnf, line 3)"),
    ("p cnf 2 1\np cnf 2 1\n", "a second line `p`; expected a single one (TMP/f.cnf, line 2)"),
    ("p cnf 2\n", "found 'p cnf 2'; expected `p cnf VARIABLES CLAUSES` (TMP/f.cnf, line 1)"),
    ("p wcnf 2 1\n", "`p wcnf` is a MaxSAT file; expected `p cnf` (TMP/f.cnf, line 1)"),
    (
        "p cnf 2 one\n",
        "the number of clauses is 'one'; expected a whole number of at most 18 digits "
        "(TMP/f.cnf, line 1)",
    ),
    ("p cnf -2 1\n", "-2 variables and 1 clauses; expected counts >= 0 (TMP/f.cnf, line 1)"),
    (
        "p cnf 99999999 1\n",
        "99999999 variables; a file of 17 bytes may have 65808 (TMP/f.cnf, line 1)",
    ),
    (
        "1 2 0\n",
        "a clause or weight stands before the line `p cnf VARIABLES CLAUSES` (TMP/f.cnf, line 1)",
    ),
    (
        "p cnf 2 1\n1 3 0\n",
        "literal 3; the file announces variables 1 to 2 (TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 1\n1 -9223372036854775808 0\n",
        "a literal is '-9223372036854775808'; expected a whole number of at most 18 digits "
        "(TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 0\nc p weight 1\n",
        "found `c p weight 1`; expected `c p weight LITERAL WEIGHT 0` (TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 0\nc p weight 0 0.5 0\n",
        "literal 0 has a weight; expected 1 to 2, or negated (TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 0\nc p weight 1 half 0\n",
        "weight is 'half'; expected a number (TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 0\nc p weight 1 -0.5 0\n",
        "weight is '-0.5'; expected a finite number >= 0 (TMP/f.cnf, line 2)",
    ),
    (
        "p cnf 2 0\nc p weight 1 0.5 0\nc p weight 1 0.6 0\n",
        "literal 1 weighs 0.5 above and 0.6 here; expected one weight (TMP/f.cnf, line 3)",
    ),
    (
        "p cnf 2 0\nc p weight 1 1.5 0\n",
        "variable 1 has a weight of 1.5 for one literal and none for the other; give "
        "both, or one of at most 1 (TMP/f.cnf)",
    ),
]

FG = [
    (
        "5\n1\n",
        "5 factors are announced; only 1 words follow (TMP/m.fg, line 1)",
    ),
    (
        "1\n\n61\n0\n2\n",
        "factor 0 announces 61 variables; at most 60 are read (TMP/m.fg, line 3)",
    ),
    ("1\n\n3\n0 1\n", "factor 0 announces 3 variables; the file ends too early (TMP/m.fg, line 3)"),
    (
        "1\n\n1\n99999999\n2\n0\n",
        "label 99999999 is too large for a file of 5 words; renumber (TMP/m.fg, line 4)",
    ),
    (
        "1\n\n2\n1 1\n2 2\n0\n",
        "factor 0 names variable 1 twice in its scope (TMP/m.fg, line 4)",
    ),
    (
        "1\n\n1\n0\n0\n0\n",
        "variable 0 has 0 states; expected 1 to 2147483647 (TMP/m.fg, line 5)",
    ),
    (
        "2\n\n1\n0\n2\n0\n\n1\n0\n3\n0\n",
        "variable 0 has 2 states above and 3 here; expected the same (TMP/m.fg, line 10)",
    ),
    ("1\n\n1\n0\n2\n3\n", "factor 0 announces 3 entries; its table holds 2 (TMP/m.fg, line 6)"),
    (
        "1\n\n1\n0\n2\n2\n0 1.0\n",
        "factor 0 announces 2 entries; the file ends too early (TMP/m.fg, line 6)",
    ),
    (
        "1\n\n1\n0\n2\n1\n2 1.0\n",
        "index 2 lies outside factor 0, which has 2 entries (TMP/m.fg, line 7)",
    ),
    (
        "1\n\n1\n0\n2\n2\n0 1.0\n0 2.0\n",
        "factor 0 lists entry 0 twice (TMP/m.fg, line 8)",
    ),
    (
        "1\n\n1\n0\n2\n1\n0 -1.0\n",
        "factor 0, entry 0 is '-1.0'; potentials are finite numbers >= 0 (TMP/m.fg, line 7)",
    ),
    (
        "1\n\n1\n0\n2\n1\n0 1e-400\n",
        "factor 0, entry 0 is '1e-400', too small for a double; expected 0 or at least "
        "5e-324 (TMP/m.fg, line 7)",
    ),
    (
        "1\n\n3\n0 1 2\n900 900 900\n0\n",
        "factor 0 brings the tables to 729000000 entries; a file of 9 words may have "
        "74752 (TMP/m.fg, line 6)",
    ),
    (
        "1\n\n1\n0\n2\n1\n0 1.0\n7\n",
        "'7' follows the last factor; the file should end there (TMP/m.fg, line 8)",
    ),
]


def _network(path, evidence):
    path.write_text(A + P_A)
    return tz.read(path, evidence)


def _observed(path):
    return _network(path.with_name("n.bif"), path)


EVIDENCE = [
    (
        "a=no\nb",
        "evidence is 'b'; expected a pair such as rain=yes (TMP/e, line 2)",
    ),
    (
        "a=maybe",
        "evidence puts 'a' in state 'maybe'; it has 'no', 'yes' (n.bif) (TMP/e, line 1)",
    ),
    (
        "a=no\n\na=yes",
        "evidence puts 'a' in a second state; expected one (TMP/e, line 3)",
    ),
    ('{"a": "no", "b": 1}', "evidence names 'b'; the model has 'a' (n.bif) (TMP/e)"),
    (
        '{"a": "no", "a": "yes"}',
        'the evidence is no JSON object such as {"rain": "yes"}: \'a\' stands in it twice (TMP/e)',
    ),
    (
        '{"a": ',
        'the evidence is no JSON object such as {"rain": "yes"}: ... (TMP/e)',
    ),
]


def _new_matlab(tmp, patch):
    (tmp / "w.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n")
    tz.read(tmp / "w.mat")


def _mat(*elements):
    """read_matrices on a version 5 file of these (type, bytes)."""
    return read_matrices(b"MATLAB".ljust(126) + b"IM" + b"".join(_element(*e) for e in elements))


def _element(kind, data, size=None):
    tag = struct.pack("<II", kind, len(data) if size is None else size)
    return tag + data + bytes(-len(data) % 8)


def _array(flags=6, sides=(1, 1), kind=9, data=bytes(8)):
    """The inside of a version 5 matrix named w."""
    shape = struct.pack(f"<{len(sides)}i", *sides)
    return (
        _element(6, struct.pack("<II", flags, 0)) + _element(5, shape) + _element(1, b"w")
        + _element(kind, data)
    )  # fmt: skip


def _no_h5py(tmp, patch):
    patch.setitem(sys.modules, "h5py", None)
    (tmp / "w.h5").write_bytes(b"")
    tz.read(tmp / "w.h5")


def _bad_naming(tmp, patch):
    tz.write(GRID.with_names(list("abcd")), tmp / "m.npz")
    arrays = dict(np.load(tmp / "m.npz"))
    np.savez(tmp / "m.npz", **{**arrays, "naming": np.array([123, 7], dtype=np.uint8)})
    tz.read(tmp / "m.npz")


def _bad_hdf5(tmp, patch):
    class File:
        def __init__(self, *_):
            raise OSError("file signature not found")

    patch.setitem(sys.modules, "h5py", SimpleNamespace(File=File))
    (tmp / "w.h5").write_bytes(b"nothing")
    tz.read(tmp / "w.h5")


def _large_hdf5(tmp, patch):
    class Dataset:
        name, nbytes = "/W", 10**12

    class File(dict):
        def __init__(self, *_):
            super().__init__(W=Dataset())

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    patch.setitem(sys.modules, "h5py", SimpleNamespace(File=File, Dataset=Dataset))
    (tmp / "w.h5").write_bytes(b"nothing")
    tz.read(tmp / "w.h5")


def _no_weights(tmp, patch):
    patch.setattr("tightz.models.formats.array_files.read_mat", lambda _: {"W": np.zeros(2)})
    tz.read(tmp / "w.mat")


def _bqm(vartype):
    return SimpleNamespace(linear={}, quadratic={}, offset=0.0, vartype=vartype)


NETWORK = tz.FactorGraph([2], [((0,), np.log([0.5, 0.5]))])


def _write_bif(tmp, model=NETWORK, **names):
    write_bif(model, tmp / "n.bif", **names)


def _logs(scope, table, cards=(2, 2)):
    return tz.FactorGraph(list(cards), [(scope, table)])


MAT = [
    ("Error -3 while decompressing data: ...", lambda: _mat((15, b"not zlib"))),
    (
        "an array's flags or dimensions are not as they should be",
        lambda: _mat((14, _element(6, b"") + _element(5, bytes(8)) + _element(1, b"w"))),
    ),
    (
        "an array's data type is 14, which is not one of numbers",
        lambda: _mat((14, _array(kind=14))),
    ),
    ("the file ends in the middle of an element", lambda: _mat((14, b""))),
    ("a short element is longer than its tag", lambda: _mat((14 | 5 << 16, b""))),
    ("an element is longer than what is left of the file", lambda: _mat((14, b"", 80))),
    (
        "an array of 8 bytes cannot have the dimensions (2, 3)",
        lambda: _mat((14, _array(sides=(2, 3)))),
    ),
    ("the file ends in the middle of a header", lambda: read_matrices(b"short")),
    (
        "it starts with neither a version 5 nor a version 4 header",
        lambda: read_matrices(b"x" * 40),
    ),
    (
        "an array is longer than what is left of the file",
        lambda: read_matrices(struct.pack("<5i", 0, 9, 9, 0, 2) + b"w\0"),
    ),
]

CASES = [
    *(Case(DamagedError, text, act) for text, act in MAT),
    *(reads(tz.read, "n.bif", content, text) for content, text in BIF),
    Case(
        ModelError,
        "evidence names 'c'; the model has 'a' (n.bif)",
        lambda tmp: _network(tmp / "n.bif", {"c": "no"}),
    ),
    Case(
        ModelError,
        "evidence puts 'a' in state 'maybe'; it has 'no', 'yes' (n.bif)",
        lambda tmp: _network(tmp / "n.bif", {"a": "maybe"}),
    ),
    *(reads(_observed, "e", content, text) for content, text in EVIDENCE),
    Case(
        ModelError,
        "evidence is 'a'; expected a pair such as a=no",
        lambda tmp: _network(tmp / "n.bif", "a"),
    ),
    Case(
        ModelError,
        "evidence is 'a=b=c', which may put 'a' in state 'b=c' or 'a=b' in state 'c'; expected one "
        "of them, as a mapping or a JSON object",
        lambda tmp: tz.exact(
            tz.FactorGraph([1, 1], names=["a", "a=b"], states=[["b=c"], ["c"]]), evidence="a=b=c"
        ),
    ),
    *(reads(tz.read, "n.xml", content, text) for content, text in XMLBIF),
    *(reads(tz.read, "f.cnf", content, text) for content, text in CNF),
    *(reads(tz.read, "m.fg", content, text) for content, text in FG),
    reads(
        tz.read,
        "w.mat",
        b"nothing",
        "TMP/w.mat is not a MATLAB file (or a damaged one): the file ends in the middle of a "
        "header",
    ),
    Case(
        ModelError,
        "TMP/w.mat is a MATLAB 7.3 file, which is HDF5: name it .h5, or save it with -v7",
        _new_matlab,
    ),
    Case(
        ModelError,
        "TMP/w.mat has no array visible_bias, hidden_bias; it holds W, expected W, "
        "visible_bias, hidden_bias",
        _no_weights,
    ),
    Case(
        ModelError,
        "the array naming of TMP/m.npz holds no names (Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)); expected that of tz.write, or a file without it",
        _bad_naming,
    ),
    Case(MissingExtraError, "reading TMP/w.h5 needs h5py: pip install 'tightz[h5]'", _no_h5py),
    Case(
        ModelError,
        "TMP/w.h5 is not an HDF5 file (or a damaged one): file signature not found",
        _bad_hdf5,
    ),
    Case(
        ModelError,
        "TMP/w.h5 is not an HDF5 file (or a damaged one): /W claims 1000000000000 bytes in a file "
        "of 7",
        _large_hdf5,
    ),
    Case(
        ModelError,
        "the model has evidence on 1 variables, which a CNF file cannot hold; write "
        "model.condition()",
        lambda tmp: tz.write(SEEN, tmp / "f.cnf"),
    ),
    Case(
        ModelError,
        "variable 0 has 3 states; CNF variables have 2. A .uai file holds any model",
        lambda tmp: tz.write(TERNARY, tmp / "f.cnf"),
    ),
    Case(
        ModelError,
        "factor 4 over variables (0, 1) holds potentials other than 0 and 1; CNF clauses "
        "cannot express them. A .uai file holds any model",
        lambda tmp: tz.write(GRID, tmp / "f.cnf"),
    ),
    Case(
        ModelError,
        "variable 0 has a log weight of 800; weights are doubles, which hold -708 to 709."
        " tz.write(model, 'm.uai', wide=True) writes such models",
        lambda tmp: tz.write(_logs((0,), [0.0, 800.0]), tmp / "f.cnf"),
    ),
    Case(
        ModelError,
        "the model has evidence on 1 variables, which an .fg file cannot hold; write "
        "model.condition()",
        lambda tmp: tz.write(SEEN, tmp / "m.fg"),
    ),
    Case(
        ModelError,
        "factor 0 has a log potential of 800; .fg tables are doubles, which hold -708 to "
        "709. tz.write(model, 'm.uai', wide=True) writes such models",
        lambda tmp: tz.write(_logs((1,), [0.0, 800.0]), tmp / "m.fg"),
    ),
    Case(
        ModelError,
        "list has no linear, quadratic, offset, vartype; expected a binary quadratic "
        "model with linear, quadratic, offset and vartype (pip install dimod)",
        lambda: tz.from_dimod([1, 2]),
    ),
    Case(
        ModelError,
        "vartype is 'INTEGER'; expected SPIN or BINARY",
        lambda: tz.from_dimod(_bqm("INTEGER")),
    ),
    Case(
        ModelError,
        "h[0] is nan; expected a finite number",
        lambda: tz.from_ising({0: float("nan")}, {}),
    ),
    Case(
        UnsupportedModelError,
        "the model has a term of 3 spins; an Ising model has pairs at most. A .uai "
        "file holds any model",
        lambda: tz.to_ising(_logs((0, 1, 2), np.arange(8.0) ** 2 % 5, cards=(2, 2, 2))),
    ),
    Case(
        UnsupportedModelError,
        "no state has weight; an Ising model has Z > 0",
        lambda: tz.to_ising(_logs((0,), [-np.inf, -np.inf])),
    ),
    Case(
        ModelError,
        "the name 'a\"' is empty, a comma or a bar, or holds a quote or a line end, which BIF "
        "cannot write; choose another by names= or states= (.npz holds any)",
        lambda tmp: _write_bif(tmp, names=['a"']),
    ),
    Case(
        ModelError,
        "the name 'a ' is empty, begins or ends with a space, or holds a sign that XML cannot "
        "write; choose another by names= or states= (.npz holds any)",
        lambda tmp: tz.write(NETWORK, tmp / "n.xml", names=["a "]),
    ),
    Case(
        ModelError,
        "2 names and 1 lists of states do not fit FactorGraph(1 variables of 2 states, 1 "
        "factors of arity up to 1); expected one name a variable and one a state",
        lambda tmp: _write_bif(tmp, names=["a", "b"]),
    ),
    Case(
        ModelError,
        "the names ['no', 'no'] are repeated, or no text; expected distinct names",
        lambda tmp: _write_bif(tmp, states=[["no", "no"]]),
    ),
    Case(
        ModelError,
        "the model has evidence; a network file holds none. Write it without",
        lambda tmp: _write_bif(tmp, NETWORK.with_evidence({0: 1})),
    ),
    Case(
        ModelError,
        "a log potential is below -708, beyond doubles; expected probabilities",
        lambda tmp: _write_bif(tmp, _logs((0,), [0.0, -709.0], (2,))),
    ),
    Case(
        ModelError,
        "the model is no Bayesian network: factor 0 does not sum to 1 over variable 0, "
        "its own by position. A .uai file holds any model",
        lambda tmp: _write_bif(tmp, GRID),
    ),
]
