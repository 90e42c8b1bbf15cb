"""The house drawn from its source: who imports whom, in which order, and what it costs.

    python docs/house.py [TREE] [--run]           figures of one tree, by default src/tightz
    python docs/house.py compare OLD NEW [--run]  before and after
    python docs/house.py picture FILE.svg         the graph of units, for docs/architecture.md

Reads source with ast and imports nothing of it; --run also makes one `log_partition` in a process
of its own, and counts the modules it loads and how often a model is prepared.
A unit is a folder or a module directly below the package; its `__init__`, the public names, is one
too. Imports inside functions count, those for type checkers only do not.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import subprocess
import sys
import tokenize
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "src" / "tightz"
MANY = 8

ORDER = {
    "errors": "what can go wrong",
    "shown": "as HTML and as JSON",
    "version": "the version",
    "bounds": "a bound and its proof",
    "plots": "matplotlib, when asked",
    "results": "what every result has",
    "runtime": "clocks, seeds, stores, executors",
    "models": "factor graph, formats",
    "judge": "checks every bound afresh",
    "projections": "parities and cosets",
    "elimination": "one game, one bucket tree",
    "reductions": "the same Z with less to do",
    "propagation": "Bethe",
    "families": "I-projections onto Q",
    "search": "good states",
    "workspace": "made once for all streams",
    "uppers": "mini-bucket, tree-reweighted",
    "sampling": "AIS and certificates",
    "splitting": "the tree of regions",
    "paper": "the paper as printed",
    "interval": "streams, driver, result",
    "reports": "pages and notebooks",
    "__init__": "the public names",
    "cli": "the command line",
    "__main__": "python -m tightz",
}
"""Units, each after those it may import, with what it is in a few words."""

Node = TypeVar("Node", bound=Hashable)


class Function(NamedTuple):
    where: str
    parameters: int
    lines: int


@dataclass(frozen=True, eq=False)
class House:
    """The source tree of one package."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Dotted name -> file."""
        return {self._dotted(p): p for p in sorted(self.root.rglob("*.py"))}

    def _dotted(self, path: Path) -> str:
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text()) for name, path in self.modules.items()}

    def unit(self, module: str) -> str:
        parts = module.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @cached_property
    def units(self) -> set[str]:
        return {self.unit(m) for m in self.modules}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> modules of the same package; `_HOME` of the `__init__` names some as text."""
        found = {m: set(self._own(m)) - {m} for m in self.modules}
        found[self.name] |= set(self._home().values()) & set(self.modules)
        return found

    def _own(self, module: str) -> Iterator[str]:
        for target, names in self._statements(module):
            if target != self.name and not target.startswith(self.name + "."):
                continue
            deeper = [f"{target}.{name}" for name in names]
            yield from (d if d in self.modules else target for d in deeper or [target])

    @cached_property
    def third_party(self) -> dict[str, set[str]]:
        """What is imported from outside package and standard library -> modules that do so."""
        found: dict[str, set[str]] = {}
        for module in self.modules:
            for target, names in self._statements(module):
                top = target.partition(".")[0]
                if top != self.name and top not in sys.stdlib_module_names:
                    for path in (target, *(f"{target}.{name}" for name in names)):
                        found.setdefault(path, set()).add(module)
        return found

    def _statements(self, module: str) -> Iterator[tuple[str, list[str]]]:
        """(what is imported, names taken from it) of every import that runs."""
        package = (
            module if self.modules[module].name == "__init__.py" else module.rpartition(".")[0]
        )
        todo: list[ast.AST] = [self.trees[module]]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                todo += node.orelse
                continue
            todo += ast.iter_child_nodes(node)
            if isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(above) if node.level else ""
                target = ".".join(part for part in (base, node.module) if part)
                yield target, [alias.name for alias in node.names]
            elif (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith("import_module")
                and isinstance(node.args[0], ast.Constant)
            ):
                yield node.args[0].value, []

    def names_in(self, module: str) -> set[str]:
        """What is defined or imported at the top of a module, and `Class.member`."""
        names: set[str] = set()
        todo: list[tuple[str, ast.AST]] = [("", n) for n in self.trees[module].body]
        while todo:
            prefix, node = todo.pop()
            if isinstance(node, ast.If | ast.Try | ast.With):
                todo += [(prefix, n) for n in ast.iter_child_nodes(node)]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {prefix + (a.asname or a.name) for a in node.names}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    todo += [(f"{prefix}{node.name}.", n) for n in node.body]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {prefix + n.id for t in targets for n in ast.walk(t) if _is_name(n)}
        return names

    def has(self, path: str) -> bool:
        """Whether a dotted path such as tightz.bounds.Bound leads somewhere."""
        parts = path.split(".")
        for k in range(len(parts), 0, -1):
            if (module := ".".join(parts[:k])) in self.modules:
                rest = ".".join(parts[k:])
                home = self._home() if k == 1 else {}
                return not rest or parts[k] in home or rest in self.names_in(module)
        return False

    def _home(self) -> dict[str, str]:
        """Public name -> module, from the `_HOME` of the package's `__init__`."""
        for node in self.trees[self.name].body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(node, ast.Assign):
                target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == "_HOME":
                home: dict[str, str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                return home
        return {}

    @cached_property
    def public(self) -> int:
        """How many names a user sees at the top, the version included."""
        return len(self._home()) + 1

    @cached_property
    def unit_imports(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {u: set() for u in self.units}
        for module, targets in self.imports.items():
            found[self.unit(module)] |= {self.unit(t) for t in targets}
        return {u: targets - {u} for u, targets in found.items()}

    def backwards(self, order: Mapping[str, object] = ORDER) -> list[str]:
        """Imports from a unit that is not before the importing module's own, in words."""
        place = {unit: k for k, unit in enumerate(order)}
        return [
            f"{module} imports {target}"
            for module, targets in self.imports.items()
            for target in sorted(targets)
            if (a := self.unit(module)) != (b := self.unit(target))
            and place.get(b, len(place)) >= place.get(a, -1)
        ]

    @cached_property
    def functions(self) -> list[Function]:
        return [
            Function(f"{m}.{node.name}", _parameters(node), node.end_lineno - node.lineno + 1)
            for m, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        ]

    def figures(self) -> dict[str, Any]:
        """What we hold ourselves to, counted on the source."""
        lines = sum(len(p.read_text().splitlines()) for p in self.modules.values())
        comments = sum(_comment_lines(p) for p in self.modules.values())
        docstrings = sum(_docstring_lines(tree) for tree in self.trees.values())
        longest = max(self.functions, key=lambda f: f.lines, default=Function("", 0, 0))
        unit_cycles, module_cycles = cycles(self.unit_imports), cycles(self.imports)
        return {
            "files": len(self.modules),
            "lines": lines,
            "comment lines": f"{comments / max(lines, 1):.1%}",
            "docstring lines": f"{docstrings / max(lines, 1):.1%}",
            "functions": len(self.functions),
            f"with more than {MANY} parameters": sum(f.parameters > MANY for f in self.functions),
            "longest function, lines": longest.lines,
            "public names": self.public,
            "units in a cycle": sum(map(len, unit_cycles)),
            "modules in a cycle": sum(map(len, module_cycles)),
        }


def cycles(graph: Mapping[Node, set[Node]]) -> list[set[Node]]:
    """Strongly connected components of more than one node."""
    reach = {node: _reachable(graph, node) for node in graph}
    found: list[set[Node]] = []
    for node in graph:
        ring = {other for other in reach[node] if node in reach.get(other, ())}
        if len(ring) > 1 and ring not in found:
            found.append(ring)
    return found


def _reachable(graph: Mapping[Node, set[Node]], start: Node) -> set[Node]:
    """Where a path of one step or more leads."""
    seen: set[Node] = set()
    todo = [start]
    while todo:
        for target in graph.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def reduction(graph: Mapping[Node, set[Node]]) -> dict[Node, set[Node]]:
    """The edges of an acyclic graph that no longer path replaces."""
    return {
        node: {t for t in ts if not any(t in _reachable(graph, o) for o in ts if o != t)}
        for node, ts in graph.items()
    }


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return sum(name not in ("self", "cls") for name in names)


def _comment_lines(path: Path) -> int:
    """Lines that are a comment and nothing else; directives to tools do not count."""
    with path.open("rb") as file:
        return sum(
            token.type == tokenize.COMMENT
            and token.line.lstrip().startswith("#")
            and not token.string.startswith(("# type:", "# fmt:", "# noqa", "# pragma"))
            for token in tokenize.tokenize(file.readline)
        )


def _docstring_lines(tree: ast.Module) -> int:
    """Lines of strings that stand as a statement: docstrings, and those below a constant."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# One call of log_partition ------------------------------------------------------------------

PREPARED = {
    "encode": ("models.encoding:encode", "reductions.encoding:encode"),
    "collapse": ("models.collapse:collapse", "reductions.collapse:collapse"),
    "tempering": ("search.pool:sample_pool",),
    "elimination plan": (
        "references.exact.elimination:plan",
        "references.mini_bucket.order:elimination_order",
        "elimination.exact.elimination:plan",
        "elimination.order:choose_order",
        "elimination.order:Orders",
        "uppers.mini_bucket.order:elimination_order",
    ),
}
"""What is prepared -> who does it (functions, or classes by being made), here or in an older tree.

A call inside another one of the same kind is not counted again."""

_PROGRAM = """
import functools, importlib, json, sys, threading
import numpy as np
import tightz as tz

def grid():
    model = tz.ising_grid(20, coupling=(-1, 1), field=(-1, 1), seed=0)
    return tz.log_partition(model, time_limit=SECONDS, seed=0, exact=False)

def network():
    table = np.array([[0.9, 0.1], [0.3, 0.7]])
    factors = [((0,), np.array([0.4, 0.6]))] + [((k, k + 1), table) for k in range(9)]
    model = tz.FactorGraph([2] * 10, factors, evidence={9: 1})
    return tz.log_partition(model, time_limit=5, seed=0)

def loaded():
    return sum(name.partition(".")[0] == "tightz" for name in sys.modules)

calls = {kind: [] for kind in PREPARED}

def size(model):
    return getattr(model, "n_variables", getattr(model, "n", 0))

def whole(sizes):
    of_all = sizes.count(max(sizes, default=0))
    return of_all if of_all == len(sizes) else f"{of_all}, {len(sizes)} with parts of it"

inside = threading.local()

def counted(function, kind, model=0):
    @functools.wraps(function)
    def call(*given, **named):
        outer, inside.kind = getattr(inside, "kind", None), kind
        if outer != kind:
            calls[kind].append(size(given[model]) if len(given) > model else 0)
        try:
            return function(*given, **named)
        finally:
            inside.kind = outer
    return call

def watch():
    for kind, places in PREPARED.items():
        for place in places:
            module, _, name = place.partition(":")
            try:
                function = getattr(importlib.import_module("tightz." + module), name)
            except (ImportError, AttributeError):
                continue
            if isinstance(function, type):
                function.__init__ = counted(function.__init__, kind, model=1)
                continue
            stand_in = counted(function, kind)
            for known in [m for n, m in sys.modules.items() if n.partition(".")[0] == "tightz"]:
                for alias, thing in list(vars(known).items()):
                    if thing is function:
                        setattr(known, alias, stand_in)

if TASK == "calls":
    importlib.import_module(tz._HOME["log_partition"])
    watch()
    grid()
    print(json.dumps({f"calls of {k}, 20x20 grid": whole(c) for k, c in calls.items()}))
else:
    {"grid": grid, "network": network}[TASK]()
    names = {"grid": "20x20 grid", "network": "Bayesian network"}
    print(json.dumps({f"modules loaded, {names[TASK]}": loaded()}))
"""


def measured(tree: Path, seconds: float = 10.0) -> dict[str, Any]:
    """Modules that one `log_partition` loads, and how often it prepares the model."""
    found: dict[str, Any] = {}
    for task in ("grid", "network", "calls"):
        head = f"SECONDS = {seconds!r}\nTASK = {task!r}\nPREPARED = {PREPARED!r}\n"
        done = subprocess.run(
            [sys.executable, "-c", head + _PROGRAM],
            env={**os.environ, "PYTHONPATH": str(tree.resolve().parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{tree}: {task}\n{done.stderr}")
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures side by side as a Markdown table."""
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = ["| |" + "".join(f" {name} |" for name in columns), "|---|" + "---|" * len(columns)]
    lines += [f"| {r} |" + "".join(f" {c.get(r, '')} |" for c in columns.values()) for r in rows]
    return "\n".join(lines)


# The picture --------------------------------------------------------------------------------

GROUND = ("errors", "shown", "version", "bounds", "plots", "results", "runtime")
"""Used nearly everywhere: drawn as one bar, without arrows."""

LEFT_OUT = (*GROUND, "__init__", "__main__")
"""Without a box: the ground, and the public names, which lead everywhere."""

SHADES = {
    "#cfe0f3": ("models", "projections", "elimination", "reductions", "workspace"),
    "#f6dfa6": ("judge",),
    "#d3ead2": ("propagation", "families", "search", "uppers", "sampling", "splitting", "paper"),
    "#f3d3cb": ("interval", "reports", "cli"),
}
"""The model and what is known about it, the judge, methods, answers."""

BOX, GAP, ROW, HEIGHT, WAY = 190, 22, 80, 48, 26
"""Width of a unit, space between two, rows apart, height of a unit, width of a passing arrow."""

STARTS = 40
"""Random orders from which the rows are untangled."""

Place = tuple[str, str, int] | str
"""A unit, or the point where an arrow from one unit to another passes a row between."""


def picture(house: House) -> str:
    """The graph of units as SVG: rows by longest path, arrows to what builds on a unit.

    Arrows that a longer path implies are left out. Colours carry on light and on dark pages.
    """
    graph, arrows = drawn(house)
    rows = _untangled(*_rows(graph, arrows))
    width = max(_width(row) for row in rows) + 2 * GAP
    where = {p: xy for k, row in enumerate(rows) for p, xy in _spread(row, k, width)}
    height = len(rows) * ROW + HEIGHT + 2 * GAP
    ways = [
        f'<path d="{_way([where[p] for p in _passed(a, b, rows)])}" marker-end="url(#tip)">'
        f"<title>{b} builds on {a}</title></path>"
        for a, b in arrows
    ]
    boxes = [_box(p, *where[p]) for row in rows for p in row if isinstance(p, str)]
    ground = " · ".join(unit for unit in GROUND if unit in house.units)
    bar = (
        f'<rect x="{GAP}" y="{height - GAP - HEIGHT}" width="{width - 2 * GAP}" height="{HEIGHT}" '
        'rx="7" fill="#e4e4e4"/>'
        f'<text x="{width / 2}" y="{height - GAP - HEIGHT / 2 - 4}" class="name">'
        f'below everything</text><text x="{width / 2}" y="{height - GAP - HEIGHT / 2 + 14}" '
        f'class="words">{escape(ground)}</text>'
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="Units of {house.name}: an arrow '
        'leads from a unit to one that builds on it">',
        "<style>text{font-family:system-ui,sans-serif;text-anchor:middle;fill:#1b2a41}"
        ".name{font-size:15px;font-weight:600}.words{font-size:12px}"
        "path{fill:none;stroke:#7b8da6;stroke-width:1.8}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0.5 L7,4 L0,7.5 z" '
        'style="fill:#7b8da6;stroke:none"/></marker></defs>',
        *ways,
        *boxes,
        bar,
        "</svg>\n",
    ])  # fmt: skip


def drawn(house: House) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """The units with a box, and the arrows between them."""
    graph = {
        unit: {t for t in targets if t not in LEFT_OUT}
        for unit, targets in sorted(house.unit_imports.items())
        if unit not in LEFT_OUT
    }
    return graph, [(t, u) for u, targets in reduction(graph).items() for t in sorted(targets)]


def _rows(
    graph: dict[str, set[str]], arrows: list[tuple[str, str]]
) -> tuple[list[list[Place]], list[tuple[Place, Place]]]:
    """Units by the length of the longest path below them, and arrows cut at every row."""
    height: dict[str, int] = {}
    for unit in sorted(graph, key=lambda u: len(_reachable(graph, u))):
        height[unit] = max((height[t] + 1 for t in graph[unit]), default=0)
    for unit in sorted(graph, key=lambda u: -height[u]):  # no more arrows in than out: sink
        users = [height[b] for a, b in arrows if a == unit]
        if len(users) >= sum(b == unit for _, b in arrows) > 0:
            height[unit] = min(users) - 1
    rows: list[list[Place]] = [[] for _ in range(max(height.values(), default=0) + 1)]
    for unit in (u for u in ORDER if u in height):
        rows[height[unit]].append(unit)
    steps: list[tuple[Place, Place]] = []
    for a, b in arrows:
        between: list[Place] = [(a, b, k) for k in range(height[a] + 1, height[b])]
        for place in between:
            rows[place[2]].append(place)  # type: ignore[index]
        path: list[Place] = [a, *between, b]
        steps += pairwise(path)
    return rows, steps


def _untangled(rows: list[list[Place]], steps: list[tuple[Place, Place]]) -> list[list[Place]]:
    """Rows reordered, one at a time, while that lessens crossings and detours; best of a few."""

    def cost(rows: list[list[Place]]) -> float:
        width = max(map(_width, rows))
        where = {p: xy for k, row in enumerate(rows) for p, xy in _spread(row, k, width)}
        lines = [(where[a], where[b]) for a, b in steps]
        crossed = sum(
            a[1] == c[1] and (a[0] - c[0]) * (b[0] - d[0]) < 0
            for k, (a, b) in enumerate(lines)
            for c, d in lines[:k]
        )
        return 1000.0 * crossed + sum(abs(a[0] - b[0]) for a, b in lines)

    def settled(rows: list[list[Place]]) -> tuple[float, list[list[Place]]]:
        least, before = cost(rows), math.inf
        while least < before:
            before = least
            for k, row in enumerate(rows):
                for i, j in product(range(len(row)), repeat=2):
                    moved = rows[k][:i] + rows[k][i + 1 :]
                    moved.insert(j, rows[k][i])
                    trial = [*rows[:k], moved, *rows[k + 1 :]]
                    if (now := cost(trial)) < least:
                        least, rows = now, trial
        return least, rows

    rng = random.Random(0)
    starts = [[rng.sample(row, len(row)) for row in rows] for _ in range(STARTS)]
    return min(map(settled, starts), key=lambda found: found[0])[1]


def _width(row: list[Place]) -> int:
    return sum(BOX if isinstance(p, str) else WAY for p in row) + GAP * (len(row) - 1)


def _spread(row: list[Place], k: int, width: int) -> Iterator[tuple[Place, tuple[float, float]]]:
    """Centres of a row's places, the row centred."""
    x = (width - _width(row)) / 2
    for place in row:
        wide = BOX if isinstance(place, str) else WAY
        yield place, (x + wide / 2, GAP + k * ROW + HEIGHT / 2)
        x += wide + GAP


def _passed(a: str, b: str, rows: list[list[Place]]) -> list[Place]:
    between = [p for row in rows for p in row if not isinstance(p, str) and p[:2] == (a, b)]
    return [a, *between, b]


def _way(points: list[tuple[float, float]]) -> str:
    """An arrow from the foot of the first box to the head of the last, upright at every row."""
    x, y = points[0][0], points[0][1] + HEIGHT / 2
    path = f"M{x:.0f},{y:.0f}"
    for k, (nx, ny) in enumerate(points[1:], 1):
        last = k == len(points) - 1
        end = ny - HEIGHT / 2
        middle = (y + end) / 2
        path += f" C{x:.0f},{middle:.0f} {nx:.0f},{middle:.0f} {nx:.0f},{end - 2 * last:.0f}"
        x, y = nx, end
        if not last:
            y = ny + HEIGHT / 2
            path += f" L{x:.0f},{y:.0f}"
    return path


def _box(unit: str, x: float, y: float) -> str:
    shade = next((s for s, units in SHADES.items() if unit in units), "#e4e4e4")
    return (
        f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" '
        f'rx="7" fill="{shade}"/><text x="{x:.0f}" y="{y - 4:.0f}" class="name">{unit}</text>'
        f'<text x="{x:.0f}" y="{y + 14:.0f}" class="words">{escape(ORDER.get(unit, ""))}</text>'
    )


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    task = words[0] if words and words[0] in ("compare", "picture") else "show"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--run", action="store_true", help="also make one log_partition per tree")
    given = parser.parse_args(words[task != "show" :])
    if task == "picture":
        given.paths[0].write_text(picture(House(given.paths[1] if given.paths[1:] else TREE)))
        return
    trees = given.paths or [TREE]
    names = ("before", "after") if task == "compare" else map(str, trees)
    columns = {
        name: House(tree.resolve()).figures() | (measured(tree) if given.run else {})
        for name, tree in zip(names, trees, strict=True)
    }
    print(table(columns))
    if task == "show":
        house = House(trees[0].resolve())
        for line in house.backwards():
            print("against the order:", line)
        for ring in cycles(house.imports):
            print("cycle:", ", ".join(sorted(ring)))


if __name__ == "__main__":
    main()
