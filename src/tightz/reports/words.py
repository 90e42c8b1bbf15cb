"""Bounds in words: the same sentences on the page and in notebooks."""

from __future__ import annotations

import math

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.bounds import figure as number
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid
from tightz.reports.data import ReportData


def count(number: int, noun: str) -> str:
    """`1 bound`, `2,000 bounds`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def describe(model: FactorGraph) -> str:
    """Kind and sizes of a model in one line."""
    cards = np.unique(model.cardinalities)
    states = "no" if not cards.size else str(cards[-1]) if cards.size == 1 else f"up to {cards[-1]}"
    layout = model.layout
    if isinstance(layout, Grid):
        kind = f"{layout.rows} x {layout.cols} {'torus' if layout.periodic else 'grid'}: "
    elif isinstance(layout, Bipartite):
        kind = f"two layers of {layout.visible} and {layout.hidden}: "
    else:
        kind = ""
    seen = f", {len(model.evidence):,} observed" if model.evidence else ""
    named = ""
    if model.names:
        named = f": {', '.join(model.names[:8])}{', ...' if model.n_variables > 8 else ''}"
    return (
        f"{kind}{model.n_variables:,} variables of {states} states, {model.n_factors:,} factors "
        f"of arity up to {model.arities.max(initial=0)}{seen}{named}"
    )


def headline(data: ReportData) -> str:
    """The answer in a sentence or two."""
    sure, likely = _certain(data), _likely(data)
    return f"{sure} {likely}" if likely else sure


def _likely(data: ReportData) -> str:
    """What the ends with a confidence add to those that hold always."""
    low, high = data.confident
    random = [b for b in (low, high) if b is not None and b.proof is Proof.CONFIDENCE]
    if data.exact is not None or not any(math.isfinite(b.log_z) for b in random):
        return ""
    told = random if len(random) == 1 else [b for b in (low, high) if b is not None]
    words = {Side.LOWER: "at least", Side.UPPER: "at most"}
    text = " and ".join(f"{words[b.side]} {number(b.log_z)}" for b in told)
    width = f" (width {span(low, high)})" if low is not None and high is not None else ""
    return f"With confidence {data.confidence:g} it is {text}{width}."


def span(low: Bound | None, high: Bound | None) -> str:
    """The width between two ends, to a few digits; of a narrow one more than `number` shows."""
    return "unknown" if low is None or high is None else f"{high.log_z - low.log_z:.4g}"


def between(low: Bound | None, high: Bound | None) -> str:
    """`[1.5, 2.5]`, `>= 1.5` or `<= 2.5`: what two ends, or the one there is, say."""
    if low is None and high is None:
        return "nothing"
    if low is None or high is None:
        one = low or high
        assert one is not None
        return f"{one.side.sign} {number(one.log_z)}"
    return f"[{number(low.log_z)}, {number(high.log_z)}]"


def _certain(data: ReportData) -> str:
    exact = data.exact
    if exact is not None:
        if exact.log_z == -math.inf:
            return "The partition function is zero: no state has weight."
        return f"log Z = {number(exact.log_z, 8)}, exactly."
    low, high = data.lower, data.upper
    if low is not None and high is not None:
        if low.log_z - high.log_z > 1e-9 * max(1.0, abs(low.log_z)):
            return (
                f"The ends contradict each other: {number(low.log_z)} <= log Z <= "
                f"{number(high.log_z)}. This is a bug of tightz; please report it."
            )
        width = number(high.log_z - low.log_z)
        return f"log Z lies between {number(low.log_z)} and {number(high.log_z)} (width {width})."
    if low is not None:
        return f"log Z is at least {number(low.log_z)}; no upper end was proven for certain."
    if high is not None:
        return f"log Z is at most {number(high.log_z)}; no lower end was proven for certain."
    if data.estimate is not None:
        return f"log Z is estimated at {number(data.estimate)}; nothing is proven."
    return "Nothing is known about log Z yet."


def proofs(data: ReportData) -> list[str]:
    """What was proven and how, one sentence each."""
    out: list[str] = []
    if data.exact is not None:
        out.append(f"The value is exact. {_because(data.exact)}")
        return out
    for end, bound in (("lower", data.lower), ("upper", data.upper)):
        if bound is None:
            out.append(f"No {end} end holds always: no method of this run gave a finite one.")
        else:
            sign = bound.side.sign
            out.append(
                f"log Z {sign} {number(bound.log_z)} holds always, with no probability involved. "
                f"{_because(bound)}"
            )
    for bound in (data.confident_lower, data.confident_upper):
        if bound is not None:
            out.append(_confidence(bound, data))
    if not math.isnan(data.together):
        out.append(
            f"Together, log Z in {between(*data.confident)} with confidence {data.confidence:g}: "
            "both ends, at any stopping time, so the run may be watched and stopped when it "
            "suffices."
        )
    if data.estimate is not None:
        error = data.estimate_error
        spread = f" with a standard error of {error:.4g}" if math.isfinite(error) else ""
        source = f" ({data.estimate_source})" if data.estimate_source else ""
        out.append(
            f"log Z ~ {number(data.estimate)}{spread} is an estimate{source}. Nothing about it is "
            "proven."
        )
    return out


def _confidence(bound: Bound, data: ReportData) -> str:
    delta = 1.0 - (bound.confidence if bound.confidence is not None else math.nan)
    text = (
        f"log Z {bound.side.sign} {number(bound.log_z)} holds with confidence "
        f"{bound.confidence:g}: over the random draws of such a run it fails with probability at "
        f"most {delta:.3g}. {_because(bound)}"
    )
    if bound not in data.confident:
        text += " The end that holds always is better here."
    return text


def _because(bound: Bound) -> str:
    why = f": {bound.why}" if bound.why else ""
    return f"Proven by {bound.method}{why}."


def assumptions(data: ReportData) -> list[str]:
    """What every statement on the page rests on."""
    out = [
        "The model is the one with the digest below; log Z is its natural log partition function "
        "given the evidence.",
        "Bounds that hold always were evaluated from explicit evidence by code that shares nothing "
        "with their makers, in float64, the rounding of these sums taken outward.",
    ]
    random = [b for b in (data.confident_lower, data.confident_upper) if b is not None]
    if random or data.statements:
        out.append(
            "Statements with a confidence take the pseudo-random draws as independent and uniform. "
            "Infeasible draws count as Z(A, b) = 0; none was redrawn."
        )
    if data.statements:
        out.append(
            "An end of a theorem whose assumptions did not hold is shown as it would read and "
            "marked; it is not a bound."
        )
    return out


def kind_of(bound: Bound) -> str:
    """The series a bound is part of: lower, upper, confident lower, confident upper, exact, ..."""
    if bound.side is Side.BOTH:
        return "exact"
    if bound.side is Side.ESTIMATE or bound.proof in (Proof.NONE, Proof.IN_EXPECTATION):
        return "estimate"
    sure = bound.proof is Proof.DETERMINISTIC
    return bound.side.value if sure else f"confident {bound.side.value}"
