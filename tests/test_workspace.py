"""The working model: nothing before it is asked for, everything once, for all who share it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tightz as tz
from tightz.errors import ParameterError, UnsupportedModelError
from tightz.reductions.encoding import encode
from tightz.splitting import Splitting, SplittingTree
from tightz.workspace import workspace
from tightz.workspace.workspace import Workspace

MODEL = tz.ising_grid(6, coupling=(-3, 3), seed=0)


@pytest.fixture
def calls(monkeypatch):
    """How often each part was made."""
    counts = {"encode": 0, "collapse": 0, "sample_pool": 0}

    def counted(name):
        honest = getattr(workspace, name)

        def call(*arguments, **options):
            counts[name] += 1
            return honest(*arguments, **options)

        return call

    for name in counts:
        monkeypatch.setattr(workspace, name, counted(name))
    return counts


def test_nothing_is_made_before_it_is_asked_for(calls):
    work = Workspace.build(MODEL, seed=0, collapse=3)
    assert calls == {"encode": 0, "collapse": 0, "sample_pool": 0}
    assert work.original.n == 36
    assert calls == {"encode": 1, "collapse": 0, "sample_pool": 0}
    assert work.polynomial.n == work.kept.size < 36
    assert calls == {"encode": 1, "collapse": 1, "sample_pool": 0}
    assert work.guide is work.guide
    assert calls == {"encode": 1, "collapse": 1, "sample_pool": 1}


def test_threads_that_ask_together_get_one(calls):
    work = Workspace.build(MODEL, seed=0, collapse=3, search_sweeps=50)
    with ThreadPoolExecutor(8) as pool:
        guides = list(pool.map(lambda _: work.guide, range(8)))
    assert all(guide is guides[0] for guide in guides)
    assert calls == {"encode": 1, "collapse": 1, "sample_pool": 1}


def test_a_tree_adds_nothing_to_what_is_there(calls):
    work = Workspace.build(MODEL, seed=0, collapse=3, search_sweeps=50)
    assert work.states is not None
    settings = Splitting(exact_width=3, max_splits=3, family=tz.MeanField())
    for seed in (0, 1):
        tree = SplittingTree(work, settings, seed=seed, threads=1)
        list(tree.run())
        assert tree.lower <= tz.exact(MODEL).log_z <= tree.upper
    assert calls == {"encode": 1, "collapse": 1, "sample_pool": 1}


def test_another_collapse_shares_encoding_and_pool(calls):
    work = Workspace.build(MODEL, seed=0, collapse=3, search_sweeps=50)
    other = work.recollapsed(0)
    assert (work.k, other.k) == (3, 0)
    assert other.pool is work.pool
    assert other.encoding is work.encoding
    assert other.guide.states.shape[1] == 36
    assert other.recollapsed(2).pool is work.pool
    assert calls == {"encode": 1, "collapse": 1, "sample_pool": 1}


def test_states_and_samples_are_those_of_the_pool():
    work = Workspace.build(MODEL, seed=0, collapse=3, search_sweeps=100)
    guide, pool = work.guide, work.pool
    for rows in (guide.states, guide.samples):
        weights = work.polynomial.log_weight(rows)
        assert (np.diff(weights) <= 1e-9).all()
    assert len(np.unique(guide.states, axis=0)) == len(guide.states)
    assert len(guide.samples) >= len(pool.samples)  # as often as they were drawn
    lifted = work.original_states()
    np.testing.assert_array_equal(lifted[:, work.kept], guide.states)


def test_without_a_search_or_spins_there_is_no_guide():
    assert Workspace.build(MODEL, seed=0, search_sweeps=0).guide is None
    assert Workspace.build(tz.FactorGraph([]), seed=0).guide is None
    zero = tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])])
    assert Workspace.build(zero, seed=0).pool is None
    encoding = encode(MODEL)
    assert Workspace.build(encoding, seed=0).encoding is encoding


def test_what_cannot_be_made_is_refused_when_asked_for():
    with pytest.raises(ParameterError, match="search_sweeps is -1"):
        Workspace.build(MODEL, seed=0, search_sweeps=-1)
    work = Workspace.build(tz.FactorGraph([2, 2], [((0, 1), [[0, -np.inf], [1, 2]])]), seed=0)
    for _ in range(2):  # and again
        with pytest.raises(UnsupportedModelError):
            _ = work.encoding
