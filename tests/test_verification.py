"""The trust suite in small: every check passes, and every check can fail."""

from __future__ import annotations

import math
import shlex
from decimal import Context, Decimal

import numpy as np
import pytest

import tightz as tz
from tightz.runtime.local_workers import LocalWorkers
from tightz.sampling.ledger import CAPPED_SHARES, SHARES, Account, Ledger
from tightz.workspace.findings import Draws, Source
from verification import Row, drawn, hostile, killing, marginals, tracks
from verification.__main__ import main, summary
from verification.agreement import ROUTES, agreement
from verification.coverage import coverage
from verification.events import TINY, Events
from verification.fault_table import FAULTS, PLACES
from verification.faults import PACKAGE, ROOT, Fault, chosen, plant
from verification.hostile_models import KINDS as HOSTILE_KINDS
from verification.hostile_models import hostile_model
from verification.ledger import CASES, CONTROLS, ledger
from verification.memory import memory
from verification.methods import Answer, Claim
from verification.stopping import stopping
from verification.suites import suites
from verification.truth import decimal_log_z, enumerate_model
from verification.violations import EVERY, examine, hunt, violation


def quiet(text):
    assert text


def test_no_bound_is_violated_and_the_control_is():
    rows = list(hunt(0.0, 1, quiet))
    assert {row.check for row in rows} == {f"bounds: {name}" for name in EVERY if name != "control"}
    for row in rows:
        assert row.passed, row


def test_a_method_on_the_wrong_side_is_caught(monkeypatch):
    def too_high(model, seed):
        return Answer([Claim("lower", tz.exact(model).log_z + 1e-3)])

    monkeypatch.setitem(EVERY, "mean field", (too_high, 1))
    assert examine(range(14)).failed["mean field"] > 5


def test_a_crash_is_a_failure(monkeypatch):
    def crash(model, seed):
        raise ZeroDivisionError

    monkeypatch.setitem(EVERY, "mean field", (crash, 1))
    tally = examine(range(7))
    assert tally.failed["mean field"] == 7
    assert "ZeroDivisionError" in tally.first["mean field"]


@pytest.mark.parametrize(
    ("side", "value", "log_z", "wrong"),
    [
        ("lower", 1.0, 2.0, False),
        ("lower", 2.0 + 1e-6, 2.0, True),
        ("upper", 1.0, 2.0, True),
        ("upper", math.inf, 2.0, False),
        ("both", 2.0, 2.0, False),
        ("both", 2.1, 2.0, True),
        ("lower", -math.inf, -math.inf, False),
        ("lower", 0.0, -math.inf, True),
        ("lower", math.nan, 0.0, True),
    ],
)
def test_violation(side, value, log_z, wrong):
    assert (violation(side, value, log_z) > 0.0) is wrong


@pytest.mark.parametrize(("bias", "passed"), [(0.0, True), (0.2, False)])
def test_tracks_of_whole_runs_are_held_against_the_truth(bias, passed):
    """Made-up draws of known mean in place of runs, which a busy machine may give none."""
    outcomes = []
    for i in range(400):
        rng = np.random.default_rng([23, i])
        account = Account(Source("annealing", 0.0, spread=0.5, expected=100.0))
        logs = rng.normal(-0.125, 0.5, (20, 5)) + bias
        batches = [(account, part) for part in logs]
        track = tracks.Track(
            account.source.track, logs.size, (667.0, math.inf), tracks.most(batches, 0.0),
            tracks.most(batches, 0.0, tracks.SHIFT), tracks.most(tracks.rising(batches), 0.0)[0],
        )  # fmt: skip
        run = tracks.Run("", 0.0, i, 2, 1.0)
        outcomes.append(tracks.Outcome(run, (False, False), [track], []))
    row, whole = tracks.rows_of(outcomes)
    assert (row.check, row.cases) == ("tracks: annealing, lower", 400)
    assert row.passed is passed
    assert row.control_caught
    assert "0 chosen" not in row.detail
    assert whole.passed


def test_the_wealth_of_a_track_is_the_ledgers():
    rng = np.random.default_rng(24)
    book, batches, largest = Ledger(0.05), [], [1.0, 1.0]
    for cap in (3.0, 2.0):  # one source after the other
        source = Source("mini-bucket", 0.0, log_cap=cap, spread=0.5, expected=100.0)
        for log_weight in np.minimum(rng.normal(0.0, 0.5, (40, 1)), cap):
            batches.append((book.add(Draws(source, log_weight)), log_weight))
            for side, shares in enumerate((SHARES, CAPPED_SHARES)):
                wealth = book.log_wealths(0.0, upper=bool(side))["mini-bucket"]
                largest[side] = max(largest[side], math.exp(wealth) / shares["mini-bucket"])
    assert tracks.most(batches, 0.0) == pytest.approx(largest, rel=1e-6)


def test_hostile_models_depend_on_their_numbers_alone():
    for i in range(2 * len(HOSTILE_KINDS)):
        kind, model = hostile_model(3, i)
        assert kind == list(HOSTILE_KINDS)[i % len(HOSTILE_KINDS)]
        assert model.digest == hostile_model(3, i)[1].digest
        assert math.prod(model.cardinalities.tolist()) <= 2**14


def test_the_truth_agrees_with_decimal_arithmetic():
    compared = 0
    for i in range(8 * len(HOSTILE_KINDS)):
        _, model = hostile_model(5, i)
        if math.prod(model.cardinalities.tolist()) > 32:
            continue
        truth, log_z = enumerate_model(model), decimal_log_z(model)
        if log_z == Decimal("-Infinity"):
            assert truth.high == -np.inf
            continue
        low, high = (
            Decimal(float(x)) + Decimal(float(x - float(x))) for x in (truth.low, truth.high)
        )
        assert low <= log_z <= high
        compared += 1
    assert compared > 30


def precisely(x):
    mantissa, exponent = np.frexp(x)
    if not np.isfinite(x):
        return Decimal(float(x))
    return Decimal(int(np.ldexp(mantissa, 64))) * Context(prec=60).power(2, int(exponent) - 64)


def test_events_agree_with_decimal_arithmetic():
    compared, digits = 0, Context(prec=60)
    for i in range(4 * len(HOSTILE_KINDS)):
        _, model = hostile_model(6, i)
        free = [v for v in range(model.n_variables) if v not in model.evidence]
        if math.prod(model.cardinalities.tolist()) > 32 or not free:
            continue
        v, log_z = free[-1], decimal_log_z(model)
        if log_z == Decimal("-Infinity"):
            continue
        truth = Events.of(model)
        finite = model.log_tables[np.isfinite(model.log_tables)]
        apart = 1e-12 + 1e-19 * float(np.abs(finite).sum())  # tables that cancel leave fewer digits
        shares, logs = truth.shares((v,), {}), truth.logs((v,), {})
        for s in range(int(model.cardinalities[v])):
            part = decimal_log_z(model.with_evidence({v: s}))
            share = digits.exp(digits.subtract(part, log_z))
            for ends, value in ((shares, share), (logs, part)):
                low, high = (precisely(end[s]) for end in ends)
                assert low <= value <= high
            assert shares.high[s] <= max(shares.low[s] * (1 + apart), 1e6 * TINY)
        compared += 1
    assert compared > 20


def test_proven_marginals_are_hunted_and_moved_ends_are_caught(monkeypatch):
    quick = ("exact", "fixed states", "lifted", "sweep", "log_likelihood")
    chosen = {n: e for n, e in marginals.EVERY.items() if n.removeprefix("control: ") in quick}
    monkeypatch.setattr(marginals, "EVERY", chosen)
    tally = marginals.examine(range(14))
    for name in quick:
        assert tally.cases[name] > 10
        assert not tally.failed[name], tally.first
        assert tally.failed[f"control: {name}"] > 5
    assert "NaN" in marginals.wrong(
        marginals.Statement("x", (0,), np.full((2, 2), np.nan)), Events.of(tz.FactorGraph([2]))
    )


def test_confident_marginals_are_covered_and_the_controls_are_not():
    numbers = range(1, 12, 2)
    real = drawn.examine("", numbers)
    assert real["runs"] == len(numbers)
    assert real["looks"] == drawn.LOOKS * len(numbers)
    assert not real["either"]
    bold = drawn.examine(drawn.BOLD, numbers)
    assert bold["log_z"] == len(numbers)
    assert bold["marginals"] + drawn.examine(drawn.TILTED, numbers)["marginals"] > 2


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        (Claim("lower", 0.5), False),
        (Claim("lower", math.log(2.0) + 1e-10), False),
        (Claim("lower", math.log(2.0) + 1e-10, rounding=1e-12), True),
        (Claim("upper", math.log(2.0) - 1e-10, rounding=1e-12), True),
        (Claim("upper", 0.5), True),
        (Claim("both", math.log(2.0) + 1e-10, rounding=1e-9), False),
        (Claim("both", math.log(2.0) + 1e-10, rounding=1e-12), True),
        (Claim("lower", math.nan), True),
        (Claim("lower", -math.inf), False),
        (Claim("upper", math.inf), False),
    ],
)
def test_a_declared_rounding_leaves_no_tolerance(claim, wrong):
    truth = enumerate_model(tz.FactorGraph([2]))
    complaints, _ = hostile.judge(Answer([claim]), truth)
    assert bool(complaints) is wrong


def test_nothing_but_minus_infinity_bounds_an_impossible_model():
    truth = enumerate_model(tz.FactorGraph([2], [((0,), [-math.inf, -math.inf])]))
    assert not hostile.judge(Answer([Claim("both", -math.inf)]), truth)[0]
    assert hostile.judge(Answer([Claim("lower", -1e300)]), truth)[0]


def test_wrong_marginals_and_complaints_are_failures():
    model = tz.FactorGraph([2, 3])
    truth = enumerate_model(model)
    right, wrong = [np.full(2, 1 / 2), np.full(3, 1 / 3)], [np.full(2, 1 / 2), np.eye(3)[0]]
    assert not hostile.judge(Answer([], right), truth)[0]
    assert hostile.judge(Answer([], wrong), truth)[0]
    assert hostile.judge(Answer([], [right[0], np.full(3, math.nan)]), truth)[0]
    assert hostile.judge(Answer([], complaints=["lower exceeds upper"]), truth)[0]
    ends = [np.stack([np.maximum(p - 1e-9, 0.0), p + 1e-9], axis=1) for p in right]
    assert not hostile.judge(Answer([], ends=ends), truth)[0]
    moved = [ends[0] + [[2e-9, 2e-9]] * len(ends[0]), *ends[1:]]
    assert hostile.judge(Answer([], ends=moved), truth)[0]


def test_certificates_cover_and_the_control_does_not():
    rows = list(coverage(0.0, 1, quiet))
    assert len(rows) == 7
    for row in rows:
        assert row.passed, row
        assert row.control_caught is not False


def test_stopped_runs_are_covered_and_the_controls_are_not():
    rows = list(stopping(0.0, 1, quiet))
    assert len(rows) == 7
    for row in rows:
        assert row.passed, row
    assert sum(row.control_caught is True for row in rows) == 4


def test_the_ledger_covers_whoever_stops_it_and_the_controls_do_not():
    rows = list(ledger(0.0, 1, quiet))
    assert len(rows) == 2 + len(CASES) + len(CONTROLS)
    for row in rows:
        assert row.passed, row
    assert sum(row.control_caught is True for row in rows) == 2 + len(CONTROLS)


def test_independent_routes_agree():
    rows = list(agreement(0.0, quiet))
    assert len(rows) == len(ROUTES)
    for row in rows:
        assert row.passed, row


def test_disagreement_is_noticed(monkeypatch):
    monkeypatch.setitem(ROUTES, "exact = splitting to the end", (lambda rng: (1.0, 1.001), 10))
    rows = {row.check: row for row in agreement(0.0, quiet)}
    assert not rows["agreement: exact = splitting to the end"].passed


def test_memory_ceilings():
    for row in memory(0.0, quiet):
        assert row.passed, row


def test_summary_names_what_failed():
    good, bad = Row("good", 10, 0), Row("bad", 10, 1, "first failure")
    blind = Row("blind", 10, 0, control_caught=False)
    assert summary([good]).endswith("all passed")
    assert "2 FAILED: bad, blind" in summary([good, bad, blind])
    assert "MISSED" in summary([blind])


def test_unknown_part_is_refused(capsys):
    assert main(["nonsense"]) == 2
    assert "expected a scale and any of agreement" in capsys.readouterr().out


def test_suites_count_what_pytest_ran(monkeypatch):
    arguments = ["tests/test_projections.py", "-k", "row_reduce_equals_galois"]
    monkeypatch.setattr("verification.suites.SUITES", {"small": (arguments, "TIGHTZ_HUNT", 5)})
    (row,) = suites(1.0, quiet)
    assert row.passed, row
    assert row.cases >= 1
    assert "TIGHTZ_HUNT=5" in row.detail
    monkeypatch.setattr("verification.suites.SUITES", {"none": (["tests/absent.py"], "X", 5)})
    (row,) = suites(1.0, quiet)
    assert not row.passed


def test_a_tree_sent_away_is_the_tree_made_here():
    with LocalWorkers(2) as pool:
        here, away = killing.tree(0, None), killing.tree(0, pool)
    assert len(here) > 3
    assert killing.differences(here, away) == 0


def test_the_books_of_a_run_balance_and_those_of_a_forgetful_one_do_not():
    with LocalWorkers(2) as pool:
        books, _, wrong = killing.whole(pool, 200.0, enough=4)
        assert books.away >= 4
        assert books.lots > 0
        assert wrong == []
        *_, wrong = killing.whole(pool, 200.0, enough=8, forget=True)
    assert "a batch was lost" in wrong


def test_every_fault_can_be_planted():
    """The table is that of these sources and tests: a text that is gone, or not alone, is seen."""
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        text = (ROOT / PACKAGE / fault.file).read_text(encoding="utf-8")
        compile(fault.planted(text), fault.file, "exec")
        files = [word for word in shlex.split(fault.tests) if word.startswith("tests/")]
        assert files
        assert all((ROOT / file).is_file() for file in files), fault.name
    assert {fault.part for fault in chosen(0.0, ())} == set(PLACES)
    assert {fault.part for fault in chosen(1.0, ("ends", "gpu"))} == {"ends", "gpu"}


def test_planted_faults_are_killed_or_not_and_the_table_may_be_wrong():
    old = "    return np.where(codes < states, codes, codes - states)\n"
    new = "    return np.minimum(codes, states - 1)\n"
    tests = "tests/test_discrete.py -k codes_repeat_real_states"

    def fault(why, text=old, other=new, equivalent=""):
        return Fault("reductions", "reductions/bits.py", text, other, tests, why, equivalent)

    faults = [
        fault("killed"),
        fault("lives", other=old + "\n"),
        fault("is no fault", other=old + "\n", equivalent="an empty line"),
        fault("is one", equivalent="a mistake"),
        fault("is gone", text="no such text"),
        fault("does not run", other="    return undefined(\n"),
    ]
    killed, lives, none, wrong, gone, broken = plant(1.0, 2, quiet, faults=faults)
    assert killed.passed
    assert "killed by tests/test_discrete.py::test_codes_repeat" in killed.detail
    assert not lives.passed
    assert lives.detail.startswith("SURVIVED")
    assert none.passed
    assert not wrong.passed
    assert not gone.passed
    assert "out of date" in gone.detail
    assert not broken.passed
    assert "no answer" in broken.detail
