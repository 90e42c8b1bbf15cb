"""Test-wide settings: hypothesis is seeded and has no deadline (kernels compile on first use).

TIGHTZ_HUNT=1000 draws that many fresh random examples per property instead.
"""

from __future__ import annotations

import os

from hypothesis import settings

hunt = os.environ.get("TIGHTZ_HUNT")
settings.register_profile("seeded", deadline=None, derandomize=True)
settings.register_profile("hunt", deadline=None, max_examples=int(hunt or 100))
settings.load_profile("hunt" if hunt else "seeded")

os.environ.setdefault("MPLBACKEND", "Agg")
