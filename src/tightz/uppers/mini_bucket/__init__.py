"""Weighted mini-bucket bounds on log Z (Liu and Ihler 2011), for any discrete factor graph."""

from tightz.uppers.mini_bucket.bounds import (
    MiniBucketResult,
    mini_bucket,
    mini_bucket_bounds,
)
from tightz.uppers.mini_bucket.run import MiniBucket, MiniBucketStatus

__all__ = [
    "MiniBucket",
    "MiniBucketResult",
    "MiniBucketStatus",
    "mini_bucket",
    "mini_bucket_bounds",
]
