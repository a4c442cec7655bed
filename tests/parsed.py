"""Source files of the package and of its tests, each parsed at most once in a process.

The checks of structure, names, words, errors and arguments all read the same files. Parsing the package takes 2
processor seconds, or 4 while the garbage collector visits the new trees, and reading the comments by `tokenize` 3 more.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import securevfl as vfl

ROOT = Path(__file__).parents[1]
PACKAGE = Path(vfl.__file__).parent
STRING_OR_COMMENT = re.compile(
    r"""("{3}|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(#[^\n]*)""", re.DOTALL
)

Nodes = dict[Path, list[ast.AST]]
"""The nodes of the syntax tree of each module, of which the first is the module itself."""


@cache
def files_of_package() -> tuple[Path, ...]:
    """Return the modules of the package by name, with those behind the links crypto/ and protocols/."""
    folders = (PACKAGE, PACKAGE / "crypto", PACKAGE / "protocols")  # rglob does not follow links
    return tuple(sorted({path for folder in folders for path in folder.rglob("*.py")}))


@cache
def files_of_tests() -> tuple[Path, ...]:
    """Return the modules of the tests by name."""
    return tuple(sorted((ROOT / "tests").rglob("*.py")))


@cache
def nodes_of_package() -> Nodes:
    """Return the nodes of each module of the package."""
    return _all_nodes(files_of_package())


@cache
def nodes_of_tests() -> Nodes:
    """Return the nodes of each module of the tests."""
    return _all_nodes(files_of_tests())


def nodes(source: str) -> list[ast.AST]:
    """Return the nodes of a syntax tree, of which the first is the module."""
    return list(ast.walk(ast.parse(source)))


def _all_nodes(paths: tuple[Path, ...]) -> Nodes:
    gc.collect()
    gc.disable()
    parsed = {path: nodes(path.read_text(encoding="utf-8")) for path in paths}
    gc.freeze()  # the trees live until the process ends, and no later collection needs to visit them
    gc.enable()
    return parsed


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment."""
    for match in STRING_OR_COMMENT.finditer(source):
        if match[2]:
            yield source.count("\n", 0, match.start()) + 1, match[2]
