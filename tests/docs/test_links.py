"""Every link of every page resolves: in the repository, as its files are committed, and on the site."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs a checkout")


def committed() -> set[str]:
    """Return the committed files, and their folders."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a checkout of git")
    files = listed.stdout.splitlines()
    return {*files, *(str(parent) for name in files for parent in PurePosixPath(name).parents)}


def text_of(page: Path) -> str:
    """Return a page without code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda span: re.sub(r"[\[\]()]", "", span[0]), text)


def heading_words(heading: str) -> str:
    """Return the words of a heading without marks, links and code."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()


def repository_anchor(heading: str) -> str:
    """Return the anchor of a heading as GitHub forms it."""
    return re.sub(r"[^\w\- ]", "", heading_words(heading)).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """Return the anchor of a heading as mkdocs forms it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading_words(heading)).strip())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page that resolve both in the repository and on the site."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {repository_anchor(heading) for heading in headings} & {site_anchor(heading) for heading in headings}


def links(page: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield the target, relative to the root of the repository, and the anchor of each relative link."""
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        yield str(path.relative_to(ROOT)), anchor


def broken(page: Path, text: str, files: set[str]) -> list[str]:
    """Return the links of a page that resolve in one place at most."""
    results = []
    for target, anchor in links(page, text):
        if (
            target not in files
            or (anchor and anchor not in anchors(ROOT / target))
            or (page.parent == DOCS and not target.startswith("docs/"))
        ):
            results.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    return results


def pages() -> list[Path]:
    return [ROOT / name for name in sorted(committed()) if name.endswith(".md")]


def test_every_link_resolves_in_the_repository_and_on_the_site() -> None:
    files = committed()
    assert len(list(DOCS.glob("*.md"))) > 30
    assert [link for page in pages() for link in broken(page, text_of(page), files)] == []


@pytest.mark.parametrize("link", ["[a](none.md)", "[a](start.md#none)", "[a](#none)", "[a](../pyproject.toml)"])
def test_a_broken_link_is_found(link: str) -> None:
    assert broken(DOCS / "index.md", link, committed())


def test_every_page_of_the_folder_is_in_the_menu() -> None:
    menu = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {page.name for page in DOCS.glob("*.md")} == menu
