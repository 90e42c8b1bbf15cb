"""The sections of the page, each a function from data to HTML; every text is escaped here."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import numpy as np

from tightz.bounds import Bound, Proof
from tightz.models.ends import width
from tightz.reports.charts import SEQUENTIAL, Spec, caption, level_rows, png
from tightz.reports.data import Marginals, ReportData, Statement
from tightz.reports.marginal_charts import Picture, marginal_value
from tightz.reports.words import (
    assumptions,
    between,
    count,
    headline,
    kind_of,
    number,
    proofs,
    span,
)

MAX_ROWS = 1_000
"""Rows of a table on the page; a longer one keeps the latest and says so."""

MAX_VARIABLES = 200
"""Variables in the table of marginals."""

PER_LINE = 5
"""Binary variables on one line of that table."""


def headline_section(data: ReportData, charts: bool) -> str:
    about = escape("; ".join(part for part in (data.title, data.model) if part))
    cards = [] if data.exact is not None else _statements(data)
    remarks = [f"note: {note}" for note in data.notes]
    if data.interrupted:
        remarks.insert(0, "The run was interrupted; what it had proven by then holds all the same.")
    spent = f" in {data.seconds:.2f} s" if math.isfinite(data.seconds) else ""
    counted = count(len(data.bounds), "bound") + spent
    return f"""<header>
<div><p>{about}</p>
<h1>{escape(headline(data))}</h1></div>
<button type="button" id="theme" aria-pressed="false">light / dark</button>
</header>
<main>
<div class="cards">{"".join(cards)}</div>
<p class="quiet">{escape(data.method)}: {counted}. Natural logarithms throughout.</p>
{"".join(f'<p class="warn">{escape(remark)}</p>' for remark in remarks)}
{HINT if charts else ""}"""


def _statements(data: ReportData) -> list[str]:
    """One card for each thing that is said: always, with confidence, not proven."""
    cards = []
    ends = data.lower, data.upper
    if ends != (None, None):
        cards.append(_card("always", "holds always", between(*ends), _makers(*ends)))
    if (data.confident_lower, data.confident_upper) != (None, None):
        ends = data.confident
        both = ", both ends" if None not in ends else ""
        label = f"with confidence {data.confidence:g}{both}"
        cards.append(_card("confident", label, between(*ends), _makers(*ends)))
    if data.estimate is not None:
        error = data.estimate_error
        spread = f" \u00b1 {error:.2g}" if math.isfinite(error) else ""
        text = f"log Z \u2248 {number(data.estimate)}{spread}"
        cards.append(_card("estimate", "not proven", text, data.estimate_source))
    return cards


def _makers(low: Bound | None, high: Bound | None) -> str:
    """The width, and who made each end."""
    width = f"width {span(low, high)}; " if low is not None and high is not None else ""
    names = dict.fromkeys(
        f"{b.method} (holds always)" if b.proof is Proof.DETERMINISTIC else b.method
        for b in (low, high)
        if b is not None
    )
    if {b.proof for b in (low, high) if b is not None} == {Proof.DETERMINISTIC}:
        names = dict.fromkeys(b.method for b in (low, high) if b is not None)
    return width + "; ".join(names)


def _card(css: str, label: str, value: str, text: str) -> str:
    return (
        f'<div class="card {css}">{escape(label)}<b>{escape(value)}</b>'
        f"<span>{escape(text)}</span></div>"
    )


HINT = (
    '<p class="quiet hint">Charts: point to read values, drag to zoom, click a name to hide it. '
    "With the keyboard: tab to a chart, then + and - zoom, arrows move, 0 resets, comma and full "
    "stop step through the values.</p>"
)


def _figure(spec: Spec, text: str) -> str:
    return (
        f'<figure class="chart" id="chart-{spec["id"]}">'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )


def interval_section(data: ReportData, spec: Spec | None, widths: Spec | None) -> str:
    if spec is None:
        return ""
    text = "The best proven ends so far. The true value is between them at every moment."
    if data.exact is not None:
        text = "The ends until the exact value closed the interval."
    elif data.upper is None:
        text = "The best lower end so far; no method gave a finite upper end."
    elif data.lower is None:
        text = "The best upper end so far; no method gave a finite lower end."
    more = ""
    if widths is not None:
        told = "The widths of both intervals, on a logarithmic scale."
        text += " The darker band holds with confidence only."
        more = _figure(widths, told)
    return (
        f'<section id="interval"><h2>The interval over time</h2>{_figure(spec, text)}{more}'
        "</section>"
    )


def levels_section(data: ReportData, spec: Spec | None) -> str:
    if data.table is None:
        return ""
    if spec is None:
        text = "No trial of this run is feasible." if data.table.done else "No trial was run yet."
        return f'<section id="levels"><h2>Bounds by level</h2><p>{text}</p></section>'
    keys = ("median", "mean", "least", "lower quartile", "upper quartile", "best")
    rows = [
        [str(row["m"]), f"{row['trials']:,}", f"{row['infeasible']:,}"]
        + [number(row[key], 4) for key in keys]
        for row in level_rows(data.table)
    ]
    table = _table(["m", "trials", "infeasible", *keys], rows, numeric=range(9))
    return f"""<section id="levels"><h2>Bounds by level</h2>
{_figure(spec, caption(data))}
<h3>{escape(data.table.meaning)} by level</h3>{table}</section>"""


def marginals_section(marginals: Marginals | None, images: list[Picture], spec: Spec | None) -> str:
    if marginals is None:
        return ""
    parts = []
    if images:
        bar = png(np.linspace(0.0, 1.0, 64)[None, :], 0.0, 1.0, SEQUENTIAL)
        figures = "".join(
            f'<figure class="picture" id="picture-{i}"><figcaption>{escape(title)}</figcaption>'
            f'<img tabindex="0" src="{png(p, 0.0, top, SEQUENTIAL)}" width="{p.shape[1]}" '
            f'height="{p.shape[0]}" alt="{escape(title)} of each cell, {p.shape[0]} rows of '
            f'{p.shape[1]}; arrow keys read single cells">'
            f'<div class="scale"><span>0</span><img src="{bar}" alt=""><span>{top:.3g}</span></div>'
            "</figure>"
            for i, (title, p, top) in enumerate(images)
        )
        parts.append(f'<div class="pictures">{figures}</div>')
        if marginals.spins:
            parts.append('<p class="quiet">In an Ising model state 1 is spin -1.</p>')
    if spec is not None:
        rest = " (the variables beyond the picture)" if images and not marginals.bounds else ""
        parts.append(_figure(spec, spec["title"] + rest + "."))
    total, shown = len(marginals.vectors), min(len(marginals.vectors), MAX_VARIABLES)
    label, values = marginal_value(marginals)
    known = values[np.isfinite(values)]
    middle = f" The median of {label} is {np.median(known):.4f}." if known.size else ""
    more = f" The first {shown:,} are in the table." if shown < total else ""
    missing = " Some do not exist (shown as none)." if known.size < total else ""
    widths = "; ".join(f"{how} {width(ends).mean():.4g}" for how, ends in marginals.bounds)
    middle += f" Mean width of their ends: {widths}." if widths else ""
    text = f"{total:,} variables; source: {marginals.source or 'not stated'}."
    return f"""<section id="marginals"><h2>Marginals</h2>
<p class="quiet">{escape(text + middle + more + missing)}</p>
{"".join(parts)}
{_probabilities(marginals, shown)}</section>"""


def _probabilities(marginals: Marginals, shown: int) -> str:
    """Binary variables several to a line, others with all their states; a line each with ends."""
    vectors = marginals.vectors[:shown]
    if marginals.bounds:
        return _with_ends(marginals, shown)
    if marginals.binary:
        _, values = marginal_value(marginals)
        cells = [[marginals.label(v), number(float(values[v]))] for v in range(len(vectors))]
        rows = [
            [text for cell in cells[i : i + PER_LINE] for text in cell]
            for i in range(0, len(cells), PER_LINE)
        ]
        head = ["variable", "P(state 1)"] * min(PER_LINE, len(cells))
        return "<h3>P(state 1)</h3>" + _table(head, rows, numeric=range(2 * PER_LINE))
    names = marginals.names
    rows = [
        [marginals.label(v), "  ".join(number(p, 4) for p in vector.tolist())]
        for v, vector in enumerate(vectors)
    ]
    head, title = ["variable", "probabilities"], "Probabilities of states 0, 1, ..."
    if names is not None and names.states is not None:
        title = "Probabilities of the states"
        for v, row in enumerate(rows):
            told = names.distribution(v, vectors[v]).items()
            row[1] = ", ".join(f"{state} {number(p, 4)}" for state, p in told)
    return f"<h3>{title}</h3>" + _table(head, rows, numeric=() if names is not None else (0,))


def _with_ends(marginals: Marginals, shown: int) -> str:
    names = marginals.names
    rows = []
    for v, vector in enumerate(marginals.vectors[:shown]):
        labels = map(str, range(len(vector))) if names is None else names.state_labels(v)
        for s, (state, p) in enumerate(zip(labels, vector.tolist(), strict=True)):
            if marginals.binary and s == 0 and len(vector) == 2:
                continue
            ends = [f"[{number(e[v][s][0])}, {number(e[v][s][1])}]" for _, e in marginals.bounds]
            rows.append([marginals.label(v), state, number(p), *ends])
    head = ["variable", "state", "probability", *(how for how, _ in marginals.bounds)]
    return "<h3>Probabilities and their ends</h3>" + _table(head, rows, numeric=range(2, len(head)))


def certificate_section(data: ReportData) -> str:
    proven = "".join(f"<li>{escape(line)}</li>" for line in proofs(data))
    rests = "".join(f"<li>{escape(line)}</li>" for line in assumptions(data))
    theorems = "".join(_statement(statement) for statement in data.statements)
    return f"""<section id="certificate"><h2>The certificate in words</h2>
<h3>What was proven</h3><ul>{proven}</ul>
{theorems}
<h3>What it rests on</h3><ul>{rests}</ul></section>"""


def _statement(statement: Statement) -> str:
    rows = "".join(
        f'<li><span class="{"held" if a.held else "failed"}">{"held" if a.held else "did not hold"}'
        f"</span>: {escape(a.text)}</li>"
        for a in statement.assumptions
    )
    ends = "; ".join(
        f"log Z {sign} {number(value, 4)} {'holds' if sure else 'is not established'}"
        for sign, value, sure in (
            (">=", statement.lower, statement.lower_holds),
            ("<=", statement.upper, statement.upper_holds),
        )
    )
    return f"""<h3>{escape(statement.theorem)}</h3>
<p>It says: {escape(statement.says)}, with confidence {statement.confidence:g}. For this run:
{escape(ends)}.</p><ul>{rows}</ul>"""


def bounds_section(bounds: Sequence[Bound]) -> str:
    first = max(0, len(bounds) - MAX_ROWS)
    rows = [
        [f"{b.seconds:.3f}", kind_of(b), number(b.log_z), b.holds, b.method, b.why]
        for b in bounds[first:]
    ]
    text = (
        f"The latest {MAX_ROWS:,} of {len(bounds):,} records; the run itself holds them all."
        if first
        else f"{count(len(bounds), 'record')}, in order of arrival."
    )
    head = ["seconds", "end", "log Z", "how it holds", "method", "why"]
    return f"""<section id="bounds"><h2>Every bound</h2><p class="quiet">{text}</p>
{_table(head, rows, numeric=(0, 2))}</section>"""


def provenance_section(data: ReportData) -> str:
    rows = [[key, value] for key, value in _flat("", data.provenance)]
    rows.append(["page written", datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")])
    if "machine" not in data.provenance:
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        rows.append(["page written on", machine])
    return f"""<section id="provenance"><h2>Provenance</h2>
{_table(["what", "value"], rows)}</section></main>"""


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix} {key}".strip(), inner)
    else:
        text = str(value)
        yield prefix, text if len(text) <= 400 else text[:400] + f"... ({len(text)} characters)"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    right = set(numeric)

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="n">{escape(c)}</{tag}>' if i in right else f"<{tag}>{escape(c)}</{tag}>"
            for i, c in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{line("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
