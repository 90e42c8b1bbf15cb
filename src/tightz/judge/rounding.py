"""How far a float64 computation can be from the real number it stands for.

u = 2^-53 is the largest relative error of one correctly rounded operation. A sum of n terms in any
order differs from the true sum by at most (n - 1) u / (1 - (n - 1) u) * sum |terms| (Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 4.2); `math.fsum` rounds once.
numpy's exp and log are within 4 units in the last place on the platforms numpy tests (its own SIMD
versions included); `LIBRARY` takes 8.
"""

from __future__ import annotations

UNIT = 2.0**-53
"""Relative error of one correctly rounded float64 operation."""

LIBRARY = 8 * UNIT
"""Relative error allowed to exp, log and their kin."""


def summation(count: int, magnitude: float) -> float:
    """Error of a sum of `count` terms whose absolute values add up to `magnitude`, any order.

    Twice the first-order bound, so that the higher orders and the rounding of `magnitude` itself
    are covered for every count below 2^50.
    """
    return 2.0 * max(count, 1) * UNIT * magnitude
