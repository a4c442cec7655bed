"""The core works without credit tools and without the audit; a job that needs an absent package is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import cancer_parties, random_parties, write_tables

from tests.installed_copy import IS_COPY, ROOT, environment, install_copy, run_copy
from tests.transport.conftest import PROCESS

JOB_TEXT = """
accepts = ["columns"]
batch_size = 60
epochs = 2
test_fraction = 0.2
model = "logistic"

[optimizer]
name = "fedbcd"
lr = 0.3

[protocol]
residual = "open"
"""
CREDIT_COMMANDS = "correlate", "describe", "drift", "export", "fairness", "reasons", "scorecard"
ATTEMPTS = """
import sys
import securevfl as vfl
from securevfl.errors import PackageMissingError
job = vfl.Job.load(sys.argv[1]).model_copy(update={"reason_codes": 2})
bank, shop = vfl.datasets.breast_cancer(2)
for attempt in (lambda: vfl.simulate(job, [bank, shop]), lambda: vfl.explain(job, [bank, shop])):
    try:
        attempt()
    except PackageMissingError as error:
        print(error.code, error.fields["package"], error.fields["party"] or "this-computer")
"""

ASKING = "on_round=on_round, consent=lambda sheet: (kit / 'asked').touch(),"
"""Arguments of `join` that note in a file that a party was asked for consent."""


@pytest.fixture(scope="module")
def without_credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package that lacks the credit tools. Its first process compiles it."""
    return install_copy(tmp_path_factory.mktemp("without-credit") / "copy", without=("credit",))


@pytest.fixture
def job_path(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB_TEXT)
    return path


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_job_trains_predicts_and_is_audited_without_credit(
    tmp_path: Path, job_path: Path, without_credit: Path
) -> None:
    tables = write_tables(tmp_path, random_parties(2, 180, ids=True))
    data = [word for name, path in tables.items() for word in ("--data", f"{name}={path}")]
    new = [word for name, path in tables.items() for word in ("--predict", f"{name}={path}")]
    files = ["--save", str(tmp_path / "parts"), "--predictions", str(tmp_path / "new.csv")]
    output_of(run_copy(without_credit, "train", str(job_path), *data, *new, *files))
    assert {path.name for path in (tmp_path / "parts").iterdir()} >= {"bank.json", "shop.json"}
    head, *rows = (tmp_path / "new.csv").read_text().splitlines()
    assert head.split(",")[:3] == ["id", "prediction", "probability"]
    assert len(rows) == 180
    audit = run_copy(without_credit, "audit", str(job_path), *data)
    assert audit.returncode in (0, 1), audit.stderr
    assert "exact sums" in audit.stdout or "declared" in audit.stdout
    printed = output_of(run_copy(without_credit, "--help"))
    assert not [name for name in CREDIT_COMMANDS if f" {name} " in printed]
    assert "No such command 'scorecard'" in run_copy(without_credit, "scorecard").stderr


@pytest.mark.slow
def test_without_the_audit_a_job_is_trained_and_has_a_scorecard(tmp_path: Path, job_path: Path) -> None:
    copy = install_copy(tmp_path / "copy", without=("audit",))
    tables = write_tables(tmp_path, cancer_parties(2, 180))
    data = [word for name, path in tables.items() for word in ("--data", f"{name}={path}")]
    output_of(run_copy(copy, "train", str(job_path), *data, "--save", str(tmp_path / "parts")))
    assert "points" in output_of(run_copy(copy, "scorecard", str(tmp_path / "parts" / "bank.json")))
    assert " audit " not in output_of(run_copy(copy, "--help"))


@pytest.mark.long
def test_a_job_is_refused_where_its_package_is_absent(job_path: Path, without_credit: Path) -> None:
    simulated, explained = output_of(run_copy(without_credit, str(job_path), code=ATTEMPTS)).splitlines()
    assert simulated.split() in (["SVFL-PACKAGE-MISSING", "securevfl.credit", name] for name in ("bank", "shop"))
    assert explained.split() == ["SVFL-PACKAGE-MISSING", "securevfl.credit", "this-computer"]


@pytest.mark.long
def test_a_party_lacking_a_package_refuses_before_consent(
    tmp_path: Path, meet: Any, running: list[Any], without_credit: Path
) -> None:
    """The shop lacks credit tools: its error names package and party, and the bank learns the reason."""
    meeting = meet(job=meet.job(reason_codes=2))
    options = ["2", "60", "10", "0", "0"]
    asking = PROCESS.replace("on_round=on_round,", ASKING)
    assert asking != PROCESS
    for name, head, folder in (("bank", "", ROOT), ("shop", IS_COPY, without_credit)):
        words = [sys.executable, "-c", head + asking, str(meeting.kit(name)), *options]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(folder))
        running.append(process)
    errors = [process.communicate(timeout=100)[1] for process in running]
    assert [process.returncode for process in running] == [1, 1], errors
    bank, shop = errors
    assert "PackageMissingError: reason_codes needs the package securevfl.credit, which shop lacks" in shop
    assert "shop" in bank
    assert "securevfl.credit" in bank
    assert not [name for name in ("bank", "shop") if (meeting.kit(name) / "asked").exists()]
