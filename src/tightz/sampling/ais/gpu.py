"""Annealing on the GPU, thousands of chains side by side: the paths of `paths`, on a device.

Spins: a block takes a few octets of chains, a bit a chain, and spins of one colour, which share no
term, side by side. The sweep is the one of `spin_chains` with the spins in order of their colours.
Two layers: a block a chain, a thread for every few units. As on the CPU, fields follow the rows of
the units that flipped; nothing else is read, and all chains read the same few megabytes.

Coins are counted, not drawn one after the other: the coin of a chain, step and spin is a hash of
these, whoever throws it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, uint32
from numpy.typing import NDArray

from tightz.runtime.gpu import DEVICE, alone
from tightz.runtime.gpu.device import (
    SIMULATED,
    arrays_to_device,
    cuda,
    device_kernel,
    free_bytes,
)
from tightz.sampling.ais.colours import LANES, Phases, phases_of
from tightz.sampling.ais.kernels import Layers, _effective
from tightz.sampling.ais.paths import RENEWAL, LayerPath, Path, SpinPath, Walk
from tightz.search.randomness import GOLDEN, mix, uniform

WARPS = 2 if SIMULATED else 8
"""Of a block on spins: each takes LANES spins of one octet at a time."""

THREADS = WARPS * LANES
OCTET = 8
CHAINS = OCTET * WARPS
PARTIAL = (OCTET, THREADS)

UNITS = 2 if SIMULATED else 128
"""Threads of a chain on two layers. 500 and 784 units leave few of them idle."""

WORDS = -(-UNITS // 32)

REGISTERS = 128
"""Of a thread: with 198, numba's choice, a multiprocessor holds one block and is half as fast."""

BLOCKS = 2
"""Blocks on spins that a multiprocessor takes at once: more chains only wait for each other."""

LAYER_BLOCKS = 4
"""The same on two layers: 8 are 5% faster and make ladders half as long."""

SLICE = 4e8
"""Spins visited in one launch, a fiftieth of a second or less: others wait for their turn."""

ENDS = 4096
"""End states that are sent back, the last ones: they serve marginals, and nobody reads more."""

SHARE = 0.25
"""Part of the free memory that chains may take."""


class Chains(NamedTuple):
    """Chains on spins, eight an octet: spins (octets, n), a bit set where a chain's spin is down;
    spare likewise; keys (octets, 2) of their coins; by chain the log weight since the last
    resampling and before it, the slope of log p_beta and the chain it stems from.

    slopes (K - 1, chains) at every temperature, or none.
    """

    spins: Any
    spare: Any
    keys: Any
    log_w: Any
    shared: Any
    slope: Any
    ancestors: Any
    slopes: Any


@cuda.jit(device=True)
def _coins(keys, position):
    """Where the coins at `position` begin: `uniform` there, and GOLDEN further on for each."""
    return mix(keys[0] + np.uint64(position) * GOLDEN) + keys[1]


@device_kernel
def _begin(base, chains):
    """Draw the base, as `draw_forest` does, an octet a thread."""
    o = cuda.grid(1)
    if o >= chains.spins.shape[0]:
        return
    s = chains.spins[o]
    for place in range(base.order.size):
        i = base.order[place]
        above = base.parent[i]
        coins = _coins(chains.keys[o], i)
        up = 1.0 / (1.0 + math.exp(-2.0 * max(-300.0, base.pull[i] + base.link[i])))
        down = 1.0 / (1.0 + math.exp(-2.0 * max(-300.0, base.pull[i] - base.link[i])))
        parents = s[above] if above >= 0 else np.uint8(0)
        word = 0
        for v in range(OCTET):
            bound = down if (parents >> v) & 1 else up
            if uniform(coins + np.uint64(v) * GOLDEN) >= bound:
                word |= 1 << v
        s[i] = word


@cuda.jit(device=True)
def _gather(gained, partial, octets, u):
    """The sum over threads of what they `gained` (8,) for their octet's chains: of chain u."""
    t = cuda.threadIdx.x
    for v in range(OCTET):
        partial[v, t] = gained[v]
        gained[v] = 0.0
    cuda.syncthreads()
    total = 0.0
    if u < OCTET * octets:
        for w in range(u // OCTET, WARPS, octets):
            for lane in range(LANES):
                total += partial[u % OCTET, w * LANES + lane]
    cuda.syncthreads()
    return total


@cuda.jit(device=True)
def _add(word, step, sums):
    """sums (8,) += step times the octet's product of spins, whose signs are the bits of `word`."""
    for v in range(OCTET):
        sums[v] += -step if (word >> v) & 1 else step


@cuda.jit(device=True)
def _first_slope(terms, base, s, lane, lanes, gained):
    """`_first_slopes` for an octet: the part of it that thread `lane` of `lanes` adds up."""
    for i in range(lane, base.fields.size, lanes):
        step = terms.fields[i] - base.fields[i]
        _add(s[i], step, gained)
    for a in range(lane, terms.theta.size, lanes):
        step = terms.theta[a] - base.theta[a]
        word = s[terms.spins[terms.ptr[a]]]
        for e in range(terms.ptr[a] + 1, terms.ptr[a + 1]):
            word ^= s[terms.spins[e]]
        _add(word, step, gained)


@cuda.jit(device=True)
def _visit(phases, linked, s, at, lane, beta, coins_at, keys, gained):
    """Heat bath for the spin of `lane` in slice `at`, in all chains of the octet s (n,)."""
    i = phases.sites[at, lane]
    if i < 0:
        return
    local = cuda.local.array(OCTET, float64)
    still = cuda.local.array(OCTET, float64)
    for v in range(OCTET):
        local[v], still[v] = phases.fields[i], phases.base_fields[i]
    for part in range(phases.parts_ptr[at], phases.parts_ptr[at + 1]):
        others, row = phases.part_others[part], phases.part_rows[part]
        first, last = phases.part_ptr[part], phases.part_ptr[part + 1]
        # Pairs and triples are nearly all terms: loops without another loop inside.
        if others == 1:
            for q in range(first, last):
                word = s[phases.others[row + q - first, lane]]
                _add(word, phases.moving[q, lane], local)
                if linked:
                    _add(word, phases.still[q, lane], still)
        elif others == 2:
            for q in range(first, last):
                at_row = row + 2 * (q - first)
                word = s[phases.others[at_row, lane]] ^ s[phases.others[at_row + 1, lane]]
                _add(word, phases.moving[q, lane], local)
        else:
            for q in range(first, last):
                at_row = row + others * (q - first)
                word = s[phases.others[at_row, lane]]
                for e in range(at_row + 1, at_row + others):
                    word ^= s[phases.others[e, lane]]
                _add(word, phases.moving[q, lane], local)
    coins = _coins(keys, coins_at + i)
    old, new = s[i], 0
    for v in range(OCTET):
        field = 2.0 * (still[v] + beta * local[v])
        decay = math.exp(-abs(field))
        top = 1.0 if field >= 0.0 else decay
        if uniform(coins + np.uint64(v) * GOLDEN) * (1.0 + decay) >= top:
            new |= 1 << v
    s[i] = new
    for v in range(OCTET):
        if ((old ^ new) >> v) & 1:
            gained[v] += -2.0 * local[v] if (new >> v) & 1 else 2.0 * local[v]


@cuda.jit(device=True)
def _tooth(log_w, low, high, top, total, at_least):
    """The chain that a tooth of the comb over cumulated weights meets, as in `_renew`."""
    at, reached = low, math.exp(log_w[low] - top)
    while at_least * total > reached * (high - low) and at < high - 1:
        at += 1
        reached += math.exp(log_w[at] - top)
    return at


@cuda.jit(device=True)
def _copy(chains, first, octets, sources):
    """Chain c of the block takes the spins of sources[c]; all threads, each some spins."""
    n = chains.spins.shape[1]
    for o in range(octets):
        for i in range(cuda.threadIdx.x, n, THREADS):
            word = 0
            for v in range(OCTET):
                source = sources[o * OCTET + v]
                bit = (chains.spins[first + source // OCTET, i] >> (source % OCTET)) & 1
                word |= bit << v
            chains.spare[first + o, i] = word
    cuda.syncthreads()
    for o in range(octets):
        for i in range(cuda.threadIdx.x, n, THREADS):
            chains.spins[first + o, i] = chains.spare[first + o, i]
    cuda.syncthreads()


@device_kernel(max_registers=REGISTERS)
def _anneal(terms, base, phases, linked, betas, first, last, octets, size, renewal, chains):
    """`spin_chains` from step `first` to before step `last`; thread u < 8 octets weighs chain u."""
    u, block = cuda.threadIdx.x, cuda.blockIdx.x * octets
    partial = cuda.shared.array(PARTIAL, float64)
    logs = cuda.shared.array(CHAINS, float64)
    slopes = cuda.shared.array(CHAINS, float64)
    sources = cuda.shared.array(CHAINS, int32)
    gained = cuda.local.array(OCTET, float64)
    for v in range(OCTET):
        gained[v] = 0.0
    warp, lane = u // LANES, u % LANES
    mine, turn, turns = block + warp % octets, warp // octets, WARPS // octets
    s, keys = chains.spins[mine], chains.keys[mine]
    weighs = u < OCTET * octets
    c = block * OCTET + u if weighs else block * OCTET
    low = u // size * size if weighs else 0
    log_w, shared, slope = chains.log_w[c], chains.shared[c], chains.slope[c]
    if first == 1:
        _first_slope(terms, base, s, turn * LANES + lane, turns * LANES, gained)
        log_w, shared, slope = 0.0, 0.0, _gather(gained, partial, octets, u)
    n, colours = s.size, phases.colours.size - 1
    backwards = betas[0] > betas[-1]
    for k in range(first, last):
        log_w += (betas[k] - betas[k - 1]) * slope
        if weighs and chains.slopes.size:
            chains.slopes[k - 1, c] = slope
        if k == betas.size - 1:
            break
        if renewal > 0.0:
            if weighs:
                logs[u], slopes[u], sources[u] = log_w, slope, u
            cuda.syncthreads()
            effective, top, total = _effective(logs, low, low + size)
            poor = 1 if weighs and effective < renewal * size else 0
            if cuda.syncthreads_or(poor):
                origin = chains.ancestors[c]
                if poor:
                    comb = uniform(_coins(chains.keys[block + low // OCTET], k * (n + 1) + n))
                    source = _tooth(logs, low, low + size, top, total, u - low + comb)
                    sources[u] = source
                    shared += top + math.log(total / size)
                    log_w, slope = 0.0, slopes[source]
                    origin = chains.ancestors[block * OCTET + source]
                cuda.syncthreads()
                if poor:
                    chains.ancestors[c] = origin
                _copy(chains, block, octets, sources)
        for place in range(colours):
            colour = colours - 1 - place if backwards else place
            for at in range(phases.colours[colour] + turn, phases.colours[colour + 1], turns):
                _visit(phases, linked, s, at, lane, betas[k], k * (n + 1), keys, gained)
            cuda.syncthreads()
        slope += _gather(gained, partial, octets, u)
    if weighs:
        chains.log_w[c], chains.slope[c], chains.shared[c] = log_w, slope, shared


@device_kernel
def _last_ends(spins, chains, ends):
    """ends (E, n) <- the spins, +1 or -1, of the last E of so many chains; a block a chain."""
    c = chains - ends.shape[0] + cuda.blockIdx.x
    for i in range(cuda.threadIdx.x, ends.shape[1], THREADS):
        ends[cuda.blockIdx.x, i] = -1 if (spins[c // OCTET, i] >> (c % OCTET)) & 1 else 1


@dataclass(frozen=True, eq=False)
class DeviceSpinPath(SpinPath):
    """`SpinPath` with its chains on the GPU. Of the end states the last ENDS are kept."""

    def width(self, size: int = 1) -> int:
        return OCTET * self._octets(size) * BLOCKS * _multiprocessors()

    @cached_property
    def phases(self) -> Phases:
        return phases_of(self.terms, self.base)

    def _octets(self, size: int) -> int:
        """Octets of a block: whole populations, and work for all warps where colours are small."""
        octets = max(1, size // OCTET)
        colours, slices = self.phases.colours.size - 1, self.phases.sites.shape[0]
        while octets < WARPS and octets * slices < WARPS * colours:
            octets *= 2
        return octets

    def walk(self, betas, states, *, with_slopes, threads):
        return self._run(betas, states, with_slopes=with_slopes)

    def populations(self, betas, states, size):
        if size % OCTET or size > CHAINS or len(states) % size:
            return super().populations(betas, states, size)
        return self._run(betas, states, size=size, renewal=RENEWAL)

    def _run(self, betas, states, *, with_slopes=False, size=1, renewal=0.0) -> Walk:
        room = self.base.fields.size / 4.0 + 60 + (8 * betas.size if with_slopes else 0)
        most = max(1, int(SHARE * free_bytes() / room) // CHAINS) * CHAINS
        parts = [states[low : low + most] for low in range(0, len(states), most)]
        model = tuple(map(arrays_to_device, (self.terms, self.base, self.phases)))
        octets = self._octets(size)
        each = [
            self._side_by_side(model, betas, part, with_slopes, octets, size, renewal)
            for part in parts
        ]
        return self._joined(each)._replace(ends=each[-1].ends)

    @alone
    def _side_by_side(self, model, betas, states, with_slopes, octets, size, renewal) -> Walk:
        terms, base, phases = model
        n, count = self.base.fields.size, len(states)
        grid = -(-count // (OCTET * octets))
        whole, steps = grid * octets, betas.size - 1 if with_slopes else 0
        chains = Chains(
            cuda.device_array((whole, n), dtype=np.uint8),
            cuda.device_array((whole, n) if renewal else (1, 1), dtype=np.uint8),
            cuda.to_device(_keys(states, whole)),
            cuda.device_array(whole * OCTET),
            cuda.device_array(whole * OCTET),
            cuda.device_array(whole * OCTET),
            cuda.to_device(np.arange(whole * OCTET)),
            cuda.device_array((steps, whole * OCTET) if steps else (1, 0)),
        )
        _begin[-(-whole // LANES), LANES](base, chains)
        ladder, linked = cuda.to_device(betas), bool(self.base.theta.any())
        step = max(1, int(SLICE / (n * whole * OCTET)))
        for first in range(1, betas.size, step):
            last = min(first + step, betas.size)
            _anneal[grid, THREADS](
                terms, base, phases, linked, ladder, first, last, octets, size, renewal, chains
            )
            cuda.synchronize()
            DEVICE.give_way()
        ends = cuda.device_array((min(count, ENDS), n), dtype=np.int8)
        _last_ends[len(ends), THREADS](chains.spins, count, ends)
        slopes = chains.slopes.copy_to_host()[:, :count] if steps else np.empty((0, count))
        return Walk(
            (chains.log_w.copy_to_host() + chains.shared.copy_to_host())[:count],
            ends.copy_to_host(),
            slopes.T,
            chains.ancestors.copy_to_host()[:count],
        )


def _keys(states: NDArray[np.uint64], octets: int) -> NDArray[np.uint64]:
    """(octets, 2): the words of each octet's first chain; zeros for octets that only fill up."""
    keys = np.zeros((octets, 2), dtype=np.uint64)
    mine = states[::OCTET, :2]
    keys[: len(mine)] = mine
    return keys


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
                        new = uniform(_coins(keys, k * (a + b) + j)) * (1.0 + decay) < top
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
                    new = uniform(_coins(keys, k * (a + b) + b + i)) * (1.0 + decay) < top
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

    def width(self, size: int = 1) -> int:
        return LAYER_BLOCKS * _multiprocessors()

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

    @alone
    def _side_by_side(
        self, layers: Any, betas: NDArray[np.float64], states: NDArray[np.uint64], steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float64]]:
        count, (a, b) = len(states), self.weights.shape
        pairs = Pairs(
            cuda.to_device(np.zeros((count, a), np.int8)),
            cuda.to_device(np.zeros((count, b), np.int8)),
            cuda.to_device(np.zeros((count, a))),
            cuda.to_device(np.zeros((count, b))),
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
            DEVICE.give_way()
        slopes = pairs.slopes.copy_to_host() if steps else np.empty((count, 0))
        return pairs.parts.copy_to_host().sum(axis=1), pairs.x.copy_to_host(), slopes


def device_path(path: Path) -> Path:
    """The same path on the GPU; itself where the CPU is the better place: on small layers."""
    if isinstance(path, SpinPath):
        return DeviceSpinPath(**_parts(path))
    if isinstance(path, LayerPath) and not path.collapsed and path.summed.size <= FACTORS * UNITS:
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
