"""A plan's answer where a method does not apply."""

from __future__ import annotations

from typing import NamedTuple


class Refused(NamedTuple):
    """Why a method cannot sum a model, in words."""

    reason: str
