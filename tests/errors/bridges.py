"""What the bridges to other libraries say; stand-ins have what is asked of the real things."""

from __future__ import annotations

import sys
from types import SimpleNamespace as Thing

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.errors import MissingExtraError, ModelError

GRID = tz.ising_grid(2, seed=0)


def _without_pgmpy(patch):
    patch.setitem(sys.modules, "pgmpy", None)
    patch.setitem(sys.modules, "pgmpy.models", None)
    tz.to_pgmpy(GRID)


def _no_such_type():
    raise TypeError("no such type")


def _table(variables, states):
    shape = [len(names) for names in states]
    named = dict(zip(variables, states, strict=True))
    return Thing(variables=list(variables), values=np.ones(shape), state_names=named)


def _markov(*tables, nodes=()):
    return Thing(get_factors=lambda: tables, nodes=lambda: list(nodes))


TEXTS = [
    (
        "from_networkx was given a list; expected a networkx graph (pip install networkx)",
        lambda: tz.from_networkx([(0, 1)]),
    ),
    (
        "W is a SimpleNamespace that is no array of numbers (no such type); expected a dense one "
        "of real numbers (the state dict)",
        lambda: tz.from_state_dict({"W": Thing(numpy=_no_such_type)}),
    ),
    (
        "from_pyagrum was given a str, 'net.bif'; expected a pyagrum BayesNet or "
        "MarkovRandomField (pip install pyagrum)",
        lambda: tz.from_pyagrum("net.bif"),
    ),
    (
        "from_pgmpy was given a FactorGraph; expected a Bayesian or Markov network of pgmpy "
        "(pip install pgmpy)",
        lambda: tz.from_pgmpy(GRID),
    ),
    (
        "from_sklearn_rbm was given None; expected a BernoulliRBM of sklearn "
        "(pip install scikit-learn)",
        lambda: tz.from_sklearn_rbm(None),
    ),
    (
        "a SimpleNamespace has no components_; expected a fitted one: rbm.fit(X)",
        lambda: tz.from_sklearn_rbm(Thing(fit=None, n_components=3)),
    ),
    (
        "the variable 'a' has no table; expected one for each: model.add_cpds(...)",
        lambda: tz.from_pgmpy(Thing(get_cpds=lambda node: None, nodes=lambda: ["a"])),
    ),
    (
        "a SimpleNamespace is no table of numbers; expected discrete variables, TabularCPD or "
        "DiscreteFactor",
        lambda: tz.from_pgmpy(_markov(Thing(mean=0.0))),
    ),
    (
        "the states of 'a' are ['no', 'yes'] in one table and ['n', 'y'] in another; expected the "
        "same in all",
        lambda: tz.from_pgmpy(_markov(_table("a", [["no", "yes"]]), _table("a", ["ny"]))),
    ),
    (
        "the variable 'b' is in no factor, so nothing tells its states; expected a factor for "
        "each: network.add_factors(...)",
        lambda: tz.from_pgmpy(_markov(_table("a", ["ny"]), nodes="ab")),
    ),
    (
        "the model has evidence, which models of pgmpy have not; expected one without: "
        "tz.to_pgmpy(model.without_evidence()), with the evidence given to pgmpy's query",
        lambda: tz.to_pgmpy(GRID.with_evidence({0: 1})),
    ),
    (
        "a log potential is beyond 700, and pgmpy multiplies potentials themselves; expected "
        "smaller ones: take a constant off the table",
        lambda: tz.to_pgmpy(tz.ising({(0, 1): 900.0})),
    ),
    (
        "a log potential is beyond 700, and pgmpy multiplies potentials themselves; expected "
        "smaller ones: take a constant off the table",
        lambda: tz.to_pgmpy(tz.FactorGraph([2], [((), 400.0), ((0,), [0.0, 400.0])])),
    ),
]

CASES = [Case(ModelError, text, act) for text, act in TEXTS]
CASES.append(Case(MissingExtraError, "to_pgmpy needs pgmpy: pip install pgmpy", _without_pgmpy))
