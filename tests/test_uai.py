"""UAI files: what is read, what is written, and what each damaged file is told."""

from __future__ import annotations

import csv
import math
import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tightz.errors import ModelError
from tightz.models.builders import ising, ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.uai import read_uai, write_uai
from tightz.models.formats.uai_results import read_mar, read_pr, write_mar, write_pr

SMALL = """MARKOV
3
2 3 2
3
1 0
2 0 1
2 2 1

2
 0.5 1.5

6
 1 0 2 3 4 5e-1

6
 1e-3 2 3 4 5 6.25
"""


def data_folder() -> Path:
    root = os.environ.get("TIGHTZ_DATA")
    if not root:
        pytest.skip("TIGHTZ_DATA is not set")
    return Path(root) / "uai2014"


def put(folder: Path, content: str | bytes, name: str = "model.uai") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message(path: Path, reader=read_uai, *args) -> str:
    with pytest.raises(ModelError) as caught:
        reader(path, *args)
    return str(caught.value)


def assert_same_model(got: FactorGraph, expected: FactorGraph) -> None:
    np.testing.assert_array_equal(got.cardinalities, expected.cardinalities)
    np.testing.assert_array_equal(got.scope_ptr, expected.scope_ptr)
    np.testing.assert_array_equal(got.scope_vars, expected.scope_vars)
    np.testing.assert_array_equal(got.table_ptr, expected.table_ptr)
    np.testing.assert_array_equal(got.log_tables == -np.inf, expected.log_tables == -np.inf)
    finite = expected.log_tables > -np.inf
    have, want = got.log_tables[finite], expected.log_tables[finite]
    assert (np.abs(have - want) <= 1e-15 * np.maximum(1.0, np.abs(want))).all()
    assert got.evidence == expected.evidence


@st.composite
def models(draw, low: float = -30.0, high: float = 30.0, max_variables: int = 4) -> FactorGraph:
    cards = draw(st.lists(st.integers(1, 5), max_size=max_variables))
    entry = st.one_of(st.just(-np.inf), st.floats(low, high))
    factors = []
    for _ in range(draw(st.integers(0, 4))):
        order = draw(st.permutations(range(len(cards))))
        scope = order[: draw(st.integers(0, min(3, len(cards))))]
        size = math.prod(cards[v] for v in scope)
        factors.append((scope, draw(st.lists(entry, min_size=size, max_size=size))))
    evidence = {v: draw(st.integers(0, c - 1)) for v, c in enumerate(cards) if draw(st.booleans())}
    return FactorGraph(cards, factors, evidence=evidence)


def enumerated_log_z(cards, factors) -> float:
    """log Z by enumeration; a model without variables is the product of its constants."""
    if len(cards) == 0:
        return float(sum(np.sum(table) for _, table in factors))
    return naive.enumerate_model(cards, factors)[0]


# What is read


@pytest.mark.parametrize("preamble", ["MARKOV", "BAYES", "markov"])
def test_reads_tables_last_variable_fastest(tmp_path: Path, preamble: str) -> None:
    model = read_uai(put(tmp_path, SMALL.replace("MARKOV", preamble)))
    assert model.name == "model.uai"
    assert model.cardinalities.tolist() == [2, 3, 2]
    assert [f.scope for f in model.factors] == [(0,), (0, 1), (2, 1)]
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(model.factor(1).log_table, np.log([[1, 0, 2], [3, 4, 0.5]]))
    np.testing.assert_array_equal(model.factor(2).log_table, np.log([[1e-3, 2, 3], [4, 5, 6.25]]))


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: " ".join(text.split()),
        lambda text: "\n\n\t".join(text.split()) + "\n \n",
        lambda text: "\ufeff" + text,
    ],
)
def test_layout_of_whitespace_is_free(tmp_path: Path, rewrite) -> None:
    expected = read_uai(put(tmp_path, SMALL))
    assert read_uai(put(tmp_path, rewrite(SMALL))).digest == expected.digest


@pytest.mark.parametrize(
    ("text", "cards", "log_z"),
    [
        ("MARKOV 0 0", [], 0.0),
        ("MARKOV\n0\n\n1\n0\n1\n2.5", [], math.log(2.5)),
        ("MARKOV 3 2 1 4 0", [2, 1, 4], math.log(8)),
        ("MARKOV 1 1 1 1 0 1 7", [1], math.log(7)),
        ("MARKOV 2 2 2 1 1 0 2 0 0", [2, 2], -math.inf),
        ("MARKOV 1 2 1 1 0 2 -0.0 .5", [2], math.log(0.5)),
    ],
)
def test_smallest_models(tmp_path: Path, text: str, cards: list[int], log_z: float) -> None:
    model = read_uai(put(tmp_path, text))
    assert model.cardinalities.tolist() == cards
    assert enumerated_log_z(cards, list(model.factors)) == pytest.approx(log_z, rel=1e-14)


def test_entries_beyond_doubles_keep_their_log(tmp_path: Path) -> None:
    tokens = ["1e-400", "2.5E+600", "0." + "0" * 399 + "1", "4e-320", "0e7", "1" + "0" * 400]
    model = read_uai(put(tmp_path, f"MARKOV 1 6 1 1 0 6 {' '.join(tokens)}"))
    ten = math.log(10)
    expected = [-400 * ten, math.log(2.5) + 600 * ten, -400 * ten, math.log(4) - 320 * ten]
    np.testing.assert_allclose(model.log_tables, [*expected, -np.inf, 400 * ten], rtol=4e-16)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" \n", {}),
        ("0\n", {}),
        ("1 0", {}),
        ("1\n0\n", {}),
        ("1 1 2", {1: 2}),
        ("1\n1 1 2\n", {1: 2}),
        ("2 0 1 1 1", {0: 1, 1: 1}),
        ("1\n2 0 1 1 1\n", {0: 1, 1: 1}),
        ("2 1 2 1 2", {1: 2}),
        ("3 0 0 1 0 2 0", {0: 0, 1: 0, 2: 0}),
    ],
)
def test_evidence_dialects(tmp_path: Path, text: str, expected: dict[int, int]) -> None:
    model = read_uai(put(tmp_path, SMALL), put(tmp_path, text, "model.evid"))
    assert model.evidence == expected


def test_evidence_as_mapping(tmp_path: Path) -> None:
    path = put(tmp_path, SMALL)
    assert read_uai(path, evidence={1: 2}).evidence == {1: 2}
    with pytest.raises(ModelError, match="variable 1 in state 3"):
        read_uai(path, evidence={1: 3})


@given(models(max_variables=3), st.booleans())
def test_evidence_round_trips_in_both_dialects(tmp_path_factory, model, samples_first) -> None:
    folder = tmp_path_factory.mktemp("evidence")
    write_uai(model, folder / "m", evidence_path=folder / "e")
    if samples_first:
        (folder / "e").write_text("1\n" + (folder / "e").read_text())
    assert read_uai(folder / "m", folder / "e").evidence == model.evidence


# What is refused, and where the message points


def edit(line: int, text: str) -> str:
    """SMALL with one line (counted from 1) replaced."""
    lines = SMALL.splitlines()
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


REFUSED = [
    ("", 1, "the file is empty; expected MARKOV or BAYES and numbers"),
    (" \n\t\n", 1, "the file is empty; expected MARKOV or BAYES and numbers"),
    (edit(1, "<html>"), 1, "the file begins with '<html>'; expected MARKOV or BAYES"),
    (edit(3, "2 é 2"), 3, "'é' is not a number"),
    ("MARKOV", 1, "the file ends where the number of variables was expected"),
    (edit(2, "-3"), 2, "the number of variables is '-3'; expected a whole number of at most 18 d"),
    (edit(2, "3.0"), 2, "the number of variables is '3.0'; expected a whole number of at most 18"),
    ("MARKOV\n3\n2 3", 2, "3 variables are announced; only 2 words follow"),
    (
        edit(3, "2 0 2"),
        3,
        "variable 1 has '0' states; expected a whole number from 1 to 2147483647",
    ),
    (edit(3, "2 3 -2"), 3, "variable 2 has '-2' states; expected a whole number from 1 to 214748"),
    (edit(3, "2 3e9 2"), 3, "variable 1 has '3e9' states; expected a whole number from 1 to 2147"),
    (edit(3, "2 3 4294967298"), 3, "variable 2 has '4294967298' states; expected a whole number "),
    (edit(3, "2 x 2"), 3, "'x' is not a number"),
    ("MARKOV\n1\n2\n", 3, "the file ends where the number of factors was expected"),
    (edit(4, "9"), 4, "9 factors are announced, which take at least 27 words; only 25 follow"),
    (edit(6, "20 0 1"), 6, "factor 1 announces 20 variables; the model has 3"),
    ("MARKOV 3 2 2 2 1\n3 0 1", 2, "factor 0 announces 3 variables; the file ends too early"),
    (edit(6, "-2 0 1"), 6, "the number of variables of factor 1 is '-2'; expected a whole number"),
    (edit(6, "2 0 3"), 6, "factor 1 names variable '3'; the model has variables 0 to 2"),
    (edit(6, "2 0 -1"), 6, "factor 1 names variable '-1'; the model has variables 0 to 2"),
    (edit(6, "2 0 0.5"), 6, "factor 1 names variable '0.5'; the model has variables 0 to 2"),
    ("MARKOV 0 1\n1 0 1 1", 2, "factor 0 announces 1 variables; the model has 0"),
    (edit(7, "2 1 1"), 7, "factor 2 names variable 1 twice in its scope"),
    (edit(12, "5"), 12, "factor 1 lists 5 entries; its scope (0, 1) with 2 x 3 states needs 6"),
    (edit(9, "3"), 9, "factor 0 lists 3 entries; its scope (0,) with 2 states needs 2"),
    (edit(5, "0"), 9, "factor 0 lists 2 entries; its scope () with no states needs 1"),
    (
        edit(13, "1 0 2 3 4 5 8"),
        13,
        "factor 2 lists 8 entries; its scope (2, 1) with 2 x 3 states needs 6",
    ),
    (
        edit(13, "1 0 2 3 4"),
        16,
        "factor 2 lists '1e-3' entries; its scope (2, 1) with 2 x 3 states needs 6 "
        "(is the table of factor 1 complete?)",
    ),
    (edit(13, "1 0 2 3 4 -5"), 13, "factor 1, entry 5 is '-5'; potentials are finite numbers >= 0"),
    (edit(13, "1 0 nan 3 4 5"), 13, "factor 1, entry 2 is 'nan'; potentials are finite numbers "),
    (edit(13, "1 0 2 inf 4 5"), 13, "factor 1, entry 3 is 'inf'; potentials are finite numbers "),
    (edit(13, "1 0 2 3 4 -1e-400"), 13, "factor 1, entry 5 is '-1e-400'; potentials are finite n"),
    (edit(13, "-1e400 0 2 3 4 1"), 13, "factor 1, entry 0 is '-1e400'; potentials are finite num"),
    (edit(13, "1 0 2 3 4 0x1"), 13, "'0x1' is not a number"),
    (edit(13, "1 0 2 3 4 1_0"), 13, "'1_0' is not a number"),
    (edit(13, "1 0 2 3 4 1,5"), 13, "'1,5' is not a number"),
    (edit(13, "1 0 2 3 4 " + "z" * 99), 13, f"'{'z' * 27}...' is not a number"),
    (edit(16, "1 2 3 4"), 15, "factor 2 announces 6 entries; the file ends after 4"),
    (
        "MARKOV\n1\n2\n2\n1 0\n1 0\n2 1 1",
        7,
        "the file ends before the table of factor 1",
    ),
    (SMALL + "7 8\n", 17, "'7' follows the last table; the file should end there"),
    ("MARKOV 0 0\n0", 2, "'0' follows the last table; the file should end there"),
]


@pytest.mark.parametrize(
    ("text", "line", "expected"), REFUSED, ids=[expected[:50] for _, _, expected in REFUSED]
)
def test_refused_model_files(tmp_path: Path, text: str, line: int, expected: str) -> None:
    path = put(tmp_path, text)
    found = message(path)
    assert found.startswith(expected)
    assert found.endswith(f" ({path}, line {line})")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (SMALL.encode() + b"\xff\xfe", 17),
        (b"\x00" + SMALL.encode(), 1),
        (SMALL.encode()[:30] + b"\x00\x00" + SMALL.encode()[30:], 7),
        (bytes(range(256)), 1),
    ],
)
def test_binary_junk(tmp_path: Path, content: bytes, line: int) -> None:
    path = put(tmp_path, content)
    found = message(path)
    assert "which no text holds; expected a text file" in found
    assert found.endswith(f"({path}, line {line})")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("1\n3 0", 2, "evidence names variable 3; the model has variables 0 to 2"),
        ("2 0 1\n1 3", 2, "evidence puts variable 1 in state 3; it has states 0 to 2"),
        ("1 0 -1", 1, "the observed state of variable 0 is '-1'; expected a whole number of at "),
        ("1 x 0", 1, "an observed variable is 'x'; expected a whole number of at most 18 digits"),
        ("2 0 0\n0 1", 2, "evidence puts variable 0 in state 0 and in 1"),
        ("2 0 1", 1, "evidence on 2 variables is announced and 2 words follow; expected 4, a var"),
        ("0 1", 1, "evidence on 0 variables is announced and 1 words follow; expected 0, a varia"),
        ("1", 1, "evidence on 1 variables is announced and 0 words follow; expected 2, a variabl"),
        ("1\n2 0 1 1", 1, "evidence on 1 variables is announced and 4 words follow; expected 2, "),
        ("2\n1 0 1\n1 0 0", 1, "evidence on 2 variables is announced and 6 words follow; expecte"),
        ("9" * 40, 1, "the number of observed variables is '999999999999999999999999999...'; ex"),
        ("MARKOV", 1, "the number of observed variables is 'MARKOV'; expected a whole number of"),
    ],
)
def test_refused_evidence(tmp_path: Path, text: str, line: int, expected: str) -> None:
    path = put(tmp_path, text, "model.evid")
    found = message(put(tmp_path, SMALL), read_uai, path)
    assert found.startswith(expected)
    assert found.endswith(f" ({path}, line {line})")


def test_unreadable_paths(tmp_path: Path) -> None:
    model = put(tmp_path, SMALL)
    nowhere = tmp_path / "nowhere.uai"
    assert message(nowhere) == f"{nowhere} does not exist"
    assert message(model, read_uai, nowhere) == f"{nowhere} does not exist"
    assert message(tmp_path) == f"{tmp_path} is a directory; expected a file"
    assert message(model / "below") == f"cannot read {model / 'below'}: Not a directory"
    with pytest.raises(ModelError, match=r"cannot read .*null"):
        read_uai("a\0b")


@pytest.mark.parametrize(
    "text",
    [
        "MARKOV 1000000000000 2 2",
        "MARKOV 999999999999999999 2 2",
        "MARKOV " + "9" * 5000,
        "MARKOV 1 2 1000000000000 1 0",
        "MARKOV 1 2 1 1000000000000 0 1 1",
        "MARKOV 1 2 1 1 0 1000000000000000000 1 1",
        "MARKOV 2 2000000000 2000000000 1 2 0 1 4000000000000000000 1 1",
        "MARKOV 60" + " 9" * 60 + " 1 60 " + " ".join(map(str, range(60))) + " 5 1 1",
        "MARKOV 2000" + " 9" * 2000 + " 1 2000 " + " ".join(map(str, range(2000))) + " 5 1 1",
    ],
)
def test_absurd_counts_allocate_nothing(tmp_path: Path, text: str) -> None:
    path = put(tmp_path, text)
    message(path)  # imports and caches, once
    tracemalloc.start()
    try:
        message(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000


def test_memory_is_a_multiple_of_the_file(tmp_path: Path) -> None:
    n = 20_000  # words of one letter, the worst case: a word costs more than a letter
    text = f"MARKOV 1 {n} 1 1 0 {n} " + "7 " * n
    path = put(tmp_path, text)
    tracemalloc.start()
    try:
        read_uai(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * len(text)


# Fuzzing

SCRAPS = ["0", "1", "-1", "2", "3", "9", "17", "", "\n", "\0", ".", "-", "+", "e", "0x2", "1_0"]
SCRAPS += ["1e9", "1e400", "1e-400", "nan", "inf", "-inf", "MARKOV", "é", "9" * 18, "9" * 30]


def mutate(rng: random.Random, content: bytes) -> bytes:
    out = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(5)
        at = rng.randrange(len(out) + 1)
        if kind == 0:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del out[at : at + rng.randint(1, 20)]
        elif kind == 2:
            out[at:at] = out[at : at + rng.randint(1, 20)]
        elif kind == 3:
            words = bytes(out).split(b" ")
            words[rng.randrange(len(words))] = rng.choice(SCRAPS).encode()
            out = bytearray(b" ".join(words))
        else:
            del out[at:]
    return bytes(out)


def model_or_error(reader, path: Path):
    """What `reader` returns, or the text of its ModelError; nothing else may be raised."""
    try:
        return reader(path)
    except ModelError as error:
        return str(error)


def test_fuzzed_models_give_a_model_or_a_model_error(tmp_path: Path) -> None:
    rng = random.Random(0)
    read, refused = 0, 0
    for _ in range(4000):
        path = put(tmp_path, mutate(rng, SMALL.replace("\n", " \n ").encode()))
        model = model_or_error(read_uai, path)
        if isinstance(model, str):
            refused += 1
            assert f"({path}, line " in model
            continue
        read += 1
        cards, factors = naive.parse_uai(path.read_text())
        assert model.cardinalities.tolist() == cards
        assert [list(f.scope) for f in model.factors] == [scope for scope, _ in factors]
        assert (model.log_tables < np.inf).all()
    assert read > 100
    assert refused > 1000


@pytest.mark.parametrize(
    ("reader", "seed_text"),
    [
        (lambda path: read_uai(path.parent / "small.uai", path), "2 0 1 1 2"),
        (read_pr, "PR\n-12.5"),
        (read_mar, "MAR\n3 2 0.25 0.75 1 1 3 0.5 0.5 0"),
    ],
    ids=["evidence", "pr", "mar"],
)
def test_fuzzed_small_files(tmp_path: Path, reader, seed_text: str) -> None:
    put(tmp_path, SMALL, "small.uai")
    rng = random.Random(1)
    refused = 0
    for _ in range(1000):
        path = put(tmp_path, mutate(rng, seed_text.encode()), "fuzzed")
        found = model_or_error(reader, path)
        if isinstance(found, str):
            refused += 1
            assert f"({path}, line " in found
    assert 300 < refused < 1000


# Writing


@given(models())
def test_models_round_trip(tmp_path_factory, model: FactorGraph) -> None:
    folder = tmp_path_factory.mktemp("round")
    dropped = write_uai(model, folder / "m.uai", evidence_path=folder / "m.evid")
    assert dropped == 0.0
    assert_same_model(read_uai(folder / "m.uai", folder / "m.evid"), model)
    # The file itself holds the potentials to within the rounding of exp.
    cards, factors = naive.parse_uai((folder / "m.uai").read_text())
    tables = np.concatenate([table for _, table in factors] or [np.zeros(0)])
    np.testing.assert_allclose(tables, np.exp(model.log_tables), rtol=1e-15, atol=0)
    assert cards == model.cardinalities.tolist()


@given(models(low=-1e6, high=1e6, max_variables=2))
def test_wide_models_round_trip(tmp_path_factory, model: FactorGraph) -> None:
    folder = tmp_path_factory.mktemp("wide")
    assert write_uai(model, folder / "m", evidence_path=folder / "e", wide=True) == 0.0
    assert_same_model(read_uai(folder / "m", folder / "e"), model)


@given(models(low=-1e4, high=-1e4 + 1400, max_variables=3), st.floats(-1e5, 1e5))
def test_rescaled_models_keep_log_z(tmp_path_factory, model: FactorGraph, offset: float) -> None:
    path = tmp_path_factory.mktemp("scaled") / "m.uai"
    moved = FactorGraph.from_arrays(
        model.cardinalities,
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        model.log_tables + offset,
    )
    dropped = write_uai(moved, path, rescale=True)
    cards, factors = naive.parse_uai(path.read_text())
    with np.errstate(divide="ignore"):
        logs = [(scope, np.log(table)) for scope, table in factors]
    for (_, ours), original in zip(logs, moved.factors, strict=True):
        np.testing.assert_array_equal(ours == -np.inf, original.log_table.ravel() == -np.inf)
    expected = enumerated_log_z(cards, list(moved.factors))
    assert enumerated_log_z(cards, logs) + dropped == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_couplings_of_ten_need_no_option(tmp_path: Path) -> None:
    grid = ising_grid(4, coupling=(-10, 10), seed=0)
    assert write_uai(grid, tmp_path / "g.uai") == 0.0
    assert_same_model(read_uai(tmp_path / "g.uai"), grid)


def test_couplings_of_a_million_are_refused_unless_wide(tmp_path: Path) -> None:
    path = tmp_path / "frustrated.uai"
    frustrated = ising(-1e6 * (np.ones((3, 3)) - np.eye(3)))
    expected = (
        "factor 3 has log potentials from -1e+06 to 1e+06; UAI tables are read as doubles, which "
        "hold -708 to 709: no shift brings it there; wide=True writes decimals that only tightz "
        "reads"
    )
    for rescale in (False, True):
        with pytest.raises(ModelError) as caught:
            write_uai(frustrated, path, rescale=rescale)
        assert str(caught.value) == expected
    assert not list(tmp_path.iterdir())
    write_uai(frustrated, path, wide=True)
    back = read_uai(path)
    assert_same_model(back, frustrated)
    log_z, _ = naive.enumerate_model(back.cardinalities, list(back.factors))
    assert log_z == pytest.approx(1e6 + math.log(6), rel=1e-15)


def test_tables_out_of_range_name_the_factor_and_the_remedy(tmp_path: Path) -> None:
    model = FactorGraph([2], [((0,), [0.0, 1.0]), ((0,), [-5100.0, -5000.0]), ((0,), [1e4, 1e4])])
    with pytest.raises(ModelError, match=r"factor 1 .* from -5100 to -5000; .* rescale=True shift"):
        write_uai(model, tmp_path / "m")
    assert write_uai(model, tmp_path / "m", rescale=True) == 5000.0
    tables = read_uai(tmp_path / "m").log_tables
    np.testing.assert_allclose(tables, [0, 1, -100, 0, 0, 0], rtol=1e-15)


def test_potentials_that_no_decimal_holds(tmp_path: Path) -> None:
    for huge in (1e300, -1e300):
        model = FactorGraph([2], [((0,), [0.0, huge])])
        with pytest.raises(
            ModelError, match=r"factor 0 has a log potential of .*decimals end near 2e18"
        ):
            write_uai(model, tmp_path / "m", wide=True)
    span = FactorGraph([2], [((0,), [-1.7e308, 1.7e308])])
    with pytest.raises(ModelError, match="no shift"):
        write_uai(span, tmp_path / "m", rescale=True)


def test_evidence_is_never_dropped_silently(tmp_path: Path) -> None:
    model = FactorGraph([2, 2], [((0, 1), np.zeros(4))], evidence={1: 0})
    with pytest.raises(ModelError, match=r"evidence on 1 variables.*evidence_path="):
        write_uai(model, tmp_path / "m")
    with pytest.raises(ModelError, match="two files would be written there"):
        write_uai(model, tmp_path / "m", evidence_path=tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_failed_writes_leave_everything_as_it_was(tmp_path: Path) -> None:
    model = FactorGraph([2], [((0,), [0.0, 1.0])], evidence={0: 1})
    kept = put(tmp_path, "precious")
    (tmp_path / "folder").mkdir()
    bad = [
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / "missing" / "m.uai", "its folder does not exist; create it first"),
        (kept / "below", "Not a directory"),
        ("a\0b", "null"),
    ]
    before = sorted(p.name for p in tmp_path.iterdir())
    for target, reason in bad:
        for paths in ((target, kept), (kept, target)):
            with pytest.raises(ModelError) as caught:
                write_uai(model, paths[0], evidence_path=paths[1])
            assert str(caught.value).startswith(f"cannot write {target}: ")
            assert reason in str(caught.value)
            assert sorted(p.name for p in tmp_path.iterdir()) == before
            assert kept.read_text() == "precious"


def test_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    kept = put(tmp_path, "precious")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_pr(1.0, kept)
    assert kept.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["model.uai"]


def test_writes_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_pr(0.0, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "PR\n0.0\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_pr(0.0, tmp_path / "pipe")
        assert os.read(reader, 100) == b"PR\n0.0\n"
    finally:
        os.close(reader)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_read_only_files_stay(tmp_path: Path) -> None:
    kept = put(tmp_path, "precious")
    kept.chmod(0o444)
    with pytest.raises(ModelError, match="read-only"):
        write_pr(1.0, kept)
    assert kept.read_text() == "precious"


# Results


@given(st.one_of(st.floats(-1e300, 1e300), st.just(-math.inf)))
def test_pr_round_trips(tmp_path_factory, log_z: float) -> None:
    path = tmp_path_factory.mktemp("pr") / "x.PR"
    write_pr(log_z, path)
    assert read_pr(path) == pytest.approx(log_z, rel=1e-15, abs=1e-320)


def test_pr_is_log10_in_the_file(tmp_path: Path) -> None:
    assert read_pr(put(tmp_path, "PR\n2\n")) == pytest.approx(math.log(100), rel=1e-15)
    assert read_pr(put(tmp_path, "PR\n1\n2\n")) == pytest.approx(math.log(100), rel=1e-15)
    assert read_pr(put(tmp_path, "PR\n1\n")) == pytest.approx(math.log(10), rel=1e-15)
    assert read_pr(put(tmp_path, "PR\n-inf\n")) == -math.inf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty; expected PR and numbers"),
        ("MAR\n1", "the file begins with 'MAR'; expected PR"),
        ("PR", "0 words follow PR; expected log10 Z alone (or 1 and log10 Z)"),
        ("PR\n2 3", "2 words follow PR; expected log10 Z alone (or 1 and log10 Z)"),
        ("PR\n1 2 3", "3 words follow PR; expected log10 Z alone (or 1 and log10 Z)"),
        ("PR\nnan", "log10 Z is 'nan'; expected a finite number or -inf"),
        ("PR\ninf", "log10 Z is 'inf'; expected a finite number or -inf"),
        ("PR\n1e308", "log10 Z is '1e308'; expected a finite number or -inf"),
        ("PR\nx", "'x' is not a number"),
    ],
)
def test_refused_pr(tmp_path: Path, text: str, expected: str) -> None:
    assert message(put(tmp_path, text), read_pr).startswith(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_pr_refuses_what_is_no_log_z(tmp_path: Path, value: float) -> None:
    with pytest.raises(ModelError, match="a PR file holds a finite number or -inf"):
        write_pr(value, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@given(st.lists(st.lists(st.floats(1e-3, 1), min_size=1, max_size=5), max_size=4), st.booleans())
def test_mar_round_trips_in_both_dialects(tmp_path_factory, weights, samples_first) -> None:
    path = tmp_path_factory.mktemp("mar") / "x.MAR"
    marginals = [np.array(w) / np.sum(w) for w in weights]
    write_mar(marginals, path)
    if samples_first:
        path.write_text(path.read_text().replace("MAR\n", "MAR\n1\n"))
    back = read_mar(path)
    assert len(back) == len(marginals)
    for got, expected in zip(back, marginals, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_mar_takes_one_array(tmp_path: Path) -> None:
    write_mar(np.array([[0.25, 0.75], [1.0, 0.0]]), tmp_path / "x")
    assert (tmp_path / "x").read_text() == "MAR\n2 2 0.25 0.75 2 1.0 0.0\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "the file is empty; expected MAR and numbers"),
        ("PR\n1", 1, "the file begins with 'PR'; expected MAR"),
        ("MAR", 1, "the file ends where the number of variables was expected"),
        ("MAR\n1000000000000", 2, "1000000000000 variables are announced; 0 numbers follow"),
        ("MAR\n2 1 1", 2, "2 variables are announced; 2 numbers follow"),
        ("MAR\n2 2 0.5 0.5\n2 1", 3, "variable 1 lists 2 states; the file ends too early"),
        ("MAR\n2 2.0 1 1 1", 2, "the number of states of variable 0 is '2.0'; expected a whole "),
        ("MAR\n2 0 1 1\n1", 2, "the marginal of variable 0 has shape (0,); expected a vector of "),
        ("MAR\n2 1 1\n1 -1", 3, "the marginal of variable 1 has a negative, infinite or NaN ent"),
        ("MAR\n2 1 1\n1 nan", 3, "the marginal of variable 1 has a negative, infinite or NaN en"),
        ("MAR\n2 2 0.5 0.25 1 1", 2, "the marginal of variable 0 sums to 0.75; expected 1"),
        ("MAR\n2 1 1 1 1\n5", 3, "'5' follows the last marginal; the file should end there"),
    ],
)
def test_refused_mar(tmp_path: Path, text: str, line: int, expected: str) -> None:
    path = put(tmp_path, text)
    found = message(path, read_mar)
    assert found.startswith(expected)
    assert found.endswith(f" ({path}, line {line})")


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-0.5, 1.5], [0.5, 0.4], [], [[0.5, 0.5]]])
def test_mar_refuses_what_is_no_distribution(tmp_path: Path, bad: list) -> None:
    with pytest.raises(ModelError, match="the marginal of variable 1 "):
        write_mar([[1.0], bad], tmp_path / "x")
    assert not list(tmp_path.iterdir())


# The competition's files


def test_every_uai2014_file_reads_as_indexed() -> None:
    folder = data_folder()
    with open(folder / "INDEX.tsv", newline="") as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    assert {row["file"] for row in rows} == {path.name for path in folder.glob("*.uai")}
    for row in rows:
        path = folder / row["file"]
        model = read_uai(path, f"{path}.evid")
        assert model.n_variables == int(row["n_vars"])
        assert model.n_factors == int(row["n_factors"])
        assert model.cardinalities.max() == int(row["max_domain"])
        assert model.arities.max() == int(row["max_arity"])
        assert (model.log_tables == -np.inf).any() == bool(int(row["zeros"]))
        assert len(model.evidence) == int(row["n_evidence"])
        log10_z = float(row["PR_log10_reference"])
        assert read_pr(f"{path}.PR") == pytest.approx(log10_z * math.log(10), rel=1e-12)
        if int(row["has_MAR"]):
            marginals = read_mar(f"{path}.MAR")
            assert [m.size for m in marginals] == model.cardinalities.tolist()
            assert all(marginals[v][state] == 1.0 for v, state in model.evidence.items())


@pytest.mark.parametrize("name", ["Grids_11", "Pedigree_13", "linkage_25", "ObjectDetection_51"])
def test_uai2014_tables_equal_the_naive_reader(name: str, tmp_path: Path) -> None:
    path = data_folder() / f"{name}.uai"
    model = read_uai(path)
    cards, factors = naive.parse_uai(path.read_text())
    assert model.cardinalities.tolist() == cards
    assert [list(f.scope) for f in model.factors] == [scope for scope, _ in factors]
    with np.errstate(divide="ignore"):
        tables = np.log(np.concatenate([table for _, table in factors]))
    np.testing.assert_array_equal(model.log_tables, tables)
    write_uai(model, tmp_path / "again.uai")
    assert_same_model(read_uai(tmp_path / "again.uai"), model)
