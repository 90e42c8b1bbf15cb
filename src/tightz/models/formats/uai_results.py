"""UAI result files: PR holds log10 Z, MAR one marginal per variable."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, Words, write_atomically
from tightz.models.inputs import real_array, shown

_SLACK = 0.01
"""How far a printed marginal may be from summing to 1: reference files round to 6 digits."""


def read_pr(path: FilePath) -> float:
    """log Z (natural log) from a PR result file, which holds log10 Z. -inf is allowed."""
    words = Words(path)
    words.require_keyword("PR")
    if len(words) == 1 or len(words) > 3 or (len(words) == 3 and words.raw(1) != b"1"):
        words.fail(f"{len(words) - 1} words follow PR; expected log10 Z alone (or 1 and log10 Z)")
    log_z = float(words.values[-1]) * math.log(10.0)
    if not log_z < math.inf:
        words.fail(f"log10 Z is {words.shown(-1)}; expected a finite number or -inf", -1)
    return log_z


def write_pr(log_z: float, path: FilePath) -> None:
    """Write log Z (natural log) as a PR result file, which holds log10 Z."""
    if not isinstance(log_z, numbers.Real) or not log_z < math.inf:
        raise ModelError(f"log_z is {log_z!r}; a PR file holds a finite number or -inf")
    write_atomically([(path, f"PR\n{float(log_z) / math.log(10.0)!r}\n".encode())])


def read_mar(path: FilePath) -> list[NDArray[np.float64]]:
    """One probability vector per variable from a MAR result file, as printed there.

    The numbers may be preceded by the number of samples, 1: word counts tell, as for evidence.
    """
    words = Words(path)
    words.require_keyword("MAR")
    n, at = words.count(1, "the number of variables"), 2
    if n == 1 and len(words) > 2:
        second = words.count(2, "the second number")
        if len(words) != 3 + max(second, 1):  # not one variable with `second` states
            n, at = second, 3
    if 2 * n > len(words) - at:
        words.fail(f"{n} variables are announced; {len(words) - at} numbers follow", at - 1)
    marginals = []
    for v in range(n):
        states = words.count(at, f"the number of states of variable {v}")
        if states > len(words) - at - 1:
            words.fail(f"variable {v} lists {states} states; the file ends too early", at)
        marginals.append(words.values[at + 1 : at + 1 + states].copy())
        if problem := _marginal_problem(marginals[-1]):
            words.fail(f"the marginal of variable {v} {problem}", at)
        at += 1 + states
    words.require_end(at, "the last marginal")
    return marginals


def write_mar(marginals: Iterable[ArrayLike], path: FilePath) -> None:
    """Write one probability vector per variable as a MAR result file."""
    if not isinstance(marginals, Iterable) or isinstance(marginals, str | Mapping):
        raise ModelError(
            f"marginals are {shown(marginals)}; expected one vector of probabilities a variable"
        )
    parts = []
    for v, marginal in enumerate(marginals):
        vector = real_array(marginal, f"the marginal of variable {v}")
        if problem := _marginal_problem(vector):
            raise ModelError(f"the marginal of variable {v} {problem}")
        parts.append(f" {vector.size} " + " ".join(map(repr, vector.tolist())))
    write_atomically([(path, f"MAR\n{len(parts)}{''.join(parts)}\n".encode())])


def _marginal_problem(marginal: NDArray[np.float64]) -> str:
    """What keeps a vector from being a distribution, or nothing. Printed ones are rounded."""
    if marginal.ndim != 1 or not marginal.size:
        return f"has shape {marginal.shape}; expected a vector of at least one probability"
    if not (np.isfinite(marginal).all() and (marginal >= 0).all()):
        return "has a negative, infinite or NaN entry"
    total = float(marginal.sum())
    return "" if abs(total - 1) <= _SLACK else f"sums to {total:g}; expected 1"


PR = Format(("PR",), read_pr, write_pr, "UAI results, log10 Z in the file and log Z here")
MAR = Format(("MAR",), read_mar, write_mar, "UAI results, one marginal per variable")
