"""Reference pages made from the code: public names, the command line, and math as MathML.

Docstrings in tightz are plain text with aligned columns; `as_rst` gives them to autodoc in the
form it reads. MathML needs no script and no network, and takes the colour of its surroundings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes  # type: ignore[import-untyped]
from docutils.utils.math import MathError  # type: ignore[import-untyped]
from docutils.utils.math.latex2mathml import tex2mathml  # type: ignore[import-untyped]
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import tightz

logger = logging.getLogger(__name__)

_FUNCTION = re.compile(r"(<msub>\s*)?<mi>(?:log|ln|tanh|cosh)</mi>")
_COLUMN = re.compile(r"(\S(?:.*?\S)?) {2,}(\S.*)")


def escape(text: str) -> str:
    """Plain text as reStructuredText: `code` stays code, everything else is literal."""
    pieces = re.split(r"`+([^`]+)`+", text)
    for i, piece in enumerate(pieces):
        pieces[i] = f"``{piece}``" if i % 2 else re.sub(r"([\\*|_<>])", r"\\\1", piece)
    return "\\ ".join(p for p in pieces if p).replace("\\  ", " ").replace(" \\ ", " ")


def as_rst(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText: prose, bullets, aligned columns, indented examples."""
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        first = paragraph[0]
        if first.startswith(" "):
            out += ["::", "", *(f"    {line}" for line in paragraph)]
        elif first.startswith("* "):
            for item in _items(paragraph, lambda line: line.startswith("* ")):
                out.append("* " + escape(" ".join([item[0][2:], *item[1:]])))
        elif _COLUMN.fullmatch(first):
            for item in _items(paragraph, lambda line: not line.startswith(" ")):
                name, text = _split(item[0])
                out += [f"``{name}``", "    " + escape(" ".join([text, *item[1:]]))]
        else:
            out.append(escape(" ".join(paragraph)))
        out.append("")
    return out


def _split(line: str) -> tuple[str, str]:
    match = _COLUMN.fullmatch(line)
    return (match[1].replace("`", ""), match[2]) if match else (line, "")


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line.rstrip())
        elif paragraph:
            yield paragraph
            paragraph = []


def _items(paragraph: list[str], starts: Any) -> list[list[str]]:
    items: list[list[str]] = []
    for line in paragraph:
        if starts(line) or not items:
            items.append([line])
        else:
            items[-1].append(line.strip())
    return items


def _directive(name: str) -> list[str]:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if not inspect.isclass(value):
        return [f".. autofunction:: {name}", ""]
    if issubclass(value, Exception):
        return [f".. autoexception:: {name}", ""]
    enum = hasattr(value, "__members__")
    return [f".. autoclass:: {name}", "   :members:", *["   :undoc-members:"] * enum, ""]


def public_names(prefix: str) -> list[str]:
    """Public names whose home is `prefix` or a module below it, in the order of the package."""
    return [n for n, home in tightz._HOME.items() if f"{home}.".startswith(f"{prefix}.")]


def returned_types() -> list[str]:
    """Classes of ours that public functions return and that are not public names themselves."""
    found: dict[str, None] = {}
    for name in tightz._HOME:
        value = getattr(tightz, name)
        if not inspect.isfunction(value):
            continue
        annotation = inspect.signature(value).return_annotation
        kind: Any = inspect.unwrap(value).__globals__.get(annotation, annotation)
        ours = inspect.isclass(kind) and kind.__module__.startswith("tightz.")
        if ours and kind.__name__ not in tightz._HOME:
            found[f"{kind.__module__}.{kind.__qualname__}"] = None
    return sorted(found)


class PublicNames(SphinxDirective):
    """`.. public-names:: tightz.models tightz.search`: autodoc of the names that live there.

    `.. public-names:: rest` takes those that no earlier section of the page has taken.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        taken: Any = self.env.temp_data.setdefault("public-names", set())
        prefixes = ["tightz"] if self.arguments[0] == "rest" else self.arguments[0].split()
        names = [n for prefix in prefixes for n in public_names(prefix) if n not in taken]
        taken.update(names)
        lines = [line for name in names for line in _directive(f"tightz.{name}")]
        return self.parse_text_to_nodes("\n".join(lines))


class PublicTable(SphinxDirective):
    """`.. public-table::`: every public name and the first sentence of its docstring."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        rows = []
        for name in sorted(tightz._HOME, key=str.lower):
            text = " ".join(next(_paragraphs((getattr(tightz, name).__doc__ or "").splitlines())))
            rows.append((f":any:`tz.{name} <tightz.{name}>`", escape(_sentence(text))))
        return self.parse_text_to_nodes(_table(rows, "30 70"))


class ReturnedTypes(SphinxDirective):
    """`.. returned-types::`: autodoc of the result classes."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        lines = [line for name in returned_types() for line in _directive(name)]
        return self.parse_text_to_nodes("\n".join(lines))


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0]


def _table(rows: list[tuple[str, str]], widths: str) -> str:
    lines = [".. list-table::", f"   :widths: {widths}", ""]
    for left, right in rows:
        lines += [f"   * - {left}", f"     - {right}"]
    return "\n".join([*lines, ""])


def commands(group: click.Group, prefix: str = "tightz") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members."""
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


class CommandLine(SphinxDirective):
    """`.. command-line::`: a section for every command of the `tightz` program."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        from tightz.cli.main import main

        lines: list[str] = _help(main)
        for name, command in commands(main):
            lines += [name, "-" * len(name), "", *_command(name, command)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _help(command: click.Command) -> list[str]:
    out: list[str] = []
    for paragraph in _paragraphs(inspect.cleandoc(command.help or "").splitlines()):
        if paragraph[0] == "\b":
            example = [re.sub(r"^Examples?:", "", line) for line in paragraph[1:]]
            text = inspect.cleandoc("\n".join(line for line in example if line.strip()))
            shell = [f"   $ {line.strip()}" for line in text.splitlines()]
            out += [".. code-block:: console", "", *shell, ""]
        else:
            out += [escape(" ".join(paragraph)), ""]
    return out


def _command(name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    out = [f"``{name} {usage}``", "", *_help(command)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    rows = [(f"``{names}``", escape(text)) for names, text in _records(options, context)]
    return [*out, *([_table(rows, "38 62")] if rows else []), ""]


def _records(options: list[click.Option], context: click.Context) -> Iterator[tuple[str, str]]:
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            yield record


def _docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str
) -> tuple[str, str | None] | None:
    """The signature as its author wrote it: type names are not expanded. Results show none."""
    if what not in ("function", "method", "class"):
        return None
    if what == "class" and name in returned_types():
        return "", None
    try:
        written = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    return _text(written), written.return_annotation if what != "class" else None


def _text(signature: inspect.Signature) -> str:
    pieces: list[str] = []
    for p in signature.parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not any(piece.startswith("*") for piece in pieces):
            pieces.append("*")
        stars = "*" * ((p.kind is p.VAR_POSITIONAL) + 2 * (p.kind is p.VAR_KEYWORD))
        kind = f": {p.annotation}" if isinstance(p.annotation, str) else ""
        shown = "..." if repr(p.default).startswith("<") else repr(p.default)
        pieces.append(
            f"{stars}{p.name}{kind}" + (f" = {shown}" if p.default is not p.empty else "")
        )
    return f"({', '.join(pieces)})"


def _mathml(translator: Any, node: Any, block: bool) -> None:
    try:
        markup = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logger.warning("math %r: %s", node.astext(), error, location=node)
        markup = ""
    markup = _FUNCTION.sub(lambda m: m[0] if m[1] else f'{m[0]}<mspace width="0.17em"/>', markup)
    translator.body.append(f'<div class="formula">{markup}</div>' if block else markup)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public-names", PublicNames)
    app.add_directive("public-table", PublicTable)
    app.add_directive("returned-types", ReturnedTypes)
    app.add_directive("command-line", CommandLine)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(lambda self, node: _mathml(self, node, False), None),
        block_renderers=(lambda self, node: _mathml(self, node, True), None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
