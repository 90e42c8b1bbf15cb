"""A q's bound as the judge has it: how its polynomial stands for the model, and the verdict.

Nothing in this module computes a bound: a q writes itself down (`IProjection.distribution`), and
the judge is asked for the number.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.families.projection import IProjection, chart_of
from tightz.judge.collapses import CollapseLink
from tightz.judge.links import EncodingLink, SpinEvidence, SpinLink, lowered
from tightz.judge.products import ProductEvidence
from tightz.judge.spins import SpinMap, SpinTerms
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import SpinEncoding

JENSEN = "every distribution q gives a lower bound on log Z (paper, eq. 2)"


def link_of(encoding: SpinEncoding, collapsed: Collapsed | None = None) -> SpinLink:
    """How the polynomial of `encoding`, or what `collapsed` left of it, stands for its model.

    Make one per run and hand it to every bound: the judge checks it once.
    """
    poly = encoding.polynomial
    if isinstance(encoding.model, SpinPolynomial):
        return polynomial_link(poly, collapsed)
    chart = SpinMap.identity(poly.n) if encoding.coset is None else chart_of(encoding.coset)
    link = EncodingLink(SpinTerms.of(poly), chart)
    return SpinLink(link, None if collapsed is None else collapse_link(collapsed))


def polynomial_link(polynomial: SpinPolynomial, collapsed: Collapsed | None = None) -> SpinLink:
    """For a model that is a polynomial itself: values can be had, verdicts on a graph cannot."""
    if collapsed is not None:
        return SpinLink(None, collapse_link(collapsed))
    n = polynomial.n
    nothing = np.zeros(0, dtype=np.int64)
    return SpinLink(None, CollapseLink(SpinTerms.of(polynomial), np.arange(n), nothing))


def collapse_link(collapsed: Collapsed) -> CollapseLink:
    """How the polynomial that a collapse left stands for the one before it."""
    return CollapseLink(SpinTerms.of(collapsed.polynomial), collapsed.kept, collapsed.order)


def evidence_of(projection: IProjection, link: SpinLink) -> SpinEvidence | None:
    """The projection's q as evidence; None where no state satisfies the parities."""
    if not projection.coset.feasible or projection.log_gamma == -math.inf:
        return None
    return SpinEvidence(link, projection.distribution())


def lower_bound_of(
    projection: IProjection,
    method: str,
    why: str,
    link: SpinLink | None = None,
    seconds: float = 0.0,
) -> Bound:
    """The bound of a projection's q as the judge evaluates it; the projection's own is not read.

    `link` says how the coset's polynomial came about (`link_of`): it must be about the same one.
    """
    if link is None:
        link = polynomial_link(projection.coset.polynomial)
    evidence = evidence_of(projection, link)
    low, rounding = -math.inf, 0.0
    if evidence is not None:
        low, _, rounding = lowered(*evidence.value)
    return Bound(
        Side.LOWER, low, Proof.DETERMINISTIC, method, seconds, 1.0, why,
        rounding=rounding, evidence=evidence,
    )  # fmt: skip


def on_model(bound: Bound, model: FactorGraph | SpinPolynomial) -> Bound:
    """The bound as its evidence proves it for `model`, the roundings of the links included."""
    if bound.evidence is None or isinstance(model, SpinPolynomial):
        return bound
    low, _, rounding = bound.evidence.verdict(model)
    return replace(bound, log_z=low, rounding=rounding)


def mean_field_bound(
    encoding: SpinEncoding, best: IProjection, marginals: Any, link: SpinLink | None
) -> Bound:
    """Plain mean field as the judge evaluates it: on the model's own tables where it can.

    That is where q is a product over the model's variables; where parities were solved, or the
    model is a polynomial, it is on the polynomial.
    """
    model = encoding.model
    if isinstance(model, SpinPolynomial) or encoding.coset is not None:
        return on_model(
            lower_bound_of(best, "mean field", JENSEN, link or link_of(encoding)), model
        )
    if best.log_gamma == -math.inf:
        return lower_bound_of(best, "mean field", JENSEN, link_of(encoding))
    vectors = [q[:d] for q, d in zip(marginals, model.cardinalities.tolist(), strict=True)]
    evidence = ProductEvidence(vectors)
    low, _, rounding = evidence.verdict(model)
    return Bound(
        Side.LOWER, low, Proof.DETERMINISTIC, "mean field", 0.0, 1.0, JENSEN,
        rounding=rounding, evidence=evidence,
    )  # fmt: skip
