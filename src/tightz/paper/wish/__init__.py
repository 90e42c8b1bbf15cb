"""WISH: Theorem 2 of the paper, heaviest states under random parities."""

from tightz.paper.wish.method import wish
from tightz.paper.wish.results import WishResult, WishTrial

__all__ = ["WishResult", "WishTrial", "wish"]
