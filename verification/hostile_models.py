"""Small models made to break bounds: every kind aims at one way in which arithmetic goes wrong.

`hostile_model(seed, index)` is a function of its two numbers alone; kinds take turns. All models
can be enumerated (at most 2^14 states, most of them far fewer).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import tightz as tz

Rng = np.random.Generator
Factors = list[tuple[list[int], NDArray[np.float64]]]

PSEUDO_ZEROS = (-1e15, -1e30)
INF = np.inf


def hostile_model(seed: int, index: int) -> tuple[str, tz.FactorGraph]:
    """The kind and the model with this number."""
    kind = list(KINDS)[index % len(KINDS)]
    return kind, KINDS[kind](np.random.default_rng([seed, index]))


def _scale(rng: Rng, low: float, high: float) -> float:
    """10^U(low, high)."""
    return float(10.0 ** rng.uniform(low, high))


def _cards(rng: Rng, n: int, largest: int, most: int = 4096) -> NDArray[np.int64]:
    cards = rng.integers(1 if rng.random() < 0.2 else 2, largest + 1, size=n)
    while np.prod(cards) > most:
        cards[np.argmax(cards)] -= 1
    return cards


def _pairs(rng: Rng, n: int, share: float) -> list[tuple[int, int]]:
    """Some of all pairs, each in either order."""
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < share]
    return [(j, i) if rng.random() < 0.5 else (i, j) for i, j in pairs]


def _scopes(rng: Rng, n: int, count: int, largest: int) -> list[list[int]]:
    arities = rng.integers(1, min(largest, n) + 1, size=count)
    return [rng.choice(n, size=int(a), replace=False).tolist() for a in arities]


def _some_evidence(rng: Rng, cards: NDArray, share: float) -> dict[int, int]:
    seen = np.flatnonzero(rng.random(len(cards)) < share)
    return {int(v): int(rng.integers(cards[v])) for v in seen}


def _equality(strength: float, sign: int = 1) -> NDArray[np.float64]:
    """0 where two spins agree (sign 1) or differ (sign -1), -strength elsewhere."""
    table = np.array([[0.0, -strength], [-strength, 0.0]])
    return table if sign > 0 else table[::-1].copy()


def _fields(rng: Rng, n: int, share: float, low: float, high: float) -> Factors:
    """Unary tables that disfavour one state by 10^U(low, high) nats, now and then for good."""
    factors: Factors = []
    for v in np.flatnonzero(rng.random(n) < share):
        field = np.array([0.0, -INF if rng.random() < 0.1 else -_scale(rng, low, high)])
        factors.append(([int(v)], rng.permutation(field)))
    return factors


def soft_constraints(rng: Rng) -> tz.FactorGraph:
    """Penalties from 10 to 1e12 in one model."""
    n = int(rng.integers(2, 9))
    cards = _cards(rng, n, 3, 1024)
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(1, 2 * n)), 3):
        hit = rng.random(tuple(cards[scope])) < 0.4
        factors.append((scope, np.where(hit, -_scale(rng, 1, 12), rng.normal(size=hit.shape))))
    return tz.FactorGraph(cards, factors)


def deep_tables(rng: Rng) -> tz.FactorGraph:
    """Entries uniform down to -600: products of a few underflow, single ones do not."""
    n = int(rng.integers(2, 8))
    cards = _cards(rng, n, 4, 1024)
    depth = float(rng.choice([40.0, 300.0, 600.0, 745.0, 1500.0]))
    scopes = [list(p) for p in _pairs(rng, n, 0.6)] + [[v] for v in range(n)]
    return tz.FactorGraph(cards, [(s, -depth * rng.random(tuple(cards[s]))) for s in scopes])


def pseudo_zeros(rng: Rng) -> tz.FactorGraph:
    """Hard-core and colouring models whose zeros are large negative numbers; -inf now and then."""
    n = int(rng.integers(2, 10))
    zero = float(rng.choice([*PSEUDO_ZEROS, -INF]))
    if rng.random() < 0.5:
        table = np.array([[0.0, 0.0], [0.0, zero]])
        cards = np.full(n, 2)
    else:
        q = int(rng.integers(2, 4))
        n = min(n, 7)
        table, cards = np.where(np.eye(q) > 0, zero, 0.0), np.full(n, q)
    factors: Factors = [(list(p), table) for p in _pairs(rng, n, 0.5)]
    factors += [([v], rng.normal(size=cards[v])) for v in range(n) if rng.random() < 0.5]
    return tz.FactorGraph(cards, factors)


def tied_chains(rng: Rng) -> tz.FactorGraph:
    """Equality chains, hard, soft or mixed, strong fields at their ends; some closed to a ring."""
    n = int(rng.integers(2, 9))
    links = [(i, i + 1) for i in range(n - 1)] + ([(n - 1, 0)] if rng.random() < 0.3 else [])
    hard = float(rng.choice([0.0, 0.3, 1.0, 1.0]))
    gauge = rng.choice([-1, 1], size=n) if rng.random() < 0.5 else np.ones(n, dtype=int)
    factors: Factors = []
    for i, j in links:
        strength = INF if rng.random() < hard else _scale(rng, 0, 5)
        factors.append(([i, j], _equality(strength, int(gauge[i] * gauge[j]))))
    rng.shuffle(factors)
    for end in (0, n - 1):
        field = -INF if end and rng.random() < 0.6 else -_scale(rng, 2, 3.7)
        factors.append(([end], rng.permutation([0.0, field])))
    return tz.FactorGraph([2] * n, factors + _fields(rng, n, 0.2, 0, 3.5))


def near_ties(rng: Rng) -> tz.FactorGraph:
    """Heaviest states within 1e-9 of each other: symmetric models, and planted pairs of states."""
    n = int(rng.integers(3, 11))
    strength = _scale(rng, 0, 3)
    signs = rng.choice([-1.0, 1.0], size=(n, n))
    factors: Factors = []
    for i, j in _pairs(rng, n, 0.7):
        tilt = 1e-9 * rng.normal()
        factors.append(([i, j], strength * signs[i, j] * (1 - 2 * np.eye(2)) + tilt * np.eye(2)))
    if rng.random() < 0.5:
        factors.append(([int(rng.integers(n))], np.array([0.0, 1e-12 * rng.normal()])))
    return tz.FactorGraph([2] * n, factors)


def mixed_scales(rng: Rng) -> tz.FactorGraph:
    """Tables times e^(+-690), entries of 1e-12 and 1e5 side by side."""
    n = int(rng.integers(2, 8))
    cards = _cards(rng, n, 3, 1024)
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(2, 2 * n + 1)), 3):
        offset = float(rng.choice([0.0, 690.0, -690.0, 1e6, -1e6]))
        size = _scale(rng, -12, 5)
        factors.append((scope, offset + size * rng.normal(size=tuple(cards[scope]))))
    return tz.FactorGraph(cards, factors)


def _dense_ising(rng: Rng, n: int, strength: float, share: float = 1.0) -> tz.FactorGraph:
    couplings = np.triu(strength * rng.normal(size=(n, n)) * (rng.random((n, n)) < share), 1)
    return tz.ising(couplings + couplings.T, strength * rng.normal(size=n))


def strong_couplings(rng: Rng) -> tz.FactorGraph:
    """Dense Ising models with couplings N(0, 100^2), some weaker, some stronger or thinned."""
    strength = float(rng.choice([60.0, 100.0, 100.0, 200.0]))
    return _dense_ising(rng, int(rng.integers(6, 12)), strength, float(rng.choice([0.6, 1.0])))


def quantised_cliques(rng: Rng) -> tz.FactorGraph:
    """All pairs, entries 0 or +-S near the ends of float64's exponents: many exact ties."""
    n, strength = int(rng.integers(4, 9)), float(rng.choice([200.0, 300.0, 400.0, 600.0]))
    factors: Factors = [
        (list(p), strength * rng.integers(-1, 2, size=(2, 2))) for p in _pairs(rng, n, 1.1)
    ]
    rng.shuffle(factors)
    return tz.FactorGraph([2] * n, factors)


def huge_couplings(rng: Rng) -> tz.FactorGraph:
    """Dense Ising models with couplings near 1e5: a float64 sum of them is off by 1e-10."""
    return _dense_ising(rng, int(rng.integers(3, 13)), 1e5)


def strong_lattice(rng: Rng) -> tz.FactorGraph:
    """Small lattices (their layout is known to the library), weak to N(0, 300^2)."""
    rows, cols = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    strength = _scale(rng, 0, 2.5)
    return tz.ising_grid(
        rows, cols, coupling=(-strength, strength), field=(-strength, strength),
        seed=int(rng.integers(2**31)), field_per_edge=bool(rng.random() < 0.3),
    )  # fmt: skip


def strong_potts(rng: Rng) -> tz.FactorGraph:
    """Pairwise models of several states, couplings to a hundred: for clusters and blocks."""
    n, strength = int(rng.integers(2, 7)), _scale(rng, 0, 2.5)
    cards = np.maximum(_cards(rng, n, 5, 2048), 2)
    scopes = [list(p) for p in _pairs(rng, n, 0.7)] + [[v] for v in range(n)]
    return tz.FactorGraph(cards, [(s, strength * rng.normal(size=tuple(cards[s]))) for s in scopes])


def many_states(rng: Rng) -> tz.FactorGraph:
    """Few variables with up to 200 states."""
    n = int(rng.integers(1, 4))
    cards = _cards(rng, n, (200, 100, 20)[n - 1], 10_000)
    strength = _scale(rng, 0, 3)
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(1, n + 2)), 2):
        table = strength * rng.normal(size=tuple(cards[scope]))
        factors.append((scope, np.where(rng.random(table.shape) < 0.05, -INF, table)))
    return tz.FactorGraph(cards, factors)


def wide_factors(rng: Rng) -> tz.FactorGraph:
    """One factor over everything (up to 14 bits), and a few pairs beside it."""
    n = int(rng.integers(3, 15 if rng.random() < 0.1 else 10))
    strength = _scale(rng, -1, 2.5)
    scope = rng.permutation(n)[: int(rng.integers(max(3, n - 2), n + 1))].tolist()
    table = strength * rng.normal(size=(2,) * len(scope))
    if rng.random() < 0.3:
        table = np.where(rng.random(table.shape) < 0.5, -INF, table)
    factors: Factors = [(scope, table)]
    factors += [(list(p), strength * rng.normal(size=(2, 2))) for p in _pairs(rng, n, 0.2)]
    return tz.FactorGraph([2] * n, factors)


def fragments(rng: Rng) -> tz.FactorGraph:
    """Disconnected parts, one-state variables, constants, the same scope again in another order."""
    n = int(rng.integers(1, 9))
    cards = _cards(rng, n, 3, 2048)
    cards[rng.random(n) < 0.3] = 1
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(0, n + 1)), 2):
        factors.append((scope, _scale(rng, -1, 2) * rng.normal(size=tuple(cards[scope]))))
        if rng.random() < 0.4:
            again = scope[::-1]
            factors.append((again, 10 * rng.normal(size=tuple(cards[again]))))
    for _ in range(int(rng.integers(0, 3))):
        factors.append(([], np.array(_scale(rng, -2, 6) * rng.normal())))
    if rng.random() < 0.3:
        factors.append(([int(rng.integers(n))], None))  # a constant factor, shaped below
        v = factors[-1][0][0]
        factors[-1] = ([v], np.full(cards[v], 7.25))
    return tz.FactorGraph(cards, factors)


def contradictions(rng: Rng) -> tz.FactorGraph:
    """Z = 0: zero tables, parities that exclude each other, too few colours, bad evidence."""
    n = int(rng.integers(3, 8))
    ring: Factors = [([v, (v + 1) % n], 2 * rng.normal(size=(2, 2))) for v in range(n)]
    way = int(rng.integers(4))
    if way == 0:
        return tz.FactorGraph([2] * n, [*ring, ([int(rng.integers(n))], np.full(2, -INF))])
    if way == 1:
        signs = rng.choice([-1, 1], size=n)
        signs[0] *= -int(np.prod(signs))  # an odd number of "differ" around the ring
        links = [([v, (v + 1) % n], _equality(INF, int(signs[v]))) for v in range(n)]
        return tz.FactorGraph([2] * n, links + _fields(rng, n, 0.3, 0, 2))
    if way == 2:
        clique = [([i, j], np.where(np.eye(2) > 0, -INF, 0.0)) for i, j in _pairs(rng, n, 1.1)]
        return tz.FactorGraph([2] * n, clique)
    ring[0] = (ring[0][0], _equality(INF))
    return tz.FactorGraph([2] * n, ring, evidence={0: 0, 1: 1})


def observed(rng: Rng) -> tz.FactorGraph:
    """Evidence on some variables or on all of them."""
    n = int(rng.integers(1, 9))
    cards = _cards(rng, n, 4, 2048)
    strength = _scale(rng, 0, 3)
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(0, 2 * n)), 4):
        table = strength * rng.normal(size=tuple(cards[scope]))
        factors.append((scope, np.where(rng.random(table.shape) < 0.1, -INF, table)))
    share = 1.1 if rng.random() < 0.3 else 0.4
    return tz.FactorGraph(cards, factors, evidence=_some_evidence(rng, cards, share))


def parities(rng: Rng) -> tz.FactorGraph:
    """XOR constraints, as zeros or as penalties, under fields."""
    n = int(rng.integers(3, 10))
    zero = -INF if rng.random() < 0.6 else -_scale(rng, 1, 6)
    factors = _fields(rng, n, 0.8, -1, 3)
    for scope in _scopes(rng, n, int(rng.integers(1, n)), 5):
        even = np.indices((2,) * len(scope)).sum(axis=0) % 2 == int(rng.integers(2))
        factors.append((scope, np.where(even, 0.0, zero)))
    return tz.FactorGraph([2] * n, factors)


def deterministic_networks(rng: Rng) -> tz.FactorGraph:
    """Bayesian networks: normalised tables, many of them with zeros, evidence at random."""
    n = int(rng.integers(2, 9))
    cards = np.maximum(_cards(rng, n, 3, 2048), 2)
    factors: Factors = []
    for v in range(n):
        parents = rng.choice(v, size=int(rng.integers(0, min(v, 3) + 1)), replace=False).tolist()
        table = rng.gamma(float(rng.choice([0.01, 0.1, 1.0])), size=tuple(cards[[*parents, v]]))
        if rng.random() < 0.5:
            table = np.eye(cards[v])[rng.integers(cards[v], size=table.shape[:-1])]
        with np.errstate(divide="ignore", invalid="ignore"):
            table = np.log(table / table.sum(axis=-1, keepdims=True))
        factors.append(([*parents, v], np.where(np.isnan(table), -INF, table)))
    return tz.FactorGraph(cards, factors, evidence=_some_evidence(rng, cards, 0.2))


def single_solutions(rng: Rng) -> tz.FactorGraph:
    """Constraints that one planted state alone satisfies; violations cost much or everything."""
    n = int(rng.integers(2, 9))
    cards = np.maximum(_cards(rng, n, 3, 1024), 2)
    planted = np.array([rng.integers(c) for c in cards])
    zero = float(rng.choice([-INF, -1e6, *PSEUDO_ZEROS]))
    factors: Factors = []
    for v in range(n):
        scope = [v] if v == 0 else [int(rng.integers(v)), v]
        table = np.full(tuple(cards[scope]), zero)
        table[tuple(planted[scope])] = rng.normal() * _scale(rng, 0, 2)
        if len(scope) == 2:  # off the planted parent state everything goes: the chain decides
            table[np.arange(cards[scope[0]]) != planted[scope[0]]] = 0.0
        factors.append((scope, table))
    return tz.FactorGraph(cards, factors + _fields(rng, n, 0.0, 0, 1))


def empty_models(rng: Rng) -> tz.FactorGraph:
    """No variables, no factors, constants alone."""
    n = int(rng.integers(0, 4))
    constants: Factors = [
        ([], np.array(-INF if rng.random() < 0.1 else _scale(rng, -3, 8) * rng.normal()))
        for _ in range(int(rng.integers(0, 3)))
    ]
    return tz.FactorGraph(_cards(rng, n, 3) if n else np.zeros(0, dtype=int), constants)


def huge_entries(rng: Rng) -> tz.FactorGraph:
    """Entries up to 1e30 (1e100 now and then): sums of logs lose every digit."""
    n = int(rng.integers(1, 7))
    cards = _cards(rng, n, 3, 512)
    top = 100 if rng.random() < 0.2 else 30
    factors: Factors = []
    for scope in _scopes(rng, n, int(rng.integers(1, n + 2)), 2):
        shape = tuple(cards[scope])
        factors.append((scope, np.sign(rng.normal(size=shape)) * 10 ** rng.uniform(0, top, shape)))
    return tz.FactorGraph(cards, factors)


def trees(rng: Rng) -> tz.FactorGraph:
    """Trees of any cardinality, strong, with zeros now and then: what claims to be exact is."""
    n = int(rng.integers(2, 9))
    cards = np.maximum(_cards(rng, n, 4, 4096), 2)
    strength, zeros = _scale(rng, 0, 3), 0.2 * (rng.random() < 0.4)
    factors: Factors = [([v], strength * rng.normal(size=cards[v])) for v in range(n)]
    for v in range(1, n):
        scope = [int(rng.integers(v)), v]
        table = strength * rng.normal(size=tuple(cards[scope]))
        factors.append((scope, np.where(rng.random(table.shape) < zeros, -INF, table)))
    return tz.FactorGraph(cards, factors)


def machines(rng: Rng) -> tz.FactorGraph:
    """Restricted Boltzmann machines with weights from weak to a thousand."""
    visible, hidden = (int(k) for k in rng.integers(1, 6, size=2))
    strength = _scale(rng, -1, 3)
    return tz.rbm(
        strength * rng.normal(size=(visible, hidden)),
        strength * rng.normal(size=visible),
        strength * rng.normal(size=hidden),
    )


def cancellations(rng: Rng) -> tz.FactorGraph:
    """Tables near 1e9 over shared scopes that cancel but for N(0, 1): sums are all rounding.

    The third of each scope may come as two, one over part of the scope: no merging of equal scopes
    takes them together.
    """
    n = int(rng.integers(2, 7))
    cards = np.maximum(_cards(rng, n, 3, 512), 2)
    factors: Factors = []
    for scope in [*(list(p) for p in _pairs(rng, n, 0.6)), *([v] for v in range(n))]:
        shape, large = tuple(cards[scope]), _scale(rng, 8.5, 9.5)
        one, two = (large * rng.normal(size=shape) for _ in range(2))
        part = large * rng.normal(size=shape[:1]) * (rng.random() < 0.5)
        spread = part.reshape(-1, *(1,) * (len(shape) - 1))
        rest = -(one + two + spread) + rng.normal(size=shape)
        factors += [(scope, one), (scope, two), (scope, rest), (scope[:1], part)]
    order = rng.permutation(len(factors))
    return tz.FactorGraph(cards, [factors[k] for k in order])


KINDS: dict[str, Callable[[Rng], tz.FactorGraph]] = {
    make.__name__.replace("_", " "): make
    for make in (
        soft_constraints, deep_tables, pseudo_zeros, tied_chains, near_ties, mixed_scales,
        strong_couplings, quantised_cliques, huge_couplings, strong_lattice, strong_potts,
        many_states, wide_factors,
        fragments, contradictions, observed, parities, deterministic_networks, single_solutions,
        empty_models, huge_entries, trees, machines, cancellations,
    )
}  # fmt: skip
"""kind -> its maker, in the order in which they take turns."""
