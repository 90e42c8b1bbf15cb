"""The documentation is held to what it says: code runs, outputs match, names and links exist."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import click
import pytest

import tightz as tz
from tightz.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _load_snippets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_snippets", DOCS / "snippets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


snippets = _load_snippets()
PAGES: list[Path] = snippets.pages()
TESTED = [page for page in PAGES if snippets.is_tested(page)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_pages_that_must_run_do() -> None:
    expected = {
        "README.md",
        "docs/tutorials/spin_glass.md",
        "docs/tutorials/rbm.md",
        "docs/tutorials/uai.md",
        "docs/howto/choose_a_method.md",
        "docs/howto/read_a_certificate.md",
        "docs/gallery.md",
    }
    assert expected <= {_name(page) for page in TESTED}


@pytest.mark.parametrize("page", TESTED, ids=_name)
def test_code_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("matplotlib", *snippets.needs(page)):
        pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    with warnings.catch_warnings():
        if snippets.needs(page):  # what other libraries warn of is theirs
            warnings.simplefilter("ignore")
        ran = snippets.run(page, tmp_path)
    assert ran
    for block, printed in ran:
        if block.kind == "check":
            assert not printed
        elif not block.varies:
            assert snippets.same_output(snippets.expected(block), printed), (
                f"{_name(page)}, line {block.line} prints\n{printed}\n"
                f"refresh the page with: python docs/snippets.py {_name(page)}"
            )
    code = "".join(block.source for block, _ in ran)
    for picture in snippets.pictures(page.read_text()):
        name = Path(picture).name
        if "/" not in picture or name in code:
            assert (tmp_path / name).is_file(), f"{_name(page)}: no code draws {picture}"


@pytest.mark.parametrize("page", TESTED, ids=_name)
def test_python_outputs_that_vary_are_followed_by_a_check(page: Path) -> None:
    blocks = snippets.parse(page.read_text())
    varying = [i for i, block in enumerate(blocks) if block.kind == "python" and block.varies]
    if varying:
        assert any(block.kind == "check" for block in blocks[varying[-1] :])


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_python_fence_compiles(page: Path) -> None:
    for block in snippets.parse(page.read_text()):
        if block.kind in ("python", "check"):
            compile(block.source, f"{page}:{block.line}", "exec")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=_name)
def test_internal_links_and_pictures_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in [*LINK.findall(text), *snippets.pictures(text)]:
        path, _, heading = target.partition("#")
        if path and "://" not in target and not target.startswith("mailto:"):
            linked = page.parent / path
            assert linked.exists(), f"{_name(page)} links {target}"
            if heading and linked.suffix == ".md":
                assert heading in _headings(linked), f"{_name(page)} links {target}"


def _headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_public_name_has_its_own_docstring() -> None:
    for name in tz._HOME:
        text = getattr(tz, name).__doc__
        assert text, f"tz.{name} has no docstring"
        assert not text.startswith(f"{name}("), f"tz.{name} has a generated docstring"


def _commands(group: click.Group, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{prefix} {name}"
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix} {name}")


def test_the_site_builds_without_warnings_and_lists_everything(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton"):
        pytest.importorskip(package)
    site = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(site)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    names = _inventory(site / "objects.inv")
    assert {f"tightz.{name}" for name in tz._HOME} <= names
    returned = {n.rpartition(".")[2] for n in names if not n.startswith("tightz.models.factor")}
    assert {"LogPartition", "Estimate", "ExactResult"} <= returned
    page = (site / "reference/cli.html").read_text()
    for name in _commands(main, "tightz"):
        assert re.search(rf"<h2>{name}<", page), f"{name} is not in the command line reference"
    for made in _html(site):
        outside = re.findall(r'(?:src|href)="(https?:[^"]+\.(?:js|css|woff2?))"', made.read_text())
        assert not outside, f"{made.name} needs the network: {outside}"
    assert not _broken_links(site)


def _html(site: Path) -> list[Path]:
    """The pages of a built site; the theme keeps templates beside its scripts."""
    return [page.resolve() for page in site.rglob("*.html") if "_static" not in page.parts]


class _Anchors(HTMLParser):
    """The links of a page, and the ids that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif value and (tag, name) in {("a", "href"), ("img", "src"), ("script", "src")}:
                self.links.append(value)


def _broken_links(site: Path) -> list[str]:
    """Links inside a built site that lead to no file, or to no place on its page."""
    pages = {page: _Anchors(page) for page in _html(site)}
    broken = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.exists() and (
                not parts.fragment
                or target not in pages
                or unquote(parts.fragment) in pages[target].ids
            )
            if not there:
                broken.append(f"{page.relative_to(site.resolve())} links {link}")
    return broken


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a><a href="#here">')
    (tmp_path / "b.html").write_text('<p id="there"><a href="c.html"><a href="a.html#gone">')
    assert _broken_links(tmp_path) == ["b.html links c.html", "b.html links a.html#gone"]


def _inventory(path: Path) -> set[str]:
    """Names in a Sphinx inventory: four lines of header, then zlib."""
    packed = path.read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(packed).decode().splitlines() if line}


def test_parse_finds_blocks_outputs_and_checks() -> None:
    page = "a\n```python\nx = 1\n```\n```text varies\n1\n```\n<!-- check\nassert x\n-->\n"
    code, output, check = snippets.parse(page)
    assert (code.kind, code.source, code.output, code.varies) == ("python", "x = 1\n", "1\n", True)
    assert code.line == 3
    assert output.kind == "text"
    assert (check.kind, check.source) == ("check", "assert x\n")
    apart = snippets.parse("```python\nx = 1\n```\nwords\n```text\n1\n```\n")
    assert apart[0].output is None


@pytest.mark.parametrize(
    ("stated", "printed", "same"),
    [
        ("log Z = 3.1416, 2 bounds in 0.12 s", "log Z = 3.1417, 2 bounds in 9.50 s", True),
        ("log Z = 3.1416", "log Z = 3.1419", False),
        ("log Z = 3.1416", "log Z > 3.1416", False),
        ("2 bounds", "3 bounds", False),
        ("-1.5", "1.5", False),
        ("a", "a\n", True),
        ("", "a", False),
    ],
)
def test_same_output(stated: str, printed: str, same: bool) -> None:
    assert snippets.same_output(stated, printed) is same


def test_refresh_writes_what_the_code_prints(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- tested -->\n```python\nprint(1 + 1)\n```\n```text\nold\n```\n"
        "```console\n$ echo hello\nold\n```\n<!-- check\nassert True\n-->\n"
    )
    snippets.refresh(page)
    fresh = page.read_text()
    assert "```text\n2\n```" in fresh
    assert "```console\n$ echo hello\nhello\n```" in fresh
    assert "old" not in fresh
    snippets.refresh(page)
    assert page.read_text() == fresh


@pytest.mark.parametrize(
    "text",
    [
        "```python\nlower, upper = 2, 1\n```\n<!-- check\nassert lower <= upper\n-->\n",
        "```console varies\n$ false | cat\n```\n",
    ],
)
def test_a_false_statement_or_a_failing_command_fails(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        snippets.run(page, tmp_path)


def test_docstrings_read_as_restructured_text() -> None:
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        import reference
    finally:
        sys.path.remove(str(DOCS / "_ext"))
    text = inspect.cleandoc(
        """Sum a_i * b_ over `states`.

        delta    chance of failure,
                 at most
        seed     a number
        """
    )
    assert reference.as_rst(text.splitlines()) == [
        "Sum a\\_i \\* b\\_ over ``states``\\ .",
        "",
        "``delta``",
        "    chance of failure, at most",
        "``seed``",
        "    a number",
        "",
    ]
