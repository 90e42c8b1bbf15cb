"""The deterministic upper bounds under one name."""

from __future__ import annotations

from tightz.errors import ParameterError
from tightz.models.given import GraphOrPath, given_model
from tightz.models.prepared import prepared
from tightz.uppers.mini_bucket import MiniBucket, MiniBucketResult, mini_bucket
from tightz.uppers.quadratic import Quadratic, QuadraticResult, quadratic
from tightz.uppers.tree_reweighted import (
    TreeReweighted,
    TreeReweightedResult,
    tree_reweighted,
)


@prepared("upper_bound")
def upper_bound(
    model: GraphOrPath, *, method: TreeReweighted | MiniBucket | Quadratic | None = None
) -> TreeReweightedResult | MiniBucketResult | QuadraticResult:
    """A deterministic upper bound on log Z; `.log_z` of the result is valid converged or not.

    It is the judge's value, with `.rounding` (nats) already added; `.bound.evidence` proves it.

    `method` is `MiniBucket(ibound=10)` (any model, the default), `TreeReweighted()` (pairwise
    models) or `Quadratic()` (pairwise models of two states a variable; best where couplings are
    dense).
    """
    model = given_model(model, "upper_bound", only="FactorGraph")
    if isinstance(method, TreeReweighted):
        return tree_reweighted(model, method)
    if isinstance(method, Quadratic):
        return quadratic(model, method)
    if method is None or isinstance(method, MiniBucket):
        return mini_bucket(model, method)
    raise ParameterError(
        f"method is {method!r}; expected TreeReweighted(...), MiniBucket(...) or Quadratic(...)"
    )
