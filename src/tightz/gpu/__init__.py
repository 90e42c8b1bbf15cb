"""Batched trials on an NVIDIA GPU (extra `gpu`): draws, row reduction, ascent, evaluation.

`estimation.trials.run_batches(..., backend="cuda")` is the way in; `gpu.batches` holds the loop.
"""

from tightz.gpu.presence import why_no_device

__all__ = ["why_no_device"]
