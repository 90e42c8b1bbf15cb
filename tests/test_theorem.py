"""Runs at the theorems' own parameters: plan, forecast, interruption, statements, command."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tightz as tz
from tests import naive
from tightz.cli.main import main
from tightz.paper.theorem_run import TheoremRun, theorem_forecast, theorem_run
from tightz.runtime.store import RunReader, StoreError

MODEL = tz.ising_grid(2, 2, coupling=(-1, 1), field=(-1, 1), seed=4)
DELTA = 0.3
T = 617
"""ceil(ln(4 / 0.3) / 0.0042)"""


def log_z(model: tz.FactorGraph) -> float:
    return naive.enumerate_model(model.cardinalities, model.factors)[0]


@pytest.fixture(scope="module")
def run() -> TheoremRun:
    return theorem_run(
        MODEL, projections=tz.Projections.as_printed(restarts=2), delta=DELTA, seed=0, backend="cpu"
    )


def interrupt_after(batches: int) -> Any:
    count = itertools.count(1)

    def on_batch(done: object) -> None:
        if next(count) == batches:
            raise KeyboardInterrupt

    return on_batch


def test_the_plan_is_the_theorems(run: TheoremRun) -> None:
    assert tz.required_trials(4, DELTA) == T
    assert run.planned == (5, T)
    assert run.table.log_gammas.shape == (5, T, 2)
    assert run.table.levels.tolist() == [0, 1, 2, 3, 4]
    assert run.complete


def test_statements_of_mean_field_name_what_is_missing(run: TheoremRun) -> None:
    exact = log_z(MODEL)
    assert run.theorem_1.lower_holds
    assert not run.theorem_1.upper_holds
    assert run.theorem_1.assumptions.missing() == ["the I-projections are not proven global optima"]
    assert run.theorem_1.confidence == pytest.approx(1 - 2 * DELTA)
    assert run.theorem_1.lower <= exact <= run.theorem_1.upper
    assert run.theorem_2 is None
    assert run.lower <= exact + 1e-12
    assert run.certificate.log_z <= exact
    assert run.certificate.confidence == 1 - DELTA
    text = run.summary()
    assert "Theorem 2: not stated" in text
    assert "log Z <= " in text
    assert "(not established)" in text


def test_heaviest_states_establish_both_theorems() -> None:
    r = theorem_run(MODEL, delta=DELTA, family=tz.PointMass(restarts=1), seed=0)
    exact = log_z(MODEL)
    assert r.theorem_2 is not None
    for statement in (r.theorem_1, r.theorem_2):
        assert statement.assumptions.all_held
        assert statement.lower_holds
        assert statement.upper_holds
        assert statement.lower <= exact <= statement.upper
    # the factors of the two theorems, 4 * 32 (n + 1) and 32^2, whatever the medians are
    one, two = r.theorem_1, r.theorem_2
    assert one.upper - one.lower == pytest.approx(math.log(128 * (4 + 1)), abs=1e-12)
    assert two.upper - two.lower == pytest.approx(2 * math.log(32), abs=1e-12)
    medians = np.sort(r.table.log_gammas[:, :, -1], axis=1)[:, (T - 1) // 2]
    best = float((medians + r.table.levels * math.log(2)).max())
    assert one.lower == pytest.approx(best - math.log(4), abs=1e-12)


def test_the_certificate_bets_on_levels_fixed_in_advance() -> None:
    model = tz.ising_grid(5, coupling=(-1, 1), seed=0)
    r = theorem_run(
        model,
        projections=tz.Projections.as_printed(restarts=1),
        levels=range(26),
        trials=20,
        seed=0,
        backend="cpu",
    )
    table = r.table.log_g[:21]
    from tightz.sampling.certificates import anytime_certificate

    assert r.certificate.log_z == anytime_certificate(table, 0.05)
    assert not r.theorem_1.assumptions.enough_trials
    assert r.theorem_1.assumptions.all_levels


def test_an_interrupted_run_says_less_and_goes_on(tmp_path: Path, run: TheoremRun) -> None:
    options: dict[str, Any] = {
        "delta": DELTA,
        "projections": tz.Projections.as_printed(restarts=2),
        "seed": 0,
        "backend": "cpu",
    }
    path = tmp_path / "run.db"
    part = theorem_run(MODEL, store=path, on_batch=interrupt_after(20), **options)
    assert not part.complete
    made = part.table.log_gammas.shape[1]
    assert 0 < made < T
    np.testing.assert_array_equal(part.table.log_gammas, run.table.log_gammas[:, :made])
    assert not part.theorem_1.lower_holds
    assert "fewer trials than the theorem's T" in part.theorem_1.summary()
    assert f"{made} trials at 5 levels of {T} trials at 5 levels planned" in part.summary()
    assert part.certificate.log_z <= log_z(MODEL)
    with RunReader(path) as stored:
        assert stored.meta().kind == "theorem"
        assert stored.meta().detail == {"delta": DELTA}
        assert stored.progress()[0] >= 5 * made
    whole = theorem_run(MODEL, store=path, resume=True, **options)
    np.testing.assert_array_equal(whole.table.log_gammas, run.table.log_gammas)
    np.testing.assert_array_equal(whole.table.marginals, run.table.marginals)
    assert whole.theorem_1 == run.theorem_1
    assert whole.certificate.log_z == run.certificate.log_z


def test_an_interrupted_first_repetition_keeps_its_levels() -> None:
    part = theorem_run(
        MODEL,
        projections=tz.Projections.as_printed(restarts=2),
        trials=3,
        seed=0,
        family=tz.PointMass(restarts=1),
        on_batch=interrupt_after(2),
    )
    assert part.table.levels.tolist() == [0, 1]
    assert part.table.log_gammas.shape == (2, 1, 1)
    assert part.certificate.log_z <= log_z(MODEL)


def test_another_run_is_refused_before_the_pilot(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    theorem_run(MODEL, trials=2, store=path, seed=0)
    told: list[object] = []
    with pytest.raises(StoreError, match="trials is 2 in the store, 3 given"):
        theorem_run(MODEL, trials=3, store=path, resume=True, seed=0, on_forecast=told.append)
    with pytest.raises(StoreError, match="already holds a run"):
        theorem_run(MODEL, trials=2, store=path, seed=0, on_forecast=told.append)
    assert told == []


def test_the_forecast_counts_the_run(tmp_path: Path) -> None:
    model = tz.ising_grid(3, seed=0)
    plan = theorem_forecast(
        model,
        projections=tz.Projections.as_printed(restarts=8),
        trials=200,
        seed=0,
        threads=1,
        backend="cpu",
    )
    assert (plan.n, plan.levels, plan.trials, plan.total) == (9, 10, 200, 2000)
    assert [c.m for c in plan.costs] == [0, 2, 4, 7, 9]
    assert all(c.seconds > 0 for c in plan.costs)
    assert plan.core_seconds == plan.seconds
    low, high = (200 * 10 * f(c.seconds for c in plan.costs) for f in (min, max))
    assert low <= plan.seconds <= high
    table = theorem_run(model, trials=200, store=tmp_path / "run.db", seed=0, backend="cpu")
    e = table.table
    assert plan.memory >= e.log_gammas.nbytes + e.sweeps.nbytes + e.ranks.nbytes + e.statuses.nbytes
    assert 0.7 < (tmp_path / "run.db").stat().st_size / plan.store < 1.6
    assert "2,000 projections" in plan.summary()


# the command


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("theorem") / "grid.uai"
    tz.write(MODEL, path)
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["theorem", *arguments])


def test_a_dry_run_prints_the_forecast_only(grid: str) -> None:
    r = call(grid, "--delta", str(DELTA), "--dry-run", "--json")
    assert r.exit_code == 0
    told = json.loads(r.stdout)
    assert told["command"] == "theorem"
    assert (told["levels"], told["trials"]) == (5, T)
    assert "forecast:" in call(grid, "--trials", "3", "--dry-run").stdout


def test_the_command_reports_resumes_and_refuses(grid: str, tmp_path: Path) -> None:
    store = str(tmp_path / "run.db")
    arguments = [grid, "--trials", "4", "-j", "2", "--family", "point-mass", "--store", store]
    first = call(*arguments, "--json")
    assert first.exit_code == 0
    told = json.loads(first.stdout)
    assert told["complete"]
    assert told["theorem_2"]["assumptions"]["global_optima"]
    assert not told["theorem_1"]["assumptions"]["enough_trials"]
    assert told["certificate"]["proof"] == "CONFIDENCE"
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert "already holds a run; continue it with --resume" in refused.stderr
    again = call(*arguments, "--resume", "--json")
    assert json.loads(again.stdout)["theorem_1"] == told["theorem_1"]
    assert "20 of 20 trials are there already" in again.stderr
    changed = call(*arguments, "--resume", "--seed", "3")
    assert changed.exit_code == 2
    assert "seed is" in changed.stderr
    assert call(grid, "--resume").exit_code == 2
    text = call(grid, "--trials", "2", "--levels", "0:2")
    assert "not every level m = 0..n was run" in text.stdout


@pytest.mark.parametrize("command", ["mfrp", "logz"])
def test_other_commands_keep_runs_too(grid: str, tmp_path: Path, command: str) -> None:
    store = str(tmp_path / "run.db")
    for extra in ([], ["--resume"]):
        r = CliRunner().invoke(main, [command, grid, "--store", store, *extra])
        assert r.exit_code == 0, r.stderr
    with RunReader(store) as run:
        assert len(run.sessions()) == 2


def test_ctrl_c_prints_what_is_known_and_how_to_go_on(tmp_path: Path) -> None:
    model, store = tmp_path / "g.uai", tmp_path / "run.db"
    tz.write(tz.ising_grid(4, coupling=(-2, 2), seed=0), model)
    words = ["theorem", str(model), "--levels", "0:3", "--trials", "6000", "-j", "1"]
    words += ["--backend", "cpu", "--store", str(store)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tightz", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # a shell without job control has its background jobs ignore Ctrl-C, and so their children
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if store.exists():
            with RunReader(store) as run:
                if len(run.stored_batches()) > 2:
                    break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "certificate  log Z >= " in out, err
    assert "fewer trials than the theorem's T" in out
    assert f"go on with: tightz {' '.join(words)} --resume" in err
    with RunReader(store) as run:
        assert run.verify() == []
        assert run.sessions()[-1].state == "interrupted"
