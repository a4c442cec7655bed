"""Transfer learning as a job: equal models with and without encryption, gradients of torch,
resumption, refusals, attacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import cancer_parties, raises_code

import securevfl as vfl
from securevfl.data.party import register_of
from securevfl.errors import ConfigError, LabelError, LeakageError, PartiesError
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.models.metrics import area_under_curve
from securevfl.protocols.engines import Paillier
from securevfl.protocols.observations import GradientLearned
from securevfl.runtime.observer import Event, Observer
from securevfl.training.checkpoint import Checkpoints

ACCEPTED = ("rank", "columns", "fresh_equations")


def transfer_job(residual: Any = "open", **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "model": Transfer(units=3, l2=1e-3),
        "optimizer": vfl.FedBCD(lr=1.0, local_steps=2),
        "protocol": vfl.Protocol(residual=residual),
        "batch_size": "all",
        "epochs": 4,
        "test_fraction": 0.25,
        "accepts": ACCEPTED,
    }
    return vfl.Job(**(defaults | keys))


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "rounds", "linearised"),
    [
        (vfl.FedSGD(lr=1.0), 20, False),
        (vfl.FedBCD(lr=0.5, local_steps=3), 6, False),
        (vfl.FedPBCD(lr=0.5, local_steps=3, mu=0.1), 6, False),
        (vfl.FedBCD(lr=0.5, local_steps=8), 6, True),
    ],
)
def test_sealed_training_gives_the_open_model(optimizer: Any, rounds: int, linearised: bool) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "epochs": rounds}
    options["model"] = Transfer(units=3, l2=1e-3, linearised=linearised)
    open_, sealed = (
        vfl.simulate(transfer_job(residual, **options), cancer_parties(rows=60)) for residual in ("open", "ckks")
    )
    for name in ("bank", "shop"):
        one, other = (run.parts[name].state["theta"] for run in (open_, sealed))
        assert np.linalg.norm(one - other) <= 1e-3 * np.linalg.norm(one)
    assert sealed.metrics["auc"] == pytest.approx(open_.metrics["auc"], abs=0.01)
    assert sealed.history[-1]["batch_loss"] < sealed.history[0]["batch_loss"]


@pytest.mark.long
def test_paillier_gives_the_open_model() -> None:
    small = {"model": Transfer(units=2), "epochs": 1, "optimizer": vfl.FedSGD(lr=1.0), "test_fraction": 0.0}
    sealed = vfl.simulate(transfer_job(Paillier(bits=2048), **small), cancer_parties(rows=24))
    open_ = vfl.simulate(transfer_job("open", **small), cancer_parties(rows=24))
    np.testing.assert_allclose(sealed.parts["shop"].state["theta"], open_.parts["shop"].state["theta"], atol=1e-4)


def test_steps_are_those_of_torch_on_pooled_rows() -> None:
    torch = pytest.importorskip("torch")
    sealed_job = transfer_job("ckks", optimizer=vfl.FedSGD(lr=1.0), epochs=3, test_fraction=0.0)
    starts = vfl.simulate(
        sealed_job.model_copy(update={"epochs": 1, "optimizer": vfl.FedSGD(lr=1e-12)}), cancer_parties(rows=40)
    )
    after = vfl.simulate(sealed_job, cancer_parties(rows=40))
    theta = {name: torch.tensor(starts.parts[name].state["theta"], requires_grad=True) for name in ("bank", "shop")}
    X = {
        party.name: torch.tensor((party.X - party.X.mean(axis=0)) / party.X.std(axis=0))
        for party in cancer_parties(rows=40)
    }
    bank = cancer_parties(rows=40)[0]
    y = torch.tensor(np.where(bank.y == np.unique(bank.y)[1], 1.0, -1.0))
    model = sealed_job.model
    assert isinstance(model, Transfer)
    for _ in range(3):
        U = {}
        for name, own_theta in theta.items():
            W = own_theta.reshape(model.units, -1)
            U[name] = torch.tanh(torch.column_stack([X[name], torch.ones(40, dtype=torch.float64)]) @ W.T)
        phi = (y[:, None] * U["bank"]).mean(dim=0)
        f = U["shop"] @ phi
        distance = ((U["bank"] - U["shop"]) ** 2).sum(dim=1).mean()
        loss = (np.log(2) - y * f / 2 + f**2 / 8).mean() + model.gamma * distance
        loss = loss + sum(model.l2 / 2 * (t.reshape(model.units, -1)[:, :-1] ** 2).sum() for t in theta.values())
        loss.backward()
        with torch.no_grad():
            for parameter in theta.values():
                parameter -= parameter.grad
                parameter.grad = None
    for name, parameter in theta.items():
        trained = after.parts[name].state["theta"]
        assert np.linalg.norm(trained - parameter.detach().numpy()) <= 1e-4 * np.linalg.norm(trained)


class Stop(Exception):
    """Raised to end a run in the middle."""


def test_resumes_where_it_was(tmp_path: Path) -> None:
    checkpoints = {name: Checkpoints(tmp_path / name, name, every=1) for name in ("bank", "shop")}

    def until(done: int, of: int) -> None:
        if done == 3:
            raise Stop

    undisturbed = vfl.simulate(transfer_job(), cancer_parties(rows=120))
    with pytest.raises(Stop):
        vfl.simulate(transfer_job(), cancer_parties(rows=120), checkpoints=checkpoints, on_round=until)
    again = vfl.simulate(transfer_job(), cancer_parties(rows=120), checkpoints=checkpoints)
    for name in ("bank", "shop"):
        np.testing.assert_array_equal(again.parts[name].state["theta"], undisturbed.parts[name].state["theta"])
    assert again.metrics == undisturbed.metrics


def test_refuses_what_it_cannot_do() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer"):
        transfer_job(optimizer=vfl.FedBCD(lr=1.0, mode="sequential"))
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="protocol.residual"):
        transfer_job(protocol=vfl.Protocol())
    with raises_code(PartiesError, "SVFL-PARTIES-COUNT"):
        vfl.simulate(transfer_job(), vfl.datasets.breast_cancer(parties=3))
    bank, shop = cancer_parties(rows=120)
    several = vfl.Party("bank", bank.X, np.arange(len(bank)) % 3, ids=bank.ids)
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        vfl.simulate(transfer_job(), [several, shop])
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(transfer_job("ckks", accepts=("columns", "rank")), cancer_parties(rows=120))
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)):
        vfl.simulate(
            transfer_job("ckks", model=Transfer(units=5), accepts=("columns", "fresh_equations")),
            cancer_parties(rows=40),
        )


class Host(Observer):
    """Store the values that the host learns."""

    def __init__(self) -> None:
        self.learned: list[GradientLearned] = []

    def __call__(self, event: Event) -> None:
        pass

    def note(self, me: str, fact: object) -> None:
        if me == "shop" and isinstance(fact, GradientLearned):
            self.learned.append(fact)


def test_opened_gradients_tell_labels_as_the_sheet_says() -> None:
    """Least squares for b, whose first direction is y Phi: the host ranks the labels after one opened gradient.

    How well goes with the random start: AUC .79 to .98 over the seeds 0 to 4, this one in the middle.
    """
    parties, host = cancer_parties(rows=120), Host()
    sealed_job = transfer_job("ckks", model=Transfer(units=6, gamma=0.005), test_fraction=0.0, epochs=2, seed=4)
    vfl.simulate(sealed_job, parties, observe=host)
    assert "equations about" in vfl.explain(sealed_job, parties)
    n, d, first = len(parties[0]), 6, host.learned[0]
    b = np.linalg.lstsq(first.J.dense.T, first.gradient, rcond=None)[0][: n * d].reshape(d, n)
    score = np.linalg.svd(b, full_matrices=False)[2][0]
    y = parties[0].y
    assert y is not None
    positive = (y == np.unique(y)[1])[sealed_job.schedule(register_of(parties)).batch_order]
    auc = area_under_curve(positive, score)
    assert max(auc, 1 - auc) > 0.9
