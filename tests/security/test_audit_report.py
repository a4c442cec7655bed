"""An audit says what a job tells, ends with 0 where that is declared, and with 1 where the code is broken."""

from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.findings import Audit
from securevfl.audit.mutants.table import MUTANTS
from securevfl.audit.page import html, text
from securevfl.audit.report import run_audit
from securevfl.cli import audit as cli_audit

MUTANT = {each.name: each for each in MUTANTS}


def job(residual: object, **keys: object) -> vfl.Job:
    # batches above what lattice reduction is tried on, which takes seconds (test_attacks.py)
    own: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.2), "batch_size": 90, "epochs": 2}
    return vfl.Job(**(own | keys), protocol=vfl.Protocol(residual=residual))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def parties() -> list[vfl.Party]:
    return [party.take(np.arange(180, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]


@pytest.fixture(scope="module")
def sealed(parties: list[vfl.Party]) -> Audit:
    return run_audit(job(vfl.Ckks()), parties, seeds=(0,))


def test_a_sealed_job_tells_what_is_declared(sealed: Audit) -> None:
    assert sealed.exit_code == 0, sealed.exceeding
    assert sealed.tests > 0
    assert {each.who for each in sealed.inferences} >= {"shop"}
    for each in sealed.inferences:
        assert not each.exceeds, each.name


def test_the_page_names_parties_messages_scores_and_remedies(sealed: Audit) -> None:
    for page in (text(sealed), html(sealed)):
        for word in ("bank", "shop", "SealedG", "Opened", "model completion", "rows or more", "exceeds"):
            assert word in page, word
    assert html(sealed).count("<section") == html(sealed).count("</section>")


def test_an_open_job_is_told_to_seal(parties: list[vfl.Party]) -> None:
    audit = run_audit(job("open"), parties, seeds=(0,))
    sign = next(each for each in audit.inferences if each.name == "residual sign")
    assert sign.real > 0.99
    assert sign.strength == "strong"
    assert "seal the residual" in sign.remedy
    assert audit.exit_code == 0  # g in the clear is declared


def test_a_broken_protocol_ends_with_one(parties: list[vfl.Party]) -> None:
    with MUTANT["sealed: open under a sealed name"].apply():
        audit = run_audit(job(vfl.Ckks()), parties, seeds=(0,))
    assert audit.exit_code == 1
    assert any("hidden" in line and "residuals of bank" in line for line in audit.exceeding)
    assert "exceed the declaration" in html(audit)


def test_the_command_prints_the_page_and_writes_it(
    parties: list[vfl.Party],
    sealed: Audit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli_audit, "run_audit", lambda job, parties, on_step: sealed)
    assert cli_audit.audit_command(job(vfl.Ckks()), parties, tmp_path / "audit.html") == 0
    assert "nothing exceeds the declaration" in capsys.readouterr().out
    assert "What each party could infer" in (tmp_path / "audit.html").read_text(encoding="utf-8")
