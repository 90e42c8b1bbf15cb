"""The judge: separate from every maker, never above the truth, never taken in by a wrong maker.

Truths are enumerated in extended precision, and every comparison is strict: the rounding that a
verdict took off must be enough, however hostile the model.
"""

from __future__ import annotations

import ast
import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tightz as tz
import tightz.judge
from tightz.families import block as block_module
from tightz.families import mean_field as mean_field_module
from tightz.families.block import block_mean_field, family_for
from tightz.families.clustered import ClusterMeanField, ClusterTables
from tightz.families.evidence import (
    chart_of,
    evidence_of,
    link_of,
    lower_bound_of,
)
from tightz.families.layer import ascent, layer_mean_field
from tightz.families.structured import StructuredMeanField
from tightz.families.structured import family as structured_module
from tightz.judge.claims import Audited, LargestEntries, StatesEvidence
from tightz.judge.clusters import NetworkEvidence
from tightz.judge.collapses import CollapseLink, check_collapse
from tightz.judge.cosh import expected_log_2cosh
from tightz.judge.forests import ForestQ
from tightz.judge.layers import LayerQ
from tightz.judge.links import SpinEvidence, SpinLink, check_encoding
from tightz.judge.products import ProductEvidence
from tightz.judge.spins import ProductQ, SpinMap, SpinTerms
from tightz.judge.verdict import RefutedError
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections import Coset, DenseParity
from tightz.reductions.collapse import collapse
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock

JUDGE = Path(tightz.judge.__file__).parent
LONG = np.longdouble
SCALES = (0.1, 3.0, 1e3, 1e8)


# ---- separation -------------------------------------------------------------------------------


def test_the_judge_imports_no_maker():
    allowed = {"tightz.models.factor_graph", "numpy", "numpy.typing"}
    for path in JUDGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                fine = name in allowed or name.startswith("tightz.judge")
                assert fine or name.split(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


def test_the_judge_loads_no_compiled_kernel():
    """With a bare package in place of tightz.models, whose __init__ brings kernels in."""
    modules = [f"tightz.judge.{path.stem}" for path in JUDGE.glob("*.py")]
    code = (
        "import sys, types\n"
        "bare = types.ModuleType('tightz.models')\n"
        f"bare.__path__ = [{str(JUDGE.parent / 'models')!r}]\n"
        "sys.modules['tightz.models'] = bare\n"
        f"import {', '.join(modules)}\n"
        "assert 'numba' not in sys.modules\n"
        "fine = ('judge', 'models', 'errors', 'shown', 'version', 'runtime.interrupts')\n"
        "fine = tuple(f'tightz.{m}' for m in fine)\n"
        "loaded = [m for m in sys.modules if m.startswith('tightz.') and m != 'tightz.runtime']\n"
        "assert all(m.startswith(fine) for m in loaded), loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- truths -----------------------------------------------------------------------------------


def hostile(seed, *, zeros=0.0, most=5, states=4, binary=False):
    """A small model of hostile weights: huge, tiny, near-zeros of -1e30, zeros, constants."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, most + 1))
    cards = np.full(n, 2) if binary else rng.integers(1, states + 1, size=n)
    factors = []
    for _ in range(int(rng.integers(1, 2 * n + 2))):
        scope = rng.choice(n, size=rng.integers(0, min(3, n) + 1), replace=False).tolist()
        table = SCALES[rng.integers(len(SCALES))] * rng.normal(size=cards[scope])
        if scope and zeros:
            table = np.where(rng.random(table.shape) < zeros, -np.inf, table)
        factors.append((scope, table))
    return tz.FactorGraph(cards, factors), rng


def log_weights(model):
    """(states, log p~) of all states that agree with the evidence, in extended precision."""
    spaces = [range(int(d)) for d in model.cardinalities]
    for v, state in model.evidence.items():
        spaces[v] = range(state, state + 1)
    states = list(itertools.product(*spaces))
    x = np.array(states, dtype=np.int64).reshape(len(states), model.n_variables)
    logs = np.zeros(len(states), dtype=LONG)
    for scope, table in model.factors:
        logs += table.astype(LONG)[tuple(x[:, v] for v in scope)]
    return states, logs


def log_sum(logs):
    top = logs.max()
    return top if np.isneginf(top) else top + np.log(np.exp(logs - top).sum())


def log_z(model):
    return log_sum(log_weights(model)[1])


def spin_logs(terms, n):
    """(states (2^n, n), log p~) of a polynomial in extended precision."""
    states = np.array(list(itertools.product((1, -1), repeat=n))).reshape(2**n, n)
    logs = np.full(len(states), LONG(terms.constant))
    for a, theta in enumerate(terms.theta):
        members = terms.spins[terms.ptr[a] : terms.ptr[a + 1]]
        logs += LONG(theta) * states[:, members].prod(axis=1)
    return states, logs


def random_terms(rng, n, scale=None):
    scale = SCALES[rng.integers(len(SCALES))] if scale is None else scale
    rows = [
        (rng.choice(n, size=rng.integers(1, min(4, n) + 1), replace=False), scale * rng.normal())
        for _ in range(int(rng.integers(1, 4 * n)))
    ]
    return SpinPolynomial.from_terms(n, scale * rng.normal(), rows)


def jensen(weights, logs):
    """E_q[log p~] + H(q) in extended precision; weights need not be normalised."""
    q = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(q > 0, q * (logs - np.log(np.where(q > 0, q, 1))), 0).sum()


# ---- products over variables ------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_products_are_within_their_rounding(block):
    for seed in range(100 * block, 100 * block + 100):
        model, rng = hostile(seed, zeros=0.2 * (block % 2))
        q = [rng.exponential(size=int(d)) ** rng.integers(1, 40) for d in model.cardinalities]
        if rng.random() < 0.5:
            q = [np.where(w == w.max(), w, 0.0) for w in q]
        lower, _, rounding = ProductEvidence(q).verdict(model)
        states, logs = log_weights(model)
        truth = log_sum(logs)
        assert lower <= truth
        weights = np.array([math.prod(LONG(q[v][k]) for v, k in enumerate(x)) for x in states])
        exact = jensen(weights, logs)
        if lower > -math.inf:
            assert abs(LONG(lower) - exact) <= 2 * rounding
        else:
            assert np.isneginf(exact)


def test_statements_about_the_whole_model_are_what_they_say():
    flat = tz.FactorGraph([2, 3, 4], [((0, 1), np.zeros((2, 3))), ((2,), [0.0, -1.0, 0.0, -9.0])])
    assert LargestEntries().verdict(flat).upper == pytest.approx(math.log(24), abs=1e-12)
    assert LargestEntries().verdict(flat.with_evidence({1: 0})).upper >= log_z(
        flat.with_evidence({1: 0})
    )
    assert Audited(2.5, 0.25).verdict(flat) == (2.25, 2.75, 0.25)


def test_states_that_are_listed_twice_count_once():
    model, _ = hostile(0)
    states = np.array(list(itertools.product(*(range(int(c)) for c in model.cardinalities))))
    once, twice = (
        StatesEvidence(np.concatenate([states] * k)).verdict(model).lower for k in (1, 2)
    )
    assert once == twice <= log_z(model)
    assert once > log_z(model) - 1e-6


def test_near_zeros_do_no_harm_where_q_is_zero():
    table = np.array([[0.3, -1e30], [-1e30, 0.7]])
    model = tz.FactorGraph([2, 2], [((0, 1), table)])
    lower, _, rounding = ProductEvidence([np.array([0.0, 1.0])] * 2).verdict(model)
    assert 0.7 - 1e-14 < lower <= 0.7
    assert rounding < 1e-14


@pytest.mark.parametrize(
    "q",
    [
        [np.array([0.5, -0.5]), np.ones(2)],
        [np.array([0.5, np.nan]), np.ones(2)],
        [np.array([0.0, 0.0]), np.ones(2)],
        [np.array([1.0, np.inf]), np.ones(2)],
        [np.ones(2)],
        [np.ones(3), np.ones(2)],
    ],
)
def test_what_is_no_product_is_refused(q):
    model = tz.FactorGraph([2, 2], [((0, 1), np.eye(2))])
    with pytest.raises(RefutedError):
        ProductEvidence(q).verdict(model)
    seen = model.with_evidence({0: 1})
    with pytest.raises(RefutedError):
        ProductEvidence([np.ones(2), np.ones(2)]).verdict(seen)
    assert ProductEvidence([np.array([0.0, 9.0]), np.ones(2)]).verdict(seen).lower <= log_z(seen)


# ---- products and forests over spins ----------------------------------------------------------


def chart(support, sign, n):
    if support is None:
        return SpinMap.identity(n)
    return SpinMap.of(support, np.ones(len(support)) if sign is None else sign)


def product_value(terms, support, sign, means):
    return ProductQ(chart(support, sign, means.size), means).value(terms)


def forest_value(terms, support, sign, spin_of, *forest):
    return ForestQ(chart(support, sign, len(spin_of)), spin_of, *forest).value(terms)


def random_chart(rng, n):
    """Some spins free, the others signed products of them, in shuffled places."""
    n_free = int(rng.integers(1, n + 1))
    support = np.zeros((n, n_free), dtype=bool)
    places = rng.permutation(n)
    support[places[:n_free], np.arange(n_free)] = True
    support[places[n_free:]] = rng.random((n - n_free, n_free)) < 0.5
    return support, rng.choice([-1.0, 1.0], size=n)


def on_chart(terms, support, sign):
    """(free states, log p~ there)."""
    free = np.array(list(itertools.product((1, -1), repeat=support.shape[1])))
    states = sign * np.where(support[None], free[:, None, :], 1).prod(axis=2)
    every, logs = spin_logs(terms, len(sign))
    code = {tuple(s): k for k, s in enumerate(every.tolist())}
    return free, logs[[code[tuple(s)] for s in states.astype(int).tolist()]]


@pytest.mark.parametrize("block", range(3))
def test_spin_products_are_within_their_rounding(block):
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 8))
        terms = SpinTerms.of(random_terms(rng, n))
        support, sign = random_chart(rng, n)
        means = np.tanh(rng.normal(scale=4.0, size=support.shape[1]))
        means[rng.random(means.size) < 0.3] = 1.0
        value, rounding = product_value(terms, support, sign, means)
        free, logs = on_chart(terms, support, sign)
        weights = ((1 + free * means.astype(LONG)) / 2).prod(axis=1)
        assert abs(LONG(value) - jensen(weights, logs)) <= rounding
        assert value - rounding <= log_sum(spin_logs(terms, n)[1])


def random_forest(rng, n):
    """Separators with the running intersection, random tables (unnormalised, with zeros)."""
    scopes: list[tuple[int, ...]] = [()] * n
    for k in range(n - 2, -1, -1):
        if rng.random() < 0.8:
            p = int(rng.integers(k + 1, n))
            scopes[k] = (p, *(i for i in scopes[p] if rng.random() < 0.6))
    ptr = np.concatenate([[0], np.cumsum([len(s) for s in scopes])])
    sep = np.array([i for s in scopes for i in s], dtype=np.int64)
    tables = [rng.exponential(size=2 << len(s)) ** rng.integers(1, 9) for s in scopes]
    flat = np.concatenate(tables)
    flat[1::2][rng.random(flat.size // 2) < 0.1] = 0.0
    return rng.permutation(n), ptr.astype(np.int64), sep, flat


def forest_weights(free, spin_of, ptr, sep, tables):
    """q of every state from its definition."""
    down = free[:, spin_of] < 0
    q = np.ones(len(free), dtype=LONG)
    at = 0
    for k in range(len(spin_of)):
        scope = sep[ptr[k] : ptr[k + 1]]
        index = (down[:, scope] << np.arange(scope.size)).sum(axis=1)
        pairs = tables[at : at + (2 << scope.size)].astype(LONG).reshape(-1, 2)
        at += 2 << scope.size
        q *= pairs[index, down[:, k].astype(int)] / pairs[index].sum(axis=1)
    return q


@pytest.mark.parametrize("block", range(3))
def test_forests_are_within_their_rounding(block):
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 8))
        terms = SpinTerms.of(random_terms(rng, n))
        support, sign = random_chart(rng, n)
        forest = random_forest(rng, support.shape[1])
        value, rounding = forest_value(terms, support, sign, *forest)
        free, logs = on_chart(terms, support, sign)
        assert abs(LONG(value) - jensen(forest_weights(free, *forest), logs)) <= rounding
        assert value - rounding <= log_sum(spin_logs(terms, n)[1])


def test_moments_of_a_forest_are_within_their_rounding():
    """A chain of equal tables: all its sums and products round the same way."""
    n = 11
    spin_of, ptr, sep = np.arange(n), np.minimum(np.arange(n + 1), n - 1), np.arange(1, n)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tables = np.tile(rng.random(2), 2 * n - 1)
        terms = SpinTerms.of(SpinPolynomial.from_terms(n, 0.0, [((k,), 1e9) for k in range(3)]))
        support, sign = np.eye(n, dtype=bool), np.ones(n)
        value, rounding = forest_value(terms, support, sign, spin_of, ptr, sep, tables)
        free, logs = on_chart(terms, support, sign)
        exact = jensen(forest_weights(free, spin_of, ptr, sep, tables), logs)
        assert abs(LONG(value) - exact) <= rounding < 1e-3


def test_maps_that_repeat_states_are_refused():
    terms = SpinTerms.of(SpinPolynomial.from_terms(3, 1.0, [((0, 1), 2.0)]))
    support = np.array([[1, 1], [1, 1], [1, 0]], dtype=bool)  # y_1 never alone
    with pytest.raises(RefutedError, match="alone"):
        product_value(terms, support, np.ones(3), np.zeros(2))
    with pytest.raises(RefutedError, match="sign"):
        product_value(terms, np.eye(3, dtype=bool), np.array([1.0, 0.5, 1.0]), np.zeros(3))
    with pytest.raises(RefutedError, match="mean"):
        product_value(terms, None, None, np.array([0.0, 1.5, 0.0]))
    with pytest.raises(RefutedError, match="mean"):
        product_value(terms, None, None, np.array([0.0, np.nan, 0.0]))
    with pytest.raises(RefutedError, match="names a spin"):
        product_value(terms, None, None, np.zeros(1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f[0][[0, 0, 1]], *f[1:]), "each once"),
        (lambda f: (f[0], f[1], np.array([0, 2]), f[3]), "later nodes"),
        (lambda f: (*f[:3], f[3][:-1]), "number of entries"),
        (lambda f: (*f[:3], -f[3]), "no weight"),
        (lambda f: (*f[:3], np.full(f[3].size, np.nan)), "no weight"),
    ],
)
def test_forests_that_are_none_are_refused(change, says):
    terms = SpinTerms.of(SpinPolynomial.from_terms(3, 1.0, [((0, 1, 2), 2.0)]))
    good = (np.arange(3), np.array([0, 1, 2, 2]), np.array([1, 2]), np.ones(10))
    forest_value(terms, None, None, *good)
    with pytest.raises(RefutedError, match=says):
        forest_value(terms, None, None, *change(good))


def test_a_separator_outside_its_bucket_is_refused():
    terms = SpinTerms.of(SpinPolynomial.from_terms(3, 1.0, [((0, 1, 2), 2.0)]))
    loop = (np.arange(3), np.array([0, 2, 2, 2]), np.array([1, 2]), np.ones(12))
    with pytest.raises(RefutedError, match="bucket"):
        forest_value(terms, None, None, *loop)


# ---- encodings and collapses ------------------------------------------------------------------


def with_parity(model, rng):
    """The model and one table of zeros that is a parity of two binary variables."""
    binary = np.flatnonzero(model.cardinalities == 2)
    if binary.size < 2:
        return model
    pair = rng.choice(binary, size=2, replace=False).tolist()
    table = np.where(np.eye(2) == rng.integers(2), -np.inf, rng.normal(size=(2, 2)))
    return tz.FactorGraph(model.cardinalities, [*model.factors, (pair, table)])


@pytest.mark.parametrize("block", range(3))
def test_encodings_are_within_their_rounding_at_every_state(block):
    for seed in range(60 * block, 60 * block + 60):
        model, rng = hostile(seed, binary=block == 1)
        if block:
            model = with_parity(model, rng)
        if seed % 3 == 0:
            model = model.with_evidence({0: int(rng.integers(model.cardinalities[0]))})
        encoding = encode(model, multivalued=True)
        if encoding.reason:
            continue
        terms = SpinTerms.of(encoding.polynomial)
        chart = link_of(encoding).encoding.chart
        error = check_encoding(model, terms, chart)
        spins, logs = spin_logs(terms, encoding.polynomial.n)
        values = {tuple(x): w for x, w in zip(*log_weights(model), strict=True)}
        lifted = encoding.lift_states(spins)
        codes = [1 << (int(d) - 1).bit_length() for d in model.cardinalities]
        for x, got in zip(lifted.tolist(), logs, strict=True):
            shares = [
                math.log(2.0)
                for v, k in enumerate(x)
                if k < codes[v] - model.cardinalities[v] and v not in model.evidence
            ]
            assert abs(got - (values[tuple(x)] - math.fsum(shares))) <= error


def test_a_polynomial_that_is_not_the_model_is_refuted():
    model = tz.ising_grid(3, seed=0)
    encoding = encode(model, multivalued=True)
    chart = SpinMap.identity(9)
    good = SpinTerms.of(encoding.polynomial)
    for a in range(good.theta.size):
        theta = good.theta.copy()
        theta[a] += 1e-3
        with pytest.raises(RefutedError, match="away"):
            check_encoding(model, SpinTerms(good.constant, good.ptr, good.spins, theta), chart)
    for constant in (good.constant + 30.0, good.constant - 30.0):
        with pytest.raises(RefutedError, match="away"):
            check_encoding(model, SpinTerms(constant, good.ptr, good.spins, good.theta), chart)
    with pytest.raises(RefutedError, match="bits"):
        check_encoding(model, good, SpinMap.identity(8))
    zero = tz.FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [-np.inf, 0.0]])])
    free = SpinTerms.of(SpinPolynomial.from_terms(2, 0.0, []))
    with pytest.raises(RefutedError, match="zeros"):
        check_encoding(zero, free, SpinMap.identity(2))
    wrong = SpinMap.of(np.ones((2, 1), dtype=bool), np.array([1.0, -1.0]))  # the forbidden states
    with pytest.raises(RefutedError, match="forbids"):
        check_encoding(zero, SpinTerms.of(SpinPolynomial.from_terms(1, 0.0, [])), wrong)


def test_what_a_polynomial_is_off_by_is_paid_for():
    """Less than what is refused as a defect, much more than rounding."""
    poly = SpinPolynomial.from_factor_graph(model := tz.ising_grid(3, periodic=True, seed=1))
    found = collapse(poly, 4)

    def moved(terms, by):
        theta = terms.theta.copy()
        theta[-1] += by
        return SpinTerms(terms.constant, terms.ptr, terms.spins, theta)

    for by in (0.0, 1e-7):
        encoded = check_encoding(model, moved(SpinTerms.of(poly), by), SpinMap.identity(9))
        collapsed = check_collapse(
            SpinTerms.of(poly), moved(SpinTerms.of(found.polynomial), by), found.kept, found.order
        )
        assert by <= encoded < by + 1e-11
        assert by <= collapsed < by + 1e-11


def test_collapses_are_within_their_rounding_at_every_state():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        poly = random_terms(rng, n)
        found = collapse(poly, int(rng.integers(0, 5)))
        terms = SpinTerms.of(found.polynomial)
        error = check_collapse(SpinTerms.of(poly), terms, found.kept, found.order)
        states, logs = spin_logs(SpinTerms.of(poly), n)
        small, values = spin_logs(terms, found.kept.size)
        for s, value in zip(small, values, strict=True):
            inside = (states[:, found.kept] == s).all(axis=1)
            assert abs(value - log_sum(logs[inside])) <= error


def test_a_collapse_that_lost_something_is_refuted():
    poly = SpinPolynomial.from_factor_graph(tz.ising_grid(5, periodic=True, seed=1))
    found = collapse(poly, 4)
    good = SpinTerms.of(found.polynomial)
    original = SpinTerms.of(poly)
    assert check_collapse(original, good, found.kept, found.order) < 1e-10
    theta = good.theta.copy()
    theta[-1] *= 1.01
    bad = SpinTerms(good.constant, good.ptr, good.spins, theta)
    with pytest.raises(RefutedError, match="away"):
        check_collapse(original, bad, found.kept, found.order)
    with pytest.raises(RefutedError, match="each once"):
        check_collapse(original, good, found.kept, np.append(found.order[:-1], found.kept[0]))


# ---- networks over variables ------------------------------------------------------------------


def random_network(rng, cards):
    n = len(cards)
    scopes: list[tuple[int, ...]] = [()] * n
    order = rng.permutation(n)
    for k in range(n - 2, -1, -1):
        if rng.random() < 0.8:
            p = int(rng.integers(k + 1, n))
            scopes[k] = (p, *(i for i in scopes[p] if rng.random() < 0.7))
    tables = [
        rng.exponential(size=[cards[order[i]] for i in (k, *scope)]) ** rng.integers(1, 9)
        for k, scope in enumerate(scopes)
    ]
    return NetworkEvidence(order, scopes, tables)


def held_by(network, model):
    """Whether each factor's variables are in one bucket, or in trees of their own."""
    node = np.argsort(network.order)
    root = list(range(len(node)))
    for k in range(len(node) - 1, -1, -1):
        if network.scopes[k]:
            root[k] = root[network.scopes[k][0]]
    for scope, _ in model.factors:
        a, b = (int(k) for k in np.sort(node[list(scope)])[[0, -1]]) if scope else (0, 0)
        if a != b and root[a] == root[b] and b not in network.scopes[a]:
            return False
    return True


def network_weights(network, states):
    q = np.ones(len(states), dtype=LONG)
    x = np.array(states)[:, network.order]
    for k, (scope, table) in enumerate(zip(network.scopes, network.tables, strict=True)):
        columns = table.astype(LONG) / table.astype(LONG).sum(axis=0)
        q *= columns[tuple(x[:, i] for i in (k, *scope))]
    return q


def test_networks_are_within_their_rounding():
    judged = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        cards = rng.integers(1, 4, size=n)
        network = random_network(rng, cards)
        scale = SCALES[rng.integers(len(SCALES))]
        factors = [([], [scale])]
        for _ in range(2 * n):
            scope = rng.choice(n, size=rng.integers(1, min(2, n) + 1), replace=False).tolist()
            factors.append((scope, scale * rng.normal(size=cards[scope])))
        model = tz.FactorGraph(cards, factors)
        states, logs = log_weights(model)
        if not held_by(network, model):
            with pytest.raises(RefutedError, match="no bucket"):
                network.verdict(model)
            continue
        judged += 1
        lower, _, rounding = network.verdict(model)
        assert lower <= log_sum(logs)
        exact = jensen(network_weights(network, states), logs)
        assert abs(LONG(lower) - exact) <= 2 * rounding
    assert judged > 200


def test_networks_that_are_none_are_refused():
    model = tz.FactorGraph([2, 3, 2], [((0, 1), np.zeros((2, 3))), ((1, 2), np.zeros((3, 2)))])
    order, scopes = np.arange(3), [(1,), (2,), ()]
    tables = [np.ones((2, 3)), np.ones((3, 2)), np.ones(2)]
    assert NetworkEvidence(order, scopes, tables).verdict(model).lower <= log_z(model)
    changes = [
        (np.array([0, 0, 1]), scopes, tables, "each once"),
        (order, [(0,), (2,), ()], tables, "later nodes"),
        (order, [(1, 2), (), ()], [np.ones((2, 3, 2)), np.ones(3), np.ones(2)], "bucket"),
        (order, scopes, [np.ones((3, 2)), *tables[1:]], "shape"),
        (order, scopes, [-np.ones((2, 3)), *tables[1:]], "no weight"),
        (order, [(1,), (), ()], [np.ones((2, 3)), np.ones(3)], "every node"),
    ]
    for o, s, t, says in changes:
        with pytest.raises(RefutedError, match=says):
            NetworkEvidence(o, s, t).verdict(model)


# ---- layers -----------------------------------------------------------------------------------


def test_expectations_of_log_cosh_are_lower_bounds():
    worst = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(0, 11))
        scale = 10.0 ** rng.uniform(-3, 2)
        couplings = scale * rng.normal(size=(2, count))
        field = scale * rng.normal(size=2)
        means = np.tanh(3 * rng.normal(size=(2, count)))
        truth = np.zeros(2, dtype=LONG)
        for signs in itertools.product((1, -1), repeat=count):
            s = np.array(signs, dtype=LONG)
            q = ((1 + s * means.astype(LONG)) / 2).prod(axis=1)
            x = np.abs(field.astype(LONG) + (couplings.astype(LONG) * s).sum(axis=1))
            truth += q * (x + np.log1p(np.exp(-2 * x)))
        got = expected_log_2cosh(field, couplings, means)
        assert (got <= truth).all()
        worst = max(worst, float((truth - got).max()))
    assert worst < 1e-5


def test_layers_are_lower_bounds_and_close():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        visible, hidden = (int(k) for k in rng.integers(1, 6, size=2))
        scale = (0.3, 3.0, 40.0)[seed % 3]
        rows = [
            ((i, visible + j), scale * rng.normal()) for i in range(visible) for j in range(hidden)
        ]
        rows += [((i,), scale * rng.normal()) for i in range(visible + hidden)]
        rows += [((0, 1), scale)] if visible > 1 else []
        poly = SpinPolynomial.from_terms(visible + hidden, rng.normal(), rows)
        summed = np.arange(visible + hidden) >= visible
        held = np.zeros((2, visible + hidden), dtype=bool)
        held[:, 0] = True
        means = np.tanh(2 * rng.normal(size=held.shape))
        means[:, 0] = [1.0, -1.0]
        terms = SpinTerms.of(poly)
        value, rounding = LayerQ(summed, held, means).value(terms)
        states, logs = spin_logs(terms, poly.n)
        assert value - rounding <= log_sum(logs)
        shares = []
        for row in means:
            inner = np.array(
                [log_sum(logs[(states[:, :visible] == s).all(axis=1)])
                 for s in itertools.product((1, -1), repeat=visible)]
            )  # fmt: skip
            kept = np.array(list(itertools.product((1, -1), repeat=visible)))
            q = ((1 + kept * row[:visible].astype(LONG)) / 2).prod(axis=1)
            shares.append(jensen(q, inner))
        exact = log_sum(np.array(shares))
        assert 0 <= exact - (value - rounding) < 2e-3


def test_layers_of_all_states_are_within_their_rounding():
    """A leaf for every state of the kept spins is exact: nothing but rounding is to spare."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        kept, summed = 3, 4
        large = 1e7 * rng.normal(size=kept)
        rows = [((i, kept + j), rng.normal()) for i in range(kept) for j in range(summed)]
        rows += [((i,), rng.normal()) for i in range(kept + summed)]
        rows += [((i, (i + 1) % kept), large[i]) for i in range(kept)]
        poly = SpinPolynomial.from_terms(kept + summed, 0.0, [*rows, ((), -np.abs(large).sum())])
        chosen = np.arange(kept + summed) >= kept
        means = np.zeros((2**kept, kept + summed))
        means[:, :kept] = list(itertools.product((1, -1), repeat=kept))
        held = np.tile(~chosen, (2**kept, 1))
        value, rounding = LayerQ(chosen, held, means).value(SpinTerms.of(poly))
        exact = log_sum(spin_logs(SpinTerms.of(poly), poly.n)[1])
        assert 0 <= exact - (value - rounding) < 1e-6


def test_layers_that_overlap_or_meet_are_refused():
    poly = SpinPolynomial.from_terms(3, 0.0, [((0, 1), 1.0), ((1, 2), 1.0)])
    terms = SpinTerms.of(poly)
    summed = np.array([False, True, False])
    held = np.zeros((2, 3), dtype=bool)
    means = np.zeros((2, 3))
    with pytest.raises(RefutedError, match="share states"):
        LayerQ(summed, held, means).value(terms)
    held[:, 0] = True
    with pytest.raises(RefutedError, match="not decided"):
        LayerQ(summed, held, means).value(terms)
    means[:, 0] = 1.0
    with pytest.raises(RefutedError, match="share states"):
        LayerQ(summed, held, means).value(terms)
    with pytest.raises(RefutedError, match="independent"):
        LayerQ(np.array([True, True, False]), held[:1, :], means[:1]).value(terms)
    triple = SpinTerms.of(SpinPolynomial.from_terms(3, 0.0, [((0, 1, 2), 1.0)]))
    with pytest.raises(RefutedError, match="independent"):
        LayerQ(summed, held[:1, :], means[:1]).value(triple)


# ---- makers that are right, and makers that lie -----------------------------------------------


def test_the_verdict_is_the_makers_value_where_the_maker_is_right():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        model = tz.ising_grid(3, 4, coupling=(-3, 3), seed=seed)
        encoding = encode(model, multivalued=True)
        collapsed = collapse(encoding.polynomial, 2) if seed % 2 else None
        link = link_of(encoding, collapsed)
        poly = encoding.polynomial if collapsed is None else collapsed.polynomial
        parities = DenseParity().draw(seed % 3, poly.n, rng)
        coset = Coset.build(poly, parities)
        for family in (tz.MeanField(restarts=2), StructuredMeanField(width=2, restarts=1)):
            q = family.project(coset, rng)
            bound = lower_bound_of(q, "some q", "Jensen", link)
            if not coset.feasible:
                assert bound.log_z == -math.inf
                assert bound.evidence is None
                continue
            verdict = bound.evidence.verdict(model)
            assert q.log_gamma == pytest.approx(bound.log_z, abs=1e-9)
            assert verdict.lower <= bound.log_z <= log_z(model)
            assert bound.log_z - verdict.lower < 1e-9


def test_blocks_of_bits_are_judged():
    for seed in range(40):
        model, rng = hostile(seed, states=5)
        encoding = encode(model, multivalued=True)
        q = family_for(encoding.polynomial, restarts=2).project(
            Coset.build(encoding.polynomial), rng
        )
        verdict = evidence_of(q, link_of(encoding)).verdict(model)
        assert verdict.lower <= log_z(model)
        assert abs(verdict.lower - q.log_gamma) <= 2 * verdict.rounding + 1e-9 * abs(q.log_gamma)


def test_direct_calls_are_rounded_outward():
    for seed in range(60):
        model, _ = hostile(seed)
        truth = log_z(model)
        for r in (
            tz.mean_field(model, family=tz.MeanField(restarts=2), seed=0),
            block_mean_field(model, seed=0),
        ):
            assert r.log_z == r.bound.log_z <= truth
            assert r.bound.evidence.verdict(model).lower == r.log_z
            assert r.bound.rounding > 0.0
    poly = random_terms(np.random.default_rng(0), 6)
    r = tz.mean_field(poly, seed=0)
    assert r.log_z <= log_sum(spin_logs(SpinTerms.of(poly), 6)[1])
    with pytest.raises(RefutedError, match="without its model"):
        r.bound.evidence.verdict(tz.ising_grid(2))


def lie(value):
    """Thirty nats too much, whatever the shape."""
    return value + 30.0


def test_lying_evaluators_do_not_get_through(monkeypatch):
    model = tz.ising_grid(4, seed=3)
    truth = tz.exact(model).log_z
    honest = mean_field_module.evaluate
    monkeypatch.setattr(mean_field_module, "evaluate", lambda *a: lie(honest(*a)))
    assert tz.mean_field(model, seed=0).log_zs.max() > truth
    assert tz.mean_field(model, seed=0).log_z < truth
    tables = block_module.evaluate_tables
    monkeypatch.setattr(block_module, "evaluate_tables", lambda *a: lie(tables(*a)))
    assert block_mean_field(model, seed=0).log_z < truth
    bound = structured_module.structured_bound
    monkeypatch.setattr(structured_module, "structured_bound", lambda *a: lie(bound(*a)))
    encoding = encode(model)
    q = StructuredMeanField(width=2).project(
        Coset.build(encoding.polynomial), np.random.default_rng(0)
    )
    assert q.log_gamma > truth
    assert lower_bound_of(q, "q", "", link_of(encoding)).log_z < truth


def test_a_lying_log_cosh_does_not_get_through(monkeypatch):
    model = tz.ising_grid(4, seed=3)
    truth = tz.exact(model).log_z
    honest = ascent.expected_log_2cosh

    def false(*args, **options):
        lower, tanh, slopes = honest(*args, **options)
        return lower + 5.0, tanh, slopes

    monkeypatch.setattr(ascent, "expected_log_2cosh", false)
    r = layer_mean_field(model, tz.LayerMeanField(leaves=4), seed=0)
    assert r.log_zs.max() > truth
    assert r.log_z == r.bound.log_z < truth
    assert r.bound.evidence.verdict(model).lower == r.log_z


@pytest.mark.parametrize("wrong", ["marginals", "tables"])
def test_clusters_with_wrong_beliefs_give_valid_bounds(monkeypatch, wrong):
    """The bug that this replaces: with wrong marginals the bound lay up to 216 nats too high."""
    rng = np.random.default_rng(0)
    honest = getattr(ClusterTables, "marginals" if wrong == "marginals" else "conditionals")

    def false(self, argument):
        out = honest(self, argument)
        return [np.asarray(rng.permutation(t.ravel()).reshape(t.shape)) for t in out]

    monkeypatch.setattr(ClusterTables, honest.__name__, false)
    for seed in range(10):
        model = tz.ising_grid(4, coupling=(-6, 6), seed=seed)
        start = [np.full(2, 0.5)] * 16
        run = ClusterMeanField(model, np.arange(16) // 8, start)
        bounds = [bound for bound, _ in zip(run.bounds(Clock(60.0)), range(5), strict=False)]
        truth = tz.exact(model).log_z
        assert all(b.log_z <= truth for b in bounds)
        assert all(b.evidence.verdict(model).lower == b.log_z for b in bounds)


def test_a_stale_collapse_pays_or_is_refuted():
    """A kernel that forgets a constant is found out before its number counts."""
    model = tz.ising_grid(4, seed=1)
    encoding = encode(model)
    found = collapse(encoding.polynomial, 4)
    good = link_of(encoding, found)
    q = tz.MeanField().project(Coset.build(found.polynomial), np.random.default_rng(0))
    evidence = SpinEvidence(good, q.distribution())
    assert evidence.verdict(model).lower <= tz.exact(model).log_z
    terms = good.collapse.terms
    false = SpinTerms(terms.constant + 30.0, terms.ptr, terms.spins, terms.theta)
    link = SpinLink(good.encoding, CollapseLink(false, found.kept, found.order))
    with pytest.raises(RefutedError, match="away"):
        SpinEvidence(link, q.distribution()).verdict(model)


def test_values_of_links_are_worked_out_once():
    model = tz.ising_grid(3, seed=0)
    link = link_of(encode(model))
    first = link.rounding(model)
    assert link.encoding._done == [(model, first)]
    assert link.rounding(model) == first
    assert len(link.encoding._done) == 1
    coset = Coset.build(encode(model).polynomial)
    assert chart_of(coset).n == 9


def test_spins_that_do_not_exist_are_refused():
    """A spin without a term is legitimate; one that the model has not would double Z."""
    model = tz.FactorGraph([2, 2], [((0,), [0.3, -0.2])])
    link = link_of(encode(model))
    for q in (
        ProductQ(SpinMap.identity(3), np.zeros(3)),
        ForestQ(SpinMap.identity(3), np.arange(3), np.zeros(4, int), np.zeros(0, int), np.ones(6)),
        LayerQ(np.array([True, False, False]), np.zeros((1, 3), bool), np.zeros((1, 3))),
    ):
        with pytest.raises(RefutedError, match="q is over 3 spins"):
            SpinEvidence(link, q).verdict(model)
    right = SpinEvidence(link, ProductQ(SpinMap.identity(2), np.zeros(2))).verdict(model)
    assert right.lower <= log_z(model)
    more = CollapseLink(link.terms, np.arange(3), np.zeros(0, dtype=np.int64))
    false = SpinEvidence(SpinLink(link.encoding, more), ProductQ(SpinMap.identity(3), np.zeros(3)))
    with pytest.raises(RefutedError, match="the model has not"):
        false.verdict(model)
