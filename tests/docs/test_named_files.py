"""Every file, module and name that a page mentions exists, so that pages follow moved files."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.made_pages import MADE

ROOT = Path(__file__).parents[2]
OWN = "benchmarks", "crypto", "docs", "examples", "protocols", "securevfl", "tests"
PAGES = [
    page
    for page in (
        *sorted(ROOT.glob("*.md")),
        *(page for folder in OWN for page in sorted((ROOT / folder).rglob("*.md"))),
    )
    if page.name != "CHANGELOG.md" and "fixtures" not in page.parts  # the change log names former files
]
ROOMS = {path.name for path in (ROOT / "securevfl").glob("*") if path.is_dir() and not path.name.startswith("_")}
SOURCES = "benchmarks", "crypto", "protocols", "securevfl"
SPAN = re.compile(r"`([^`\n]+)`")
THEIRS = re.compile(r"(?:FATE|SecretFlow|NVFlare|Flower|VFLAIR)\s+`[^`\n]+`")  # files of other projects

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs a checkout")


def spans(text: str) -> Iterator[str]:
    """Yield the text between backquotes outside of fenced blocks."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from SPAN.findall(THEIRS.sub("", outside))


def files() -> set[str]:
    return {path.name for local in OWN for path in (ROOT / local).rglob("*.py")}


def missing_files(page: Path, text: str, known: set[str]) -> Iterator[str]:
    """Return missing paths below the project's folders, Python files named alone, and links to files."""
    for span in spans(text):
        path = span.split()[1] if re.match(r"python [\w/]+\.py\b", span) else span.partition(" ")[0]
        path = path.partition("::")[0]
        inside = re.fullmatch(r"[\w./-]+", path) and path.partition("/")[0] in OWN and "/" in path
        if inside and not any((base / path).exists() for base in (ROOT, ROOT / "securevfl")):
            yield path
        if re.fullmatch(r"\w+\.py", path) and path not in known:
            yield path
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", text):
        if target.removeprefix("docs/").removesuffix(".md") in MADE:
            continue  # `mkdocs build --strict` checks these
        if "://" not in target and not (page.parent / target).exists():
            yield target
        elif anchor and target.endswith(".md") and anchor[1:] not in _anchors(page.parent / target):
            yield target + anchor


@cache
def _anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links."""
    headings = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def missing_names(page: Path, text: str) -> Iterator[str]:
    """Return missing dotted names that begin with the package, `vfl` or a room, and missing targets of `python -m`.

    A page that is stored in a room may omit that room's name.
    """
    neighbours = f"securevfl.{page.parent.name}." if page.parent.name in ROOMS else None
    for module in re.findall(r"python -m (securevfl[\w.]*)", text):
        if not _exists(module):
            yield module
    for span in spans(text):
        result = re.match(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w/-])", span)
        if result is None or result[1].rpartition(".")[2] in ("py", "toml", "json", "md"):
            continue
        first, _, remaining = result[1].partition(".")
        if first in ("vfl", "securevfl"):
            name = f"securevfl.{remaining}"
        elif first in ROOMS and "=" not in span:
            name = f"securevfl.{result[1]}"
        else:
            continue
        if not _exists(name) and not (neighbours and _exists(neighbours + result[1])):
            yield result[1]


def _exists(name: str) -> bool:
    """Return whether a dotted name is a file or folder of the package, or is defined by the longest such one.

    Sources are parsed and not imported, because importing all of them would take seconds.
    """
    parts = name.split(".")
    for upto in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:upto])
        source = next((item for item in (place.with_suffix(".py"), place / "__init__.py") if item.exists()), None)
        if source is not None:
            return upto == len(parts) or _defines(_text(source), parts[upto])
    return False


@cache
def _text(source: Path) -> str:
    return source.read_text(encoding="utf-8")


@cache
def _defines(source: str, name: str) -> bool:
    ways = rf"(?:class|def) {name}\b", rf"^{name}\b.* = ", rf"^ *from .* import .*\b{name}\b", rf'^    "{name}",$'
    return any(re.search(way, source, re.MULTILINE) for way in ways)


def missing_tables(text: str) -> Iterator[str]:
    """Return the names in `NAME` in `path.py` that the file does not have."""
    for names, path in re.findall(r"((?:`\w+`(?:,| or| and)?\s+)+)(?:in|of)\s+`([\w/]+\.py)`", text):
        places = (ROOT, ROOT / "securevfl", ROOT / "tests" / "one_more")
        held_out = next((base / path for base in places if (base / path).exists()), None)
        source = held_out.read_text(encoding="utf-8") if held_out else ""
        yield from (f"{name} in {path}" for name in SPAN.findall(names) if not re.search(rf"\b{name}\b", source))


def _by_page(missing: Callable[[Path, str], Iterator[str]]) -> dict[str, list[str]]:
    text = {str(page.relative_to(ROOT)): sorted(missing(page, page.read_text(encoding="utf-8"))) for page in PAGES}
    return {page: names for page, names in text.items() if names}


def test_files_and_links_of_pages_exist() -> None:
    known = files()
    assert len(PAGES) > 30
    assert _by_page(lambda page, text: missing_files(page, text, known)) == {}


def test_modules_and_names_of_pages_exist() -> None:
    assert _by_page(missing_names) == {}


def test_names_in_a_named_file_are_in_it() -> None:
    assert _by_page(lambda page, text: missing_tables(text)) == {}


def test_files_and_names_in_docstrings_exist() -> None:
    known = files()
    results: dict[str, list[str]] = {}
    for source in (path for local in SOURCES for path in sorted((ROOT / local).rglob("*.py"))):
        text = _text(source)
        missing = {name for name in re.findall(r"[( ](\w+\.py)\b", text) if name not in known}
        if missing or (missing := set(missing_names(source, text))):
            results[str(source.relative_to(ROOT))] = sorted(missing)
    assert results == {}


def _walks() -> dict[str, str]:
    """Return the sections of the page that follow a thing from file to file, by heading."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sections = [part.partition("\n") for part in page.split("\n## ")[1:]]
    return {head: text for head, _, text in sections if head.startswith(("In ten lines: ", "The way of "))}


def _definitions(path: str) -> set[str]:
    """Return the names that a file defines: functions, classes and their methods, constants."""
    result: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.add(node.name)
        if isinstance(node, ast.ClassDef):
            result |= {f"{node.name}.{target.name}" for target in node.body if isinstance(target, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            result |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return result


def test_a_job_a_residual_and_a_score_are_followed_in_few_stops() -> None:
    walks = _walks()
    assert {"The way of a job", "The way of a residual", "The way of a score"} <= walks.keys()
    for head, text in walks.items():
        assert 10 <= len(re.findall(r"^\d+\. ", text, re.MULTILINE)) <= 15, head


@pytest.mark.parametrize("head", _walks())
def test_walkthroughs_name_what_their_files_define(head: str) -> None:
    spans, path, missing = SPAN.findall(_walks()[head]), "", []
    for span in reversed(spans):  # a name precedes its file
        if span.endswith(".py"):
            path = span
        elif span not in _definitions(path):
            missing.append(f"{span} in {path}")
    assert len(spans) > 20
    assert not missing


def test_contributing_shows_every_example_with_its_test() -> None:
    page = _text(ROOT / "CONTRIBUTING.md")
    tests = _text(ROOT / "tests" / "test_one_more.py")
    examples = sorted((ROOT / "tests" / "one_more").glob("*.py"))
    assert [example.name for example in examples if f"`{example.name}`" not in page] == []
    assert {example for example in re.findall(r"`(test_an?_\w+)`", page) if f"def {example}(" not in tests} == set()
    displayed = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert displayed
    assert all(block in [_text(example) for example in examples] for block in displayed)


def test_moved_names_are_reported() -> None:
    """The checks find planted faults."""
    page = ROOT / "docs" / "index.md"
    missing = "`crypto/tall.py`, `visit_pair.py`, [a page](gone.md), [a word](glossary.md#gone), `crypto/prg.py`"
    missing += ", `python benchmarks/gone.py --only x`"
    assert sorted(missing_files(page, missing, files())) == [
        "benchmarks/gone.py", "crypto/tall.py", "glossary.md#gone", "gone.md", "visit_pair.py",
    ]  # fmt: skip
    wrong = (
        "`data.shelf`, `vfl.Jobs(model=1)`, `securevfl.gone`, python -m securevfl.cli.nothing, `data.store`, `vfl.Job`"
    )
    assert sorted(missing_names(page, wrong)) == ["data.shelf", "securevfl.cli.nothing", "securevfl.gone", "vfl.Jobs"]
    assert list(missing_tables("`TESTED_SUMS` or `NONE` in\n`tests/protocols/test_rounds.py`")) == [
        "NONE in tests/protocols/test_rounds.py"
    ]
