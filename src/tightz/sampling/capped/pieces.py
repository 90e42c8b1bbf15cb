"""What the stream of capped draws hands out: orders to try, and draws from a finished bound."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightz.elimination.order import Orders
from tightz.errors import ResourceError
from tightz.runtime.backends import Backend
from tightz.runtime.seeds import generator
from tightz.sampling.capped.lanes import LANES
from tightz.sampling.capped.proposal import Proposal
from tightz.sampling.capped.tally import Portion, Tally
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import SCOUT_ITERATIONS, Run, Scouted, Tried, cutting


class Trials(NamedTuple):
    """Orders to try at one ibound: given ones, and numbers of orders made for cuts.

    After `seconds` no further one is begun: forecasts of what they cost may be far off.
    """

    ibound: int
    given: Sequence[Tried]
    numbers: Sequence[int]
    seconds: float = math.inf


class Attempt(NamedTuple):
    """What an order came to in a few iterations, and the seconds before the first of them."""

    scouted: Scouted
    setup: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class Scout:
    """Tries elimination orders for mini-buckets; -inf stands for an order without cuts."""

    orders: Orders
    max_memory: int
    backend: Backend = "cpu"

    def __call__(self, trials: Trials) -> list[Attempt]:
        out: list[Attempt] = []
        start = time.perf_counter()
        for at in range(len(trials.given) + len(trials.numbers)):
            begun = time.perf_counter()
            if out and begun - start > trials.seconds:
                break
            late = at - len(trials.given)
            one = (
                trials.given[at]
                if late < 0
                else cutting(self.orders, trials.ibound, [trials.numbers[late]])[0]
            )
            config = MiniBucket(trials.ibound, SCOUT_ITERATIONS, max_memory=self.max_memory)
            try:
                run = Run(self.orders, config, begun, [one], backend=self.backend)
            except ResourceError:
                continue
            if run.candidates[0][1].exact:
                return [Attempt(Scouted(-math.inf, one), 0.0)]
            next(run.steps)
            setup = time.perf_counter() - begun
            for _ in run.steps:
                pass
            assert run.descent is not None
            out.append(Attempt(Scouted(run.descent.best, one), setup, run.note))
        return out


class Lot(NamedTuple):
    """Draws to make: the seed of their random numbers, batches, the least key worth keeping."""

    seed: np.random.SeedSequence
    batches: int
    least: float


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws lots from one proposal: what it returns depends on the lot alone."""

    proposal: Proposal
    level: float

    def __call__(self, lot: Lot) -> Portion:
        rng = generator(lot.seed)
        drawing = self.proposal.drawing(rng.integers(2**64, size=LANES, dtype=np.uint64))
        tally = Tally.of(self.proposal, self.level, lot.least)
        logs, begun = [], time.thread_time()
        for _ in range(lot.batches):
            logs.append(drawing.batch() + self.proposal.log_u)
            tally.add(drawing, rng)
        return tally.portion(np.concatenate(logs), time.thread_time() - begun)
