"""What can go wrong, as types. Every message names the cause, the place and the remedy."""

from __future__ import annotations

import errno
import numbers
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TightzError(Exception):
    """Base of every error that tightz raises on purpose; the CLI turns it into one line."""


class ModelError(TightzError, ValueError):
    """A model, a model file or evidence that is malformed."""


class UnsupportedModelError(ModelError):
    """A well-formed model that the requested method cannot treat."""


class ParameterError(TightzError, ValueError):
    """A parameter outside its range."""


class ResourceError(TightzError, MemoryError):
    """Work that would need more memory than allowed, refused before anything is allocated."""


class MissingExtraError(TightzError, ImportError):
    """An optional dependency is absent; the message says which install mends it."""


class StoreError(TightzError):
    """A run store that cannot be used as asked; what it holds is left as it is."""


class LostStoreError(StoreError):
    """A run store that another process has taken over."""


class FullDiskError(StoreError):
    """A run store whose disk takes no more."""


def is_full(error: OSError) -> bool:
    """Whether a disk took no more: it is full, or a quota or a limit of a file is reached."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Refuse `value` outside [low, high], naming what came and what was expected."""
    real = isinstance(value, numbers.Real)
    if not real or not low <= value <= high:
        expected = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
        raise ParameterError(f"{name} is {value if real else repr(value)}; expected {expected}")


def require_probability(name: str, value: float) -> None:
    """Refuse `value` outside (0, 1)."""
    real = isinstance(value, numbers.Real)
    if not real or not 0.0 < value < 1.0:
        came = value if real else repr(value)
        raise ParameterError(f"{name} is {came}; expected a probability strictly between 0 and 1")


def require_seconds(name: str, value: float) -> None:
    """Refuse a time limit that is not positive."""
    real = isinstance(value, numbers.Real)
    if not real or not value > 0.0:
        came = value if real else repr(value)
        raise ParameterError(f"{name} is {came}; expected a positive number of seconds")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is none of `choices`."""
    if value not in choices:
        listed = " or ".join([", ".join(map(repr, choices[:-1])), repr(choices[-1])])
        raise ParameterError(f"{name} is {value!r}; expected {listed}")


def require_finite(name: str, values: NDArray[np.float64], where: str = "") -> None:
    """Refuse an array with a NaN or an infinite entry, naming the first; `where` is a place."""
    import numpy as np

    if not np.isfinite(values).all():
        index = np.argwhere(~np.isfinite(values))[0]
        at = f"[{', '.join(map(str, index))}]" if index.size else ""
        raise ModelError(f"{name}{at} is {values[tuple(index)]}; expected a finite number{where}")
