"""Models of other libraries against the inference of the library that they come from.

Each part is skipped where its library is not installed.
"""

from __future__ import annotations

import itertools
import math
import sys
import types
import warnings
from types import SimpleNamespace

import networkx
import numpy as np
import pytest

import tightz as tz
from tests import naive

STATES = {"rain": ["no", "yes"], "wind": ["calm", "breeze", "storm"], "wet": ["dry", "wet"]}


@pytest.fixture(autouse=True)
def _their_warnings_are_theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def posterior(model: tz.FactorGraph, evidence: dict) -> tuple[float, dict[str, np.ndarray]]:
    """log P(evidence) and every marginal by name, by the naive twin alone."""
    seen = model.with_evidence(evidence)
    log_z, marginals = naive.enumerate_model(seen.cardinalities, list(seen.factors), seen.evidence)
    return log_z, {name: marginals[v] for v, name in enumerate(model.names)}


def random_network(seed: int, n: int = 6) -> tz.FactorGraph:
    """Tables with zeros over up to two parents, of two to four states, under names."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 5, size=n)
    factors = []
    for v in range(n):
        parents = sorted(rng.choice(v, size=min(v, int(rng.integers(0, 3))), replace=False))
        shape = (cards[v], *(cards[p] for p in parents))
        table = (
            rng.random(shape) * (rng.random(shape) > 0.2)
            + 1e-3 * (np.arange(cards[v]) == 0)[(...,) + (None,) * len(parents)]
        )
        factors.append(((v, *map(int, parents)), table / table.sum(axis=0)))
    names = [f"node {v}" for v in range(n)]
    states = [[f"s{v}.{k}" for k in range(d)] for v, d in enumerate(cards)]
    return tz.FactorGraph.from_tables(cards, factors, names=names, states=states)


# networkx ------------------------------------------------------------------------------------


def test_a_graph_is_the_model_that_its_attributes_say():
    graph = networkx.Graph()
    graph.add_edge("a", ("b", 1), coupling=0.7, weight=99.0)
    graph.add_edge(("b", 1), 3.5, weight=-1.1)
    graph.add_node("alone", field=0.4)
    graph.nodes["a"]["field"] = -0.3
    model = tz.from_networkx(graph)
    assert model.names == ("a", "('b', 1)", "3.5", "alone")
    assert model.states == (("+1", "-1"),) * 4
    spins = np.array(list(itertools.product([1, -1], repeat=4)))
    a, b, c, alone = spins.T
    weights = 0.7 * a * b - 1.1 * b * c - 0.3 * a + 0.4 * alone
    assert model.log_weight((1 - spins) // 2) == pytest.approx(weights, abs=1e-12)
    assert tz.ising(graph).digest == model.digest
    found, _ = posterior(model, {"a": "+1"})
    assert found == pytest.approx(naive.log_sum_exp(weights[a == 1]), abs=1e-12)


def test_numbers_for_all_and_other_attributes():
    graph = networkx.cycle_graph(4)
    networkx.set_node_attributes(graph, {0: 2.0}, "h")
    networkx.set_edge_attributes(graph, 0.5, "J")
    model = tz.from_networkx(graph, coupling="J", field="h")
    assert model.names is None
    assert model.digest == tz.from_networkx(graph, coupling=0.5, field="h").digest
    matrix = 0.5 * networkx.to_numpy_array(graph)
    assert tz.from_networkx(graph, coupling="J", field=0.25).digest == (
        tz.ising(matrix, 0.25).digest
    )
    assert model.n_factors == 8


def test_nodes_that_are_numbers_in_another_order_keep_their_numbers():
    graph = networkx.Graph()
    graph.add_edge(2, 0, weight=1.0)
    graph.add_edge(0, 1, weight=2.0)
    assert tz.ising(graph).names is None
    assert tz.ising(graph).digest == tz.ising({(0, 2): 1.0, (0, 1): 2.0}).digest
    graph.add_edge(7, 0, weight=3.0)
    model = tz.ising(graph)
    assert model.names == ("2", "0", "1", "7")
    assert model.n_variables == 4


def test_parallel_edges_add_up():
    graph = networkx.MultiGraph()
    for weight in (1.0, 0.5, -0.25):
        graph.add_edge("x", "y", weight=weight)
    graph.add_edge("y", "x", weight=1.0)
    assert tz.ising(graph).factor(2).log_table[0, 0] == 2.25


@pytest.mark.parametrize("states", [2, 3])
def test_a_potts_model_on_a_graph(states):
    graph = networkx.grid_2d_graph(2, 3)
    networkx.set_edge_attributes(graph, {e: 0.1 * k for k, e in enumerate(graph.edges)}, "weight")
    graph.nodes[0, 1]["field"] = np.arange(states)
    model = tz.potts(graph, states)
    assert model.names[1] == "(0, 1)"
    assert model.index((0, 1)) == 1
    x = np.array(list(itertools.product(range(states), repeat=6)))
    place = {node: k for k, node in enumerate(graph.nodes)}
    expected = x[:, 1].astype(float)
    for a, b, weight in graph.edges(data="weight"):
        expected += weight * (x[:, place[a]] == x[:, place[b]])
    assert model.log_weight(x) == pytest.approx(expected, abs=1e-12)


def test_a_directed_graph_is_refused():
    with pytest.raises(tz.errors.ModelError, match=r"DiGraph, whose edges have a direction"):
        tz.from_networkx(networkx.DiGraph([(0, 1)]))


# dimod ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SPIN", "BINARY"])
@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_dimods_exact_solver_agrees(kind, beta):
    dimod = pytest.importorskip("dimod")
    rng = np.random.default_rng(0)
    labels = ["a", ("b", 1), 7, "d", "e"]
    bqm = dimod.BinaryQuadraticModel(
        {v: rng.normal() for v in labels},
        {pair: rng.normal() for pair in itertools.combinations(labels, 2)},
        rng.normal(),
        kind,
    )
    model = tz.from_dimod(bqm, beta=beta)
    assert model.names == ("a", "('b', 1)", "7", "d", "e")
    solved = dimod.ExactSolver().sample(bqm)
    log_z = naive.log_sum_exp(-beta * solved.record.energy)
    assert posterior(model, {})[0] == pytest.approx(log_z, abs=1e-9)
    assert tz.log_partition(model).estimate == pytest.approx(log_z, abs=1e-9)
    order = [list(solved.variables).index(v) for v in labels]
    values = solved.record.sample[:, order]
    states = (1 - values) // 2 if kind == "SPIN" else values
    assert model.log_weight(states) == pytest.approx(-beta * solved.record.energy, abs=1e-9)
    lowest = solved.first.sample
    best = model.log_weight(states).argmax()
    value = "+1" if lowest["a"] == 1 else "-1"
    assert model.naming.state_labels(0)[states[best][0]] == (
        value if kind == "SPIN" else str(lowest["a"])
    )


def test_a_model_comes_back_from_dimod():
    dimod = pytest.importorskip("dimod")
    h, couplings, offset = {"x": 0.5, "y": -1.0}, {("x", "y"): 0.25}, 1.5
    bqm = dimod.BinaryQuadraticModel.from_ising(h, couplings, offset)
    again = tz.to_ising(tz.from_dimod(bqm))
    assert again[0] == pytest.approx(h)
    assert {frozenset(k): v for k, v in again[1].items()} == pytest.approx(
        {frozenset(k): v for k, v in couplings.items()}
    )
    assert again[2] == pytest.approx(offset)


# scikit-learn --------------------------------------------------------------------------------


def trained(columns: list[str] | None = None, *, hidden: int = 3):
    """A BernoulliRBM after a few steps on random bits, and the bits."""
    networks = pytest.importorskip("sklearn.neural_network")
    rows = (np.random.default_rng(0).random((40, 5)) < 0.4).astype(float)
    machine = networks.BernoulliRBM(n_components=hidden, n_iter=20, learning_rate=0.3)
    machine.random_state = 0
    if columns:
        return machine.fit(pytest.importorskip("pandas").DataFrame(rows, columns=columns)), rows
    return machine.fit(rows), rows


def test_sklearns_free_energy_is_that_of_the_model():
    machine, _ = trained()
    model = tz.from_sklearn_rbm(machine)
    assert model.names is None
    visible = np.array(list(itertools.product([0, 1], repeat=5)))
    free = machine._free_energy(visible.astype(float))
    for row, energy in zip(visible, free, strict=True):
        given = dict(enumerate(row.tolist()))
        assert posterior(tz_names(model), given)[0] == pytest.approx(-energy, abs=1e-9)
    assert tz.exact(model).log_z == pytest.approx(naive.log_sum_exp(-free), abs=1e-9)


def tz_names(model: tz.FactorGraph) -> tz.FactorGraph:
    return model.with_names([str(v) for v in range(model.n_variables)])


def test_sklearns_score_is_that_of_the_model():
    """Its pseudo-likelihood flips one unit at random: the same flips give the same score here."""
    machine, rows = trained(["p", "q", "r", "s", "t"])
    model = tz.from_sklearn_rbm(machine)
    assert model.names == ("p", "q", "r", "s", "t", "h0", "h1", "h2")
    flips = np.random.RandomState(0).randint(0, 5, len(rows))  # as sklearn draws
    expected = machine.score_samples(rows)
    for row, at, score in zip(rows.astype(int), flips, expected, strict=True):
        other = row.copy()
        other[at] = 1 - other[at]
        here, there = (
            posterior(model, dict(zip(model.names, given.tolist(), strict=False)))[0]
            for given in (row, other)
        )
        assert -5.0 * math.log1p(math.exp(there - here)) == pytest.approx(score, abs=1e-8)


def test_an_rbm_that_is_not_fitted_is_refused():
    networks = pytest.importorskip("sklearn.neural_network")
    with pytest.raises(tz.errors.ModelError, match=r"expected a fitted one: rbm\.fit\(X\)"):
        tz.from_sklearn_rbm(networks.BernoulliRBM())


# pyAgrum -------------------------------------------------------------------------------------


def gum_network(gum, model: tz.FactorGraph):
    """The same network in pyAgrum, entry by entry."""
    network = gum.BayesNet()
    for v, name in enumerate(model.names):
        network.add(gum.LabelizedVariable(name, name, list(model.states[v])))
    for scope, _ in model.factors:
        for parent in scope[1:]:
            network.addArc(model.names[parent], model.names[scope[0]])
    for scope, log_table in model.factors:
        table = network.cpt(model.names[scope[0]])
        at = gum.Instantiation(table)
        for states in itertools.product(*(range(d) for d in log_table.shape)):
            for v, state in zip(scope, states, strict=True):
                at.chgVal(model.names[v], state)
            table[at] = float(np.exp(log_table[states]))
    return network


@pytest.mark.parametrize("seed", range(6))
def test_pyagrums_lazy_propagation_agrees(seed):
    gum = pytest.importorskip("pyagrum")
    ours = random_network(seed)
    theirs = gum_network(gum, ours)
    model = tz.from_pyagrum(theirs)
    assert model.names == ours.names
    assert model.states == ours.states
    assert posterior(model, {})[0] == pytest.approx(0.0, abs=1e-9)
    rng = np.random.default_rng(seed)
    state = ours.naming.state_labels(5)[int(rng.integers(ours.cardinalities[5]))]
    evidence = {"node 5": state}
    inference = gum.LazyPropagation(theirs)
    inference.setEvidence(evidence)
    inference.makeInference()
    log_p, marginals = posterior(model, evidence)
    assert math.exp(log_p) == pytest.approx(inference.evidenceProbability(), abs=1e-9)
    for name in ours.names:
        assert marginals[name] == pytest.approx(inference.posterior(name).toarray(), abs=1e-9)
    result = tz.log_partition(model.with_evidence(evidence))
    for v, name in enumerate(ours.names):
        assert result.marginals[v] == pytest.approx(inference.posterior(name).toarray(), abs=1e-9)


def test_a_markov_random_field_of_pyagrum():
    gum = pytest.importorskip("pyagrum")
    network = gum_network(gum, random_network(3))
    field = gum.MarkovRandomField.fromBN(network)
    model = tz.from_pyagrum(field)
    inference = gum.ShaferShenoyMRFInference(field)
    inference.setEvidence({"node 0": "s0.0"})
    inference.makeInference()
    _, marginals = posterior(model, {"node 0": "s0.0"})
    for name in model.names:
        assert marginals[name] == pytest.approx(inference.posterior(name).toarray(), abs=1e-9)


def test_tables_that_pyagrum_computes_and_range_variables():
    gum = pytest.importorskip("pyagrum")
    network = gum.BayesNet()
    for name in "ab":
        network.add(gum.LabelizedVariable(name, name, 2))
    network.add(gum.RangeVariable("count", "", 0, 2))
    network.addNoisyOR(gum.LabelizedVariable("or", "or", 2), 0.1)
    network.addWeightedArc("a", "or", 0.7)
    network.addWeightedArc("b", "or", 0.2)
    network.addArc("or", "count")
    for name in ("a", "b", "count"):
        network.generateCPT(name)
    model = tz.from_pyagrum(network)
    assert model.states[2] == ("0", "1", "2")
    inference = gum.LazyPropagation(network)
    inference.setEvidence({"count": 2})
    inference.makeInference()
    log_p, marginals = posterior(model, {"count": "2"})
    assert math.exp(log_p) == pytest.approx(inference.evidenceProbability(), abs=1e-9)
    assert marginals["a"] == pytest.approx(inference.posterior("a").toarray(), abs=1e-9)


# pgmpy ---------------------------------------------------------------------------------------


def marginals_of(theirs, evidence: dict, names) -> dict[str, dict]:
    """pgmpy's own posterior of each variable, by the names of its states."""
    from pgmpy.inference import VariableElimination

    engine, out = VariableElimination(theirs), {}
    for name in names:
        if name not in evidence:
            table = engine.query([name], evidence=evidence, show_progress=False)
            values = table.values / table.values.sum()  # Markov networks are left unnormalised
            out[name] = dict(zip(table.state_names[name], values, strict=True))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_pgmpys_variable_elimination_agrees_there_and_back(seed):
    pytest.importorskip("pgmpy")
    ours = random_network(seed)
    theirs = tz.to_pgmpy(ours)
    assert theirs.check_model()
    again = tz.from_pgmpy(theirs)
    assert sorted(again.names) == sorted(ours.names)
    assert {n: again.states[again.index(n)] for n in ours.names} == dict(
        zip(ours.names, ours.states, strict=True)
    )
    evidence = {"node 5": "s5.1", "node 0": "s0.0"}
    expected = marginals_of(theirs, evidence, ours.names)
    for model in (ours, again):
        _, found = posterior(model, evidence)
        for name, table in expected.items():
            labels = model.naming.state_labels(model.index(name))
            assert found[name] == pytest.approx([table[s] for s in labels], abs=1e-9)
    assert posterior(again, evidence)[0] == pytest.approx(posterior(ours, evidence)[0], abs=1e-9)


def test_each_table_of_pgmpy_may_list_states_in_its_own_order():
    pytest.importorskip("pgmpy")
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    theirs = DiscreteBayesianNetwork([("rain", "wet"), ("wind", "wet")])
    rng = np.random.default_rng(0)
    wet = rng.dirichlet([1, 1], size=6).T
    theirs.add_cpds(
        TabularCPD("rain", 2, [[0.8], [0.2]], state_names={"rain": ["no", "yes"]}),
        TabularCPD("wind", 3, [[0.5], [0.3], [0.2]], state_names={"wind": STATES["wind"]}),
        TabularCPD(
            "wet",
            2,
            wet,
            evidence=["rain", "wind"],
            evidence_card=[2, 3],
            state_names={
                "wet": STATES["wet"],
                "rain": ["yes", "no"],
                "wind": ["storm", "calm", "breeze"],
            },
        ),
    )
    model = tz.from_pgmpy(theirs)
    assert dict(zip(model.names, map(list, model.states), strict=True)) == STATES
    _, found = posterior(model, {"rain": "yes", "wind": "storm"})
    assert found["wet"] == pytest.approx(wet[:, 0], abs=1e-12)
    _, found = posterior(model, {"rain": "no", "wind": "breeze"})
    assert found["wet"] == pytest.approx(wet[:, 5], abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_a_markov_network_there_and_back(seed):
    pytest.importorskip("pgmpy")
    rng = np.random.default_rng(seed)
    ours = tz.FactorGraph(
        [2, 3, 2, 4],
        [((0, 1), rng.normal(size=(2, 3))), ((1, 2), rng.normal(size=(3, 2))), ((), 0.7)],
        names=["a", "b", "c", "free"],
    )
    theirs = tz.to_pgmpy(ours)
    assert theirs.check_model()
    log_z = posterior(ours, {})[0]
    assert math.log(theirs.get_partition_function()) == pytest.approx(log_z, abs=1e-9)
    others = [theirs, theirs.to_factor_graph()]
    if seed % 2:  # pgmpy's junction trees need a connected model
        ours = tz.FactorGraph(ours.cardinalities[:3], ours.factors, names=ours.names[:3])
        theirs = tz.to_pgmpy(ours)
        others = [theirs.to_junction_tree()]
    for other in others:
        model = tz.from_pgmpy(other)
        log_z_there, found = posterior(model, {"c": "1"})
        assert log_z_there == pytest.approx(posterior(ours, {"c": 1})[0], abs=1e-9)
        for name, table in marginals_of(theirs, {"c": "1"}, ours.names).items():
            labels = model.naming.state_labels(model.index(name))
            assert found[name] == pytest.approx([table[s] for s in labels], abs=1e-9)


def test_models_that_pgmpy_cannot_hold_are_refused():
    pytest.importorskip("pgmpy")
    model = tz.ising_grid(2, seed=0)
    with pytest.raises(tz.errors.ModelError, match=r"has evidence.*model\.without_evidence\(\)"):
        tz.to_pgmpy(model.with_evidence({0: 1}))
    assert len(tz.to_pgmpy(model.with_evidence({0: 1}).condition()).nodes) == 3
    with pytest.raises(tz.errors.ModelError, match="beyond 700"):
        tz.to_pgmpy(tz.ising({(0, 1): 900.0}))


def test_what_pgmpy_left_unfinished_is_refused():
    pytest.importorskip("pgmpy")
    from pgmpy.models import DiscreteBayesianNetwork, DiscreteMarkovNetwork

    with pytest.raises(tz.errors.ModelError, match="'a' has no table"):
        tz.from_pgmpy(DiscreteBayesianNetwork([("a", "b")]))
    with pytest.raises(tz.errors.ModelError, match="'a' is in no factor"):
        tz.from_pgmpy(DiscreteMarkovNetwork([("a", "b")]))


# PyTorch -------------------------------------------------------------------------------------


class _Tensor:
    """What a tensor of PyTorch does on its way to numpy, in that order."""

    def __init__(self, values, steps=("detach", "cpu", "numpy")):
        self.values, self.steps = values, list(steps)

    def __getattr__(self, name):
        assert name == self.steps[0]
        rest = self.steps[1:]
        return lambda: _Tensor(self.values, rest) if rest else self.values


STATE = {
    "W": np.arange(6.0).reshape(2, 3),
    "visible_bias": np.array([0.5, -1.0]),
    "hidden_bias": np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize(
    "names",
    [
        ("W", "v_bias", "h_bias"),
        ("weight", "vbias", "hbias"),
        ("rbm.weights", "rbm.b_v", "rbm.b_h"),
        ("weight_matrix", "bv", "bh"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_weights_by_name_are_an_rbm_whichever_way_round(names, turned):
    w, b, c = STATE.values()
    state = dict(zip(names, (_Tensor(w.T if turned else w), _Tensor(b), c), strict=True))
    module = types.SimpleNamespace(state_dict=lambda: state)
    expected = tz.rbm(w, b, c).digest
    assert tz.from_state_dict(state).digest == tz.from_state_dict(module).digest == expected
    assert tz.from_state_dict(state, transposed=turned).digest == expected


def test_square_weights_must_say_which_way_round_they_are():
    state = {"W": np.arange(4.0).reshape(2, 2), "v_bias": np.zeros(2), "h_bias": np.ones(2)}
    with pytest.raises(tz.errors.ModelError, match="W is 2 x 2, so nothing tells"):
        tz.from_state_dict(state)
    turned = tz.from_state_dict(state, transposed=True)
    assert turned.digest == tz.rbm(state["W"].T, np.zeros(2), np.ones(2)).digest
    with pytest.raises(tz.errors.ModelError, match="has no array visible_bias; it holds W"):
        tz.from_state_dict({"W": state["W"], "hidden_bias": np.ones(2), "vbiases": np.ones(2)})


@pytest.mark.parametrize(
    "others",
    [("log_sigma",), ("sigma",), ("logvar",), ("L",), ("W2", "h2_bias"), ("U", "y_bias"),
     ("scale",), ("beta",), ("bn.running_var",)],
)  # fmt: skip
def test_weights_that_are_not_understood_are_refused(others):
    state = {**STATE, **{name: np.ones(1) for name in others}}
    with pytest.raises(tz.errors.ModelError) as caught:
        tz.from_state_dict(state)
    for name in others:
        assert repr(name.rpartition(".")[2]) in str(caught.value)
    last = [name.rpartition(".")[2] for name in others]
    assert tz.from_state_dict(state, ignore=last).digest == tz.from_state_dict(STATE).digest


class _Half:
    """A tensor of bfloat16, which numpy has not; `dense` is what float() gives."""

    def __init__(self, dense):
        self.dense = dense

    def numpy(self):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def float(self):
        return self.dense


def test_half_precision_is_widened_or_refused():
    state = {name: _Half(_Tensor(values, ["numpy"])) for name, values in STATE.items()}
    assert tz.from_state_dict(state).digest == tz.from_state_dict(STATE).digest
    sparse = _Half(_Half(None))
    with pytest.raises(tz.errors.ModelError, match="W is a _Half that is no array of numbers"):
        tz.from_state_dict({**STATE, "W": sparse})


# All -----------------------------------------------------------------------------------------

BRIDGES = {
    "from_networkx": "networkx",
    "from_pgmpy": "pgmpy",
    "from_pyagrum": "pyagrum",
    "from_sklearn_rbm": "scikit-learn",
    "from_dimod": "dimod",
}


@pytest.mark.parametrize("name", BRIDGES)
@pytest.mark.parametrize("bad", [None, "net.bif", 3, {}, tz.ising_grid(2, seed=0)], ids=type)
def test_another_thing_is_refused_with_the_package_to_install(name, bad):
    with pytest.raises(tz.errors.ModelError, match=rf"expected .*pip install {BRIDGES[name]}"):
        getattr(tz, name)(bad)


def test_without_pgmpy_its_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pgmpy", None)
    monkeypatch.setitem(sys.modules, "pgmpy.models", None)
    with pytest.raises(tz.errors.MissingExtraError, match="pip install pgmpy"):
        tz.to_pgmpy(tz.ising_grid(2, seed=0))


@pytest.mark.parametrize(
    ("module", "name"),
    [("pgmpy", "from_pgmpy"), ("pyagrum", "from_pyagrum"), ("dimod", "from_dimod")],
)
def test_a_function_that_takes_a_model_names_the_bridge(module, name):
    thing = type("Network", (SimpleNamespace,), {"__module__": f"{module}.models.deep"})()
    with pytest.raises(tz.errors.ModelError, match=rf"tz\.{name}\("):
        tz.log_partition(thing)
