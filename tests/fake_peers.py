"""Engines as the runner of `peers` starts them: an honest one, and one for every way to fail."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np

from peers.given import Budget, Case, Refused
from tests import naive


def honest(case: Case, budget: Budget):
    model = case.model()

    def call():
        with np.errstate(divide="ignore"):
            factors = list(zip(model.scopes, map(np.log, model.tables), strict=True))
        log_z, _ = naive.enumerate_model(model.cards, factors, model.evidence)
        print("a library that talks")
        return {"value": float(log_z) + model.log_scale}

    return call


def overflow(case: Case, budget: Budget):
    return lambda: {"value": float("inf")}


def raises_overflow(case: Case, budget: Budget):
    return lambda: {"value": float(10**400)}


def underflow(case: Case, budget: Budget):
    return lambda: {"value": float("-inf")}


def not_a_number(case: Case, budget: Budget):
    return lambda: {"marginals": [[0.5, float("nan")]]}


def hungry(case: Case, budget: Budget):
    return lambda: {"value": float(np.ones(1 << 34)[0])}


def crash(case: Case, budget: Budget):
    return lambda: os.kill(os.getpid(), signal.SIGSEGV)


def endless(case: Case, budget: Budget):
    def call():
        while True:
            pass

    return call


def refuses(case: Case, budget: Budget):
    raise Refused("takes no such model")


def raises(case: Case, budget: Budget):
    return lambda: [][0]


def missing(case: Case, budget: Budget):
    import no_such_library_at_all  # noqa: F401


def leaves(case: Case, budget: Budget):
    return lambda: sys.exit(3)


def posteriors(case: Case, budget: Budget, shift: float = 0.0):
    asked, model = json.loads((case.folder / "asked.json").read_text()), case.model()

    def call():
        found = []
        for seen in asked["evidence"]:
            with np.errstate(divide="ignore"):
                factors = list(zip(model.scopes, map(np.log, model.tables), strict=True))
            log_p, rows = naive.enumerate_model(model.cards, factors, dict(seen))
            rows[0][0] += shift
            named = zip(asked["names"], asked["states"], rows, strict=True)
            posterior = {n: dict(zip(s, map(float, r), strict=True)) for n, s, r in named}
            found.append({"log_p": float(log_p) + model.log_scale, "posterior": posterior})
        return {"found": found, "note": "", "value": 0.0}

    return call


def off(case: Case, budget: Budget):
    return posteriors(case, budget, 2e-6)
