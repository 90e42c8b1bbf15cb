"""dwave-samplers: tree decomposition (exact), and simulated annealing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.given import Budget, Case, ising

READS, SWEEPS = 100, 1000
"""Annealing runs, and sweeps of each: the library's own default of sweeps."""


def exact(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from dwave.samplers import TreeDecompositionSampler

    quadratic, constant, _ = _quadratic(case)

    def call() -> dict[str, Any]:
        found = TreeDecompositionSampler().sample(quadratic, num_reads=1, beta=1.0, seed=0)
        return {"value": float(found.info["log_partition_function"]) + constant}

    return call


def marginals(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from dwave.samplers import TreeDecompositionSampler

    quadratic, _, count = _quadratic(case)

    def call() -> dict[str, Any]:
        found = TreeDecompositionSampler().sample(
            quadratic, num_reads=1, beta=1.0, marginals=True, seed=0
        )
        up = [float(found.info["variable_marginals"][v]) for v in range(count)]
        return {"marginals": [[1.0 - p, p] for p in up]}

    return call


def heaviest_tree(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from dwave.samplers import TreeDecompositionSolver

    quadratic, _, count = _quadratic(case)
    return lambda: _state(TreeDecompositionSolver().sample(quadratic), count)


def heaviest_annealed(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from dwave.samplers import SimulatedAnnealingSampler

    quadratic, _, count = _quadratic(case)

    def call() -> dict[str, Any]:
        sampler = SimulatedAnnealingSampler()
        return _state(sampler.sample(quadratic, num_reads=READS, num_sweeps=SWEEPS, seed=0), count)

    return call


def _quadratic(case: Case) -> tuple[Any, float, int]:
    """Its energies are -log p~, at beta 1."""
    import dimod

    fields, couplings, constant = ising(case.model())
    weights = {v: -float(h) for v, h in enumerate(fields)}
    pairs = {pair: -j for pair, j in couplings.items()}
    return dimod.BinaryQuadraticModel.from_ising(weights, pairs), constant, len(fields)


def _state(found: Any, count: int) -> dict[str, Any]:
    first = found.first.sample
    return {"state": [int(first[v] > 0) for v in range(count)]}
