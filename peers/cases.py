"""The models, made with fixed seeds; a few more where TIGHTZ_DATA has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tightz as tz
from tightz.models.factor_graph import FactorGraph


class Recipe(NamedTuple):
    """How to make a model; `small` names one of the same kind for warming up."""

    title: str
    make: Callable[[], Any]
    files: tuple[str, ...] = ()
    small: str = "small"


class Machine(NamedTuple):
    """An RBM: its graph, and the arrays that libraries for RBMs take."""

    weights: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def graph(self) -> FactorGraph:
        return tz.rbm(self.weights, self.b, self.c)

    def enumerated(self) -> float:
        """log Z by going through the states of the hidden layer, in numpy."""
        count = self.c.size
        total = -np.inf
        for block in np.array_split(np.arange(1 << count), max(1, (1 << count) >> 12)):
            hidden = (block[:, None] >> np.arange(count)) & 1
            free = np.logaddexp(0.0, hidden @ self.weights.T + self.b).sum(axis=1)
            total = np.logaddexp(total, np.logaddexp.reduce(hidden @ self.c + free))
        return float(total)


def network(n: int, seed: int, observed: int) -> FactorGraph:
    """A random Bayesian network: up to three earlier parents nearby, two to four states."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 5, size=n).tolist()
    factors, state = [], []
    for v in range(n):
        near = np.arange(max(0, v - 8), v)
        parents = sorted(rng.choice(near, size=min(v, int(rng.integers(0, 4))), replace=False))
        scope = (v, *map(int, parents))
        table = rng.dirichlet(np.full(cards[v], 0.5), size=[cards[u] for u in scope[1:]])
        factors.append((scope, np.moveaxis(table, -1, 0)))
        column = table[tuple(state[u] for u in scope[1:])]
        state.append(int(rng.choice(cards[v], p=column)))
    seen = rng.permutation(n)[:observed].tolist()
    model = FactorGraph.from_tables(
        cards, factors, names=[f"node{v}" for v in range(n)],
        states=[[f"s{k}" for k in range(c)] for c in cards],
    )  # fmt: skip
    return model.with_evidence({int(v): state[v] for v in seen})


def machine(visible: int, hidden: int, scale: float, seed: int) -> Machine:
    rng = np.random.default_rng(seed)
    weights = rng.normal(scale=scale, size=(visible, hidden))
    return Machine(weights, rng.normal(scale=0.5, size=visible), rng.normal(scale=0.5, size=hidden))


def stored_machine(path: Path) -> Machine:
    with np.load(path) as file:
        arrays = {key: np.asarray(file[key], dtype=np.float64) for key in file}
    weights = next(a for a in arrays.values() if a.ndim == 2)
    rows, columns = weights.shape
    b = next(a for a in arrays.values() if a.ndim == 1 and a.size == rows)
    c = next(a for a in arrays.values() if a.ndim == 1 and a.size == columns)
    return Machine(weights, b, c)


def clauses(n: int, density: float, seed: int, weighted: bool) -> FactorGraph:
    """Random 3-SAT with `density` n clauses; weights between 0.1 and 1 on positive literals."""
    rng = np.random.default_rng((n, seed))
    factors: list[tuple[tuple[int, ...], Any]] = []
    for v in range(n):
        log = float(np.log(rng.uniform(0.1, 1.0))) if weighted else 0.0
        factors.append(((v,), [0.0, log]))
    for _ in range(int(density * n)):
        table = np.zeros(8)
        table[rng.integers(8)] = -np.inf
        factors.append((tuple(sorted(rng.permutation(n)[:3].tolist())), table))
    return FactorGraph([2] * n, factors)


def _grid(n: int, low: float, high: float) -> Callable[[], FactorGraph]:
    return lambda: tz.ising_grid(n, coupling=(low, high), field=(-1.0, 1.0), seed=0)


RECIPES = {
    "small": Recipe("4x4", _grid(4, -1.0, 1.0)),
    "wide": Recipe("14x14, w = 60", _grid(14, -60.0, 60.0)),
    "small network": Recipe("", lambda: network(8, 1, 0), ("bif",)),
    "small file": Recipe("", _grid(3, -1.0, 1.0), ("uai",)),
    "small rbm": Recipe("", lambda: machine(6, 4, 0.5, 1)),
    "small cnf": Recipe("", lambda: clauses(8, 2.0, 1, True), ("cnf",)),
    "small plain cnf": Recipe("", lambda: clauses(8, 2.0, 1, False), ("cnf",)),
    "grid 10": Recipe("10x10 grid, w in [-10, 10]", _grid(10, -10.0, 10.0)),
    "grid 15": Recipe("15x15 grid, w in [-10, 10]", _grid(15, -10.0, 10.0)),
    "grid 20": Recipe("20x20 grid, w in [-10, 10]", _grid(20, -10.0, 10.0)),
    "weak 15": Recipe("15x15 grid, w in [-1, 1]", _grid(15, -1.0, 1.0)),
    "regular 80": Recipe(
        "random 3-regular graph, 80 spins, +-1 couplings",
        lambda: tz.random_regular(80, 3, coupling=tz.PlusMinus(1.0), field=0.3, seed=0),
    ),
    "potts 12": Recipe(
        "12x12 Potts grid, 3 states, w in [-2, 2]",
        lambda: tz.potts_grid(12, states=3, coupling=(-2.0, 2.0), seed=0),
    ),
    "network 80": Recipe(
        "random Bayesian network, 80 variables, 16 observed", lambda: network(80, 0, 16)
    ),
    "rbm 100x16": Recipe(
        "RBM, 100 x 16, weights N(0, 0.5)", lambda: machine(100, 16, 0.5, 0), small="small rbm"
    ),
    "cnf 60": Recipe(
        "random 3-CNF, 60 variables, 120 clauses, weighted",
        lambda: clauses(60, 2.0, 0, True), ("cnf",), "small cnf",
    ),
    "cnf 100": Recipe(
        "random 3-CNF, 100 variables, 350 clauses, weighted",
        lambda: clauses(100, 3.5, 0, True), ("cnf",), "small cnf",
    ),
    "cnf 75, no weights": Recipe(
        "random 3-CNF, 75 variables, 225 clauses",
        lambda: clauses(75, 3.0, 0, False), ("cnf",), "small plain cnf",
    ),
    "file grid.uai": Recipe("60x60 grid", _grid(60, -1.0, 1.0), ("uai",), "small file"),
    "file network.bif": Recipe(
        "Bayesian network, 600 variables", lambda: network(600, 2, 0), ("bif",), "small network"
    ),
}  # fmt: skip

STORED = {
    "alarm": ("bnlearn/alarm.bif", "bnlearn, 37 variables, 7 observed"),
    "rbm tiny_15": ("rbm/rbm_mnist_tiny_15.npz", "MNIST RBM, 784 x 15"),
}
"""Of TIGHTZ_DATA: file, and title."""


def recipes() -> dict[str, Recipe]:
    root = Path(os.environ.get("TIGHTZ_DATA", ""))
    found = dict(RECIPES)
    for name, (path, title) in STORED.items():
        if "TIGHTZ_DATA" in os.environ and (root / path).exists():
            small = "small rbm" if name.startswith("rbm") else "small"
            found[name] = Recipe(title, lambda p=root / path: _stored(p), small=small)
    return found


def _stored(path: Path) -> Any:
    if path.suffix == ".npz":
        return stored_machine(path)
    if path.suffix == ".bif":
        model = tz.read(path)
        seen = dict.fromkeys(range(0, model.n_variables, 6), 0)
        return model.with_evidence(seen)
    return tz.read(path)


def write(name: str, recipe: Recipe, root: Path) -> Path:
    """The model's folder."""
    folder = root / name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    made = recipe.make()
    if isinstance(made, Machine):
        np.savez(folder / "rbm.npz", weights=made.weights, b=made.b, c=made.c)
    model = made.graph() if isinstance(made, Machine) else made
    save(model, folder / "model.npz")
    for ending in recipe.files:
        path = folder / f"model.{ending}"
        tz.write(model, path)
    return folder


def save(model: FactorGraph, path: Path) -> None:
    np.savez(
        path, cards=model.cardinalities, scope_ptr=model.scope_ptr, scope_vars=model.scope_vars,
        table_ptr=model.table_ptr, log_tables=model.log_tables,
        evidence=np.array(list(model.evidence.items()), dtype=np.int64).reshape(-1, 2),
    )  # fmt: skip
