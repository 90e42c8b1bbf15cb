"""Hostile arguments: nothing is coerced in silence, and every refusal is an error of tightz."""

from __future__ import annotations

import decimal
import fractions
import inspect
import io
import itertools
import math
import re
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.sparse

import tightz as tz
from tests import naive
from tightz.models import SpinPolynomial
from tightz.models.formats import FORMATS
from tightz.models.formats.array_files import save_weights
from tightz.models.inputs import as_model, integer_array, real_array, shown
from tightz.reductions.collapse import collapse

GRAPH = tz.ising_grid(2, seed=0)
SPINS = SpinPolynomial.from_factor_graph(GRAPH)

NOT_MODELS = {
    "None": None,
    "dict": {(0, 1): 1.0},
    "int": 3,
    "array": np.zeros((2, 2)),
    "list": [[0.0, 1.0], [1.0, 0.0]],
    "class": tz.FactorGraph,
    "sparse": scipy.sparse.eye(3),
    "graph": networkx.path_graph(3),
    "directed": networkx.DiGraph(),
}


def takes_a_model() -> dict[str, tuple]:
    """Public functions whose first argument is a model, with what else they must be given."""
    rows = ([[0, 1, 0, 1]],)
    more = {"mfrp": (2,), "coset_sum": (1,), "sample": (3,), "free_energy": ([1.0, 2.0],)}
    more |= {"log_likelihood": rows, "sweep": rows}
    found = {}
    for name in tz.__all__:
        call = getattr(tz, name)
        if not inspect.isfunction(call):
            continue
        first = next(iter(inspect.signature(call).parameters), "")
        if first in ("model", "polynomial"):
            found[name] = more.get(name, ("out.uai",) if name == "write" else ())
    return found


FUNCTIONS = takes_a_model()


def test_the_functions_are_found():
    assert len(FUNCTIONS) >= 17
    assert {"log_partition", "exact", "estimate", "mean_field", "write"} <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", NOT_MODELS)
def test_what_is_not_a_model_is_refused_with_advice(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        tz.errors.ModelError, match=rf"{name} was given .*; expected a .*tz\."
    ) as caught:
        getattr(tz, name)(NOT_MODELS[kind], *FUNCTIONS[name])
    if kind in ("graph", "directed"):
        assert "tz.ising(graph)" in str(caught.value)
    if kind in ("dict", "array", "sparse"):
        assert "tz.ising(couplings, fields)" in str(caught.value)
    assert not list(tmp_path.iterdir())


TIMED = ("theorem_forecast", "to_pgmpy")
"""Functions whose results are seconds, or do not show themselves."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_stands_for_its_model(name, tmp_path, monkeypatch):
    """The function receives the very model that tz.read returns, however it is given."""
    if name == "to_pgmpy":
        pytest.importorskip("pgmpy")
    monkeypatch.chdir(tmp_path)
    tz.write(GRAPH, "model.uai")
    more, seeds = FUNCTIONS[name], {}
    if "seed" in inspect.signature(getattr(tz, name)).parameters:
        seeds["seed"] = 0
    if name in ("theorem_run", "theorem_forecast"):
        seeds |= {"levels": [1], "trials": 3}
    told = []
    for model in (tz.read("model.uai"), "model.uai", Path("model.uai")):
        result = getattr(tz, name)(model, *more, **seeds)
        if name == "write":
            result = tz.read("out.uai").digest
        told.append(type(result) if name in TIMED else _seconds_left_out(result))
    assert told[0] == told[1] == told[2]
    assert getattr(tz, name)(model="model.uai", **_named(name), **seeds) is not Ellipsis


def _named(name: str) -> dict:
    names = list(inspect.signature(getattr(tz, name)).parameters)[1:]
    return dict(zip(names, FUNCTIONS[name], strict=False))


def _seconds_left_out(result: object) -> str:
    return re.sub(r"[\d.]+(e-?\d+)? s\b|seconds=[\d.e-]+", "", repr(result))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_that_holds_no_model_says_why(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tz.errors.ModelError, match=r"model\.uai does not exist"):
        getattr(tz, name)("model.uai", *FUNCTIONS[name])
    assert not list(tmp_path.iterdir())
    tz.write(1.5, "z.PR")
    with pytest.raises(
        tz.errors.ModelError, match=rf"{name} was given a float, 1\.5; expected a tz\.FactorGraph"
    ):
        getattr(tz, name)("z.PR", *FUNCTIONS[name])


@pytest.mark.parametrize("name", ["exact", "upper_bound", "bethe", "ais", "log_partition"])
def test_the_other_kind_of_model_is_refused_too(name):
    with pytest.raises(
        tz.errors.ModelError, match=r"expected a tz\.FactorGraph: pass the factor graph"
    ):
        getattr(tz, name)(SPINS)
    with pytest.raises(tz.errors.ModelError, match=r"SpinPolynomial\.from_factor_graph"):
        collapse(GRAPH)


def test_models_pass():
    assert as_model(GRAPH, "here") is GRAPH
    assert as_model(SPINS, "here", only="SpinPolynomial") is SPINS


INDICES = [-1, 0.9, "0", None, True, 1j, math.nan, math.inf, (0,), decimal.Decimal(1)]


@pytest.mark.parametrize("bad", INDICES, ids=repr)
def test_an_index_is_a_whole_number_that_is_not_negative(bad):
    pair = [[0.0, 1.0], [1.0, 0.0]]
    calls = [
        lambda: tz.ising({(0, 1): 1.0}, {bad: 5.0}),
        lambda: tz.ising({(0, bad): 1.0}),
        lambda: tz.potts({(bad, 1): 1.0}, 3),
        lambda: tz.FactorGraph([2, 2], [((bad, 1), pair)]),
        lambda: tz.FactorGraph.from_tables([2, 2], [((bad, 1), pair)]),
        lambda: tz.FactorGraph([2, 2], evidence={bad: 0}),
        lambda: GRAPH.with_evidence({bad: 0}),
        lambda: SpinPolynomial.from_terms(2, 0.0, [((bad,), 1.0)]),
        lambda: tz.noisy_or(bad, [0], [0.5], first_auxiliary=3),
        lambda: tz.noisy_or(1, [bad], [0.5], first_auxiliary=3),
    ]
    for call in calls:
        with pytest.raises(tz.errors.ModelError, match="expected the number of a variable"):
            call()


@pytest.mark.parametrize("bad", [-1, 0.5, "1", None, 1j, math.nan, (0,)], ids=repr)
def test_a_state_is_a_whole_number_that_is_not_negative(bad):
    for call in (
        lambda: tz.FactorGraph([2, 2], evidence={0: bad}),
        lambda: GRAPH.with_evidence({0: bad}),
    ):
        with pytest.raises(tz.errors.ModelError, match="expected the number of a state"):
            call()


@pytest.mark.parametrize("good", [1, np.int8(1), np.uint64(1), 1.0, np.float32(1), np.array(1)])
def test_numpys_whole_numbers_are_whole(good):
    assert tz.FactorGraph([2, 2], evidence={int(good): good}).evidence == {1: 1}
    assert tz.FactorGraph([2, 2], [((good,), [0.0, 1.0])]).factor(0).scope == (1,)
    assert tz.FactorGraph([2, 2], evidence={0: True, 1: np.False_}).evidence == {0: 1, 1: 0}
    key = good if good.__hash__ else 1
    assert tz.ising({(0, key): 1.0}, {key: 2.0}).factor(1).log_table.tolist() == [2.0, -2.0]


@pytest.mark.parametrize("bad", [[(0, 1)], 3, "0 1", np.array([0, 1])], ids=str)
def test_evidence_is_a_mapping(bad):
    with pytest.raises(tz.errors.ModelError, match="expected a mapping variable -> state"):
        tz.FactorGraph([2, 2], evidence=bad)
    with pytest.raises(tz.errors.ModelError, match="expected a mapping variable -> state"):
        GRAPH.with_evidence(bad)


NOT_REAL = {
    "complex": np.array([[0, 1 + 1e-9j], [1 - 1e-9j, 0]]),
    "text": [["0", "1"], ["1", "0"]],
    "objects": [[0, None], [None, 0]],
    "fractions": [[0, fractions.Fraction(1, 2)], [0, 0]],
    "ragged": [[0.0, 1.0], [1.0]],
    "dates": np.array([["2020", "2021"], ["2020", "2021"]], dtype="M8[Y]"),
    "durations": np.array([[1, 2], [3, 4]], dtype="m8[s]"),
    "records": np.zeros((2, 2), dtype=[("a", float)]),
    "masked": np.ma.masked_equal([[0.0, 1.0], [1.0, 0.0]], 1.0),
    "bytes": np.array([[b"0", b"1"], [b"1", b"0"]]),
    "dict": {0: 1.0},
    "none": None,
    "set": {0.0, 1.0},
}


@pytest.mark.parametrize("kind", NOT_REAL)
def test_arrays_are_real_numbers(kind, tmp_path):
    bad = NOT_REAL[kind]
    calls = [
        lambda: tz.FactorGraph([2, 2], [((0, 1), bad)]),
        lambda: tz.FactorGraph.from_tables([2, 2], [((0, 1), bad)]),
        lambda: tz.FactorGraph.from_arrays([2], [0, 1], [0], [0, 2], bad),
        lambda: tz.rbm(bad, [0.0, 0.0], [0.0, 0.0]),
        lambda: tz.rbm(np.zeros((2, 2)), bad, [0.0, 0.0]),
        lambda: save_weights(tmp_path / "w.npz", bad, [0.0, 0.0], [0.0, 0.0]),
        lambda: tz.train_rbm(bad, tz.Training(hidden=2, epochs=1)),
        lambda: GRAPH.log_weight(bad),
        lambda: tz.write([bad], tmp_path / "x.MAR"),
    ]
    if kind not in ("none", "dict"):
        calls.append(lambda: tz.ising(np.zeros((2, 2)), bad))
        calls.append(lambda: tz.potts({(0, 1): 1.0}, 2, bad))
    if kind != "dict":
        calls.append(lambda: tz.ising(bad))
    for call in calls:
        with pytest.raises(tz.errors.ModelError, match="expected"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [1j, "1", None, math.nan, -math.inf, [1.0, 2.0]], ids=repr)
def test_weights_are_finite_numbers(bad):
    for call in (
        lambda: tz.ising({(0, 1): bad}),
        lambda: tz.ising({(0, 1): 1.0}, {0: bad}),
        lambda: tz.potts({(0, 1): bad}, 2),
        lambda: tz.from_ising({0: bad}, {}),
        lambda: tz.from_ising({}, {(0, 1): bad}),
        lambda: tz.from_ising({}, {(0, 1): 1.0}, beta=bad),
        lambda: tz.from_qubo({(0, 1): bad}),
        lambda: tz.from_qubo({(0, 1): 1.0}, offset=bad),
        lambda: tz.noisy_or(1, [0], [bad], first_auxiliary=2),
        lambda: SpinPolynomial.from_terms(2, 0.0, [((0,), bad)]),
    ):
        with pytest.raises(tz.errors.ModelError, match="expected a finite number"):
            call()


@pytest.mark.parametrize("bad", [(1.0,), (2, 1), (0, math.nan), "ab", None, math.nan, math.inf])
def test_ranges_are_two_numbers(bad):
    for build in (tz.ising_grid, tz.potts_grid):
        for name in ("coupling", "field"):
            with pytest.raises(tz.errors.ModelError, match="expected"):
                build(2, **{name: bad}, seed=0)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "3", None, True, (2, 2)])
def test_sizes_are_whole_numbers(bad):
    calls = [
        lambda: tz.potts({(0, 1): 1.0}, bad),
        lambda: tz.potts_grid(2, states=bad),
        lambda: tz.train_rbm(np.zeros((2, 2)), tz.Training(hidden=bad)),
        lambda: tz.ising_grid(bad),
    ]
    if bad is not None:
        calls.append(lambda: tz.ising_grid(2, bad))
    for call in calls:
        with pytest.raises(tz.errors.ParameterError, match="expected a whole number of at least 1"):
            call()


@pytest.mark.parametrize("bad", [2.7, "2", None, -1])
def test_levels_are_whole_numbers(bad):
    with pytest.raises(tz.errors.ParameterError, match=r"m is -1|expected a list of whole numbers"):
        tz.estimate(GRAPH, levels=[bad], trials=1)
    with pytest.raises(tz.errors.ParameterError, match="expected a list of whole numbers"):
        tz.estimate(GRAPH, levels=5)


@pytest.mark.parametrize("bad", ["x", None, 1j, [1, 2]], ids=repr)
def test_parameters_of_the_wrong_type(bad):
    for call in (
        lambda: tz.estimate(GRAPH, trials=bad),
        lambda: tz.mean_field(GRAPH, family=tz.MeanField(restarts=bad)),
        lambda: tz.ais(GRAPH, chains=bad),
    ):
        with pytest.raises(tz.errors.ParameterError, match="expected at least"):
            call()


PATHS = [None, 3, 2.5, b"model.uai", ["a"], io.StringIO("MARKOV"), GRAPH]


@pytest.mark.parametrize("bad", PATHS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("ending", [None, *(kind.name for kind in FORMATS)])
def test_a_path_is_a_str_or_a_path(ending, bad):
    with pytest.raises(tz.errors.ModelError, match=r"the path is .*; expected the name of a file"):
        tz.read(bad, format=ending)


@pytest.mark.parametrize("bad", PATHS, ids=lambda value: type(value).__name__)
def test_where_to_write_is_a_path(bad):
    small = tz.FactorGraph.from_tables([2], [((0,), [0.5, 0.5])])
    for call in (
        lambda: tz.write(small, bad),
        *(lambda f=f: tz.write(small, bad, format=f) for f in ("uai", "fg", "cnf", "bif", "npz")),
        lambda: tz.write(small, bad, format="xml"),
        lambda: tz.write(1.0, bad, format="PR"),
        lambda: tz.write([[1.0]], bad, format="MAR"),
        lambda: save_weights(bad, [[1.0]], [0.0], [0.0]),
    ):
        with pytest.raises(
            tz.errors.ModelError, match=r"the path is .*; expected the name of a file"
        ):
            call()


def test_evidence_files_and_folders_are_paths_too(tmp_path):
    tz.write(GRAPH, tmp_path / "m.uai")
    for bad in (3, [1], b"e"):
        with pytest.raises(tz.errors.ModelError, match="expected the name of a file or a mapping"):
            tz.read(tmp_path / "m.uai", bad)
    with pytest.raises(tz.errors.ModelError, match="the path is"):
        tz.load_mnist(3)


@pytest.mark.parametrize(
    "factors",
    [3, "ab", {0: 1}, [3], ["ab"], [(0,)], [((0,), [0, 1], 2)], [(0, [0, 1])], [("0", [0, 1])]],
    ids=repr,
)
def test_factors_are_pairs_of_scope_and_table(factors):
    for build in (tz.FactorGraph, tz.FactorGraph.from_tables):
        with pytest.raises(tz.errors.ModelError, match="expected"):
            build([2, 2], factors)


@pytest.mark.parametrize(
    "bad", [2, "22", [2.5], [[2, 2]], [None], np.array([2 + 0j]), [True, True]], ids=repr
)
def test_cardinalities_are_a_list_of_whole_numbers(bad):
    with pytest.raises(tz.errors.ModelError, match="expected a flat list of integers"):
        tz.FactorGraph(bad)


@pytest.mark.parametrize("field", ["scope_ptr", "scope_vars", "table_ptr"])
def test_flat_arrays_are_whole_numbers(field):
    arrays = {"scope_ptr": [0, 1], "scope_vars": [0], "table_ptr": [0, 2]}
    arrays[field] = [x + 0.5 for x in arrays[field]]
    with pytest.raises(tz.errors.ModelError, match=rf"{field}\[0\] is .*; expected whole numbers"):
        tz.FactorGraph.from_arrays([2], **arrays, log_tables=[0.0, 0.0])


def test_log_tables_are_not_truth_values_and_potentials_may_be():
    with pytest.raises(tz.errors.ModelError, match=r"True and False; expected logs .*from_tables"):
        tz.FactorGraph([2], [((0,), [True, False])])
    model = tz.FactorGraph.from_tables([2], [((0,), [True, False])])
    assert model.log_tables.tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("states", [[-1, 0, 0, 0], [0, 0, 0, 2], [0.5, 0, 0, 0]])
def test_states_are_in_range(states):
    with pytest.raises(tz.errors.ModelError, match="states"):
        GRAPH.log_weight(states)


def test_a_pair_is_named_once():
    for build in (tz.ising, lambda couplings: tz.potts(couplings, 2)):
        with pytest.raises(
            tz.errors.ModelError, match=r"\(0, 1\) again as \(1, 0\).*tz\.from_ising adds"
        ):
            build({(0, 1): 1.0, (1, 0): 1.0})
        with pytest.raises(tz.errors.ModelError, match="with itself"):
            build({(1, 1): 1.0})
        for bad in ({0: 1.0}, {"01": 1.0}, {(0, 1, 2): 1.0}, {(0,): 1.0}):
            with pytest.raises(tz.errors.ModelError, match="expected pairs of variables"):
                build(bad)
    matrix = tz.ising([[0.0, 1.0], [1.0, 0.0]])
    assert matrix.digest == tz.ising({(0, 1): 1.0}, [0.0, 0.0]).digest


@pytest.mark.parametrize("bad", ["x", [1, 2], 3, None], ids=repr)
def test_dictionaries_of_annealers_are_dictionaries(bad):
    for call in (
        lambda: tz.from_ising(bad, {}),
        lambda: tz.from_ising({}, bad),
        lambda: tz.from_qubo(bad),
    ):
        with pytest.raises(tz.errors.ModelError, match="expected a mapping"):
            call()
    with pytest.raises(tz.errors.ModelError, match="expected pairs of labels"):
        tz.from_qubo({"ab": 1.0})
    with pytest.raises(tz.errors.ModelError, match="expected a binary quadratic model"):
        tz.from_dimod(bad)


def test_fields_name_spins_that_the_couplings_have():
    with pytest.raises(
        tz.errors.ModelError, match="fields name variable 5; the couplings have variables 0 to 1"
    ):
        tz.ising([[0.0, 1.0], [1.0, 0.0]], {5: 1.0})
    assert tz.ising({(0, 1): 1.0}, {5: 1.0}).n_variables == 6
    with pytest.raises(tz.errors.ModelError, match="expected a vector"):
        tz.ising({(0, 1): 1.0}, [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("part", ["symmetric", "upper", "lower"])
def test_sparse_couplings_are_couplings(kind, part):
    rng = np.random.default_rng(0)
    dense = np.triu(np.where(rng.random((7, 7)) < 0.4, rng.normal(size=(7, 7)), 0.0), 1)
    dense[0, 6] = 1.5
    given = {"symmetric": dense + dense.T, "upper": dense, "lower": dense.T}[part]
    fields = rng.normal(size=7)
    expected = tz.ising(dense + dense.T, fields)
    for make in (getattr(scipy.sparse, f"{kind}_matrix"), getattr(scipy.sparse, f"{kind}_array")):
        model = tz.ising(make(given), fields)
        assert model.n_variables == 7
        assert model.digest == expected.digest


@pytest.mark.parametrize(
    ("matrix", "match"),
    [
        ([[0, 1], [2, 0]], "neither symmetric nor a triangle"),
        ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], "neither symmetric nor a triangle"),
        ([[1, 1], [1, 0]], r"couplings\[0, 0\] is 1.0; expected 0 on the diagonal"),
        ([[0, math.nan], [0, 0]], r"couplings\[0, 1\] is nan"),
        ([[0, 1j], [0, 0]], "complex"),
        ([[0, 1, 0], [1, 0, 0]], "expected a square matrix"),
    ],
)
def test_sparse_couplings_are_checked_as_dense_ones(matrix, match):
    with pytest.raises(tz.errors.ModelError, match=match):
        tz.ising(scipy.sparse.csr_matrix(np.array(matrix)))


def test_a_large_sparse_spin_glass_stays_sparse():
    n = 200_000
    i = np.arange(n - 1)
    matrix = scipy.sparse.coo_array((np.ones(n - 1), (i, i + 1)), shape=(n, n))
    assert tz.ising(matrix).n_factors == 2 * n - 1


def test_sparse_matrices_elsewhere_are_refused():
    eye = scipy.sparse.eye(2)
    for call in (
        lambda: tz.rbm(eye, [0.0, 0.0], [0.0, 0.0]),
        lambda: tz.ising({(0, 1): 1.0}, eye),
        lambda: tz.FactorGraph([2, 2], [((0, 1), eye)]),
        lambda: tz.train_rbm(eye),
    ):
        with pytest.raises(tz.errors.ModelError, match=r"is a sparse matrix; .*toarray"):
            call()


def test_weights_the_wrong_way_round_are_told_where_shapes_tell():
    rng = np.random.default_rng(1)
    w, b, c = rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=2)
    with pytest.raises(tz.errors.ModelError, match="the other way round: transposed=True"):
        tz.rbm(w.T, b, c)
    assert tz.rbm(w.T, b, c, transposed=True).digest == tz.rbm(w, b, c).digest
    with pytest.raises(tz.errors.ModelError, match="the other way round: transposed=False"):
        tz.rbm(w, b, c, transposed=True)
    square = rng.normal(size=(3, 3))
    one, other = tz.rbm(square, b, b), tz.rbm(square, b, b, transposed=True)
    assert other.digest == tz.rbm(square.T, b, b).digest != one.digest


def test_a_square_matrix_in_a_file_must_say_which_way_round_it_is(tmp_path):
    rng = np.random.default_rng(2)
    w, b, c = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    theirs, ours = tmp_path / "theirs.npz", tmp_path / "ours.npz"
    np.savez(theirs, W=w, visible_bias=b, hidden_bias=c)
    with pytest.raises(
        tz.errors.ModelError, match="nothing tells whether its rows are visible or hidden"
    ):
        tz.read(theirs)
    assert tz.read(theirs, transposed=False).digest == tz.rbm(w, b, c).digest
    assert tz.read(theirs, transposed=True).digest == tz.rbm(w.T, b, c).digest
    tz.write(tz.rbm(w, b, c), ours)
    assert tz.read(ours).digest == tz.rbm(w, b, c).digest
    np.savez(theirs, W=w + w.T, visible_bias=b, hidden_bias=c)
    assert tz.read(theirs).digest == tz.rbm(w + w.T, b, c).digest
    np.savez(theirs, W=np.zeros((2, 3)), visible_bias=np.zeros(3), hidden_bias=np.zeros(2))
    with pytest.raises(tz.errors.ModelError, match=r"need \(3, 2\) \("):
        tz.read(theirs, transposed=False)


def test_arrays_that_are_numbers_pass():
    for good in ([1, 2], (1.0, 2), np.float32([1, 2]), np.ma.array([1, 2]), np.int8([1, 2])):
        assert real_array(good, "x").tolist() == [1.0, 2.0]
        assert integer_array(good, "x").tolist() == [1, 2]
    assert real_array(np.longdouble([1, 2]), "x").dtype == np.float64
    with pytest.raises(tz.errors.ModelError, match=r"x\[1\] is 2.5; expected whole numbers"):
        integer_array([1, 2.5], "x")


def test_values_in_messages_are_short():
    assert shown(None) == "None"
    assert shown("x" * 100) == "a str, '" + "x" * 56 + "..."
    assert shown(Path("a")).endswith("Path, 'a'")
    assert shown(np.zeros((2, 3))) == "an array of shape (2, 3) and type float64"
    assert shown([1]) == "a list"


def test_what_is_accepted_is_what_is_meant():
    """Against enumeration: couplings and fields by dictionary, matrix and sparse matrix agree."""
    couplings, fields = {(0, 1): 0.7, (2, 1): -1.1}, {2: 0.4}
    matrix = np.zeros((3, 3))
    for (i, j), w in couplings.items():
        matrix[i, j] = matrix[j, i] = w
    states = np.array(np.meshgrid(*[[1, -1]] * 3, indexing="ij")).reshape(3, -1).T
    weights = sum(w * states[:, i] * states[:, j] for (i, j), w in couplings.items())
    log_z = np.log(np.exp(weights + 0.4 * states[:, 2]).sum())
    for given in (couplings, matrix, scipy.sparse.csr_array(np.triu(matrix))):
        model = tz.ising(given, fields)
        found, _ = naive.enumerate_model(model.cardinalities, model.factors)
        assert found == pytest.approx(log_z, abs=1e-12)


# Labels, tables, lattices ---------------------------------------------------------------------


def spins_of(n: int) -> np.ndarray:
    return np.array(list(itertools.product([1, -1], repeat=n)))


def test_names_become_names_and_fields_follow_them():
    couplings = {("b", "a"): 0.7, ("a", "c"): -1.1}
    model = tz.ising(couplings, {"c": 0.4, "alone": 0.2})
    assert model.names == ("b", "a", "c", "alone")
    assert model.states == (("+1", "-1"),) * 4
    s = spins_of(4)
    b, a, c, alone = s.T
    expected = 0.7 * b * a - 1.1 * a * c + 0.4 * c + 0.2 * alone
    assert model.log_weight((1 - s) // 2) == pytest.approx(expected, abs=1e-12)
    seen = model.with_evidence({"a": "-1"})
    found, _ = naive.enumerate_model(seen.cardinalities, list(seen.factors), seen.evidence)
    assert found == pytest.approx(naive.log_sum_exp(expected[a == -1]), abs=1e-12)


@pytest.mark.parametrize("shuffled", [False, True])
def test_lattice_coordinates_are_sorted_row_by_row(shuffled):
    """However the bonds are listed, the sites stand as in tz.ising_grid of that shape."""
    rng = np.random.default_rng(0)
    rows, cols = 3, 4
    bonds = [((r, c), (r, c + 1)) for r in range(rows) for c in range(cols - 1)]
    bonds += [((r + 1, c), (r, c)) for r in range(rows - 1) for c in range(cols)]
    weights = dict(zip(bonds, rng.normal(size=len(bonds)).tolist(), strict=True))
    fields = rng.normal(size=(rows, cols))
    listed = rng.permutation(len(bonds)) if shuffled else range(len(bonds))
    model = tz.ising({bonds[k]: weights[bonds[k]] for k in listed}, fields)
    assert model.names[5] == "(1, 1)"
    assert model.index((1, 1)) == 5
    s = rng.choice([1, -1], size=(50, rows, cols))
    expected = (s * fields).sum(axis=(1, 2))
    for (a, b), weight in weights.items():
        expected += weight * s[:, *a] * s[:, *b]
    found = model.log_weight((1 - s.reshape(50, -1)) // 2)
    assert found == pytest.approx(expected, abs=1e-12)
    mapping = {site: fields[site] for site in np.ndindex(rows, cols)}
    assert model.digest == tz.ising({bonds[k]: weights[bonds[k]] for k in listed}, mapping).digest


def test_an_array_of_fields_may_name_sites_without_a_bond():
    model = tz.ising({((0, 0), (1, 1)): 1.0}, np.array([[0.1, 0.2], [0.3, 0.4]]))
    assert model.names == ("(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)")
    assert model.factor(4).scope == (0, 3)
    assert [model.factor(v).log_table[0] for v in range(4)] == [0.1, 0.2, 0.3, 0.4]
    potts = tz.potts({((0, 0), (1, 1)): 1.0}, 3, np.arange(12.0).reshape(2, 2, 3))
    assert potts.factor(2).log_table.tolist() == [6.0, 7.0, 8.0]


@pytest.mark.parametrize("seed", range(5))
def test_potts_couplings_in_every_form_are_one_model(seed):
    rng = np.random.default_rng(seed)
    n, states = 5, int(rng.integers(2, 5))
    upper = np.triu(np.where(rng.random((n, n)) < 0.6, rng.normal(size=(n, n)), 0.0), 1)
    upper[0, n - 1] = 0.3
    fields = rng.normal(size=(n, states))
    mapping = {(int(i), int(j)): upper[i, j] for i, j in np.argwhere(upper)}
    graph = networkx.from_numpy_array(upper + upper.T)
    for v in range(n):
        graph.nodes[v]["field"] = fields[v]
    x = rng.integers(states, size=(40, n))
    expected = fields[np.arange(n), x].sum(axis=1)
    for (i, j), weight in mapping.items():
        expected += weight * (x[:, i] == x[:, j])
    for given, own in (
        (upper, fields),
        (upper + upper.T, fields),
        (scipy.sparse.coo_array(upper), fields),
        (mapping, dict(enumerate(fields))),
        (graph, None),
    ):
        model = tz.potts(given, states, own)
        assert model.log_weight(x) == pytest.approx(expected, abs=1e-12)
    row = tz.potts(upper, states, fields[0])
    assert row.digest == tz.potts(upper, states, np.tile(fields[0], (n, 1))).digest


def test_entries_listed_twice_add_up():
    matrix = scipy.sparse.coo_array(([1.0, 0.5, -2.0], ([0, 0, 1], [1, 1, 2])), shape=(3, 3))
    model = tz.ising(matrix)
    assert [model.factor(f).log_table[0, 0] for f in (3, 4)] == [1.5, -2.0]


def test_a_dense_triangle_is_a_triangle():
    upper = np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    expected = tz.ising(upper + upper.T).digest
    assert tz.ising(upper).digest == tz.ising(upper.T).digest == expected


def test_one_number_stands_for_all():
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert tz.ising(matrix, 0.5).digest == tz.ising(matrix, [0.5, 0.5]).digest
    assert tz.ising({("a", "b"): 1.0}, 0.5).digest == tz.ising(matrix, [0.5, 0.5]).digest
    w = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert tz.rbm(w, 0.5, -1).digest == tz.rbm(w, [0.5, 0.5], [-1, -1, -1]).digest
    assert tz.rbm(w).digest == tz.rbm(w, np.zeros(2), np.zeros(3)).digest
    for build in (tz.ising_grid, tz.potts_grid):
        flat = build(3, coupling=1, field=0.25, seed=0)
        assert flat.digest == build(3, coupling=(1, 1), field=(0.25, 0.25), seed=5).digest
        assert "w = 1" in flat.name
    assert set(tz.ising_grid(3, coupling=np.float32(2), field=0).log_tables) == {-2, 0, 2}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1j, None])
def test_one_number_must_be_one(bad):
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    calls = [
        lambda: tz.rbm(matrix, bad),
        lambda: tz.from_networkx(networkx.path_graph(2), coupling=1.0, field=bad),
    ]
    if bad is not None:
        calls.append(lambda: tz.ising(matrix, bad))
        calls.append(lambda: tz.from_networkx(networkx.path_graph(2), coupling=bad))
    for call in calls:
        with pytest.raises(tz.errors.ModelError, match="expected"):
            call()


def test_tables_of_pandas_keep_their_labels():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([[0, 1.5], [1.5, 0]], index=["x", "y"], columns=["x", "y"])
    fields = pandas.Series({"y": 0.25, "x": -1.0})
    model = tz.ising(table, fields)
    assert model.names == ("x", "y")
    assert [model.factor(v).log_table[0] for v in (0, 1)] == [-1.0, 0.25]
    assert tz.ising(pandas.DataFrame([[0, 1.5], [1.5, 0]])).names is None
    with pytest.raises(tz.errors.ModelError, match=r"rows are not labelled.*J\.loc\[J\.columns\]"):
        tz.ising(table.loc[["y", "x"]])
    with pytest.raises(tz.errors.ModelError, match="fields name 'z'; expected variables"):
        tz.ising(table, pandas.Series({"z": 1.0}))


class Tensor:
    """What a tensor of another library has: an array inside, or a reason why not."""

    def __init__(self, values, reason=""):
        self.values, self.reason = np.asarray(values), reason

    def __array__(self, dtype=None, copy=None):
        if self.reason:
            raise RuntimeError(self.reason)
        return self.values


def test_tensors_are_arrays_where_they_say_so():
    matrix = [[0.0, 1.0], [1.0, 0.0]]
    assert tz.ising(Tensor(matrix), Tensor([0.5, 0.5])).digest == tz.ising(matrix, 0.5).digest
    assert tz.rbm(Tensor(np.float32(matrix))).digest == tz.rbm(matrix).digest
    with pytest.raises(tz.errors.ModelError, match=r"couplings is a Tensor .*call detach\(\)"):
        tz.ising(Tensor(matrix, "call detach() first"))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({("a", 0): 1.0}, "Name all variables by number, or none"),
        ({("a", None): 1.0}, "Name all variables by number, or none"),
        ({("a", "a"): 1.0}, "of variable 'a' with itself"),
        ({("a", "b"): 1.0, ("b", "a"): 1.0}, r"\('a', 'b'\) again as \('b', 'a'\)"),
        ({("a", "b"): "1"}, r"coupling \('a', 'b'\) is '1'; expected a finite number"),
        ([[0.0, 1.0], [1.0]], "rows of equal length"),
        ([["0", "1"], ["1", "0"]], "holds text"),
        ("couplings.npz", r"tz\.read\(path\)"),
        (networkx.DiGraph([(0, 1)]), r"graph\.to_undirected\(\)"),
        (networkx.Graph([(0, 1)]), r"coupling=1\.0"),
        (networkx.Graph([(0, 1, {"weight": "1"})]), r"weight of the edge \(0, 1\) is '1'"),
        (networkx.Graph([("u", "u", {"weight": 1.0})]), "variable 'u' with itself"),
    ],
)
def test_wrong_couplings_get_a_sentence_that_shows_the_right_ones(given, match):
    for build in (tz.ising, lambda couplings: tz.potts(couplings, 3)):
        with pytest.raises(tz.errors.ModelError, match=match):
            build(given)


def test_no_couplings_at_all():
    assert tz.ising({}).n_variables == 0
    assert tz.ising({}, {"a": 1.0, "b": 2.0}).names == ("a", "b")
    assert tz.ising({}, {1: 1.0}).n_variables == 2
    assert tz.ising({}, [1.0, 2.0]).n_variables == 2
    assert tz.ising(np.zeros((0, 0))).n_variables == 0
    assert tz.ising(networkx.empty_graph(3)).n_variables == 3
