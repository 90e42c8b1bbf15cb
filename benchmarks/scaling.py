"""The main job on more processes: what is sent, how often, how long; and the curve.

Issue 19: two processes against one at least 1.7 times as fast on sampling and tree streams; the
curve to 16 cores; a model of the run and what it predicts for more. SCALING_WORKERS="1 2 4" picks
the numbers of processes, SCALING_ONLY="tree" the streams, SCALING_SECONDS the seconds of each,
SCALING_SEED the model. Each worker has one thread; the load of the machine is printed, and so is
what the machine gives: the same piece again and again in so many processes that exchange nothing,
against one of them alone.

Work is counted in the same units for any number of processes: steps of annealing, draws under a
cap, and for the splitting tree regions bounded from one side, a q refined or mini-buckets run; the
workers count them. Pieces would not do: with more hands than leaves a look at a leaf is cut into
several, and looks at leaves of few candidates are shorter. Both kinds of region take about as long
(0.15 s here). What a region is worth is another matter, since more hands look at leaves that fewer
would have left for later, so splits and ends are printed too.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import tightz as tz
from tightz.families.projection import IProjection
from tightz.families.structured import StructuredMeanField, StructuredProjection
from tightz.runtime.clock import Clock
from tightz.runtime.executors import Crew
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.parcels import pack
from tightz.runtime.seeds import stream
from tightz.sampling.annealed import Annealing
from tightz.sampling.annealed_rounds import Drawer
from tightz.sampling.capped.pieces import Lot, Sampler
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.capped.tally import Tally
from tightz.splitting import Splitting, SplittingTree
from tightz.splitting.run import STRUCTURED
from tightz.splitting.upper import Ceiling, UpperBounder
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import Run
from tightz.workspace.working import Handout, Underway, Working

SECONDS = float(os.environ.get("SCALING_SECONDS", "10"))
SEED = int(os.environ.get("SCALING_SEED", "1907"))
PIECE = 0.15
"""Seconds that a piece of the samplers takes about."""

CEILING = 3.0
"""Seconds that a piece is repeated."""

PIECES = 2
"""Of the samplers in a round, for each worker."""

_counts: dict[str, int] = {}
"""Of a sampler's piece: the same for any number of processes."""


def counted(name: str, draw: Callable[[int], object]) -> int:
    """How many draws take a PIECE, by the second of two looks: the first loads the kernels."""
    if name not in _counts:
        for _ in range(2):
            begun = time.perf_counter()
            draw(4)
            _counts[name] = max(1, int(4 * PIECE / (time.perf_counter() - begun)))
    return _counts[name]


class Job(NamedTuple):
    """A stream's work: a handout after the other, `take` what the run does with the results."""

    handouts: Iterator[Handout]
    take: Callable[[list[Any]], None]
    units: Callable[[Any], float]  # of work in one result
    reached: Callable[[], str] = str  # how far the results have led


def working() -> Working:
    model = tz.ising_grid(30, coupling=(-1, 1), field=(-1, 1), seed=SEED)
    return Working(model, Clock(3600.0), exact=False, seed=np.random.SeedSequence(SEED))


def annealing(run: Working, workers: int) -> Job:
    annealing = Annealing.of(run.spins, np.random.default_rng(SEED))
    assert annealing is not None
    plan = annealing._plan("fields", annealing.path, 20.0)
    assert plan is not None
    drawer = Drawer(plan, annealing.collapsed, annealing._most)
    count = counted("annealing", lambda groups: drawer(annealing._lot(plan, groups)))

    def handouts() -> Iterator[Handout]:
        while True:
            yield Handout(drawer, [annealing._lot(plan, count) for _ in range(PIECES * workers)])

    rounds: list[Any] = []

    def take(found: list[Any]) -> None:
        for more in found:
            rounds[:] = [rounds[0].with_more(more, annealing._most) if rounds else more]

    return Job(handouts(), take, lambda found: float(found.work))


def capped(run: Working, workers: int) -> Job:
    mini_buckets = Run(run.orders, MiniBucket(12, iterations=20), 0.0)
    for _ in mini_buckets.steps:
        pass
    assert mini_buckets.descent is not None
    proposal = Proposal.of(mini_buckets.model, mini_buckets.descent)
    level = proposal.log_u - 1.0
    sampler, tally = Sampler(proposal, level), Tally.of(proposal, level)
    batches = counted("capped", lambda few: sampler(Lot(stream(SEED, 0), few, 0.0)))

    def handouts() -> Iterator[Handout]:
        number = 1
        while True:
            seeds = [stream(SEED, number, k) for k in range(PIECES * workers)]
            yield Handout(sampler, [Lot(seed, batches, tally.least) for seed in seeds])
            number += 1

    def take(found: list[Any]) -> None:
        for portion in found:
            tally.merge(portion)

    return Job(handouts(), take, lambda found: float(found.log_weights.size))


_bounded = [0]
"""Regions that this process has bounded, by a q or from above."""


class CountedFamily(StructuredMeanField):
    """The tree's family; counts the q's that it refines."""

    def refine(self, q: IProjection, states: NDArray[np.int8]) -> StructuredProjection:
        _bounded[0] += 1
        return super().refine(q, states)


class CountedBounder(UpperBounder):
    """The tree's mini-buckets, counted."""

    def bound(self, *arguments: Any) -> Ceiling:
        _bounded[0] += 1
        return super().bound(*arguments)


class Counted(NamedTuple):
    """A look, and how many regions it has bounded."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> tuple[Any, int]:
        before = _bounded[0]
        return self.function(task), _bounded[0] - before


def tree(run: Working, workers: int) -> Job:
    """The rounds of a splitting tree; whatever the tree does between them is its home work."""
    settings = Splitting(family=CountedFamily(**asdict(STRUCTURED)))
    tree = SplittingTree(run.spins, settings, seed=SEED, hands=workers, travels=True, ahead=True)
    old = tree.bounder
    tree.bounder = CountedBounder(old.poly, old.width, old.iterations)
    steps = tree.shared_run()
    results: list[Any] = []

    def handouts() -> Iterator[Handout]:
        item: Any = next(steps)
        counted: Counted | None = None
        while True:
            if isinstance(item, Handout):
                counted = counted or Counted(item.function)
                yield replace(item, function=counted)
                item = steps.send(results.pop())
            else:
                item = next(steps)

    def take(found: list[Any]) -> None:
        results.append([value for value, _ in found])

    def reached() -> str:
        assert tree.tree is not None
        return f"; {tree.tree.splits} splits, [{tree.lower:.3f}, {tree.upper:.3f}]"

    return Job(handouts(), take, lambda found: float(found[1]), reached)


JOBS: dict[str, Callable[[Working, int], Job]] = {
    "annealing": annealing, "capped draws": capped, "splitting tree": tree,
}  # fmt: skip


class Again(NamedTuple):
    """A piece again and again: how often a second."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> float:
        begun, count, now = time.perf_counter(), 0, 0.0
        while now < CEILING:
            self.function(task)
            count, now = count + 1, time.perf_counter() - begun
        return count / now


class Measured(NamedTuple):
    """Of one job on so many processes."""

    workers: int
    ceiling: float  # times one that so many do without a word between them
    rate: float  # units of work per second
    pieces: int
    wall: float  # seconds that they took together
    piece: float  # seconds
    home: float  # seconds of this process for a piece
    sent: int  # bytes with a task, back, and once with the function
    back: int
    once: int
    reached: str

    @property
    def predicted(self) -> float:
        """Pieces a second by the model of docs/scaling.md, from what a piece and home took."""
        return min(self.workers / self.piece, 1.0 / self.home)


def measure(name: str, workers: int) -> Measured:
    """SECONDS of one job on so many warm processes."""
    with LocalWorkers(workers) as pool:
        run = working()
        job = JOBS[name](run, workers)
        crew = Crew(pool)
        for future in [crew.send(abs, k) for k in range(4 * workers)]:  # processes are up
            future.result()
        answer = Underway(lambda function, task: crew.send(function, task).result)
        first = next(job.handouts)
        sent = max(len(pickle.dumps(task)) for task in first.tasks)
        once = len(pack(first.function))
        found = answer(first)
        while not found:  # then kernels are loaded, the function has travelled
            job.take([])
            found = answer(next(job.handouts))
        again = Again(first.function)
        (alone,), together = (
            [each.result().value for each in [crew.send(again, first.tasks[0]) for _ in range(k)]]
            for k in (1, workers)
        )
        back = max(len(pickle.dumps(one.value)) for one in found)
        job.take([one.value for one in found])
        units, work, pieces, home = 0.0, 0.0, 0, time.process_time()
        begun = time.perf_counter()
        while time.perf_counter() - begun < SECONDS:
            found = answer(next(job.handouts))
            work += sum(one.seconds for one in found)
            units += sum(job.units(one.value) for one in found)
            pieces += len(found)
            job.take([one.value for one in found])
        wall, home = time.perf_counter() - begun, time.process_time() - home
        reached = job.reached()
        crew.dismiss()
    return Measured(
        workers, sum(together) / alone, units / wall, pieces, wall, work / pieces, home / pieces,
        sent, back, once, reached,
    )  # fmt: skip


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = os.environ.get("SCALING_WORKERS")
    counts = (
        [int(k) for k in wanted.split()]
        if wanted
        else [k for k in (1, 2, 4, 8, 16) if k <= (cores or 1)]
    )
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}; 30x30 grid, w = 1, seed {SEED}")
    out: dict[str, list[Any]] = {}
    only = os.environ.get("SCALING_ONLY", "").split()
    for name in JOBS:
        if only and not any(word in name for word in only):
            continue
        base = 0.0
        for k in counts:
            m = measure(name, k)
            base = base or m.rate
            out.setdefault(name, []).append(m._asdict())
            print(
                f"{name:15s} {k:2d} processes: {m.rate / base:5.2f} times one (nothing shared "
                f"{m.ceiling:.2f}); {m.pieces} pieces of {1e3 * m.piece:.0f} ms, home "
                f"{1e3 * m.home:.2f} ms each, {m.pieces / m.wall:.2f} a second (the model says "
                f"{m.predicted:.2f}); {m.sent:,} bytes out, {m.back:,} back, "
                f"{m.once:,} once; {m.rate:.1f} units a second{m.reached}",
                flush=True,
            )
    path = os.environ.get("SCALING_JSON")
    if path:
        with open(path, "w") as file:
            json.dump(out, file)


if __name__ == "__main__":
    main()
