"""What can go wrong, as types. Every message names the cause, the place and the remedy."""

from __future__ import annotations


class TightzError(Exception):
    """Base of every error that tightz raises on purpose; the CLI turns it into exit code 2."""


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


def require_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Refuse `value` outside [low, high], naming what came and what was expected."""
    if not low <= value <= high:
        expected = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
        raise ParameterError(f"{name} is {value}; expected {expected}")
