"""The two leak checks on the total of opened gradients, and the attacks behind the leaks."""

from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import coo_array, vstack
from scipy.sparse.linalg import lsqr
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.data.schedule import Schedule
from securevfl.errors import LeakageError
from securevfl.families import FAMILIES, leak_kinds
from securevfl.runtime.observer import Event
from tests.builders import raises_code

EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_attack_may_carry_out_an_accepted_leak(name: str) -> None:
    """Every attack, with every set of leaks that its job may accept, of which some concern another attack alone."""
    job = vfl.Job(**{"batch_size": 40, "epochs": 2} | EXAMPLES[name])
    kinds = job.family.leak_kinds
    several = 0
    for attack in ATTACKS.values():
        of_attack = [kind.name for kind in kinds if attack.name in kind.attacks]
        others = [kind.name for kind in kinds if kind.name not in of_attack][:1]
        several += len(of_attack) > 1
        for count in range(len(of_attack) + 1):
            for accepted in combinations(of_attack, count):
                accepting = job.model_copy(update={"accepts": [*others, *accepted]})
                assert attack.unaccepted_leaks(accepting) == (of_attack if not accepted else [])
    assert several or job.family.name != "shares"


def sealed_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": 64,
        "epochs": 2,
    }
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks())}
    return vfl.Job(**(defaults | keys))


def test_a_gradient_that_determines_g_is_refused_with_the_remedy() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)) as refused:
        vfl.simulate(sealed_job(batch_size=14), [bank, shop])
    assert "batch_size > 15" in str(refused.value)
    assert vfl.simulate(sealed_job(batch_size=14, epochs=1, accepts=["rank"]), [bank, shop]).costs.rounds > 0
    assert vfl.simulate(sealed_job(batch_size=14, epochs=1, protocol=vfl.Protocol(residual="open")), [bank, shop])


def test_the_smallest_batch_counts() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    smallest = Schedule(569, batch_size=16, epochs=1, seed=0, test_fraction=0.0, reshuffle=False).smallest_batch
    assert smallest == 15
    with pytest.raises(LeakageError):
        vfl.simulate(sealed_job(batch_size=16), [bank, shop])


def test_reshuffling_is_refused_with_the_remedy() -> None:
    parties = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(sealed_job(reshuffle=True), parties)
    assert vfl.simulate(sealed_job(reshuffle=True, accepts=["fresh_equations"]), parties)
    assert vfl.simulate(sealed_job(reshuffle=True, protocol=vfl.Protocol(residual="open")), parties)


def test_a_hiding_sum_of_one_part_is_refused() -> None:
    parties = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("single_passive",)):
        vfl.simulate(sealed_job(protocol=vfl.Protocol(sum="cipher", residual=vfl.Ckks())), parties)


def test_explain_states_refusals() -> None:
    parties = vfl.datasets.breast_cancer()
    sheet = vfl.explain(sealed_job(batch_size=14, reshuffle=True, accepts=["fresh_equations"]), parties)
    assert "would be refused: disclosure to shop: its opened gradient has 15 parameters" in sheet
    assert "accepted: disclosure to shop: rows reshuffled" in sheet
    assert "p = 15 equations about n x c = 63" in vfl.explain(sealed_job(), parties)
    assert "Residual from active: plain" in vfl.explain(sealed_job(protocol=vfl.Protocol(residual="open")), parties)


def noise_attack(epochs: int, *, reshuffle: bool, seed: int) -> float:
    """Return the label AUC of a passive party of pure noise, by least squares over all its opened gradients.

    The gradients X_b^T g_b are computed here from the same schedule and a training in the clear.
    """
    rows, batch, d = 2560, 256, 15
    generator = np.random.default_rng(seed)
    columns, noise = generator.normal(size=(rows, 5)), generator.normal(size=(rows, d))
    y = columns.sum(axis=1) + generator.normal(size=rows) > 0
    theta = np.zeros(5)
    schedule = Schedule(rows, batch_size=batch, epochs=epochs, seed=seed, test_fraction=0.0, reshuffle=reshuffle)
    equations: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    for visit in schedule.iterations():
        i = visit.rows
        g = 1 / (1 + np.exp(-columns[i] @ theta)) - y[i]
        theta -= 0.05 * columns[i].T @ g / len(i)
        answers.append(noise[i].T @ g)
        equations.append(coo_array((noise[i].T.ravel(), (np.repeat(range(d), len(i)), np.tile(i, d))), (d, rows)))
    guess = lsqr(vstack(equations).tocsr(), np.concatenate(answers), iter_lim=60)[
        0
    ]  # g is assumed to be constant in time
    return float(roc_auc_score(y, -guess))


def test_reshuffled_batches_reveal_labels_and_fixed_do_not() -> None:
    fixed = np.mean([noise_attack(20, reshuffle=False, seed=seed) for seed in range(3)])
    few, more, many = (noise_attack(epochs, reshuffle=True, seed=0) for epochs in (5, 10, 40))
    assert 0.5 < fixed < 0.66
    assert fixed + 0.05 < few < more < many
    assert many > 0.95


def test_the_schedule_of_a_run_is_the_fixed_partition() -> None:
    """The leak check assumes that the passive party gets the same batches in every epoch."""
    rows: dict[int, set[bytes]] = {}
    job = sealed_job(epochs=3)
    schedule = Schedule(100, batch_size=job.batch_size, epochs=3, seed=0, test_fraction=0.25, reshuffle=job.reshuffle)
    for visit in schedule.iterations():
        rows.setdefault(visit.index, set()).add(visit.rows.tobytes())
    assert all(len(row) == 1 for row in rows.values())
    assert len(schedule.test) == 25
    assert not set(schedule.test) & set(schedule.train)


def test_sealed_messages_reveal_nothing_and_never_repeat() -> None:
    """Every sealed message is fresh, and no frame contains g or a gradient for a party that must not read it."""
    parties = vfl.datasets.breast_cancer()
    events: list[Event] = []
    vfl.simulate(sealed_job(), parties, observe=events.append)
    for kind in ("ResidualCiphertext", "BlindedProduct", "OpenedProduct"):
        bodies = [
            event.message.__getattribute__("values" if kind == "OpenedProduct" else "ciphertext")
            for event in events
            if type(event.message).__name__ == kind and event.direction == "recv"
        ]
        assert len(bodies) == 18
        assert len(set(bodies)) == len(bodies)


def test_leaks_name_existing_attacks() -> None:
    assert {name for kind in leak_kinds().values() for name in kind.attacks} <= set(ATTACKS)
    for name, family in FAMILIES.items():
        assert len({kind.name for kind in family.leak_kinds}) == len(family.leak_kinds), name
