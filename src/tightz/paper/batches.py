"""Many trials: in batches, on the CPU, on workers or on a GPU, in the order of their positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from tightz.paper.trials import BATCH, Position, TrialBatch, TrialPlan, run_batch
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.executors import Submits, map_ordered


def run_batches(
    plan: TrialPlan,
    positions: Iterable[Position],
    *,
    executor: Submits | None = None,
    threads: int | None = None,
    batch: int = BATCH,
    backend: Backend = "auto",
) -> Iterator[TrialBatch]:
    """All the positions' trials in batches of `batch`, in the order of the positions.

    backend: "cpu", "cuda" (an error where that cannot be), or "auto": a GPU where one is usable
    and can run this plan, unless an executor is given.
    """
    # A trial depends on its position only, so who runs it is a matter of speed.
    if on_device(backend, partial(_why_not_device, plan), worthwhile=executor is None):
        from tightz.paper.gpu.batches import run_batches_cuda

        return run_batches_cuda(plan, positions, batch=batch, fall_back=backend == "auto")
    run = partial(run_batch, plan)
    return map_ordered(run, _batches(positions, batch), executor=executor, threads=threads)


def _why_not_device(plan: TrialPlan, simulator: bool) -> str:
    from tightz.paper.gpu.availability import why_not

    return why_not(plan, simulator=simulator)


def _batches(positions: Iterable[Position], size: int) -> Iterator[tuple[Position, ...]]:
    source = iter(positions)
    while chunk := tuple(islice(source, size)):
        yield chunk
