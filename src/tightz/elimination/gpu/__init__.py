"""Exact elimination on a GPU: chains of buckets fused into passes over device memory."""

from tightz.elimination.gpu.availability import device_bytes, why_no_elimination
from tightz.elimination.gpu.planning import GpuPlan, GpuResult, gpu_plan
from tightz.elimination.gpu.runner import OutOfRangeError
from tightz.elimination.refused import Refused

__all__ = [
    "GpuPlan",
    "GpuResult",
    "OutOfRangeError",
    "Refused",
    "device_bytes",
    "gpu_plan",
    "why_no_elimination",
]
