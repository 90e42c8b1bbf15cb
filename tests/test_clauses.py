"""Weighted model counting: against enumeration in exact arithmetic, elimination, and itself."""

from __future__ import annotations

import itertools
import math
import os
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hostile
from tightz.elimination.clauses import Refused, counting_plan, plan_clauses
from tightz.elimination.clauses import arrays as a
from tightz.elimination.clauses.counting import CountingPlan
from tightz.elimination.clauses.formula import ClauseModel, clause_model, cover
from tightz.elimination.clauses.setup import watch
from tightz.elimination.exact import exact
from tightz.errors import ParameterError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats import read
from tightz.models.large_scopes import auxiliaries, clause
from tightz.reductions.preparation import prepare

FAR = math.log(1e300)


def truth(n, clauses, weights):
    """(log Z to 60 digits or None, marginals of state 1), by enumeration; weights are logs."""
    with localcontext() as context:
        context.prec = 60
        factor = [
            Decimal(0) if weights.get(x, 0.0) == -math.inf else Decimal(weights.get(x, 0.0)).exp()
            for x in range(2 * n)
        ]
        total, ones = Decimal(0), [Decimal(0)] * n
        for state in itertools.product((0, 1), repeat=n):
            if all(any(state[x >> 1] == (x & 1) for x in c) for c in clauses):
                w = Decimal(1)
                for v, s in enumerate(state):
                    w *= factor[2 * v + s]
                total += w
                ones = [o + w * s for o, s in zip(ones, state, strict=True)]
        if not total:
            return None, None
        return total.ln(), [float(o / total) for o in ones]


def assert_counts(n, clauses, weights, **options):
    expected, ones = truth(n, clauses, weights)
    count = plan_clauses(n, clauses, weights).start(max_memory=10**6, **options)
    assert count.advance(60.0)
    assert count.progress == 1.0
    if expected is None:
        assert count.log_z == -math.inf
        assert count.rounding == 0.0
        assert count.marginals() is None
        assert count.why_no_marginals == "no state has weight"
        return
    assert abs(Decimal(count.log_z) - expected) <= Decimal(count.rounding)
    assert count.rounding <= 1e-9
    for found, one in zip(count.marginals(), ones, strict=True):
        assert found[1] == pytest.approx(one, abs=1e-9)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)


def random_clauses(rng, n, m, sizes=(1, 2, 3, 3, 3, 4)):
    """m clauses; some have a literal twice or both signs of one, at times one is empty."""
    return [[int(x) for x in rng.integers(0, 2 * n, size=rng.choice(sizes))] for _ in range(m)]


def random_weights(rng, n):
    pick = [0.0, 0.0, -0.7, 1.3, FAR, -FAR, -math.inf]
    return {x: float(rng.choice(pick)) for x in range(2 * n) if rng.random() < 0.4}


@pytest.mark.parametrize("learning", [True, False])
def test_random_formulas_against_enumeration(learning):
    for seed in range(120):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 10))
        clauses = random_clauses(rng, n, int(rng.integers(0, 4 * n)))
        assert_counts(n, clauses, random_weights(rng, n), learning=learning, seed=seed % 3)


literals = st.lists(st.integers(0, 13), max_size=4)
logs = st.sampled_from([0.0, -math.inf, FAR, -FAR, 1e5, -1e5, 0.3, -2.5])


@given(st.lists(literals, max_size=20), st.dictionaries(st.integers(0, 13), logs))
def test_any_formula_against_enumeration(clauses, weights):
    assert_counts(7, clauses, weights)


def threshold(rng, n, ratio, parts=1):
    """Random 3-SAT near its threshold, in `parts` that share nothing: many conflicts."""
    return [
        [2 * int(v) + 2 * n * p + int(rng.integers(2)) for v in rng.permutation(n)[:3]]
        for p in range(parts)
        for _ in range(int(ratio * n))
    ]


def integer_count(n, clauses):
    states = np.array(list(itertools.product((0, 1), repeat=n)), dtype=bool)
    ok = np.ones(len(states), dtype=bool)
    for c in clauses:
        ok &= np.logical_or.reduce([states[:, x >> 1] == bool(x & 1) for x in c])
    return int(ok.sum())


def test_learned_clauses_and_components_without_models_keep_the_count():
    """Two parts, hinged on a few variables, where one is often without models in some branch."""
    zero = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        clauses = threshold(rng, 7, 3.6, parts=2)
        clauses += [[int(x) for x in rng.choice(28, size=3, replace=False)] for _ in range(2)]
        exact_count = integer_count(14, clauses)
        zero += exact_count == 0
        count = plan_clauses(14, clauses).start(max_memory=10**6)
        assert count.advance(60.0)
        if exact_count:
            with localcontext() as context:
                context.prec = 40
                gap = abs(Decimal(count.log_z) - Decimal(exact_count).ln())
            assert gap <= Decimal(count.rounding)
        else:
            assert count.log_z == -math.inf
    assert 0 < zero < 60


def test_rounding_against_fractions():
    """Weights that are logs of fractions: off by no more than the rounding and the logs' own."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = 10
        clauses = [
            [2 * int(v) + int(rng.integers(2)) for v in rng.permutation(n)[:3]] for _ in range(18)
        ]
        ratio = [Fraction(int(rng.integers(1, 50)), int(rng.integers(1, 50))) for _ in range(2 * n)]
        weights = {x: math.log(r) for x, r in enumerate(ratio)}
        total = Fraction(0)
        for state in itertools.product((0, 1), repeat=n):
            if all(any(state[x >> 1] == (x & 1) for x in c) for c in clauses):
                total += math.prod(
                    (ratio[2 * v + s] for v, s in enumerate(state)), start=Fraction(1)
                )
        count = plan_clauses(n, clauses, weights).start()
        assert count.advance(60.0)
        own = sum(2.0**-53 * abs(w) for w in weights.values())
        with localcontext() as context:
            context.prec = 40
            log_total = (Decimal(total.numerator) / Decimal(total.denominator)).ln()
        assert abs(Decimal(count.log_z) - log_total) <= Decimal(count.rounding + own)


def test_weights_that_are_floats_are_within_the_rounding_alone():
    n, off = 8, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        clauses = [
            [2 * int(v) + int(rng.integers(2)) for v in rng.permutation(n)[:3]] for _ in range(12)
        ]
        weights = {x: float(w) for x, w in enumerate(rng.normal(size=2 * n))}
        count = plan_clauses(n, clauses, weights).start()
        assert count.advance(60.0)
        with localcontext() as context:
            context.prec = 40
            total = Decimal(0)
            for state in itertools.product((0, 1), repeat=n):
                if all(any(state[x >> 1] == (x & 1) for x in c) for c in clauses):
                    total += sum((Decimal(weights[2 * v + s]) for v, s in enumerate(state)),
                                 start=Decimal(0)).exp()  # fmt: skip
            miss = abs(Decimal(count.log_z) - total.ln())
        assert miss <= Decimal(count.rounding)
        off += miss > 0
    assert off > 10


def test_counts_beyond_the_range_of_floats():
    n = 3000
    count = plan_clauses(n, [[1, 3], [1, 5, 7]]).start(max_memory="50MB")
    assert count.advance(60.0)
    with localcontext() as context:
        context.prec = 40
        # x0 true: 8 states of x1, x2, x3; false: x1 true, x2 or x3 true: 3
        expected = Decimal(11).ln() + (n - 4) * Decimal(2).ln()
    assert abs(Decimal(count.log_z) - expected) <= Decimal(count.rounding)


def test_empty_formulas():
    assert_counts(0, [], {})
    assert_counts(0, [[]], {})
    assert_counts(3, [], {})
    assert_counts(3, [[0], [1]], {})
    assert_counts(2, [[0, 1], [2, 2, 3]], {})  # nothing but tautologies


def middle(seed=3):
    rng = np.random.default_rng(seed)
    return 40, threshold(rng, 40, 3.0)


def test_stopping_and_going_on_changes_nothing():
    n, clauses = middle()
    whole = plan_clauses(n, clauses).start()
    assert whole.advance(60.0)
    sliced = plan_clauses(n, clauses).start()
    sliced._work = sliced._begin()
    seen = []
    while not sliced.finished:
        sliced._take(1)
        seen.append(sliced.progress)
    assert len(seen) > 100
    assert 0.0 < np.median(seen) < 1.0
    assert sliced.log_z == whole.log_z
    assert sliced.rounding == whole.rounding
    for x, y in zip(whole.marginals(), sliced.marginals(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("learning", [True, False])
def test_a_tiny_cache_gives_the_same_number(learning):
    n, clauses = middle()
    roomy = plan_clauses(n, clauses).start(learning=learning)
    tiny = plan_clauses(n, clauses).start(max_memory=4000, learning=learning)
    assert roomy.advance(60.0)
    assert tiny.advance(60.0)
    assert roomy._work.registers[a.EVICTIONS] == 0
    assert tiny._work.registers[a.EVICTIONS] > 100
    assert abs(tiny.log_z - roomy.log_z) <= tiny.rounding + roomy.rounding
    assert tiny.marginals() is None
    assert "raise max_memory" in tiny.why_no_marginals


def test_few_learned_clauses_give_the_same_number(monkeypatch):
    monkeypatch.setattr("tightz.elimination.clauses.setup._LEARNED", 40)
    n, clauses = middle()
    count = plan_clauses(n, clauses).start()
    assert count.advance(60.0)
    assert count._work.registers[a.REDUCTIONS] > 0
    other = plan_clauses(n, clauses).start(learning=False)
    assert other.advance(60.0)
    assert abs(count.log_z - other.log_z) <= count.rounding + other.rounding
    for x, y in zip(count.marginals(), other.marginals(), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


def test_a_cache_that_ignores_a_clause_is_noticed():
    """Negative control: one long clause, left out of the keys; the count is then wrong."""

    def counted(blind):
        # x0 decides whether the clause on 1, 2, 3 is open; implications tie 1, 2, 3 together.
        clauses = [[1, 3, 5, 7], [2, 5], [4, 7], [6, 3]]
        count = plan_clauses(4, clauses).start()
        count._work = count._begin()
        count._work.registers[a.BLIND] = blind
        count._work.formula.priority[:] = [9.0, 0.0, 0.0, 0.0]
        assert count.advance(60.0)
        return count.log_z

    right = math.log(integer_count(4, [[1, 3, 5, 7], [2, 5], [4, 7], [6, 3]]))
    assert counted(0) == pytest.approx(right, abs=1e-14)
    assert abs(counted(1) - right) > 0.1


def blocks_and_long_clauses(seed):
    """Blocks of four variables, each with its own short clauses, and long clauses over all."""
    rng = np.random.default_rng(seed)
    n, clauses = 16, []
    for base in range(0, n, 4):
        for _ in range(4):
            chosen = base + rng.permutation(4)[: rng.integers(1, 4)]
            clauses.append([2 * int(v) + int(rng.integers(2)) for v in chosen])
    for _ in range(int(rng.integers(1, 7))):
        clauses.append([2 * int(v) + int(rng.integers(2)) for v in rng.permutation(n)[:7]])
    mild = {x: float(rng.normal()) for x in range(2 * n)}
    return n, clauses, random_weights(rng, n) if seed % 3 == 0 else mild


def test_sums_by_blocks_agree_with_the_search(monkeypatch):
    by_blocks = 0
    for seed in range(60):
        n, clauses, weights = blocks_and_long_clauses(seed)
        search = plan_clauses(n, clauses, weights).start(max_memory=10**7)
        assert search.advance(60.0)
        with monkeypatch.context() as patch:
            patch.setattr("tightz.elimination.clauses.counting._PATIENCE", 0)
            other = plan_clauses(n, clauses, weights).start(max_memory=10**7)
            assert other.advance(60.0)
        by_blocks += other._blocks is not None
        if search.log_z == -math.inf:
            assert other.log_z == -math.inf
            continue
        assert abs(other.log_z - search.log_z) <= search.rounding + other.rounding
        if other._blocks is not None:
            assert other.marginals() is None
            assert "blocks" in other.why_no_marginals
    assert by_blocks > 10


def test_what_was_counted_beside_a_part_without_models_is_withdrawn():
    """A learned clause may follow only because a neighbour has no model: its counts must go.

    With r the part b has no model, so F implies not r, and (not r or a1 or a2) is a clause that the
    search may learn. It holds part a's count at 6 states of 7; without r that count is wrong.
    """
    r, s, a1, b1, d1 = 0, 1, 2, 5, 9
    clauses = [[2 * v + 1 for v in (a1, a1 + 1, a1 + 2)], [2 * r + 1, 2 * s + 1, 2 * a1 + 1]]
    for signs in itertools.product((0, 1), repeat=3):
        clauses.append([2 * r, *(2 * (b1 + i) + sign for i, sign in enumerate(signs))])
    clauses.append([2 * (b1 + 1) + 1, 2 * (b1 + 2) + 1, 2 * (b1 + 3) + 1])
    for u, v in itertools.combinations(range(d1, d1 + 5), 2):  # so that r comes first, and as true
        clauses.append([2 * r + 1, 2 * u + 1, 2 * v + 1])
    count = plan_clauses(14, clauses).start()
    work = count._work = count._begin()
    work.formula.priority[:] = 0.0
    work.formula.priority[:2] = [1000.0, 900.0]
    learned, at = int(work.registers[a.CLAUSES]), int(work.registers[a.POOL])
    work.clauses.pool[at : at + 3] = [2 * r, 2 * a1 + 1, 2 * a1 + 3]
    work.clauses.start[learned], work.clauses.length[learned] = at, 3
    work.registers[a.CLAUSES] += 1
    work.registers[a.POOL] += 3
    watch(work)
    assert count.advance(60.0)
    assert work.registers[a.USES] > 0
    assert count.log_z == pytest.approx(math.log(integer_count(14, clauses)), abs=1e-12)


# Models -------------------------------------------------------------------------------------


def test_cubes_cover_and_stay_inside():
    rng = np.random.default_rng(0)
    for _ in range(100):
        k = int(rng.integers(1, 6))
        may = rng.random((2,) * k) < 0.6
        must = may & (rng.random((2,) * k) < 0.7)
        covered = np.zeros_like(may)
        for cube in cover(must, may):
            covered[tuple(slice(None) if s < 0 else s for s in cube)] = True
        assert (must <= covered).all()
        assert (covered <= may).all()


def test_hostile_tables_against_enumeration():
    """Many weights in one table, huge and tiny: the auxiliaries keep Z, within the rounding."""
    refused = 0
    for seed in range(300):
        cards, factors = hostile.model(np.random.default_rng(seed))
        factors = [(s, np.asarray(t)[tuple(slice(0, 2) for _ in s)]) for s, t in factors]
        cards = [2] * len(cards)
        formula = clause_model(FactorGraph(cards, factors))
        if isinstance(formula, Refused):
            assert "nats apart" in formula.reason
            refused += 1
            continue
        expected = hostile.truth(cards, factors)
        count = CountingPlan(formula).start(max_memory=10**6)
        assert count.advance(60.0)
        if expected is None:
            assert count.log_z == -math.inf
            continue
        assert expected.error(count.log_z) <= count.rounding
        for v, found in enumerate(count.marginals()):
            np.testing.assert_allclose(found, expected.marginal([v]), atol=1e-8)
    assert refused < 100


def test_agrees_with_elimination_on_logical_and_weighted_tables():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        n, factors = 30, []
        for _ in range(50):
            scope = rng.permutation(n)[: rng.integers(1, 5)].tolist()
            kind = rng.integers(3)
            shape = (2,) * len(scope)
            table = np.where(rng.random(shape) < 0.2, -np.inf, 0.0)
            if kind == 1:
                table = table + rng.normal(size=shape)
            elif kind == 2:
                table = table + rng.choice([0.0, 1.0, 400.0], size=shape)
            factors.append((scope, table))
        model = FactorGraph([2] * n, factors)
        plan = counting_plan(model)
        assert "clauses" in plan.describe()
        assert 0.0 < plan.share < 1.0
        assert plan.n_auxiliaries > 0
        count, other = plan.start(), exact(model)
        assert count.advance(60.0)
        if other.log_z == -math.inf:
            assert count.log_z == -math.inf
            continue
        assert abs(count.log_z - other.log_z) <= count.rounding + other.rounding
        for x, y in zip(count.marginals(), other.marginals, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-9)


def test_long_clauses_written_as_chains():
    n = 40
    factors = clause(range(n), [0] * n, first_auxiliary=n)
    model = FactorGraph([2] * (n + auxiliaries(n)), factors)
    count = counting_plan(model).start()
    assert count.advance(60.0)
    assert abs(count.log_z - math.log(2**n - 1)) <= count.rounding + 1e-14
    assert count.plan.n_auxiliaries == 0


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
@pytest.mark.parametrize(
    "name", ["uai2014/c432.isc.cnf", "uai2014_more/2bitcomp_5.cnf", "uai2014_more/log-1.cnf"]
)
def test_circuits_against_their_references(name):
    path = Path(os.environ["TIGHTZ_DATA"]) / f"{name}.uai"
    reference = float(path.with_name(path.name + ".PR").read_text().split()[-1])
    chain = prepare(read(path))
    count = counting_plan(chain.reduced).start(max_memory="500MB")
    assert count.advance(60.0)
    assert count.log_z == pytest.approx(reference * math.log(10.0), abs=1e-9)
    assert count.rounding < 1e-12
    for found in chain.lift_marginals(count.marginals()):
        assert found.sum() == pytest.approx(1.0, abs=1e-9)


def test_refusals_say_why():
    three = FactorGraph([2, 3], [((0, 1), np.zeros(6))])
    assert "variable 1 has 3 states" in counting_plan(three).reason
    seen = FactorGraph([2, 2], [((0, 1), [0.0, 0.0, 0.0, -np.inf])], evidence={0: 1})
    assert "evidence" in counting_plan(seen).reason
    soft = FactorGraph([2, 2], [((0, 1), [0.0, 1.0, 2.0, 3.0])])
    assert "has a zero" in counting_plan(soft).reason
    far = FactorGraph([2, 2], [((0, 1), [0.0, 1.0, -1e9, -np.inf])])
    assert "factor 0 has weights more than 1e+06 nats apart" in counting_plan(far).reason
    unary = [((0,), [0.0, 6e5]), ((0,), [0.0, 6e5]), ((0, 1), [0.0, 0.0, 0.0, -np.inf])]
    assert "variable 0 has weights" in counting_plan(FactorGraph([2, 2], unary)).reason
    dead = [((0,), [1e9, -np.inf]), ((0, 1), [0.0, 0.0, -np.inf, 0.0])]
    assert isinstance(counting_plan(FactorGraph([2, 2], dead)), CountingPlan)
    many = ClauseModel(2, 2, [(0,), (1,)])
    assert many.contradiction


def test_variables_of_one_state():
    model = FactorGraph([1, 2, 2], [((0, 1, 2), [0.5, -np.inf, 0.5, 0.5])])
    count = counting_plan(model).start()
    assert count.advance(60.0)
    assert abs(count.log_z - (math.log(3.0) + 0.5)) <= count.rounding + 1e-15
    assert [m.size for m in count.marginals()] == [1, 2, 2]


@pytest.mark.parametrize("constant", [-math.inf, -300.0, 0.0, 300.0])
def test_constants_and_variables_of_one_state(constant):
    """A table without a binary variable: evidence leaves such, zeros among them."""
    other = np.array([[0.0, -math.inf], [0.5, 0.0]])
    for scope, shape in [((), ()), ((2,), (1,)), ((2, 3), (1, 1))]:
        factors = [(scope, np.full(shape, constant)), ((0, 1), other)]
        model = FactorGraph([2, 2, 1, 1], factors)
        count = counting_plan(model).start(max_memory=10**6)
        assert count.advance(60.0)
        expected = hostile.truth([2, 2, 1, 1], factors)
        if expected is None:
            assert count.log_z == -math.inf
        else:
            assert expected.error(count.log_z) <= count.rounding < 1e-10


def test_formulas_too_large_for_cache_keys_are_refused():
    """Keys hold 16 bits a number: pieces 65536 apart looked alike, and the count was wrong."""
    with pytest.raises(ParameterError, match="65535"):
        plan_clauses(65_536, [[1, 3]])
    n = 75  # 67,525 clauses of three literals
    clauses = [[2 * v for v in scope] for scope in itertools.combinations(range(n), 3)]
    with pytest.raises(ParameterError, match="65535"):
        plan_clauses(n, clauses)
    assert plan_clauses(65_535, [[1, 3]]).n_clauses == 1


def test_a_very_long_clause():
    """Its graph would have 4.5e8 pairs: decisions are then not guided."""
    n = 15_000
    count = plan_clauses(n, [list(range(1, 2 * n, 2))]).start(max_memory=10**7)
    assert not count.advance(0.0)
    assert math.isnan(count.width)
