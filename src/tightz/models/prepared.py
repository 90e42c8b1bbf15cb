"""Public functions whose model is read and whose kernels are compiled before they start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tightz.models.factor_graph import FactorGraph
from tightz.models.given import opened
from tightz.models.kinds import kind_of
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.kernels.farm import prepare

P = ParamSpec("P")
R = TypeVar("R")

_inside = threading.local()


def prepared(
    task: str,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile what `task` calls on such a model, unless another task is under way.

    A task that calls another has listed the other's kernels as its own, and the streams of a run
    are threads whose run has seen to theirs.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # Read here once, since the kernels to prepare are those of the model in the file.
            model = opened(args[0] if args else kwargs.get("model"))
            rest: Any = (model, *args[1:]) if args else ()
            named: Any = {**kwargs, "model": model} if "model" in kwargs else kwargs
            outermost = not getattr(_inside, "task", "")
            if not outermost or threading.current_thread() is not threading.main_thread():
                return function(*rest, **named)
            if isinstance(model, FactorGraph | SpinPolynomial):
                prepare(task, kind_of(model))
            _inside.task = task
            try:
                return function(*rest, **named)
            finally:
                _inside.task = ""

        return call

    return decorate
