"""Models of other libraries, where these are installed: names and states are kept.

Objects are known by what they have, so that nothing is imported to read one; only `to_pgmpy`, which
makes objects of pgmpy, imports it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError, ModelError
from tightz.models.builders import rbm as rbm_of
from tightz.models.builders import spins
from tightz.models.couplings import coupled_graph, is_graph, names_of
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.array_files import read_weights, renamed
from tightz.models.formats.bif_writer import network_tables
from tightz.models.formats.quadratic import from_ising, from_qubo
from tightz.models.given import GraphOrPath, given_model
from tightz.models.inputs import as_number, real_array, shown

_EXPONENT = 700.0
"""exp(x) of a larger |x| may leave the doubles."""

_COLUMNS = 0.01
"""How far the columns of a conditional table may be from 1, as in .bif files and in pgmpy."""


def from_networkx(
    graph: Any,
    *,
    coupling: str | float | None = None,
    field: str | float = "field",
    name: str = "graph",
) -> FactorGraph:
    """The Ising model on a networkx graph: log p~(s) = sum J_ij s_i s_j + sum h_i s_i.

    coupling   the attribute of the edges that is J, or one number for all; by default `coupling`,
               and where an edge has none, `weight`. Parallel edges of a MultiGraph add up
    field      the attribute of the nodes that is h, 0 where a node has none, or one number for all

    Nodes 0 to n-1 are the variables of these numbers; other nodes, of any kind, become names
    (str of the node) in the graph's order. `tz.potts(graph, states)` makes a Potts model.
    """
    if not is_graph(graph):
        raise _other("from_networkx", graph, "a networkx graph", "networkx")
    attribute = field if isinstance(field, str) else None
    found = coupled_graph(graph, coupling, attribute)
    return spins(found, None if attribute else as_number(field, "field"), name=name)


def from_dimod(bqm: Any, *, beta: float = 1.0, name: str = "bqm") -> FactorGraph:
    """A dimod BinaryQuadraticModel of spins or bits, p~ = exp(-beta * energy).

    dimod has energies, which are low where a state is likely: couplings and fields change sign.
    Of a spin, state 0 is +1 and state 1 is -1; of a bit, state k is k. Any object with linear,
    quadratic, offset and vartype will do.
    """
    missing = [a for a in ("linear", "quadratic", "offset", "vartype") if not hasattr(bqm, a)]
    if missing:
        raise ModelError(
            f"{type(bqm).__name__} has no {', '.join(missing)}; expected a binary quadratic model "
            "with linear, quadratic, offset and vartype (pip install dimod)"
        )
    kind = str(getattr(bqm.vartype, "name", bqm.vartype)).upper()
    linear, quadratic = dict(bqm.linear), dict(bqm.quadratic)
    offset = as_number(bqm.offset, "offset")
    if kind == "SPIN":
        return from_ising(linear, quadratic, offset=offset, beta=beta, name=name)
    if kind != "BINARY":
        raise ModelError(f"vartype is {bqm.vartype!r}; expected SPIN or BINARY")
    both = {(k, k): value for k, value in linear.items()}
    for pair, value in quadratic.items():
        both[pair] = both.get(pair, 0.0) + value
    return from_qubo(both, offset=offset, beta=beta, name=name)


def from_sklearn_rbm(rbm: Any, *, name: str = "rbm") -> FactorGraph:
    """A BernoulliRBM of scikit-learn that was fitted: visible units first, then the hidden ones.

    Its free energy F(v) is -log of p~ summed over the hidden units. Where it was fitted to a
    DataFrame, visible units have the names of the columns, hidden ones are h0, h1, ...
    """
    parts = ("components_", "intercept_visible_", "intercept_hidden_")
    if not all(hasattr(rbm, part) for part in parts):
        if hasattr(rbm, "fit") and hasattr(rbm, "n_components"):
            raise ModelError(f"{shown(rbm)} has no {parts[0]}; expected a fitted one: rbm.fit(X)")
        raise _other("from_sklearn_rbm", rbm, "a BernoulliRBM of sklearn", "scikit-learn")
    model = rbm_of(
        rbm.components_,
        np.atleast_1d(rbm.intercept_visible_),
        np.atleast_1d(rbm.intercept_hidden_),
        transposed=True,
        name=name,
    )
    if not hasattr(rbm, "feature_names_in_"):
        return model
    hidden = model.n_variables - len(rbm.feature_names_in_)
    return model.with_names(names_of([*rbm.feature_names_in_, *(f"h{j}" for j in range(hidden))]))


def from_state_dict(
    state: Any,
    *,
    transposed: bool | None = None,
    ignore: Collection[str] = (),
    name: str = "rbm",
) -> FactorGraph:
    """An RBM of binary units from its weights by name, as a PyTorch module's `state_dict()` has.

    W (or weight, weights, weight_matrix), visible_bias (v_bias, vbias, bv, b_v) and hidden_bias
    (h_bias, hbias, bh, b_h): tensors or arrays, also after a prefix (rbm.W). A module will do
    itself. The lengths of the biases tell which way round W is; where they are equal say
    `transposed` (True: W is (hidden, visible), as nn.Linear has it).

    Anything else, such as `log_sigma` or a second layer, may be a further term of the model and is
    refused. What is known to be no part of it, such as a count of epochs, is named in `ignore`.
    """
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise ModelError(
            f"from_state_dict was given {shown(state)}; expected weights by name, such as "
            "module.state_dict() or {'W': W, 'v_bias': b, 'h_bias': c}"
        )
    arrays = {str(key).rpartition(".")[2]: value for key, value in state.items()}
    if len(arrays) < len(state):
        raise ModelError(
            f"the state dict holds two arrays of one name after their prefixes: "
            f"{', '.join(map(str, state))[:80]}; expected the part of one RBM"
        )
    arrays = {key: _as_array(value, key) for key, value in renamed(arrays).items()}
    return rbm_of(*read_weights(arrays, "the state dict", transposed, ignore), name=name)


def _as_array(value: Any, key: str) -> Any:
    """A tensor as an array; anything else as it is."""
    for step in ("detach", "cpu"):
        value = getattr(value, step)() if hasattr(value, step) else value
    if not hasattr(value, "numpy"):
        return value
    try:
        return value.numpy()
    except TypeError as error:  # numpy has no bfloat16; float32 holds each of its numbers
        try:
            return value.float().numpy()
        except (AttributeError, TypeError):
            raise ModelError(
                f"{key} is {shown(value)} that is no array of numbers ({error}); expected a dense "
                "one of real numbers (the state dict)"
            ) from None


def from_pyagrum(network: Any, *, name: str = "pyagrum") -> FactorGraph:
    """A BayesNet or a MarkovRandomField of pyAgrum, variables in the order of its nodes."""
    if not all(hasattr(network, part) for part in ("nodes", "variable")) or not (
        hasattr(network, "cpt") or hasattr(network, "factors")
    ):
        raise _other("from_pyagrum", network, "a pyagrum BayesNet or MarkovRandomField", "pyagrum")
    nodes = sorted(network.nodes())
    variables = {network.variable(v).name(): network.variable(v).labels() for v in nodes}
    tables = (
        [network.cpt(v) for v in nodes]
        if hasattr(network, "cpt")
        else [network.factor(scope) for scope in network.factors()]
    )
    # Not toarray(), which returns garbage for tables that are functions (a noisy-or in 3.3.1). The
    # first of a table's variables is the last axis.
    pairs = [(list(t.names), np.array(t[:], dtype=np.float64).T) for t in tables]
    return _model(variables, pairs, name)


def from_pgmpy(network: Any, *, name: str = "pgmpy") -> FactorGraph:
    """A discrete BayesianNetwork, MarkovNetwork, FactorGraph or JunctionTree of pgmpy.

    Each table of pgmpy has the names of the states in an order of its own; here they are those of
    the variable's own table, or of the first that names it.
    """
    if hasattr(network, "get_cpds"):
        tables = [_cpd(network, node) for node in network.nodes()]
    elif hasattr(network, "get_factors"):
        tables = list(network.get_factors())
    else:
        raise _other("from_pgmpy", network, "a Bayesian or Markov network of pgmpy", "pgmpy")
    variables: dict[Any, Sequence[Any]] = {}
    for table in tables:
        if not hasattr(table, "values") or not hasattr(table, "state_names"):
            raise ModelError(
                f"{shown(table)} is no table of numbers; expected discrete variables, TabularCPD "
                "or DiscreteFactor"
            )
        own = table.variables[:1] if hasattr(network, "get_cpds") else table.variables
        for variable in own:
            variables.setdefault(variable, list(table.state_names[variable]))
    pairs = []
    for table in tables:
        values = real_array(table.values, f"the table of {list(table.variables)}")
        for axis, variable in enumerate(table.variables):
            values = _in_order(values, axis, variable, table.state_names, variables[variable])
        pairs.append((list(table.variables), values))
    missing = [v for v in _variable_nodes(network) if v not in variables]
    if missing:
        raise ModelError(
            f"the variable {missing[0]!r} is in no factor, so nothing tells its states; expected a "
            "factor for each: network.add_factors(...)"
        )
    return _model(variables, pairs, name)


def to_pgmpy(model: GraphOrPath) -> Any:
    """The model in pgmpy: a Bayesian network where its tables are one, else a Markov network.

    A network has one table for each variable that is its distribution given the others in it,
    without a cycle. Evidence is nothing that pgmpy's models have: `model.without_evidence()` takes
    it off, `model.condition()` takes the observed variables out.
    """
    graph = given_model(model, "to_pgmpy", only="FactorGraph")
    if graph.evidence:
        raise ModelError(
            "the model has evidence, which models of pgmpy have not; expected one without: "
            "tz.to_pgmpy(model.without_evidence()), with the evidence given to pgmpy's query"
        )
    finite = np.isfinite(graph.log_tables)
    # constants go into the first table
    constants = np.repeat(graph.arities == 0, np.diff(graph.table_ptr)) & finite
    constant = abs(float(graph.log_tables[constants].sum()))
    if constant + np.abs(graph.log_tables[finite & ~constants]).max(initial=0.0) > _EXPONENT:
        raise ModelError(
            f"a log potential is beyond {_EXPONENT:g}, and pgmpy multiplies potentials themselves; "
            "expected smaller ones: take a constant off the table"
        )
    try:
        import pgmpy.models as theirs
        from pgmpy.factors.discrete import DiscreteFactor, TabularCPD
    except ImportError as error:
        raise MissingExtraError("to_pgmpy needs pgmpy: pip install pgmpy") from error
    labels = [graph.naming.label(v) for v in range(graph.n_variables)]
    states = {label: list(graph.naming.state_labels(v)) for v, label in enumerate(labels)}
    tables = network_tables(graph, slack=_COLUMNS)
    if isinstance(tables, str):
        made = getattr(theirs, "DiscreteMarkovNetwork", None) or theirs.MarkovNetwork
        return _markov(made(), graph, labels, states, DiscreteFactor)
    made = getattr(theirs, "DiscreteBayesianNetwork", None) or theirs.BayesianNetwork
    network = made()
    network.add_nodes_from(labels)
    for scope, table in tables:
        child, *parents = (labels[v] for v in scope)
        network.add_edges_from((parent, child) for parent in parents)
        network.add_cpds(
            TabularCPD(
                child,
                len(table),
                table.reshape(len(table), -1),
                evidence=parents or None,
                evidence_card=list(table.shape[1:]) or None,
                state_names={label: states[label] for label in (child, *parents)},
            )
        )
    return network


def _markov(
    network: Any, model: FactorGraph, labels: list[str], states: dict[str, Any], factor_of: Any
) -> Any:
    network.add_nodes_from(labels)
    constant = float(sum(t for scope, t in model.factors if not scope))
    alone = set(range(model.n_variables)) - set(model.scope_vars.tolist())
    unit = [((v,), np.zeros(int(model.cardinalities[v]))) for v in sorted(alone)]
    factors = []
    for scope, table in itertools.chain(model.factors, unit):
        if scope:
            names = [labels[v] for v in scope]
            # pgmpy has no factor without a variable: a constant goes into the first one.
            values, constant = np.exp(table + constant), 0.0
            network.add_edges_from(itertools.combinations(names, 2))
            theirs = {label: states[label] for label in names}
            factors.append(factor_of(names, values.shape, values, state_names=theirs))
    network.add_factors(*factors)
    return network


def _model(
    variables: Mapping[Any, Sequence[Any]], tables: Iterable[tuple[list[Any], NDArray]], name: str
) -> FactorGraph:
    """A model of tables on the ordinary scale, from labels to numbers."""
    number = {variable: v for v, variable in enumerate(variables)}
    return FactorGraph.from_tables(
        [len(states) for states in variables.values()],
        [(tuple(number[v] for v in scope), table) for scope, table in tables],
        name=name,
        names=names_of(list(variables)),
        states=[tuple(map(str, states)) for states in variables.values()],
    )


def _cpd(model: Any, node: Any) -> Any:
    table = model.get_cpds(node)
    if table is None:
        raise ModelError(
            f"the variable {node!r} has no table; expected one for each: model.add_cpds(...)"
        )
    return table


def _in_order(
    values: NDArray, axis: int, variable: Any, theirs: Mapping[Any, Any], states: Sequence[Any]
) -> NDArray:
    """The entries in the order of `states` along the axis of a variable."""
    listed = list(theirs[variable])
    if listed == list(states):
        return values
    if len(listed) != len(states) or set(listed) != set(states):
        raise ModelError(
            f"the states of {variable!r} are {list(states)[:8]} in one table and {listed[:8]} in "
            "another; expected the same in all"
        )
    moved: NDArray = np.take(values, [listed.index(state) for state in states], axis=axis)
    return moved


def _variable_nodes(network: Any) -> list[Any]:
    """The nodes of a network of pgmpy that must be variables of some table."""
    nodes = list(network.nodes())
    if hasattr(network, "get_variable_nodes"):  # other nodes of a factor graph are factors
        return [node for node in nodes if not network.degree(node)]
    if hasattr(network, "get_factors") and all(isinstance(node, tuple) for node in nodes):
        return []  # the nodes of a junction tree are cliques
    return nodes


def _other(where: str, value: Any, expected: str, package: str) -> ModelError:
    return ModelError(
        f"{where} was given {shown(value)}; expected {expected} (pip install {package})"
    )
