"""Every shell command of README and docs is run as it is written, or a test is named here that runs it.

Commands of one party alone run in the order of their page, in a folder with the tables that the pages speak of. What
takes long is slow; programs that measure run on less, by options after their own. What two organisations do together,
what installs the package and what stays up is listed with the test that covers it.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/*.md"))]
pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not beside a checkout")

JOB = """
epochs = 2
batch_size = "all"
test_fraction = 0.2
accepts = ["rank", "label_auc", "fresh_equations", "columns"]
prepare = { bins = 3 }
model = { name = "logistic" }
optimizer = { name = "fedbcd", lr = 0.5 }
protocol = { residual = "ckks" }
"""
NET = """
from torch import nn

def bottom():
    return nn.Sequential(nn.Linear(15, 4), nn.Tanh()).double()
"""

SLOW = "audit", "bottom", "bench", "compare"
ALONE = "train", "explain", "describe", "drift", "ledger", "reasons", "scorecard", "export", *SLOW
RUN = rf"securevfl ({'|'.join(ALONE)})\b"

ORGANISATIONS = "tests/organisations/test_docs_two_organisations.py::test_the_page"
REQUESTS = "tests/transport/test_openssl.py::test_the_commands_of_the_page"
SERVICE = "tests/transport/test_serve_command.py::test_a_service_answers_shows_and_ends"
GATEWAY = "tests/transport/test_gateway.py::test_applications_are_answered_in_json_many_at_once"
# what matches the one is run by the other: a test, or a goal of the Makefile
COVERED = {
    r"python -m benchmarks rounds": "tests/bench/test_bench_rounds.py::test_rows",  # on tables of its own
    r"python -m benchmarks\.papers \w+": "tests/papers/test_papers.py::test_quick_runs_all_of_a_paper",
    r"python -m benchmarks\.first_job": (
        "tests/training/test_defaults.py::test_a_model_alone_scores_as_pooled_regression_does"
    ),
    r"make (quick|test|check|docs|ci)": "Makefile::ci",
    r"make demo": "tests/test_extras.py::test_the_demo_runs_from_an_empty_folder_without_any_extra",
    r"pip install |python -m venv|\. \.venv": "Makefile::wheel-test",
    r"make selfcheck": "Makefile::test",
    r"securevfl (kit|align|join kits|line)": ORGANISATIONS,
    r"securevfl predict \w+\.model\.json --data new-\w+\.csv --peers": ORGANISATIONS,
    r"securevfl certs|openssl |'?(mkdir|mark|cat|cd|touch|echo)\b": REQUESTS,
    r"securevfl correlate ": "tests/organisations/test_correlate.py::test_between_organisations_with_consent",
    r"securevfl fairness ": (
        "tests/organisations/test_fairness_by_group.py::test_between_organisations_with_consent_and_limits"
    ),
    r"securevfl serve shop\.model\.json --data shop\.csv --peers": SERVICE,
    r"securevfl score .* --http ": GATEWAY,
    r"head -c 32 /dev/urandom|curl -H": GATEWAY,
    r"securevfl score ": SERVICE,
    r"securevfl predict bank\.model\.json --data new\.csv --points": (
        "tests/transport/test_shares.py::test_the_commands_prepare_train_and_score"
    ),
    r"securevfl (serve|predict) shop\.model\.json .*--reasons": SERVICE,
    r"securevfl (prepare|join) job\.toml --party shop --data shop\.csv": (
        "tests/transport/test_shares.py::test_the_commands_prepare_train_and_score"
    ),
    r"securevfl join job\.toml --party shop --data shop_h\.csv": (
        "tests/transport/test_neural_join.py::test_a_table_of_a_bottom_joins_as_any_other"
    ),
}
# a program that measures, and options after its own that have it measure little
SMALLER = {
    "benchmarks/delay.py": "--rtt-ms 1 --epochs 1 --repeats 1 --residuals open",
    "benchmarks/psi.py": "--rows 300",
    "benchmarks/overlap.py": "--rtt-ms 1 --epochs 1 --repeats 1 --batch 64 --hidden 4 --width 2",
    "benchmarks/full_batch.py": "--rows 600 --columns 3 4 --rounds 6",
}
BENCH = {"he": "--sizes 32x3 --against phe", "sum": "--size 64"}


def commands() -> list[tuple[str, str]]:
    """Every command with its page, as it is written: lines that end in a backslash joined, comments off."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        for kind, block in re.findall(r"^```(sh|bash|shell|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            block = re.sub(r"(<<END)\n.*?^END$", r"\1", block, flags=re.MULTILINE | re.DOTALL)
            lines = block.replace("\\\n", " ").splitlines()
            if kind == "console":
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            words = [shlex.join(shlex.split(line, comments=True)) for line in lines]
            found += [(page.name, line) for line in words if line]
    return found


ALL = commands()


def covering(line: str) -> str | None:
    """The test or goal that stands for a command; None for one that is run here."""
    return next((test for pattern, test in COVERED.items() if re.match(pattern, line)), None)


def program(line: str) -> str | None:
    """The measuring program that a command runs."""
    return next((script for script in SMALLER if line.startswith(f"python {script}")), None)


def own(slow: bool) -> list[tuple[str, str]]:
    """The commands of securevfl that run here, each once, in the order of the pages."""
    found = [each for each in ALL if (kind := re.match(RUN, each[1])) and (kind[1] in SLOW) is slow]
    return list(dict.fromkeys(each for each in found if covering(each[1]) is None))


def test_every_command_is_run_or_has_a_test_that_is_there() -> None:
    assert len(ALL) > 50
    lost = [f"{page}: {line}" for page, line in ALL if not (re.match(RUN, line) or program(line) or covering(line))]
    assert lost == []
    for pattern, test in COVERED.items():
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def {name}\(|{name}:)", source, re.MULTILINE), test
        assert any(re.match(pattern, line) for _, line in ALL), f"no command is {pattern}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, both parties' tables, rows that come later, and parts of a model."""
    folder = tmp_path_factory.mktemp("world")
    for party in vfl.datasets.breast_cancer():
        names = {f"{party.name}.csv": slice(0, 400), f"{party.name}-new.csv": slice(400, 500)}
        names |= {"new.csv": slice(400, 500)} if party.y is None else {}
        for name, rows in names.items():
            some = party.take(np.arange(len(party))[rows])
            labels = {} if some.y is None else {"y": some.y}
            columns = dict(zip(some.columns, np.asarray(some.X).T.tolist(), strict=True))
            csv.write_csv(pa.table({"id": some.ids, **labels, **columns}), folder / name)
        codes = {column: f"R{k}" for k, column in enumerate(party.columns)}
    (folder / "codes.json").write_text(json.dumps(codes))
    (folder / "shop.csv.gz").write_bytes(gzip.compress((folder / "shop.csv").read_bytes()))
    (folder / "job.toml").write_text(JOB)
    (folder / "shop_net.py").write_text(NET)
    tables = [f"--data={name}={folder / name}.csv" for name in ("bank", "shop")]
    done = CliRunner().invoke(app, ["train", str(folder / "job.toml"), *tables, "--save", str(folder / "parts")])
    assert done.exit_code == 0, done.output
    for name in ("bank", "shop"):
        shutil.copy(folder / "parts" / f"{name}.json", folder / f"{name}.model.json")
    return folder


def invoke(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command of securevfl in this process; exit code 1 is an answer of drift alone."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "home"))
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    good = (0, 1) if " drift " in line else (0,)
    assert done.exit_code in good, f"{line}: {done.output}"


@pytest.mark.parametrize(("page", "line"), own(slow=False))
def test_the_command_runs(page: str, line: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke(line, world, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), own(slow=True))
def test_the_long_command_runs(page: str, line: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if " bottom " in line:
        pytest.importorskip("torch")
    few = BENCH.get(shlex.split(line)[2], "") if " bench " in line else ""
    invoke(f"{line} {few}", world, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), [each for each in ALL if program(each[1])])
def test_the_program_runs(page: str, line: str, tmp_path: Path) -> None:
    script = program(line)
    assert script is not None
    words = [sys.executable, str(ROOT / script), *shlex.split(line)[2:], *SMALLER[script].split()]
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
