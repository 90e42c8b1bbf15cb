"""Weighted mini-bucket bounds on log Z (Liu and Ihler 2011), for any discrete factor graph."""

from tightz.references.mini_bucket.bounds import (
    MiniBucket,
    MiniBucketResult,
    MiniBucketStatus,
    mini_bucket,
    mini_bucket_bounds,
)

__all__ = [
    "MiniBucket",
    "MiniBucketResult",
    "MiniBucketStatus",
    "mini_bucket",
    "mini_bucket_bounds",
]
