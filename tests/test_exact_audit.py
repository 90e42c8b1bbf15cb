"""What must be noticed: kernels that return slightly wrong numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tightz.elimination import conditioning as conditioning
from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.elimination.exact import exact, kernels, tables
from tightz.elimination.exact import run as running
from tightz.judge import RefutedError
from tightz.models.builders import ising_grid, rbm
from tightz.models.factor_graph import FactorGraph

WEAK = ising_grid(6, coupling=(-1, 1), seed=0)
STRONG = ising_grid(6, coupling=(-300, 300), seed=0)
STATES = FactorGraph(
    [3] * 6,
    [((i, j), np.sin(np.arange(9.0) + i + 7 * j)) for i in range(6) for j in range(i)],
)
LARGE = ising_grid(5, 15, coupling=(-1, 1), seed=2, periodic=True)


def wrong_sum(kernel, eps, logarithmic):
    def broken(arena, out, states, dims, tile, ops, low, high):
        kernel(arena, out, states, dims, tile, ops, low, high)
        part = arena[out + low * tile : out + high * tile]
        if logarithmic:
            part += eps
        else:
            part *= 1.0 + eps

    return broken


@pytest.mark.parametrize("eps", [1e-3, 1e-9, -1e-11])
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("sum_product", WEAK),
        ("sum_product", STATES),
        ("sum_product", LARGE),
        ("log_sum_product", STRONG),
    ],
)
def test_wrong_messages_are_refuted(monkeypatch, name, model, eps):
    exact(model, marginals=False)
    broken = wrong_sum(getattr(kernels, name), eps, name.startswith("log"))
    monkeypatch.setattr(kernels, name, broken)
    with pytest.raises(RefutedError, match="bucket"):
        exact(model, marginals=False)


def test_right_messages_are_not_refuted_where_long_doubles_are_doubles(monkeypatch):
    models = [ising_grid(8, coupling=(-40, 40), seed=seed) for seed in range(5)]
    log_zs = [exact(model, marginals=False).log_z for model in models]
    monkeypatch.setattr(np, "longdouble", np.float64)
    assert [exact(model, marginals=False).log_z for model in models] == log_zs
    broken = wrong_sum(kernels.sum_product, 1e-9, False)
    monkeypatch.setattr(kernels, "sum_product", broken)
    with pytest.raises(RefutedError, match="bucket"):
        exact(WEAK, marginals=False)


def test_wrong_products_of_messages_are_refuted(monkeypatch):
    """A layered model multiplies messages as they come: with one state, only those are broken."""
    model = rbm(np.full((20, 4), 0.1), np.zeros(20), np.zeros(4))
    kernel = kernels.sum_product

    def broken(arena, out, states, *rest):
        (wrong_sum(kernel, 1e-9, False) if states == 1 else kernel)(arena, out, states, *rest)

    monkeypatch.setattr(kernels, "sum_product", broken)
    with pytest.raises(RefutedError, match="product of messages"):
        exact(model, marginals=False)


@pytest.mark.parametrize("name", ["scale_in_place", "shift_in_place", "exp_in_place"])
def test_wrong_rescaling_is_refuted(monkeypatch, name):
    kernel = getattr(tables, name)

    def broken(values, low, high, *args):
        kernel(values, low, high, *args)
        values[low:high] += 1e-7 * np.abs(values[low:high])

    monkeypatch.setattr(tables, name, broken)
    for seed in range(20):  # some strength makes tables leave the ordinary scale and come back
        models = [ising_grid(6, coupling=(-c, c), seed=seed) for c in (30.0, 60.0, 150.0)]
        try:
            for model in models:
                exact(model)
        except RefutedError:
            return
    pytest.fail(f"{name} went wrong unnoticed")


def wrong_spread(kernel, spoil):
    def broken(arena, *args):
        private = next(a for a in args if isinstance(a, np.ndarray) and a.dtype == np.float64)
        kernel(arena, *args)
        spoil(private)

    return broken


def swap_ends(private):
    if private.size:  # a bucket may have no factor of its own
        private[[0, -1]] = private[[-1, 0]]


def shrink(private):
    private *= 1.0 - 1e-8


@pytest.mark.parametrize("spoil", [shrink, swap_ends])
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("spread_ratio", WEAK),
        ("spread_belief", WEAK),
        ("spread_belief", STATES),
        ("spread_belief", STRONG),
    ],
)
def test_wrong_beliefs_are_refuted(monkeypatch, name, model, spoil):
    exact(model)
    monkeypatch.setattr(kernels, name, wrong_spread(getattr(kernels, name), spoil))
    with pytest.raises(RefutedError, match=r"sums to|differs from its own"):
        exact(model)


def test_a_factor_in_the_wrong_bucket_is_refuted(monkeypatch):
    merged = running.Elimination._merged

    def without_last(self, axes, members):
        return merged(self, axes, members[:-1] if len(members) > 1 else members)

    monkeypatch.setattr(running.Elimination, "_merged", without_last)
    with pytest.raises(RefutedError, match="log weight"):
        exact(WEAK, marginals=False)


def test_conditioning_audits_its_sums(monkeypatch):
    cutset = choose_cutset(WEAK, 3.0)
    assert cutset.held.size
    given = ConditionedElimination(WEAK, cutset)
    assert given.audit(np.zeros(36, dtype=np.int64))
    forward = conditioning._forward

    def broken(buckets, base, cards, data):
        forward(buckets, base, cards, data)
        data[WEAK.log_tables.size :] += 1e-9

    monkeypatch.setattr(conditioning, "_forward", broken)
    with pytest.raises(RefutedError, match="second elimination"):
        given.audit(np.zeros(36, dtype=np.int64))


@pytest.mark.skipif(
    not (Path(os.environ.get("TIGHTZ_DATA") or "") / "bnlearn" / "pathfinder.bif").exists(),
    reason="TIGHTZ_DATA does not hold bnlearn/pathfinder.bif",
)
def test_pathfinder():
    from tightz.models.formats.bif import read_bif

    result = exact(read_bif(Path(os.environ["TIGHTZ_DATA"]) / "bnlearn" / "pathfinder.bif"))
    assert result.log_z == pytest.approx(0.0, abs=1e-6)
