"""pyganak, an exact model counter with weights, and pyapproxmc, an approximate one without."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from peers.given import Budget, Case, Refused


def ganak(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pyganak import Counter, WeightedCounter

    count, clauses, weights = read(case.file("cnf"))
    counter = WeightedCounter() if weights else Counter()
    counter.new_vars(count)
    counter.add_clauses(clauses)
    for literal, weight in weights.items():
        counter.set_lit_weight(literal, weight)

    def call() -> dict[str, Any]:
        total = counter.count()
        return {"value": math.log(total) if total > 0 else -math.inf}

    return call


def approxmc(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pyapproxmc

    count, clauses, weights = read(case.file("cnf"))
    if weights:
        raise Refused("takes no weights")
    counter = pyapproxmc.Counter(seed=1, epsilon=0.8, delta=0.05)
    for clause in clauses:
        counter.add_clause(clause)

    def call() -> dict[str, Any]:
        cells, hashes = counter.count(list(range(1, count + 1)))
        return {"value": math.log(cells) + hashes * math.log(2.0)}

    return call


def read(path: str) -> tuple[int, list[list[int]], dict[int, float]]:
    """Variables, clauses and weights of literals, of a DIMACS file as tightz writes it."""
    count, clauses, weights = 0, [], {}
    with open(path) as file:
        for line in file:
            words = line.split()
            if not words:
                continue
            if words[0] == "p":
                count = int(words[2])
            elif words[:3] == ["c", "p", "weight"]:
                weights[int(words[3])] = float(words[4])
            elif words[0] != "c":
                clauses.append([int(word) for word in words[:-1]])
    return count, clauses, weights
