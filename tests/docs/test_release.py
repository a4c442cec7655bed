"""A release: its check finds a missing contact and versions that differ, and the files that it publishes exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = ROOT / ".ci" / "check_release.py"
FILES = "SECURITY.md", "CHANGELOG.md", "CITATION.cff", "securevfl/base/version.py"
pytestmark = pytest.mark.skipif(not CHECK.exists(), reason="needs a checkout")


def checked(folder: Path) -> tuple[int, str]:
    """Return the exit status of the check and the problems that it prints."""
    done = subprocess.run([sys.executable, str(CHECK), str(folder)], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a folder with the checked files, with a contact and a dated changelog."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    security, changelog = tmp_path / "SECURITY.md", tmp_path / "CHANGELOG.md"
    security.write_text(re.sub(r"^Contact:.*$", "Contact: security@example.org", security.read_text(), flags=re.M))
    dated = re.sub(r"^## \[Unreleased\]$", "## [0.1.0] - 2026-12-01", changelog.read_text(), count=1, flags=re.M)
    changelog.write_text(dated)
    return tmp_path


def test_a_release_with_contact_and_date_is_ready(ready: Path) -> None:
    assert checked(ready) == (0, "")


@pytest.mark.parametrize(
    "contact", ["Contact:", "Contact: to be filled in", "Contact: a@example.org\nContact: b@example.org"]
)
def test_a_release_without_one_contact_is_refused(ready: Path, contact: str) -> None:
    path = ready / "SECURITY.md"
    path.write_text(path.read_text().replace("Contact: security@example.org", contact))
    status, problems = checked(ready)
    assert status == 1
    assert problems.startswith("SECURITY.md names no security contact.")


def test_a_release_with_another_version_is_refused(ready: Path) -> None:
    (ready / "securevfl/base/version.py").write_text('__version__ = "0.2.0"\n')
    status, problems = checked(ready)
    assert status == 1
    assert "CHANGELOG.md" in problems
    assert "CITATION.cff" in problems


def test_the_contact_is_in_one_place() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [*(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"^Contact:", page.read_text(), re.M)] == []
    assert len(re.findall(r"^Contact:", (ROOT / "SECURITY.md").read_text(), re.M)) == 1


def test_changelog_and_citation_have_the_usual_form() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^### (.*)$", changelog, re.M)
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert all(
        re.fullmatch(r"\[Unreleased\]|\[[\d.]+\] - [\d-]+", head) for head in re.findall(r"^## (.*)$", changelog, re.M)
    )
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    papers = [("Liu", 2019), ("Hu", 2019), ("Fu", 2022), ("Gu", 2020), ("Liu", 2018)]
    first = re.findall(r"year: (\d+)\n    authors: \[\{family-names: (\w+),", citation)
    assert [(name, int(year)) for year, name in first] == papers
    assert len(re.findall(r"^    doi: 10\.\d{4,}/\S+$", citation, re.M)) == len(papers)
    conferences = citation.count("type: conference-paper")
    assert conferences == len(re.findall(r'^    conference: \{name: "', citation, re.M)) > 0


def test_the_workflow_runs_the_command_of_ci() -> None:
    assert "run: bash .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["keywords"]
    tested = [line for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    versions = re.findall(r'python-version: "(3\.\d+)"', (ROOT / ".github/workflows/ci.yml").read_text())
    assert [line.rpartition(" ")[2] for line in tested] == versions
