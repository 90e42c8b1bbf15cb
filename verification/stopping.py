"""Certificates against stopping rules that look after every single trial and stop when it suits.

The draws are made to strain each certificate: mean exactly Z = 1, and a value, when it is not
zero, just large enough to make the certificate wrong at once. A run is stopped as Ctrl-C stops it
(through the table of trials and its cut), at any (trial, level). Every certificate may fail in a
delta share of runs at most. Controls that must be caught: the mixture that pays for the levels
reached instead of those planned, the median of whatever number of trials was reached, and
sessions that lose draws which somebody has seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv
from scipy.stats import binom

from tightz.paper.batches import TrialTable
from tightz.paper.results import Estimate
from tightz.sampling.ais.sampling import AisResult, AisStatus
from tightz.sampling.certificates import BETS, anytime_certificate, median_certificate
from tightz.sampling.ledger import Ledger
from tightz.workspace.findings import Draws, Source
from verification.rows import Row
from verification.workers import spread

RUNS = 20_000
CONTROL_RUNS = 5
"""Runs of each control for one of the others: they are cheap, and must stand out."""
STRETCH = 50
LEVELS, TRIALS, SESSIONS, FLIPS = 11, 5, 8, 12
DELTA = 0.05
KINDS = ("anytime", "mean", "median", "product")
SESSIONS_CONTROL = "draws lost after they were seen"
LEVELS_CONTROL = "paying for the levels reached"
TRIALS_CONTROL = "the median of the trials reached"
AIS_CONTROL = "weights 30 times too large"
CONTROLS = {
    "anytime": LEVELS_CONTROL,
    "median": TRIALS_CONTROL,
    "sessions": SESSIONS_CONTROL,
    "ais": AIS_CONTROL,
}
BEYOND = 1.0 + 1e-7
"""How far above the least value that makes a certificate wrong a draw is."""


def stopped(log_g: NDArray[np.float64], done: int) -> Estimate:
    """The result of a run of the table (levels, trials) that was stopped after `done` trials."""
    levels, trials = log_g.shape
    table = TrialTable(range(levels), trials, 1, spins=0, pairs=0)
    log_gamma = log_g - np.arange(levels)[:, None] * math.log(2.0)
    row, column = np.arange(done) % levels, np.arange(done) // levels
    table.log_gammas[row, column, 0] = log_gamma[row, column]
    table.done = done
    table.cut()
    nothing = np.zeros(0)
    return Estimate(
        levels=table.levels,
        log_gammas=table.log_gammas,
        sweeps=table.sweeps,
        ranks=table.ranks,
        statuses=table.statuses,
        planned_levels=table.planned_levels,
        planned_trials=table.planned_trials,
        n=levels,
        marginals=nothing,
        marginal_spread=nothing,
        pairs=np.zeros((0, 2), dtype=np.int64),
        pair_marginals=nothing,
        pair_spread=nothing,
        strongly_universal=True,
        seconds=0.0,
    )


def worst(log_g: NDArray[np.float64], delta: float, kind: str) -> float:
    """The largest certificate over all moments at which the run might have been stopped.

    A cut drops what follows the last whole repetition, so later moments say the same; zeros alone
    say nothing.
    """
    levels = len(log_g)
    moments = [*range(1, levels), *range(levels, log_g.size + 1, levels)]
    flat = log_g.T.ravel()
    return max(
        stopped(log_g, done).certificate(delta, kind=kind).log_z
        if np.isfinite(flat[:done]).any()
        else -math.inf
        for done in moments
    )


def tuned(rng: np.random.Generator, delta: float, *, pay_reached: bool) -> NDArray[np.float64]:
    """Each draw is 0, or what lifts the mixture to 1 / delta at once; chosen after seeing the past.

    The past may be seen: a supermartingale allows it. With `pay_reached` the mixture is the
    control's, over the levels reached in the first repetition.
    """
    log_g = np.full((LEVELS, TRIALS), -np.inf)
    wealth = np.ones((LEVELS, BETS.size))
    for trial in range(TRIALS):
        for level in range(LEVELS):
            paid = level + 1 if pay_reached and trial == 0 else LEVELS
            others = wealth[:paid].copy()
            if trial:  # later levels are read with this one, at the end of the repetition
                others[level + 1 :] *= 1.0 - BETS
            others[level] *= 1.0 - BETS
            stake = float((wealth[level] * BETS).sum())
            needed = (paid * BETS.size / delta - float(others.sum())) / max(stake, 1e-300)
            g = max(1.0, needed * BEYOND)
            hit = rng.random() < 1.0 / g
            log_g[level, trial] = math.log(g) if hit else -math.inf
            wealth[level] *= 1.0 - BETS + BETS * (g if hit else 0.0)
    return log_g


def rare(rng: np.random.Generator, value: float) -> NDArray[np.float64]:
    """Independent draws of 0 or `value`, mean 1."""
    with np.errstate(divide="ignore"):
        return np.log(np.where(rng.random((LEVELS, TRIALS)) < 1.0 / value, value, 0.0))


def draws(rng: np.random.Generator, delta: float) -> dict[str, NDArray[np.float64]]:
    """Tables by the certificate that they strain."""
    k = TRIALS - (TRIALS - 1) // 2
    return {
        "anytime": tuned(rng, delta, pay_reached=False),
        "mean": rare(rng, BEYOND * LEVELS / delta),
        "median": rare(rng, BEYOND / betaincinv(k, TRIALS - k + 1, delta / LEVELS)),
        "product": rare(rng, BEYOND * (LEVELS / delta) ** 0.5),
    }


def examine(numbers: range) -> Counter[str]:
    """Misses of every certificate and every control over the runs with these numbers."""
    misses: Counter[str] = Counter()
    for i in numbers:
        rng = np.random.default_rng([11, i])
        tables = draws(rng, DELTA)
        for kind, table in tables.items():
            misses[kind] += worst(table, DELTA, kind) > 0.0
            misses[f"best kind against {kind}"] += any(
                worst(table, DELTA / len(KINDS), other) > 0.0 for other in KINDS
            )
        misses["sessions"] += _sessions_miss(rng, seen=False)
        for strain, weights in _ais_weights(rng).items():
            misses[f"ais against {strain}"] += _ais(weights) > 0.0
        for _ in range(CONTROL_RUNS):
            misses[SESSIONS_CONTROL] += _sessions_miss(rng, seen=True)
            misses[LEVELS_CONTROL] += _pays_for_reached(rng)
            misses[TRIALS_CONTROL] += _median_of_reached(rng)
            misses[AIS_CONTROL] += _ais(_ais_weights(rng)["lognormal"] + math.log(30.0)) > 0.0
    return misses


def _sessions_miss(rng: np.random.Generator, *, seen: bool) -> bool:
    """Whether a stored run ever rejects Z = 1 from below: fair coins, and a killer who watches.

    He kills the process when the wealth against the truth has fallen, and resumes it from what is
    stored. That has every draw he was shown; a batch that was on its way is lost. With `seen` the
    draws that let it fall are lost as well, as if they had been shown before they were stored.
    """
    ledger, most, sessions = Ledger(2.0 * DELTA), -math.inf, 1
    source = _coins()
    for _ in range(FLIPS):
        stored = ledger.records()
        logs = np.log(rng.choice([0.02, 1.98], size=2))
        ledger.add(Draws(source, logs))
        wealth = np.logaddexp.reduce(list(ledger.log_wealths(0.0, upper=False).values()))
        if wealth >= ledger.target:
            return True
        if wealth < most and sessions < SESSIONS:
            ledger = Ledger.from_records(2.0 * DELTA, stored if seen else ledger.records())
            source, sessions = _coins(), sessions + 1
            continue
        most = max(most, float(wealth))
    return False


def _coins() -> Source:
    return Source("mini-bucket", 0.0, spread=1.0, expected=9.0)


def _pays_for_reached(rng: np.random.Generator) -> bool:
    """What a first repetition cut to the levels reached used to claim, at its best moment."""
    table = tuned(rng, DELTA, pay_reached=True)
    first = (anytime_certificate(table[:k, :1], DELTA) for k in range(1, LEVELS + 1))
    return max(first) > 0.0 or worst(table, DELTA, "anytime") > 0.0


def _median_of_reached(rng: np.random.Generator) -> bool:
    """The median of the trials there are, as if that had been the plan, at its best moment.

    One level, draws of 0 or 2.5: the certificate is wrong wherever half of them are not zero and
    their number makes that unlikely enough.
    """
    high = rng.random(300) < 0.4
    reached = np.arange(1, high.size + 1)
    moments = np.flatnonzero(np.cumsum(high) >= reached - (reached - 1) // 2) + 1
    row = np.where(high, math.log(2.5), -np.inf)
    return any(median_certificate(row[:t], DELTA) > 0.0 for t in moments.tolist())


def _ais_weights(rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """16 log weights of mean 1 by what they strain: the mean of all, products of few and of all."""
    chains, shares = 16, 5  # groups of 1, 2, 4, 8, 16
    with np.errstate(divide="ignore"):
        one = np.log(np.where(rng.random(chains) < DELTA / shares / chains, 1600.0, 0.0))
        halves = np.log(np.where(rng.random(chains) < 0.5, 2.0, 0.0))
    return {
        "one in 1600": one,
        "coins": halves,
        "lognormal": rng.normal(-0.5, 1.0, size=chains),
        "heavy lognormal": rng.normal(-4.5, 3.0, size=chains),
    }


def _ais(log_weights: NDArray[np.float64]) -> float:
    nothing = np.zeros(0)
    result = AisResult(
        log_z=0.0, standard_error=0.0, effective_sample_size=1.0, lower_in_expectation=0.0,
        status=AisStatus.STEADY, log_weights=log_weights, betas=nothing, kernel="", seconds=0.0,
    )  # fmt: skip
    return result.certificate(DELTA).log_z


def stopping(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per certificate: its worst draws, stopped at the worst moment."""
    runs = max(600, int(RUNS * scale))
    stretches = [range(at, min(at + STRETCH, runs)) for at in range(0, runs, STRETCH)]
    misses: Counter[str] = Counter()
    for done, part in enumerate(spread(examine, stretches, workers), start=1):
        misses += part
        progress(f"{min(done * STRETCH, runs)} of {runs} stopped runs")
    limit = int(binom.ppf(0.9999, runs, DELTA))
    bar = int(binom.ppf(0.9999, runs * CONTROL_RUNS, DELTA))
    for kind in (*KINDS, "best kind", "sessions", "ais"):
        found = {name: n for name, n in misses.items() if name.partition(" against")[0] == kind}
        name, most = max(found.items(), key=lambda item: item[1], default=(kind, 0))
        detail = f"{name}: {most / runs:.2%} misses, {limit / runs:.2%} allowed at delta {DELTA}"
        caught = None
        if kind in CONTROLS:
            wrong = CONTROLS[kind]
            caught = bool(misses[wrong] > bar)
            detail += f"; {wrong}: {misses[wrong] / (runs * CONTROL_RUNS):.2%}"
        yield Row(f"stopping: {kind}", runs, max(0, most - limit), detail, caught)
