"""`tz.report`: from a result, a run store or a JSON record to a page on disk."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightz.errors import TightzError
from tightz.reports.data import ReportData

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph


def report(
    source: Any,
    path: str | PathLike[str],
    *,
    model: FactorGraph | None = None,
    shape: tuple[int, int] | None = None,
    title: str | None = None,
) -> Path:
    """Write one self-contained HTML page about `source` to `path`, and return the path.

    source   a result (`log_partition`, `estimate`, `wish`, `exact`, ...), or the path of a run
             store (`--store`) or of a command's `--json` record
    model    the model, where the result does not hold it: its name, sizes and layout are shown
    shape    rows and columns, when the first rows x cols variables are cells of a picture; default
             what the model's layout says
    title    heading in place of the model's name
    """
    from tightz.reports.page import render

    data = report_data(source, model=model, shape=shape)
    if title is not None:
        data = replace(data, title=title)
    target = Path(path)
    try:
        target.write_text(render(data), encoding="utf-8")
    except OSError as error:
        raise TightzError(
            f"{target}: cannot be written ({error.strerror}); choose a path in a folder that is "
            "there and writable"
        ) from error
    return target


def report_data(
    source: Any, *, model: FactorGraph | None = None, shape: tuple[int, int] | None = None
) -> ReportData:
    """What a report of `source` shows; see `report`."""
    if isinstance(source, (str, PathLike)):
        from tightz.reports.sources import from_file

        return from_file(Path(source), model=model, shape=shape)
    from tightz.reports.results import from_result

    return from_result(source, model=model, shape=shape)
