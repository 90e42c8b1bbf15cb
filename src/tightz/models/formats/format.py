"""What a format is, and how a file finds its own: by the ending of its name, or by `format=`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tightz.errors import ParameterError


@dataclass(frozen=True)
class Format:
    """One kind of file.

    endings       of the names of such files; the first also names the format (`format="uai"`)
    read          read(path, **options); models take `evidence`
    write         write(content, path, **options)
    description   what it holds, in a line
    """

    endings: tuple[str, ...]
    read: Callable[..., Any]
    write: Callable[..., Any]
    description: str

    @property
    def name(self) -> str:
        return self.endings[0]

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Read or write with the options that this format has; any other is refused by name."""
        parameters = inspect.signature(function).parameters
        known = list(parameters)[len(arguments) :]
        for option in options:
            if option not in known:
                raise ParameterError(
                    f"{option} is no option of .{self.name} files ({self.description}); expected "
                    f"{' or '.join(known) or 'none'}"
                )
        return function(*arguments, **options)
