"""Annealing on the GPU, thousands of chains side by side: the paths of `paths`, on a device.

Spins: a thread a chain. Fields, slopes and random numbers are those of the CPU's lanes, compiled
from the same source: a chain there is the chain here up to the rounding of an exponential, and
until a coin falls within that. A population is a run of threads of one block.

Two layers: a block a chain, a thread for every few units, so coins are counted and not drawn one
after the other. As on the CPU, fields follow the rows of the units that flipped. Nothing but those
rows is read, and all chains read them from the same few megabytes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, uint32, uint64
from numpy.typing import NDArray

from tightz.runtime.gpu.device import (
    SIMULATED,
    arrays_to_device,
    cuda,
    device_kernel,
    free_bytes,
)
from tightz.sampling.ais.kernels import (
    Forest,
    Layers,
    Terms,
    _draw,
    _effective,
    _first_slopes,
)
from tightz.sampling.ais.paths import RENEWAL, LayerPath, Path, SpinPath, Walk
from tightz.search.randomness import GOLDEN, mix, uniform

THREADS = 4 if SIMULATED else 64
"""Chains of a block, and the largest population."""

UNITS = 2 if SIMULATED else 128
"""Threads of a chain on two layers. 500 and 784 units leave few of them idle."""

WORDS = -(-UNITS // 32)

CROWD = 256
"""Chains a multiprocessor takes at once: fewer wait for memory, more wait for each other."""

BLOCKS = 16
"""The same on two layers, where a chain is a block."""

SLICE = 2e9
"""Spins visited in one launch, a tenth of a second or less: others use the device as well."""

ENDS = 4096
"""End states that are sent back, the last ones: they serve marginals, and nobody reads more."""

SHARE = 0.25
"""Part of the free memory that chains may take."""


class Chains(NamedTuple):
    """Chains on spins, a column each: spins (n, C), random words (4, C), log weights since the last
    resampling and before it, the slope of log p_beta, the chain each stems from; spare as spins.

    slopes (K - 1, C) at every temperature, or empty.
    """

    spins: Any
    spare: Any
    words: Any
    log_w: Any
    shared: Any
    slope: Any
    ancestors: Any
    slopes: Any


@device_kernel
def _begin(terms, base, chains):
    """Draw the base, as `draw_forest` does, and take the slope there."""
    c = cuda.grid(1)
    if c >= chains.log_w.size:
        return
    s = chains.spins[:, c : c + 1]
    words = chains.words[:, c : c + 1]
    for place in range(base.order.size):
        i = base.order[place]
        above = base.parent[i]
        sign = 1.0 if above < 0 or s[above, 0] > 0 else -1.0
        field = max(-300.0, base.pull[i] + sign * base.link[i])
        s[i, 0] = 1 if _draw(words, 0) < 1.0 / (1.0 + math.exp(-2.0 * field)) else -1
    prod = cuda.local.array(1, float64)
    _first_slopes(terms, base, s, chains.slope[c : c + 1], prod)
    chains.log_w[c] = 0.0
    chains.shared[c] = 0.0
    chains.ancestors[c] = c


class Sites(NamedTuple):
    """`Terms` and a base as a thread visits them: spin i is in the terms ptr[i] to ptr[i + 1], in
    pairs up to pairs[i]. A term's coupling is still + beta moving; its other spins are
    others[first] to before others[first of the next], as a number of its own to save a load.
    """

    ptr: Any
    pairs: Any
    first: Any
    others: Any
    still: Any
    moving: Any
    fields: Any
    base_fields: Any


def _sites(terms: Terms, base: Forest) -> Sites:
    small = np.int32
    owner, many = terms.site_terms, np.diff(terms.other_ptr) > 1
    site = np.repeat(np.arange(base.fields.size), np.diff(terms.site_ptr))
    # Terms come by arity, so the pairs of a spin are its first ones.
    pairs = terms.site_ptr[1:] - np.bincount(site[many], minlength=base.fields.size)
    return Sites(
        terms.site_ptr.astype(small),
        pairs.astype(small),
        terms.other_ptr.astype(small),
        terms.others.astype(small),
        base.theta[owner],
        terms.theta[owner] - base.theta[owner],
        terms.fields - base.fields,
        base.fields,
    )


@cuda.jit(device=True)
def _sweep(sites, linked, s, words, beta, backwards):
    """One sweep of `spin_chains` for one chain; returns what the slope gained."""
    n = sites.fields.size
    gained = 0.0
    for site in range(n):
        i = n - 1 - site if backwards else site
        still, local = sites.base_fields[i], sites.fields[i]
        low, middle, high = sites.ptr[i], sites.pairs[i], sites.ptr[i + 1]
        # Signs instead of products: conversions to float64 are slow.
        start = sites.first[low] if low < high else 0
        for q in range(low, middle):
            up = s[sites.others[start + q - low], 0] > 0
            local += sites.moving[q] if up else -sites.moving[q]
            if linked:
                still += sites.still[q] if up else -sites.still[q]
        for q in range(middle, high):
            up = s[sites.others[sites.first[q]], 0]
            for e in range(sites.first[q] + 1, sites.first[q + 1]):
                up *= s[sites.others[e], 0]
            local += sites.moving[q] if up > 0 else -sites.moving[q]
        field = 2.0 * (still + beta * local)
        decay = math.exp(-abs(field))
        top = 1.0 if field >= 0.0 else decay
        new = 1 if _draw(words, 0) * (1.0 + decay) < top else -1
        gained += (new - s[i, 0]) * local
        s[i, 0] = new
    return gained


@cuda.jit(device=True)
def _tooth(log_w, low, high, top, total, at_least):
    """The lane that the tooth at `at_least` of the comb over cumulated weights meets (`_renew`)."""
    at, reached = low, math.exp(log_w[low] - top)
    while at_least * total > reached * (high - low) and at < high - 1:
        at += 1
        reached += math.exp(log_w[at] - top)
    return at


@device_kernel
def _anneal(sites, linked, betas, first, last, size, renewal, chains):
    """`spin_chains` from step `first` to before step `last`."""
    c, t = cuda.grid(1), cuda.threadIdx.x
    logs = cuda.shared.array(THREADS, float64)
    slopes = cuda.shared.array(THREADS, float64)
    combs = cuda.shared.array(THREADS, float64)
    words = cuda.local.array((4, 1), uint64)
    live = c < chains.log_w.size
    at = c if live else 0  # the others only keep step with their block
    s = chains.spins[:, at : at + 1]
    for w in range(4):
        words[w, 0] = chains.words[w, at]
    log_w, slope, shared = chains.log_w[at], chains.slope[at], chains.shared[at]
    n, low = sites.fields.size, t // size * size
    backwards = betas[0] > betas[-1]
    for k in range(first, last):
        log_w += (betas[k] - betas[k - 1]) * slope
        if live and chains.slopes.size:
            chains.slopes[k - 1, c] = slope
        if k == betas.size - 1:
            break
        if renewal > 0.0:
            logs[t], slopes[t] = log_w, slope
            cuda.syncthreads()
            effective, top, total = _effective(logs, low, low + size)
            poor = 1 if live and effective < renewal * size else 0
            if poor and t == low:
                combs[t] = _draw(words, 0)
            # The number of resampled chains in the block: nobody copies while others write.
            if cuda.syncthreads_or(poor):
                origin = chains.ancestors[at]
                if poor:
                    source = _tooth(logs, low, low + size, top, total, t - low + combs[low])
                    shared += top + math.log(total / size)
                    log_w, slope = 0.0, slopes[source]
                    shift = source - t
                    origin = chains.ancestors[c + shift]
                    for i in range(n):
                        chains.spare[i, c] = chains.spins[i, c + shift]
                cuda.syncthreads()
                if poor:
                    chains.ancestors[c] = origin
                    for i in range(n):
                        s[i, 0] = chains.spare[i, c]
                cuda.syncthreads()
        if live:
            slope += _sweep(sites, linked, s, words, betas[k], backwards)
    if live:
        for w in range(4):
            chains.words[w, c] = words[w, 0]
        chains.log_w[c], chains.slope[c], chains.shared[c] = log_w, slope, shared


@device_kernel
def _last_ends(spins, ends):
    """ends (E, n) <- the last E columns."""
    e = cuda.grid(1)
    if e < ends.shape[0]:
        for i in range(ends.shape[1]):
            ends[e, i] = spins[i, spins.shape[1] - ends.shape[0] + e]


@dataclass(frozen=True, eq=False)
class DeviceSpinPath(SpinPath):
    """`SpinPath` with its chains on the GPU. Of the end states the last ENDS are kept."""

    @property
    def width(self) -> int:
        return CROWD * _multiprocessors()

    def walk(self, betas, states, *, with_slopes, threads):
        return self._run(betas, states, with_slopes=with_slopes)

    def populations(self, betas, states, size):
        if size > THREADS or len(states) % size:
            return super().populations(betas, states, size)
        return self._run(betas, states, size=size, renewal=RENEWAL)

    def _run(self, betas, states, *, with_slopes=False, size=1, renewal=0.0) -> Walk:
        room = 2 * self.base.fields.size + 100 + (8 * betas.size if with_slopes else 0)
        most = max(1, int(SHARE * free_bytes() / room) // size) * size
        parts = [states[low : low + most] for low in range(0, len(states), most)]
        model = tuple(map(arrays_to_device, (self.terms, self.base, _sites(self.terms, self.base))))
        each = [self._side_by_side(model, betas, p, with_slopes, size, renewal) for p in parts]
        return self._joined(each)._replace(ends=each[-1].ends)

    def _side_by_side(self, model, betas, states, with_slopes, size, renewal) -> Walk:
        n, count = self.base.fields.size, len(states)
        spins = cuda.device_array((n, count), dtype=np.int8)
        steps = betas.size - 1 if with_slopes else 0
        chains = Chains(
            spins,
            cuda.device_array((n if renewal else 1, count), dtype=np.int8),
            cuda.to_device(np.ascontiguousarray(states.T)),
            *(cuda.device_array(count) for _ in range(3)),
            cuda.device_array(count, dtype=np.int64),
            cuda.device_array((steps, count) if steps else (1, 0)),
        )
        block = THREADS // size * size
        grid = -(-count // block)
        terms, base, sites = model
        _begin[grid, block](terms, base, chains)
        linked = bool(self.base.theta.any())
        ladder = cuda.to_device(betas)
        step = max(1, int(SLICE / (n * count)))
        for first in range(1, betas.size, step):
            last = min(first + step, betas.size)
            _anneal[grid, block](sites, linked, ladder, first, last, size, renewal, chains)
            cuda.synchronize()
        ends = cuda.device_array((min(count, ENDS), n), dtype=np.int8)
        _last_ends[-(-len(ends) // block), block](spins, ends)
        slopes = chains.slopes.copy_to_host() if steps else np.empty((0, count))
        return Walk(
            chains.log_w.copy_to_host() + chains.shared.copy_to_host(),
            ends.copy_to_host(),
            slopes.T,
            chains.ancestors.copy_to_host(),
        )


class Pairs(NamedTuple):
    """Chains on two layers, a row each: units x (C, A) and y (C, B), what each layer's units give
    to the other's fields, the keys (C, 4) of its coins, parts (C, UNITS) of the log weight, one
    thread's each, and slopes (C, K - 1) or none.
    """

    x: Any
    y: Any
    into_x: Any
    into_y: Any
    keys: Any
    parts: Any
    slopes: Any


@cuda.jit(device=True)
def _coin(keys, position):
    """Uniform, the one at `position`. Two words of the key, so that no chains ever share coins."""
    return uniform(mix(keys[0] + np.uint64(position) * GOLDEN) + keys[1])


@cuda.jit(device=True)
def _pass_on(flipped, sign, unit, weights, into, marks, rows, signs):
    """Add sign * weights[unit] to `into` for every thread's unit that flipped, in their order."""
    t = cuda.threadIdx.x
    if t < WORDS:
        marks[t] = 0
    cuda.syncthreads()
    word, bit = t // 32, np.uint32(t % 32)
    if flipped:
        cuda.atomic.or_(marks, word, np.uint32(1) << bit)
    cuda.syncthreads()
    count, mine = 0, 0
    for w in range(WORDS):
        if w == word:
            mine = count + cuda.popc(marks[w] & ((np.uint32(1) << bit) - np.uint32(1)))
        count += cuda.popc(marks[w])
    if flipped:
        rows[mine], signs[mine] = unit, sign
    cuda.syncthreads()
    for j in range(t, into.size, UNITS):
        total = 0.0
        for f in range(count):
            total += signs[f] * weights[rows[f], j]
        into[j] += total
    cuda.syncthreads()


@device_kernel
def _anneal_layers(layers, betas, first, last, pairs):
    """`layer_chain` from step `first` to before step `last`, for chain blockIdx.x."""
    c, t = cuda.blockIdx.x, cuda.threadIdx.x
    marks = cuda.shared.array(WORDS, uint32)
    rows = cuda.shared.array(UNITS, int32)
    signs = cuda.shared.array(UNITS, float64)
    sums = cuda.shared.array(UNITS, float64)
    weights, weights_t, kept, kept_base, summed, summed_base = layers
    x, y, into_x, into_y = pairs.x[c], pairs.y[c], pairs.into_x[c], pairs.into_y[c]
    keys = pairs.keys[c]
    a, b = weights.shape
    log_w = pairs.parts[c, t]
    for k in range(first, last):
        moves = k < betas.size - 1
        beta = betas[k]
        if k > 0:
            old = betas[k - 1]
            linear, positive, slope = 0.0, 0.0, 0.0
            for i in range(t, a, UNITS):
                linear += (kept[i] - kept_base[i]) * x[i]
            above, below = 1.0, 1.0
            for start in range(0, b, UNITS):
                j = start + t
                flipped, sign = False, 0.0
                if j < b:
                    step = summed[j] + into_y[j] - summed_base[j]
                    t0, t1 = summed_base[j] + old * step, summed_base[j] + beta * step
                    decay = math.exp(-abs(t1))
                    positive += max(t1, 0.0) - max(t0, 0.0)
                    above *= 1.0 + decay
                    below *= 1.0 + math.exp(-abs(t0))
                    top = 1.0 if t1 >= 0.0 else decay
                    slope += step * top / (1.0 + decay)
                    if moves:
                        new = _coin(keys, k * (a + b) + j) * (1.0 + decay) < top
                        sign = (1.0 if new else 0.0) - y[j]
                        flipped = sign != 0.0
                        y[j] = 1 if new else 0
                if moves:
                    _pass_on(flipped, sign, j, weights_t, into_x, marks, rows, signs)
            log_w += (beta - old) * linear + positive + math.log(above / below)
            if pairs.slopes.shape[1]:
                sums[t] = linear + slope
                cuda.syncthreads()
                if t == 0:
                    total = 0.0
                    for u in range(UNITS):
                        total += sums[u]
                    pairs.slopes[c, k - 1] = total
                cuda.syncthreads()
        if moves:  # step 0 draws the base, from units that are all 0
            for start in range(0, a, UNITS):
                i = start + t
                flipped, sign = False, 0.0
                if i < a:
                    field = kept_base[i]
                    if k > 0:
                        field += beta * (kept[i] + into_x[i] - kept_base[i])
                    decay = math.exp(-abs(field))
                    top = 1.0 if field >= 0.0 else decay
                    new = _coin(keys, k * (a + b) + b + i) * (1.0 + decay) < top
                    sign = (1.0 if new else 0.0) - x[i]
                    flipped = sign != 0.0
                    x[i] = 1 if new else 0
                _pass_on(flipped, sign, i, weights, into_y, marks, rows, signs)
    pairs.parts[c, t] = log_w


FACTORS = 512
"""Factors in [1, 2] that a thread multiplies before it takes their logarithm."""


@dataclass(frozen=True, eq=False)
class DeviceLayerPath(LayerPath):
    """Block Gibbs of `LayerPath` with its chains on the GPU; end states as in DeviceSpinPath."""

    @property
    def width(self) -> int:
        return BLOCKS * _multiprocessors()

    def walk(self, betas, states, *, with_slopes, threads):
        (a, b), steps = self.weights.shape, betas.size - 1 if with_slopes else 0
        most = max(1, int(SHARE * free_bytes() / (9 * (a + b) + 8 * (UNITS + steps) + 32)))
        back = np.ascontiguousarray(self.weights.T)
        layers = arrays_to_device(
            Layers(self.weights, back, self.kept, self.base, self.summed, self.summed)
        )
        parts = [states[low : low + most] for low in range(0, len(states), most)]
        found = [self._side_by_side(layers, betas, part, steps) for part in parts]
        logs, units, slopes = (np.concatenate(each) for each in zip(*found, strict=True))
        ends = self._ends(units[-ENDS:].astype(np.float64), states[-ENDS:])
        return Walk(self._start + logs, ends, slopes, np.arange(len(states)))

    def _side_by_side(
        self, layers: Any, betas: NDArray[np.float64], states: NDArray[np.uint64], steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float64]]:
        count, (a, b) = len(states), self.weights.shape
        pairs = Pairs(
            *(cuda.to_device(np.zeros((count, size), np.int8)) for size in (a, b)),
            *(cuda.to_device(np.zeros((count, size))) for size in (a, b)),
            cuda.to_device(np.ascontiguousarray(states)),
            cuda.to_device(np.zeros((count, UNITS))),
            cuda.device_array((count, steps) if steps else (1, 0)),
        )
        ladder = cuda.to_device(betas)
        step = max(1, int(SLICE / (10.0 * (a + b) * count)))  # a unit is dearer than a spin
        for first in range(0, betas.size, step):
            last = min(first + step, betas.size)
            _anneal_layers[count, UNITS](layers, ladder, first, last, pairs)
            cuda.synchronize()
        slopes = pairs.slopes.copy_to_host() if steps else np.empty((count, 0))
        return pairs.parts.copy_to_host().sum(axis=1), pairs.x.copy_to_host(), slopes


def device_path(path: Path) -> Path:
    """The same path on the GPU; itself where the CPU is the better place."""
    if isinstance(path, SpinPath):
        return DeviceSpinPath(**_parts(path))
    if isinstance(path, LayerPath) and not path.collapsed:
        return DeviceLayerPath(**_parts(path))
    return path


def host_path(path: Path) -> Path:
    """The inverse of `device_path`."""
    if isinstance(path, DeviceSpinPath):
        return SpinPath(**_parts(path))
    return LayerPath(**_parts(path)) if isinstance(path, DeviceLayerPath) else path


def _parts(path: Any) -> dict[str, Any]:
    return {each.name: getattr(path, each.name) for each in fields(path)}


def _multiprocessors() -> int:
    return 1 if SIMULATED else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)
