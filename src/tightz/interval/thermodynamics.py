"""What `free_energy` returns: curves over temperatures, each number with what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, at_most, no_minus
from tightz.models.factor_graph import FactorGraph
from tightz.results import Result, dataframe
from tightz.shown import ASIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """One quantity at every temperature, in the order they were given.

    value        (k,) the best value known; NaN where there is none
    error        (k,) of `value`: a bound on rounding where it is exact and NaN where that is not
                 bounded, elsewhere a calibrated standard error, or inf
    lower, upper (k,) ends that hold always; -inf and inf where nothing is proven
    confident    (k, 2) ends that hold with `confidence`, at all temperatures together
    source       (k,) where each value comes from
    """

    name: str
    value: Array
    error: Array
    lower: Array
    upper: Array
    confident: Array
    source: list[str]

    @property
    def bounded(self) -> bool:
        """Whether anything is proven about it at any temperature."""
        return bool(np.isfinite(self.confident).any())

    def times(self, name: str, factor: Array) -> Curve:
        """The curve of factor * quantity, where factor has one sign everywhere."""
        with np.errstate(invalid="ignore"):
            ends = np.stack([self.lower, self.upper], axis=1)
            low, high = _outward(np.sort(ends * factor[:, None], axis=1)).T
            likely = _outward(np.sort(self.confident * factor[:, None], axis=1))
            return Curve(
                name, self.value * factor, self.error * np.abs(factor), low, high, likely,
                self.source,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"Curve({self.name}, {self.value.size} temperatures)"


def _outward(ends: Array) -> Array:
    """(k, 2) ends moved by the rounding of one product; infinite ones have none."""
    slack = np.where(np.isfinite(ends), 2.0**-52 * np.abs(ends), 0.0)
    return ends + slack * [-1.0, 1.0]


@dataclass(frozen=True, eq=False, repr=False)
class FreeEnergy(Result):
    """Thermodynamics of a model over a grid of temperatures (k_B = 1), in the order given.

    temperatures, betas   (k,) each the inverse of the other
    log_zs                log of the sum of exp(-beta E) over possible states
    free_energy           F = -T log Z
    energy                <E>, E = -log p~ of the model as given: of all variables together
    entropy               S = log Z + beta <E>, in nats
    heat_capacity         C = beta^2 (<E^2> - <E>^2); never with ends that are proven
    magnetisation         mean of s = 1 - 2x over free variables, where all are binary; else None
    confidence            of all `confident` ends of all curves together
    exact                 (k,) where every state was summed by the plan of all temperatures;
                          elsewhere `log_zs.source` says how far `log_partition` came
    interrupted           Ctrl-C ended the run: temperatures it did not reach have no values, and
                          the ends that follow from the others
    """

    temperatures: Array
    betas: Array
    log_zs: Curve
    free_energy: Curve
    energy: Curve
    entropy: Curve
    heat_capacity: Curve
    magnetisation: Curve | None
    confidence: float
    exact: NDArray[np.bool_]
    bounds: list[Bound]
    notes: list[str]
    interrupted: bool
    seconds: float
    model: FactorGraph = field(metadata=ASIDE)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def curves(self) -> list[Curve]:
        """All quantities."""
        found = [self.log_zs, self.free_energy, self.energy, self.entropy, self.heat_capacity]
        return found if self.magnetisation is None else [*found, self.magnetisation]

    def summary(self) -> str:
        """A table: value with its error, or the narrower interval where that is wider."""
        shown = [c for c in self.curves if c is not self.log_zs]
        rows = [["T", *(c.name for c in shown), ""]]
        for k, temperature in enumerate(self.temperatures.tolist()):
            cells = [_cell(c, k, exact=bool(self.exact[k])) for c in shown]
            how = "exact" if self.exact[k] else self.log_zs.source[k].partition(" (")[0]
            rows.append([f"{temperature:.6g}", *cells, how])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if i else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        if not self.exact.all():
            lines.append(
                f"[ ] with confidence {self.confidence:g}, all of them together; ~ not proven; "
                "ends that hold always: .lower and .upper"
            )
        lines += [f"note: {note}" for note in self.notes]
        tail = "interrupted after" if self.interrupted else "in"
        lines.append(f"{self.temperatures.size} temperatures {tail} {self.seconds:.2f} s")
        return "\n".join(lines)

    def to_dataframe(self) -> DataFrame:
        """A pandas table: a row for each temperature; energy, energy_lower, energy_upper, ..."""
        columns: dict[str, Any] = {"temperature": self.temperatures, "beta": self.betas}
        for c in self.curves:
            columns |= {
                c.name: c.value, f"{c.name}_error": c.error, f"{c.name}_lower": c.lower,
                f"{c.name}_upper": c.upper, f"{c.name}_confident_lower": c.confident[:, 0],
                f"{c.name}_confident_upper": c.confident[:, 1], f"{c.name}_source": c.source,
            }  # fmt: skip
        columns["exact"] = self.exact
        return dataframe(columns, list(columns))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Curves per variable with their bands; with `ax` the free energy alone."""
        from tightz.plots import plot_free_energy

        return plot_free_energy(self, ax=ax)

    def __repr__(self) -> str:
        exact = int(self.exact.sum())
        ends = f"{self.temperatures.min():g} to {self.temperatures.max():g}"
        return (
            f"FreeEnergy({self.temperatures.size} temperatures {ends}, {exact} exact, "
            f"{self.seconds:.2f} s)"
        )


def _cell(curve: Curve, k: int, *, exact: bool) -> str:
    """A value for people: alone where it was summed exactly, else its confident ends, else ~."""
    value, error = float(curve.value[k]), float(curve.error[k])
    low, high = curve.confident[k].tolist()
    if math.isinf(value):
        return str(value)
    known = math.isnan(error) or error <= 1e-5 * max(1.0, abs(value))
    if exact and known and not math.isnan(value):
        return _figure(value)
    if math.isfinite(high - low):
        return f"[{_figure(low)}, {_figure(high)}]"
    if math.isnan(value):
        return "none"
    return f"~ {_figure(value)}" + (f" +- {at_most(error)}" if error < math.inf else "")


def _figure(value: float) -> str:
    return no_minus(f"{value:.4f}" if abs(value) < 1e6 else f"{value:.10g}")
