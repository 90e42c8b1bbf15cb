"""Mini-buckets in a device's memory: larger tables than a CPU can sum in the time."""

from tightz.uppers.mini_bucket.gpu.descent import DeviceDescent
from tightz.uppers.mini_bucket.gpu.program import predicted_bytes as device_cost

__all__ = ["DeviceDescent", "device_cost"]
