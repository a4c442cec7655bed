"""Trainings whose table entries are lifted: models, disclosures, traffic, and which trainings lift entries."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.families.shares import shares_plan
from securevfl.families.shares.shares_plan import MIN_LIFTED_ROWS, make_plan
from securevfl.models.row_weights import Weights
from securevfl.protocols.shares.iteration import LookupRequest, MaskedTables
from securevfl.protocols.shares.shares_options import Shares
from securevfl.runtime.observer import Event
from tests.builders import random_blocks
from tests.models.test_numbers import LABELS, SCALED, badness, number_parties, pooled_badness, train

ROWS = 900


def classes_job(model: Any, **keys: Any) -> vfl.Job:
    options: dict[str, Any] = {"model": model, "optimizer": vfl.BlockDescent(), "batch_size": "all", "epochs": 12}
    return vfl.Job(**(options | {"protocol": vfl.Protocol(shares=Shares()), "accepts": ["small_metrics"]} | keys))


def class_parties(classes: int, count: int = 2) -> list[vfl.Party]:
    blocks = random_blocks(count, ROWS, 3)
    score = sum(block[:, 0] for block in blocks) + 0.5 * np.random.default_rng(1).normal(size=ROWS)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    names = ["bank", "shop", "telco", "gym"][:count]
    return [
        vfl.Party(name, block, y if not k else None, aligned=True)
        for k, (name, block) in enumerate(zip(names, blocks, strict=True))
    ]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_plan, "MIN_LIFTED_ROWS", 1)


# tests/models/test_numbers.py trains Poisson and the quantile without a lift, test_shares_deviance.py all of a log link
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("gamma", "huber"))) for name in LABELS]
)
def test_counts_amounts_and_quantiles_match_the_pooled_table(name: str, always: None) -> None:
    run = train(name, number_parties(LABELS[name]), "shares", epochs=40)
    states = {party: part.state for party, part in run.parts.items()}
    theta = whole_weights(run.job, states, "bank")
    f = SCALED @ np.vstack([theta["bank"][:-1], theta["shop"]]) + theta["bank"][-1]
    reached = badness(name, LABELS[name], run.job.model.loss.mean(f, run.active.classes))
    assert reached <= pooled_badness(name) * 1.005


@pytest.mark.parametrize(
    ("job", "classes", "parties"),
    [
        (classes_job(vfl.Logistic()), 2, 2),
        pytest.param(classes_job(vfl.Logistic()), 2, 3, marks=pytest.mark.slow),
        (classes_job(vfl.Logistic(), weights=Weights(classes="balanced")), 2, 2),
        (classes_job(vfl.OneVsRest()), 3, 4),
        pytest.param(classes_job(vfl.SmoothHinge()), 2, 2, marks=pytest.mark.slow),
    ],
    ids=["two parties", "three parties", "weights", "three classes, four parties", "hinge"],
)
def test_weights_are_those_of_a_training_without_a_lift(
    job: vfl.Job, classes: int, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, weights = class_parties(classes, parties), []
    for rows in (1, 1 << 30):
        monkeypatch.setattr(shares_plan, "MIN_LIFTED_ROWS", rows)
        run = vfl.simulate(job, members, workers=1)
        theta = whole_weights(job, {name: part.state for name, part in run.parts.items()}, "bank")
        weights.append(np.concatenate([theta[name].ravel() for name in run.parts]))
    scale = np.abs(weights[1]).max()
    assert np.abs(weights[0] - weights[1]).max() < 0.1 * scale
    assert np.corrcoef(*weights)[0, 1] > 0.998


def test_lifted_entries_need_an_eighth_of_the_bytes(always: None) -> None:
    messages, lock = list[Any](), threading.Lock()

    def note(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, LookupRequest | MaskedTables):
            with lock:
                messages.append(event.message)

    job = classes_job(vfl.Logistic(), epochs=3)
    run = vfl.simulate(job, class_parties(2), workers=1, observe=note)
    numbers = make_plan(run.job, rows=ROWS, batches=1, parties=2).numbers
    assert (numbers.lift_bits, numbers.f_g) == (8, 7)
    trained = sum(len(message.offsets) for message in messages if isinstance(message, LookupRequest)) / job.epochs
    octets = numbers.bits // 8
    tables = [message for message in messages if isinstance(message, MaskedTables)]
    requests = [message for message in messages if isinstance(message, LookupRequest)]
    assert sum(len(message.entries) for message in tables) == 3 * 64 * trained
    assert sum(len(message.lifts) for message in tables) == 3 * 2 * (octets - 1) * trained
    assert sum(len(message.carries) for message in requests) == 3 * -(-trained // 8)
    assert sum(len(message.delta) for message in requests) == 3 * octets * trained


@pytest.mark.parametrize(
    ("model", "rows", "bits"),
    [
        (vfl.Logistic(), MIN_LIFTED_ROWS - 1, 0),
        (vfl.Logistic(), MIN_LIFTED_ROWS, 8),
        (vfl.Logistic(), 5_000_000, 8),
        (vfl.OneVsRest(), MIN_LIFTED_ROWS, 8),
        (vfl.SmoothHinge(), MIN_LIFTED_ROWS, 8),
        (vfl.Poisson(), MIN_LIFTED_ROWS - 1, 0),
        (vfl.Poisson(), MIN_LIFTED_ROWS, 16),
        (vfl.Square(), MIN_LIFTED_ROWS, 16),
    ],
)
def test_trainings_with_many_rows_lift_entries(model: Any, rows: int, bits: int) -> None:
    numbers = make_plan(classes_job(model), rows=rows, batches=1, parties=2).numbers
    assert numbers.lift_bits == bits


def test_weighted_residuals_are_lifted_from_sixteen_bits() -> None:
    job = classes_job(vfl.Logistic(), weights=Weights(classes="balanced"))
    assert make_plan(job, rows=MIN_LIFTED_ROWS, batches=1, parties=2).numbers.lift_bits == 16
