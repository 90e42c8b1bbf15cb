"""One way from whatever the caller calls a seed to random streams keyed by position."""

from __future__ import annotations

import numpy as np

from tightz.errors import ParameterError

Seed = int | np.random.SeedSequence | np.random.Generator | None


def seed_sequence(seed: Seed) -> np.random.SeedSequence:
    """Normalise a seed. A Generator is advanced once, so two calls give different streams."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if isinstance(seed, np.random.Generator):
        return np.random.SeedSequence(int(seed.integers(2**63)))
    if not (seed is None or (isinstance(seed, int | np.integer) and seed >= 0)):
        raise ParameterError(
            f"seed is {seed!r}; expected a whole number >= 0, a SeedSequence, a Generator or None"
        )
    return np.random.SeedSequence(seed)


def stream(seed: Seed, *key: int) -> np.random.SeedSequence:
    """The seed at position `key` (level, trial, ...): the same however work is scheduled."""
    root = seed_sequence(seed)
    return np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, *key))


def generator(seed: Seed, *key: int) -> np.random.Generator:
    """A generator on the stream at position `key`."""
    return np.random.default_rng(stream(seed, *key))
