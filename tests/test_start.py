"""What a fresh process loads: a small model does not wait for what it does not need."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import tightz as tz
from tightz.elimination.graph import joined, scopes_from
from tightz.interval import portfolio
from tightz.interval.opening import AFTER
from tightz.runtime.kernels.farm import prepare
from tightz.sampling.annealed import annealed
from tightz.sampling.calibration import _student
from tightz.workspace.working import name_of

HEAVY = (
    "scipy.stats", "scipy.special", "scipy.linalg", "scipy.sparse", "scipy.optimize", "numpy.f2py",
    "matplotlib", "networkx", "flint", "rich", "dask", "distributed", "ortools", "pooch", "h5py",
    "cotengra", "asyncio", "sqlite3", "numba_cuda", "numba.cuda",
)  # fmt: skip
"""Not scipy itself: numba imports it to read its version."""

UNUSED = (
    "tightz.paper", "tightz.splitting", "tightz.reports", "tightz.uppers", "tightz.families",
    "tightz.search", "tightz.runtime.store", "tightz.runtime.cluster", "tightz.interval.portfolio",
    "tightz.elimination.planar", "tightz.elimination.clauses", "tightz.elimination.gpu",
)  # fmt: skip
"""Parts of tightz that an exact sum of a small model does without."""


def loaded(code: str) -> set[str]:
    """Every module that a fresh process has loaded after `code`, with the packages around it."""
    script = f"import sys\n{code}\nprint('LOADED', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(out.stdout.split("LOADED")[-1].split())


def found(names: tuple[str, ...], code: str) -> list[str]:
    return sorted(set(names) & loaded(code))


def test_importing_the_package_loads_next_to_nothing():
    assert (
        found((*HEAVY, "numpy", "numba", "scipy", "click", "tightz.models"), "import tightz") == []
    )


def test_help_loads_click_only():
    code = "from tightz.cli.main import main\nmain(['--help'], standalone_mode=False)"
    assert found((*HEAVY, "numpy", "numba", "scipy", "tightz.models"), code) == []


def test_the_main_call_imports_no_more_than_an_exact_sum_needs():
    code = "import tightz.interval.log_partition"
    assert found((*HEAVY, *UNUSED), code) == []


def test_a_small_model_is_solved_with_no_more():
    prepare("opening", "spins")  # a first run does more
    code = "import tightz as tz\ntz.log_partition(tz.ising_grid(4, seed=0))"
    assert found((*HEAVY, *UNUSED), code) == []


def test_without_a_driver_the_device_is_not_looked_at():
    code = (
        "import os\n"
        "os.environ.pop('NUMBA_ENABLE_CUDASIM', None)\n"
        "from tightz.runtime import gpu\n"
        "gpu._has_driver = lambda: False\n"
        "assert 'nvidia-smi' in gpu.why_no_device()"
    )
    assert found(("numba.cuda", "tightz.runtime.gpu.device"), code) == []


def test_the_names_of_streams_are_those_of_the_portfolio():
    launched = {
        "annealing": (annealed,),
        "elimination": (portfolio.quadratic,),
        "tempering": portfolio.FROM_STATES_DENSE,
    }
    assert {k: tuple(map(name_of, v)) for k, v in launched.items()} == AFTER
    assert {*map(name_of, portfolio.FROM_STATES)} <= {*AFTER["tempering"]}


def test_a_module_that_is_loaded_is_found():
    assert found(("scipy.stats", "sqlite3", "click"), "import sqlite3") == ["sqlite3"]


def test_matrix_products_work_though_numba_was_told_to_load_blas_later():
    code = (
        "import numpy as np, numba\n"
        "from tightz.runtime.blas_later import blas_later\n"
        "blas_later()\n"
        "assert 'scipy.linalg' not in sys.modules\n"
        "product = numba.njit(lambda a, b: a @ b)\n"
        "a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)\n"
        "assert (product(a, b) == a @ b).all()\n"
        "inverse = numba.njit(lambda a: np.linalg.inv(a))\n"
        "assert (inverse(2.0 * np.eye(3)) == 0.5 * np.eye(3)).all()"
    )
    assert "scipy.linalg" in loaded(code)


# The same numbers without the modules that were heavy ---------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 31, 100, 10_000])
def test_students_quantile_is_that_of_scipy_stats(freedom):
    assert _student(freedom) == float(stats.t.ppf(0.975, freedom)) / 1.96


@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_components_are_labelled_as_scipy_labels_them(n):
    rng = np.random.default_rng(n)
    for count in range(n):
        rows = [rng.choice(n, size=min(n, k % 4), replace=False) for k in range(count)]
        ends = [(row[0], v) for row in rows for v in row]
        u, v = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        graph = coo_array((np.ones(u.size, np.int8), (u, v)), shape=(n, n))
        _, label = connected_components(graph, directed=False)
        np.testing.assert_array_equal(joined(scopes_from(n, rows)), label)


def test_without_marginals_log_z_is_the_same():
    prepare("opening", "spins")
    model = tz.ising_grid(5, coupling=(-3, 3), seed=1)
    whole, bare = (tz.log_partition(model, seed=0, marginals=m) for m in (True, False))
    assert bare.marginals is None
    assert bare.marginal_status is None
    assert whole.marginals is not None
    assert (bare.lower, bare.upper) == (whole.lower, whole.upper)
    assert [b.log_z for b in bare.bounds] == [b.log_z for b in whole.bounds]
