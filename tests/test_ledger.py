"""The ledger against its plain twin, at the edges of its inputs, and its width."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.errors import ParameterError
from tightz.sampling import ledger as module
from tightz.sampling.ledger import (
    CAPPED_SHARES,
    POINTS,
    SHARES,
    Account,
    Ledger,
    stakes_of,
)
from tightz.workspace.findings import Draws, Source

CAP = 3.0
ANY = st.floats(allow_nan=True, allow_infinity=True)
SHAPES = ("lognormal", "tight", "rare", "zeros", "cap", "constant", "deep", "beta")


def log_weights(rng, shape, n, cap=CAP):
    """log W at or below the cap, of all the shapes that strain a certificate."""
    with np.errstate(divide="ignore"):
        values = {
            "lognormal": rng.normal(0.0, 1.0, n),
            "tight": rng.normal(0.0, 1e-3, n),
            "rare": np.where(rng.random(n) < 0.01, cap, -2.0),
            "zeros": np.log(rng.random(n) * (rng.random(n) < 0.3)),
            "cap": np.where(rng.random(n) < 0.5, cap, rng.normal(0.0, 1.0, n)),
            "constant": np.full(n, 0.7),
            "deep": rng.normal(0.0, 0.01, n) - np.where(rng.random(n) < 0.2, 900.0, 0.0),
            "beta": cap + np.log(rng.beta(0.02, 200.0, n)),
        }[shape]
    return np.minimum(values, cap)


@st.composite
def sources(draw, track="mini-bucket"):
    """(source, its draws): what the pilot said has nothing to do with the draws."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shift = draw(st.sampled_from([0.0, -1e5, 1e5]))
    cap = draw(st.sampled_from([0.0, 0.7, CAP]))
    n = draw(st.sampled_from([1, 2, 40, 3 * POINTS, 3000]))
    source = Source(
        track,
        level=draw(ANY),
        log_cap=cap + shift,
        spread=draw(st.one_of(ANY, st.floats(1e-4, 10.0))),
        expected=draw(st.one_of(ANY, st.floats(1.0, 1e7))),
    )
    logs = log_weights(rng, draw(st.sampled_from(SHAPES)), n, cap) + shift
    return source, np.minimum(logs, source.log_cap)


def ledger_of(*entries, delta=0.05, batches=3):
    ledger = Ledger(delta)
    for source, logs in entries:
        for part in np.array_split(logs, batches):
            ledger.add(Draws(source, part))
    return ledger


def twin(source, logs, log_z, upper):
    cap = source.log_cap if upper else None
    return naive.log_wealth_of_bets(logs, log_z, *stakes_of(source), cap)


def simple(logs, cap=CAP, **said):
    return Source("mini-bucket", 0.0, log_cap=cap, **said), np.asarray(logs)


# -- against the twin -----------------------------------------------------------------------------


@given(sources(), st.floats(-4.0, 4.0), st.booleans())
def test_wealth_never_exceeds_that_of_the_draws_themselves(entry, at, upper):
    source, logs = entry
    log_z = source.log_cap - abs(at) - 1e-6 if upper else source.log_cap + at
    ledger = ledger_of(entry)
    share = (CAPPED_SHARES if upper else SHARES)["mini-bucket"]
    got = ledger.log_wealths(log_z, upper=upper)["mini-bucket"] - math.log(share)
    true = twin(source, logs, log_z, upper)
    # What the ends are moved by covers a z that is wrong in its last digits.
    moved = log_z + (-1.0 if upper else 1.0) * -ledger.accounts[0].margin
    allowed = max(true, twin(source, logs, moved, upper))
    assert got <= allowed + module.SLACK


@given(sources(), st.booleans())
def test_ends_are_rejected_by_the_twin(entry, upper):
    source, logs = entry
    ledger = ledger_of(entry)
    end = ledger.upper() if upper else ledger.lower()
    if math.isinf(end) or end >= source.log_cap:
        assert end == -math.inf or upper
        return
    share = (CAPPED_SHARES if upper else SHARES)["mini-bucket"]
    assert twin(source, logs, end, upper) + math.log(share) >= math.log(40.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("upper", [False, True])
def test_thinning_costs_little(shape, upper):
    logs = log_weights(np.random.default_rng(3), shape, 20_000)
    weights = np.exp(logs)
    entry = simple(logs, spread=float(weights.std() / weights.mean()), expected=20_000.0)
    ledger = ledger_of(entry, batches=40)
    end = ledger.upper() if upper else ledger.lower()
    share = (CAPPED_SHARES if upper else SHARES)["mini-bucket"]
    exact = twin(*entry, end, upper) + math.log(share)
    assert math.log(40.0) <= exact <= math.log(40.0) + 0.1


@given(st.integers(0, 2**32 - 1), st.sampled_from(SHAPES))
def test_thinning_keeps_number_and_mean(seed, shape):
    logs = log_weights(np.random.default_rng(seed), shape, 4 * POINTS)
    account = Account(Source("x", 0.0, log_cap=CAP))
    account.add(logs)
    assert account.points.size <= 2 * POINTS
    assert account.drawn == logs.size
    assert account.counts.sum() + account.zeros == pytest.approx(logs.size, rel=1e-12)
    finite = logs[np.isfinite(logs)]
    if finite.size:
        assert account.log_mean() == pytest.approx(
            math.log(np.exp(finite).sum() / logs.size), abs=1e-12
        )


def test_a_million_draws_are_a_few_hundred_points():
    account = Account(Source("x", 0.0))
    rng = np.random.default_rng(4)
    for _ in range(10):
        account.add(rng.normal(0.0, 2.0, 100_000))
    assert account.points.size <= 2 * POINTS
    assert account.drawn == 1_000_000


# -- monotone, combined, shared -------------------------------------------------------------------


@given(st.lists(sources(), min_size=1, max_size=3), st.booleans())
def test_wealth_is_monotone_in_z(entries, upper):
    ledger = ledger_of(*entries)
    base = min(source.log_cap for source, _ in entries)
    grid = base - np.concatenate([np.geomspace(50.0, 1e-6, 60), [-1e-9, -1.0]])
    values = [ledger.log_wealths(z, upper=upper)["mini-bucket"] for z in grid.tolist()]
    for here, there in itertools.pairwise(values):
        low, high = (here, there) if upper else (there, here)
        assert low <= high + 1e-9 * (1.0 + abs(low)) or low == high


@given(sources(), sources(), st.floats(0.01, 5.0), st.booleans())
def test_sources_that_follow_each_other_multiply(one, two, below, upper):
    log_z = min(one[0].log_cap, two[0].log_cap) - below
    both = ledger_of(one, two).log_wealths(log_z, upper=upper)["mini-bucket"]
    parts = [
        ledger_of(entry).log_wealths(log_z, upper=upper)["mini-bucket"] for entry in (one, two)
    ]
    share = (CAPPED_SHARES if upper else SHARES)["mini-bucket"]
    expected = sum(parts) - math.log(share)
    assert both == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_later_sessions_bet_on_what_is_left():
    """400,000 draws in four sessions are nearly worth what they are in one go."""
    rng = np.random.default_rng(12)
    logs = np.minimum(rng.normal(-0.125, 0.5, 400_000), CAP)
    whole = ledger_of(simple(logs, spread=0.5, expected=4e5))
    parts = Ledger(0.05)
    for part in np.split(logs, 4):
        parts = Ledger.from_records(0.05, parts.records())
        parts.add(Draws(*simple(part, spread=0.5, expected=1e5)))
    assert [a.source.expected for a in parts.accounts] == [1e5, 2e5, 3e5, 4e5]
    assert parts.upper() - parts.lower() < 1.2 * (whole.upper() - whole.lower())


def test_the_best_track_counts_and_the_others_neither_help_nor_harm():
    rng = np.random.default_rng(5)
    one = simple(rng.normal(0.0, 0.1, 500), spread=0.1, expected=500)
    two = (Source("mine", 0.0, spread=0.1, expected=500), rng.normal(0.0, 0.1, 500))
    ledger = ledger_of(one, two)
    values = ledger.log_wealths(-0.02, upper=False)
    assert ledger.leader(-0.02, upper=False) == max(values, key=values.get)
    assert ledger.lower() == pytest.approx(ledger_of(one).lower(), abs=3e-7)
    # a share of 0.06 costs little where many more draws are behind it
    many = Source("annealing", 0.0, spread=0.1, expected=5e4), rng.normal(0.0, 0.1, 50_000)
    ledger = ledger_of(one, two, many)
    assert ledger.leader(ledger.lower(), upper=False) == "annealing"
    alone = ledger_of(many).lower()
    assert ledger_of(one).lower() < ledger.lower() == pytest.approx(alone, abs=3e-7)


def tails(most):
    """(2^G, chance) of the most that coins, doubled or lost, ever reach: P(>= x) = 1/x."""
    found = [(2.0**k, 2.0 ** -(k + 1)) for k in range(most)]
    return [*found, (2.0**most, 2.0**-most)]


def test_tracks_would_add_up_to_too_much_for_whoever_chooses_the_moment_of_each():
    """Both tracks wait before their first loss: in a fixed order nobody can. Shares of a half."""
    level = 2.5
    pairs = [(0.5 * a, 0.5 * b, p * q) for a, p in tails(30) for b, q in tails(30)]
    together = sum(chance for a, b, chance in pairs if a + b >= level)
    largest = sum(chance for a, b, chance in pairs if max(a, b) >= level)
    assert together == pytest.approx(0.4375)  # more than 1 / 2.5
    assert largest == pytest.approx(0.234375)
    # and for any shares and levels the largest keeps what is promised
    for share, level in itertools.product((0.06, 0.3, 0.5), (1.5, 2.5, 5.0, 40.0)):
        ever = 0.0
        for (a, p), (b, q) in itertools.product(tails(40), tails(40)):
            ever += p * q * (max(share * a, (1.0 - share) * b) >= level)
        assert ever <= 1.0 / level


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*SHARES, "mine", "yours", "a", "b", "c"]),
            st.sampled_from([math.inf, CAP]),
        ),
        max_size=30,
    )
)
def test_shares_are_fixed_at_the_opening_and_never_exceed_one(order):
    ledger = Ledger(0.05)
    before = {True: {}, False: {}}
    for track, cap in order:
        ledger.add(Draws(Source(track, 0.0, log_cap=cap), np.zeros(1)))
        for upper in (False, True):
            shares = ledger.shares(upper=upper)
            assert sum(shares.values()) <= 1.0 + 1e-12
            assert all(shares[name] == share for name, share in before[upper].items())
            before[upper] = shares
    assert sum(SHARES.values()) < 1.0
    assert sum(CAPPED_SHARES.values()) < 1.0


@given(ANY, ANY)
def test_stakes_are_a_mixture_whatever_the_pilot_says(spread, expected):
    stakes, weights = stakes_of(Source("x", 0.0, spread=spread, expected=expected))
    assert ((stakes >= 0.0) & (stakes <= 1.0)).all()
    assert (weights > 0.0).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)


# -- edges of the inputs --------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-1e5, 1e5, 1e9])
def test_ends_move_with_log_z(shift):
    logs = np.random.default_rng(6).normal(0.0, 0.3, 2000)
    near = ledger_of(simple(logs, spread=0.3, expected=2000))
    far = ledger_of(simple(logs + shift, CAP + shift, spread=0.3, expected=2000))
    room = 1e-6 + 1e-14 * abs(shift)
    assert far.lower() - shift == pytest.approx(near.lower(), abs=room)
    assert far.upper() - shift == pytest.approx(near.upper(), abs=room)


@pytest.mark.parametrize("level", [-math.inf, -1e6, -100.0, 100.0, 1e6, math.inf, math.nan])
def test_the_level_may_be_far_off(level):
    logs = np.random.default_rng(7).normal(0.0, 0.1, 500)
    for cap in (math.inf, CAP):
        said = Source("mini-bucket", level, log_cap=cap, spread=0.1, expected=500.0)
        right = Source("mini-bucket", 0.0, log_cap=cap, spread=0.1, expected=500.0)
        assert ledger_of((said, logs)).lower() == ledger_of((right, logs)).lower()
        assert ledger_of((said, logs)).upper() == ledger_of((right, logs)).upper()


def test_nothing_drawn_and_nothing_but_zeros():
    for logs in (np.empty(0), np.full(3, -np.inf)):
        ledger = ledger_of(simple(logs))
        assert ledger.lower() == -math.inf
        assert ledger.upper() >= CAP
    assert Ledger(0.05).lower() == -math.inf
    assert Ledger(0.05).upper() == math.inf
    assert Ledger(0.05).leader(0.0, upper=True) == ""
    # A million zeros: below 5.5 / N of the cap with stake 1 of a pilot that saw no spread.
    ledger = ledger_of(simple(np.full(1_000_000, -np.inf), spread=0.0))
    assert CAP - 13.0 < ledger.upper() < CAP - 11.5


def test_all_at_the_cap():
    ledger = ledger_of(simple(np.full(10_000, CAP), spread=0.0, expected=10_000))
    assert CAP - 1e-3 < ledger.lower() < CAP <= ledger.upper() < CAP + 1e-8


def test_one_that_is_not_zero_among_a_million():
    logs = np.full(1_000_000, -np.inf)
    logs[123_456] = CAP
    ledger = ledger_of(simple(logs, spread=1e3, expected=1e6))
    log_mean = CAP - math.log(1e6)
    assert ledger.lower() < log_mean < ledger.upper() < log_mean + 4.0


def test_constant_weights_close_both_ends():
    ledger = ledger_of(simple(np.full(10_000, -4.0), spread=0.0, expected=10_000))
    assert -4.0 - 1e-3 < ledger.lower() < -4.0 < ledger.upper() < -4.0 + 0.6


@pytest.mark.parametrize("lost", [1e-3, 0.2, 5.0])
def test_what_draws_may_miss_is_added_to_the_upper_end(lost):
    """E[W] >= Z - lost: the least Z that is refuted lies exactly `lost` above the least mean."""
    logs = np.random.default_rng(2).normal(0.0, 0.3, 4000)
    source, logs = simple(np.minimum(logs, CAP), spread=0.3, expected=4000.0)
    whole, missing = (
        ledger_of((replace(source, log_lost=log_lost), logs))
        for log_lost in (-math.inf, math.log(lost))
    )
    expected = math.log(math.exp(whole.upper()) + lost)
    assert missing.upper() == pytest.approx(expected, abs=1e-6)
    assert missing.upper() > whole.upper() + 1e-4
    assert missing.lower() == whole.lower()  # E[W] <= Z all the same
    # beside a source that misses nothing each is held against its own mean
    both = ledger_of((source, logs), (replace(source, level=1.0, log_lost=math.log(lost)), logs))
    assert whole.upper() - 0.05 < both.upper() <= missing.upper() + 1e-6


def test_a_cap_further_off_than_floats_reach():
    ledger = ledger_of(simple(np.zeros(1000), 5000.0, spread=0.1))
    assert ledger.lower() > -0.1
    # log U - log(N / 5): as far as a thousand draws bring any cap down
    assert 4990.0 < ledger.upper() < 5000.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, CAP + 1e-3])
def test_a_draw_that_cannot_be_voids_its_track_alone(bad):
    good = np.random.default_rng(8).normal(0.0, 0.1, 500)
    other = (Source("mine", 0.0, log_cap=4.0), good)
    ledger = ledger_of(simple(np.append(good, bad)), simple(good), other)
    assert ledger.accounts[0].void
    alone = Ledger(0.05)
    alone.add(Draws(Source("mine", 0.0, log_cap=4.0), good))
    assert ledger.lower() == pytest.approx(alone.lower(), abs=1e-6)
    assert ledger.upper() == pytest.approx(alone.upper(), abs=1e-6)
    ledger = ledger_of(simple(np.append(good, bad)))
    assert (ledger.lower(), ledger.upper()) == (-math.inf, math.inf)


def test_a_cap_holds_up_to_declared_rounding():
    logs = np.full(100, CAP + 1e-6)
    assert ledger_of(simple(logs)).accounts[0].void
    ledger = ledger_of(simple(logs, rounding=1e-5))
    assert not ledger.accounts[0].void
    assert ledger.upper() == pytest.approx(CAP + 1e-5, abs=1e-8)
    assert ledger.lower() == pytest.approx(ledger_of(simple(logs - 1e-6)).lower() - 1e-5, abs=1e-6)


def test_delta():
    entry = simple(np.random.default_rng(9).normal(0.0, 0.5, 2000), spread=0.5, expected=2000)
    plain, strict = ledger_of(entry), ledger_of(entry, delta=0.025)
    assert strict.lower() < plain.lower() < plain.upper() < strict.upper()
    with pytest.raises(ParameterError, match="delta"):
        Ledger(1.0)


def test_records_carry_the_wealth_over():
    rng = np.random.default_rng(10)
    first = simple(np.append(rng.normal(0.0, 0.5, 2000), -np.inf), spread=0.5, expected=2000)
    broken = (Source("mine", 0.0), np.array([math.nan]))
    later = simple(rng.normal(0.0, 0.5, 2000), 2.5, spread=0.5, expected=2000)
    whole = ledger_of(first, broken)
    again = Ledger.from_records(0.05, whole.records())
    assert (again.lower(), again.upper()) == (whole.lower(), whole.upper())
    assert again.accounts[1].void
    again.add(Draws(*later))
    known = replace(later[0], expected=again.accounts[-1].source.expected)
    assert known.expected == 2000 + 2001  # the stakes count the draws of the earlier session
    whole.add(Draws(known, later[1]))
    assert (again.lower(), again.upper()) == (whole.lower(), whole.upper())
    assert whole.upper() < ledger_of(first).upper()


# -- width ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.03, 0.1, 0.5, 1.0])
def test_width_beside_the_normal_approximation(sigma):
    """A cap near the weights: 1.5 is what a mixture of bets at any stopping time costs."""
    n = 40_000
    rng = np.random.default_rng(11)
    logs = np.minimum(rng.normal(0.0, sigma, n), 3.0 * sigma)
    weights = np.exp(logs)
    spread = float(weights.std() / weights.mean())
    ledger = ledger_of(simple(logs, 3.0 * sigma, spread=spread, expected=n), batches=20)
    normal = 2.0 * 1.96 * spread / math.sqrt(n)
    assert ledger.upper() - ledger.lower() < 1.8 * normal
    off = ledger_of(simple(logs, 3.0 * sigma, spread=2.0 * spread, expected=2.0 * n), batches=20)
    assert off.upper() - off.lower() < 2.5 * normal


def test_a_stream_listed_twice_draws_once():
    model, drawn = tz.ising_grid(4, seed=2), []

    def draws(working, clock):
        drawn.append(working.seed)
        yield from ()

    tz.log_partition(model, only=[draws, draws], methods=[draws], seed=0)
    assert len(drawn) == 1


def test_an_interrupt_counts_a_batch_whole_or_not_at_all():
    """Ctrl-C at any line: zeros that count without the draws beside them move the upper end."""
    rng = np.random.default_rng(8)
    first, second = (np.where(rng.random(900) < 0.3, -np.inf, rng.normal(-3, 1, 900)) for _ in "12")
    whole, interrupted = 0, 0
    for line in itertools.count(1):
        account = Account(Source("x", 0.0, log_cap=CAP))
        account.add(first)
        before, lines = account.record(), itertools.count(1)

        def strike(frame, event, _, lines=lines, line=line):
            if not frame.f_code.co_filename.endswith("ledger.py"):
                return None
            if event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return strike

        usual = sys.gettrace()
        sys.settrace(strike)
        try:
            account.add(second)
            whole += 1
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(usual)
        told, points = account.record()
        assert told["zeros"] + points[1].sum() == pytest.approx(told["drawn"], rel=1e-12)
        assert told["drawn"] in (before[0]["drawn"], 1800)
        if whole:
            break
    assert interrupted > 15
