"""What model counting says."""

from __future__ import annotations

from tests.errors.table import Case
from tightz.elimination.clauses import plan_clauses
from tightz.errors import ParameterError

CASES = [
    Case(
        ParameterError,
        "the count is not finished; advance(seconds) until it says True",
        lambda: plan_clauses(2, [[0, 2]]).start().log_z,
    ),
    Case(
        ParameterError,
        "100000 variables and 1 clauses; counting numbers up to 65535 variables and as many "
        "clauses of three or more literals",
        lambda: plan_clauses(100_000, [[0, 2]]),
    ),
]
