"""An audit reports the disclosures of a job. It passes if that is declared, and fails if the code is broken."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from selfcheck.mutants.mutant_table import MUTANTS
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.audit.findings import NO_MESSAGE, Audit, Inference
from securevfl.audit.page import html, summary, text
from securevfl.audit.report import run_audit
from securevfl.cli.main import app
from securevfl.consent.learned_table import LEARNED_TITLE, learned_table
from securevfl.consent.sheet_document import WIDTH
from securevfl.families.run_facts import pooled_run_facts
from tests.disclosure.test_disclosed_the_same import table_in

MUTANT = {mutant.name: mutant for mutant in MUTANTS}


def audited_job(residual: object, **keys: object) -> vfl.Job:
    # batches too large for lattice reduction, which takes seconds (test_attacks.py)
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.2),
        "batch_size": 90,
        "epochs": 2,
    }
    return vfl.Job(**(defaults | keys), protocol=vfl.Protocol(residual=residual))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def audited_parties() -> list[vfl.Party]:
    return [party.take(np.arange(180, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]


@pytest.fixture(scope="module")
def sealed(audited_parties: list[vfl.Party]) -> Audit:
    return run_audit(audited_job(vfl.Ckks()), audited_parties, seeds=(0,))


@pytest.mark.long
def test_a_sealed_job_discloses_what_is_declared(sealed: Audit) -> None:
    assert sealed.exit_code == 0, sealed.exceeding
    assert sealed.tests > 0
    assert {inference.attacker for inference in sealed.inferences} >= {"shop"}
    for inference in sealed.inferences:
        assert not inference.exceeds, inference.name


@pytest.mark.long
def test_the_page_names_parties_messages_scores_and_remedies(sealed: Audit) -> None:
    for page in (text(sealed), html(sealed)):
        for word in (
            "bank",
            "shop",
            "ResidualCiphertext",
            "OpenedProduct",
            "model completion",
            "rows or more",
            "exceeds",
        ):
            assert word in page, word
    assert html(sealed).count("<section") == html(sealed).count("</section>")


@pytest.mark.long
def test_an_open_job_is_told_to_seal(audited_parties: list[vfl.Party]) -> None:
    audit = run_audit(audited_job("open"), audited_parties, seeds=(0,))
    sign = next(inference for inference in audit.inferences if inference.name == "residual sign")
    assert sign.real > 0.99
    assert sign.strength == "strong"
    assert "encrypt the residual" in sign.remedy
    assert audit.exit_code == 0  # g in the clear is declared
    assert audit.level == "red"  # and yet reveals every label
    page = html(audit)
    assert '<div class="verdict red">' in page
    assert "The party shop can tell, for each person, the label of bank (1.00; chance 0.50)." in page
    assert "The party shop can tell, for each person, the label of bank" in text(audit)


@pytest.mark.long
def test_the_page_names_date_job_tables_and_versions(sealed: Audit, audited_parties: list[vfl.Party]) -> None:
    assert sealed.facts["job"] == audited_job(vfl.Ckks()).digest.hex()[:16]
    for page in (text(sealed), html(sealed)):
        assert datetime.now(UTC).isoformat()[:10] in page
        assert f"securevfl {vfl.__version__}" in page
        assert sealed.facts["job"] in page
        for party in audited_parties:
            assert f"{party.name} ({len(party)} rows x {len(party.columns)} columns)" in page
    assert "<dt>AUC</dt>" in html(sealed)
    assert "@media (max-width: 40rem)" in html(sealed)


@pytest.mark.parametrize(
    ("real", "level", "phrase"),
    [(0.99, "red", "can tell"), (0.75, "amber", "can often tell"), (0.5, "green", "chance")],
)
def test_the_colour_depends_on_the_inferences(real: float, level: str, phrase: str) -> None:
    result = Inference("shop", "some attack", "AUC of the labels", "", real, real, 0.5, 0.0, False, "seal it")
    audit = Audit("a job", {"bank": "active", "shop": "passive"}, [], [], [result], [], lead="bank")
    assert audit.exit_code == 0
    assert audit.level == level
    assert phrase in " ".join(summary(audit))
    assert f'<div class="verdict {level}">' in html(audit)


def test_inferences_without_messages_and_of_sums_are_marked() -> None:
    inference = Inference("shop", "own", "AUC of the labels", "", 0.9, 0.9, 0.5, 0.0, False, NO_MESSAGE)
    sums = "share of the variance of the others' part of f that scores disclose, with the requester's columns constant"
    part = Inference("bank", "sums", sums, "", 0.95, 0.95, 0.0, 0.0, False, "fewer bits")
    audit = Audit("a job", {"bank": "active", "shop": "passive"}, [], [], [inference, part], [], lead="bank")
    assert summary(audit) == [
        "The party bank can recover most of another party's part of the scores (0.95; chance 0.00).",
        "The party shop can tell, for each person, the label of bank from its own columns and a few labels, without "
        "any message (0.90; chance 0.50).",
    ]
    one = "1 strong inference is possible"
    assert f"{one} from the declared output; {one} without any message" in audit.verdict


def test_a_broken_protocol_ends_with_one(audited_parties: list[vfl.Party]) -> None:
    with MUTANT["sealed: open under a sealed name"].apply():
        audit = run_audit(audited_job(vfl.Ckks()), audited_parties, seeds=(0,))
    assert audit.exit_code == 1
    assert any("hidden" in line and "residuals of bank" in line for line in audit.exceeding)
    assert "exceed the declaration" in html(audit)


def test_the_command_prints_the_page_and_writes_it(
    audited_parties: list[vfl.Party],
    sealed: Audit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("securevfl.audit.report.run_audit", lambda job, parties, on_step, noise_parties: sealed)
    (tmp_path / "job.toml").write_text('model = "logistic"\n')
    data = []
    for party in audited_parties:
        table = {"y": party.y} if party.active else {}
        np.savez(tmp_path / f"{party.name}.npz", X=party.X, ids=np.asarray(party.ids), **table)
        data.append(f"--data={party.name}={tmp_path / party.name}.npz")
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "job.toml"), *data, "--html", str(tmp_path / "audit.html")])
    assert done.exit_code == 0, done.output
    assert "othing exceeds the declaration" in done.stdout
    assert "What each party could infer" in (tmp_path / "audit.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_text_and_page_state_every_output(sealed: Audit, audited_parties: list[vfl.Party]) -> None:
    outputs = pooled_run_facts(audited_job(vfl.Ckks()), audited_parties).outputs
    rows = learned_table(["bank", "shop"], outputs).rows
    assert len(rows) > 2
    assert [row for row in table_in(html(sealed)) if row[2]] == [row for row in rows if row[2]]
    printed = text(sealed).partition(LEARNED_TITLE)[2].partition("\nbank (active)")[0]
    words = set(printed.replace(";", " ").split())  # narrow columns become "name: value; .."
    for row in rows:
        assert set(" ".join(row).split()) <= words, row
    assert max(map(len, text(sealed).splitlines())) <= WIDTH
