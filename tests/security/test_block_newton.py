"""What rounds on all rows tell: of labels by everything opened, of columns by few exchanges, and what a start hides."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS, LabelAttack, label_auc
from securevfl.audit.attacks.two_values import subset
from securevfl.audit.recording.received import received
from securevfl.audit.recording.views import Worlds
from securevfl.disclosure.label_auc import expected_label_auc
from securevfl.models import linear
from securevfl.optim.block_newton import OVER
from securevfl.runtime.channel import Event

NOISE = 15  # columns of the attacker


def job(**keys: object) -> vfl.Job:
    own: dict[str, object] = {"model": vfl.Logistic(l2=1e-3), "optimizer": vfl.BlockNewton(), "batch_size": "all"}
    own |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "epochs": 6, "accepts": ["columns"]}
    return vfl.Job(**(own | keys))  # type: ignore[arg-type]


def tables(rows: int, columns: int = NOISE, seed: int = 0) -> list[vfl.Party]:
    """A bank whose columns go with the labels, and a shop of pure noise."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 8))
    y = (X.sum(axis=1) + 2 * generator.normal(size=rows) > 0).astype(int)
    shop = vfl.Party("shop", generator.normal(size=(rows, columns)), aligned=True)
    return [vfl.Party("bank", X, y, aligned=True), shop]


def best_attack(own: vfl.Job, parties: list[vfl.Party]) -> float:
    """The highest label AUC of all label attacks of the audit on what the shop has received."""
    worlds = Worlds(own, parties, 0, attacker="shop")
    fit = [each for each in ATTACKS.values() if isinstance(each, LabelAttack) and each.applies_to(own)]
    assert {"batch_inversion", "cross_round", "own_part"} <= {each.name for each in fit}
    return max(label_auc(each.guess(worlds.real(), worlds), worlds.labels) for each in fit)


def test_labels_are_safe_from_everything_opened_where_rows_are_many() -> None:
    few, many = (best_attack(job(), tables(rows)) for rows in (400, 20_000))
    assert many <= 0.55
    assert few > many + 0.05
    assert few > expected_label_auc(NOISE, 400, 1, 6, reshuffle=False) - 0.05  # what explain says is no overstatement


def test_minibatches_of_the_same_data_tell_more() -> None:
    parties = tables(4000)
    minibatches = job(optimizer=vfl.FedBCD(lr=0.3), batch_size=128, epochs=3)
    all_rows, batches = (best_attack(each, parties) for each in (job(), minibatches))
    assert all_rows < 0.58
    assert batches > all_rows + 0.05


def test_few_exchanges_span_few_dimensions_of_the_columns() -> None:
    own = job(epochs=5, optimizer=vfl.BlockNewton(tolerance=0))
    worlds = Worlds(own, tables(1000), 0)
    (batch,) = received(worlds, worlds.real_run[1])
    exchanges = worlds.real_run[0].costs.rounds
    assert exchanges == 5
    trained = batch.numbers[:, :exchanges]
    assert np.linalg.matrix_rank(trained) == exchanges - 1  # the first is zero
    assert "T c = 5 x 1 numbers about each training row" in vfl.explain(own, tables(1000))  # 4, and the evaluation


def labels_from_two_values(start: Callable[..., NDArray[np.float64]] | None, l2: float) -> float:
    """How well the first opened gradient gives the labels of 30 rows to who knows their share, by lattice reduction."""
    generator = np.random.default_rng(0)
    y = (generator.random(30) < 0.5).astype(int)
    bank = vfl.Party("bank", generator.normal(size=(30, 2)), y, aligned=True)
    shop = vfl.Party("shop", generator.normal(size=(30, 8)), aligned=True)
    with pytest.MonkeyPatch.context() as patch:
        if start is not None:
            patch.setattr(linear, "starting_weights", start)
        worlds = Worlds(job(model=vfl.Logistic(l2=l2), epochs=1), [bank, shop], 0, attacker="shop")
        rows, A, b = worlds.real().equations()[0]
    found = subset(A, A.sum(axis=1) * worlds.labels.mean() - b[:, 0])
    return 0.5 if found is None else float(np.mean(found == worlds.labels[rows]))


def test_the_random_start_neither_hides_nor_is_needed() -> None:
    """The active party's block is solved before g goes, so g and the model are the same from any start.

    Where its columns say nothing (held down by l2 here), g takes two values from any start, and few rows are read;
    where they say something g does not, from zero weights either.
    """

    def zero(X: NDArray[np.float64], scaled: object, targets: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        return np.zeros((X.shape[1] + 1, targets.shape[1]))

    assert labels_from_two_values(None, l2=1e3) == labels_from_two_values(zero, l2=1e3) == 1.0
    assert labels_from_two_values(None, l2=1e-3) < 0.9
    assert labels_from_two_values(zero, l2=1e-3) < 0.9
    own = job(protocol=vfl.Protocol(residual="open"))
    drawn = vfl.simulate(own, tables(500))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "starting_weights", zero)
        plain = vfl.simulate(own, tables(500))
    for name, part in drawn.parts.items():
        np.testing.assert_allclose(part.theta, plain.parts[name].theta, atol=2e-3)


def test_the_pace_is_one_of_three_numbers_and_says_no_more() -> None:
    told: list[Event] = []
    vfl.simulate(job(epochs=20), tables(500), observe=told.append)
    paces = [event.message for event in told if type(event.message).__name__ == "Pace"]
    assert {pace.multiple for pace in paces} <= {OVER, 0.75 * OVER, 1.0}  # type: ignore[attr-defined]
    assert all(type(pace).__struct_fields__ == ("multiple", "stop") for pace in paces)
