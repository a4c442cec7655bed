"""Audits of jobs with a defence, and of jobs with several label parties."""

from functools import partial

import numpy as np
import pytest
from selfcheck.mutants import protocol_mutants

import securevfl as vfl
from securevfl.audit.page import html, text
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.recording.transcript_recording import record_transcript
from securevfl.audit.report import run_audit
from securevfl.audit.transcript_checks import check_transcript
from securevfl.protocols.residuals.defences import Gaussian, Marvell, MaxNorm, Rounding

MUTANT = {mutant.name: mutant for mutant in protocol_mutants.MUTANTS}
sealed = partial(vfl.SealedResidual, engine=vfl.Ckks())
DEFENDED = {
    "open, gaussian": vfl.OpenResidual(defence=Gaussian(sigma=0.5)),
    "open, marvell": vfl.OpenResidual(defence=Marvell()),
    "open, max_norm": vfl.OpenResidual(defence=MaxNorm()),
    "open, rounding": vfl.OpenResidual(defence=Rounding()),
    "sealed, gaussian": sealed(defence=Gaussian(sigma=0.5)),
    "sealed, rounding": sealed(defence=Rounding()),
}


def defended_job(residual: object, **keys: object) -> vfl.Job:
    # batches too large for lattice reduction, which takes seconds (test_attacks.py)
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.2),
        "batch_size": 70,
        "epochs": 2,
    }
    return vfl.Job(**(defaults | keys), protocol=vfl.Protocol(residual=residual))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def audited_parties() -> list[vfl.Party]:
    return [party.take(np.arange(140, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]


@pytest.mark.parametrize("name", DEFENDED)
def test_published_residuals_are_those_after_the_defence(name: str, audited_parties: list[vfl.Party]) -> None:
    transcript, _ = record_transcript(defended_job(DEFENDED[name]), audited_parties)
    assert not check_transcript(transcript).findings
    clear, blurred = transcript.protocol_record.undefended["bank"], transcript.protocol_record.residuals["bank"]
    assert len(clear) == len(blurred) == 4
    assert all(np.abs(g - local).max() > 1e-3 for g, (local, _) in zip(clear, blurred, strict=True))


@pytest.mark.parametrize("name", ["open, gaussian", "sealed, rounding"])
def test_the_ideal_run_has_the_noise_of_the_real_one(name: str, audited_parties: list[vfl.Party]) -> None:
    pair = RealIdealPair(defended_job(DEFENDED[name]), audited_parties, 0)
    real, ideal = pair.real().opened_gradients, pair.ideal().opened_gradients
    assert len(real) == len(ideal) == 4
    assert all(np.abs(a.gradient - b.gradient).max() < 1e-2 for a, b in zip(real, ideal, strict=True))
    assert pair.real_run[1].defended_residuals


@pytest.mark.parametrize(
    "name", [pytest.param(item, marks=[pytest.mark.slow] * (item != "open, gaussian")) for item in DEFENDED]
)
def test_a_job_with_a_defence_ends_with_zero(name: str, audited_parties: list[vfl.Party]) -> None:
    audit = run_audit(defended_job(DEFENDED[name]), audited_parties, seeds=(0,))
    assert not audit.failed
    assert audit.exit_code == 0, audit.exceeding


def test_a_defence_that_is_left_out_ends_with_one(audited_parties: list[vfl.Party]) -> None:
    with MUTANT["open: defence forgotten"].apply():
        transcript, _ = record_transcript(defended_job(DEFENDED["open, gaussian"]), audited_parties)
    assert [finding.check for finding in check_transcript(transcript).findings] == ["output"]


def kernel(sums: object) -> vfl.Job:
    return vfl.Job(
        model=vfl.Kernel(gamma=0.01, blocks=2, block_size=32),
        optimizer=vfl.FDSKL(),
        protocol=vfl.Protocol(sum=sums, residual=None),  # type: ignore[arg-type]
        batch_size=40,
        epochs=2,
    )


def with_labels(holders: int) -> list[vfl.Party]:
    """Return three parties; the first `holders` of them have labels."""
    three = [party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=3)]
    lead, *others = three
    return [
        lead,
        *(vfl.Party(one.name, one.X, lead.y if k < holders else None, aligned=True) for k, one in enumerate(others, 1)),
    ]


@pytest.mark.parametrize(("sums", "holders"), [("tree", 2), ("pairwise", 3), ("direct", 2)])
def test_a_job_of_several_label_holders_is_audited(sums: object, holders: int) -> None:
    audit = run_audit(kernel(sums), with_labels(holders), seeds=(0,))
    assert not audit.failed
    assert audit.exit_code == 0, audit.exceeding
    assert [role == "active" for role in audit.roles.values()] == [k < holders for k in range(3)]
    without = {"telco"} if holders == 2 else set()
    assert {inference.attacker for inference in audit.inferences if inference.name == "model completion"} == without
    for page in (text(audit), html(audit)):
        assert page.count("(active)") == holders
        assert "WindowSummed" in page


def test_sums_of_several_label_holders_are_distinguished() -> None:
    """Each collector's sums are compared with its summands, and each message with the roles on its subchannel."""
    transcript, _ = record_transcript(kernel("tree"), with_labels(2))
    assert not check_transcript(transcript).findings
    assert set(transcript.protocol_record.sums) == {"bank", "shop"}
    transcript.protocol_record.sums["shop"].totals[0] = transcript.protocol_record.sums["bank"].totals[0]
    (finding,) = check_transcript(transcript).findings
    assert (finding.check, finding.party) == ("output", "shop")
    assert transcript.role("bank", "to shop/MaskPartial") == "contributor"
    assert transcript.role("shop", "to shop/MaskPartial") == transcript.role("bank", "to bank") == "collector"
    assert transcript.role("bank", "") == "active"
