"""Real text that every machine has: the docstrings of the Python standard library, one row each.

Files are read and parsed, never imported, in sorted order; so the same Python gives the same rows with the same ids.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SKIPPED = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


def docstring_rows(limit: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Up to `limit` rows `(id, {"name", "text"})`; the id is `module:qualified name`."""
    count = 0
    for path in _sources():
        for name, text in _docstrings(path):
            if count >= limit:
                return
            count += 1
            yield name, {"name": name, "text": text}


def _sources() -> Iterator[Path]:
    for folder, folders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        # Pruned on the way down: site-packages may hold a hundred thousand files.
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name)


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    root = Path(sysconfig.get_paths()["stdlib"])
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    seen: set[str] = set()
    for name, node in _documented(tree, ""):
        text = ast.get_docstring(node)
        key = f"{module}:{name}"
        # A name may be defined twice, under an `if`: the first counts, since ids are unique.
        if text and key not in seen:
            seen.add(key)
            yield key, text


NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _documented(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    """`node` and all that is defined in it, also under an `if` or a `try`, with qualified names."""
    yield name or "(module)", node
    todo = list(ast.iter_child_nodes(node))
    while todo:
        child = todo.pop(0)
        if isinstance(child, NAMED):
            yield from _documented(child, f"{name}.{child.name}" if name else child.name)
        elif isinstance(child, (ast.If, ast.Try)):
            todo[:0] = ast.iter_child_nodes(child)
