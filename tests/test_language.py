"""How docstrings read: functions are held by ruff's D401 (a verb first), classes and properties by this."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import securevfl as vfl

PACKAGE = Path(vfl.__file__).parent
FEWEST = 6  # words of what stands for a thing and is no sentence about it
BEFORE_A_NOUN = {
    *("after", "as", "at", "before", "beside", "by", "for", "from", "in"),
    *("of", "on", "to", "under", "where", "with", "without"),
}


def modules(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from modules(path)
        elif path.suffix == ".py":
            yield path


def poor(source: str) -> list[str]:
    """The names whose docstrings are too short or hang on a preposition."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        words = (ast.get_docstring(node) or "").split("\n\n")[0].split()
        stands_for_a_thing = isinstance(node, ast.ClassDef) or any(
            "property" in ast.unparse(each) for each in node.decorator_list
        )
        hangs = bool(words) and words[0].lower().strip(".,:") in BEFORE_A_NOUN
        if hangs or 0 < len(words) < FEWEST * stands_for_a_thing:
            found.append(node.name)
    return found


def test_docstrings_say_what_a_thing_is() -> None:
    found = {str(path.relative_to(PACKAGE)): names for path in modules(PACKAGE) if (names := poor(path.read_text()))}
    assert not found


def test_what_is_poor_is_found() -> None:
    source = '''
class Sum:
    """Of several."""
    @property
    def total(self):
        """All of it."""
    def add(self):
        """In the ring of integers modulo a power of two."""
    def take(self):
        """Take one."""
'''
    assert poor(source) == ["Sum", "total", "add"]
