"""What a run store holds, as plain records, and the checksum that each row carries."""

from __future__ import annotations

import json
import math
import platform
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.runtime.provenance import versions


@dataclass(frozen=True, eq=False)
class TrialColumns:
    """Trials side by side: levels, trials, ranks, sweeps, statuses (k,), log_gammas (k, J).

    statuses are indices into `RunMeta.statuses`.
    """

    levels: NDArray[np.int64]
    trials: NDArray[np.int64]
    ranks: NDArray[np.int64]
    sweeps: NDArray[np.int64]
    statuses: NDArray[np.int64]
    log_gammas: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.levels.size)

    def __repr__(self) -> str:
        return f"TrialColumns({len(self)} trials)"


@dataclass(frozen=True, eq=False)
class BatchRow:
    """The trials that were committed together, with their packed moments (spins, pairs)."""

    columns: TrialColumns
    spins: NDArray[np.float64]
    pairs: NDArray[np.float64]

    def checksum(self, batch: int, session: int, seconds: float) -> int:
        """Over every number of the batch's row and of its trials."""
        c = self.columns
        crc = text_checksum(batch, session, seconds)
        for array in (c.levels, c.trials, c.ranks, c.sweeps, c.statuses):
            crc = zlib.crc32(np.ascontiguousarray(array, dtype=np.int64).tobytes(), crc)
        for values in (c.log_gammas, self.spins, self.pairs):
            crc = zlib.crc32(np.ascontiguousarray(values, dtype=np.float64).tobytes(), crc)
        return crc


@dataclass(frozen=True)
class RunMeta:
    """What a run is about. `identity` must agree on resume; `description` helps readers.

    identity      kind, model_sha256, seed, parameters
    description   n, levels, trials, restarts, batch, statuses, shape, detail
    """

    identity: dict[str, Any]
    description: dict[str, Any]
    versions: dict[str, str]
    created: str

    @property
    def kind(self) -> str:
        return str(self.identity["kind"])

    @property
    def model_sha256(self) -> str:
        return str(self.identity["model_sha256"])

    @property
    def seed(self) -> dict[str, Any]:
        return dict(self.identity["seed"])

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.identity["parameters"])

    @property
    def n(self) -> int:
        """Spins of the working model (the collapsed one where collapse is on)."""
        return int(self.description.get("n", 0))

    @property
    def levels(self) -> list[int]:
        return list(self.description.get("levels", []))

    @property
    def trials(self) -> int:
        """Trials per level (T) that the run is to make."""
        return int(self.description.get("trials", 0))

    @property
    def restarts(self) -> int:
        return int(self.description.get("restarts", 0))

    @property
    def batch(self) -> int:
        return int(self.description.get("batch", 1))

    @property
    def statuses(self) -> list[str]:
        """Names of the codes in `TrialColumns.statuses`."""
        return list(self.description.get("statuses", []))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Rows and columns of a grid or an image, where the caller or the model told."""
        shape = self.description.get("shape")
        return None if shape is None else tuple(shape)

    @property
    def detail(self) -> dict[str, Any]:
        """Whatever else the caller wrote down, such as delta."""
        return dict(self.description.get("detail", {}))

    def __repr__(self) -> str:
        return f"RunMeta({self.kind}, model {self.model_sha256[:12]}, n={self.n}, {self.created})"


@dataclass(frozen=True)
class Session:
    """One process that worked on the run. `ended` is "" for one that was killed or still runs."""

    session: int
    started: str
    ended: str
    state: str
    seconds: float
    versions: dict[str, str]
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a session concluded: a JSON record, and the marginals that go with it, with their ends.

    always, confident   one (states, 2) array per variable; None where the run bounded none
    """

    record: dict[str, Any]
    marginals: list[NDArray[np.float64]] | None = None
    always: list[NDArray[np.float64]] | None = None
    confident: list[NDArray[np.float64]] | None = None
    spread: NDArray[np.float64] | None = None
    seconds: float = field(default=0.0)

    def __repr__(self) -> str:
        return f"Answer({self.record})"


def computed_by() -> dict[str, str]:
    """The packages that decide the numbers, and the machine's name."""
    return {**versions(), "python": platform.python_version(), "host": platform.node()}


def canonical(value: Any) -> str:
    """One text per value: sorted keys, no spaces; infinities as strings."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """JSON values only; arrays become lists, infinities and NaN strings, the rest its repr."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)


def text_checksum(*parts: object) -> int:
    """Over the parts of a row of text and numbers."""
    return zlib.crc32("\x00".join(repr(part) for part in parts).encode())


def bound_to_text(bound: Bound) -> str:
    """A bound as canonical JSON; repr of a float is exact, so nothing is rounded."""
    return canonical(
        {
            "side": bound.side.value,
            "log_z": bound.log_z,
            "proof": bound.proof.name,
            "method": bound.method,
            "seconds": bound.seconds,
            "confidence": bound.confidence,
            "why": bound.why,
            "rounding": bound.rounding,
        }
    )


def bound_from_text(text: str) -> Bound:
    """The inverse of `bound_to_text`."""
    r = json.loads(text)
    return Bound(
        side=Side(r["side"]),
        log_z=float(r["log_z"]),
        proof=Proof[r["proof"]],
        method=r["method"],
        seconds=float(r["seconds"]),
        confidence=r["confidence"],
        why=r["why"],
        rounding=float(r["rounding"]),
    )
