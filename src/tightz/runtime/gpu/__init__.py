"""The CUDA device: whether there is one, and what all its users share."""

from tightz.runtime.gpu.presence import why_no_device

__all__ = ["why_no_device"]
