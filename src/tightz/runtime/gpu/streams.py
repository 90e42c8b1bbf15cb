"""The random streams of many trials at once: numpy's SeedSequence and PCG64 seeding, vectorised.

`runtime.seeds.generator(seed, level, trial, part)` makes one generator at a time, some 20
microseconds each. Here the same hash (O'Neill, seed_seq_fe; numpy's SeedSequence) runs over arrays
of positions and gives each generator's first state, so that a device can draw what the CPU would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

POOL = 4
XSHIFT = np.uint32(16)
INIT_A, MULT_A = 0x43B0D7E5, 0x931E8875
INIT_B, MULT_B = 0x8B51F9DD, 0x58F38DED
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
PCG_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
MASK_32, MASK_64 = 2**32 - 1, 2**64 - 1

Words = NDArray[np.uint32]


def pcg64_states(
    seed: np.random.SeedSequence, levels: NDArray[np.int64], trials: NDArray[np.int64], part: int
) -> NDArray[np.uint64]:
    """(k, 4) [state high, state low, increment high, increment low] of the generators at
    (level, trial, part), before their first draw."""
    # What SeedSequence(entropy, spawn_key=(*key, level, trial, part)) would hash, for all
    # positions side by side.
    entropy = [np.full(len(levels), word, np.uint32) for word in _prefix(seed)]
    entropy += [levels.astype(np.uint32), trials.astype(np.uint32)]
    entropy.append(np.full(len(levels), part, np.uint32))
    words = _generate(_mix_entropy(entropy), 8)
    halves = [
        words[2 * i] | (words[2 * i + 1].astype(np.uint64) << np.uint64(32)) for i in range(4)
    ]
    return _seeded(*halves)


def _prefix(seed: np.random.SeedSequence) -> list[int]:
    """The seed's own words, padded as SeedSequence does before a spawn key."""
    words = _words(seed.entropy)
    words += [0] * (POOL - len(words))
    for key in seed.spawn_key:
        words += _words(key)
    return words


def _words(value: Any) -> list[int]:
    """A non-negative integer, or a sequence of them, as 32-bit words, lowest first."""
    if isinstance(value, Sequence | np.ndarray):
        return [word for item in value for word in _words(item)]
    number = int(value)
    words = [number & MASK_32]
    while number := number >> 32:
        words.append(number & MASK_32)
    return words


def _mix_entropy(entropy: list[Words]) -> list[Words]:
    constant = INIT_A

    def hashed(value: Words) -> Words:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * MULT_A & MASK_32
        value = value * np.uint32(constant)
        return value ^ (value >> XSHIFT)

    def mixed(x: Words, y: Words) -> Words:
        result = MIX_LEFT * x - MIX_RIGHT * y
        return result ^ (result >> XSHIFT)

    pool = [hashed(word) for word in entropy[:POOL]]
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in entropy[POOL:]:
        for target in range(POOL):
            pool[target] = mixed(pool[target], hashed(word))
    return pool


def _generate(pool: list[Words], count: int) -> list[Words]:
    constant = INIT_B
    out = []
    for i in range(count):
        value = pool[i % POOL] ^ np.uint32(constant)
        constant = constant * MULT_B & MASK_32
        value = value * np.uint32(constant)
        out.append(value ^ (value >> XSHIFT))
    return out


def _seeded(
    state_high: NDArray[np.uint64],
    state_low: NDArray[np.uint64],
    stream_high: NDArray[np.uint64],
    stream_low: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """PCG's srandom: state 0, one step, add the seed, one step; all modulo 2^128."""
    one = np.uint64(1)
    inc_low = (stream_low << one) | one
    inc_high = (stream_high << one) | (stream_low >> np.uint64(63))
    low = inc_low + state_low
    high = inc_high + state_high + (low < inc_low)
    m_high, m_low = np.uint64(PCG_MULTIPLIER >> 64), np.uint64(PCG_MULTIPLIER & MASK_64)
    product_high = _mul_high(low, m_low) + high * m_low + low * m_high
    product_low = low * m_low
    low = product_low + inc_low
    high = product_high + inc_high + (low < product_low)
    return np.stack([high, low, inc_high, inc_low], axis=1)


def _mul_high(a: NDArray[np.uint64], b: np.uint64) -> NDArray[np.uint64]:
    """The upper 64 bits of a * b."""
    half, mask = np.uint64(32), np.uint64(MASK_32)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)
