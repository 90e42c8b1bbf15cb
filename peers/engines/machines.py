"""rbms: annealed importance sampling of a Bernoulli RBM in torch, single precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from peers.given import Budget, Case
from peers.settings import CHAINS, TEMPERATURES


def annealed(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    warnings.simplefilter("ignore")
    import torch
    from rbms.bernoulli_bernoulli.classes import BBRBM
    from rbms.partition_function.ais import compute_partition_function_ais

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(case.folder / "rbm.npz") as file:
        parts = [torch.tensor(file[k], dtype=torch.float32) for k in ("weights", "b", "c")]
    machine = BBRBM(*parts)
    compute_partition_function_ais(4, 4, machine)  # scripts compile on first use
    return lambda: {"value": float(compute_partition_function_ais(CHAINS, TEMPERATURES, machine))}
