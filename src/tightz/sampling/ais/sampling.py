"""Annealed importance sampling (Neal 2001; Salakhutdinov and Murray 2008), any discrete model.

Every chain carries a weight w with E[w] = Z exactly, so log mean w is an estimate of log Z whose
expectation lies below log Z (Jensen), and Markov's inequality turns weights into a lower bound with
a stated confidence. It is never an upper bound: chains that miss a mode leave no trace of it.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_probability, require_range
from tightz.judge.claims import sum_rounding
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import GraphOrPath, given_model
from tightz.models.prepared import prepared
from tightz.reductions.preparation import substitute
from tightz.results import OneBound
from tightz.runtime.clock import Clock, OverError, leave_if_over, my_clock, work_for
from tightz.runtime.cores import usable_cores
from tightz.runtime.interrupts import interruptible
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.sampling.ais.paths import Path, Walk, annealing_path, tuned_schedule
from tightz.sampling.ais.state_path import StatePath
from tightz.sampling.calibration import weight_error

DEFAULT_TEMPERATURES = 2000
_PILOT_CHAINS = 32
_PILOT_TEMPERATURES = 300
_FEW = 10.0
AT_A_TIME = 128
"""Chains for each thread, after which Ctrl-C is looked for."""

_BROAD = 0.5  # nats: more says that logs scatter by over a nat, and log Z may lie as far above
_PILOT, _MAIN = 0, 1


class AisStatus(enum.Enum):
    """How far to trust the estimate; the value is the advice."""

    STEADY = "weights agree: the standard error is meaningful"
    FEW_EFFECTIVE = "a few chains carry the estimate, which may be low: raise temperatures"
    EXACT = "nothing to sample: the value is exact"


@dataclass(frozen=True, eq=False, repr=False)
class AisResult(OneBound):
    """An estimate of log Z and the weights behind it.

    `log_z` is log mean w, `standard_error` its error: that of the delta method, sd(w) / (mean(w)
    sqrt(chains)), where weights scatter little; with what rare heavy weights may add where they
    scatter more; inf where they scatter so much that no error would be honest; its rounding where
    `log_z` is exact. `effective_sample_size` is (sum w)^2 / sum w^2. `lower_in_expectation` is mean
    log w: its expectation is at most log Z. `betas` is the schedule used; passing it back as
    `temperatures` with the same seed repeats the run to the last digit.
    """

    log_z: float
    standard_error: float
    effective_sample_size: float
    lower_in_expectation: float
    status: AisStatus
    log_weights: NDArray[np.float64]
    betas: NDArray[np.float64]
    kernel: str
    seconds: float
    provenance: dict[str, Any] = field(default_factory=dict)

    def certificate(self, delta: float = 0.05) -> Bound:
        """A lower bound on log Z that fails with probability at most `delta`.

        Cut the chains into G groups: the product of the group means has expectation Z^G, so by
        Markov's inequality  mean_g log(mean of group g) - log(1/delta) / G  <= log Z  with
        probability 1 - delta. G = 1 is log mean w - log(1/delta). The best of G = 1, 2, 4, ... is
        reported, each at an equal share of delta.
        """
        require_probability("delta", delta)
        chains = self.log_weights.size
        # Few groups: little is lost to Jensen inside a group, more to log(1/delta). Which is best
        # depends on the weights, so each number of groups is tried at its share of delta.
        groups = 2 ** np.arange(int(np.log2(chains)) + 1)
        values = []
        for count in groups:
            means = [_log_mean(part) for part in np.array_split(self.log_weights, count)]
            values.append(float(np.mean(means)) - np.log(len(groups) / delta) / count)
        exact = self.status is AisStatus.EXACT
        return Bound(
            side=Side.LOWER,
            log_z=self.log_z - self.standard_error if exact else max(values),
            proof=Proof.CONFIDENCE,
            method="ais",
            seconds=self.seconds,
            confidence=1.0 - delta,
            why=f"Markov's inequality on products of unbiased weights of {chains} chains",
        )

    def interval(self, confidence: float = 0.95, *, resamples: int = 1000) -> tuple[float, float]:
        """Bootstrap percentile interval of log_z over chains: an indication, not a proof."""
        if not 0.0 < confidence < 1.0:
            raise ParameterError(
                f"confidence is {confidence}; expected a probability strictly between 0 and 1"
            )
        require_range("resamples", resamples, 1)
        if not np.isfinite(self.log_z):
            return self.log_z, self.log_z
        weights = np.exp(self.log_weights - self.log_z)
        # Fixed seed: the interval of a result does not change from call to call.
        draws = np.random.default_rng(0).integers(
            weights.size, size=(resamples, weights.size), dtype=np.int32
        )
        logs = self.log_z + np.log(weights[draws].mean(axis=1))
        low, high = np.quantile(logs, [(1 - confidence) / 2, (1 + confidence) / 2])
        return float(low), float(high)

    @property
    def bound(self) -> Bound:
        return Bound(
            side=Side.ESTIMATE,
            log_z=self.log_z,
            proof=Proof.NONE,
            method="ais",
            seconds=self.seconds,
            why=f"standard error {self.standard_error:.3g}",
        )

    def summary(self) -> str:
        return (
            f"log Z ~ {self.log_z:.4f} +- {self.standard_error:.2g} (AIS, {self.kernel}, "
            f"{self.log_weights.size} chains x {self.betas.size} temperatures, effective "
            f"{self.effective_sample_size:.1f}, {self.seconds:.3g} s)\n"
            f"log Z >= {self.certificate().log_z:.4f} with confidence 0.95; "
            f"in expectation log Z >= {self.lower_in_expectation:.4f}\n{self.status.value}"
        )

    def __repr__(self) -> str:
        return (
            f"AisResult(log_z={self.log_z:.4f}, standard_error={self.standard_error:.2g}, "
            f"effective_sample_size={self.effective_sample_size:.1f}, "
            f"status={self.status.name}, seconds={self.seconds:.3g})"
        )


@prepared("ais")
def ais(
    model: GraphOrPath,
    *,
    chains: int = 128,
    temperatures: int | ArrayLike | None = None,
    seed: Seed = None,
    time_limit: float | None = None,
    threads: int | None = None,
) -> AisResult:
    """Estimate log Z by annealed importance sampling.

    `temperatures` is a number (their spacing is then tuned by a pilot run with its own random
    numbers, which leaves the weights unbiased) or the betas themselves, rising from 0 to 1. With
    `time_limit` (seconds) instead, their number is chosen in advance from the pilot's speed: a
    chain cut short would not be a valid sample. Densely coupled two-layer models (RBMs) are
    sampled layer by layer with the larger layer summed out, other binary ones spin by spin. With
    variables of many states or zeros chains move over states; one that ends where a table is zero
    has weight 0, and it counts: the mean of the weights is Z there as well. Ctrl-C returns what
    the chains say that have come to their end.
    """
    model = given_model(model, "ais", only="FactorGraph")
    start = time.perf_counter()
    require_range("chains", chains, 1)
    if time_limit is not None:
        require_range("time_limit", time_limit, 0.0)
    betas = _given_betas(temperatures)
    count = _given_count(temperatures) if betas is None else betas.size
    path = _path(model)
    root = seed_sequence(seed)
    record = provenance(
        root, model.digest, chains=chains, temperatures=count, time_limit=time_limit
    )
    if isinstance(path, float):
        logs, betas = np.full(chains, path), np.array([0.0, 1.0])
        rounding = 0.0 if path == -np.inf else 4.0 * sum_rounding(model)
        return _result(logs, betas, "none", start, record, exact=rounding)
    if betas is None:
        # Random numbers of its own: a schedule chosen by the chains that count would bias their
        # weights.
        betas = _pilot(path, root, chains, count, time_limit, start, threads)
    log_w = _walked(path, betas, _states(root, _MAIN, chains), threads)
    return _result(log_w.log_weights, betas, path.name, start, record)


def _walked(
    path: Path, betas: NDArray[np.float64], states: NDArray[np.uint64], threads: int | None
) -> Walk:
    """All chains, some at a time; once asked to end, those that have come to theirs.

    Which these are does not depend on their weights, so the mean stays unbiased.
    """
    size, walks, before = AT_A_TIME * (threads or usable_cores()), [], my_clock()
    with interruptible() as asked:
        work_for(Clock(stop=asked))
        try:
            for low in range(0, len(states), size):
                leave_if_over()
                part = states[low : low + size]
                walks.append(path.walk(betas, part, with_slopes=False, threads=threads))
        except OverError:
            if not walks:
                raise KeyboardInterrupt from None
        finally:
            work_for(before)
    return walks[0]._replace(log_weights=np.concatenate([walk.log_weights for walk in walks]))


def _path(model: FactorGraph) -> Path | float:
    """Spins where the model is one of them; otherwise states, of what zeros leave possible."""
    if model.is_binary and not model.has_zeros:
        return annealing_path(model)
    reduced = substitute(model).reduced
    if reduced.is_binary and not reduced.has_zeros:
        return annealing_path(reduced)
    if reduced.n_variables == 0:
        return -np.inf if reduced.has_zeros else float(reduced.log_tables.sum())
    return StatePath.of(reduced)


def _given_betas(temperatures: int | ArrayLike | None) -> NDArray[np.float64] | None:
    if temperatures is None or np.ndim(temperatures) == 0:
        return None
    betas = np.array(temperatures, dtype=np.float64)
    rising = betas.ndim == 1 and betas.size >= 2 and bool((np.diff(betas) >= 0).all())
    if not rising or betas[0] != 0.0 or betas[-1] != 1.0:
        raise ParameterError(
            f"temperatures are {np.array2string(betas, threshold=6)}; expected betas rising from 0 "
            "(the base) to 1 (the model)"
        )
    return betas


def _given_count(temperatures: int | ArrayLike | None) -> int | None:
    if temperatures is None:
        return None
    count = int(np.asarray(temperatures))
    require_range("temperatures", count, 2)
    return count


def _states(root: np.random.SeedSequence, part: int, chains: int) -> NDArray[np.uint64]:
    """Random states (chains, 4), keyed by the chain's number and not by who runs it."""
    return np.array(
        [
            np.random.SeedSequence(
                root.entropy, spawn_key=(*root.spawn_key, part, c)
            ).generate_state(4, np.uint64)
            for c in range(chains)
        ]
    )


def _pilot(
    path: Path,
    root: np.random.SeedSequence,
    chains: int,
    count: int | None,
    time_limit: float | None,
    start: float,
    threads: int | None,
) -> NDArray[np.float64]:
    """A schedule from a short run: its speed sets the length, its slopes the spacing."""
    states = _states(root, _PILOT, _PILOT_CHAINS)
    path.walk(np.array([0.0, 0.5, 1.0]), states[:1].copy(), with_slopes=True, threads=1)  # compile
    size = _PILOT_TEMPERATURES
    if time_limit is not None:
        probe = np.linspace(0.0, 1.0, 11)
        begun = time.perf_counter()
        path.walk(probe, states.copy(), with_slopes=True, threads=threads)
        pace = (time.perf_counter() - begun) / (probe.size * _PILOT_CHAINS)
        size = int(np.clip(0.1 * time_limit / (pace * _PILOT_CHAINS), 20, size))
    elif count is not None:
        size = min(size, max(20, count // 2))
    betas = np.linspace(0.0, 1.0, size)
    begun = time.perf_counter()
    slopes = path.walk(betas, states, with_slopes=True, threads=threads).slopes
    pace = (time.perf_counter() - begun) / (size * _PILOT_CHAINS)
    if time_limit is not None:
        left = time_limit - (time.perf_counter() - start)
        affordable = max(10, int(0.9 * left / (pace * chains)))
        count = affordable if count is None else min(count, affordable)
    return tuned_schedule(betas, slopes, count or DEFAULT_TEMPERATURES)


def _log_mean(logs: NDArray[np.float64]) -> float:
    top = float(logs.max())
    return top if top == -np.inf else top + float(np.log(np.mean(np.exp(logs - top))))


def _result(
    log_weights: NDArray[np.float64],
    betas: NDArray[np.float64],
    kernel: str,
    start: float,
    record: dict[str, Any],
    exact: float | None = None,
) -> AisResult:
    """exact: the rounding of weights that are all log Z itself."""
    chains = log_weights.size
    log_z = _log_mean(log_weights)
    # Without a weight above 0 nothing is known, not even that Z is 0.
    none = log_z == -np.inf and exact is None
    relative = np.ones(chains) if log_z == -np.inf else np.exp(log_weights - log_z)
    effective = 0.0 if none else float(relative.sum() ** 2 / (relative**2).sum())
    # Kish's number counts the weights that came, not the heavy ones that chains fell short of.
    error = weight_error(log_weights) if exact is None else exact
    steady = effective >= _FEW and error < _BROAD
    status = AisStatus.STEADY if steady else AisStatus.FEW_EFFECTIVE
    return AisResult(
        log_z=log_z,
        standard_error=error,
        effective_sample_size=effective,
        lower_in_expectation=float(log_weights.mean()),
        status=status if exact is None else AisStatus.EXACT,
        log_weights=log_weights,
        betas=betas,
        kernel=kernel,
        seconds=time.perf_counter() - start,
        provenance=record,
    )
