"""The lemmas behind the two-sided certificate (docs/theory.md), by enumeration of every draw.

All outcomes of a draw from a small model, dead ends among them, are known with their probabilities;
so the mean of a wealth is a sum, and no tolerance for chance is needed.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests.test_capped import all_states, by_hand, proposal_of
from tightz.sampling import shares
from tightz.sampling.ledger import CAPPED_SHARES, SHARES, Ledger
from tightz.workspace.findings import Draws, Source
from tightz.workspace.shares import Grid

# the kernel's Python; the compiled one can be called by kernels only
wealth_of_share = getattr(shares._log_wealth, "py_func", shares._log_wealth)


def step(rng, parts, states, weights, zeros):
    """S of one variable in one context: sum over v of prod_r exp(F_r - m_r)."""
    logs = np.zeros(states)
    for weight in weights[:parts]:
        table = rng.normal(0.0, 3.0, states)
        table[rng.random(states) < zeros] = -math.inf
        top = table.max()
        if top == -math.inf:
            return 0.0
        message = top + weight * math.log(np.exp((table - top) / weight).sum())
        logs += table - message
    return float(np.exp(logs).sum())


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 6), st.sampled_from([0.0, 0.3]))
def test_no_step_gains_weight(seed, parts, states, zeros):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(parts, 0.5)).clip(1e-3)
    assert step(rng, parts, states, weights / weights.sum(), zeros) <= 1.0 + 1e-12


def test_weights_that_sum_to_less_than_one_would_gain():
    """The control: Hoelder's inequality asks for a sum of 1."""
    rng = np.random.default_rng(0)
    assert max(step(rng, 2, 3, [0.2, 0.2], 0.0) for _ in range(100)) > 1.5


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["positive", "zeros"])
def outcomes(request):
    """(model, proposal, states, their chances, log W): a dead end is the last outcome."""
    rng = np.random.default_rng(6)
    pairs = list(itertools.combinations(range(5), 2))
    factors = []
    for pair in pairs:
        table = rng.normal(0.0, 1.5, (2, 2))
        table[rng.random(table.shape) < request.param] = -math.inf
        factors.append((pair, table))
    model = tz.FactorGraph([2] * 5, factors)
    p = proposal_of(model)
    states = all_states(model)
    q, product = np.array([by_hand(p, x) for x in states]).T
    states, q, product = states[q > 0], q[q > 0], product[q > 0]
    assert q.sum() <= 1.0 + 1e-9
    chances = np.append(q, max(0.0, 1.0 - q.sum()))
    return model, p, states, chances, np.append(p.log_u + np.log(product), -math.inf)


def log_mean(chances, log_weights):
    top = log_weights.max()
    return top + math.log(float(chances @ np.exp(log_weights - top)))


def wealth(source, draws, log_z, upper):
    ledger = Ledger(0.05)
    ledger.add(Draws(source, np.array(draws)))
    share = (CAPPED_SHARES if upper else SHARES)["mini-bucket"]
    return math.exp(ledger.log_wealths(log_z, upper=upper)["mini-bucket"]) / share


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("expected", [10.0, 1e6])
def test_the_mean_of_the_wealth_stays_at_one(outcomes, upper, expected):
    model, p, _, chances, logs = outcomes
    log_z = log_mean(chances, logs)
    assert log_z == pytest.approx(tz.exact(model).log_z, abs=1e-5)
    source = Source("mini-bucket", log_z, log_cap=p.log_cap, spread=0.5, expected=expected)
    after = np.array([wealth(source, [w], log_z, upper) for w in logs])
    assert (after >= 0.0).all()
    assert chances @ after == pytest.approx(1.0, abs=1e-9)
    for first in np.argsort(-chances)[:6]:  # given one draw, the next gains nothing either
        then = np.array([wealth(source, [logs[first], w], log_z, upper) for w in logs])
        assert chances @ then == pytest.approx(after[first], rel=1e-9)
    # the control: against a z on the wrong side a bet wins
    wrong = 0.5 * (log_z + p.log_cap) if upper else log_z - 0.5
    assert chances @ np.array([wealth(source, [w], wrong, upper) for w in logs]) > 1.0001


def placed(grid, log_x):
    """(point, chance) of both places that a draw may be moved to; the last point is 0."""
    ladder = np.append(grid.points, 0.0)
    x = math.exp(min(0.0, log_x))
    low = min(int((ladder > x).sum()), grid.count)
    high = max(0, low - 1)
    share = 1.0 if ladder[high] == ladder[low] else (x - ladder[low]) / (ladder[high] - ladder[low])
    for u, place in ((share - 1e-9, high), (share + 1e-9, low)):
        if 0.0 < u < 1.0:
            assert grid.place(np.array([log_x]), np.array([u]))[0] == place
    return (high, share), (low, 1.0 - share)


@pytest.mark.parametrize("variable", range(5))
@pytest.mark.parametrize("state", [0, 1])
def test_the_mean_of_a_bet_on_a_marginal_stays_at_one(outcomes, variable, state):
    _, p, states, chances, logs = outcomes
    weights = chances[:-1] * np.exp(logs[:-1] - p.log_cap)
    mine = states[:, variable] == state
    truth = float(weights[mine].sum() / weights.sum())
    grid = Grid.of(p.log_cap - log_mean(chances, logs), 10)
    stakes = shares.stake(-1.0, 0.5, 20.0, 5, 0.05) * shares.STAKES[None, :]

    def mean(r):
        total = float(chances[-1])  # a dead end neither wins nor loses
        for chance, log_x, one in zip(chances, logs[:-1] - p.log_cap, mine, strict=False):
            for point, share in placed(grid, float(log_x)):
                counts = np.zeros((2, 1, grid.count + 1))
                counts[0 if one else 1, 0, point] = 1.0
                ones, others = counts[:, :, : grid.count]
                log = wealth_of_share(r, grid.points[None, :], ones, others, stakes, np.zeros(1))
                total += chance * share * math.exp(log)
        return total

    assert 0.0 < truth < 1.0
    assert mean(truth) == pytest.approx(1.0, abs=1e-9)
    assert mean(0.8 * truth) > 1.0 + 1e-4
    assert mean(truth + 0.2 * (1.0 - truth)) < 1.0
