"""Lower ends on the spin polynomial: mean field, structured families, the paper's projections."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.errors import UnsupportedModelError
from tightz.families.block import family_for
from tightz.families.evidence import JENSEN, lower_bound_of
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.judge import Audited
from tightz.paper.batches import run_batches
from tightz.paper.mean_field import mean_field
from tightz.paper.trials import TrialPlan, all_positions
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator, stream
from tightz.sampling.certificates import anytime_certificate
from tightz.workspace.findings import Finding, Marginals
from tightz.workspace.working import NARROW, Working
from tightz.workspace.workspace import SEARCH, lifted_means

LEVELS = (1, 2, 4, 6, 8, 10)
"""Numbers of parities whose trials feed the certificate; few, since each is paid for."""

WIDTHS = (2, 4, 6, 8, NARROW)
"""Structured families tried in turn."""


def encoding_of(working: Working) -> SpinEncoding | None:
    """The spins, or None where zeros leave no polynomial or no state."""
    try:
        encoding = working.encoding
    except UnsupportedModelError:
        return None
    return None if encoding.reason else encoding


def contradiction(working: Working, clock: Clock) -> Iterator[Bound]:
    """Z = 0 where linear algebra over the parities in the tables shows it."""
    try:
        reason = working.encoding.reason
    except UnsupportedModelError:
        return
    if reason:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "linear algebra", confidence=1.0,
            why=reason, evidence=Audited(-math.inf),
        )  # fmt: skip


def plain_mean_field(working: Working, clock: Clock) -> Iterator[Finding]:
    """Mean field from a few random starts: a first lower end."""
    encoding = encoding_of(working)
    if encoding is None or encoding.bits is not None:  # a table per variable does better there
        return
    for restarts in (1, 8):
        r = mean_field(
            encoding.polynomial,
            family=MeanField(restarts),
            seed=stream(working.seed, restarts),
            link=working.link,
        )
        marginals = list(encoding.marginals(1.0 - 2.0 * r.marginals[:, 1]))
        yield Finding(r.bound, Marginals(marginals, "mean field", r.log_z))


def structured(working: Working, clock: Clock) -> Iterator[Finding]:
    """Mean field from the states found, then families of growing width, on the collapsed model."""
    if encoding_of(working) is None:
        return
    spins = working.spins
    coset = Coset.build(spins.polynomial)
    best = -math.inf
    restarts = 4 if spins.polynomial.n_terms < 20_000 else 1
    for width in (0, *WIDTHS):
        family = (
            StructuredMeanField(width=width, restarts=restarts)
            if width
            else family_for(spins.polynomial, restarts=4 * restarts)
        )
        q = family.project(coset, generator(working.seed, SEARCH, width), spins.states)
        name = f"structured mean field, width {width}" if width else "mean field, tempering starts"
        offered = None
        if q.log_gamma > best:
            best = q.log_gamma
            if spins.collapsed is None:
                marginals = spins.encoding.marginals_of(q.expectations)
            else:
                marginals = spins.encoding.marginals(lifted_means(q, spins.collapsed))
            offered = Marginals(list(marginals), name, best)
        yield Finding(lower_bound_of(q, name, JENSEN, spins.link), offered)


def projections(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """The paper's trials round by round, read through the anytime certificate as they come."""
    if encoding_of(working) is None:
        return
    spins = working.spins
    levels = [m for m in LEVELS if m <= spins.polynomial.n]
    if not levels:
        return
    plan = TrialPlan(
        polynomial=spins.polynomial,
        family=family_for(spins.polynomial, restarts=8),
        hashing=DenseParity(),
        pivots=spins.pivots(),
        seed=working.seed,
        pairs=np.zeros((0, 2), dtype=np.int64),
        states=spins.states,
        lift=False,
    )
    endless = all_positions(levels, sys.maxsize)
    values: list[float] = []
    next_look = 1
    for trial in run_batches(plan, endless, executor=working.executor, threads=1, batch=1):
        m, log_gamma = int(trial.levels[0]), float(trial.log_gamma[0])
        values.append(log_gamma + m * math.log(2.0))
        rounds, begun = divmod(len(values), len(levels))
        if begun:
            continue
        if rounds < next_look:
            yield Finding()  # a round is a step: the driver may prefer another stream
            continue
        # A look costs a search over z: geometric spacing keeps looking cheaper than trying.
        # The certificate holds at any stopping time, so when to look is free to choose.
        next_look = math.ceil(1.3 * rounds) + 1
        table = np.array(values).reshape(rounds, -1).T
        yield Bound(
            Side.LOWER, anytime_certificate(table, working.delta), Proof.CONFIDENCE,
            f"projections, {rounds} trials at {len(levels)} levels",
            confidence=1.0 - working.delta,
            why="a mixture of bets over stakes and levels reached 1/delta (Ville)",
        )  # fmt: skip
