"""One line of the summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`failures` of `cases` broke the promise; `detail` has the worst margin or the first failure.

    A check whose negative control was not caught counts as failed: it could not have seen anything.
    """

    check: str
    cases: int
    failures: int
    detail: str = ""
    control_caught: bool | None = None

    @property
    def passed(self) -> bool:
        return self.failures == 0 and self.cases > 0 and self.control_caught in (None, True)
