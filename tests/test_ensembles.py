"""Builders of statistical physics: every neighbour once, every energy as it is written."""

from __future__ import annotations

import itertools
import math

import networkx
import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner

import tightz as tz
from tests import naive
from tightz.cli.main import main
from tightz.models.temperature import at_beta


def pairs_of(model):
    return [scope for scope, _ in model.factors if len(scope) == 2]


def degrees_of(model):
    pairs = pairs_of(model)
    assert len({tuple(sorted(pair)) for pair in pairs}) == len(pairs)
    return np.bincount(np.array(pairs).ravel(), minlength=model.n_variables)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 4, 5), (3, 3, 3, 3)])
def test_a_periodic_lattice_has_two_neighbours_a_direction(shape):
    model = tz.ising_lattice(shape, periodic=True)
    assert (degrees_of(model) == 2 * len(shape)).all()
    site = np.array(list(np.ndindex(*shape)))
    for a, b in pairs_of(model):
        step = np.abs(site[a] - site[b])
        step = np.minimum(step, np.array(shape) - step)
        assert sorted(step.tolist()) == [0] * (len(shape) - 1) + [1]


def test_an_open_lattice_and_one_with_short_sides():
    open_ends = tz.ising_lattice((3, 4, 5))
    assert len(pairs_of(open_ends)) == 2 * 4 * 5 + 3 * 3 * 5 + 3 * 4 * 4
    short = tz.ising_lattice((2, 3), periodic=True)
    assert len(pairs_of(short)) == 3 + 2 * 3
    assert tz.ising_lattice(4).n_variables == 4
    assert len(pairs_of(tz.ising_lattice((1, 1)))) == 0


def test_a_plane_lattice_is_the_grid():
    grid = tz.ising_grid(4, 5, coupling=0.7, field=0.2, periodic=True)
    lattice = tz.ising_lattice((4, 5), coupling=0.7, field=0.2, periodic=True)
    assert tz.exact(lattice).log_z == pytest.approx(tz.exact(grid).log_z, abs=1e-12)
    assert lattice.layout == grid.layout


def test_triangular_lattices():
    model = tz.ising_triangular(4, 5, periodic=True)
    assert (degrees_of(model) == 6).all()
    assert len(pairs_of(tz.ising_triangular(3, 4))) == 3 * 3 + 2 * 4 + 2 * 3
    for coupling in (-1.0, 0.2, 0.5):
        found = tz.exact(tz.ising_triangular(4, coupling=coupling, periodic=True))
        assert found.log_z == pytest.approx(naive.triangular_log_z(4, 4, coupling), abs=1e-10)
    with pytest.raises(tz.errors.ParameterError, match=r"rows is 2; .* at least 3"):
        tz.ising_triangular(2, periodic=True)


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (4, 3), (10, 3), (50, 4), (7, 6), (9, 0)])
@pytest.mark.parametrize("seed", range(5))
def test_random_regular_graphs_are_regular(n, degree, seed):
    model = tz.random_regular(n, degree, seed=seed)
    assert (degrees_of(model) == degree).all() if degree else not pairs_of(model)
    assert model.digest == tz.random_regular(n, degree, seed=seed).digest


def test_distributions():
    glass = tz.ising_lattice((30, 30), coupling=tz.PlusMinus(0.5, share=0.25), seed=1)
    weights = np.array([table[0, 0] for scope, table in glass.factors if len(scope) == 2])
    assert set(weights) == {0.5, -0.5}
    share, error = (weights > 0).mean(), math.sqrt(0.25 * 0.75 / weights.size)
    assert abs(share - 0.25) < 5 * error
    normal = tz.Normal(1.0, 2.0).draw(np.random.default_rng(0), 10_000)
    assert normal.mean() == pytest.approx(1.0, abs=0.1)
    assert normal.std() == pytest.approx(2.0, abs=0.1)
    assert (str(tz.PlusMinus()), str(tz.Normal())) == ("+-1", "N(0, 1^2)")


def test_sherrington_kirkpatrick_has_couplings_of_variance_one_over_n():
    model = tz.sherrington_kirkpatrick(60, field=0.3, seed=0)
    weights = np.array([table[0, 0] for scope, table in model.factors if len(scope) == 2])
    assert weights.size == 60 * 59 // 2
    assert weights.var() * 60 == pytest.approx(1.0, abs=0.15)
    assert model.factor(5).log_table.tolist() == [0.3, -0.3]


def test_hopfield_by_its_definition_and_by_counting():
    rng = np.random.default_rng(2)
    xi = np.where(rng.random((3, 8)) < 0.5, 1.0, -1.0)
    model = tz.hopfield(xi)
    states = np.array(list(itertools.product([0, 1], repeat=8)))
    overlaps = (1 - 2 * states) @ xi.T
    energies = ((overlaps**2).sum(axis=1) / 8 - 3) / 2
    np.testing.assert_allclose(model.log_weight(states), energies, atol=1e-12)
    found = tz.exact(at_beta(model, 1.7)).log_z
    assert found == pytest.approx(naive.pattern_log_z(xi, 1.7), abs=1e-10)
    assert tz.hopfield(2, 30, seed=1).n_variables == 30


def test_onsager_is_the_limit_of_kaufman():
    for beta in (0.3, 0.4406868, 0.6):
        limit = naive.onsager_log_z(beta)
        gaps = [naive.kaufman_log_z(side, side, beta) / side**2 - limit for side in (16, 64)]
        assert abs(gaps[1]) < abs(gaps[0]) / 8
        assert abs(gaps[1]) < 1e-3


def test_ising_is_the_same_from_every_form():
    rng = np.random.default_rng(4)
    matrix = np.triu(rng.normal(size=(6, 6)), 1) * (rng.random((6, 6)) < 0.6)
    graph = networkx.Graph()
    graph.add_nodes_from(range(6))
    listed = {(i, j): matrix[i, j] for i in range(6) for j in range(6) if matrix[i, j]}
    graph.add_weighted_edges_from([(i, j, w) for (i, j), w in listed.items()])
    fields = rng.normal(size=6)
    forms = [
        matrix, matrix + matrix.T, matrix.T, scipy.sparse.csr_matrix(matrix),
        scipy.sparse.coo_array(matrix + matrix.T), listed, graph,
    ]  # fmt: skip
    curves = [tz.free_energy(tz.ising(form, fields), [1.3], time_limit=60.0) for form in forms]
    for r in curves:
        assert r.log_zs.value[0] == pytest.approx(curves[0].log_zs.value[0], abs=1e-12)
        assert r.energy.value[0] == pytest.approx(curves[0].energy.value[0], abs=1e-11)


@pytest.mark.parametrize(
    ("words", "spins", "made"),
    [
        ("lattice 3 3 3 --plus-minus 1 --periodic", 27, 81),
        ("lattice 4 --coupling -1 --field 0.5", 4, 3),
        ("lattice 3 3 --coupling 0 1", 9, 12),
        ("triangular 4 --coupling -1 --periodic", 16, 48),
        ("triangular 3 4 --normal 0.5", 12, 23),
        ("random-regular 20 --field -1 1", 20, 30),
        ("sk 8", 8, 28),
        ("hopfield 1 10", 10, 45),
    ],
)
def test_generate(words, spins, made, tmp_path):
    path = str(tmp_path / "m.uai")
    done = CliRunner().invoke(main, ["generate", *words.split(), "-o", path, "--seed", "3"])
    assert done.exit_code == 0, done.output
    model = tz.read(path)
    assert model.n_variables == spins
    assert len(pairs_of(model)) == made
