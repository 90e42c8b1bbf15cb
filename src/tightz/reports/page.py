"""`tz.report`: one file with its style, its script and its data inside, and nothing to load."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightz.errors import TightzError
from tightz.reports.charts import interval_chart, level_chart, plain, width_chart
from tightz.reports.data import ReportData
from tightz.reports.marginal_charts import marginal_chart, pictures
from tightz.reports.sections import (
    bounds_section,
    certificate_section,
    headline_section,
    interval_section,
    levels_section,
    marginals_section,
    provenance_section,
)

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph


def render(data: ReportData) -> str:
    """The whole page as text."""
    charts = [interval_chart(data), width_chart(data), level_chart(data)]
    if data.marginals is not None:
        charts.append(marginal_chart(data.marginals))
    shown = {spec["id"]: spec for spec in charts if spec is not None}
    images = pictures(data.marginals) if data.marginals is not None else []
    cells = [
        {"id": i, "rows": p.shape[0], "cols": p.shape[1], "values": plain(p.ravel(), 5)}
        for i, (_, p, _) in enumerate(images)
    ]
    sections = [
        headline_section(data, bool(shown)),
        interval_section(data, shown.get("interval"), shown.get("widths")),
        levels_section(data, shown.get("levels")),
        marginals_section(data.marginals, images, shown.get("marginals")),
        certificate_section(data),
        bounds_section(data.bounds),
        provenance_section(data),
    ]
    script = files("tightz.reports").joinpath("chart.js").read_text(encoding="utf-8")
    style = files("tightz.reports").joinpath("style.css").read_text(encoding="utf-8")
    return _frame(
        title=data.title or data.method,
        style=style,
        body="\n".join(section for section in sections if section),
        embedded=_embedded({"charts": list(shown.values()), "pictures": cells}),
        script=script,
    )


def _frame(*, title: str, style: str, body: str, embedded: str, script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            "style-src 'unsafe-inline'",
            f"script-src 'sha256-{digest}'",
        ]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}: log Z report</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{body}
<footer>Written by tightz. This page is one file: it loads nothing and sends nothing.</footer>
<noscript><p class="warn">Charts need JavaScript; the tables hold the same numbers.</p></noscript>
<script type="application/json" id="report-data">{embedded}</script>
<script>{script}</script>
</body>
</html>
"""


def _embedded(value: Any) -> str:
    """JSON that cannot end its script element, whatever a name in it says."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
