"""From a model to the spins that the methods work on, and back to the model's variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial

Model = FactorGraph | SpinPolynomial


@dataclass(frozen=True, eq=False)
class SpinEncoding:
    """A model's polynomial over its unobserved binary variables.

    `variables[i]` is the model variable behind spin i; observed and one-state variables have no
    spin. State 0 is spin +1.
    """

    model: Model
    polynomial: SpinPolynomial
    variables: NDArray[np.int64]

    def marginals(self, spin_means: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2): the probability of each state of every model variable, evidence included."""
        if isinstance(self.model, SpinPolynomial):
            return np.stack([(1 + spin_means) / 2, (1 - spin_means) / 2], axis=1)
        out = np.zeros((self.model.n_variables, 2))
        out[:, 0] = 1.0
        for v, state in self.model.evidence.items():
            out[v] = np.arange(2) == state
        out[self.variables, 0] = (1.0 + spin_means) / 2.0
        out[self.variables, 1] = (1.0 - spin_means) / 2.0
        return out

    def spread(self, spin_spread: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) standard deviation of P(state 1) per model variable; 0 where it is certain."""
        if isinstance(self.model, SpinPolynomial):
            return spin_spread / 2.0
        out = np.zeros(self.model.n_variables)
        out[self.variables] = spin_spread / 2.0
        return out


def encode(model: Model) -> SpinEncoding:
    """Observe the evidence and expand what remains; refuses what is not binary and positive."""
    if isinstance(model, SpinPolynomial):
        return SpinEncoding(model, model, np.arange(model.n))
    lone = np.flatnonzero(model.cardinalities == 1)
    reduced, variables = model.with_evidence(dict.fromkeys(lone.tolist(), 0)).condition()
    return SpinEncoding(model, SpinPolynomial.from_factor_graph(reduced), variables)


def model_digest(model: Model) -> str:
    """The model's identity, for provenance."""
    if isinstance(model, FactorGraph):
        return model.digest
    import hashlib

    h = hashlib.sha256(f"{model.n} {model.constant!r}".encode())
    for array in (model.ptr, model.spins, model.theta):
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()
