"""Rounds on all rows: labels revealed by all opened values, columns revealed by few exchanges, and random starts."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS, LabelAttack, label_auc
from securevfl.audit.attacks.two_values import subset
from securevfl.audit.recording.column_numbers import column_numbers
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.disclosure.label_auc import expected_label_auc
from securevfl.models import linear_block
from securevfl.optim.block_newton import INITIAL_MULTIPLE
from securevfl.runtime.observer import Event

NOISE = 15  # columns of the attacker
READ = ("batch_inversion", "cross_round", "partial_score")  # these use opened gradients and take seconds


def newton_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=1e-3), "optimizer": vfl.BlockNewton(), "batch_size": "all"}
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "epochs": 6, "accepts": ["columns"]}
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


def noise_parties(rows: int, columns: int = NOISE, seed: int = 0) -> list[vfl.Party]:
    """Return a bank with columns that correlate with the labels, and a shop with pure noise."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 8))
    y = (X.sum(axis=1) + 2 * generator.normal(size=rows) > 0).astype(int)
    shop = vfl.Party("shop", generator.normal(size=(rows, columns)), aligned=True)
    return [vfl.Party("bank", X, y, aligned=True), shop]


def best_attack(job: vfl.Job, parties: list[vfl.Party], attacks: Iterable[str] = READ) -> float:
    """Return the highest label AUC of these attacks on the shop's view."""
    pair, result = RealIdealPair(job, parties, 0, attacker="shop"), []
    for name in attacks:
        attack = ATTACKS[name]
        assert isinstance(attack, LabelAttack)
        if not attack.skip_reason(job):
            result.append(label_auc(attack.guess(pair.real(), pair), pair.labels))
    return max(result)


def test_opened_values_reveal_less_about_more_rows() -> None:
    few = np.mean([best_attack(newton_job(), noise_parties(150, seed=seed)) for seed in range(3)])
    many = best_attack(newton_job(), noise_parties(3000))
    assert (
        0.55 < few < expected_label_auc(NOISE, 150, 1, 6, reshuffle=False) + 0.05
    )  # the consent sheet does not understate it
    assert many < expected_label_auc(NOISE, 3000, 1, 6, reshuffle=False) + 0.03
    assert many < 0.56


@pytest.mark.slow
def test_labels_of_many_rows_are_safe_from_every_attack() -> None:
    every = [name for name, attack in ATTACKS.items() if isinstance(attack, LabelAttack)]
    assert best_attack(newton_job(), noise_parties(20_000), every) <= 0.55


def test_minibatches_of_the_same_data_reveal_more() -> None:
    parties = noise_parties(1500)
    minibatches = newton_job(optimizer=vfl.FedBCD(lr=0.3), batch_size=100, epochs=2)
    all_rows, batches = (best_attack(item, parties) for item in (newton_job(), minibatches))
    assert batches > all_rows + 0.04


def test_few_exchanges_span_few_dimensions_of_the_columns() -> None:
    job = newton_job(epochs=5, optimizer=vfl.BlockNewton(tolerance=0))
    pair = RealIdealPair(job, noise_parties(1000), 0)
    (batch,) = column_numbers(pair, pair.real_run[1])
    exchanges = pair.real_run[0].costs.rounds
    assert exchanges == 5
    trained = batch.numbers[:, :exchanges]
    assert np.linalg.matrix_rank(trained) == exchanges - 1  # the first exchange is zero
    assert "5 x 1 numbers about each training row" in vfl.explain(
        job, noise_parties(1000)
    )  # 4 exchanges and the evaluation


def labels_from_two_values(start: Callable[..., NDArray[np.float64]] | None, l2: float) -> float:
    """Return the label AUC of 24 rows from the first opened gradient, by lattice reduction."""
    generator = np.random.default_rng(0)
    y = (generator.random(24) < 0.5).astype(int)
    bank = vfl.Party("bank", generator.normal(size=(24, 2)), y, aligned=True)
    shop = vfl.Party("shop", generator.normal(size=(24, 8)), aligned=True)
    with pytest.MonkeyPatch.context() as patch:
        if start is not None:
            patch.setattr(linear_block, "starting_weights", start)
        pair = RealIdealPair(newton_job(model=vfl.Logistic(l2=l2), epochs=1), [bank, shop], 0, attacker="shop")
        rows, A, b = pair.real().equations()[0]
    result = subset(A, A.sum(axis=1) * pair.labels.mean() - b[:, 0])
    return 0.5 if result is None else float(np.mean(result == pair.labels[rows]))


def test_the_random_start_neither_hides_nor_is_needed() -> None:
    """The active party's block is solved before g is sent, so g and the model do not depend on the start.

    If its columns are uninformative (suppressed by l2 here), g takes two values from any start, and few rows are read.
    If they are informative, g takes many values even from zero weights.
    """

    def zero(X: NDArray[np.float64], scaled: object, targets: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        return np.zeros((X.shape[1] + 1, targets.shape[1]))

    assert labels_from_two_values(None, l2=1e3) == labels_from_two_values(zero, l2=1e3) == 1.0
    assert labels_from_two_values(zero, l2=1e-3) < 0.9
    job = newton_job(protocol=vfl.Protocol(residual="open"))
    drawn = vfl.simulate(job, noise_parties(500))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_block, "starting_weights", zero)
        plain = vfl.simulate(job, noise_parties(500))
    for name, part in drawn.parts.items():
        np.testing.assert_allclose(part.theta, plain.parts[name].theta, atol=2e-3)


def test_the_step_is_one_of_three_numbers() -> None:
    lines: list[Event] = []
    vfl.simulate(newton_job(epochs=20), noise_parties(500), observe=lines.append)
    paces = [event.message for event in lines if type(event.message).__name__ == "Pace"]
    assert {pace.multiple for pace in paces} <= {INITIAL_MULTIPLE, 0.75 * INITIAL_MULTIPLE, 1.0}  # type: ignore[attr-defined]
    assert all(type(pace).__struct_fields__ == ("multiple", "stop") for pace in paces)
