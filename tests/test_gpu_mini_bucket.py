"""Mini-buckets on the device against the CPU's, by the CUDA simulator in a process of its own.

The CPU's numbers are computed here, compiled; what the judge says is held against exact values.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tightz as tz
import tightz.judge
from tests.simulator import simulated
from tightz.elimination.order import Order, Orders
from tightz.errors import ResourceError
from tightz.interval.streams.spins import plain_mean_field
from tightz.judge import RefutedError
from tightz.runtime.clock import Clock
from tightz.sampling.capped.proposal import proposal_of
from tightz.sampling.capped.tally import Tally
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.partition import partition
from tightz.uppers.mini_bucket.places import Forecast, choose_place, forecast, main_memory
from tightz.uppers.mini_bucket.run import MiniBucket, Run, Tried
from tightz.workspace.findings import Finding
from tightz.workspace.working import Working, alone

cuda = pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")

WORDS = np.random.default_rng(3).integers(2**64, size=8, dtype=np.uint64)


def models():
    """(model, ibound): spins, and variables of two to four states with a factor over three."""
    rng = np.random.default_rng(0)
    cards = [2, 3, 2, 3, 4]
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3), (3, 4), (4, 0, 1)]
    factors = [(s, 1.5 * rng.normal(size=[cards[v] for v in s])) for s in scopes]
    grid = tz.ising_grid(4, coupling=(-2, 2), field=(-1, 1), seed=1)
    return [(grid, 2), (tz.FactorGraph(cards, factors), 4)]


def run_of(model, ibound, backend):
    """One order, some iterations."""
    orders = Orders(model)
    config = MiniBucket(ibound, iterations=6, tol=0.0)
    tried = [Tried(Order.MIN_FILL, orders[Order.MIN_FILL])]
    run = Run(orders, config, time.perf_counter(), tried, backend=backend)
    for _ in run.improvements():
        pass
    return run


def drawn(run):
    """Three batches: log X, states, and what is claimed about the proposal."""
    proposal = proposal_of(run.model, run.descent)
    drawing = proposal.drawing(WORDS)
    batches = []
    for _ in range(3):
        log_x = drawing.batch()
        proposal.check(drawing, 8)
        batches.append((log_x, drawing.states.copy()))
    return (proposal.log_u, proposal.log_cap, proposal.rounding), batches


def on_cpu(model, ibound):
    run = run_of(model, ibound, "cpu")
    shifts = run.descent._kept[2].copy()
    return run.descent.iterates, run.descent._kept[1], shifts, run.judged().log_z, drawn(run)


def on_device(model, ibound):
    run = run_of(model, ibound, "cuda")
    assert run.place.device
    shifts = run.descent._kept_shifts.copy_to_host()
    weights = run.descent._kept_weights
    evidence = run.descent.evidence(run.numbers)
    there = evidence._judge(run.source)
    assert not isinstance(evidence.shifts, np.ndarray)  # judged where it lay
    here = dataclasses.replace(evidence, shifts=shifts.astype(np.float64)).verdict(run.source)
    assert run.judged().log_z == there.upper
    return run.descent.iterates, weights, shifts, there, here, drawn(run)


def in_steps():
    """The same with sums taken in several steps, and offsets never listed."""
    from tightz.uppers.mini_bucket.gpu import program

    program.FEW, program.LONG, program.LISTED = 4, 2, 1
    return [run_of(*one, "cuda").descent.iterates for one in models()]


def refuted():
    """What the judges say to shifts that are no numbers, and to weights of another model."""
    (grid, ibound), _ = models()
    run = run_of(grid, ibound, "cuda")
    proposal = proposal_of(run.model, run.descent)
    drawing = proposal.drawing(WORDS)
    drawing.batch()
    other = tz.ising_grid(4, coupling=(-2, 2), field=(-1, 1), seed=2)
    said = []
    try:
        dataclasses.replace(proposal, model=other).check(drawing, 8)
    except RefutedError as error:
        said.append(str(error))
    run.descent._kept_shifts[0] = np.nan
    try:
        run.judged()
    except RefutedError as error:
        said.append(str(error))
    return said


def failing():
    """A device that fails in the middle of a descent, and one that cannot be read any more."""
    from tightz.uppers.mini_bucket.gpu.descent import DeviceDescent

    def fail(self, *_):
        raise MemoryError("out of memory")

    (model, ibound), _ = models()
    out = []
    for name in ("_backward", "evidence", "snapshot"):
        whole = getattr(DeviceDescent, name)
        setattr(DeviceDescent, name, fail)
        run = run_of(model, ibound, "cuda")
        bound = run.judged().log_z
        try:
            proposal_of(run.model, run.descent)
            said = ""
        except ResourceError as error:
            said = str(error)
        out.append((bound, run.place.device, run.note, said))
        setattr(DeviceDescent, name, whole)
    return out


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    call = "([on_device(*one) for one in models()], in_steps(), refuted(), failing())"
    return simulated(call, __name__, tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module")
def here():
    return [on_cpu(*one) for one in models()]


def test_the_descent_is_that_of_the_cpu(there, here):
    for (iterates, weights, shifts, *_), found in zip(here, there[0], strict=True):
        np.testing.assert_allclose(found[0], iterates, atol=1e-5)
        np.testing.assert_allclose(found[1], weights, atol=1e-5)
        np.testing.assert_allclose(found[2], shifts, atol=1e-4)


def test_sums_in_several_steps_are_the_same(there, here):
    for found, (iterates, *_) in zip(there[1], here, strict=True):
        np.testing.assert_allclose(found, iterates, atol=1e-5)


def test_the_judge_on_the_device_says_what_numpy_says(there, here):
    for (model, _), found, (*_, log_z, _) in zip(models(), there[0], here, strict=True):
        device, plain = found[3], found[4]
        assert device.upper == pytest.approx(plain.upper, abs=1e-10)
        assert device.upper == pytest.approx(log_z, abs=1e-5)
        assert device.upper >= tz.exact(model).log_z
        assert device.lower == -np.inf


def test_draws_on_the_device_are_those_of_the_cpu(there, here):
    for found, (*_, ((log_u, log_cap, _), batches)) in zip(there[0], here, strict=True):
        (u, cap, rounding), drawn_there = found[5]
        assert u == pytest.approx(log_u, abs=1e-5)
        assert u <= cap == pytest.approx(log_cap, abs=1e-4)
        assert 0.0 < rounding < 1e-5
        for (log_x, states), (log_y, others) in zip(drawn_there, batches, strict=True):
            np.testing.assert_array_equal(states, others)
            np.testing.assert_allclose(log_x, log_y, atol=1e-5)
            assert (log_x + u <= cap).all()


def test_the_judges_refute(there):
    weights, shifts = there[2]
    assert weights.startswith("draws under a cap: a weight differs from p~ / q by")
    assert shifts == "a shift in device memory is not a finite number"


def test_a_device_that_fails_ends_no_run(there, here):
    middle, judged, draws = there[3]
    for bound, device, note, said in (middle, judged):
        assert not device
        assert note == "mini-buckets left the GPU: MemoryError: out of memory"
        assert bound >= tz.exact(models()[0][0]).log_z
        assert said == ""
    assert middle[0] == pytest.approx(here[0][3], abs=1e-9)  # all of it again, on the CPU
    assert draws[1:] == (True, "", "drawing on the GPU failed: out of memory")


def test_the_judge_on_the_device_imports_no_maker():
    """As tests/test_judge.py asks of the rest of the judge; only here it may compile."""
    allowed = {"tightz.models.factor_graph", "numpy", "numpy.typing", "numba", "numba.core"}
    folder = Path(tightz.judge.__file__).parent / "gpu"
    assert len(list(folder.glob("*.py"))) == 3
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                fine = name in allowed or name.startswith("tightz.judge")
                assert fine or name.split(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


def test_tables_stay_in_main_memory_where_a_device_is_no_use(monkeypatch):
    model = tz.ising_grid(8, seed=0)
    orders = Orders(model)
    small, large = (partition(model, orders[Order.MIN_FILL], ibound) for ibound in (3, 30))
    zeros = tz.FactorGraph([2, 2], [((0, 1), np.array([[0.0, -np.inf], [0.0, 0.0]]))])
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    monkeypatch.setattr("tightz.uppers.mini_bucket.places.WORTH", 50.0)
    monkeypatch.setattr("tightz.runtime.gpu.device.free_bytes", lambda: 2**40)

    def chosen(found, model=model, side=tz.Side.UPPER, backend="auto"):
        return choose_place(backend, model, [found], side, 1e9).device

    assert chosen(large)
    assert not chosen(small)  # not worth it
    assert not chosen(large, side=tz.Side.LOWER)
    assert not chosen(large, model=zeros)
    assert not chosen(large, backend="cpu")
    monkeypatch.setattr("tightz.runtime.gpu.device.free_bytes", lambda: 1000)
    assert not chosen(large)  # does not fit
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "no device")
    assert not chosen(large)


def test_a_device_makes_larger_tables_cheap(monkeypatch):
    model = tz.ising_grid(12, seed=0)
    parts = partition(model, Orders(model)[Order.MIN_FILL], 8)
    here = main_memory(1e9)
    there = here._replace(device=True)
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    monkeypatch.setattr("tightz.runtime.gpu.device.free_bytes", lambda: 2**40)
    assert forecast("cpu", here, parts, 1.0, 10) == Forecast(2.0**10, 0.0)
    assert forecast("auto", here, parts, 1.0, 1) == Forecast(2.0, 0.0)  # still on the CPU
    assert forecast("auto", here, parts, 1.0, 10).pace < 1.0
    assert forecast("auto", here, parts, 1.0, 10).setup > 0.0
    assert forecast("auto", here, parts, 1.0, 10).device
    assert 1.0 < forecast("auto", there, parts, 1.0, 1).pace < 2.0  # launches cost what they did
    monkeypatch.setattr("tightz.runtime.gpu.device.free_bytes", lambda: 1000)
    assert forecast("auto", here, parts, 1.0, 10) == Forecast(2.0**10, 0.0)
    assert forecast("auto", there, parts, 1.0, 1).pace == np.inf
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "no device")
    assert forecast("auto", here, parts, 1.0, 10) == Forecast(2.0**10, 0.0)


@pytest.fixture
def pretended(monkeypatch):
    """The CPU's descent, called a device."""
    from tightz.sampling.capped import wide
    from tightz.uppers.mini_bucket import run as module

    def make(model, parts, *, lower, layout=None):
        assert layout.entries > 0
        return Descent(model, parts, lower=lower)

    def place(backend, model, found, side, allowed):
        return main_memory(allowed)._replace(device=True, make=make)

    monkeypatch.setattr(module, "choose_place", place)
    monkeypatch.setattr(Working, "uses_device", property(lambda self: self.backend != "cpu"))
    monkeypatch.setattr(wide, "FIRST", 4)
    monkeypatch.setattr(wide, "WIDER", 1)
    monkeypatch.setattr(wide, "A_CLIQUE", 20.0 * wide.AN_ENTRY)
    monkeypatch.setattr(wide, "MOST", 3)
    return wide


def stream_of(wide, working):
    """What the stream yields, until it has nothing to say."""
    (launched,) = wide.wide_tables(working, working.clock)
    return launched[0], alone(launched[0](working, working.clock))


def test_wide_tables_try_orders_and_grow(pretended):
    model = tz.ising_grid(8, coupling=(-2, 2), seed=1)
    exact = tz.exact(model).log_z
    working = Working(model, Clock(60.0), exact=False)
    _, stream = stream_of(pretended, working)
    found = [item for item in itertools.islice(stream, 600) if isinstance(item, tz.Bound)]
    assert len({bound.method for bound in found}) > 2  # wider and wider
    assert all(exact <= bound.log_z < exact + 5.0 for bound in found)
    assert not list(pretended.wide_tables(Working(model, Clock(9.0), backend="cpu"), Clock(9.0)))


def test_wide_tables_end_with_a_device_that_fails(pretended, monkeypatch):
    calls, advance = itertools.count(), Descent.advance

    def fails(self):
        if next(calls) == 2:
            raise RuntimeError("no memory")
        return advance(self)

    monkeypatch.setattr(Descent, "advance", fails)
    model = tz.ising_grid(8, coupling=(-2, 2), seed=1)
    _, stream = stream_of(pretended, Working(model, Clock(60.0), exact=False))
    notes = [item.note for item in stream if isinstance(item, Finding) and item.note]
    assert notes == ["mini-buckets left the GPU: RuntimeError: no memory"]


def test_dense_models_and_narrow_ones_get_no_wide_tables(pretended):
    dense = tz.rbm(np.random.default_rng(0).normal(size=(90, 90)))
    assert not list(stream_of(pretended, Working(dense, Clock(60.0), exact=False))[1])
    chain = tz.ising({(i, i + 1): 1.0 for i in range(30)})
    _, stream = stream_of(pretended, Working(chain, Clock(60.0), exact=False))
    assert not [item for item in stream if isinstance(item, tz.Bound)]


def test_draws_from_wide_tables_bet_beside_the_others(pretended):
    """In a whole run: every draw counts once, in the track of the CPU's tables."""
    model = tz.ising_grid(9, coupling=(-1.5, 1.5), field=(-0.5, 0.5), seed=4)
    exact = tz.exact(model)
    counted = []
    weigh, add = Tally.weigh, Tally.add

    def weighed(self, log_x):
        counted.append(log_x.size)
        return weigh(self, log_x)

    def added(self, drawing, rng):
        if self.family == "wide mini-bucket":
            counted.append(drawing.log_x.size)
        add(self, drawing, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tally, "weigh", weighed)
        patch.setattr(Tally, "add", added)
        r = tz.log_partition(
            model, time_limit=6, exact=False, seed=3, delta=1e-6,
            only=(plain_mean_field, pretended.wide_tables),
        )  # fmt: skip
    assert r.lower <= r.confident.lower <= exact.log_z <= r.confident.upper <= r.upper
    tracks = {a.source.track for a in r.ledger.accounts}
    assert tracks == {"mini-bucket"}
    drawn = sum(a.drawn for a in r.ledger.accounts)
    # what was on its way when the clock ended is lost: nobody saw it
    assert 0 < sum(counted) - drawn <= 0.5 * sum(counted) or sum(counted) == drawn > 0
    assert not r.failures
    for ends, value in zip(r.confident.marginal_bounds, exact.marginals, strict=True):
        assert (ends[:, 0] <= value + 1e-12).all()
        assert (value <= ends[:, 1] + 1e-12).all()
    assert np.mean([np.ptp(ends, axis=1).mean() for ends in r.confident.marginal_bounds]) < 0.9


def test_weights_alone_and_counted_draws_add_up():
    model = tz.ising_grid(5, coupling=(-1, 1), seed=2)
    run = run_of(model, 3, "cpu")
    proposal = proposal_of(run.model, run.descent)
    level = proposal.log_u - 0.5
    both, plain = Tally.of(proposal, level), Tally.of(proposal, level)
    words = np.random.default_rng(5).integers(2**64, size=64, dtype=np.uint64)
    one, two = proposal.drawing(words), proposal.drawing(words)
    for number in range(8):
        np.testing.assert_array_equal(one.batch(), two.batch())
        plain.add(one, np.random.default_rng(number))
        if number % 2:
            both.add(two, np.random.default_rng(number))
        else:
            np.testing.assert_array_equal(both.weigh(two.log_x), two.log_x + proposal.log_u)
    assert (both.drawn, both.counted, plain.counted) == (512, 256, 512)
    assert both.estimate() == plain.estimate()
    assert both.worth == pytest.approx(0.5 * plain.worth)
    assert both.counts.sum() == 256 * model.n_variables


def test_threads_of_the_simulator_share_their_arrays(tmp_path):
    assert simulated("slow_sums()", "tests.shared_sums", tmp_path) == [6.0, 10.0, 14.0]


def test_the_judge_s_room_gives_no_place_twice():
    """Messages on the device: none overlaps another that is held, and gaps are used again."""
    from tightz.judge.gpu.cliques import _Room

    rng = np.random.default_rng(4)
    room, held, most = _Room(), {}, 0
    for _ in range(3000):
        if held and rng.random() < 0.5:
            low = list(held)[rng.integers(len(held))]
            room.free(low, held.pop(low))
        else:
            size = 2 ** int(rng.integers(8)) + int(rng.integers(2))
            low = room.take(size)
            assert all(low + size <= other or other + more <= low for other, more in held.items())
            held[low] = size
            assert low + size <= room.peak
        most = max(most, sum(held.values()))
    assert room.peak < 2 * most
    for low, size in held.items():
        room.free(low, size)
    assert room.gaps == [(0, room.peak)]
