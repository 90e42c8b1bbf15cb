"""Workers killed all the time: no number changes, and every draw counts once.

A random worker dies by SIGKILL every 2 to 4 seconds, of local processes and of a dask cluster.
Settled work (trials, a splitting tree, draws under a cap) must give bit for bit what it gives
here, alone. A whole run of `log_partition` must end without a failure, with log Z inside, and its
books must balance: lots handed out, draws that came back for each, draws in the ledger. Controls
that must be caught: an executor that gives a lot's draws for another lot's, and a board that
forgets a batch.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import tightz as tz
from tightz.interval.board import Board
from tightz.interval.lanes import UNMERGED, Job, Pieces, Schedule
from tightz.runtime.executors import Crew, map_ordered
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.seeds import seed_sequence, stream
from tightz.sampling.annealed_rounds import Drawer, Round
from tightz.sampling.annealed_rounds import Lot as ChainLot
from tightz.sampling.capped.lanes import LANES
from tightz.sampling.capped.pieces import Lot, Sampler
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.capped.tally import Portion
from tightz.sampling.ledger import Ledger
from tightz.splitting import Splitting, SplittingTree
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import Run
from tightz.workspace.findings import Draws
from tightz.workspace.working import Handout, Underway, Working
from verification.clusters import local_cluster
from verification.rows import Row

KILLS, SECONDS, LEAST_SECONDS = 60, 240.0, 60.0
ENOUGH = 12
"""Lots done by workers after which a control has shown what it can."""

WORKERS = 4
PAUSE = 2.0, 4.0
DELTA = 1e-4
"""Of the whole run: a confident end that misses log Z is then a failure."""

DOUBLED, FORGOTTEN = "a lot's draws twice", "batches forgotten"

REPEATED = 12
"""Lots of a run whose draws are made again here."""


class Killer(threading.Thread):
    """Kills a random worker every 2 to 4 seconds, `most` of them at most."""

    def __init__(self, pids: Callable[[], list[int]], most: float) -> None:
        super().__init__(daemon=True)
        self.pids, self.most, self.killed = pids, most, 0
        self.over, self.rng = threading.Event(), random.Random(4)

    def run(self) -> None:
        while self.killed < self.most and not self.over.wait(self.rng.uniform(*PAUSE)):
            victims = self.pids()
            if victims:
                try:
                    os.kill(self.rng.choice(victims), signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:  # it is being replaced
                    pass

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


class Place(NamedTuple):
    """An executor, and the processes that work for it now."""

    executor: Any
    pids: Callable[[], list[int]]


@contextmanager
def local() -> Iterator[Place]:
    with LocalWorkers(WORKERS) as pool:
        yield Place(pool, lambda: pool.pids)


@contextmanager
def dask() -> Iterator[Place]:
    import distributed

    with (
        local_cluster(WORKERS) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(WORKERS)
        nannies = cluster.workers
        yield Place(client, lambda: [n.pid for n in list(nannies.values()) if n.pid is not None])


PLACES = {"local processes": local, "dask": dask}


# --- Settled work -------------------------------------------------------------------------------


def done(function: Callable[[Any], Any], tasks: Any, executor: Any) -> list[Any]:
    """By the executor's workers, or here and alone."""
    threads = 1 if executor is None else None
    return list(map_ordered(function, tasks, executor=executor, threads=threads))


def trials(number: int, executor: Any) -> list[Any]:
    """The paper's trials, in batches."""
    model = tz.ising_grid(6, coupling=(-2, 2), field=(-1, 1), seed=number)
    where = {"threads": 1} if executor is None else {"executor": executor}
    found = tz.estimate(model, levels=range(8), trials=30, seed=number, **where)
    return [found.log_gammas, found.marginals, found.sweeps, found.ranks]


def tree(number: int, executor: Any) -> list[Any]:
    """A splitting tree of so many splits, each look handed out."""
    model = tz.ising_grid(9, coupling=(-3, 3), field=(-1, 1), seed=number)
    made = Working(model, seed=seed_sequence(number), exact=False)
    grown = SplittingTree(
        made.spins, Splitting(max_splits=16, exact_width=4), seed=number, hands=4, travels=True,
        ahead=True,
    )  # fmt: skip
    steps: Any = grown.shared_run()
    found: list[Any] = []
    results = None
    with ExitStack() as stack:
        answer = Underway() if executor is None else Underway(sent_by(executor, stack))
        while True:
            try:
                step = steps.send(results)
            except StopIteration:
                return found
            results = None
            if isinstance(step, Handout):
                results = answer(step)
            else:
                found.append(step.log_z)


def sent_by(executor: Any, stack: ExitStack) -> Callable[..., Callable[[], Any]]:
    """How a task is handed to the executor's workers: a call that waits for its result."""
    crew = Crew(executor)
    stack.callback(crew.dismiss)

    def start(function: Any, task: Any) -> Callable[[], Any]:
        future = crew.send(function, task)
        return lambda: future.result().value

    return start


def lots(number: int, executor: Any) -> list[Any]:
    """Draws under a cap, in lots of a fixed size."""
    made = Working(tz.ising_grid(12, coupling=(-3, 3), seed=number), exact=False)
    run = Run(made.orders, MiniBucket(5, iterations=5), 0.0)
    for _ in run.steps:
        pass
    descent: Any = run.descent
    proposal = Proposal.of(run.model, descent)
    sampler = Sampler(proposal, proposal.log_u - 2.0)
    tasks = [Lot(stream(number, k), 4, -np.inf) for k in range(60)]
    portions = done(sampler, tasks, executor)
    return [part for one in portions for part in (one.log_weights, one.counts, one.states)]


WORK = (trials, tree, lots)


def differences(mine: list[Any], theirs: list[Any]) -> int:
    """Numbers, bit for bit, that are not the same."""
    if len(mine) != len(theirs):
        return 1
    return sum(not np.array_equal(a, b, equal_nan=True) for a, b in zip(mine, theirs, strict=True))


def settled(name: str, kills: int, progress: Callable[[str], None]) -> Row:
    """Settled work again and again until so many workers were killed."""
    wrong: list[str] = []
    cases = 0
    with PLACES[name]() as place, Killer(place.pids, kills) as killer:
        while killer.killed < kills:
            for work in WORK:
                number = cases // len(WORK)
                progress(f"{name}: {work.__name__} {number}, {killer.killed} of {kills} killed")
                if differences(work(number, None), work(number, place.executor)):
                    wrong.append(f"{work.__name__} {number}")
                cases += 1
    caught = differences([np.zeros(2)], [np.array([0.0, 1e-300])]) == 1
    detail = f"{killer.killed} workers killed; {wrong[0] if wrong else 'every number the same'}"
    return Row(f"killing: {name}, settled work", cases, len(wrong), detail, caught)


# --- A whole run --------------------------------------------------------------------------------


class Batch(NamedTuple):
    """A handout of draws that came back: lots, what made them, the log weights of each lot."""

    function: Any
    lots: list[Any]
    weights: list[NDArray[np.float64]]


@dataclass
class Books:
    """What streams handed out and got back, and what the ledger was given."""

    batches: dict[int, list[Batch]] = field(default_factory=dict)  # by stream
    counted: list[NDArray[np.float64]] = field(default_factory=list)
    away: int = 0  # lots done by workers; threads do them until the first of those has answered
    tracks: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Every handout and every entry of the ledger is written down meanwhile."""
        hand_out, collect = Pieces.add, Pieces.collect
        add, deliver = Ledger.add, Schedule.deliver
        out: dict[Pieces, deque[tuple[Any, Any]]] = {}

        def handed_out(pieces: Pieces, handout: Handout) -> None:
            out.setdefault(pieces, deque()).extend((handout.function, k) for k in handout.tasks)
            hand_out(pieces, handout)

        def collected(pieces: Pieces) -> list[Any]:
            found = collect(pieces)
            mine = [out[pieces].popleft() for _ in found]
            if mine and isinstance(mine[0][0], Sampler | Drawer):
                batch = Batch(mine[0][0], [k for _, k in mine], [_weights(one) for one in found])
                self.batches.setdefault(id(pieces), []).append(batch)
            return found

        def entered(ledger: Ledger, draws: Draws) -> Any:
            self.counted.append(draws.log_weights)
            self.tracks[draws.source.track] += draws.log_weights.size
            return add(ledger, draws)

        def delivered(
            schedule: Schedule, job: Job, *args: Any, away: bool = False, **more: Any
        ) -> None:
            assert job.piece is not None
            self.away += away and isinstance(job.piece.function, Sampler | Drawer)
            deliver(schedule, job, *args, away=away, **more)

        with (
            mock.patch.object(Pieces, "add", handed_out),
            mock.patch.object(Pieces, "collect", collected),
            mock.patch.object(Ledger, "add", entered),
            mock.patch.object(Schedule, "deliver", delivered),
        ):
            yield

    @property
    def lots(self) -> int:
        return sum(len(batch.lots) for batch in self._all)

    def faults(self, ledger: Ledger) -> list[str]:
        """What does not balance."""
        out = []
        prints = Counter(_print(w) for batch in self._all for w in batch.weights)
        out += [f"a lot came {n} times" for n in prints.values() if n > 1]
        entries = Counter(_print(w) for w in self.counted)
        for each in self.batches.values():
            times = [entries[_print(np.concatenate(batch.weights))] for batch in each]
            out += [f"a batch counted {n} times" for n in times if n > 1]
            # what is under way to the driver at the deadline is found in vain
            while times and times[-1] == 0 and len(each) - len(times) <= UNMERGED:
                times.pop()
            out += ["a batch was lost"] * times.count(0)
        for batch in self._all:
            if isinstance(batch.function, Sampler):
                wanted = [lot.batches * LANES for lot in batch.lots]
                if wanted != [weights.size for weights in batch.weights]:
                    out.append("a lot of another size")
        drawn = Counter[str]()
        for account in ledger.accounts:
            drawn[account.source.track] += account.drawn
        if +drawn != +self.tracks:
            out.append(f"the ledger has {dict(drawn)}, it was given {dict(self.tracks)}")
        return out + self._repeated()

    def _repeated(self) -> list[str]:
        """Some lots drawn again here, bit for bit."""
        samples = [
            (batch.function, lot, weights)
            for batch in self._all
            for lot, weights in zip(batch.lots, batch.weights, strict=True)
        ]
        chosen = random.Random(1).sample(samples, min(REPEATED, len(samples)))
        out = []
        for function, lot, weights in chosen:
            if not np.array_equal(_weights(function(lot)), weights):
                out.append("a lot's draws are not those of its seed")
        return out

    @property
    def _all(self) -> list[Batch]:
        return [batch for each in self.batches.values() for batch in each]


def _weights(result: Portion | Round) -> NDArray[np.float64]:
    return result.log_weights if isinstance(result, Portion) else result.groups


def _print(weights: NDArray[np.float64]) -> int:
    return hash(weights.tobytes())


class Doubling(LocalWorkers):
    """Gives a lot's draws for those of the next one of the same plan, every second time."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._before: dict[Any, Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future = super().submit(fn, *args, **kwargs)
        *_, plan, task = args
        if not isinstance(task, Lot | ChainLot):
            return future
        if plan in self._before:
            return self._before.pop(plan)
        self._before[plan] = future
        return future


def whole(
    executor: Any, seconds: float, *, enough: float = math.inf, forget: bool = False
) -> tuple[Books, Any, list[str]]:
    """A run of the main job, its books, and what is wrong with them."""
    model = tz.ising_grid(12, coupling=(-3, 3), field=(-1, 1), seed=0)
    books, count, number = Books(), Board._count, itertools.count()

    def counted(board: Board, draws: Draws) -> None:
        handed_out = draws.source.track.startswith(("mini-bucket", "annealing"))
        if not (forget and handed_out and next(number) % 3 == 0):
            count(board, draws)
        if books.away >= enough:
            board.clock.stop()

    with ExitStack() as stack:
        stack.enter_context(books.kept())
        stack.enter_context(mock.patch.object(Board, "_count", counted))
        r = tz.log_partition(
            model, exact=False, time_limit=seconds, seed=0, delta=DELTA, executor=executor
        )
    assert r.ledger is not None
    wrong = [*r.failures, *books.faults(r.ledger)]
    log_z = tz.exact(model).log_z
    if not r.lower <= log_z <= r.upper:
        wrong.append(f"log Z {log_z} is outside [{r.lower}, {r.upper}]")
    if not r.confident.lower <= log_z <= r.confident.upper:
        wrong.append(f"log Z {log_z} is outside {r.confident}")
    return books, r, wrong


def run(name: str, seconds: float, progress: Callable[[str], None]) -> Row:
    """One run while workers are killed."""
    progress(f"{name}: a run of {seconds:g} s")
    with PLACES[name]() as place, Killer(place.pids, math.inf) as killer:
        books, r, wrong = whole(place.executor, seconds)
    drawn = sum(a.drawn for a in r.ledger.accounts)
    detail = (
        f"{killer.killed} workers killed, {books.away} lots by workers, "
        f"{books.lots} in whole batches, {drawn:,} draws counted; "
        f"{wrong[0] if wrong else 'the books balance, log Z inside'}"
    )
    return Row(f"killing: {name}, a whole run", books.away, len(wrong), detail)


def control(name: str, sign: str, progress: Callable[[str], None]) -> Row:
    """A run that loses or doubles draws: the books must show it."""
    progress(f"control: {name}")
    with Doubling(WORKERS) if name == DOUBLED else LocalWorkers(WORKERS) as pool:
        books, _, wrong = whole(pool, SECONDS, enough=ENOUGH, forget=name == FORGOTTEN)
    detail = f"{wrong.count(sign)} times: {sign}"
    return Row(f"killing: control, {name}", books.lots, 0, detail, sign in wrong)


def killing(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """Settled work and a whole run in each place, and the controls."""
    for name in PLACES:
        yield settled(name, max(3, int(KILLS * scale)), progress)
        yield run(name, max(LEAST_SECONDS, SECONDS * scale), progress)
    yield control(DOUBLED, "a lot came 2 times", progress)
    yield control(FORGOTTEN, "a batch was lost", progress)
