"""All gradients that a party of pure noise receives in a whole run of CELU-VFL, attacked together."""

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.audit.attacks import label_auc
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.disclosure.label_auc import expected_label_auc

SEEDS = range(3)
COLUMNS, BATCH, EPOCHS, R = 6, 128, 6, 5


def bank_and_stranger(seed: int) -> list[vfl.Party]:
    """Return a party whose columns correlate with its labels, and a stranger with columns of noise."""
    generator = np.random.default_rng([seed, 0])
    X = generator.normal(size=(4 * BATCH, 5))
    y = (X.sum(axis=1) + generator.normal(size=len(X)) > 0).astype(int)
    noise = np.random.default_rng([seed, 1]).normal(size=(len(X), COLUMNS))
    return [vfl.Party("bank", X, y, aligned=True), vfl.Party("stranger", noise, aligned=True)]


def celu_job(optimizer: object, seed: int) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=optimizer,
        protocol=vfl.Protocol(residual="ckks"),
        batch_size=BATCH,
        epochs=EPOCHS,
        seed=seed,
        accepts=["columns", "fresh_equations"],
    )


def solved(view: PartyView) -> tuple[NDArray[np.float64], float]:
    """Return scores (m, 1) by least squares over all equations of each batch, with constant g, and their mean rank."""
    scores, ranks = np.full((len(view.X), 1), np.nan), []
    equations = view.equations()
    for batch in {rows.tobytes() for rows, *_ in equations}:
        selected = [equation for equation in equations if equation[0].tobytes() == batch]
        A, b = np.vstack([A for _, A, _ in selected]), np.vstack([b for *_, b in selected])
        ranks.append(np.linalg.matrix_rank(A))
        scores[selected[0][0]] = -np.linalg.lstsq(A, b, rcond=1e-6)[0]
    return scores, float(np.mean(ranks))


def attacked(optimizer: object) -> tuple[float, float]:
    """Return the mean label AUC and the mean rank over the seeds."""
    results = []
    for seed in SEEDS:
        pair = RealIdealPair(celu_job(optimizer, seed), bank_and_stranger(seed), seed, attacker="stranger")
        scores, rank = solved(pair.real())
        results.append((label_auc(scores, pair.labels), rank))
    return float(np.mean([auc for auc, _ in results])), float(np.mean([rank for _, rank in results]))


@pytest.mark.slow
def test_cached_exchanges_reveal_as_fedbcd_weighted_rows_more() -> None:
    fedbcd, of_fedbcd = attacked(vfl.FedBCD(lr=0.1, local_steps=R))
    stored, of_kept = attacked(vfl.CeluVFL(lr=0.1, R=R, W=3))
    weighed, of_weighed = attacked(vfl.CeluVFL(lr=0.1, R=R, W=3, xi=60))
    assert of_kept == of_fedbcd == COLUMNS
    assert stored == pytest.approx(fedbcd, abs=0.02)
    assert of_weighed > 4 * COLUMNS
    assert weighed > stored + 0.05
    for auc, xi in ((stored, None), (weighed, 60.0)):
        times = celu_job(vfl.CeluVFL(lr=0.1, R=R, W=3, xi=xi), 0).equations
        assert auc < expected_label_auc(COLUMNS, BATCH, 1, times, times > 1) + 0.02


def test_the_guard_counts_them_before_anything_runs() -> None:
    limited = celu_job(vfl.CeluVFL(lr=0.1, R=R, W=3, xi=60), 0).model_copy(update={"max_label_auc": 0.7})
    sheet = vfl.explain(limited, bank_and_stranger(0))
    refusal = next(text for text in sheet.split("\n\n") if "would be refused: disclosure to stranger" in text)
    assert "0.98" in refusal
    assert f"p = {COLUMNS} equations about n x c = {BATCH}" in sheet
    alone = limited.model_copy(update={"optimizer": vfl.CeluVFL(lr=0.1, R=R, W=3)})
    assert "would be refused" not in vfl.explain(alone, bank_and_stranger(0))
