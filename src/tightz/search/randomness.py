"""Counter-based random numbers for kernels: splitmix64 (Steele, Lea and Flood, 2014).

The number at position c of stream `key` is a hash of key + c * GOLDEN: no state to carry per lane,
it vectorises, and it does not depend on threads.
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import spliced

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-52


@spliced
def mix(position):  # type: ignore[no-untyped-def]
    """64 well mixed bits from a 64-bit position."""
    z = position
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@spliced
def uniform(position):  # type: ignore[no-untyped-def]
    """A float64 on [0, 1) with 52 random bits; signed conversion, since that one vectorises."""
    return np.int64(mix(position) >> np.uint64(12)) * _TO_UNIT


@spliced
def draw(clock):  # type: ignore[no-untyped-def]
    """The next uniform of the scalar stream whose position is clock[1]."""
    clock[1] += GOLDEN
    return uniform(clock[1])


@spliced
def state_hash(x):  # type: ignore[no-untyped-def]
    """64-bit hash of spins x (n,): sum of a random word for each spin that is down."""
    # A sum of words commutes: flipping a spin could update it in place.
    h = np.uint64(0)
    for i in range(x.size):
        if x[i] < 0:
            h += mix(np.uint64(i + 1) * GOLDEN)
    return h
