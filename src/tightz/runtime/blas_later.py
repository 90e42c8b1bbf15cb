"""numba loads scipy.linalg with its first kernel, only to know that it is there: not with us."""

from __future__ import annotations

import sys
from functools import cache


@cache
def blas_later() -> None:
    """Load numba's array functions without scipy.linalg; a fifth of a second less to wait.

    To be called before the first kernel. scipy is a dependency of ours, so the answer to numba's
    question is known; kernels that multiply matrices ask again themselves, and load it then.
    """
    if "numba.np.arraymath" in sys.modules:
        return
    from numba.np import linalg

    asks = getattr(linalg, "ensure_blas", None)
    if asks is None:  # another numba: it loads as it likes
        return
    linalg.ensure_blas = lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = asks
