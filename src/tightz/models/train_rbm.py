"""Restricted Boltzmann machines by contrastive divergence (Hinton 2002), resumable to the bit.

Arithmetic is float32. Random streams are keyed by epoch, and a checkpoint is written between
epochs, so a run that was cut off goes on exactly as if it had not been.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound
from tightz.errors import ModelError, ParameterError, require_range
from tightz.models.builders import rbm
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.array_files import save_weights
from tightz.models.formats.text_files import FilePath, read_bytes, write_atomically
from tightz.models.inputs import as_count, real_array, shown
from tightz.results import Result
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.shown import ASIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float32]

_INITIAL_SPREAD = 0.01
_START = 2**31
"""Key of the stream that draws the initial weights; epochs never reach it."""


class Epoch(NamedTuple):
    """What `on_epoch` is told: epochs done, mean squared reconstruction error, seconds so far."""

    number: int
    reconstruction_error: float
    seconds: float


@dataclass(frozen=True)
class Training:
    """How an RBM is trained: CD-k by stochastic gradient steps.

    hidden          hidden units
    k               Gibbs steps from each example before the negative statistics are taken
    epochs          passes over the data
    batch_size      examples per step
    learning_rate, momentum, weight_decay   of the steps
    """

    hidden: int = 100
    k: int = 15
    epochs: int = 15
    batch_size: int = 20
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("hidden", 1), ("k", 1), ("epochs", 0), ("batch_size", 1)):
            object.__setattr__(self, name, as_count(getattr(self, name), name, low))
        require_range("learning_rate", self.learning_rate, 0.0)
        require_range("weight_decay", self.weight_decay, 0.0)
        require_range("momentum", self.momentum, 0.0, 0.999)

    @property
    def lasting(self) -> dict[str, Any]:
        """What a checkpoint must agree in: everything but the number of epochs."""
        return {name: value for name, value in asdict(self).items() if name != "epochs"}


@dataclass(frozen=True, eq=False, repr=False)
class RbmTraining(Result):
    """A trained RBM: log p~(v, h) = b'v + c'h + v'Wh, units in {0, 1}.

    weights                (visible, hidden)
    reconstruction_error   (epochs,) mean squared error per unit of E[v | h] after one step
    seconds                wall time of all epochs, those taken from a checkpoint included
    processor_seconds      the same in processor time of the process, all threads
    """

    weights: NDArray[np.float64] = field(metadata=ASIDE)
    visible_bias: NDArray[np.float64] = field(metadata=ASIDE)
    hidden_bias: NDArray[np.float64] = field(metadata=ASIDE)
    reconstruction_error: NDArray[np.float64]
    resumed_from: int
    seconds: float
    processor_seconds: float
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> FactorGraph:
        """The RBM as a factor graph, visible units first."""
        return rbm(self.weights, self.visible_bias, self.hidden_bias, name="trained rbm")

    @property
    def bounds(self) -> list[Bound]:
        """None: training says nothing about log Z."""
        return []

    def plot(self, ax: Axes | None = None) -> Axes:
        """The reconstruction error against the epoch; returns the axes."""
        from tightz.plots import plot_line

        rows = list(enumerate(self.reconstruction_error.tolist(), start=1))
        return plot_line(rows, "epoch", "reconstruction error", ax=ax)

    def save(self, path: FilePath) -> None:
        """Write the weights as an .npz file that `tz.read` reads."""
        save_weights(path, self.weights, self.visible_bias, self.hidden_bias)

    def summary(self) -> str:
        """Sizes and the course of training as text."""
        errors = self.reconstruction_error
        course = " ".join(f"{e:.5f}" for e in errors)
        return (
            f"RBM {self.weights.shape[0]} x {self.weights.shape[1]}, {errors.size} epochs, "
            f"{self.seconds:.1f} s\nreconstruction error by epoch: {course}"
        )

    def __repr__(self) -> str:
        last = f"{self.reconstruction_error[-1]:.5f}" if self.reconstruction_error.size else "none"
        return (
            f"RbmTraining({self.weights.shape[0]} x {self.weights.shape[1]}, "
            f"{self.reconstruction_error.size} epochs, reconstruction error {last})"
        )


def train_rbm(
    data: ArrayLike,
    training: Training | None = None,
    *,
    seed: Seed = 0,
    checkpoint: FilePath | None = None,
    resume: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> RbmTraining:
    """Train an RBM by CD-k on rows of `data`, entries in [0, 1].

    data         (examples, visible); a value between 0 and 1 is the chance that the unit is on,
                 drawn afresh at every visit
    training     hidden units, Gibbs steps, epochs, step sizes: Training()
    checkpoint   an .npz file written after every epoch; with `resume` a run goes on from it and
                 ends with the same bits as an uninterrupted one. It may be extended to more
                 epochs; any other change of data or settings is refused
    on_epoch     called with an `Epoch` after each
    """
    training = Training() if training is None else training
    if not isinstance(training, Training):
        raise ParameterError(f"training is {shown(training)}; expected a tz.Training(...)")
    rows = _checked_data(data)
    root = seed_sequence(seed)
    digest = hashlib.sha256(rows.tobytes()).hexdigest()
    settings = {
        **training.lasting,
        "entropy": str(root.entropy),
        "spawn_key": list(root.spawn_key),
        "data_sha256": digest,
        "shape": list(rows.shape),
    }
    state = _read(checkpoint, settings) if checkpoint is not None and resume else None
    state = state or _initial(rows, training.hidden, generator(root, _START))
    first = len(state.errors)
    if first > training.epochs:
        raise ParameterError(
            f"{checkpoint} is {first} epochs on; epochs is {training.epochs}. Ask for at least "
            f"{first}, or pass resume=False to start again"
        )
    for epoch in range(first, training.epochs):
        started = time.perf_counter(), time.process_time()
        with np.errstate(over="ignore", invalid="ignore"):
            error = _run_epoch(state, rows, training, generator(root, epoch))
        if not all(np.isfinite(a).all() for a in (error, state.w, state.b, state.c)):
            raise ParameterError(
                f"training diverged in epoch {epoch + 1}; learning_rate is "
                f"{training.learning_rate}, "
                "choose a smaller one"
            )
        state.errors.append(error)
        state.spent[:] += time.perf_counter() - started[0], time.process_time() - started[1]
        if checkpoint is not None:
            _write(checkpoint, state, settings)
        if on_epoch is not None:
            on_epoch(Epoch(epoch + 1, error, float(state.spent[0])))
    return RbmTraining(
        weights=state.w.astype(np.float64),
        visible_bias=state.b.astype(np.float64),
        hidden_bias=state.c.astype(np.float64),
        reconstruction_error=np.array(state.errors),
        resumed_from=first,
        seconds=float(state.spent[0]),
        processor_seconds=float(state.spent[1]),
        provenance=provenance(root, digest, **asdict(training)),
    )


class _State(NamedTuple):
    """W (visible, hidden), b, c and their velocities, changed in place; errors per epoch.

    spent   (2,) wall and processor seconds of the epochs so far
    """

    w: Floats
    b: Floats
    c: Floats
    dw: Floats
    db: Floats
    dc: Floats
    spent: NDArray[np.float64]
    errors: list[float]


def _initial(rows: Floats, hidden: int, rng: np.random.Generator) -> _State:
    """Small Gaussian weights, visible biases from the data's means (Hinton 2012)."""
    visible = rows.shape[1]
    w = rng.normal(0.0, _INITIAL_SPREAD, (visible, hidden)).astype(np.float32)
    mean = np.clip(rows.mean(axis=0, dtype=np.float64), 0.005, 0.995)
    b = np.log(mean / (1.0 - mean)).astype(np.float32)
    c = np.zeros(hidden, dtype=np.float32)
    still = np.zeros_like(w), np.zeros_like(b), np.zeros_like(c)
    return _State(w, b, c, *still, np.zeros(2), [])


def _run_epoch(state: _State, rows: Floats, rule: Training, rng: np.random.Generator) -> float:
    """One pass over the shuffled data; returns the mean squared reconstruction error."""
    order = rng.permutation(len(rows))
    error = 0.0
    for at in range(0, len(rows), rule.batch_size):
        grey = rows[order[at : at + rule.batch_size]]
        v0 = _coins(grey, rng)
        up0 = _sigmoid(v0 @ state.w + state.c)
        up = up0
        v = v0
        for step in range(rule.k):
            down = _sigmoid(_coins(up, rng) @ state.w.T + state.b)
            if step == 0:
                error += float(np.square(v0 - down).sum(dtype=np.float64))
            v = _coins(down, rng)
            up = _sigmoid(v @ state.w + state.c)
        rate = np.float32(rule.learning_rate / len(grey))
        decay = np.float32(rule.learning_rate * rule.weight_decay)
        _move(state.w, state.dw, rate * (v0.T @ up0 - v.T @ up) - decay * state.w, rule.momentum)
        _move(state.b, state.db, rate * (v0 - v).sum(axis=0), rule.momentum)
        _move(state.c, state.dc, rate * (up0 - up).sum(axis=0), rule.momentum)
    return error / rows.size


def _sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)) by tanh, which cannot overflow; in place."""
    x *= np.float32(0.5)
    np.tanh(x, out=x)
    x += np.float32(1.0)
    x *= np.float32(0.5)
    return x


def _coins(probability: Floats, rng: np.random.Generator) -> Floats:
    """Independent 0/1 draws with the given chances."""
    return (rng.random(probability.shape, dtype=np.float32) < probability).astype(np.float32)


def _move(value: Floats, velocity: Floats, step: Floats, momentum: float) -> None:
    if momentum:
        velocity *= np.float32(momentum)
        velocity += step
        value += velocity
    else:
        value += step


def _checked_data(data: ArrayLike) -> Floats:
    is_float32 = isinstance(data, np.ndarray) and data.dtype == np.float32
    rows = np.ascontiguousarray(data if is_float32 else real_array(data, "data"), dtype=np.float32)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ModelError(
            f"data have shape {rows.shape}; expected (examples, visible units), one of each at "
            "least"
        )
    bad = ~((rows >= 0.0) & (rows <= 1.0))
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise ModelError(
            f"data[{i}, {j}] is {rows[i, j]}; expected numbers from 0 to 1 (divide grey values by "
            "their maximum)"
        )
    return rows


_ARRAYS = ("w", "b", "c", "dw", "db", "dc", "spent")


def _write(path: FilePath, state: _State, settings: dict[str, Any]) -> None:
    archive = io.BytesIO()
    arrays = {name: getattr(state, name) for name in _ARRAYS}
    np.savez(archive, errors=np.array(state.errors), settings=json.dumps(settings), **arrays)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically([(path, archive.getvalue())])


def _read(path: FilePath, settings: dict[str, Any]) -> _State | None:
    if not Path(path).exists():
        return None
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as archive:
            stored = json.loads(str(archive["settings"]))
            arrays = {name: archive[name] for name in _ARRAYS}
            errors = archive["errors"].tolist()
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged archive
        raise ModelError(
            f"{path} is not a checkpoint of train_rbm (or a damaged one); delete it, or pass "
            "resume=False"
        ) from error
    changed = [name for name in settings if stored.get(name) != settings[name]]
    if changed:
        raise ParameterError(
            f"{path} was written with other settings ({', '.join(changed)}); pass resume=False to "
            "start again, or another checkpoint"
        )
    return _State(**arrays, errors=errors)
