"""States ordered by what mean field makes of them.

The heaviest states are not the best starts on a dense model: what counts is the value that mean
field climbs to, and samples at temperature 1 often climb higher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.families.mean_field import MeanField
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset


def rank(
    polynomial: SpinPolynomial, states: NDArray[np.int8]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """One state per optimum of mean field that `states` lead to, best first; the best's means."""
    coset = Coset.build(polynomial)
    climbed = MeanField().ascend_from(coset, states.astype(np.float64))
    order = np.argsort(-climbed.log_gammas, kind="stable")
    values = climbed.log_gammas[order]
    # Many states climb to one optimum: one of them stands for it, so that restarts differ.
    new = np.diff(values, prepend=np.inf) < -1e-5  # equal values: the same optimum
    return states[order[new]], climbed.means
