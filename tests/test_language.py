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
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import ROOT, Nodes, comments, nodes, nodes_of_package, nodes_of_tests

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


def prose(source: str, tree: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, message and comment."""
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    yield from comments(source)


@cache
def all_prose(trees: Callable[[], Nodes]) -> list[tuple[str, str]]:
    """Return the place and the text of each docstring, message and comment of the package or of the tests."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path, tree in trees().items()
        if path != Path(__file__)
        for line, text in prose(path.read_text(encoding="utf-8"), tree)
    ]


def vague_names(tree: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable, parameter and attribute with a name that means nothing."""
    for node in tree:
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


@pytest.mark.parametrize(("trees", "most"), [(nodes_of_package, 5.0), (nodes_of_tests, 3.0)], ids=["package", "tests"])
def test_prose_is_in_the_words_of_the_field(trees: Callable[[], Nodes], most: float) -> None:
    texts = all_prose(trees)
    hits = [f"{place}: {advice}" for place, text in texts for advice in phrases(text)]
    rate = 1000 * len(hits) / sum(len(text.split()) for _, text in texts)
    assert rate <= most, f"{rate:.1f} phrases in 1,000 words:\n" + "\n".join(hits[:40])


@pytest.mark.parametrize(("trees", "most"), [(nodes_of_package, 60), (nodes_of_tests, 40)], ids=["package", "tests"])
def test_names_state_what_a_value_is(trees: Callable[[], Nodes], most: int) -> None:
    names = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for path, tree in trees().items() for line, name in vague_names(tree)
    ]
    assert len(names) <= most, "\n".join(names[:40])


def test_no_message_says_that_something_was_expected_and_came() -> None:
    pattern = re.compile(r"\b(was|were) expected\b.*\b(came|come)\b")
    assert not [place for place, text in all_prose(nodes_of_package) if pattern.search(text)]


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
    assert [name for _, name in sorted(vague_names(nodes(source)))] == ["own", "each", "found"]
    assert sorted(advice for _, text in prose(source, nodes(source)) for advice in phrases(text)) == sorted(
        ["again", "arrive, result", "disclose, report, send", "name the party"]
    )


def test_comments_are_those_of_the_tokenizer() -> None:
    source = (
        Path(__file__).read_text(encoding="utf-8")
        + '''
a = "# none" + '#' + "\\"#"  # one "x
b = """
# none \\""" # none
"""  # don't
c = rf'\\'  # three
'''
    )
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    expected = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    assert list(comments(source)) == expected
    assert len(expected) >= 4
