"""Code blocks of the documentation are valid: job files are read and commands are parsed by the command line.

`test_pages.py`, `test_start.py` and tests/organisations/test_docs_two_organisations.py run them.
"""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.job import column_types_of
from tests.docs.test_pages import lines

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/*.md")))
    if page.exists()
]
LANGUAGES = "python", "sh", "console", "toml", "text"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, result.start()) + 1, result[1], result[2])
        for result in re.finditer(r"^```(.*?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]


def of_page(name: str, language: str) -> list[str]:
    return [block.text for block in ALL_BLOCKS if (block.page, block.language) == (name, language)]


def commands() -> list[Any]:
    """Return every shell command of every page; its location identifies it."""
    held_out = [block for block in ALL_BLOCKS if block.language in ("sh", "console")]
    return [pytest.param(line, id=str(block)) for block in held_out for line in lines(block.language, block.text)]


pytestmark = pytest.mark.skipif(not PAGES, reason="needs a checkout")


def test_every_block_has_a_language_and_none_is_indented() -> None:
    assert len(ALL_BLOCKS) > 20
    assert [str(block) for block in ALL_BLOCKS if block.language not in LANGUAGES] == []
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if "```" in line]
        assert [line for line in fences if not re.fullmatch(r"```\w*", line)] == [], page.name
        assert len(fences) % 2 == 0, page.name
        outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        paragraphs = re.split(r"\n\s*\n", outside)
        for before, item in pairwise(paragraphs):
            assert not item.startswith("    ") or re.match(r"[-*] |\d+\. ", before), f"{page.name}: {item}"


def test_job_files_are_read(tmp_path: Path) -> None:
    files = [block for block in ALL_BLOCKS if block.language == "toml" and not block.text.startswith("[project")]
    assert files
    for block in files:
        keys = tomllib.loads(block.text)
        if set(keys) == {"project"}:  # the pyproject.toml of an extension
            assert {"securevfl.families", "securevfl.tools", "securevfl.attacks"} == set(
                keys["project"]["entry-points"]
            )
            continue
        file = tmp_path / "job.toml"
        file.write_text(block.text, encoding="utf-8")
        assert vfl.Job.load(file).to_dict(), block
        assert column_types_of(file).keys() == keys.get("columns", {}).keys(), block


@pytest.mark.parametrize("line", commands())
def test_commands_are_parsed(line: str) -> None:
    words = shlex.split(line, comments=True)
    match words:
        case ["securevfl", *rest]:
            _parse(rest, app)
        case ["python", "-m", "benchmarks", *rest]:
            _parse(rest, pytest.importorskip("benchmarks.__main__").app)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
        case ["pip", "install", *packages]:
            extras = [name for item in packages for name in re.findall(r"[\w-]+", item.partition("[")[2])]
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(extras) <= set(known)
        case ["python", "-m", "benchmarks.papers", paper, *options]:
            assert paper in ("fedbcd", "celu", "fdml", "fdskl", "ftl", "page")
            source = (ROOT / "benchmarks" / "papers" / "__main__.py").read_text()
            assert all(f'"{option}"' in source for option in options if option.startswith("--"))
        case ["python", "-m", module, *options] if module.startswith("benchmarks."):
            path = ROOT / module.replace(".", "/")
            source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
            assert all(f'"{option}"' in source for option in options if option.startswith("--"))
        case ["python", script, *options] if script.endswith(".py"):
            source = (ROOT / script).read_text()
            assert all(f'"{option}"' in source for option in options if option.startswith("--"))
        case ["pytest", "--pyargs", module]:
            assert find_spec(module)
        case _:
            assert words[:3] == ["python", "-m", "venv"] or words[0] in (".", "mark=$(printf") or words[0] in SHELL, (
                line
            )


# options that only show, run or create something else
SHELL = {"head", "cat", "curl", "systemctl", "docker", "journalctl", "sudo", "openssl", "mkdir", "cd"} | {
    *("touch", "echo", ".", "mark=$(printf"),
}


def _parse(words: list[str], program: typer.Typer) -> None:
    """Parse a command as the command line would: unknown commands, options and values of a wrong type fail."""
    command: Any = typer.main.get_command(program)
    context = None
    while hasattr(command, "commands"):
        context = command.make_context(command.name, words, parent=context)
        words = [*context._protected_args, *context.args]
        command = command.get_command(context, words.pop(0))
        assert command is not None
    command.make_context(command.name, words, parent=context)


@pytest.mark.skipif(not (ROOT / "examples").exists(), reason="needs a checkout")
def test_examples_of_services_run_existing_commands() -> None:
    unit = (ROOT / "examples" / "securevfl-serve.service").read_text()
    (start,) = re.findall(r"^ExecStart=\S*/securevfl (.*)$", unit, re.MULTILINE)
    image = (ROOT / "examples" / "Containerfile").read_text()
    (run,) = re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)
    state = re.findall(r"^Environment=SECUREVFL_STATE=(\S+)$", unit, re.MULTILINE)
    assert state[0] in re.findall(r"^ReadWritePaths=(.*)$", unit, re.MULTILINE)[0].split()
    (inside,) = re.findall(r"^ENV .*SECUREVFL_STATE=(\S+)", image, re.MULTILINE)
    assert f"-v {state[0]}:{inside}" in image
    for words in (start.split(), json.loads(run)):
        assert words[0] == "serve"
        _parse(words, app)
    for job in ROOT.glob("examples/*.toml"):
        assert vfl.Job.load(job).to_dict()
