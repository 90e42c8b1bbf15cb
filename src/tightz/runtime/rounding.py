"""Sums whose rounding error does not grow with their length."""

from __future__ import annotations

from numba import njit

EPSILON = 2.0**-52
"""Spacing of float64 numbers at one."""


@njit(cache=True, nogil=True)
def add_compensated(total: float, carry: float, term: float) -> tuple[float, float]:
    """One step of compensated summation (Neumaier 1974); the sum is total + carry."""
    new = total + term
    # What the addition lost, recovered exactly from the larger of the two.
    if abs(total) >= abs(term):
        return new, carry + ((total - new) + term)
    return new, carry + ((term - new) + total)
