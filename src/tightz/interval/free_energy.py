"""Thermodynamics over a grid of temperatures in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound
from tightz.elimination.exact.tables import StoppedError
from tightz.errors import (
    ParameterError,
    ResourceError,
    UnsupportedModelError,
    require_probability,
    require_seconds,
)
from tightz.interval.exact_sums import ExactSums, Summed
from tightz.interval.interval import LogPartition
from tightz.interval.log_partition import log_partition
from tightz.interval.opening import load_streams
from tightz.interval.thermodynamics import Curve, FreeEnergy
from tightz.judge.convexity import Limits, Thermal, scaling_slack, thermal
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.inputs import real_array
from tightz.models.kinds import kind_of
from tightz.models.temperature import at_beta
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.interrupts import Interrupts, as_one
from tightz.runtime.kernels.farm import prepare
from tightz.runtime.memory import MAX_MEMORY, parse_memory
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.sampling.calibration import UNSEEN
from tightz.workspace.findings import Mixing
from tightz.workspace.shared import Shared

Array = NDArray[np.float64]

DRAWS = 2000
"""States that an estimate of the energy is averaged over."""

HELP = 0.5
"""Part of the time left after the sums of log Z for energies, and of what is then left for those
that bound energies; the rest is for C."""

RESERVE = 0.3
"""Part of the time for intervals at the temperatures that are not summed, where some are not."""

LEAST = 0.05
"""Seconds that every temperature gets at least."""

MOST = 1000
"""Temperatures of one call: memory grows with their square."""


@dataclass(eq=False)
class _Point:
    """What is known at one beta; a `Curve` takes its numbers from here."""

    beta: float
    always: tuple[float, float] = (-math.inf, math.inf)
    confident: tuple[float, float] = (-math.inf, math.inf)
    log_z: tuple[float, float] = (math.nan, math.inf)
    energy: tuple[float, float] = (math.nan, math.inf)
    curvature: tuple[float, float] = (math.nan, math.inf)
    spins: tuple[float, float] = (math.nan, math.inf)
    exact: Summed | None = None
    source: str = "not reached"
    origin: str = "not reached"
    bent: str = "not reached"
    aligned: str = "not reached"
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@as_one
def free_energy(
    model: GraphOrPath,
    temperatures: ArrayLike | None = None,
    *,
    betas: ArrayLike | None = None,
    evidence: Evidence | None = None,
    time_limit: float = 60.0,
    delta: float = 0.05,
    seed: Seed = None,
    exact: bool = True,
    max_memory: str | int = MAX_MEMORY,
    backend: Backend = "auto",
    on_point: Callable[[float], None] | None = None,
) -> FreeEnergy:
    """log Z, free energy, energy, entropy, heat capacity, magnetisation at many temperatures.

    temperatures   positive numbers in any order, inf for infinite temperature; the model as given
                   is the one at T = 1, and its energy is minus its log weight
    betas          inverse temperatures instead, from 0
    evidence       {variable: state} by name or number, or a file, beside the model's own
    delta          all confident ends at all temperatures hold together with confidence 1 - delta
    exact          False forbids summing the whole model, and nothing else
    on_point       called with each temperature as it is done

    Where the model can be summed exactly, the elimination is planned once and carried out at every
    temperature, the ends of the grid first; energies and magnetisations are means under exact
    marginals, two more sums beside each temperature bound the energy, and four give the heat
    capacity as a second derivative. Where the time is not enough for all sums of log Z, part of it
    is left for the other temperatures: `log_partition` runs at each for an equal part of it,
    with delta divided among them, plans, orders and heavy states handed on from one to the next;
    energies and heat capacities are averages over its draws, with errors that reach levels which so
    many draws may not have.

    log Z is convex in beta, so its ends at all temperatures bound every energy between the slopes
    of chords, the entropy with it, and each other (`tightz.judge.convexity`). No end is ever stated
    for a heat capacity or a magnetisation. Ctrl-C returns what is known (`interrupted`).
    """
    begun = time.perf_counter()
    model = given(given_model(model, "free_energy", only="FactorGraph"), evidence)
    grid, inverse = _grid(temperatures, betas)
    require_seconds("time_limit", time_limit)
    require_probability("delta", delta)
    memory, root = parse_memory(max_memory), seed_sequence(seed)
    if exact:
        start = time.perf_counter()
        prepare("exact", kind_of(model))
        begun += time.perf_counter() - start  # compiling does not count against the limit
    asked = Interrupts.active
    clock = Clock(time_limit, stop=asked, since=begun)
    distinct, place = np.unique(inverse, return_inverse=True)
    points = [_Point(float(beta)) for beta in distinct]
    shared = Shared()
    run = _Run(
        model, clock, points, ExactSums(model, clock, memory, shared, backend),
        lambda beta: on_point and on_point(math.inf if beta == 0.0 else 1.0 / beta),
        {"max_memory": max_memory, "backend": backend, "exact": exact, "shared": shared},
        delta / len(points), root,
    )  # fmt: skip
    interrupted = False
    try:
        run.sum_exactly(exact)
        run.bound_the_rest()
        run.sharpen()
    except KeyboardInterrupt:
        if asked is not None and asked.insisted:
            raise
        interrupted = True
        clock.stop()
    interrupted = interrupted or (asked is not None and asked.is_set())
    return FreeEnergy(
        temperatures=grid,
        betas=inverse,
        **_curves(run, grid, place),
        confidence=1.0 - delta,
        exact=np.array([p.exact is not None for p in points])[place],
        bounds=[bound for p in points for bound in p.bounds],
        notes=list(dict.fromkeys(note for p in points for note in p.notes)),
        interrupted=interrupted,
        seconds=clock.elapsed,
        model=model,
        provenance=provenance(
            root, model.digest, time_limit=time_limit, delta=delta, exact=exact,
            max_memory=memory, betas=inverse.tolist(),
        ),
    )  # fmt: skip


def _grid(temperatures: Any, betas: Any) -> tuple[Array, Array]:
    """(temperatures, betas) of whichever was given."""
    if (temperatures is None) == (betas is None):
        came = "neither" if betas is None else "both"
        raise ParameterError(
            f"{came} of temperatures and betas are given; expected one, such as "
            "temperatures=np.linspace(1.5, 3.5, 20)"
        )
    name = "temperatures" if betas is None else "betas"
    values = np.atleast_1d(real_array(temperatures if betas is None else betas, name))
    if values.ndim != 1 or not values.size:
        raise ParameterError(
            f"{name} have shape {values.shape}; expected a list of at least one number"
        )
    if values.size > MOST:
        raise ParameterError(
            f"{name} are more than {MOST}; expected fewer, in several calls where they are needed: "
            "their ends bound each other, all pairs of them"
        )
    for k, value in enumerate(values.tolist()):
        if betas is None and not (value > 0.0 and 1.0 / value < math.inf):
            raise ParameterError(
                f"temperatures[{k}] is {value:g}; expected positive numbers (inf is infinite "
                "temperature): tz.ground_state(model) is for T = 0, and a model with all its logs "
                "negated for T < 0"
            )
        if betas is not None and not 0.0 <= value < math.inf:
            raise ParameterError(
                f"betas[{k}] is {value:g}; expected numbers from 0, the inverse of temperatures: "
                "tz.ground_state(model) is for infinite beta, and a model with all its logs "
                "negated for beta < 0"
            )
    with np.errstate(divide="ignore", over="ignore"):
        other = 1.0 / values
    return (values, other) if betas is None else (other, values)


@dataclass(eq=False)
class _Run:
    """Fills the points: exact sums first, then intervals, then what sharpens them."""

    model: FactorGraph
    clock: Clock
    points: list[_Point]
    sums: ExactSums
    done: Callable[[float], Any]
    options: dict[str, Any]  # of every `log_partition`, what they share among them
    delta: float
    root: np.random.SeedSequence

    def sum_exactly(self, allowed: bool) -> None:
        """By one plan, first log Z at every temperature that the time is enough for, then energies.

        Where it is not enough for all, those that are summed lie between the others, and part of
        it is left for these.
        """
        waiting = _outside_in(self.points) if allowed else []
        reserve = RESERVE * self.clock.limit
        for k, point in enumerate(waiting):
            share = self.clock.left / sum(p.exact is None for p in waiting)
            try:
                most = self.clock.left - reserve
                self._take_sum(point, self.sums.at(point.beta, share, most=most, marginals=False))
            except (ResourceError, StoppedError):
                if k == 0:
                    return  # the highest temperature is as easy as any
                continue
            except UnsupportedModelError as error:
                point.notes.append(f"beta {point.beta:g}: {error}")
                continue
            self.done(point.beta)
        summed = [p for p in waiting if p.exact is not None and p.always[1] > -math.inf]
        reserve = max(HELP * self.clock.left, reserve if len(summed) < len(waiting) else 0.0)
        for k, point in enumerate(summed):
            most = self.clock.left - reserve
            if most <= 0.0:
                return
            try:
                share = most / (len(summed) - k)
                self._take_sum(point, self.sums.at(point.beta, share, most=most))
            except StoppedError:
                return  # slower than predicted, at the next one too
            except (ResourceError, UnsupportedModelError):
                continue

    def _take_sum(self, point: _Point, found: Summed) -> None:
        point.exact = found
        point.always = point.confident = (found.low, found.high)
        point.log_z = (found.result.log_z, found.radius)
        point.energy, point.spins = (found.energy, math.nan), (found.spins, math.nan)
        point.source = f"exact: {found.result.way.why}"
        point.origin = point.aligned = "exact marginals, rounding not bounded"
        point.bounds = [found.result.bound]

    def bound_the_rest(self) -> None:
        """`log_partition` where there is no exact sum, for an equal part of the time left each."""
        rest = [point for point in self.points if point.exact is None]
        if rest:
            load_streams()  # half a second that no temperature alone should pay
        for k, point in enumerate(rest):
            share = max(LEAST, self.clock.left / (len(rest) - k))
            scaled = at_beta(self.model, point.beta)
            found = log_partition(
                scaled, time_limit=share, delta=self.delta,
                seed=stream(self.root, self.points.index(point)), **self.options,
            )  # fmt: skip
            self.clock.limit += found.compile_seconds  # which did not count there either
            self._take_interval(point, found, scaled)
            if found.interrupted:
                raise KeyboardInterrupt
            self.done(point.beta)

    def _take_interval(self, point: _Point, found: LogPartition, scaled: FactorGraph) -> None:
        slack = scaling_slack(scaled)
        point.always = found.lower - slack, found.upper + slack
        point.confident = found.confident.lower - slack, found.confident.upper + slack
        point.log_z = found.estimate, found.estimate_error
        point.source = found.estimate_source
        point.bounds = [found.lower_proof, found.upper_proof]
        point.notes = [f"beta {point.beta:g}: {note}" for note in found.notes]
        if found.marginals is not None:
            free = self.model.free_variables
            if free.size and (self.model.cardinalities[free] == 2).all():
                means = [found.marginals[v][0] - found.marginals[v][1] for v in free.tolist()]
                sure = found.marginal_status is Mixing.EXACT
                point.spins = float(np.mean(means)), math.nan if sure else math.inf
                point.aligned = found.marginal_origin
        if found.sampler is None or found.interrupted or found.upper == -math.inf:
            return  # without a sampler draws would take a search of their own
        draws = found.sample(DRAWS, seed=stream(self.root, len(self.points)))
        weights = -self.model.log_weight(draws.states)
        shares = np.exp(draws.log_weights - draws.log_weights.max())
        shares /= shares.sum()
        mean = float(shares @ weights)
        variance = float(shares @ (weights - mean) ** 2)
        worth = draws.effective_size
        point.energy, point.curvature = (mean, math.inf), (variance, math.inf)
        if draws.status in (Mixing.EXACT, Mixing.MIXED) and worth > 1.0:
            spread = float(shares @ ((weights - mean) ** 2 - variance) ** 2)
            # levels that no draw has: how far away, and the share that two errors shall reach
            away, rare = _excitation(self.model, point.beta, worth), 0.5 * UNSEEN / worth
            point.energy = mean, math.hypot(math.sqrt(variance / worth), rare * away)
            point.curvature = variance, math.hypot(math.sqrt(spread / worth), rare * away**2)
        point.origin = point.bent = f"estimate from draws: {draws.status.value}"

    def sharpen(self) -> None:
        """Sums beside the exact ones: first those that bound energies, then second derivatives.

        As many as fit; temperatures whose energy is not known are the first to be helped.
        """
        exact = [point for point in self.points if point.exact is not None]
        for k, point in enumerate(sorted(exact, key=lambda p: not math.isnan(p.energy[0]))):
            assert point.exact is not None
            if point.always[1] > -math.inf and not self.clock.expired:
                half = HELP * self.clock.left
                self.sums.narrow_energy(point.exact, half / (len(exact) - k), half)
        for k, point in enumerate(exact):
            assert point.exact is not None
            if point.always[1] > -math.inf and not self.clock.expired:
                share = self.clock.left / (len(exact) - k)
                point.curvature = self.sums.curvature(point.exact, share)
                point.bent = "second derivative of exact sums, by five points"


def _excitation(model: FactorGraph, beta: float, draws: float) -> float:
    """Energy above the typical states of a level that may be missing among so many draws.

    A change of one variable, of which there are as many as variables, has a share of 1 / draws at
    log(draws variables) / beta. No such change costs more than the tables of a variable can differ.
    """
    if not model.n_factors:
        return 0.0
    starts = model.table_ptr[:-1]
    finite = np.where(np.isneginf(model.log_tables), np.inf, model.log_tables)
    spans = np.maximum.reduceat(model.log_tables, starts) - np.minimum.reduceat(finite, starts)
    changes = np.zeros(model.n_variables)
    np.add.at(changes, model.scope_vars, np.repeat(spans, model.arities))
    free = model.free_variables
    most = float(changes[free].max(initial=0.0))
    return min(most, math.log(draws * max(1, free.size)) / beta) if beta > 0.0 else most


def _outside_in(points: list[_Point]) -> list[_Point]:
    """Both ends, then what lies in the middle between those that came before."""
    found, pieces = [0, len(points) - 1], [(0, len(points) - 1)]
    for low, high in pieces:  # grows while it is read
        if high - low > 1:
            middle = (low + high) // 2
            found.append(middle)
            pieces += [(low, middle), (middle, high)]
    return [points[k] for k in dict.fromkeys(found)]


def _curves(run: _Run, grid: Array, place: NDArray[np.int64]) -> dict[str, Any]:
    points = run.points
    proven, likely = _thermal(run)
    nothing = np.full((len(points), 2), [-math.inf, math.inf])

    def curve(
        name: str, values: list[tuple[float, float]], sources: list[str],
        always: Array = nothing, confident: Array = nothing,
    ) -> Curve:  # fmt: skip
        value, error = np.array(values, dtype=np.float64).T
        inside = np.clip(value, always[:, 0], always[:, 1])
        told = [sources[k] for k in place.tolist()]
        low, high = always[place].T
        return Curve(name, inside[place], error[place], low, high, confident[place], told)

    log_z = curve(
        "log_z", [p.log_z for p in points], [p.source for p in points], proven.log_z, likely.log_z
    )
    energies = [_inside(p.energy, one) for p, one in zip(points, likely.energy, strict=True)]
    origins = [p.origin if not math.isnan(p.energy[0]) else "middle of the ends" for p in points]
    entropies = [
        (p.log_z[0] + p.beta * e, math.hypot(p.log_z[1], p.beta * error))
        for p, (e, error) in zip(points, energies, strict=True)
    ]
    capacity = [(p.beta * (p.beta * c), p.beta * (p.beta * e)) for p in points
                for c, e in [p.curvature]]  # fmt: skip
    spins = curve("magnetisation", [p.spins for p in points], [p.aligned for p in points])
    return {
        "log_zs": log_z,
        "free_energy": log_z.times("free_energy", -grid),
        "energy": curve("energy", energies, origins, proven.energy, likely.energy),
        "entropy": curve("entropy", entropies, origins, proven.entropy, likely.entropy),
        "heat_capacity": curve("heat_capacity", capacity, [p.bent for p in points]),
        "magnetisation": None if np.isnan(spins.value).all() else spins,
    }


def _inside(value: tuple[float, float], ends: Array) -> tuple[float, float]:
    """The value, or the middle of the ends where there is none."""
    if not math.isnan(value[0]) or not np.isfinite(ends).all():
        return value
    return 0.5 * float(ends[0] + ends[1]), 0.5 * float(ends[1] - ends[0])


def _thermal(run: _Run) -> tuple[Thermal, Thermal]:
    """What follows always, and with confidence, at the points asked for."""
    limits = Limits.of(run.model)
    helpers = {h.beta: (h.low, h.high) for h in run.sums.helpers}
    found = []
    for kind in ("always", "confident"):
        ends = helpers | {p.beta: getattr(p, kind) for p in run.points}
        betas = np.array(sorted(ends))
        told = thermal(betas, np.array([ends[beta] for beta in betas.tolist()]), limits)
        at = np.searchsorted(betas, [p.beta for p in run.points])
        found.append(Thermal(told.log_z[at], told.energy[at], told.entropy[at]))
    proven, likely = found
    return proven, replace(
        likely,
        **{
            name: np.where((pair[:, 0] > pair[:, 1])[:, None], getattr(proven, name), pair)
            for name, pair in vars(likely).items()
        },
    )
