"""Log potentials of -1e30 for zeros, and sums that round: told, and mended on request."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from click.testing import CliRunner

import tightz as tz
from tests import naive
from tests.precise import precise_log_z
from tightz.cli.main import main
from tightz.models.scale import LARGEST, log_removed


def hard_core(side, forbidden, activity=0.5):
    """Independent sets of a side x side grid: no two neighbours are both in state 1."""
    site = np.arange(side * side).reshape(side, side)
    pairs = [*zip(site[:, :-1].ravel(), site[:, 1:].ravel(), strict=True)]
    pairs += [*zip(site[:-1].ravel(), site[1:].ravel(), strict=True)]
    factors = [((v,), [0.0, activity]) for v in range(side * side)]
    factors += [(pair, [[0.0, 0.0], [0.0, forbidden]]) for pair in pairs]
    return tz.FactorGraph(np.full(side * side, 2), factors)


def test_pseudo_zeros_of_a_large_grid_are_told_and_taken():
    model, true = hard_core(40, -1e30), hard_core(40, -math.inf)
    first, second = model.scale_warnings()
    assert first.startswith(
        "factor 1600 over (0, 1), entry (1, 1) is -1e+30, which is 1e+30 below its table's largest "
        "(3119 more factors have such): it looks like a zero written as a number. "
        "model.with_zeros(below=-1e+09) makes zeros of these (tightz ... --zeros-below -1e+09)"
    )
    assert "rounding" in second
    assert "nats, more than 1e-06" in second
    assert second.endswith("model.with_zeros(below=-1e+09) mends it")
    mended = model.with_zeros()
    assert mended.digest == true.digest
    assert mended.scale_warnings() == []
    assert log_removed(model) < -9e29


def test_ordinary_models_have_nothing_to_be_told():
    for model in (
        tz.ising_grid(30, coupling=(-10, 10), seed=0),
        tz.FactorGraph([2], []),
        tz.FactorGraph([2], [((0,), [0.0, -np.inf])]),
        tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])]),
        tz.FactorGraph([2, 2], [((), 3.0), ((0, 1), np.full((2, 2), -np.inf))]),
    ):
        assert model.scale_warnings() == []
        assert model.with_zeros().digest == model.digest
        assert log_removed(model) == -math.inf


def test_large_constants_are_told_with_another_remedy():
    model = tz.FactorGraph([2], [((0,), [1e12, 1e12 + 1])])
    (told,) = model.scale_warnings()
    assert "factor 0 over (0,), entry (1,) is 1e+12" in told
    assert "0.00044 nats" in told
    assert told.endswith("take a constant off the large tables, or scale the model down")
    both = tz.FactorGraph([2, 2], [((0,), [1e12, 0.0]), ((1,), [0.0, -1e12])])
    assert len(both.scale_warnings()) == 2


def test_evidence_name_and_layout_stay():
    model = tz.ising_grid(2, coupling=(1e12, 1e12), seed=0).with_evidence({1: 0})
    mended = model.with_zeros(below=-1e6)
    assert mended.evidence == {1: 0}
    assert (mended.name, mended.layout) == (model.name, model.layout)
    assert (mended.log_tables == -np.inf).sum() == 2 * 4


@pytest.mark.parametrize("seed", range(20))
def test_z_shrinks_by_no_more_than_is_said(seed):
    """Against enumeration, with a threshold near enough that something is lost."""
    rng = np.random.default_rng([3, seed])
    factors = [((int(v),), rng.normal(0, 3, size=3)) for v in range(4)]
    factors += [
        (tuple(rng.choice(4, 2, replace=False)), rng.normal(0, 3, (3, 3))) for _ in range(4)
    ]
    model = tz.FactorGraph([3] * 4, factors, evidence={0: 1} if seed % 2 else None)
    below = -float(rng.uniform(3, 9))
    before, after = (_log_z(m) for m in (model, model.with_zeros(below)))
    assert after <= before
    lost = before + math.log(-math.expm1(after - before)) if after < before else -math.inf
    assert lost <= log_removed(model, below) + 1e-9
    for (_, old), (_, new) in zip(model.factors, model.with_zeros(below).factors, strict=True):
        np.testing.assert_array_equal(new, np.where(old < old.max() + below, -np.inf, old))


def _log_z(model):
    reduced = model.condition()
    return naive.enumerate_model(reduced.cardinalities, reduced.factors)[0]


@pytest.mark.parametrize("below", [0.0, 1.0, -math.inf, math.nan, "x", None, 1j])
def test_the_threshold_is_a_negative_number(below):
    with pytest.raises(tz.errors.ParameterError, match="expected a negative number"):
        hard_core(2, -1e30).with_zeros(below)


def test_a_small_hard_core_model_is_solved_after_all():
    """Z counts independent sets: of the 3 x 3 grid at activity 1 there are 63."""
    model = hard_core(3, -1e30, activity=0.0).with_zeros()
    assert tz.exact(model).log_z == pytest.approx(math.log(63), abs=1e-12)


def commands_with_a_model():
    for name, command in main.commands.items():
        if any(p.name == "path" and p.param_type_name == "argument" for p in command.params):
            yield name, command


def test_every_command_that_takes_a_model_takes_the_option():
    found = dict(commands_with_a_model())
    assert len(found) >= 8
    for name, command in found.items():
        assert "--zeros-below" in [o for p in command.params for o in p.opts], name


def test_the_option_of_the_command_line(tmp_path):
    path = tmp_path / "m.uai"
    model = hard_core(3, -1e6, activity=0.0)
    tz.write(model, path, wide=True)
    run = CliRunner().invoke(main, ["exact", str(path), "--zeros-below", "-1e5", "--json"])
    assert run.exit_code == 0, run.stderr
    assert "12 entries taken as zeros; Z loses at most exp(-9" in run.stderr
    assert json.loads(run.stdout)["log_z"] == pytest.approx(math.log(63), abs=1e-12)
    plain = CliRunner().invoke(main, ["exact", str(path), "--json"])
    assert "taken as zeros" not in plain.stderr
    bad = CliRunner().invoke(main, ["exact", str(path), "--zeros-below", "5"])
    assert bad.exit_code == 2
    assert "expected a negative number" in bad.stderr


def test_tops_that_overflow_when_they_are_added_say_nothing():
    tables = [((v,), [1.5e308, 0.0]) for v in range(3)]
    assert log_removed(tz.FactorGraph([2] * 3, tables)) == np.inf


# The range of entries: -inf, or from -1e100 to 1e100. Beyond, nine functions raised OverflowError,
# ValueError, ArithmeticError or RefutedError, and tz.split said that Z = 0 of a model with Z > 0.

QUICK = {"time_limit": 0.3, "seed": 0}
TAKES_A_MODEL = {
    "exact": tz.exact,
    "log_partition": lambda m: tz.log_partition(m, **QUICK),
    "log_partition, not exact": lambda m: tz.log_partition(m, exact=False, **QUICK),
    "query": lambda m: tz.query(m, **QUICK),
    "sweep": lambda m: tz.sweep(m, [{0: 0}, {0: 1}], **QUICK),
    "log_likelihood": lambda m: tz.log_likelihood(m, np.zeros((1, m.n_variables), int), **QUICK),
    "free_energy": lambda m: tz.free_energy(m, betas=[0.5, 1.0], **QUICK),
    "ground_state": lambda m: tz.ground_state(m, **QUICK),
    "split": lambda m: tz.split(m, **QUICK),
    "bethe": tz.bethe,
    "sample": lambda m: tz.sample(m, 3, seed=0),
    "ais": lambda m: tz.ais(m, chains=4, temperatures=10, seed=0),
    "mean_field": lambda m: tz.mean_field(m, seed=0),
    "upper_bound": tz.upper_bound,
    "Quadratic": lambda m: tz.upper_bound(m, method=tz.Quadratic()),
    "TreeReweighted": lambda m: tz.upper_bound(m, method=tz.TreeReweighted()),
    "mfrp": lambda m: tz.mfrp(m, 1, seed=0),
    "estimate": lambda m: tz.estimate(m, trials=2, seed=0),
    "coset_sum": lambda m: tz.coset_sum(m, 1, seed=0),
}


SAYS_LOG_Z = {*TAKES_A_MODEL} - {"sweep", "log_likelihood", "free_energy", "ground_state", "sample"}


@pytest.mark.parametrize("entry", [np.nan_to_num(-np.inf), -5e307, 1.7e308, 1.1 * LARGEST])
@pytest.mark.parametrize("name", TAKES_A_MODEL)
def test_entries_beyond_the_range_are_refused(name, entry):
    model = tz.FactorGraph([2, 2], [((0,), [0.3, 0.0]), ((0, 1), [[0.0, 0.1], [0.2, entry]])])
    with pytest.raises(tz.errors.ModelError, match=r"factor 1 over \(0, 1\), entry \(1, 1\)"):
        TAKES_A_MODEL[name](model)
    if entry < 0.0:
        log_z = math.log(math.exp(0.3) * (1.0 + math.exp(0.1)) + math.exp(0.2))
        assert tz.exact(model.with_zeros()).log_z == pytest.approx(log_z, abs=1e-12)


def largest_models():
    """Exclusions, couplings, fields and tables that cancel, all of the largest size."""
    rng = np.random.default_rng(0)
    n, ring = 5, [(i, (i + 1) % 5) for i in range(5)]
    every = [(i, j) for i in range(n) for j in range(i)]
    bond = LARGEST * np.array([[1.0, -1.0], [-1.0, 1.0]])
    weak = [(pair, rng.normal(size=(2, 2))) for pair in ring]
    fields = [((i,), [0.0, 0.3 * i]) for i in range(n)]
    yield [2] * n, [(pair, [[0.0, 0.0], [0.0, -LARGEST]]) for pair in every] + fields
    yield [3] * 4, [((i, j), -LARGEST * np.eye(3)) for i in range(4) for j in range(i)]
    yield [2] * n, [(pair, bond) for pair in ring] + fields
    yield [2] * n, [(pair, rng.choice([-1, 1]) * bond) for pair in every]
    yield [2] * n, [((i,), [s * LARGEST, -s * LARGEST]) for i in range(n) for s in (1, -1)] + weak
    yield [2] * n, [(pair, s * bond) for pair in ring for s in (1, -1)] + weak
    yield [2] * n, [((), LARGEST)] * 3 + [((), -LARGEST)] * 3 + weak
    yield [2] * n, [(pair, np.full((2, 2), LARGEST)) for pair in every] + weak
    yield [2] * n, [(pair, [[0.0, -LARGEST], [-np.inf, 0.2]]) for pair in ring]
    yield [2] * n, [((i, j, 2), LARGEST * rng.normal(size=(2, 2, 2)).clip(-1, 1))
                    for i, j in [(0, 1), (3, 4), (0, 4)]]  # fmt: skip


@pytest.mark.parametrize("name", TAKES_A_MODEL)
def test_entries_of_the_largest_size_break_nothing(name):
    """A number or a refusal, and bounds on log Z on their own side without any tolerance."""
    for cards, factors in largest_models():
        model = tz.FactorGraph(cards, factors)
        try:
            found = TAKES_A_MODEL[name](model)
        except (tz.errors.ModelError, tz.errors.ParameterError):
            continue
        log_z = precise_log_z(model)
        for bound in found.bounds if name in SAYS_LOG_Z else []:
            if bound.proof is tz.Proof.DETERMINISTIC:
                above = Decimal(bound.log_z) - log_z
                allowed = bound.rounding if bound.side is tz.Side.BOTH else 0
                assert bound.side is tz.Side.UPPER or above <= allowed
                assert bound.side is tz.Side.LOWER or -above <= allowed
        if isinstance(getattr(found, "estimate", None), float):
            assert found.lower <= found.estimate <= found.upper
