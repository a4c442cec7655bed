"""CELU-VFL that is interrupted in any round and resumed, with its cached tables, ends with the same weights."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.protocols.residuals.open_residual import Residual
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from tests.small_keys import SMALL

pytestmark = pytest.mark.exact_outputs

R, W, ROUNDS = 4, 3, 10


class Cut(Exception):
    """Raised in place of a lost process."""


def celu_job(residual: object, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"model": vfl.Logistic(l2=0.01), "batch_size": 50, "epochs": 2, "seed": 1}
    defaults |= {"optimizer": vfl.CeluVFL(lr=0.1, R=R, W=W, xi=60, rule=vfl.AdaGrad())}
    defaults |= {"protocol": vfl.Protocol(sum=keys.pop("sum", "auto"), residual=residual)}
    defaults |= {"accepts": ["columns", "rank", "fresh_equations"]}
    return vfl.Job(**(defaults | keys))


def resumed(
    work: vfl.Job, parties: list[vfl.Party], folder: Path, at: int, observe: Callable[[Event], None] | None = None
) -> vfl.Run:
    """Return the run after an interruption in round `at`, with checkpoints after every second round."""

    def on_round(done: int, of: int) -> None:
        if done == at:
            raise Cut

    def states() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(folder / party.name, party.name, every=2) for party in parties}

    with pytest.raises(Cut):
        vfl.simulate(work, parties, checkpoints=states(), on_round=on_round, observe=observe)
    return vfl.simulate(work, parties, checkpoints=states(), observe=observe)


RESUMED_JOBS: dict[str, tuple[vfl.Job, float]] = {
    "open": (celu_job("open"), 0.0),
    "open, all rows in full": (celu_job("open", optimizer=vfl.CeluVFL(lr=0.1, R=R, W=W)), 0.0),
    "open, a table of one": (celu_job("open", optimizer=vfl.CeluVFL(lr=0.1, R=R, W=1, rule=vfl.Momentum())), 0.0),
    "open, a network": (celu_job("open", sum="direct", model=vfl.Neural(joint="top", width=3)), 0.0),
    "ckks": (celu_job("ckks"), 1e-4),
    "ckks, a network": (celu_job("ckks", model=vfl.Neural()), 1e-4),
    "open, several in flight": (celu_job("open", optimizer=vfl.CeluVFL(lr=0.1, R=R, W=W, xi=60, depth=3)), 0.0),
    "ckks, several in flight": (celu_job("ckks", optimizer=vfl.CeluVFL(lr=0.1, R=R, W=W, depth=3)), 1e-4),
    "more rows than batches": (celu_job("open", optimizer=vfl.CeluVFL(lr=0.1, R=R, W=9)), 0.0),
}


@cache
def undisturbed(kind: str) -> tuple[list[vfl.Party], vfl.Run]:
    """Return tables and the uninterrupted run on them, which tests only read."""
    parties = [party.take(np.arange(250, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=3)]
    return parties, vfl.simulate(RESUMED_JOBS[kind][0], parties)


CUTS = ((1, 6), (3, 9))
"""Before any state and on one; between two and in the last round. Each kind of job has one of them in `make test`."""


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        pytest.param(kind, at, marks=[pytest.mark.slow] * (place != turn // 2 % 2))
        for turn, kind in enumerate(RESUMED_JOBS)
        for place, at in enumerate(CUTS[turn % 2])
    ],
)
def test_the_weights_are_those_of_the_undisturbed_run(kind: str, at: int, tmp_path: Path) -> None:
    work, tolerance = RESUMED_JOBS[kind]
    parties, undisturbed_run = undisturbed(kind)
    again = resumed(work, parties, tmp_path, at)
    for name, part in undisturbed_run.parts.items():
        np.testing.assert_allclose(again.parts[name].theta, part.theta, rtol=0, atol=tolerance)
    assert again.costs.rounds == undisturbed_run.costs.rounds == ROUNDS


def test_what_goes_down_again_has_the_noise_that_it_had(tmp_path: Path) -> None:
    """Repeated residuals have the same noise; fresh noise could be averaged out."""
    parties = [party.take(np.arange(250, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]
    blurred: list[bytes] = []

    def observe(event: Event) -> None:
        if isinstance(event.message, Residual) and event.direction == "send":
            blurred.append(event.message.g.tobytes())

    resumed(celu_job(vfl.OpenResidual(defence=Gaussian(sigma=0.5))), parties, tmp_path, 7, observe)
    first, again = blurred[:7], blurred[7:]
    assert again[:W] == first[3:6]  # of the table after round 6, the last that all had kept
    assert again[W] == first[6]
    assert len(set(blurred)) == ROUNDS


@pytest.mark.slow
def test_under_paillier_too(tmp_path: Path) -> None:
    parties = [party.take(np.arange(40, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]
    work = celu_job(SMALL, batch_size=20, optimizer=vfl.CeluVFL(lr=0.1, R=2, W=2, xi=60))
    undisturbed_run, again = vfl.simulate(work, parties), resumed(work, parties, tmp_path, 3)
    for name, part in undisturbed_run.parts.items():
        np.testing.assert_array_equal(again.parts[name].theta, part.theta)
