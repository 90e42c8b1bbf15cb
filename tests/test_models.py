"""Factor graphs, builders and the Walsh expansion against enumeration."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import binary_models
from tightz.errors import ModelError
from tightz.models import SpinPolynomial
from tightz.models.observed import observe
from tightz.reductions.encoding import encode


@given(binary_models(max_arity=4))
def test_walsh_expansion_equals_log_tables(model):
    states = naive.all_states(model.cardinalities)
    polynomial = SpinPolynomial.from_factor_graph(model)
    expected = naive.log_weights(model.cardinalities, model.factors, states)
    np.testing.assert_allclose(polynomial.log_weight(1 - 2 * states), expected, atol=1e-10)
    np.testing.assert_allclose(model.log_weight(states), expected, atol=1e-10)


def test_walsh_expansion_of_a_wide_factor():
    rng = np.random.default_rng(0)
    model = tz.FactorGraph([2] * 12, [(rng.permutation(12), rng.normal(size=(2,) * 12))])
    states = rng.integers(0, 2, size=(200, 12))
    polynomial = SpinPolynomial.from_factor_graph(model)
    np.testing.assert_allclose(
        polynomial.log_weight(1 - 2 * states), model.log_weight(states), atol=1e-10
    )
    assert polynomial.n_terms == 2**12 - 1


def test_equal_terms_are_merged_and_cancelled_ones_dropped():
    pair = np.array([[1.0, -1.0], [-1.0, 1.0]])
    doubled = SpinPolynomial.from_factor_graph(
        tz.FactorGraph([2, 2, 2], [((0, 1), pair), ((1, 0), pair), ((1, 2), pair), ((2, 1), -pair)])
    )
    assert doubled.n_terms == 1
    assert doubled.theta.tolist() == [2.0]
    assert doubled.spins.tolist() == [0, 1]


def test_terms_with_repeated_spins_cancel_in_pairs():
    p = SpinPolynomial.from_terms(4, 1.0, [((0, 1, 1, 2), 0.5), ((2, 0), 0.25), ((3, 3), 2.0)])
    assert p.constant == 3.0
    assert p.n_terms == 1
    assert p.theta.tolist() == [0.75]


def test_scope_order_decides_table_axes():
    table = np.arange(4.0).reshape(2, 2)
    model = tz.FactorGraph([2, 2], [((1, 0), table)])
    assert model.log_weight([[0, 1]])[0] == table[1, 0]


def test_ising_energy():
    j = {(0, 1): 0.7, (1, 2): -1.2}
    model = tz.ising(j, [0.1, 0.0, -0.4])
    for x in naive.all_states([2] * 3):
        s = 1 - 2 * x
        energy = 0.7 * s[0] * s[1] - 1.2 * s[1] * s[2] + 0.1 * s[0] - 0.4 * s[2]
        assert model.log_weight(x)[0] == pytest.approx(energy, abs=1e-12)


def test_ising_matrix_and_mapping_agree():
    rng = np.random.default_rng(1)
    upper = np.triu(rng.normal(size=(5, 5)), 1)
    fields = rng.normal(size=5)
    mapping = {(i, j): upper[i, j] for i in range(5) for j in range(i + 1, 5)}
    assert tz.ising(upper + upper.T, fields).digest == tz.ising(mapping, fields).digest


@pytest.mark.parametrize("periodic", [False, True])
def test_grid_has_the_lattice_edges(periodic):
    model = tz.ising_grid(3, 4, seed=0, periodic=periodic)
    edges = {f.scope for f in model.factors if len(f.scope) == 2}
    expected = {(r * 4 + c, r * 4 + c + 1) for r in range(3) for c in range(3)}
    expected |= {(r * 4 + c, r * 4 + c + 4) for r in range(2) for c in range(4)}
    if periodic:
        expected |= {(r * 4, r * 4 + 3) for r in range(3)} | {(c, 8 + c) for c in range(4)}
    assert edges == expected


def test_periodic_side_of_two_is_not_doubled():
    assert sum(len(f.scope) == 2 for f in tz.ising_grid(2, 2, seed=0, periodic=True).factors) == 4


def test_field_per_edge_counts_the_site_field_once_per_edge():
    site = SpinPolynomial.from_factor_graph(tz.ising_grid(3, seed=4))
    edge = SpinPolynomial.from_factor_graph(tz.ising_grid(3, seed=4, field_per_edge=True))
    degree = np.array([2, 3, 2, 3, 4, 3, 2, 3, 2])
    ones = site.arities == 1
    np.testing.assert_allclose(edge.theta[ones], site.theta[ones] * degree)
    np.testing.assert_allclose(edge.theta[~ones], site.theta[~ones])


def test_rbm_energy():
    rng = np.random.default_rng(2)
    w, b, c = rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=2)
    model = tz.rbm(w, b, c)
    for x in naive.all_states([2] * 5):
        v, h = x[:3], x[3:]
        assert model.log_weight(x)[0] == pytest.approx(b @ v + c @ h + v @ w @ h, abs=1e-12)


@given(binary_models(), st.data())
def test_conditioning_keeps_log_z(model, data):
    observed = data.draw(
        st.dictionaries(st.integers(0, model.n_variables - 1), st.integers(0, 1), max_size=4)
    )
    seen = model.with_evidence(observed)
    step = observe(seen, single_states=False)
    reduced, kept = step.reduced, step.kept
    expected, _ = naive.enumerate_model(seen.cardinalities, seen.factors, observed)
    got, _ = naive.enumerate_model(reduced.cardinalities, reduced.factors)
    assert got == pytest.approx(expected, abs=1e-9)
    assert len(kept) == model.n_variables - len(observed)


def test_one_state_variables_do_not_double_z():
    model = tz.FactorGraph([1, 2, 1], [((0, 1), np.array([[0.3, -0.2]])), ((2,), np.array([1.5]))])
    polynomial = encode(model).polynomial
    assert polynomial.n == 1
    exact, _ = naive.enumerate_model(model.cardinalities, model.factors)
    assert naive.log_sum_exp(polynomial.log_weight([[1], [-1]])) == pytest.approx(exact)


def test_digest_tells_models_apart():
    a, b = tz.ising_grid(3, seed=0), tz.ising_grid(3, seed=1)
    assert a.digest == tz.ising_grid(3, seed=0).digest
    assert len({a.digest, b.digest, a.with_evidence({0: 1}).digest}) == 3


def test_arrays_are_read_only():
    model = tz.ising_grid(3, seed=0)
    with pytest.raises(ValueError, match="read-only"):
        model.log_tables[0] = 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tz.FactorGraph([2, 0], []), "variable 1 has 0 states"),
        (lambda: tz.FactorGraph([2], [((0, 1), np.zeros((2, 2)))]), "factor 0 names variable 1"),
        (lambda: tz.FactorGraph([2, 2], [((0, 0), np.zeros((2, 2)))]), "variable 0 twice"),
        (lambda: tz.FactorGraph([2, 2], [((0, 1), np.zeros(3))]), "lists 3 entries.*needs 4"),
        (lambda: tz.FactorGraph([2, 3], [((0, 1), np.zeros((3, 2)))]), r"shape \(3, 2\).*\(2, 3\)"),
        (lambda: tz.FactorGraph([2], [((0,), [np.nan, 0])]), "factor 0, entry 0.*nan"),
        (lambda: tz.FactorGraph([2], [((0,), [0, np.inf])]), "factor 0, entry 1.*inf"),
        (
            lambda: tz.FactorGraph.from_tables([2], [((0,), [1, -1])]),
            "factor 0, entry 1: potential is -1.0",
        ),
        (lambda: tz.FactorGraph([2], evidence={0: 2}), "state 2; it has states 0 to 1"),
        (lambda: tz.FactorGraph([2], evidence={3: 0}), "names variable 3"),
        (lambda: tz.ising_grid(2, seed=0).with_evidence({0: 1}).with_evidence({0: 0}), "observed"),
        (
            lambda: tz.ising(np.array([[0, 1], [2, 0.0]])),
            r"couplings\[0, 1\] is 1.0 and couplings\[1, 0\] is 2.0: .* neither symmetric",
        ),
        (lambda: tz.ising(np.array([[1.0]])), r"couplings\[0, 0\] is 1.0; expected 0"),
        (lambda: tz.ising(np.zeros((2, 3))), "square"),
        (lambda: tz.ising({(0, 1): np.nan}), r"coupling \(0, 1\) is nan"),
        (lambda: tz.ising({(0, 0): 1.0}), "with itself"),
        (lambda: tz.ising(np.zeros((2, 2)), [1.0]), "1 fields for 2 variables"),
        (
            lambda: tz.ising(np.zeros((2, 2)), [1.0, np.inf]),
            r"fields\[1\] is inf; expected a finite number",
        ),
        (lambda: tz.ising_grid(0), "rows is 0"),
        (lambda: tz.ising_grid(2, coupling=(1, -1)), "coupling range"),
        (lambda: tz.ising_grid(2, field=(0, np.inf)), "field range"),
        (lambda: tz.rbm(np.zeros((2, 3)), [0, 0], [0, 0]), r"\(2, 3\).*\(2, 2\)"),
        (lambda: tz.rbm([[np.nan]], [0], [0]), r"W\[0, 0\] is nan; expected a finite number"),
        (lambda: SpinPolynomial.from_terms(2, 0, [((2,), 1.0)]), "outside 0 to 1"),
    ],
)
def test_bad_models_name_cause_and_place(build, message):
    with pytest.raises(tz.TightzError, match=message):
        build()


def test_what_cannot_be_expanded_says_so():
    with pytest.raises(tz.errors.UnsupportedModelError, match=r"variable 1 has 3 states.*tz.exact"):
        encode(tz.FactorGraph([2, 3], []))
    with pytest.raises(
        tz.errors.UnsupportedModelError, match=r"factor 0 has zero entries.*tz.exact"
    ):
        tz.mean_field(tz.FactorGraph([2, 2], [((0, 1), [[0, -np.inf], [0, 0]])]))
    with pytest.raises(tz.errors.UnsupportedModelError, match="arity 17"):
        tz.mean_field(tz.FactorGraph([2] * 17, [(range(17), np.zeros(2**17))]))


@settings(max_examples=20)
@given(binary_models())
def test_repr_is_one_line(model):
    assert "\n" not in repr(model)
    assert "\n" not in repr(SpinPolynomial.from_factor_graph(model))


WEATHER = tz.FactorGraph.from_tables(
    [2, 3, 2],
    [((0, 1), [[1, 2, 3], [4, 5, 6]]), ((1, 2), [[1, 2], [3, 4], [5, 6]])],
    names=["rain", "wind", "wet"],
    states=[("no", "yes"), None, ("no", "yes")],
)


def test_names_and_states_are_carried_by_every_copy():
    seen = WEATHER.with_evidence({"wind": 2})
    rest = seen.condition()
    assert seen.names == WEATHER.names
    assert rest.names == ("rain", "wet")
    assert rest.states == (("no", "yes"), ("no", "yes"))
    for model in (WEATHER, seen, pickle.loads(pickle.dumps(seen)), WEATHER.with_zeros()):
        assert (model.names, model.states) == (WEATHER.names, WEATHER.states)
        assert model.index("wet") == model.index(2) == 2
        assert model.state("wet", "yes") == model.state(2, 1) == 1
    assert rest.index("wet") == 1


def test_names_do_not_change_what_a_model_is():
    bare = WEATHER.with_names(None)
    assert bare.names is None
    assert bare.states is None
    assert bare.digest == WEATHER.digest == WEATHER.with_names(["a", "b", "c"]).digest
    assert bare.naming.label(1) == "1"
    assert bare.naming.state_labels(1) == ("0", "1", "2")
    assert WEATHER.naming.state_labels(0) == ("no", "yes")
    with pytest.raises(ModelError, match="the model has numbers for names"):
        bare.with_evidence({"rain": 1})


def test_evidence_by_names_numbers_and_truth():
    truth = WEATHER.with_names(WEATHER.names, {"rain": ("true", "false"), 2: ("n", "y")})
    for evidence in ({"rain": "true"}, {"rain": True}, {0: 0}, {"rain": np.bool_(True)}):
        assert truth.with_evidence(evidence).evidence == {0: 0}
    with pytest.raises(ModelError, match="in state 'True'; it has 'n', 'y'"):
        truth.with_evidence({"wet": True})
    with pytest.raises(ModelError, match="evidence names '0'; the model has 'rain', 'wind', 'wet'"):
        truth.with_evidence({"0": 0})
    places = tz.ising_grid(2, seed=0).with_names([str(divmod(k, 2)) for k in range(4)])
    assert places.with_evidence({(1, 0): 1}).evidence == {2: 1}


def test_digits_in_text_are_numbers_where_no_name_has_any():
    assert WEATHER.naming.numbered({"1": "2", "rain": "0"}, text=True) == {1: 2, 0: 0}
    tens = WEATHER.with_names(["10", "11", "12"], [("1", "2"), ("1", "2", "3"), ("1", "2")])
    assert tens.naming.numbered({"10": "2"}, text=True) == {0: 1}
    for evidence in ({"1": "2"}, {"10": "0"}):
        with pytest.raises(ModelError, match=r"evidence (names|puts)"):
            tens.naming.numbered(evidence, text=True)
