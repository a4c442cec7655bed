"""Every page of the documentation is a program: all its blocks run, from the top, in one empty folder.

Python blocks share one namespace, `toml` blocks are written to job.toml, and shell lines run as they are. Some lines
are left out: those that a test named below runs (joint work of two parties, installations, services), and blocks that
are marked as not to be run, with the reason. Long commands run in `make soak` only.
"""

import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docs.made_pages import MADE
from securevfl.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.stem not in MADE]
OTHERS = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md") if page.exists()]
CODE_BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
pytestmark = pytest.mark.skipif(not PAGES, reason="needs a checkout")

ORGANISATIONS = "tests/organisations/test_docs_two_organisations.py::test_the_page"
OPENSSL = "tests/transport/test_openssl.py::test_the_commands_of_the_page"
SERVICE = "tests/transport/test_serve_command.py::test_a_service_answers_shows_and_ends"
GATEWAY = "tests/transport/test_gateway.py::test_applications_are_answered_in_json_many_at_once"
SHARES_TEST = "tests/transport/test_shares.py::test_the_commands_prepare_train_and_score"
# commands that match the pattern are run by a test or by a goal of the Makefile
COVERED = {
    r"python -m benchmarks rounds": "tests/bench/test_bench_rounds.py::test_rows",  # on other tables
    r"python -m benchmarks\.peers ": ("tests/bench/test_peers.py::test_the_same_command_repeats_only_failed_runs"),
    r"python -m benchmarks\.papers \w+": "tests/papers/test_papers.py::test_quick_runs_all_of_a_paper",
    r"python -m benchmarks\.first_job": (
        "tests/training/test_defaults.py::test_a_model_alone_scores_as_pooled_regression_does"
    ),
    r"python -m benchmarks\.default_job": "tests/bench/test_smallest.py::test_a_benchmark_of_processes_runs",
    r"make (quick|test|check|docs|ci)": "Makefile::ci",
    r"make soak": "Makefile::soak",
    r"make release": "tests/docs/test_release.py::test_a_release_with_contact_and_date_is_ready",
    r"make pages": "tests/docs/test_reference.py::test_generated_pages_are_current_and_in_the_menu",
    r"securevfl demo": "tests/test_extras.py::test_the_demo_runs_from_an_empty_folder_without_any_extra",
    r"pip install |python -m venv|\. \.venv": "Makefile::wheel-test",
    r"make selfcheck": "Makefile::test",
    r"securevfl (kit|align|join kits|line)": ORGANISATIONS,
    r"securevfl predict \w+\.model\.json --data new-\w+\.csv --peers": ORGANISATIONS,
    r"securevfl certs|openssl |'?(mkdir|mark|cat|cd|touch|echo)\b": OPENSSL,
    r"securevfl correlate ": "tests/organisations/test_correlate.py::test_between_organisations_with_consent",
    r"securevfl fairness ": (
        "tests/organisations/test_fairness_by_group.py::test_between_organisations_with_consent_and_limits"
    ),
    r"securevfl serve shop\.model\.json --data shop\.csv --peers": SERVICE,
    r"securevfl score .* --http ": GATEWAY,
    r"head -c 32 /dev/urandom|curl -H": GATEWAY,
    r"securevfl score ": SERVICE,
    r"securevfl predict bank\.model\.json --data new\.csv --points": SHARES_TEST,
    r"securevfl (serve|predict) shop\.model\.json .*--reasons": SERVICE,
    r"securevfl (prepare|join) job\.toml --party shop --data shop\.csv": SHARES_TEST,
}
# programs that measure, and options that make them measure little
SMALLER = {
    "python benchmarks/delay.py": "--rtt-ms 1 --epochs 1 --repeats 1 --residuals open",
    "python benchmarks/psi.py": "--rows 300",
    "python benchmarks/overlap.py": "--rtt-ms 1 --epochs 1 --repeats 1 --batch 64 --hidden 4 --width 2",
    "python benchmarks/full_batch.py": "--rows 600 --columns 3 4 --rounds 6",
    "securevfl bench he": "--sizes 32x3 --against phe",
    "securevfl bench sum": "--size 64",
}
# programs of pages that train long, with the smaller training of the quick run; `make soak` runs the page as it is
SMALLER_JOBS = {"trees": ('vfl.Job(model="trees",', "vfl.Job(model=vfl.Trees(trees=4),")}
LONG_COMMANDS = re.compile(r"securevfl (audit|bench|compare)\b|python benchmarks/")  # seconds each
RUN_ELSEWHERE = {"start.md"}  # tests/docs/test_start.py runs it in separate processes
TRAINS_LONG = {"neural.md", "scale.md"}  # networks, pools of processes, a cluster: the whole page is long


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the fenced blocks of a page: language, text, and the reason why it is not run, if any."""
    for block in CODE_BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield block["kind"], block["text"], block["why"] or ""


def lines(kind: str, block: str) -> list[str]:
    """Return the commands of a shell block as lines, without comments; of a here-document its first line only."""
    block = re.sub(r"(<<END)\n.*?^END$", r"\1", block, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    results = block.splitlines()
    if kind == "console":
        results = [line[2:] for line in results if line.startswith("$ ")]
    return [words for line in results if (words := shlex.join(shlex.split(line, comments=True)))]


def covering(line: str) -> str | None:
    """Return the test or goal that covers a command; None for a command that is run here."""
    return next((test for pattern, test in COVERED.items() if re.match(pattern, line)), None)


def shell(line: str, folder: Path) -> None:
    """Run one command; exit code 1 is allowed for drift and audit only."""
    small = next((options for start, options in SMALLER.items() if line.startswith(start)), "")
    words = shlex.split(f"{line} {small}")
    if words[0] == "securevfl":
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code in ((0, 1) if words[1] in ("drift", "audit") else (0,)), f"{line}: {done.output}"
        return
    assert words[0] == "python", line
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    full = [sys.executable, str(ROOT / words[1]), *words[2:]]
    ran = subprocess.run(full, cwd=folder, env=where, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]


def run(page: Path, folder: Path, *, long: bool) -> None:
    """Run a page from its top; without the long commands unless requested."""
    names: dict[str, Any] = {"__name__": page.stem}
    sys.modules.pop("shop_net", None)
    stated, smaller = SMALLER_JOBS.get(page.stem, ("", ""))
    assert stated in page.read_text(encoding="utf-8")
    for kind, text, why in blocks(page):
        if why:
            continue
        if kind == "toml":
            (folder / "job.toml").write_text(text)
        elif kind == "python":
            exec(compile(text if long else text.replace(stated, smaller), page.name, "exec"), names)
        elif kind in ("sh", "console"):
            for line in dict.fromkeys(lines(kind, text)):
                if covering(line) is None and (long or not LONG_COMMANDS.match(line)):
                    shell(line, folder)


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into an empty folder that is also the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path


def has_long(page: Path) -> bool:
    """Return whether a page has commands that its quick run omits."""
    held_out = [lines(kind, text) for kind, text, _ in blocks(page) if kind in ("sh", "console")]
    return any(LONG_COMMANDS.match(line) for block in held_out for line in block)


QUICK_PAGES = [page for page in PAGES if page.name not in TRAINS_LONG | RUN_ELSEWHERE]
SOME_LONG = [page for page in PAGES if page.name in TRAINS_LONG or page.stem in SMALLER_JOBS or has_long(page)]


@pytest.mark.parametrize("page", QUICK_PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page: Path, clean: Path) -> None:
    run(page, clean, long=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SOME_LONG, ids=lambda page: page.stem)
def test_the_page_runs_whole(page: Path, clean: Path) -> None:
    if page.name in TRAINS_LONG:
        pytest.importorskip("torch")
    run(page, clean, long=True)


def test_omitted_commands_have_a_test_or_a_reason() -> None:
    held_out = [block for page in [*PAGES, *OTHERS] for block in blocks(page)]
    every = [
        line for kind, text, why in held_out if kind in ("sh", "console") and not why for line in lines(kind, text)
    ]
    assert len(every) > 50
    for pattern, test in COVERED.items():
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def {name}\(|{name}:)", source, re.MULTILINE), test
        assert any(re.match(pattern, line) for line in every), f"no command is {pattern}"
    known = re.compile(r"securevfl \w+|python benchmarks/")
    assert [line for line in every if covering(line) is None and not known.match(line)] == []
    assert sum(bool(why) for _, _, why in held_out) <= 8


def test_a_page_that_omits_a_name_is_found(clean: Path) -> None:
    (clean / "page.md").write_text("# A page\n\n```python\nprint(vfl)\n```\n")
    with pytest.raises(NameError):
        run(clean / "page.md", clean, long=True)
    (clean / "page.md").write_text("# A page\n\n```sh\nsecurevfl describe --data nowhere.csv\n```\n")
    with pytest.raises(AssertionError, match="nowhere"):
        run(clean / "page.md", clean, long=True)


def test_readme_s_commands_run_on_its_files(clean: Path) -> None:
    """These pages outside docs/ use the files of docs/start.md, its job, and the same tables in gzip."""
    start = next(page for page in PAGES if page.stem == "start")
    for kind, text, _ in blocks(start):
        if kind == "toml":
            (clean / "job.toml").write_text(text)
        elif kind == "python" and "csv.writer" in text:
            exec(compile(text, start.name, "exec"), {})
    for name in ("bank", "shop"):
        (clean / f"{name}.csv.gz").write_bytes(gzip.compress((clean / f"{name}.csv").read_bytes()))
    for page in OTHERS:
        for kind, text, _ in blocks(page):
            if kind in ("sh", "console"):
                for line in lines(kind, text):
                    if covering(line) is None and not LONG_COMMANDS.match(line):
                        shell(line, clean)
