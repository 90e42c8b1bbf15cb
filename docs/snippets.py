"""Run the code on documentation pages, compare what it prints, and refresh it.

A page that holds the comment `<!-- tested` is run from top to bottom in an empty folder:

* a fence marked `python` is executed, all of them in one namespace; a fence marked `text` right
  after it is what it printed
* in a fence marked `console` every line that starts with `$` is run by bash and must succeed; the
  lines below it are what it printed
* `<!-- check ... -->` is Python that the reader does not see: the facts that the prose states
* `<!-- needs: PACKAGE ... -->` names what must be installed besides; else the test is skipped
* the word `varies` after the language says that the output depends on the machine or its clock,
  so only the checks speak for it

`python docs/snippets.py [PAGE ...]` runs pages, writes fresh outputs into them and copies the
pictures that their code draws beside them. tests/test_docs.py runs the same code.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTED = "<!-- tested"
RUNNABLE = ("python", "console", "check")

_BLOCK = re.compile(
    r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```[ ]*$|^<!-- check\n(?P<check>.*?)^-->[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?")


@dataclass(frozen=True)
class Block:
    """One fence or check of a page; `span` is where its source stands in the text."""

    kind: str
    source: str
    varies: bool
    line: int
    span: tuple[int, int]
    output: str | None = None


def pages() -> list[Path]:
    """Every Markdown page of the site, and the README."""
    found = sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)
    return [ROOT / "README.md", *found]


def is_tested(page: Path) -> bool:
    return TESTED in page.read_text()


def needs(page: Path) -> list[str]:
    """Packages beyond those of the project that a page's code imports: `<!-- needs: a b -->`."""
    found = re.search(r"^<!-- needs: (.*) -->$", page.read_text(), re.MULTILINE)
    return found[1].split() if found else []


def parse(text: str) -> list[Block]:
    """The blocks of a page; the output of a `python` one stands in the `text` fence after it."""
    blocks: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        info = "check" if match["info"] is None else match["info"]
        kind, *words = info.split() or [""]
        group = "check" if match["info"] is None else "code"
        block = Block(
            kind=kind,
            source=match[group],
            varies="varies" in words,
            line=text.count("\n", 0, match.start(group)) + 1,
            span=match.span(group),
        )
        follows = blocks and not text[end : match.start()].strip()
        if kind == "text" and follows and blocks[-1].kind == "python":
            blocks[-1] = replace(blocks[-1], output=block.source, varies=block.varies)
        blocks.append(block)
        end = match.end()
    return blocks


def pictures(text: str) -> list[str]:
    """Image paths named on a page, as written."""
    return _PICTURE.findall(text)


def run(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Run a page inside `folder`; each runnable block with what it printed."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    done: list[tuple[Block, str]] = []
    os.environ.setdefault("MPLBACKEND", "Agg")
    with contextlib.chdir(folder):
        for block in parse(page.read_text()):
            if block.kind == "console":
                done.append((block, _console(block.source)))
            elif block.kind in RUNNABLE:
                printed = io.StringIO()
                source = "\n" * (block.line - 1) + block.source
                with contextlib.redirect_stdout(printed):
                    exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
                done.append((block, printed.getvalue()))
    return done


def expected(block: Block) -> str:
    """What the page says that a block prints."""
    return block.source if block.kind == "console" else block.output or ""


def same_output(stated: str, printed: str) -> bool:
    """Equal words, and numbers equal up to the last printed digit; seconds may differ."""
    texts = [_SECONDS.sub("some seconds", t.strip()) for t in (stated, printed)]
    if _NUMBER.sub("#", texts[0]) != _NUMBER.sub("#", texts[1]):
        return False
    pairs = zip(_NUMBER.finditer(texts[0]), _NUMBER.finditer(texts[1]), strict=True)
    return all(
        abs(float(a[0]) - float(b[0])) <= (1.5 * 10.0 ** -len(a[1]) if a[1] else 0.0)
        for a, b in pairs
    )


def refresh(page: Path) -> None:
    """Run a page and write its outputs and pictures back."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        printed = {block.span: (block, output) for block, output in run(page, folder)}
        for picture in pictures(text):
            drawn = folder / Path(picture).name
            if drawn.is_file():
                shutil.copyfile(drawn, page.parent / picture)
    previous: str | None = None
    pieces: list[str] = []
    end = 0
    for block in parse(text):
        fresh: str | None = None
        if block.kind == "console":
            fresh = printed[block.span][1]
        elif block.kind == "text" and previous is not None:
            fresh = previous
        previous = None
        if block.kind == "python" and block.output is not None:
            previous = printed[block.span][1]
        if fresh is not None:
            pieces += [text[end : block.span[0]], fresh]
            end = block.span[1]
    page.write_text("".join(pieces) + text[end:])


def _console(source: str) -> str:
    """Run the commands of a console block, and write the block as it would look now."""
    lines: list[str] = []
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(places), "COLUMNS": "96"}
    for command in (line[1:].strip() for line in source.splitlines() if line.startswith("$")):
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            check=False,
        )
        assert result.returncode == 0, f"{command}: exit code {result.returncode}\n{result.stdout}"
        lines += [f"$ {command}", *result.stdout.splitlines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or [p for p in pages() if is_tested(p)]
    for page in chosen:
        print(f"running {page.relative_to(ROOT)}", flush=True)
        refresh(page)


if __name__ == "__main__":
    main()
