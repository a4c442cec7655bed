"""The build context of the container: it has all that the image is built from, and no key, ledger or table."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import translate
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
IGNORE, CONTAINERFILE = ROOT / ".dockerignore", ROOT / "examples" / "Containerfile"
PACKAGES = "securevfl", "crypto", "protocols"
SECRETS = (
    "bank.key",
    "kit/shop.key",
    "kit/authority/ca.key",
    "shop.ledger",
    "securevfl/shop.ledger",
    "securevfl/kit/shop.key",
    "securevfl/kit/ca.pem",
    "crypto/customers.csv",
    "token",
    "customers.csv",
    "shop.model.json",
    "shop.csv.ahead/0",
    ".git/config",
    ".venv/bin/python",
    "tests/conftest.py",
    "build/site/index.html",
    "securevfl/cli/__pycache__/main.cpython-311.pyc",
)
pytestmark = pytest.mark.skipif(not IGNORE.exists(), reason="needs a checkout")


class IgnoreFile:
    """The rules of a .dockerignore file, of which the last one that matches a file or a folder above it decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [
            (not line.startswith("!"), _pattern(line.removeprefix("!").strip("/")))
            for line in lines
            if line and not line.startswith("#")
        ]

    def contains(self, name: str) -> bool:
        """Return whether a file belongs to the context."""
        path = PurePosixPath(name)
        names = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
        ignored = False
        for ignores, pattern in self._rules:
            if any(pattern.fullmatch(part) for part in names):
                ignored = ignores
        return not ignored


def _pattern(rule: str) -> re.Pattern[str]:
    """Return the expression of a rule, in which * stays within a folder and **/ is any number of folders."""
    parts = []
    for part in rule.split("/"):
        if part == "**":
            parts.append("(?:[^/]+/)*")
        else:
            within = translate(part).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
            parts.append(within.replace(".*", "[^/]*") + "/")
    return re.compile("".join(parts).removesuffix("/"))


def context() -> list[str]:
    """Return the files of the build context among those of the checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a checkout of git")
    rules = IgnoreFile(IGNORE.read_text(encoding="utf-8"))
    return [name for name in listed.stdout.splitlines() if rules.contains(name)]


@pytest.mark.parametrize(
    ("rules", "name", "contained"),
    [
        ("*\n!a", "a/b/c.py", True),
        ("*\n!a", "b/a", False),
        ("*\n!a\n**/*.pyc", "a/b/c.pyc", False),
        ("**/__pycache__", "__pycache__/x", False),
        ("**/__pycache__", "a/b/__pycache__/x", False),
        ("*.key", "a.key", False),
        ("*.key", "a/b.key", True),  # a rule without a slash is about the top folder, unlike one of git
        ("# a\n", "a", True),
    ],
)
def test_rules_are_read_as_docker_reads_them(rules: str, name: str, contained: bool) -> None:
    assert IgnoreFile(rules).contains(name) is contained


@pytest.mark.parametrize("name", SECRETS)
def test_no_key_ledger_or_table_is_in_the_context(name: str) -> None:
    assert not IgnoreFile(IGNORE.read_text(encoding="utf-8")).contains(name)


def test_the_context_has_every_file_that_the_image_names() -> None:
    files = set(context())
    for name in re.findall(r"/source/([\w.]+)", CONTAINERFILE.read_text(encoding="utf-8")):
        assert name in files, name
    assert {name.partition("/")[0] for name in files} == {
        *PACKAGES,
        "pyproject.toml",
        "requirements.lock",
        "README.md",
        "LICENSE",
    }


@pytest.mark.long
def test_a_wheel_of_the_context_alone_has_every_module(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in context():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    built = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    expected = {
        name if name.startswith("securevfl/") else f"securevfl/{name}"
        for name in context()
        if name.endswith((".py", ".typed")) and name.partition("/")[0] in PACKAGES
    }
    assert expected <= built
    assert any(name.endswith("letters_1.txt") for name in built)
