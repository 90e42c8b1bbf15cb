"""Checks of how kernels are used, on the source."""

from __future__ import annotations

import ast
from pathlib import Path

from verification.kernels import kernel_functions

FOLDERS = ("src", "tests", "benchmarks", "peers", "verification")


def inner_called_from_python(root: Path) -> list[str]:
    """'file: name' where code that is not compiled calls an inner kernel."""
    files = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in files}
    inner = {
        (_module(root, path), kernel.name)
        for path, tree in trees.items()
        for kernel in kernel_functions(tree)
        if any(ast.unparse(d).startswith("inner") for d in kernel.decorator_list)
    }
    wrong = []
    for path, tree in trees.items():
        names = {name: (_module(root, path), name) for name in {n for _, n in inner}}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        compiled = {n for k in kernel_functions(tree) for n in ast.walk(k)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or node in compiled:
                continue
            called = node.func
            if isinstance(called, ast.Name) and names.get(called.id) in inner:
                wrong.append(f"{path.relative_to(root).as_posix()}: {called.id}")
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                module = ".".join(names.get(called.value.id, ("", "")))
                if (module, called.attr) in inner:
                    wrong.append(f"{path.relative_to(root).as_posix()}: {called.attr}")
    return wrong


def _module(root: Path, path: Path) -> str:
    relative = path.relative_to(root)
    parts = relative.parts[1:] if relative.parts[0] == "src" else relative.parts
    return ".".join(Path(*parts).with_suffix("").parts)
