"""Files and dictionaries of other programs: round trips, known answers, errors with places, fuzz.

TIGHTZ_FUZZ=100000 mutates that many files per reader instead of a few thousand.
"""

from __future__ import annotations

import math
import os
import resource
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.cli.options import Source
from tightz.errors import MissingExtraError, ModelError, TightzError, UnsupportedModelError
from tightz.models.bridges import from_dimod
from tightz.models.formats.array_files import read_arrays
from tightz.models.formats.bif import read_bif, read_xmlbif
from tightz.models.formats.bif_writer import write_bif, write_xmlbif
from tightz.models.formats.bulk import NotANumberError, as_numbers, potentials, word_edges
from tightz.models.formats.cnf import read_cnf, write_cnf
from tightz.models.formats.fg import read_fg, write_fg
from tightz.models.formats.quadratic import from_ising, from_qubo, to_ising, to_qubo
from tightz.models.large_scopes import auxiliaries, noisy_or

FUZZ = int(os.environ.get("TIGHTZ_FUZZ", "1500"))
TRACED = 1500


@st.composite
def tables(draw, binary=False, hard=False):
    """Small models; `hard` has 0/1 tables beside weights on single variables."""
    n = draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = np.full(n, 2) if binary else rng.integers(1, 4, size=n)
    factors = []
    for _ in range(draw(st.integers(0, 6))):
        arity = int(rng.integers(0, min(3, n) + 1))
        if hard and arity == 0:
            continue
        scope = rng.choice(n, size=arity, replace=False).tolist()
        table = 3.0 * rng.normal(size=cards[scope])
        if arity and (hard or rng.random() < 0.5):
            zero = rng.random(table.shape) < 0.3
            table = np.where(zero, -np.inf, 0.0 if hard and arity > 1 else table)
        factors.append((scope, table))
    return tz.FactorGraph(cards, factors)


def log_z(model):
    return naive.enumerate_model(model.cardinalities, model.factors, model.evidence)[0]


def same_weights(a, b):
    states = naive.all_states(a.cardinalities)
    np.testing.assert_array_equal(a.cardinalities, b.cardinalities)
    np.testing.assert_allclose(a.log_weight(states), b.log_weight(states), rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@settings(max_examples=60)
@given(model=tables())
def test_fg_round_trip(folder, model):
    write_fg(model, folder / "m.fg")
    same_weights(model, read_fg(folder / "m.fg"))


def test_fg_order_and_comments(folder):
    path = folder / "known.fg"
    path.write_text("# made by hand\n1\n\n2\n0 2 # labels\n2 3\n3\n0 1.5\n1 2.5\n4 0.5\n")
    model = read_fg(path)
    assert model.cardinalities.tolist() == [2, 1, 3]
    table = np.exp(model.factor(0).log_table)
    # index 1 is (x0=1, x2=0), index 4 is (x0=0, x2=2): the first variable is fastest.
    np.testing.assert_allclose(table, [[1.5, 0.0, 0.5], [2.5, 0.0, 0.0]])
    assert Source(str(path)).load().n_variables == 3


@settings(max_examples=60)
@given(model=tables(binary=True, hard=True))
def test_cnf_round_trip(folder, model):
    write_cnf(model, folder / "m.cnf")
    same_weights(model, read_cnf(folder / "m.cnf"))


def test_cnf_counts_models(folder):
    path = folder / "known.cnf"
    path.write_text(
        "c a comment\np cnf 4 3\nc p weight 1 0.25 0\n1 -2 0\n2 3\n-3 0\n-1 1 3 0\nc end\n"
    )
    model = read_cnf(path)
    expected = 0.0
    for x in naive.all_states([2] * 4):
        if x[0] or not x[1]:
            expected += 0.25 if x[0] else 0.75
    assert log_z(model) == pytest.approx(math.log(expected))
    empty = folder / "empty.cnf"
    empty.write_text("p cnf 1 1\n0\n")
    assert log_z(read_cnf(empty)) == -np.inf


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_long_clauses_become_chains(folder, length, seed):
    """Z and the marginals of the file's variables are those of the clause itself."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], size=length)
    weights = rng.uniform(0.1, 0.9, size=length)
    lines = [f"p cnf {length} 1", " ".join(map(str, signs * np.arange(1, length + 1))) + " 0"]
    lines += [f"c p weight {v + 1} {w!r} 0" for v, w in enumerate(weights.tolist())]
    path = folder / "long.cnf"
    path.write_text("\n".join(lines) + "\n")
    model = read_cnf(path)
    assert model.arities.max() <= 12
    result = tz.exact(model)
    false = np.where(signs > 0, 1.0 - weights, weights)
    z = 1.0 - false.prod()
    assert result.log_z == pytest.approx(math.log(z), abs=1e-12)
    for v in range(length):
        others = np.delete(false, v).prod()
        on = weights[v] * (1.0 - (others if signs[v] < 0 else 0.0))
        assert result.marginals[v][1] == pytest.approx(on / z)
    write_cnf(model, folder / "again.cnf")
    assert tz.exact(read_cnf(folder / "again.cnf")).log_z == pytest.approx(math.log(z), abs=1e-9)


def test_a_clause_of_many_literals_stays_small(folder):
    n = 5_000
    path = folder / "huge.cnf"
    path.write_text(f"p cnf {n} 1\n" + " ".join(map(str, range(1, n + 1))) + " 0\n")
    tracemalloc.start()
    try:
        model = read_cnf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 600 * path.stat().st_size
    # an upper end that is exact: the limit is generous, since kernels may have to compile first
    assert tz.log_partition(model, time_limit=90, seed=0).upper == pytest.approx(n * math.log(2))


@settings(max_examples=40)
@given(st.integers(0, 15), st.integers(0, 2**32 - 1))
def test_noisy_or(parents, seed):
    rng = np.random.default_rng(seed)
    q, leak = rng.uniform(size=parents) * (rng.random(parents) < 0.8), rng.choice([0.0, 0.3])
    active = rng.integers(0, 2, size=parents)
    count = auxiliaries(parents, output=True)
    factors = noisy_or(parents, range(parents), q, leak=leak, first_auxiliary=parents + 1)
    assert max(len(scope) for scope, _ in factors) <= 8
    seen = tz.FactorGraph([2] * (parents + 1 + count), factors, evidence=dict(enumerate(active)))
    result = tz.exact(seen)
    assert result.log_z == pytest.approx(0.0, abs=1e-12)
    quiet = (1.0 - leak) * np.prod(q[active == 1])
    assert result.marginals[parents][0] == pytest.approx(quiet, abs=1e-12)


def test_noisy_or_refuses():
    with pytest.raises(ModelError, match="2 inhibitors for 1 parents"):
        noisy_or(1, [0], [0.5, 0.5], first_auxiliary=2)
    with pytest.raises(ModelError, match=r"is 1\.5; expected a number from 0 to 1"):
        noisy_or(1, [0], [1.5], first_auxiliary=2)


@given(tables(binary=True))
def test_ising_and_qubo_round_trip(model):
    try:
        h, couplings, offset = to_ising(model)
    except UnsupportedModelError:
        return
    for again in (
        from_ising(h, couplings, offset=offset),
        from_qubo(to_qubo(model)[0], offset=to_qubo(model)[1]),
    ):
        if model.n_variables:
            same_weights(model, again)


def test_energies_have_the_annealers_sign():
    model = from_ising({0: 1.0}, {(0, 1): 2.0, (1, 0): 1.0, (2, 2): 5.0}, offset=0.5, beta=2.0)
    up, down = [0, 0, 0], [1, 0, 0]
    assert model.log_weight(up)[0] == pytest.approx(-2.0 * (1.0 + 3.0 + 5.0 + 0.5))
    assert model.log_weight(down)[0] == pytest.approx(-2.0 * (-1.0 - 3.0 + 5.0 + 0.5))
    qubo = from_qubo({("a", "a"): 1.0, ("a", "b"): 2.0, ("b", "a"): 0.5}, offset=-1.0)
    assert qubo.log_weight([[0, 1], [1, 0], [1, 1]]).tolist() == [1.0, 0.0, -2.5]


@pytest.mark.parametrize("kind", ["SPIN", "BINARY", SimpleNamespace(name="SPIN")])
def test_dimod_objects(kind):
    bqm = SimpleNamespace(
        linear={"x": 1.0, "y": 0.0}, quadratic={("x", "y"): -2.0}, offset=0.25, vartype=kind
    )
    model = from_dimod(bqm)
    values = [0, 1] if kind == "BINARY" else [1, -1]
    for state in naive.all_states([2, 2]):
        x, y = (values[k] for k in state)
        assert model.log_weight(state)[0] == pytest.approx(-(x - 2.0 * x * y + 0.25))


def test_quadratic_errors():
    with pytest.raises(ModelError, match=r"h\[0\] is nan"):
        from_ising({0: math.nan}, {})
    with pytest.raises(ModelError, match="no linear"):
        from_dimod(SimpleNamespace(quadratic={}, offset=0, vartype="SPIN"))
    with pytest.raises(ModelError, match="vartype"):
        from_dimod(SimpleNamespace(linear={}, quadratic={}, offset=0, vartype="INTEGER"))
    with pytest.raises(UnsupportedModelError, match="3 spins"):
        to_ising(tz.FactorGraph([2] * 3, [((0, 1, 2), np.arange(8.0).reshape(2, 2, 2) ** 3)]))


DOG = """network "dog" { property author nobody; }
variable light { type discrete [ 2 ] { on, off }; }
variable "dog-out" { type discrete [2] { yes, no }; property position = (1, 2) ; }
// the bark depends on both
probability ( light ) { table 0.6, 0.4; }
probability ( "dog-out" | light ) { (on) 0.9, 0.1; default 0.2, 0.8; }
variable bark { type discrete [ 3 ] { loud, soft, none }; }
probability ( bark | "dog-out", light ) {
  table 0.7 0.6 0.1 0.0   0.2 0.3 0.1 0.1   0.1 0.1 0.8 0.9 ;
}
"""


def test_bif(folder):
    path = folder / "dog.bif"
    path.write_text(DOG)
    model = read_bif(path)
    assert model.cardinalities.tolist() == [2, 2, 3]
    assert log_z(model) == pytest.approx(0.0, abs=1e-12)
    seen = read_bif(path, {"bark": "loud", "light": "off"})
    assert log_z(seen) == pytest.approx(math.log(0.4 * (0.2 * 0.6 + 0.8 * 0.0)))
    assert Source(str(path)).load().n_factors == 3


XML = """<?xml version="1.0"?>
<!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> ]>
<BIF VERSION="0.3"><NETWORK><NAME>dog</NAME>
<VARIABLE TYPE="nature"><NAME>light</NAME><OUTCOME>on</OUTCOME><OUTCOME>off</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>dog</NAME><OUTCOME>yes</OUTCOME><OUTCOME>no</OUTCOME></VARIABLE>
<DEFINITION><FOR>light</FOR><TABLE>0.6 0.4</TABLE></DEFINITION>
<DEFINITION><FOR>dog</FOR><GIVEN>light</GIVEN>
<TABLE>0.9 0.1 <!-- on --> 0.2 0.8</TABLE></DEFINITION>
</NETWORK></BIF>
"""


def test_xmlbif(folder):
    path = folder / "dog.xml"
    path.write_text(XML)
    assert log_z(read_xmlbif(path)) == pytest.approx(0.0, abs=1e-12)
    seen = read_xmlbif(path, {"dog": "yes"})
    assert log_z(seen) == pytest.approx(math.log(0.6 * 0.9 + 0.4 * 0.2))
    assert Source(str(path)).load().n_variables == 2


@st.composite
def networks(draw):
    """Bayesian networks with zeros; names that need quoting."""
    n = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 4, size=n)
    factors = []
    for rank, v in enumerate(order := rng.permutation(n).tolist()):
        parents = rng.permutation(order[:rank])[: rng.integers(0, 4)].tolist()
        table = rng.exponential(size=[cards[u] for u in (v, *parents)])
        table[rng.random(table.shape) < 0.2] = 0.0
        table[0] += table.sum(axis=0) == 0.0
        with np.errstate(divide="ignore"):
            factors.append(([v, *parents], np.log(table / table.sum(axis=0))))
    if draw(st.booleans()):  # the child last, as in UAI files
        factors = [([*scope[1:], scope[0]], np.moveaxis(t, 0, -1)) for scope, t in factors]
    words = st.text(st.sampled_from("abz09-_.& <>='/äß{}()[];,|*\r"), min_size=1, max_size=6)
    plain = words.map(str.strip).filter(lambda word: word not in ("", ",", "|"))
    names = draw(st.lists(plain, min_size=n, max_size=n, unique=True))
    states = [draw(st.lists(plain, min_size=d, max_size=d, unique=True)) for d in cards.tolist()]
    return tz.FactorGraph(cards, factors), names, states


@settings(max_examples=60)
@given(networks())
def test_bif_and_xmlbif_round_trip(folder, case):
    model, names, states = case
    for write, read, ending in ((write_bif, read_bif, "bif"), (write_xmlbif, read_xmlbif, "xml")):
        path = folder / f"round.{ending}"
        write(model, path, names=names, states=states)
        same_weights(model, read(path))
        for v, name in enumerate(names):  # names are there, in their order
            for k, state in enumerate(states[v]):
                assert read(path, {name: state}).evidence == {v: k}
        write(model, path)
        same_weights(model, Source(str(path)).load())


@settings(max_examples=40)
@given(networks())
def test_names_and_numbers_survive_every_file_that_has_names(folder, case):
    model, names, states = case
    named = model.with_names(names, states)
    for ending in ("bif", "xml", "npz", "mat"):
        tz.write(named, folder / f"named.{ending}")
        once = tz.read(folder / f"named.{ending}")
        tz.write(once, folder / f"again.{ending}")
        again = tz.read(folder / f"again.{ending}")
        for got in (once, again):
            assert got.names == tuple(names)
            assert got.states == tuple(map(tuple, states))
        assert again.digest == once.digest  # logs of what a file holds are written to the bit
        same_weights(again, model)
    only = model.with_names(None, {0: states[0]})  # some states named, no variable
    tz.write(only, folder / "some.npz")
    assert tz.read(folder / "some.npz").names is None
    assert tz.read(folder / "some.npz").states == only.states
    tz.write(only, folder / "some.bif")
    assert tz.read(folder / "some.bif").states[0] == tuple(states[0])


def test_an_rbm_keeps_its_names(tmp_path):
    layers = tz.rbm([[0.5, -1.0]], [0.1], [0.2, 0.3]).with_names(["v", "h1", "h2"])
    for ending in ("npz", "mat"):
        tz.write(layers, tmp_path / f"w.{ending}")
        assert tz.read(tmp_path / f"w.{ending}").names == layers.names
        assert tz.read(tmp_path / f"w.{ending}").digest == layers.digest


@given(st.lists(st.floats(5e-324, 1e308), min_size=1, max_size=50))
def test_logs_of_doubles_are_written_to_the_bit(values):
    logs = np.log(values)
    logs = logs[(logs > -708) & (logs < 709)]
    np.testing.assert_array_equal(np.log(potentials(logs)), logs)


def test_what_is_no_network(folder):
    coin = np.log([0.5, 0.5])
    copy = np.log([[0.9, 0.2], [0.1, 0.8]])
    for model, message in [
        (tz.FactorGraph([2], [((0,), [0.0, 0.0])]), "does not sum to 1 over variable 0"),
        (tz.FactorGraph([2, 2], [((0,), coin)]), "variable 1 has no table"),
        (tz.FactorGraph([2], [((0,), coin), ((0,), coin)]), "variable 0 has two tables"),
        (tz.FactorGraph([2], [((0,), coin), ((), 0.0)]), "has no variable"),
        (tz.FactorGraph([2, 2], [((0, 1), copy), ((1, 0), copy)]), "cycle"),
        (tz.FactorGraph([2], [((0,), coin)], evidence={0: 1}), "evidence"),
        (tz.FactorGraph([2], [((0,), [0.0, -720.0])]), "-708"),
    ]:
        for write in (write_bif, write_xmlbif):
            with pytest.raises(ModelError, match=message):
                write(model, folder / "never.bif")
    good = tz.FactorGraph([2], [((0,), coin)])
    for names, states, message in [
        (["a", "b"], None, "do not fit"),
        (["a"], [["x"]], "do not fit"),
        (["a"], [["x", "x"]], "distinct"),
        ([7], None, "no text"),
        ([""], None, "the name ''"),
    ]:
        for write in (write_bif, write_xmlbif):
            with pytest.raises(ModelError, match=message):
                write(good, folder / "never.bif", names=names, states=states)
    for write, names in [
        *((write_bif, name) for name in (",", "|", 'a"', "a\nb", "\ud800")),
        *((write_xmlbif, name) for name in (" a", "a\t", "a\0", "\x1f", "\ud800", "\uffff")),
    ]:
        with pytest.raises(ModelError, match="the name"):
            write(good, folder / "never.bif", names=[names])
    assert not (folder / "never.bif").exists()


def test_rbm_archives(folder, monkeypatch):
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    w, b, c = rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=2)
    savemat(folder / "m.mat", {"vishid": w, "visbiases": b, "hidbiases": c})
    same_weights(tz.read(folder / "m.mat"), tz.rbm(w, b, c))
    savemat(folder / "part.mat", {"W": w})
    with pytest.raises(ModelError, match="no array visible_bias, hidden_bias"):
        tz.read(folder / "part.mat")
    (folder / "bad.mat").write_bytes(b"not a file of numbers" * 20)
    with pytest.raises(ModelError, match="not a MATLAB file"):
        tz.read(folder / "bad.mat")
    (folder / "m.h5").write_bytes(b"\x89HDF")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"needs h5py: pip install"):
        tz.read(folder / "m.h5")


def test_hdf5(folder):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    w, b, c = rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=2)
    with h5py.File(folder / "w.h5", "w") as file:
        file["W"], file["visible_bias"], file["hidden_bias"] = w, b, c
    same_weights(tz.read(folder / "w.h5"), tz.rbm(w, b, c))
    same_weights(Source(str(folder / "w.h5")).load(), tz.rbm(w, b, c))
    with h5py.File(folder / "old.hdf5", "w") as file:  # other names, a group beside the arrays
        file["vishid"], file["visbiases"], file["hidbiases"] = w.T, b[None, :], c[:, None]
        file.create_group("more")["W"] = np.zeros(3)
    same_weights(tz.read(folder / "old.hdf5", ignore="more"), tz.rbm(w, b, c))
    with h5py.File(folder / "part.h5", "w") as file:
        file["W"] = w
    with pytest.raises(ModelError, match="visible_bias"):
        tz.read(folder / "part.h5")
    (folder / "bad.h5").write_bytes((folder / "w.h5").read_bytes()[:300])
    with pytest.raises(ModelError, match="HDF5"):
        tz.read(folder / "bad.h5")


BAD = [
    ("fg", "1\n2\n0 0\n2 2\n0\n", r"variable 0 twice in its scope \(.*, line 3\)"),
    ("fg", "1\n1\n0\n2\n1\n5 1.0\n", r"index 5 lies outside.*line 6"),
    ("fg", "1\n1\n0\n2\n2\n0 1.0\n0 2.0\n", "lists entry 0 twice"),
    ("fg", "2\n1\n0\n2\n1\n0 1.0\n1\n0\n3\n1\n0 1\n", r"has 2 states above and 3 here.*line 9"),
    ("fg", "1\n1\n0\n2\n1\n0 -1.0\n", "potentials are finite"),
    ("fg", "1\n1\n0\n2\n1\n0 1e-400\n", "too small for a double"),
    ("fg", "1\n1\n99999999\n2\n1\n0 1\n", "too large for a file"),
    ("fg", "1\n2\n0 1\n99999 99999\n1\n0 1\n", "entries; a file of"),
    ("fg", "9\n", "9 factors are announced"),
    ("fg", "1\n1\n0\n2\n0\n7\n", "follows the last factor"),
    ("fg", "", "the number of factors"),
    ("cnf", "1 0\n", "before the line"),
    ("cnf", "p cnf 1 1\n2 0\n", r"literal 2; the file announces variables 1 to 1 \(.*line 2\)"),
    ("cnf", "p cnf 1 1\n1\n", "does not end with 0"),
    ("cnf", "p cnf 1 2\n1 0\n", "2 clauses are announced; 1 follow"),
    ("cnf", "p cnf 1 1\nx 0\n", "a literal is 'x'"),
    ("cnf", "p cnf 99999999999 0\n", "99999999999 variables; a file of 20 bytes"),
    ("cnf", "p cnf 1 0\nc p weight 1 2 0\n", "give both"),
    ("cnf", "p cnf 1 0\nc p weight 1 -2 0\n", "finite number >= 0"),
    ("cnf", "p wcnf 1 1 5\n", "expected `p cnf"),
    ("bif", "variable a { type discrete [ 3 ] { x, y }; }", "announces '3' states and lists 2"),
    ("bif", "variable a { type discrete [ 2 ] { x, y }; }", "'a' has no table"),
    ("bif", "probability ( a ) { table 1; }", "'a', which is not declared"),
    ("bif", DOG.replace("0.6, 0.4", "0.6, 0.7"), r"sums to 1\.3; expected 1.*line 5"),
    ("bif", DOG.replace("(on)", "(maybe)"), "'light' has no state 'maybe'"),
    ("bif", DOG.replace("default 0.2, 0.8;", ""), "lacks entries"),
    ("bif", DOG[:-4], "expected"),
    ("xml", XML.replace("0.6 0.4", "0.6"), "1 numbers are listed for 'light'; expected 2"),
    ("xml", XML.replace("</BIF>", ""), "not well-formed"),
    ("xml", '<!DOCTYPE x [<!ENTITY a "b">]><BIF/>', "entities"),
    ("xml", "<BIF/>", "no VARIABLE"),
]


@pytest.mark.parametrize(("suffix", "text", "message"), BAD)
def test_errors_say_what_and_where(folder, suffix, text, message):
    path = folder / f"bad.{suffix}"
    path.write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        Source(str(path)).load()
    assert "bad." in str(caught.value)


def test_what_cannot_be_written(folder):
    seen = tz.FactorGraph([2], evidence={0: 1})
    loud = tz.FactorGraph([2], [((0,), [0.0, 1e6])])
    wide = tz.FactorGraph([3])
    soft = tz.FactorGraph([2, 2], [((0, 1), np.ones((2, 2)))])
    for write, model, message in [
        (write_fg, seen, "evidence"),
        (write_fg, loud, "log potential of 1e"),
        (write_cnf, seen, "evidence"),
        (write_cnf, loud, "log weight of 1e"),
        (write_cnf, wide, "3 states"),
        (write_cnf, soft, "other than 0 and 1"),
    ]:
        with pytest.raises(ModelError, match=message):
            write(model, folder / "never.x")
    assert not (folder / "never.x").exists()


def test_command_line_reads_other_formats(folder):
    from tightz.cli.main import main

    path = folder / "cli.cnf"
    path.write_text("p cnf 2 1\n1 2 0\n")
    result = CliRunner().invoke(main, ["exact", str(path)])
    assert result.exit_code == 0, result.output
    assert f"{math.log(3.0):.4f}" in result.output


# --- Fuzz ------------------------------------------------------------------------------------

UAI = "MARKOV\n3\n2 3 2\n3\n1 0\n2 0 1\n3 0 1 2\n\n2\n 0.5 0\n\n6\n 1 2 3 4 5 6\n\n12\n" + (
    " 1e-3 1 2 3 4 5 6 7 8 9 1e300 11\n"
)
FG = "2\n\n2\n0 2\n2 3\n3\n0 1.5\n1 2.5\n4 0.5\n\n1\n1\n2\n2\n0 1\n1 2\n"
CNF = "c hello\np cnf 14 4\nc p weight 1 0.25 0\nc p weight -1 0.5 0\n1 -2 0\n2 3 -4 0\n-1 0\n" + (
    "1 -2 3 4 5 6 7 8 9 -10 11 12 13 14 0\n"  # long enough for auxiliary variables
)
ROWS = """// made by hand /* not closed
network "dog" { property author nobody; }
variable light { type discrete [ 2 ] { on, off }; }
variable "dog out" { /* two */ type discrete [2] { yes, "no" }; property position = (1, 2) ; }
variable bark { type discrete [ 3 ] { "loud", soft, none }; }
probability ( light ) { // one
  table 0.6, 0.4; }
probability ( "dog out" | light ) { (on) 0.9, 0.1; ("off") 2e-1, 0.8; }
probability ( bark | "dog out", light ) {
  (yes, on) 0.7, 0.2 0.1 ; (no,on) 0.1 0.1 0.8;
  ( yes  off ) 0.25, 0.25, 0.5;
  (no, off) 0.005 0.0 1.000;
}
"""
WEIGHTED = """c a weight says
c p weights are not said here
p cnf 5 5
c p weight 1 0.25 0
1 -2 0
2 3 -4 0
-1 1 0
 3 3 -5
 0
5 4 0
c p weight -3 1e-3
c p weight 2 3 0
c p weight -2 0.5
%
0
"""


@pytest.mark.parametrize("asked", ["c t pmc", "c t pwmc", "c p show 1 2 0", "c t pmc\nc p show 0"])
@pytest.mark.parametrize("before", [True, False])
def test_projected_counts_are_refused(folder, asked, before):
    clauses = "p cnf 3 1\n1 2 3 0\n"
    path = folder / "p.cnf"
    path.write_text(f"{asked}\n{clauses}" if before else f"{clauses}{asked}\n")
    with pytest.raises(ModelError, match=r"a projected count is asked for.*p\.cnf, line"):
        tz.read(path)


@pytest.mark.parametrize(
    "asked",
    ["c t mc", "c t wmc", "c t pmc\nc p show 1 2 0\n c p show 3 0", "c p show 3 2 1 1 0",
     "c t is for tea", "c ind 1 0", "c p shows nothing"],
)  # fmt: skip
def test_plain_counts_are_not(folder, asked):
    path = folder / "p.cnf"
    path.write_text(f"{asked}\np cnf 3 1\n1 2 3 0\n")
    assert tz.exact(tz.read(path)).log_z == pytest.approx(math.log(7), abs=1e-12)


SEEDS = {"uai": UAI, "fg": FG, "cnf": CNF, "bif": DOG, "xml": XML}
PIECES = [
    b"0", b"-1", b"99999999999999999999", b"1e400", b"nan", b"inf", b" ", b"\n", b"\0", b"\xff",
    b"1000000", b"2147483648", b"{", b"}", b"(", b")", b";", b"|", b'"', b"<", b">", b"p cnf",
    b"1_0", b"\xe2\x80\x83", b"/*", b"//", b"#", b"c p weight", b"table", b"65", b"0.5",
]  # fmt: skip


def mutated(rng, data):
    """A few random edits: replace, insert, delete, repeat, cut."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(out) + 1))
        kind = rng.integers(6)
        piece = PIECES[rng.integers(len(PIECES))]
        if kind == 0:
            out[at : at + 1] = bytes([rng.integers(256)])
        elif kind == 1:
            out[at:at] = piece
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 20))]
        elif kind == 3:
            out[at:at] = out[at : at + int(rng.integers(1, 40))]
        elif kind == 4:
            out[at : at + len(piece)] = piece
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


@pytest.mark.parametrize("suffix", list(SEEDS))
def test_fuzz(folder, suffix):
    """A clean error or a valid model, in memory that the file's size bounds."""
    rng = np.random.default_rng(0)
    path = folder / f"fuzz.{suffix}"
    valid, unplaced = 0, 0
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        for i in range(FUZZ):
            if i == TRACED:  # tracing is slow; from here on the process's own size has to do
                assert tracemalloc.get_traced_memory()[1] < 64 << 20
                tracemalloc.stop()
            path.write_bytes(mutated(rng, SEEDS[suffix].encode()))
            try:
                model = Source(str(path)).load()
                assert (model.cardinalities >= 1).all()
                assert not np.isnan(model.log_tables).any()
                valid += 1
            except TightzError as error:
                unplaced += "fuzz." not in str(error)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - high < 128 << 10
    assert 0 < valid < FUZZ
    assert not unplaced


TWINS = {
    "fg": ("tightz.models.formats.fg._read_in_bulk", [FG, FG.replace("1.5", "0e0 # none")]),
    "cnf": (
        "tightz.models.formats.cnf._read_in_bulk",
        [CNF, WEIGHTED],
    ),
    "bif": ("tightz.models.formats.bif.bif_in_bulk", [DOG, ROWS]),
    "xml": ("tightz.models.formats.bif.xmlbif_in_bulk", [XML]),
}
PIECES_OF_TWINS = [
    b'"a"', b'""', b"/*x*//*y*/", b'"//', b"\x1c", b"\xc2\xa0", b"\t", b"\r\n", b"..", b"e", b"1e5",
    b"-0", b"00", b"--1", b"property x ;", b"default 0.5 0.5;", b"\n%\n", b"\np cnf 5 5\n", b",",
    b"\nc p weight 2 0.5 0\n", b" 0 ", b"0.30000000000000004", b"9007199254740993", b"0.00001",
]  # fmt: skip


def told(path):
    """What a reader says of a file: the model with its names, or the error."""
    try:
        model = tz.read(path)
    except TightzError as error:
        return str(error)
    return model.digest, model.names, model.states


@pytest.mark.parametrize("suffix", TWINS)
def test_bulk_and_careful_readers_agree(folder, suffix, monkeypatch):
    """The same bits and names, or the same error at the same place."""
    rng = np.random.default_rng(1)
    path = folder / f"twins.{suffix}"
    function, seeds = TWINS[suffix]
    models = 0
    for i in range(FUZZ // 2):
        data = seeds[i % len(seeds)].encode()
        data = data if i < len(seeds) else mutated(rng, data)
        if i % 3 == 0:
            at = int(rng.integers(len(data) + 1))
            data = data[:at] + PIECES_OF_TWINS[rng.integers(len(PIECES_OF_TWINS))] + data[at:]
        path.write_bytes(data)
        first = told(path)
        with monkeypatch.context() as patch:
            patch.setattr(function, lambda *_: None)
            assert told(path) == first, data
        models += not isinstance(first, str)
    assert models > FUZZ // 50


@pytest.mark.parametrize("suffix", TWINS)
def test_files_as_programs_write_them_are_read_in_bulk(folder, suffix, monkeypatch):
    path = folder / f"plain.{suffix}"
    careful = {
        "fg": "fg._read",
        "cnf": "cnf._read",
        "bif": "bif._read_bif",
        "xml": "bif._read_xmlbif",
    }
    expected = []
    texts = [text.replace("default 0.2, 0.8", "(off) 0.2 0.8") for text in TWINS[suffix][1]]
    for text in texts:
        path.write_text(text)
        expected.append(told(path))
        assert not isinstance(expected[-1], str)

    def refuse(*_):
        raise AssertionError("read word by word")

    monkeypatch.setattr(f"tightz.models.formats.{careful[suffix]}_carefully", refuse)
    for text, known in zip(texts, expected, strict=True):
        path.write_text(text)
        assert told(path) == known
    tz.write(FORMAT_MODELS[suffix], path)
    assert tz.read(path).n_variables == FORMAT_MODELS[suffix].n_variables


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.floats().map(repr),
            st.floats(0, 1e6).map("{:.4f}".format),
            st.floats(0, 1).map("{:.17f}".format),
            st.floats(0, 1e9).map("{:e}".format),
            st.from_regex(r"[0-9]{1,25}\.?[0-9]{0,22}", fullmatch=True),
            st.text(st.sampled_from("0123456789.eE+-_"), min_size=1, max_size=12),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_numbers_in_bulk_are_those_of_float(words):
    def value(word):
        try:
            return float(word.replace("_", "?"))
        except ValueError:
            return None

    data = "\n\t".join(words).encode()
    expected = [value(word) for word in words]
    if None in expected:
        with pytest.raises(NotANumberError) as caught:
            as_numbers(data, *word_edges(data))
        assert caught.value.word == expected.index(None)
        return
    found = as_numbers(data, *word_edges(data))
    np.testing.assert_array_equal(found.values.view(np.int64), np.array(expected).view(np.int64))
    assert found.whole.tolist() == [word.isdigit() for word in words]


def whole_model() -> tz.FactorGraph:
    """Zeros, three states, evidence, and log potentials that no double holds."""
    tables = [((0, 2), [[0.0, 800.0, -np.inf], [-900.0, 1.0, 2.0]]), ((), np.array(0.25))]
    return tz.FactorGraph([2, 2, 3], tables, evidence={1: 1})


@pytest.mark.parametrize("ending", ["npz", "mat", "h5"])
def test_arrays_hold_any_model_to_the_bit(tmp_path, ending):
    if ending == "h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    grid = tz.ising_grid(3, 4, seed=0, periodic=True)
    layers = tz.rbm(np.arange(6.0).reshape(2, 3), [1, 2], [3, 4, 5]).with_evidence({0: 1})
    for model in (whole_model(), grid, layers, tz.FactorGraph([])):
        path = tmp_path / f"m.{ending}"
        tz.write(model, path)
        again = tz.read(path)
        assert again.digest == model.digest
        assert again.layout == model.layout


@pytest.mark.parametrize("ending", ["npz", "mat", "h5"])
def test_an_rbm_is_written_as_its_weights(tmp_path, ending):
    if ending == "h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    rng = np.random.default_rng(0)
    for shape in ((3, 3), (4, 2), (1, 5)):
        w, b, c = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
        model = tz.rbm(w, b, c)
        tz.write(model, tmp_path / f"w.{ending}")
        assert tz.read(tmp_path / f"w.{ending}").digest == model.digest
        held = read_arrays(tmp_path / f"w.{ending}", ("W",))
        np.testing.assert_array_equal(held["W"], w)


FORMAT_MODELS = {
    "uai": tz.ising_grid(2, seed=1),
    "fg": tz.ising_grid(2, seed=1),
    "cnf": tz.FactorGraph([2, 2], [((0, 1), [[-np.inf, 0.0], [0.0, 0.0]]), ((0,), [0.0, 1.0])]),
    "bif": tz.FactorGraph.from_tables([2, 2], [((0,), [0.3, 0.7]), ((1, 0), [[0.5, 1], [0.5, 0]])]),
    "npz": tz.ising_grid(2, seed=1),
}
FORMAT_MODELS["xml"] = FORMAT_MODELS["bif"]


@pytest.mark.parametrize("ending", FORMAT_MODELS)
def test_one_read_and_one_write_for_every_format(tmp_path, ending):
    model, path = FORMAT_MODELS[ending], tmp_path / f"m.{ending.upper()}"
    tz.write(model, path)
    other = tmp_path / "no_ending"
    tz.write(model, other, format=ending)
    (tmp_path / "e.evid").write_text("1 1 0")
    log_z = tz.exact(model).log_z
    seen = tz.exact(model.with_evidence({1: 0})).log_z
    for again in (tz.read(path), tz.read(other, format=f".{ending}")):
        assert tz.exact(again).log_z == pytest.approx(log_z)
    for evidence in ({1: 0}, tmp_path / "e.evid", str(tmp_path / "e.evid")):
        assert tz.exact(tz.read(path, evidence=evidence)).log_z == pytest.approx(seen)
    assert not tz.read(path, {}).evidence


def test_evidence_by_name_or_number(tmp_path):
    path = tmp_path / "n.bif"
    tz.write(
        FORMAT_MODELS["bif"], path, names=["rain", "wet"], states=[["no", "yes"], ["dry", "wet"]]
    )
    for evidence in ({"rain": "yes"}, {"rain": 1}, {0: 1}, {0: "yes"}):
        assert tz.read(path, evidence).evidence == {0: 1}
    grid = tmp_path / "m.uai"
    tz.write(FORMAT_MODELS["uai"], grid)
    for evidence, text in (
        ({"rain": 1}, "evidence names 'rain'; the model has numbers for names"),
        ({0: "yes"}, "evidence puts variable 0 in state 'yes'; it has states without names"),
        ({7: 1}, "evidence names variable 7"),
    ):
        with pytest.raises(ModelError, match=text):
            tz.read(grid, evidence)


def test_results_have_endings_too(tmp_path):
    tz.write(2.5, tmp_path / "z.PR")
    tz.write([[0.25, 0.75]], tmp_path / "z.mar")
    assert tz.read(tmp_path / "z.PR") == pytest.approx(2.5)
    np.testing.assert_array_equal(tz.read(tmp_path / "z.mar"), [[0.25, 0.75]])
