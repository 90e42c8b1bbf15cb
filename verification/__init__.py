"""The trust suite: `make verify` (about an hour), outside the test suite.

Every check is a function of a `scale` (1.0 is the full size, the tests use a small one) that yields
`Row`s: what was checked on how many cases, how many failed, and what a deliberately wrong twin of
the same check found (the negative control).
"""

from verification.rows import Row

__all__ = ["Row"]
