"""Trials on a GPU: agreement with the CPU, a theorem-grade run, the device's share, a large grid.

`python -m benchmarks gpu`, on a machine with a CUDA device. TIGHTZ_QUICK=1 takes a tenth of the
trials. The report also goes to the file that TIGHTZ_GPU_REPORT names.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import tightz as tz
from tightz.families.projection import evaluate, heaviest_in_coset
from tightz.paper.batches import run_batches
from tightz.paper.theorems import required_trials
from tightz.paper.trials import TrialPlan, all_positions
from tightz.projections import Coset, DenseParity, FirstColumns
from tightz.reductions.encoding import encode
from tightz.runtime.seeds import generator

QUICK = "TIGHTZ_QUICK" in os.environ
RESTARTS = 8
DELTA = 0.05
STAGES = ("draw", "reduce", "substitute", "ascend", "evaluate")
lines: list[str] = []


def say(text: str) -> None:
    print(text, flush=True)
    lines.append(text)


def paper_plan(size: int, seed: int = 0) -> TrialPlan:
    """A size x size grid, couplings in [-10, 10], fields in [-1, 1], MFRP as printed."""
    model = tz.ising_grid(size, coupling=(-10, 10), field=(-1, 1), seed=seed)
    return TrialPlan(
        polynomial=encode(model).polynomial,
        family=tz.MeanField(restarts=RESTARTS),
        hashing=DenseParity(),
        pivots=FirstColumns(),
        seed=np.random.SeedSequence(seed),
        pairs=np.zeros((0, 2), np.int64),
    )


def agreement(plan: TrialPlan, levels: list[int], trials: int) -> None:
    """CPU and GPU from the same draws and starts, ascent by ascent; the evaluator on its own.

    As a yardstick, the CPU against itself from starts nudged by float32's rounding.
    """
    from tightz.paper.gpu.chunk import Chunk
    from tightz.paper.gpu.model import DeviceModel

    worst_evaluator = 0.0
    every: list[np.ndarray] = []
    itself: list[np.ndarray] = []
    for level in levels:
        chunk = Chunk(DeviceModel.build(plan), np.full(trials, level), np.arange(trials))
        chunk.run()
        means = chunk.v.copy_to_host()
        gaps = np.zeros((trials, RESTARTS))
        for t in range(trials):
            cpu = plan.run((level, t))
            draw = plan.hashing.draw(level, plan.polynomial.n, generator(plan.seed, level, t, 0))
            coset = Coset.build(plan.polynomial, draw, plan.pivots)
            if not coset.feasible:
                assert (chunk.log_gammas[t] == -np.inf).all()
                continue
            mine = evaluate(coset, means[t][:, coset.free].T.astype(np.float64))
            worst_evaluator = max(worst_evaluator, np.abs(mine - chunk.log_gammas[t]).max())
            gaps[t] = chunk.log_gammas[t] - cpu.log_gammas
            if isinstance(plan.family, tz.MeanField):
                nudged = nudged_starts(plan, coset, generator(plan.seed, level, t, 1))
                itself.append(plan.family.ascend_from(coset, nudged).log_gammas - cpu.log_gammas)
        every.append(gaps)
        off = np.abs(gaps) > 1e-3
        say(
            f"  m = {level:3}: {trials * RESTARTS} ascents, {100 * off.mean():.1f}% differ by more "
            f"than 1e-3; largest of the others {np.abs(gaps[~off]).max(initial=0):.1e}"
        )
    gaps = np.concatenate(every)
    off = np.abs(gaps) > 1e-3
    say(
        f"  all: {gaps.size} ascents, {100 * off.mean():.2f}% took another path (the GPU's better "
        f"in {(gaps[off] > 0).sum()}, worse in {(gaps[off] < 0).sum()}), the rest agree to "
        f"{np.abs(gaps[~off]).max():.1e}; evaluator against the CPU's on the same q: "
        f"{worst_evaluator:.1e}"
    )
    if itself:
        share = (np.abs(np.concatenate(itself)) > 1e-3).mean()
        say(
            f"  CPU against itself, starts moved by up to 6e-8 of their size: {100 * share:.2f}% "
            "take another path"
        )


def nudged_starts(plan: TrialPlan, coset: Coset, rng: np.random.Generator) -> np.ndarray:
    """The starts of `MeanField.project`, each mean shrunk by up to half a unit of float32."""
    starts = rng.uniform(-1.0, 1.0, size=(RESTARTS, coset.n_free))
    if plan.states is not None:
        known = heaviest_in_coset(coset, plan.states, -(-3 * RESTARTS // 4))
        starts[: len(known)] = known
    return starts * (1.0 - 6e-8 * rng.uniform(size=starts.shape))


def stages(plan: TrialPlan, levels: range, trials: int) -> None:
    """Seconds per stage of one chunk, synchronised, and the ascents' share of the issue rate.

    The limiting resource is the rate at which warps issue instructions: 4 a cycle and
    multiprocessor. Counted in the machine code of the ascent kernels (nvdisasm): a coordinate step
    takes about 150 + 4 slots of them (slots: long terms per lane), building the products anew
    20 + 2 slots per member. Only one building a sweep is counted, so the share is a lower bound.
    """
    from tightz.paper.gpu.chunk import Chunk
    from tightz.paper.gpu.model import DeviceModel, slots_for
    from tightz.runtime.gpu.device import cuda

    model = DeviceModel.build(plan)
    places = np.array(list(all_positions(levels, trials)))
    spent: dict[str, float] = defaultdict(float)
    for _ in range(2):  # the first compiles
        chunk = Chunk(model, places[:, 0].copy(), places[:, 1].copy())
        for stage in STAGES:
            cuda.synchronize()
            start = time.perf_counter()
            getattr(chunk, stage)()
            cuda.synchronize()
            spent[stage] = time.perf_counter() - start
    total = sum(spent.values())
    parts = ", ".join(f"{stage} {1e3 * spent[stage]:.0f} ms" for stage in STAGES)
    say(f"  {len(places)} projections in {total:.3f} s: {parts}")
    slots = slots_for(chunk.n_long)
    steps = chunk.sweeps.sum(axis=1) * chunk.n_free.astype(np.float64)
    issued = (steps * (170 + 6 * slots)).sum()
    device = cuda.get_current_device()
    rate = 4e3 * device.MULTIPROCESSOR_COUNT * device.CLOCK_RATE
    share = issued / (rate * spent["ascend"])
    visits = (steps * chunk.n_long).sum()
    say(
        f"  {steps.sum():.3g} coordinate steps of {chunk.n_long.mean():.0f} long terms "
        f"({visits / spent['ascend']:.2e} visits of a term a second), "
        f"{chunk.sweeps[chunk.feasible].mean():.1f} sweeps an ascent, {chunk.sweeps.max()} at most"
    )
    say(
        f"  issue rate: {issued:.3g} instructions of {rate:.3g}/s x {spent['ascend']:.3f} s = "
        f"{100 * share:.0f}% at least"
    )


def timed_run(plan: TrialPlan, levels: range, trials: int) -> tuple[float, int, float]:
    """Seconds from the call to the last batch, projections, and the best median over levels."""
    table = np.full((max(levels) + 1, trials), np.nan)
    start = time.perf_counter()
    for done in run_batches(plan, all_positions(levels, trials), batch=len(levels), backend="cuda"):
        table[done.levels, done.trials] = done.log_gamma
    seconds = time.perf_counter() - start
    medians = np.median(table[list(levels)], axis=1) + np.array(levels) * np.log(2)
    return seconds, len(levels) * trials, float(medians.max())


def cpu_seconds(plan: TrialPlan, levels: list[int], trials: int) -> float:
    """Seconds a projection on two threads, mean over a sample."""
    places = list(all_positions(levels, trials))
    list(run_batches(plan, places[:2], threads=1, backend="cpu"))
    start = time.perf_counter()
    list(run_batches(plan, places, threads=2, batch=2, backend="cpu"))
    return (time.perf_counter() - start) / len(places)


def timed(label: str, function: Callable[[], None]) -> None:
    start = time.perf_counter()
    function()
    say(f"[{label}: {time.perf_counter() - start:.1f} s]")


def theorem(size: int) -> None:
    plan = paper_plan(size)
    n = size * size
    trials = required_trials(n, DELTA)
    run = max(1, trials // 10) if QUICK else trials
    seconds, done, best = timed_run(plan, range(n + 1), run)
    full = seconds * trials / run
    say(
        f"{size}x{size} theorem grade, m = 0..{n}, T = {run} of {trials}, {RESTARTS} restarts: "
        f"{done} projections in {seconds:.1f} s wall (target for all {trials}: 60 s); "
        f"max of medians {best:.2f}"
    )
    sample = list(range(0, n + 1, 10))
    each = cpu_seconds(plan, sample, 2)
    whole = each * (n + 1) * trials
    say(
        f"  2 CPU threads of this machine: {1e3 * each:.2f} ms a projection over m = 0, 10, .., "
        f"{n}, 2 trials each; {whole:.0f} s for all; ratio {whole / full:.0f}"
    )


def large() -> None:
    plan = paper_plan(100)
    trials = 20 if QUICK else 200
    seconds, done, best = timed_run(plan, range(21), trials)
    say(
        f"100x100, m = 0..20, T = {trials}: {done} projections in {seconds:.1f} s wall "
        f"(target for T = 200: 60 s); max of medians {best:.1f}"
    )


def main() -> None:
    from tightz.runtime.gpu import why_no_device

    if reason := why_no_device(simulator=False):
        print(f"skipped: {reason}")
        return
    from tightz.runtime.gpu.device import cuda

    say(f"{cuda.get_current_device().name}, numpy {np.__version__}")
    plan = paper_plan(20)
    levels = [0, 1, 2, 5, 10, 20, 50, 100, 200, 300, 350, 390, 399]
    say("agreement, 20x20:")
    timed("agreement", lambda: agreement(plan, levels, 4 if QUICK else 20))
    annealed = replace(plan, family=tz.AnnealedMeanField(restarts=RESTARTS))
    say("agreement with annealing (100 sweeps):")
    agreement(annealed, [0, 5, 50], 2 if QUICK else 5)
    rng = np.random.default_rng(0)
    known = 1 - 2 * rng.integers(0, 2, size=(500, 400), dtype=np.int8)
    say("agreement with starts from 500 given states:")
    agreement(replace(plan, states=known), [5, 50, 200], 2 if QUICK else 5)
    say("stages of one chunk, all levels:")
    stages(plan, range(401), 128)
    say("stages of one chunk, 100x100:")
    stages(paper_plan(100), range(21), 40)
    theorem(20)
    large()
    if path := os.environ.get("TIGHTZ_GPU_REPORT"):
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
