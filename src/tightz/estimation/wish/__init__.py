"""WISH: Theorem 2 of the paper, heaviest states under random parities."""

from tightz.estimation.wish.method import wish
from tightz.estimation.wish.results import WishResult, WishTrial

__all__ = ["WishResult", "WishTrial", "wish"]
