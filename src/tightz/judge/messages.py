"""The one step that elimination and mini-buckets are made of, done again at sampled contexts.

A message is m(ctx) = w log sum_v exp(F(v, ctx) / w), F being the sum of the tables that meet in the
bucket; w = 1 is exact elimination. Whoever made the messages, each must satisfy this at every
context; wrong indices, wrong or stale kernels and lost states show at sampled ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import RefutedError


def power_sums(inputs: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """(K,) w log sum_v exp(inputs[:, v] / w) in extended precision; -inf where all are."""
    # Extended precision, so that a difference is the message's and not this check's.
    scaled = inputs.astype(np.longdouble) / np.longdouble(weight)
    top = scaled.max(axis=1)
    safe = np.where(np.isneginf(top), np.longdouble(0.0), top)
    with np.errstate(divide="ignore"):
        logs = safe + np.log(np.exp(scaled - safe[:, None]).sum(axis=1))
    return (np.longdouble(weight) * logs).astype(np.float64)


def check_messages(
    inputs: NDArray[np.float64],
    messages: NDArray[np.float64],
    weight: float,
    tolerance: float,
    place: str,
) -> None:
    """RefutedError unless messages (K,) are the power sums of inputs (K, states)."""
    expected = power_sums(inputs, weight)
    same = (expected == messages) | (np.abs(expected - messages) <= tolerance)
    if not same.all():
        k = int(np.argmin(same))
        raise RefutedError(
            f"{place}: a message says {messages[k]} where its tables sum to {expected[k]}"
        )
