"""What the page's charts draw, as plain data for chart.js; large runs are thinned here."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.paper.theorems import lower_median
from tightz.reports.data import LevelTable, ReportData
from tightz.reports.words import kind_of, number

SEQUENTIAL = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""Dark blue to yellow, even in lightness: readable without colour vision and in grey print."""

DIVERGING = ("#0072b2", "#9ecae1", "#f7f7f7", "#fdb98a", "#d55e00")
"""Blue for negative, vermilion for positive."""

MISSING = "#b0b0b0"


def _ramp(stops: tuple[str, ...]) -> NDArray[np.uint8]:
    """(256, 3): 255 steps through the stops, then the colour of missing values."""
    rgb = np.array([[int(s[i : i + 2], 16) for i in (1, 3, 5)] for s in (*stops, MISSING)])
    at = np.linspace(0, len(stops) - 1, 255)
    steps = [np.interp(at, np.arange(len(stops)), rgb[:-1, c]) for c in range(3)]
    return np.concatenate([np.stack(steps, axis=1).round(), rgb[-1:]]).astype(np.uint8)


def png(values: NDArray[np.float64], low: float, high: float, stops: tuple[str, ...]) -> str:
    """A data address of a palette PNG, one pixel per entry; NaN is grey."""
    span = high - low if high > low else 1.0
    scaled = np.clip((np.asarray(values, dtype=np.float64) - low) / span, 0.0, 1.0) * 254.0
    pixels = np.where(np.isnan(scaled), 255.0, scaled).round().astype(np.uint8)
    rows, cols = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), dtype=np.uint8), pixels], axis=1).tobytes()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", cols, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", _ramp(stops).tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


MAX_DOTS = 12_000
"""Trials drawn one by one; beyond that a seeded sample of each level is."""

MAX_STEPS = 3_000
"""Points of a line over time."""

Spec = dict[str, Any]


def plain(values: Sequence[float] | NDArray[np.float64], digits: int = 10) -> list[float | None]:
    """JSON numbers with `digits` significant digits; null for what is not finite."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in map(float, values)]


def padded(low: float, high: float, share: float = 0.04) -> list[float]:
    """An axis range a little larger than [low, high], never empty."""
    room = share * (high - low) or max(1e-3, 1e-3 * abs(low))
    return [low - room, high + room]


def interval_chart(data: ReportData) -> Spec | None:
    """Both intervals over time; None where nothing changed over time."""
    times = {b.seconds for b in data.bounds if math.isfinite(b.log_z)}
    last = _last(data)
    if len(times) < 2 or last <= 0:
        return None
    steps = _ends(data.bounds)
    low, high = steps["lower"], steps["upper"]
    series = [*_band("between", "trial", low, high)]
    confident = _confident(steps)
    if confident is not None:
        first = min(steps[f"confident {end}"][0].min(initial=last) for end in ("lower", "upper"))
        name = f"confidence {data.confidence:g}"
        series += _band(name, "confident", *confident, since=first)
    for key, color, name in (
        ("upper", "upper", "upper end"), ("confident upper", "confident", "upper, confident"),
        ("confident lower", "confident", "lower, confident"), ("lower", "lower", "lower end"),
    ):  # fmt: skip
        x, y = steps[key]
        if x.size:
            kept = _thin_times(x)
            series.append(
                {"name": name, "kind": "step", "color": color, "x": plain(kept, 6),
                 "y": plain(_at((x, y), kept))}
            )  # fmt: skip
    if data.estimate is not None and math.isfinite(data.estimate) and data.exact is None:
        series.append(_rule("estimate", "estimate", data.estimate))
    if not series:
        return None
    full = [v for s in series for v in (*s["y"], *s.get("y2", ())) if v is not None]
    near = None
    if confident is not None and all(end[0].size for end in confident):
        bottom, top = sorted(float(end[1][-1]) for end in confident)
        near = {"x": [0.0, last], "y": padded(bottom, top, 2.0)}
    return {
        "id": "interval", "title": "The interval on log Z over time",
        "ylabel": "log Z [nats]", "series": series, **_time_axis(times, last),
        "view": {"x": [0.0, last], "y": _interval_view(low, high, full, last)}, "near": near,
        "full": {"x": [0.0, last], "y": padded(min(full), max(full))},
    }  # fmt: skip


def width_chart(data: ReportData) -> Spec | None:
    """log10 of both widths over time; None where no end holds with confidence only."""
    steps, last = _ends(data.bounds), _last(data)
    confident = _confident(steps)
    if confident is None:
        return None
    series: list[Spec] = []
    for name, color, (low, high) in (
        ("always", "lower", (steps["lower"], steps["upper"])),
        ("with confidence", "confident", confident),
    ):
        for band in _band(name, color, low, high):
            wide = np.array(band["y2"], dtype=float) - np.array(band["y"], dtype=float)
            with np.errstate(divide="ignore", invalid="ignore"):
                series.append({**band, "kind": "step", "y": plain(np.log10(wide)), "y2": []})
    known = [v for s in series for v in s["y"] if v is not None]
    if not known:
        return None
    times = {t for s in series for t in s["x"]}
    return {
        "id": "widths", "title": "Widths of the intervals over time", "ylabel": "width [nats]",
        "log_y": True, "series": series, **_time_axis(times, last), "full": None,
        "view": {"x": [0.0, last], "y": padded(min(known), max(known), 0.08)},
    }  # fmt: skip


def _last(data: ReportData) -> float:
    last = data.seconds if math.isfinite(data.seconds) else 0.0
    return max([last, *(b.seconds for b in data.bounds)])


def _time_axis(times: set[float], last: float) -> Spec:
    first = max(min((t for t in times if t > 0), default=1e-4), 1e-4)
    return {
        "xlabel": "seconds", "short_x": "s", "first": first, "last": last,
        "log_x": last > 20 * first, "integer_x": False,
    }  # fmt: skip


def _ends(bounds: Sequence[Bound]) -> dict[str, Steps]:
    """The best of every kind of end so far."""
    return {
        "upper": _running(bounds, ("upper", "exact"), np.minimum),
        "lower": _running(bounds, ("lower", "exact"), np.maximum),
        "confident upper": _running(bounds, ("confident upper",), np.minimum),
        "confident lower": _running(bounds, ("confident lower",), np.maximum),
    }


def _confident(steps: dict[str, Steps]) -> tuple[Steps, Steps] | None:
    """Both ends with the better of certificate and proof; None without any certificate."""
    if not (steps["confident lower"][0].size or steps["confident upper"][0].size):
        return None
    low = _better(steps["lower"], steps["confident lower"], np.maximum)
    return low, _better(steps["upper"], steps["confident upper"], np.minimum)


def _better(a: Steps, b: Steps, best: np.ufunc) -> Steps:
    times = np.concatenate([a[0], b[0]])
    order = np.argsort(times, kind="stable")
    values = np.concatenate([a[1], b[1]])[order]
    return times[order], best.accumulate(values) if values.size else values


def _band(name: str, color: str, low: Steps, high: Steps, since: float = -math.inf) -> list[Spec]:
    """The area between two ends from the moment both are known, `since` then; nothing before."""
    if not (low[0].size and high[0].size):
        return []
    grid = _thin_times(np.union1d(low[0], high[0]))
    grid = grid[grid >= max(low[0][0], high[0][0], since)]
    ends = {"y": plain(_at(low, grid)), "y2": plain(_at(high, grid))}
    return [{"name": name, "kind": "stepband", "color": color, "x": plain(grid, 6), **ends}]


Steps = tuple[NDArray[np.float64], NDArray[np.float64]]


def _running(bounds: Sequence[Bound], kinds: tuple[str, ...], best: np.ufunc) -> Steps:
    """(times, best value so far) of the finite records of these kinds."""
    found = [b for b in bounds if kind_of(b) in kinds and math.isfinite(b.log_z)]
    found.sort(key=lambda b: b.seconds)
    values = np.array([b.log_z for b in found])
    return np.array([b.seconds for b in found]), best.accumulate(values) if found else values


def _at(steps: Steps, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The step function at `times`, all at or after its first."""
    values: NDArray[np.float64] = steps[1][np.searchsorted(steps[0], times, side="right") - 1]
    return values


def _thin_times(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most MAX_STEPS of the times, first and last kept; a step line stays a valid bound."""
    unique = np.unique(times)
    if unique.size <= MAX_STEPS:
        return unique
    return unique[np.unique(np.linspace(0, unique.size - 1, MAX_STEPS).round().astype(int))]


def _interval_view(low: Steps, high: Steps, full: list[float], last: float) -> list[float]:
    """The final interval with room around it; where an end is missing, the later half's values."""
    if low[0].size and high[0].size:
        bottom, top = sorted((float(low[1][-1]), float(high[1][-1])))
        margin = max(1.5 * (top - bottom), 1e-4 * max(1.0, abs(bottom)))
        return [bottom - margin, top + margin]
    one = low if low[0].size else high
    late = one[1][one[0] >= last / 2] if one[0].size else np.zeros(0)
    late = late if late.size > 1 else one[1][-max(2, one[1].size // 2) :]
    values = late if late.size else np.array(full)
    return padded(float(values.min()), float(values.max()), 0.25)


def _rule(name: str, color: str, value: float) -> Spec:
    return {"name": name, "kind": "rule", "color": color, "x": [], "y": plain([value])}


def sampled(table: LevelTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, trial) of the feasible trials to draw: all, or a seeded sample with every extreme."""
    rows, trials = np.nonzero(np.isfinite(table.values))
    if rows.size <= MAX_DOTS:
        return rows, trials
    rng = np.random.default_rng(0)
    share = MAX_DOTS // len(table.levels)
    keep: list[NDArray[np.int64]] = []
    for at in np.split(
        np.arange(rows.size), np.searchsorted(rows, np.arange(1, len(table.levels)))
    ):
        if at.size > share:
            values = table.values[rows[at], trials[at]]
            ends = at[[int(values.argmin()), int(values.argmax())]]
            at = np.union1d(ends, rng.choice(at, size=max(share - 2, 1), replace=False))
        keep.append(at)
    chosen = np.concatenate(keep)
    return rows[chosen], trials[chosen]


def level_rows(table: LevelTable) -> list[dict[str, float]]:
    """Per level: trials run, infeasible ones, and quantiles, the median as the paper takes it."""
    out = []
    for m, row in zip(table.levels.tolist(), table.values, strict=True):
        done = row[~np.isnan(row)]
        if not done.size:
            continue
        top = float(done.max())
        mean = -math.inf
        if math.isfinite(top):
            mean = top + math.log(float(np.exp(done - top).mean()))
        ordered = np.sort(done)
        quarter = (done.size - 1) // 4
        out.append(
            {
                "m": m,
                "trials": done.size,
                "infeasible": int((done == -np.inf).sum()),
                "least": float(ordered[0]),
                "lower quartile": float(ordered[quarter]),
                "median": float(lower_median(done)),
                "upper quartile": float(ordered[done.size - 1 - quarter]),
                "best": top,
                "mean": mean,
            }
        )
    return out


def level_chart(data: ReportData) -> Spec | None:
    """Every trial (or a sample) by level, medians, quartiles, and the bounds as rules."""
    table = data.table
    if table is None or not np.isfinite(table.values).any():
        return None
    rows = level_rows(table)
    levels = [row["m"] for row in rows]

    def column(key: str) -> list[float | None]:
        return plain([row[key] for row in rows], 8)

    at, trials = sampled(table)
    spread = 0.28 * (2.0 * trials / max(table.values.shape[1] - 1, 1) - 1.0)
    dots = {
        "name": "one trial" if at.size == np.isfinite(table.values).sum() else "sample of trials",
        "kind": "dots", "color": "trial",
        "x": plain(table.levels[at] + spread, 5), "y": plain(table.values[at, trials], 8),
        "trial": trials.tolist(),
    }  # fmt: skip
    series: list[Spec] = []
    if table.values.shape[1] >= 8 and len(rows) > 1:
        for name, low, high in (
            ("least to best", "least", "best"),
            ("middle half", "lower quartile", "upper quartile"),
        ):
            band = {"name": name, "kind": "band", "color": "trial", "x": levels}
            series.append({**band, "y": column(low), "y2": column(high)})
    series.append(dots)
    notes = [f"{row['trials']:,} trials" for row in rows]
    line = {"kind": "line", "x": levels}
    series.append({"name": "mean", "color": "mean", "y": column("mean"), **line})
    series.append(
        {"name": "median", "color": "median", "y": column("median"), "notes": notes, **line}
    )
    empty = [row for row in rows if row["infeasible"]]
    if empty:
        series.append(
            {
                "name": "infeasible draws", "kind": "rug", "color": "mean",
                "x": [row["m"] for row in empty], "y": [],
                "notes": [f"{row['infeasible']:,} of {row['trials']:,}" for row in empty],
            }
        )  # fmt: skip
    values = [v for v in dots["y"] if v is not None]
    values += [v for s in series for v in s["y"] if v is not None]
    for name, color, bound in (
        ("lower end", "lower", data.lower),
        ("confident", "confident", data.confident_lower),
    ):
        if bound is not None and math.isfinite(bound.log_z):
            series.append(_rule(name, color, bound.log_z))
            values.append(bound.log_z)
    view = {"x": [min(levels) - 0.6, max(levels) + 0.6], "y": padded(min(values), max(values))}
    return {
        "id": "levels", "title": f"{table.meaning} by level", "xlabel": "parity constraints m",
        "ylabel": f"{table.meaning} [nats]", "short_x": "m", "integer_x": True, "log_x": False,
        "first": 0, "last": max(levels), "series": series, "view": view, "full": None,
    }  # fmt: skip


def caption(data: ReportData) -> str:
    """What the level chart shows and leaves out, in words."""
    table = data.table
    assert table is not None
    drawn, done = sampled(table)[0].size, table.done
    feasible = int(np.isfinite(table.values).sum())
    planned = table.values.size if table.planned is None else table.planned
    whole = f"{done:,} of {planned:,} planned trials were run"
    text = f"{whole}. " if done < planned else f"{done:,} trials. "
    if drawn < feasible:
        text += (
            f"{drawn:,} of them are drawn as dots, a seeded sample of each level with its least "
            "and its best; medians, quartiles and means count every trial. "
        )
    else:
        text += "Every feasible trial is a dot. "
    if feasible < done:
        text += (
            f"{done - feasible:,} draws are infeasible: log(2^m gamma) is -infinity, they count "
            "in medians and means and are marked at the foot of the chart. "
        )
    best = data.estimate
    return text + (f"The estimate is {number(best)}." if best is not None else "")
