"""What a report shows, whatever it came from: results in memory, JSON records or a run store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError
from tightz.models.ends import Ends, width
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid
from tightz.models.names import Names

VISIBLE = 1e-6
"""Ends of marginals that are nearer to each other are one value on the page."""


@dataclass(frozen=True)
class Assumption:
    """One thing a theorem needs, and whether this run met it."""

    text: str
    held: bool


@dataclass(frozen=True)
class Statement:
    """What a theorem says about log Z for this run, end by end, with what it rests on."""

    theorem: str
    says: str
    lower: float
    upper: float
    lower_holds: bool
    upper_holds: bool
    confidence: float
    assumptions: tuple[Assumption, ...]


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Trials by level: values (L, T) are log(2^m gamma), -inf infeasible, NaN not run (yet).

    planned   trials the whole run is to make; None where it made all it was asked for
    """

    levels: NDArray[np.int64]
    values: NDArray[np.float64]
    meaning: str = "log(2^m gamma)"
    planned: int | None = None

    @property
    def done(self) -> int:
        """Trials that were run."""
        return int((~np.isnan(self.values)).sum())


@dataclass(frozen=True, eq=False)
class Marginals:
    """One probability vector per variable; the first rows x cols of them are pixels of `shape`.

    always, confident   (states, 2) ends of each variable; None where the run bounded none
    confidence          with which all of `confident` hold together
    """

    vectors: Sequence[NDArray[np.float64]]
    source: str
    shape: tuple[int, int] | None = None
    spins: bool = False
    names: Names | None = None
    always: Ends | None = None
    confident: Ends | None = None
    confidence: float = math.nan

    @property
    def bounds(self) -> list[tuple[str, Ends]]:
        """(how they hold, ends), the wider first; none where they are too near to be seen."""
        out: list[tuple[str, Ends]] = []
        if self.always is None or self.confident is None:
            return out
        if width(self.always).max(initial=0.0) > VISIBLE:
            out.append(("holds always", self.always))
            if any((a != c).any() for a, c in zip(self.always, self.confident, strict=True)):
                out.append((f"with confidence {self.confidence:g}", self.confident))
        return out

    @property
    def binary(self) -> bool:
        """Whether P(state 1) says all; not where each variable names its own states."""
        named = self.names is not None and self.names.states is not None
        return not named and all(len(vector) <= 2 for vector in self.vectors)

    def label(self, variable: int) -> str:
        return str(variable) if self.names is None else self.names.label(variable)


@dataclass(frozen=True, eq=False, repr=False)
class ReportData:
    """Everything on the page. Bounds are in the order they arrived, `seconds` since the start.

    confident_lower, confident_upper   ends that hold with a confidence, chosen by who made them:
                     the best of several with separate confidences would be a selection
    together         confidence of these ends together; NaN: their shares of error add up
    estimate         None where there is none; `estimate_error` is NaN or inf if unknown
    """

    title: str
    method: str
    bounds: Sequence[Bound]
    confident_lower: Bound | None = None
    confident_upper: Bound | None = None
    together: float = math.nan
    estimate: float | None = None
    estimate_error: float = math.nan
    estimate_source: str = ""
    table: LevelTable | None = None
    statements: Sequence[Statement] = ()
    marginals: Marginals | None = None
    notes: Sequence[str] = ()
    interrupted: bool = False
    seconds: float = math.nan
    model: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> Bound | None:
        """The record that closed the interval."""
        return next((b for b in self.bounds if b.side is Side.BOTH), None)

    @property
    def lower(self) -> Bound | None:
        """The best deterministic lower end; None where every one is -inf."""
        found = [b for b in self.bounds if b.side is Side.LOWER and _always(b)]
        return max(found, key=lambda b: b.log_z, default=None)

    @property
    def upper(self) -> Bound | None:
        """The best deterministic upper end; None where every one is +inf."""
        found = [b for b in self.bounds if b.side is Side.UPPER and _always(b)]
        return min(found, key=lambda b: b.log_z, default=None)

    @property
    def confident(self) -> tuple[Bound | None, Bound | None]:
        """(lower, upper) that hold with `confidence`; a proven end stands where it is better."""
        low, high = self.confident_lower, self.confident_upper
        if low is None or (self.lower is not None and self.lower.log_z >= low.log_z):
            low = self.lower
        if high is None or (self.upper is not None and self.upper.log_z <= high.log_z):
            high = self.upper
        return low, high

    @property
    def confidence(self) -> float:
        """With which the ends of `confident` hold together."""
        if not math.isnan(self.together):
            return self.together
        # Ends of one method hold together; those of different ones add up their shares of error.
        random = [b for b in self.confident if b is not None and b.proof is Proof.CONFIDENCE]
        shares = {b.method: 1.0 - (b.confidence or 0.0) for b in random}
        return max(0.0, 1.0 - sum(shares.values()))

    def __repr__(self) -> str:
        return f"ReportData({self.title!r}, {self.method}, {len(self.bounds)} bounds)"


def _always(bound: Bound) -> bool:
    return bound.proof is Proof.DETERMINISTIC and math.isfinite(bound.log_z)


def checked_shape(shape: tuple[int, int] | None, variables: int) -> tuple[int, int] | None:
    """A shape the caller gave, refused where the model has too few variables for it."""
    if shape is None:
        return None
    rows, cols = (int(side) for side in shape)
    if rows < 1 or cols < 1 or rows * cols > variables:
        raise ParameterError(
            f"shape is {rows} x {cols}; expected positive sides with at most {variables} cells, "
            "one per variable"
        )
    return rows, cols


def model_picture(model: FactorGraph) -> tuple[int, int] | None:
    """The picture a model suggests: its lattice, or the square of an RBM's visible units."""
    from tightz.paper.stored import model_shape

    if isinstance(model.layout, Bipartite):
        side = math.isqrt(model.layout.visible)
        return (side, side) if side * side == model.layout.visible and side > 1 else None
    return model_shape(model)


def _is_ising_grid(model: FactorGraph | None) -> bool:
    return model is not None and isinstance(model.layout, Grid) and model.is_binary


def as_marginals(
    vectors: Any,
    source: str,
    *,
    model: FactorGraph | None = None,
    shape: tuple[int, int] | None = None,
    names: Names | None = None,
    ends: tuple[Ends, Ends] | None = None,
    confidence: float = math.nan,
) -> Marginals | None:
    """Marginals with the shape given, or the one the model's layout suggests; the model's names.

    `ends`: those that hold always, and those that hold with `confidence`.
    """
    if vectors is None or len(vectors) == 0:
        return None
    rows = [np.asarray(vector, dtype=np.float64) for vector in vectors]
    if model is not None and model.n_variables != len(rows):
        raise ParameterError(
            f"the run has marginals of {len(rows)} variables, the model has {model.n_variables}; "
            "give the model of the run"
        )
    chosen = checked_shape(shape, len(rows)) or (None if model is None else model_picture(model))
    known = names if model is None else model.naming
    known = known if known is not None and known.given else None
    always, confident = ends or (None, None)
    return Marginals(
        rows, source, chosen, _is_ising_grid(model), known, always, confident, confidence
    )
