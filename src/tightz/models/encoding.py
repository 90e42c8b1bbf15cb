"""From a model to the spins that the methods work on, and back to the model's variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.models.bits import BitModel, to_bits
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial

Model = FactorGraph | SpinPolynomial


@dataclass(frozen=True, eq=False)
class SpinEncoding:
    """A model's polynomial over the spins of its unobserved variables.

    `variables[i]` is the model variable behind spin i; observed and one-state variables have no
    spin, and one of more than two states (`multivalued`) has several: `bits` knows which.
    State 0 of a binary variable is spin +1.
    """

    model: Model
    polynomial: SpinPolynomial
    variables: NDArray[np.int64]
    bits: BitModel | None = None

    def marginals(self, spin_means: NDArray[np.float64]) -> Any:
        """The probability of each state of every model variable, evidence included.

        An array (n, 2), or (n, d) where all variables have d states, otherwise a list of vectors.
        The bits of one variable are taken as independent (see `BitModel.marginals`).
        """
        if isinstance(self.model, SpinPolynomial):
            return np.stack([(1 + spin_means) / 2, (1 - spin_means) / 2], axis=1)
        if self.bits is not None:
            return self._by_bits(self.model, self.bits, (1.0 - spin_means) / 2.0)
        out = np.zeros((self.model.n_variables, 2))
        out[:, 0] = 1.0
        for v, state in self.model.evidence.items():
            out[v] = np.arange(2) == state
        out[self.variables, 0] = (1.0 + spin_means) / 2.0
        out[self.variables, 1] = (1.0 - spin_means) / 2.0
        return out

    def _by_bits(self, model: FactorGraph, bits: BitModel, ones: NDArray[np.float64]) -> Any:
        out = [np.zeros(int(d)) for d in model.cardinalities]
        for v in range(model.n_variables):
            out[v][model.evidence.get(v, 0)] = 1.0
        free = np.unique(self.variables)
        for v, marginal in zip(free, bits.marginals(ones), strict=True):
            out[v] = marginal
        return np.array(out) if len(set(model.cardinalities.tolist())) == 1 else out

    def spread(self, spin_spread: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) standard deviation of P(state 1) per model variable; 0 where it is certain.

        For a variable of several bits: the largest of P(bit = 1).
        """
        if isinstance(self.model, SpinPolynomial):
            return spin_spread / 2.0
        out = np.zeros(self.model.n_variables)
        if self.bits is None:
            out[self.variables] = spin_spread / 2.0
        else:
            with np.errstate(invalid="ignore"):  # NaN where Z = 0
                np.maximum.at(out, self.variables, spin_spread / 2.0)
        return out


def encode(model: Model, *, multivalued: bool = False) -> SpinEncoding:
    """Observe the evidence and expand what remains; refuses tables with zeros.

    `multivalued` writes variables of more than two states in bits, which keeps Z; without it they
    are refused. It is for callers that ask for Z and marginals: the heaviest state in bits need
    not be the heaviest of the model, since the codes of one state share its weight.
    """
    if isinstance(model, SpinPolynomial):
        return SpinEncoding(model, model, np.arange(model.n))
    lone = np.flatnonzero(model.cardinalities == 1)
    reduced, variables = model.with_evidence(dict.fromkeys(lone.tolist(), 0)).condition()
    if multivalued and (reduced.cardinalities > 2).any():
        bits = to_bits(reduced)
        owner = np.repeat(variables, np.diff(bits.ptr))
        return SpinEncoding(model, SpinPolynomial.from_factor_graph(bits.binary), owner, bits)
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
