"""The interval of all streams of weights: how often it ever misses, whoever stops it and when.

Both sides at delta / 2, together at delta. Each run is read after every draw and stopped where it
misses (`verification.betting`); a share above the binomial's 99.99% quantile is a failure. The
compiled reading is itself held against the real `Ledger`. Controls that must be caught: a normal
interval looked at all the time, the best stake instead of the mixture, weights 3% off, and a cap
that does not hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta as beta_distribution
from scipy.stats import binom

from tightz.elimination.order import Order, Orders
from tightz.sampling.capped.lanes import LANES
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.ledger import CAPPED_SHARES, SHARES, Ledger, stakes_of
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.partition import partition
from tightz.workspace.findings import Draws, Source
from verification.betting import (
    CHASER,
    RESTLESS,
    STEADY,
    TUNED_LOWER,
    TUNED_UPPER,
    Stock,
    Table,
    beta,
    constant,
    empty_log,
    follow,
    lognormal,
    menu_of,
    normal_ever_misses,
    play,
    projection,
    rare,
    two_points,
)
from verification.models import enumerated_log_z, random_model
from verification.rows import Row
from verification.workers import spread

RUNS = 20_000
STRETCH = 500
COMPARED = 600
CLOSEST_RUNS = 5
DRAWN_STRETCH = 100
DELTA = 0.05
TARGET = 2.0 / DELTA
RARE = -1
"""Policy of the cases whose draws are counted from one rare value to the next."""

PILOTS = [
    (1.0, 2000.0), (0.0, 1.0), (math.nan, 1e4), (0.1, 1e3), (0.1, 1e6), (30.0, 1e5), (1e3, 10.0),
]  # fmt: skip
"""What an adversary has the pilots say, (spread, expected), right or wrong."""


@dataclass(frozen=True)
class Case:
    """Tracks with the distributions they may draw from, and who decides."""

    tracks: dict[str, list[Stock]]
    policy: int = STEADY
    pilots: tuple[tuple[float, float], ...] = ((1.0, 2000.0),)
    horizon: int = 3000

    @property
    def table(self) -> Table:
        ledger = Ledger(DELTA)
        for name, stocks in self.tracks.items():
            ledger.add(Draws(Source(name, 0.0, log_cap=math.log(stocks[0].cap)), np.zeros(1)))
        shares = [ledger.shares(upper=upper) for upper in (False, True)]
        numbers = np.array([len(stocks) for stocks in self.tracks.values()])
        return Table(
            *(np.array([share.get(name, 0.0) for name in self.tracks]) for share in shares),
            np.array([stock for stocks in self.tracks.values() for stock in stocks]),
            np.cumsum(numbers) - numbers,
            np.cumsum(numbers),
            menu_of(list(self.pilots)),
        )


def steady(stock: Stock, spread: float, expected: float = 3000.0, **other: int) -> Case:
    return Case({"mini-bucket": [stock]}, pilots=((spread, expected),), **other)


GENTLE = [lognormal(0.3, 2.0), lognormal(0.5, 4.0), two_points(0.5), beta(-1.0, 2.0, zeros=0.3)]
KIND = ((1.0, 2000.0), (0.5, 300.0), (0.3, 1000.0), (math.nan, 1e4))
"""Small steps and pilots that are about right: an adversary who wastes little."""

CAPPED = [
    lognormal(0.3, 2.0), lognormal(1.0, 20.0), lognormal(2.0, 100.0), two_points(0.5),
    two_points(0.01), two_points(0.01, 0.3), beta(-5.0, 0.1), beta(-1.0, 2.0, zeros=0.7),
]  # fmt: skip
HEAVY = [lognormal(0.5), lognormal(1.5), lognormal(3.0)]

PARITIES = (1, 2, 4, 6, 8, 10)

CASES: dict[str, Case] = {
    "lognormal, spread 0.1": steady(lognormal(0.1, 1.5), 0.1),
    "lognormal, spread 1": steady(lognormal(1.0, 20.0), 1.2),
    "lognormal, wrong pilot": steady(lognormal(1.0, 20.0), 0.01, 1e7),
    "constant": steady(constant(2.0), 0.0),
    "beta, mean e^-5 of the cap": steady(beta(-5.0, 0.1), 3.0),
    "beta, mean e^-12 of the cap": steady(beta(-12.0, 0.1), 3.0),
    "zeros": steady(beta(-1.0, 2.0, zeros=0.7), 1.6),
    "one in 1,000 at the cap": steady(two_points(1e-3), 30.0, 1e5, policy=RARE, horizon=10**5),
    "one in 10,000, half the mean": steady(
        two_points(1e-4, 0.5), 0.1, 1e6, policy=RARE, horizon=10**6
    ),
    "one in 100,000 at the cap": steady(two_points(1e-5), 0.0, 1e4, policy=RARE, horizon=10**7),
    "annealing, weights without a cap": steady(lognormal(1.0), 1.3),
    "annealing, heavy tails": steady(lognormal(3.0), 30.0),
    "projections of 4 parities": steady(projection(4), 3.9),
    "projections, a track for each level": Case(
        {f"projections: {m}": [projection(m, 0.1)] for m in PARITIES}, pilots=((math.nan, 1e4),)
    ),
    "draws tuned against the lower end": Case(
        {"mini-bucket": HEAVY}, TUNED_LOWER, tuple(PILOTS), horizon=300
    ),
    "the same, all tracks": Case(
        dict.fromkeys(SHARES, HEAVY), TUNED_LOWER, tuple(PILOTS), horizon=600
    ),
    "caps tuned against the upper end": Case(
        {"mini-bucket": CAPPED}, TUNED_UPPER, ((0.0, 1.0),), horizon=1000
    ),
    "the same, three tracks": Case(
        dict.fromkeys(("mini-bucket", "a", "b"), CAPPED), TUNED_UPPER, ((0.0, 1.0),)
    ),
    "sources opened by an adversary": Case({"mini-bucket": GENTLE}, RESTLESS, KIND),
    "the same, wild weights and pilots": Case({"mini-bucket": CAPPED}, RESTLESS, tuple(PILOTS)),
    "tracks opened by an adversary": Case(
        dict.fromkeys(("mini-bucket", "c", "a", "b"), GENTLE), RESTLESS, KIND
    ),
    "all streams, chosen by an adversary": Case(
        {
            "mini-bucket": GENTLE,
            "c": GENTLE,
            **{name: HEAVY for name in SHARES if name.startswith("annealing")},
            **{f"projections: {m}": [projection(m, 0.1)] for m in PARITIES},
        },
        CHASER,
        KIND,
    ),
}

NORMAL = "1.96 standard errors, looked at all the time"
BEST = "the best stake instead of the mixture"
HIGH, LOW = "weights 3% too large", "weights 3% too small"
BROKEN = "a cap of 10 that one draw in 1,000 exceeds"
CONTROLS = (NORMAL, BEST, HIGH, LOW, BROKEN)


def examine(name: str, numbers: range) -> Counter[str]:
    """Runs of a case in which each side, or any of them, ever missed."""
    case, misses = CASES[name], Counter[str]()
    table, log = case.table, empty_log(0)
    for i in numbers:
        rng = np.random.default_rng([15, list(CASES).index(name), i])
        if case.policy == RARE:
            below, above = rare(rng, table, case.horizon)
        else:
            below, above = play(
                rng, case.policy, table, case.horizon, TARGET, 1.0, math.inf, False, log
            )
        misses["lower"] += below >= TARGET
        misses["upper"] += above >= TARGET
        misses["both"] += max(below, above) >= TARGET
    return misses


def control_misses(numbers: range) -> Counter[str]:
    """Runs in which each control ever missed; the closest one has more of them."""
    misses, log = Counter[str](), empty_log(0)
    narrow, wide = (CASES[f"lognormal, spread {s}"].table for s in ("0.1", "1"))
    broken = steady(two_points(1e-3, 0.5), 1.0).table
    for i in numbers:
        rng = np.random.default_rng([16, i])

        def ever(side, table, bias=1.0, cap=math.inf, paths=False, rng=rng):
            most = play(rng, STEADY, table, 3000, TARGET, bias, cap, paths, log)
            return bool(most[side].max() >= TARGET)

        misses[NORMAL] += normal_ever_misses(rng, wide.stocks[0], 3000, 30)
        misses[HIGH] += ever(0, narrow, bias=1.03)
        misses[LOW] += ever(1, narrow, bias=0.97)
        misses[BROKEN] += ever(1, broken, cap=10.0)
        misses[BEST] += sum(ever([0, 1], wide, paths=True) for _ in range(CLOSEST_RUNS))
    return misses


def disagreements(numbers: range) -> Counter[str]:
    """Moments at which the real ledger says something else than the compiled reading.

    The ledger may have a little less wealth, since it thins its points, and never more.
    """
    found: Counter[str] = Counter()
    names = [name for name, case in CASES.items() if case.policy != RARE]
    for i in numbers:
        rng = np.random.default_rng([17, i])
        name = names[i % len(names)]
        case = CASES[name]
        log = empty_log(min(case.horizon, int(rng.integers(2, 1500))))
        bias = math.exp(rng.normal(0.0, 0.3))  # away from the truth, where wealth is made
        play(rng, case.policy, case.table, log.account.size, TARGET, bias, math.inf, False, log)
        ledger, opened, done = Ledger(DELTA), {}, 0
        menu, tracks = case.table.menu, list(case.tracks)
        for moment in sorted(rng.integers(1, log.account.size + 1, size=3).tolist()):
            for t in range(done, moment):
                if log.account[t] not in opened:
                    opened[log.account[t]] = Source(
                        tracks[log.track[t]],
                        rng.normal(0.0, 100.0),
                        log_cap=log.log_cap[t],
                        spread=menu.spreads[log.offer[t]],
                        expected=menu.expected[log.offer[t]],
                    )
                ledger.add(Draws(opened[log.account[t]], log.log_weight[t : t + 1]))
            done = moment
            if any(account.void for account in ledger.accounts):
                break  # the bias took a draw above its cap
            found["moments"] += 1
            rejected = ledger.lower() > 0.0, ledger.upper() < 0.0
            for side, says, wealth in zip(
                ("lower", "upper"),
                rejected,
                (log.lower[done - 1], log.upper[done - 1]),
                strict=True,
            ):
                gain = math.log(max(wealth, 1e-300)) - ledger.target
                found["rejected"] += says
                found[side] += says if gain < -1e-6 else not says and gain > 0.05
    return found


def proposal_of(rng: np.random.Generator) -> tuple[Proposal, float]:
    """A mini-bucket proposal of a small random model whose buckets were cut, and log Z."""
    while True:
        model = random_model(rng, str(rng.choice(("pairwise", "higher order", "zeros"))))
        if model.n_variables < 4:
            continue
        order = Orders(model)[Order.MIN_FILL]
        descent = Descent(model, partition(model, order, int(rng.integers(1, 3))))
        for _ in range(rng.integers(0, 6)):
            descent.advance()
        log_z = enumerated_log_z(model)
        if math.isfinite(log_z) and descent.best > log_z + 1e-3:
            return Proposal.of(model, descent), log_z


def drawn_misses(numbers: range) -> Counter[str]:
    """The same over real draws of one model a stretch: mean, cap and rounding are as declared."""
    rng = np.random.default_rng([18, numbers.start])
    proposal, log_z = proposal_of(rng)
    shares = np.array([SHARES["mini-bucket"], CAPPED_SHARES["mini-bucket"]])

    def draws() -> NDArray[np.float64]:
        drawing = proposal.drawing(rng.integers(2**64, size=LANES, dtype=np.uint64))
        logs = np.concatenate([drawing.batch(), drawing.batch()])
        found["above the cap"] += int((logs > proposal.rounding).sum())
        return np.minimum(logs, 0.0) + proposal.log_u - log_z

    found: Counter[str] = Counter()
    pilot = np.exp(draws())
    spread = float(pilot.std() / max(pilot.mean(), 1e-300))
    stakes, weights = stakes_of(Source("", 0.0, spread=spread, expected=2.0 * LANES))
    total = square = 0.0
    for _ in numbers:
        logs = draws()
        cap = proposal.log_u - log_z
        (below, above), _ = follow(logs, cap, stakes, weights, shares)
        found["lower"] += int(below >= TARGET)
        found["upper"] += int(above >= TARGET)
        found["both"] += int(max(below, above) >= TARGET)
        shifted, _ = follow(logs + 0.1, cap + 0.1, stakes, weights, shares)
        found["control"] += bool(shifted[0] >= TARGET)
        total += float(np.exp(logs).mean())
        square += float(np.exp(logs).mean() ** 2)
    # All means of a model together: unbiased to five standard errors (heavy tails apart).
    n = len(numbers)
    error = math.sqrt(max(square / n - (total / n) ** 2, 0.0) / n) + 1e-5
    found["biased"] += abs(total / n - 1.0) > 5.0 * error
    found["models"] += 1
    return found


def most_likely(misses: int, runs: int) -> float:
    """The rate that is exceeded with confidence 0.99 by none (Clopper and Pearson)."""
    return 1.0 if misses >= runs else float(beta_distribution.ppf(0.99, misses + 1, runs - misses))


def ledger(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """The reading against the ledger, one row per case, one per control."""
    stretches = _stretches(max(40, int(COMPARED * scale)))
    found = sum(spread(disagreements, stretches, workers), Counter[str]())
    yield Row(
        "ledger: compiled reading", found["moments"], found["lower"] + found["upper"],
        f"the real one rejected {found['rejected']} times", bool(found["rejected"] > 0),
    )  # fmt: skip
    runs = max(600, int(RUNS * scale))
    limit = {side: int(binom.ppf(0.9999, runs, DELTA / 2.0)) for side in ("lower", "upper")}
    limit["both"] = int(binom.ppf(0.9999, runs, DELTA))
    for name in CASES:
        progress(f"{name}, {runs} runs")
        misses = sum(spread(partial(examine, name), _stretches(runs), workers), Counter[str]())
        worst = max(misses[side] - most for side, most in limit.items())
        detail = f"ever missed by {_rates(misses, runs)}"
        yield Row(f"ledger: {name}", runs, max(0, worst), detail)
    progress(f"draws of real proposals, {runs} runs")
    found = sum(spread(drawn_misses, _stretches(runs, DRAWN_STRETCH), workers), Counter[str]())
    worst = max(found[side] - most for side, most in limit.items())
    yield Row(
        "ledger: draws under real mini-bucket caps", runs,
        max(0, worst) + found["above the cap"] + found["biased"],
        f"{found['models']} models, ever missed by {_rates(found, runs)}; log Z 0.1 lower: "
        f"{found['control'] / runs:.2%}", found["control"] > limit["lower"],
    )  # fmt: skip
    progress(f"controls, {runs} runs")
    misses = sum(spread(control_misses, _stretches(runs), workers), Counter[str]())
    for name in CONTROLS:
        made = runs * CLOSEST_RUNS if name == BEST else runs
        bar = int(binom.ppf(0.9999, made, DELTA if name in (NORMAL, BEST) else DELTA / 2.0))
        detail = f"ever missed by {misses[name] / made:.2%}, {bar / made:.2%} would be allowed"
        yield Row(f"ledger: control, {name}", made, 0, detail, misses[name] > bar)


def _rates(misses: Counter[str], runs: int) -> str:
    return ", ".join(
        f"{side} {misses[side] / runs:.2%} (< {most_likely(misses[side], runs):.2%})"
        for side in ("lower", "upper", "both")
    )


def _stretches(runs: int, stretch: int = STRETCH) -> list[range]:
    return [range(at, min(at + stretch, runs)) for at in range(0, runs, stretch)]
