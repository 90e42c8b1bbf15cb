"""Thermodynamics over temperatures: against enumeration, with ends that must hold."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import binary_models, models_with_zeros
from tightz.cli.main import main
from tightz.elimination.exact import ways
from tightz.elimination.exact.elimination import solve as exact_solve
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.order import Order
from tightz.interval import exact_sums
from tightz.interval import free_energy as module
from tightz.judge.convexity import Limits, scaling_slack, thermal
from tightz.judge.verdict import RefutedError
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.models.temperature import at_beta
from tightz.search.pool import sample_pool, with_states
from tightz.workspace.findings import Mixing, Samples
from tightz.workspace.shared import Shared, factors_of
from tightz.workspace.working import Working

FERROMAGNET = tz.ising_grid(3, coupling=1.0, field=0.0)


def weights_of(model):
    """(log weights of the possible states, their spins), by enumeration."""
    ranges = [
        [model.evidence[v]] if v in model.evidence else range(int(d))
        for v, d in enumerate(model.cardinalities)
    ]
    states = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    states = states.reshape(len(states), model.n_variables)
    weights = np.array([math.fsum(_entries(model, x)) for x in states.tolist()])
    return weights[weights > -np.inf], states[weights > -np.inf]


def _entries(model, x):
    return [float(table[tuple(x[v] for v in scope)]) for scope, table in model.factors]


def truth(weights, beta):
    """(log Z, energy, entropy, variance of the energy) in long doubles."""
    w = weights.astype(np.longdouble)
    logs = np.longdouble(beta) * w
    top = logs.max()
    shares = np.exp(logs - top)
    total = shares.sum()
    shares /= total
    log_z, mean = top + np.log(total), shares @ w
    centred = w - mean
    return log_z, -mean, log_z - np.longdouble(beta) * mean, shares @ centred**2


BETAS = st.lists(
    st.one_of(st.sampled_from([0.0, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 30.0, 1e4]), st.floats(0.0, 3.0)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(binary_models(max_variables=5), models_with_zeros(max_variables=5)), BETAS)
def test_every_end_holds_and_every_value_is_that_of_enumeration(model, betas):
    r = tz.free_energy(model, betas=betas, time_limit=600.0, seed=0)
    weights, _ = weights_of(model)
    if not weights.size:
        assert (r.log_zs.upper == -np.inf).all()
        assert np.isnan(r.energy.value).all()
        return
    assert r.exact.all()
    scale = 1.0 + np.abs(weights).max(initial=0.0)
    for k, beta in enumerate(betas):
        log_z, energy, entropy, variance = truth(weights, beta)
        for curve, true in ((r.log_zs, log_z), (r.energy, energy), (r.entropy, entropy)):
            off = 1e-16 * scale * (1.0 + beta)  # of the truth itself
            assert curve.lower[k] - off <= true <= curve.upper[k] + off, curve.name
            assert curve.lower[k] <= curve.value[k] <= curve.upper[k]
            assert (curve.confident[k] == [curve.lower[k], curve.upper[k]]).all()
        assert r.energy.value[k] == pytest.approx(float(energy), abs=1e-9 * scale)
        assert r.energy.upper[k] - r.energy.lower[k] <= 1e-3 * scale
        capacity = beta**2 * float(variance)
        assert abs(r.heat_capacity.value[k] - capacity) <= 1e-12 + r.heat_capacity.error[k]
        assert r.heat_capacity.error[k] <= 1e-3 * max(1.0, (beta * scale) ** 2)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(binary_models(max_variables=5), models_with_zeros(max_variables=5)),
    BETAS,
    st.sampled_from([0.0, 1e-12, 0.1, 3.0]),
    st.integers(0, 2**32 - 1),
)
def test_convexity_never_excludes_the_truth(model, betas, width, seed):
    """Whatever the ends of log Z are, as long as they hold."""
    weights, _ = weights_of(model)
    if not weights.size:
        return
    rng = np.random.default_rng(seed)
    at = np.unique(betas)
    exact = [truth(weights, beta) for beta in at.tolist()]
    scale = 1e-15 * (1.0 + np.abs(weights).max())
    margin = width * rng.random((at.size, 2)) + scale * (1.0 + at[:, None])
    margin[rng.random(margin.shape) < 0.2] = np.inf
    log_z = np.array([float(t[0]) for t in exact])
    ends = np.stack([log_z - margin[:, 0], log_z + margin[:, 1]], axis=1)
    found = thermal(at, ends, Limits.of(model))
    for k, true in enumerate(exact):
        for pair, value in zip((found.log_z, found.energy, found.entropy), true, strict=False):
            slack = 1e-15 * abs(float(value))
            assert pair[k, 0] - slack <= value <= pair[k, 1] + slack
    assert (found.log_z[:, 0] >= ends[:, 0]).all()
    assert (found.log_z[:, 1] <= ends[:, 1]).all()


def test_an_end_on_the_wrong_side_is_caught():
    """Control: the checks above fail where log Z at one temperature is said to be elsewhere."""
    weights, _ = weights_of(FERROMAGNET)
    at = np.array([0.3, 0.31, 0.32])
    true = [truth(weights, beta) for beta in at.tolist()]
    log_z = np.array([float(t[0]) for t in true])
    ends = np.stack([log_z - 1e-9, log_z + 1e-9], axis=1)
    limits = Limits.of(FERROMAGNET)
    good = thermal(at, ends, limits)
    assert good.energy[1, 0] <= true[1][1] <= good.energy[1, 1]
    ends[2] += 0.5
    shifted = thermal(at, ends, limits)
    assert not shifted.energy[2, 0] <= true[2][1] <= shifted.energy[2, 1]
    assert not shifted.log_z[2, 0] <= true[2][0]


def test_a_temperature_without_ends_has_those_that_follow():
    weights, _ = weights_of(FERROMAGNET)
    at = np.array([0.2, 0.21, 0.3, 0.39, 0.4])
    log_z = np.array([float(truth(weights, beta)[0]) for beta in at.tolist()])
    ends = np.stack([log_z - 1e-9, log_z + 1e-9], axis=1)
    ends[2] = -np.inf, np.inf
    found = thermal(at, ends, Limits.of(FERROMAGNET)).log_z[2]
    assert found[0] <= log_z[2] <= found[1]
    assert found[1] - found[0] < 0.5


def test_what_is_no_interval_is_refused_by_the_judge():
    limits = Limits.of(FERROMAGNET)
    for at, ends in (
        ([0.2, 0.1], [[0.0, 1.0], [0.0, 1.0]]),
        ([0.1, 0.1], [[0.0, 1.0], [0.0, 1.0]]),
        ([0.1], [[0.0, 1.0], [0.0, 1.0]]),
    ):
        with pytest.raises(RefutedError, match="ascending"):
            thermal(np.array(at), np.array(ends), limits)
    with pytest.raises(RefutedError, match="above its upper"):
        thermal(np.array([0.1]), np.array([[1.0, 0.0]]), limits)


def test_zeros_stay_zeros_at_every_temperature():
    model = tz.FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [-np.inf, 2.0]])])
    assert np.isneginf(at_beta(model, 0.0).log_tables).sum() == 2
    r = tz.free_energy(model, betas=[0.0, 1.0], time_limit=60.0)
    assert r.log_zs.value == pytest.approx([math.log(2.0), math.log1p(math.exp(2.0))])
    assert r.energy.value[0] == pytest.approx(-1.0)


def test_scaled_tables_are_within_the_slack():
    rng = np.random.default_rng(5)
    for temperature in rng.uniform(0.1, 10.0, 50).tolist():
        model = tz.FactorGraph([1], [((0,), [rng.normal()])])
        scaled = at_beta(model, 1.0 / temperature)
        true = np.longdouble(model.log_tables[0]) / np.longdouble(temperature)
        assert abs(np.longdouble(scaled.log_tables[0]) - true) <= scaling_slack(scaled)


@pytest.mark.parametrize("side", [4, 10])
def test_the_square_ferromagnet_equals_kaufman(side):
    """By elimination and by Pfaffians, below, at and above the critical point."""
    critical = 2.0 / math.log(1.0 + math.sqrt(2.0))
    temperatures = [1.5, critical, 3.5]
    model = tz.ising_lattice((side, side), periodic=True)
    r = tz.free_energy(model, temperatures, time_limit=600.0)
    assert r.exact.all()
    for k, t in enumerate(temperatures):
        truth_ = naive.kaufman_log_z(side, side, 1.0 / t)
        assert r.log_zs.lower[k] - 1e-11 <= truth_ <= r.log_zs.upper[k] + 1e-11
        h = 1e-4
        above, below = (naive.kaufman_log_z(side, side, 1.0 / t + s) for s in (h, -h))
        assert r.energy.value[k] == pytest.approx((below - above) / (2 * h), rel=1e-5)
        bend = (above - 2.0 * truth_ + below) / h**2
        assert r.heat_capacity.value[k] == pytest.approx(bend / t**2, rel=1e-3)


def test_runs_hand_on_plans_orders_and_states_but_no_bounds(monkeypatch):
    model = tz.ising_lattice((4, 4, 4), coupling=tz.PlusMinus(), periodic=True, seed=2)
    shared = Shared()
    warm = Working(model, shared=shared)
    warm.leave_states()
    assert not shared.states  # none was searched for yet, and none is for this
    assert warm.plan is not None
    assert warm.spins.pool is not None
    order = warm.orders[Order.MIN_FILL]
    warm.leave_states()
    key = factors_of(warm.graph)
    assert len(shared.states[key])
    colder = Working(at_beta(model, 2.0), shared=shared)
    monkeypatch.setattr(Working, "_find_plan", None)  # would fail if it were called
    assert colder.plan is warm.plan
    assert colder.orders[Order.MIN_FILL] is order
    assert colder.spins.known is shared.states[key]
    pool = with_states(colder.spins.original, _empty(colder.spins.original.n), shared.states[key])
    assert len(pool.states) == len(shared.states[key])
    np.testing.assert_allclose(
        pool.log_weights, colder.spins.original.log_weight(pool.states), rtol=1e-12
    )
    assert (np.diff(pool.log_weights) <= 0.0).all()
    assert factors_of(at_beta(model, 2.0)) == factors_of(model)
    assert factors_of(model) != factors_of(model.with_evidence({0: 1}))


def _empty(n):
    pool = sample_pool(SpinPolynomial.from_factor_graph(tz.FactorGraph([2] * n)), sweeps=8, seed=0)
    return replace(pool, states=pool.states[:0], log_weights=pool.log_weights[:0])


def test_order_and_duplicates_of_the_grid_are_kept():
    r = tz.free_energy(FERROMAGNET, [2.0, math.inf, 1.0, 2.0], time_limit=60.0)
    assert r.temperatures.tolist() == [2.0, math.inf, 1.0, 2.0]
    assert r.betas.tolist() == [0.5, 0.0, 1.0, 0.5]
    assert r.log_zs.value[0] == r.log_zs.value[3]
    assert r.free_energy.value[1] == -math.inf
    assert r.energy.value[2] < r.energy.value[0] < r.energy.value[1] + 1e-12
    assert r.free_energy.lower[2] <= -1.0 * r.log_zs.value[2] <= r.free_energy.upper[2]


def test_one_temperature_has_a_finite_interval_on_its_energy_without_an_exact_sum():
    """0 <= S <= log of the number of states, and log Z at beta = 0, are always known."""
    model = tz.ising_grid(3, seed=3)
    weights, _ = weights_of(model)
    r = tz.free_energy(model, [1.0], exact=False, time_limit=1.0, seed=1)
    _, energy, entropy, _ = truth(weights, 1.0)
    assert r.energy.lower[0] <= energy <= r.energy.upper[0]
    assert np.isfinite([r.energy.lower, r.energy.upper]).all()
    assert max(0.0, r.entropy.lower[0]) <= entropy <= r.entropy.upper[0] <= 9 * math.log(2) + 1e-9


def test_without_exact_sums_intervals_hold_and_estimates_are_near():
    model = tz.ising_grid(3, 4, coupling=(-1, 1), field=(-1, 1), seed=11)
    weights, _ = weights_of(model)
    betas = [0.5, 0.7, 0.9]
    r = tz.free_energy(model, betas=betas, exact=False, time_limit=6.0, seed=7)
    assert not r.exact.any()
    for k, beta in enumerate(betas):
        log_z, energy, entropy, variance = (float(x) for x in truth(weights, beta))
        for curve, true in ((r.log_zs, log_z), (r.energy, energy), (r.entropy, entropy)):
            assert curve.lower[k] <= true <= curve.upper[k]
            assert curve.confident[k, 0] <= true <= curve.confident[k, 1]
            assert curve.lower[k] <= curve.confident[k, 0]
            assert curve.confident[k, 1] <= curve.upper[k]
        # a machine that gave the sampler no time says so: the errors are then infinite
        for curve, true in ((r.energy, energy), (r.heat_capacity, beta**2 * variance)):
            assert abs(curve.value[k] - true) <= 5.0 * curve.error[k]
        if np.isfinite(r.energy.error[k]) and "estimate from draws" in r.energy.source[k]:
            assert r.energy.value[k] == pytest.approx(energy, abs=1.0)
    assert np.isneginf(r.heat_capacity.lower).all()
    assert "not proven" in r.summary()


def test_errors_reach_levels_that_no_draw_has(monkeypatch):
    """At beta = 3 one draw in 10^4 is excited: 2000 of them may all be ground states."""
    weights, states = weights_of(FERROMAGNET)
    ground = np.resize(states[weights == weights.max()], (2000, 9))

    def run(model, **options):
        drawn = Samples(ground, np.zeros(2000), Mixing.MIXED, 2000.0)
        return replace(tz.log_partition(model, **options), sampler=lambda k, seed: drawn)

    monkeypatch.setattr(module, "log_partition", run)
    r = tz.free_energy(FERROMAGNET, betas=[3.0], exact=False, time_limit=1.0, seed=1)
    _, energy, entropy, variance = (float(x) for x in truth(weights, 3.0))
    for curve, true in ((r.energy, energy), (r.entropy, entropy), (r.heat_capacity, 9 * variance)):
        assert abs(curve.value[0] - true) <= 2.0 * curve.error[0], curve.name
    assert r.energy.error[0] < 0.01


def test_delta_is_divided_among_the_temperatures(monkeypatch):
    asked = []

    def run(model, **options):
        asked.append(options["delta"])
        return tz.log_partition(model, **options)

    monkeypatch.setattr(module, "log_partition", run)
    tz.free_energy(FERROMAGNET, [1.0, 2.0, 3.0, 3.0], exact=False, time_limit=0.6, delta=0.06)
    assert asked == pytest.approx([0.02] * 3)


def test_an_interrupt_leaves_what_is_known(monkeypatch):
    def stop(temperature):
        if 1.5 < temperature < 2.5:
            raise KeyboardInterrupt

    r = tz.free_energy(FERROMAGNET, [1.0, 1.2, 2.0, 3.0], time_limit=60.0, on_point=stop)
    assert r.interrupted
    assert r.exact.tolist() == [True, False, True, True]  # both ends, then between them
    assert np.isnan(r.log_zs.value[1])
    weights, _ = weights_of(FERROMAGNET)
    log_z, energy, *_ = truth(weights, 1.0 / 1.2)
    assert r.log_zs.lower[1] <= log_z <= r.log_zs.upper[1]
    assert r.energy.lower[1] <= energy <= r.energy.upper[1]
    assert "interrupted" in r.summary()
    assert "not reached" in r.summary()


def test_a_model_without_variables_or_factors():
    r = tz.free_energy(tz.FactorGraph([2, 3]), [1.0], time_limit=60.0)
    assert r.entropy.value[0] == pytest.approx(math.log(6.0))
    assert r.heat_capacity.value[0] == 0.0
    assert r.magnetisation is None
    empty = tz.free_energy(tz.FactorGraph([]), [1.0], time_limit=60.0)
    assert empty.log_zs.value[0] == 0.0


def test_magnetisation_is_of_free_spins():
    model = tz.ising({(0, 1): 1.0, (1, 2): 1.0}, 0.3).with_evidence({0: 1})
    weights, states = weights_of(model)
    r = tz.free_energy(model, [1.7], time_limit=60.0)
    assert r.magnetisation is not None
    shares = np.exp(weights / 1.7)
    mean = shares @ (1 - 2 * states[:, 1:]).mean(axis=1) / shares.sum()
    assert r.magnetisation.value[0] == pytest.approx(mean)


def test_table_and_plot(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    r = tz.free_energy(FERROMAGNET, np.linspace(1.0, 4.0, 4), time_limit=60.0)
    frame = r.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 4
    assert {"temperature", "energy", "energy_lower", "entropy_confident_upper"} <= {*frame.columns}
    axes = r.plot()
    assert len(axes.get_figure().axes) == 4
    assert r.plot(ax=axes) is axes


@pytest.mark.parametrize(
    "grid", [["--temperatures", "1:4:4"], ["--temperatures", "1,2,3,4"], ["--betas", "0:1:4"]]
)
def test_command(grid, tmp_path):
    pytest.importorskip("matplotlib")
    path, picture = str(tmp_path / "m.uai"), str(tmp_path / "curve.png")
    tz.write(FERROMAGNET, path)
    call = ["free-energy", path, *grid, "-T", "60", "--seed", "1"]
    done = CliRunner().invoke(main, [*call, "--json", "--plot", picture])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["command"] == "free-energy"
    assert len(record["temperatures"]) == 4
    energy = record["energy"]
    assert energy["lower"][0] <= energy["value"][0] <= energy["upper"][0]
    assert (tmp_path / "curve.png").stat().st_size > 1000
    text = CliRunner().invoke(main, call)
    assert "heat_capacity" in text.output
    assert "4 temperatures in" in text.output


def test_the_free_energy_at_infinite_temperature_has_no_nan():
    r = tz.free_energy(FERROMAGNET, [1.0, math.inf], seed=0)
    for ends in (r.free_energy.lower, r.free_energy.upper, *r.free_energy.confident.T):
        assert ends[1] == -math.inf
        assert math.isfinite(ends[0])


@pytest.mark.parametrize(
    ("field", "betas"),
    [(1e100, [0.0, 1e-100, 1.0]), (1e-300, [0.0, 1.0, 1e300]), (1.0, [1e-200, 1.0, 1e100])],
)
def test_squares_beyond_float64_are_no_reason_to_stop(field, betas):
    """beta^2 and the square of the scale on which log Z bends overflowed."""
    model = tz.FactorGraph([2], [((0,), [0.0, field])])
    r = tz.free_energy(model, betas=betas, time_limit=5.0, seed=0)
    with np.errstate(over="ignore"):
        p = 1.0 / (1.0 + np.exp(-np.array(betas) * field))
    assert (r.energy.lower <= -field * p).all()
    assert (-field * p <= r.energy.upper).all()
    assert not np.isnan(r.entropy.lower).any()


def test_sums_that_do_not_end_leave_time_for_intervals(monkeypatch):
    """The first shows how slow they are; the second is given up; no other is tried, here or in
    `log_partition`, and what is left goes to intervals in equal parts."""
    sums, limits, gone = [], [], [0.0]

    def solve(model, way, *, time_limit, stop, **options):
        sums.append(time_limit)
        if len(sums) == 1:
            return exact_solve(model, way, time_limit=time_limit, stop=stop, **options)
        gone[0] += time_limit
        raise StoppedError

    def run(model, *, time_limit, shared, **options):
        limits.append(time_limit)
        gone[0] += time_limit
        return tz.log_partition(model, time_limit=0.05, shared=shared, **options)

    now = SimpleNamespace(perf_counter=lambda: time.perf_counter() + gone[0])
    monkeypatch.setattr("tightz.runtime.clock.time", now)
    monkeypatch.setattr(exact_sums, "solve", solve)
    monkeypatch.setattr(module, "log_partition", run)
    monkeypatch.setattr(ways.ByElimination, "seconds", property(lambda _: 100.0))
    glass = tz.sherrington_kirkpatrick(8, seed=0)
    r = tz.free_energy(glass, betas=[0.1, 0.2, 0.3, 0.4, 0.5], time_limit=1000.0)
    assert r.exact.tolist() == [True, False, False, False, False]
    assert len(sums) == 2
    assert sums[1] <= 250.0  # an equal part of the time
    assert len(limits) == 4
    assert sum(limits) > 300.0
    assert max(limits) < 1.1 * min(limits)


def test_a_method_that_gave_up_is_believed_to_take_longer():
    shared, way = Shared(), SimpleNamespace(name="Pfaffians", seconds=2.0)
    assert shared.predicted(way) == 2.0
    shared.took(SimpleNamespace(name="elimination", seconds=1.0), 3.15)
    assert shared.predicted(way) == pytest.approx(6.0)  # so busy is the machine
    shared.gave_up(way, 10.0)
    assert shared.predicted(way) == pytest.approx(20.0)
    shared.took(way, 0.1)
    assert shared.predicted(way) == 2.0
