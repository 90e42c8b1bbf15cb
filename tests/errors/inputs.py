"""What is said about arguments of the wrong kind, whichever builder or reader they come to."""

from __future__ import annotations

import networkx
import numpy as np
import scipy.sparse

import tightz as tz
from tests.errors.table import Case
from tightz.errors import ModelError, ParameterError
from tightz.models import SpinPolynomial
from tightz.models.formats.quadratic import from_qubo

GRID = tz.ising_grid(3, seed=0)
SPINS = SpinPolynomial.from_factor_graph(GRID)
NAN = float("nan")


def _sparse(rows):
    return scipy.sparse.csr_array(np.array(rows, dtype=float))


class Table:
    """What a DataFrame of two coupled variables has, as far as it is asked."""

    def __init__(self, index, columns):
        self.index, self.columns = list(index), list(columns)

    def __array__(self, dtype=None, copy=None):
        return np.array([[0.0, 1.0], [1.0, 0.0]])


def _named_graph():
    graph = networkx.Graph()
    graph.add_edge("a", "b", weight=1.0)
    graph.nodes["a"]["field"] = 0.5
    return graph


def _square(tmp):
    np.savez(
        tmp / "r.npz", W=[[0.0, 1.0], [2.0, 0.0]], visible_bias=np.zeros(2), hidden_bias=np.zeros(2)
    )
    tz.read(tmp / "r.npz")


def _evidence(tmp):
    path = tmp / "n.bif"
    tz.write(tz.FactorGraph.from_tables([2], [((0,), [0.5, 0.5])]), path)
    tz.read(path, [1])


TEXTS = [
    (
        "SpinPolynomial.from_factor_graph was given a str, 'grid.uai'; expected a tz.FactorGraph: "
        "read the file first: tz.read(path)",
        lambda: SpinPolynomial.from_factor_graph("grid.uai"),
    ),
    (
        "evidence on variable 0 is 0.5; expected the number of a state, a whole number >= 0",
        lambda: tz.FactorGraph([2], evidence={0: 0.5}),
    ),
    (
        "factor 0: a variable is 0.9; expected the number of a variable, a whole number >= 0",
        lambda: tz.FactorGraph([2], [((0.9,), [0.0, 1.0])]),
    ),
    (
        "evidence is a list; expected a mapping variable -> state, such as {0: 1}",
        lambda: GRID.with_evidence([0]),
    ),
    (
        "factors are an int, 3; expected a list of pairs (scope, table), such as "
        "[((0, 1), [[1, 2], [3, 4]])]",
        lambda: tz.FactorGraph([2], 3),
    ),
    (
        "factor 0 is an int, 3; expected a pair (scope, table), such as ((0, 1), [[1, 2], [3, 4]])",
        lambda: tz.FactorGraph([2], [3]),
    ),
    (
        "factor 0 has the scope 1; expected a sequence of variables, such as (0, 1)",
        lambda: tz.FactorGraph([2], [(1, [0.0, 0.0])]),
    ),
    (
        "states[0, 2] is -1; variable 2 has states 0 to 1",
        lambda: GRID.log_weight([0, 0, -1, 0, 0, 0, 0, 0, 0]),
    ),
    (
        "spins have shape (1, 2) and type int64; expected rows of 9 numbers +1 or -1",
        lambda: SPINS.log_weight([1, -1]),
    ),
    (
        "fields name variable 5; the couplings have variables 0 to 1",
        lambda: tz.ising(np.zeros((2, 2)), {5: 1.0}),
    ),
    (
        "W is a sparse matrix; expected a dense array here: .toarray() makes one",
        lambda: tz.rbm(scipy.sparse.eye(2), [0, 0], [0, 0]),
    ),
    (
        "couplings has 2 masked entries; expected a number in each: .filled(value) puts one there",
        lambda: tz.ising(np.ma.masked_equal([[0.0, 1.0], [1.0, 0.0]], 1.0)),
    ),
    (
        "the log table of factor 0 is a list that is no array of numbers (...); expected numbers "
        "in rows of equal length",
        lambda: tz.FactorGraph([2, 2], [((0, 1), [[0.0, 1.0], [0.0]])]),
    ),
    (
        "the table of factor 0 holds complex numbers; expected real ones. Pass its .real if the "
        "rest is known to be zero",
        lambda: tz.FactorGraph.from_tables([2], [((0,), [1, 1j])]),
    ),
    ("states[1] is 0.5; expected whole numbers", lambda: GRID.log_weight([0, 0.5])),
    (
        "fields has shape (2, 2); expected a vector: .ravel() makes one",
        lambda: tz.ising({(0, 1): 1.0}, np.zeros((2, 2))),
    ),
    (
        "coupling range is (nan, nan); expected finite (low, high) with low <= high, or one number "
        "for all",
        lambda: tz.ising_grid(2, coupling=NAN),
    ),
    (
        "couplings have shape (1, 2); expected a square matrix, or a mapping such as {(0, 1): 0.5}",
        lambda: tz.potts([[0, 1]], 3),
    ),
    (
        "couplings name '01'; expected pairs of variables such as (0, 1)",
        lambda: tz.ising({"01": 1.0}),
    ),
    (
        "couplings name the pair (0, 1) again as (1, 0); expected each pair once, since a "
        "symmetric matrix counts it once (tz.from_ising adds the two up)",
        lambda: tz.ising({(0, 1): 1.0, (1, 0): 1.0}),
    ),
    (
        "couplings have shape (2, 3); expected a square matrix, or a mapping such as {(0, 1): 0.5}",
        lambda: tz.ising(_sparse([[0, 1, 0], [0, 0, 1]])),
    ),
    (
        "couplings[0, 1] is nan; expected a finite number",
        lambda: tz.ising(_sparse([[0, NAN], [0, 0]])),
    ),
    (
        "couplings[1, 1] is 3.0; expected 0 on the diagonal, since a variable always agrees with "
        "itself: np.fill_diagonal(J, 0) or J.setdiag(0) clears it",
        lambda: tz.ising(_sparse([[0, 1], [1, 3]])),
    ),
    (
        "couplings[0, 1] is 1.0 and couplings[1, 0] is 2.0: the matrix is neither symmetric nor a "
        "triangle; expected each pair once or the same value at both places: np.triu(J, 1) or "
        "scipy.sparse.triu(J, 1) keeps the upper half",
        lambda: tz.ising(_sparse([[0, 1], [2, 0]])),
    ),
    (
        "W is 2 x 2, so nothing tells whether its rows are visible or hidden units; expected a "
        "file of tz.write, which says so, or tz.read(path, transposed=False) where W[i, j] "
        "joins visible i and hidden j, else True; on the command line --rbm-rows visible or hidden "
        "(TMP/r.npz)",
        _square,
    ),
    (
        "the path is None; expected the name of a file, a str or a Path",
        lambda: tz.read(None),
    ),
    (
        "marginals are an int, 3; expected one vector of probabilities a variable",
        lambda: tz.write(3, "x.MAR"),
    ),
    (
        "evidence is a list; expected the name of a file or a mapping of variables to states, such "
        "as {3: 1} or {'rain': 'yes'}",
        _evidence,
    ),
    (
        "Q is a list; expected a mapping of labels to numbers (tz.ising takes matrices)",
        lambda: from_qubo([1]),
    ),
    ("Q names 'ab'; expected pairs of labels, such as (0, 1)", lambda: from_qubo({"ab": 1.0})),
    (
        "the graph is a DiGraph, whose edges have a direction; expected an undirected one, since "
        "couplings have none: graph.to_undirected() is one",
        lambda: tz.ising(networkx.DiGraph([(0, 1)])),
    ),
    (
        "the edge (0, 1) has no attribute coupling or weight; expected a number on every edge: "
        "tz.from_networkx(graph, coupling=1.0) takes one for all, coupling='J' another attribute",
        lambda: tz.ising(networkx.path_graph(2)),
    ),
    (
        "fields are given, and nodes such as 'a' have their own; expected one of the two: "
        "tz.from_networkx(graph, field='f') takes another attribute of the nodes, field=0.5 one "
        "number for all",
        lambda: tz.ising(_named_graph(), 1.0),
    ),
    (
        "fields are a list, and the couplings name variables such as 'a', in no order; expected a "
        "mapping such as {'a': 0.5}, or one number for all",
        lambda: tz.ising({("a", "b"): 1.0}, [0.5, 0.5]),
    ),
    (
        "the variables 1.5 and '1.5' would both be called '1.5'; expected names that differ",
        lambda: tz.from_ising({1.5: 1.0, "1.5": 1.0}, {}),
    ),
    (
        "a variable of the couplings is 'a'; expected the number of a variable, a whole number "
        ">= 0. Name all variables by number, or none",
        lambda: tz.ising({(0, "a"): 1.0}),
    ),
    (
        "fields name 'c'; expected variables of the couplings, such as 'a'",
        lambda: tz.ising(Table("ab", "ab"), {"c": 1.0}),
    ),
    (
        "fields['a'][1] is nan; expected a finite number",
        lambda: tz.potts({("a", "b"): 1.0}, 3, {"a": [0.0, NAN, 1.0]}),
    ),
    (
        "fields['a'] has 2 numbers; expected one a state, 3",
        lambda: tz.potts({("a", "b"): 1.0}, 3, {"a": [0.0, 1.0]}),
    ),
    (
        "couplings are a DataFrame whose rows are not labelled as its columns; expected the same "
        "labels in the same order: J.loc[J.columns]",
        lambda: tz.ising(Table("ab", "ba")),
    ),
    (
        "couplings are a str, 'a.npz'; expected a matrix, a mapping or a graph: tz.read(path) "
        "makes a model of a file",
        lambda: tz.ising("a.npz"),
    ),
    (
        "W has shape (3,); expected a matrix (visible, hidden)",
        lambda: tz.rbm([1.0, 2.0, 3.0]),
    ),
]

CASES = [Case(ModelError, text, act) for text, act in TEXTS]
CASES.append(
    Case(
        ParameterError,
        "below is 3; expected a negative number: how far an entry is from its table's largest when "
        "it counts as a zero, such as -1e+09",
        lambda: GRID.with_zeros(below=3),
    )
)
