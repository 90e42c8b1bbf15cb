"""Values of components counted before, found by their full description (numba kernels).

A component is known by its open variables and its open long clauses: what is left of a clause are
its open variables, and a clause of two literals is open where both of its variables are. The key
holds exactly these two sets and is compared word for word; the hash only says where to look.
"""

from __future__ import annotations

import numpy as np

from tightz.elimination.clauses import arrays as a
from tightz.runtime.kernels import inner

_BITS = np.uint64(1) << np.uint64(63)


@inner
def _pack(key, at, numbers, low, high):  # type: ignore[no-untyped-def]
    """Write the ascending numbers[low:high] as bits or as 16-bit numbers, whichever is shorter.

    The first word says which, how many, and where the bits begin: sets that differ have words that
    differ.
    """
    count = high - low
    if count == 0:
        key[at] = np.uint64(0)
        return at + 1
    first, last = numbers[low] >> 6, numbers[high - 1] >> 6
    span, listed = last - first + 1, (count + 3) >> 2
    if span <= listed:
        key[at] = _BITS | (np.uint64(first) << np.uint64(32)) | np.uint64(span)
        for i in range(span):
            key[at + 1 + i] = np.uint64(0)
        for i in range(low, high):
            x = numbers[i]
            key[at + 1 + (x >> 6) - first] |= np.uint64(1) << np.uint64(x & 63)
        return at + 1 + span
    key[at] = np.uint64(count)
    for i in range(listed):
        key[at + 1 + i] = np.uint64(0)
    for i in range(count):
        shift = np.uint64(16 * (i & 3))
        key[at + 1 + (i >> 2)] |= np.uint64(numbers[low + i]) << shift
    return at + 1 + listed


@inner
def describe(r, parts, key, part):  # type: ignore[no-untyped-def]
    """Write the key of component `part` into `key`; (its length, its hash)."""
    low, high = parts.var_ptr[part], parts.var_ptr[part + 1]
    size = _pack(key, np.int64(0), parts.variables, low, high)
    if r[a.BLIND] == 0:
        size = _pack(key, size, parts.clauses, parts.clause_ptr[part], parts.clause_ptr[part + 1])
    h = np.uint64(0x9E3779B97F4A7C15)
    for i in range(size):
        h ^= key[i]
        h *= np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(32)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(29)
    return size, h


@inner
def _find_in(cache, g, size, h):  # type: ignore[no-untyped-def]
    i = cache.head[g, np.int64(h & np.uint64(cache.head.shape[1] - 1))]
    while i >= 0:
        if cache.hash[g, i] == h and cache.length[g, i] == size:
            same, at = True, cache.at[g, i]
            for w in range(size):
                if cache.words[g, at + w] != cache.key[w]:
                    same = False
                    break
            if same:
                return i
        i = cache.follow[g, i]
    return -1


@inner
def look_up(r, parts, cache, part):  # type: ignore[no-untyped-def]
    """(generation, entry) of component `part`, or (-1, -1). One found among the old is renewed."""
    size, h = describe(r, parts, cache.key, part)
    r[a.LOOKUPS] += 1
    new = r[a.GENERATION]
    i = _find_in(cache, new, size, h)
    if i >= 0:
        return new, i
    old = 1 - new
    i = _find_in(cache, old, size, h)
    if i < 0:
        return -1, -1
    if cache.filled[new] < cache.at.shape[1] and cache.used[new] + size <= cache.words.shape[1]:
        j = _add(r, cache, size, h)
        cache.mantissa[new, j] = cache.mantissa[old, i]
        cache.exponent[new, j] = cache.exponent[old, i]
        cache.error[new, j] = cache.error[old, i]
        cache.node[new, j] = cache.node[old, i]
        cache.pure[new, j] = cache.pure[old, i]
        return new, j
    return old, i


@inner
def _add(r, cache, size, h):  # type: ignore[no-untyped-def]
    """Put cache.key into the new generation, which has room; the entry."""
    g = r[a.GENERATION]
    i, at = cache.filled[g], cache.used[g]
    for w in range(size):
        cache.words[g, at + w] = cache.key[w]
    bucket = np.int64(h & np.uint64(cache.head.shape[1] - 1))
    cache.hash[g, i] = h
    cache.at[g, i] = at
    cache.length[g, i] = size
    cache.follow[g, i] = cache.head[g, bucket]
    cache.head[g, bucket] = i
    cache.filled[g] += 1
    cache.used[g] += size
    return i


@inner
def store(r, parts, cache, part, value, node, pure):  # type: ignore[no-untyped-def]
    """Keep value = (mantissa, exponent, error) of component `part`."""
    size, h = describe(r, parts, cache.key, part)
    g = r[a.GENERATION]
    if size > cache.words.shape[1]:
        return
    if cache.filled[g] == cache.at.shape[1] or cache.used[g] + size > cache.words.shape[1]:
        serial = cache.base[g] + cache.filled[g]
        g = 1 - g
        r[a.GENERATION] = g
        r[a.EVICTIONS] += cache.filled[g]
        for k in range(cache.head.shape[1]):
            cache.head[g, k] = -1
        cache.filled[g] = 0
        cache.used[g] = 0
        cache.base[g] = serial
    i = _add(r, cache, size, h)
    cache.mantissa[g, i], cache.exponent[g, i], cache.error[g, i] = value
    cache.node[g, i] = node
    cache.pure[g, i] = pure
    r[a.STORED] += 1


@inner
def serial(r, stored):  # type: ignore[no-untyped-def]
    """The number that the next entry will have; stored: cache.base and cache.filled."""
    base, filled = stored
    return base[r[a.GENERATION]] + filled[r[a.GENERATION]]


@inner
def withdraw(r, cache, since):  # type: ignore[no-untyped-def]
    """Forget what was stored from number `since` on with the help of learned clauses."""
    for back in range(2):
        g = r[a.GENERATION] if back == 0 else 1 - r[a.GENERATION]
        last = True
        for i in range(cache.filled[g] - 1, -1, -1):
            if cache.base[g] + i < since:
                break
            if cache.pure[g, i]:
                last = False
                continue
            if not last:
                cache.length[g, i] = -1
                continue
            bucket = np.int64(cache.hash[g, i] & np.uint64(cache.head.shape[1] - 1))
            cache.head[g, bucket] = cache.follow[g, i]
            cache.filled[g] -= 1
            cache.used[g] = cache.at[g, i]
