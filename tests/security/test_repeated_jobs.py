"""Many jobs on one table: labels that a party of pure noise reads from all gradients that it ever opened."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.audit.attacks.cross_round import solve
from securevfl.audit.recording.real_ideal_pair import RealIdealPair

ROWS, COLUMNS, BATCH = 1280, 16, 256
SEALED_JOB = vfl.Job(
    model=vfl.Logistic(),
    optimizer=vfl.FedBCD(local_steps=5, lr=0.1),
    protocol=vfl.Protocol(residual=vfl.Ckks()),
    batch_size=BATCH,
    epochs=1,
)


def same_numbers(ids: int) -> list[vfl.Party]:
    """Return the same numbers for any ids: five columns that determine the labels, and sixteen of noise."""
    generator = np.random.default_rng(0)
    columns, noise = generator.normal(size=(ROWS, 5)), generator.normal(size=(ROWS, COLUMNS))
    y = columns.sum(axis=1) + generator.normal(size=ROWS) > 0
    names = np.arange(ROWS) + ids * ROWS
    return [vfl.Party("bank", columns, y.astype(int), ids=names), vfl.Party("shop", noise, ids=names)]


def curve(*, same_table: bool, jobs: tuple[int, ...]) -> list[float]:
    """Return the label AUC after a number of sealed jobs, each with another seed."""
    equations, result = [], []
    for seed in range(max(jobs)):
        pair = RealIdealPair(SEALED_JOB, same_numbers(0 if same_table else seed), seed)
        equations += pair.real("shop").equations()
        if seed + 1 in jobs:
            assert pair.active.y is not None
            result.append(float(roc_auc_score(pair.active.y, -solve(equations, ROWS, 1)[:, 0])))
    return result


@pytest.mark.long
def test_jobs_with_other_seeds_reveal_no_more_than_one() -> None:
    one, *more = curve(same_table=True, jobs=(1, 5, 10))
    assert 0.55 < one < 0.67
    assert max(more) < one + 0.02


@pytest.mark.slow
def test_batches_that_change_between_jobs_would_reveal_all() -> None:
    """The same attack on jobs with other ids, and so other batches, as when the seed drew the batches."""
    one, five, twenty = curve(same_table=False, jobs=(1, 5, 20))
    assert one == pytest.approx(0.62, abs=0.05)
    assert five > one + 0.1
    assert twenty > 0.93
