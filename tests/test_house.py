"""The house stands in order: no import goes back, nothing is declared in vain, names exist.

Each check is shown to fail on a small tree that breaks it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

IMPORTED_AS = {
    "numba-cuda": "numba.cuda",
    "cuda-bindings": "cuda.bindings",
    "python-flint": "flint",
}
"""Distributions whose import name is not their own."""

EXTRAS_FOR_USERS = ("plot", "cluster", "gpu", "wish", "data", "h5")

FROM_THE_HOST = {
    "IPython": "there wherever a notebook shows progress",
    "pandas": "what results become where it is installed",
    "pgmpy": "`tz.to_pgmpy` makes its models where it is installed, and says so where it is not",
    "tightz_experiments": "in the same wheel; `tightz reproduce` says so where it is missing",
}
"""Imported where present, not declared."""

VANISHED = ("estimation", "references", "experiments")
"""Folders that there were: a path into them is stale."""


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_house", DOCS / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


house = _load()
TIGHTZ = house.House(house.TREE)
EXPERIMENTS = house.House(ROOT / "src" / "tightz_experiments")


def _tree(tmp_path: Path, **files: str) -> object:
    """A package `toy` with these modules; __ in a name is a folder."""
    root = tmp_path / "toy"
    (root).mkdir()
    (root / "__init__.py").write_text(files.pop("__init__", ""))
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return house.House(root)


# Order --------------------------------------------------------------------------------------


def test_every_unit_has_its_place():
    assert sorted(TIGHTZ.units - set(house.ORDER)) == []


def test_no_module_imports_from_a_later_unit():
    assert TIGHTZ.backwards() == []


def test_no_cycles_among_units_or_modules():
    assert house.cycles(TIGHTZ.unit_imports) == []
    assert house.cycles(TIGHTZ.imports) == []
    assert house.cycles(EXPERIMENTS.imports) == []


def test_only_the_command_line_knows_the_experiments():
    known = {m for t, ms in TIGHTZ.third_party.items() if "experiments" in t for m in ms}
    assert {TIGHTZ.unit(module) for module in known} <= {"cli"}


def test_the_judge_is_independent():
    assert TIGHTZ.unit_imports["judge"] <= {"models", "errors", "shown", "bounds"}


@pytest.mark.parametrize(
    "text",
    [
        "from toy.late import x",
        "def f():\n    from toy.late import x",
        "def f():\n    import toy.late",
        "from .late import x",
        "from . import late",
        "import importlib\ndef f():\n    importlib.import_module('toy.late')",
        "if True:\n    try:\n        from toy.late import x\n    except ImportError:\n        pass",
    ],
)
def test_an_import_from_a_later_unit_is_found(text, tmp_path):
    toy = _tree(tmp_path, early=text, late="x = 1")
    assert toy.backwards({"early": "", "late": "", "__init__": ""}) == [
        "toy.early imports toy.late"
    ]
    assert toy.backwards({"late": "", "early": "", "__init__": ""}) == []


def test_imports_for_the_type_checker_do_not_count(tmp_path):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.late import x\n"
    assert _tree(tmp_path, early=text, late="x = 1").imports["toy.early"] == set()


def test_an_unplaced_unit_and_an_import_of_the_public_names_are_found(tmp_path):
    toy = _tree(tmp_path, early="import toy", other="from toy.early import x")
    assert toy.backwards({"early": "", "__init__": ""}) == [
        "toy.early imports toy",
        "toy.other imports toy.early",
    ]


def test_cycles_are_found_between_units_and_inside_one(tmp_path):
    toy = _tree(
        tmp_path,
        a__one="from toy.a.two import x",
        a__two="def f():\n    from toy.a.one import y",
        b="from toy.a import one",
        c="from toy.b import one",
    )
    assert house.cycles(toy.imports) == [{"toy.a.one", "toy.a.two"}]
    assert house.cycles(toy.unit_imports) == []
    assert house.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def test_public_names_lead_the_package_to_their_homes(tmp_path):
    toy = _tree(tmp_path, __init__="_HOME = {'x': 'toy.a', 'y': 'toy.a'}", a="x = y = 1")
    assert toy.imports["toy"] == {"toy.a"}
    assert toy.public == 3


# Dependencies -------------------------------------------------------------------------------


def _declared(project: dict) -> dict[str, str]:
    """Distribution -> import name, of what users install."""
    extras = project.get("optional-dependencies", {})
    lines = [
        *project["dependencies"],
        *(line for extra in EXTRAS_FOR_USERS for line in extras.get(extra, [])),
    ]
    names = [re.split(r"[<>=!~;\[ ]", line)[0] for line in lines]
    return {name: IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def _unused(project: dict, *houses) -> list[str]:
    imported = {path for h in houses for path in h.third_party}
    return [
        name
        for name, module in _declared(project).items()
        if not any(path == module or path.startswith(module + ".") for path in imported)
    ]


def _undeclared(project: dict, *houses) -> list[str]:
    own = {h.name for h in houses}
    tops = {path.partition(".")[0] for h in houses for path in h.third_party}
    known = {module.partition(".")[0] for module in _declared(project).values()}
    return sorted(tops - known - own - set(FROM_THE_HOST))


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_declared_is_imported_and_what_is_imported_is_declared():
    assert _unused(PROJECT, TIGHTZ, EXPERIMENTS) == []
    assert _undeclared(PROJECT, TIGHTZ, EXPERIMENTS) == []


def test_a_dependency_in_vain_and_a_hidden_one_are_found(tmp_path):
    toy = _tree(tmp_path, a="import numpy.linalg, json\ndef f():\n    import polars")
    project = {
        "dependencies": ["numpy>=2", "scipy"],
        "optional-dependencies": {"gpu": ["numba-cuda>=0.2"]},
    }
    assert _unused(project, toy) == ["scipy", "numba-cuda"]
    assert _undeclared(project, toy) == ["polars"]


# Names that the prose mentions --------------------------------------------------------------

DOTTED = re.compile(r"(?<![\w./-])tightz(?:\.[A-Za-z_]\w*)+(?![\w/-])")
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.py)`")
INSIDE = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _texts() -> Iterator[tuple[str, str]]:
    """(place, prose); decisions.md tells of things past."""
    for source in (TIGHTZ, EXPERIMENTS):
        for name, tree in source.trees.items():
            for text in _docstrings(tree):
                yield name, text
    pages = [p for p in DOCS.rglob("*.md") if "_build" not in p.parts and p.name != "decisions.md"]
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(pages)]:
        yield page.relative_to(ROOT).as_posix(), page.read_text()


def _stale(text: str) -> Iterator[str]:
    """Dotted paths and files named in `text` that do not exist."""
    for path in DOTTED.findall(text):
        if not TIGHTZ.has(path):
            yield path
    for file in FILE.findall(text):
        if not any((base / file).is_file() for base in (ROOT, ROOT / "src", TIGHTZ.root)):
            yield file
    for path in INSIDE.findall(text):
        folder = path.partition(".")[0]
        ours = folder in VANISHED or (TIGHTZ.root / folder).is_dir()
        if ours and not TIGHTZ.has(f"tightz.{path}"):
            yield path


def test_every_path_in_docstrings_and_pages_exists():
    stale = [f"{place}: {path}" for place, text in _texts() for path in _stale(text)]
    assert stale == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see tightz.models.nothing", ["tightz.models.nothing"]),
        ("tightz.bounds.Nothing", ["tightz.bounds.Nothing"]),
        ("tightz.bounds.Bound.nothing", ["tightz.bounds.Bound.nothing"]),
        ("`models/nothing.py`", ["models/nothing.py"]),
        ("`judge.nothing`", ["judge.nothing"]),
        ("`estimation.driver`", ["estimation.driver"]),
        ("tightz.bounds.Bound.log_z and `tightz.log_partition`, `judge.claims`, `bound.side`", []),
        ("`models/factor_graph.py`, `tests/test_house.py`, tightz.example/, x/tightz.uai", []),
    ],
)
def test_a_stale_path_is_found(text, found):
    assert list(_stale(text)) == found


# Figures and picture ------------------------------------------------------------------------


def test_figures_are_counted(tmp_path):
    text = (
        '"""One line."""\n# why\n# type: ignore\nx = 1  # not a line of its own\n'
        "def many(self, a, b, c, d, e, f, g, *, h, i):\n    '''Two\n    lines.'''\n"
        "def few(self, a, b, c, d, e, f, g, *, h):\n    pass\n"
    )
    figures = _tree(tmp_path, a=text).figures()
    assert figures["files"] == 2
    assert figures["lines"] == 9
    assert figures["comment lines"] == f"{1 / 9:.1%}"
    assert figures["docstring lines"] == f"{3 / 9:.1%}"
    assert figures["with more than 8 parameters"] == 1
    assert figures["longest function, lines"] == 3


def test_a_tree_against_itself(capsys):
    house.main(["compare", str(house.TREE), str(house.TREE)])
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in rows[0]] == ["", "before", "after"]
    assert all(before == after for _, before, after in rows[2:])


def test_the_picture_shows_the_graph_as_it_is():
    shown = (DOCS / "images" / "architecture.svg").read_text()
    graph, arrows = house.drawn(TIGHTZ)
    told = set(re.findall(r"<title>(\w+) builds on (\w+)</title>", shown))
    assert told == {(b, a) for a, b in arrows}, "run: python docs/house.py picture FILE"
    assert set(re.findall(r'class="name">(\w+)<', shown)) == set(graph)


def test_an_implied_arrow_is_left_out():
    assert house.reduction({"c": {"a", "b"}, "b": {"a"}, "a": set()}) == {
        "c": {"b"},
        "b": {"a"},
        "a": set(),
    }
