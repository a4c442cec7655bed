"""FDML with delayed sums: every step of a worker that knows labels is computed from the sums that it pulled."""

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.models.losses import LOSSES
from securevfl.protocols.observations import OthersSumLearned, OutputsPushed
from securevfl.runtime.observer import Event, Observer
from securevfl.training.simulate import simulate

L2, LR = 1e-2, 0.4


class Told(Observer):
    """One worker's pushed outputs and received sums, in order."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.facts: list[OutputsPushed | OthersSumLearned] = []

    def __call__(self, event: Event) -> None:
        """Messages are not kept."""

    def note(self, me: str, fact: object) -> None:
        if me == self.who and isinstance(fact, OutputsPushed | OthersSumLearned):
            self.facts.append(fact)


@pytest.mark.parametrize("decay", ["none", "sqrt_t"])
@pytest.mark.parametrize("tau", [0, 2, 6])
def test_steps_are_taken_at_the_weights_of_their_time(tau: int, decay: Any) -> None:
    """Sums of the other workers may be stale. A worker recomputes its output if its weights changed after the push."""
    bank, shop, telco = vfl.datasets.breast_cancer(parties=3)
    job = vfl.Job(
        model=vfl.Logistic(l2=L2),
        optimizer=vfl.FDML(lr=LR, tau=tau, decay=decay, shows_labels=True, stored="open"),
        protocol=vfl.Protocol(),
        batch_size=64,
        epochs=3,
        accepts=("columns", "rank"),
    )
    log = Told("bank")
    slowed = {"shop": 40.0, "server": 25.0}  # so that answers come while later iterations are under way
    run = simulate(job, [bank, shop, telco, vfl.Helper("server", "server")], observe=log, slowed=slowed)
    X = np.column_stack([(bank.X - bank.X.mean(axis=0)) / bank.X.std(axis=0), np.ones(len(bank))])
    assert bank.y is not None
    y = np.where(bank.y == 1, 1.0, -1.0)[:, None]
    visits = {visit.index: visit.rows for visit in job.schedule(bank.register).iterations()}
    theta = np.zeros((X.shape[1], 1))
    pushed = next(fact for fact in log.facts if isinstance(fact, OutputsPushed))
    theta = np.linalg.lstsq(X[visits[pushed.index]], pushed.values)[0]  # where it started
    decays = np.full_like(theta, L2)
    decays[-1] = 0.0
    stale, t = 0, 0
    waiting: list[OutputsPushed] = []
    for fact in log.facts:
        rows = X[visits[fact.index]]
        if isinstance(fact, OutputsPushed):
            np.testing.assert_allclose(fact.values, rows @ theta, atol=1e-9)
            waiting.append(fact)
            continue
        stale += not np.allclose(waiting.pop(0).values, rows @ theta, atol=1e-12)
        g = LOSSES["logistic"].residual(fact.values + rows @ theta, y[visits[fact.index]])
        eta = LR if decay == "none" else LR / (t + 1) ** 0.5
        theta = theta - eta * (rows.T @ g / len(rows) + decays * theta)
        t += 1
    np.testing.assert_allclose(run.parts["bank"].theta, theta, atol=1e-9)
    assert (stale > 0) == (tau > 0)  # with tau > 0, some outputs do become stale
