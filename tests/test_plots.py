"""Plots return their axes, draw what they say, and never show."""

from __future__ import annotations

import builtins
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

import tightz as tz
from tightz.bounds import Bound, Proof, Side
from tightz.errors import MissingExtraError
from tightz.interval.interval import Confident
from tightz.plots import interval_curves, plot_grid, plot_interval, plot_levels, pyplot, save


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_levels_show_every_trial():
    e = tz.estimate(
        tz.ising_grid(3, seed=0),
        projections=tz.Projections(collapse=0),
        levels=[0, 2],
        trials=4,
        seed=0,
    )
    ax = plot_levels(e, exact=12.5, mean_field=11.0)
    dots = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in dots) == 8
    assert "exact 12.50" in [t.get_text() for t in ax.get_legend().get_texts()]
    same = e.plot(ax=ax)
    assert same is ax


def test_interval_and_grid(tmp_path):
    r = tz.log_partition(tz.ising_grid(4, seed=0), time_limit=5, seed=0)
    ax = plot_interval(r)
    assert ax.get_ylabel().startswith("log Z")
    save(ax, str(tmp_path / "i.png"))
    assert (tmp_path / "i.png").stat().st_size > 3000
    image = plot_grid(np.eye(3), "eye").images[0]
    np.testing.assert_array_equal(image.get_array(), np.eye(3))
    with pytest.raises(tz.TightzError, match="cannot be written"):
        save(plot_grid(np.eye(2), "x"), str(tmp_path / "no" / "i.png"))


def test_a_confident_interval_a_thousand_times_narrower_can_be_read():
    likely = Proof.CONFIDENCE
    bounds = [
        Bound(Side.LOWER, 10.0, Proof.DETERMINISTIC, "a", 0.5, 1.0),
        Bound(Side.UPPER, 14.0, Proof.DETERMINISTIC, "b", 1.0, 1.0),
        Bound(Side.LOWER, 12.0, likely, "c", 2.0, 0.95),
        Bound(Side.UPPER, 12.004, likely, "c", 3.0, 0.95),
        Bound(Side.UPPER, 13.0, Proof.DETERMINISTIC, "b", 4.0, 1.0),
    ]
    exact = tz.log_partition(tz.ising_grid(3, seed=0), time_limit=5, seed=0)
    r = replace(
        exact, lower_proof=bounds[0], upper_proof=bounds[4], bounds=bounds, seconds=5.0,
        confident=Confident(bounds[2], bounds[3], 0.95), estimate=12.002, estimate_error=0.001,
    )  # fmt: skip
    times, always, likely_ends = interval_curves(r)
    np.testing.assert_array_equal(times, [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0])
    nan = np.nan
    np.testing.assert_array_equal(always[0], [nan, 10, 10, 10, 10, 10, 10])
    np.testing.assert_array_equal(always[1], [nan, nan, 14, 14, 14, 13, 13])
    np.testing.assert_array_equal(likely_ends[0], [nan, 10, 10, 12, 12, 12, 12])
    np.testing.assert_array_equal(likely_ends[1], [nan, nan, 14, 14, 12.004, 12.004, 12.004])
    ax = plot_interval(r)
    texts = [t.get_text() for t in ax.get_legend().get_texts()]
    assert "confidence 0.95: [12.0000, 12.0040]" in texts
    assert "estimate 12.0020 +- 0.001" in texts
    widths = ax.get_figure().axes[1]
    assert widths.get_yscale() == "log"
    last = {line.get_label(): line.get_ydata()[-1] for line in widths.lines}
    assert last == pytest.approx({"always": 3.0, "with confidence": 0.004})
    assert plot_interval(r, ax=ax) is ax


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"tightz\[plot\]"):
        pyplot()
