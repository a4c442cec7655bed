"""Prose and names are in the field's words: a vocabulary check over docstrings, comments, messages and identifiers.

The phrases below belonged to a private dialect that new readers did not understand. A few uses of each are right, so
their number for each 1,000 words is bounded, and not each of them. Docstrings are checked by ruff (pydocstyle)
and pydoclint in `make check`.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ("crypto", "protocols", "securevfl")
PHRASES = {
    "disclose, report, send": r"tell(s|ing)?|told",
    "state, print, report": r"says?|said",
    "name the party": r"whoever|who (asks|knows|gets|reads|collects|deviates)",
    "give the number": r"(so|as) (many|few)",
    "continue, resume": r"(go|goes|gone|went|going) (on|through|by|beside|together)",
    "arrive, result": r"comes|came",
    "write a second sentence": r"(of|in|by|from|with) (which|whom)",
    "again": r"anew",
    "next to, in addition to": r"beside",
    "is stored, is located": r"stands?|lies|lay",
    "precomputed": r"made ahead|work ahead",
    "problem, then remedy": r"(was|were) expected",
    "restore": r"put (back|down|off)",
    "is single-use, is missing": r"(is|are) none|serves? once",
    "stored, cached": r"(is|are|was|were) kept",
}
COMPILED = {advice: re.compile(rf"\b({pattern})\b", re.IGNORECASE) for advice, pattern in PHRASES.items()}
VAGUE_NAMES = frozenset(
    (
        *("found", "own", "each", "told", "said", "made", "kept", "held", "whole"),
        *("rest", "asked", "taken", "given", "shown", "wanted", "gone", "beside"),
    )
)
MAX_SENTENCE_WORDS = 24  # in the mean of a page; the aim is 18
READER_PAGES = ("README.md", "docs/index.md", "docs/start.md", "docs/which-mode.md", "docs/two-organisations.md")


def modules(*folders: str) -> Iterator[Path]:
    """Yield the Python files of folders; links are followed by their targets alone."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in (path, *path.parents) if part != ROOT):
                yield path


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, message and comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def vague_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable, parameter and attribute with a name that means nothing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name.lstrip("_") in VAGUE_NAMES:
            yield node.lineno, name


def phrases(text: str) -> list[str]:
    """Return the advice for each phrase of the dialect in a text."""
    return [advice for advice, pattern in COMPILED.items() for _ in pattern.findall(text)]


@pytest.mark.parametrize(("folders", "most"), [(PACKAGE, 5.0), (("tests",), 3.0)], ids=["package", "tests"])
def test_prose_is_in_the_words_of_the_field(folders: tuple[str, ...], most: float) -> None:
    words, hits = 0, []
    for path in modules(*folders):
        if path == Path(__file__):
            continue
        for line, text in prose(path.read_text(encoding="utf-8")):
            words += len(text.split())
            hits += [f"{path.relative_to(ROOT)}:{line}: {advice}" for advice in phrases(text)]
    rate = 1000 * len(hits) / words
    assert rate <= most, f"{rate:.1f} phrases in 1,000 words:\n" + "\n".join(hits[:40])


@pytest.mark.parametrize(("folders", "most"), [(PACKAGE, 60), (("tests",), 40)], ids=["package", "tests"])
def test_names_state_what_a_value_is(folders: tuple[str, ...], most: int) -> None:
    names = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(*folders)
        for line, name in vague_names(path.read_text(encoding="utf-8"))
    ]
    assert len(names) <= most, "\n".join(names[:40])


def test_no_message_says_that_something_was_expected_and_came() -> None:
    pattern = re.compile(r"\b(was|were) expected\b.*\b(came|come)\b")
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(*PACKAGE)
        for line, text in prose(path.read_text(encoding="utf-8"))
        if pattern.search(text)
    ]
    assert not places


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="not in a checkout")
@pytest.mark.parametrize("page", READER_PAGES)
def test_sentences_of_the_first_pages_are_short(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"^\s*(\||#|!).*$", "", text, flags=re.M)
    blocks = [" ".join(block.split()) for block in text.split("\n\n")]
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.?:])\s+(?=[A-Z*`])", block) if sentence]
    assert statistics.fmean(len(sentence.split()) for sentence in sentences) <= MAX_SENTENCE_WORDS


def test_the_checks_find_what_they_look_for() -> None:
    source = '''
def f(own, rows):
    """Whoever asks is told anew."""
    found = [each for each in own]  # what came
    return found
'''
    assert [name for _, name in sorted(vague_names(source))] == ["own", "each", "found"]
    assert sorted(advice for _, text in prose(source) for advice in phrases(text)) == sorted(
        ["again", "arrive, result", "disclose, report, send", "name the party"]
    )
