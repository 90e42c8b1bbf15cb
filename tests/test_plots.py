"""Plots return their axes, draw what they say, and never show."""

from __future__ import annotations

import builtins
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import tightz as tz
from tightz.errors import MissingExtraError
from tightz.plots import plot_grid, plot_interval, plot_levels, pyplot, save


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
