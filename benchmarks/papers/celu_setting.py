"""The setting of CELU-VFL's experiments: two parties with Wide & Deep networks, a top model, residuals in the open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from securevfl.data.party import Party
from securevfl.data.preparation import Preparation
from securevfl.job import Job
from securevfl.models import towers
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel
from securevfl.optim.optimizer import Optimizer
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.open_residual import OpenResidual

R, W, XI = 5, 5, 60.0
Precision = Literal["double", "single"]


@dataclass(frozen=True)
class Plan:
    """Trainings on generated clicks, of which the rounds to an AUC are counted.

    Attributes:
        rows: number of generated rows.
        test: share of held-out rows.
        batch: number of rows of a batch.
        width: number of outputs Z for each row.
        epochs: number of epochs.
        every: number of rounds between two evaluations.
        targets: the AUCs to reach.
        grid: step sizes from which one is chosen.
        splits: number of random splits.
        starts: number of random starts of each split.
        methods: names of the methods.
        precision: number format in which Z is sent, "double" or "single".
    """

    rows: int = 64_000
    test: float = 0.05
    batch: int = 64
    width: int = 16
    epochs: int = 1
    every: int = 2
    targets: tuple[float, ...] = (0.68, 0.70, 0.72)
    grid: tuple[float, ...] = (0.005, 0.01)
    splits: int = 1
    starts: int = 5
    methods: tuple[str, ...] = ("plain", "pipeline", "fedbcd", "celu", "celu, pipeline")
    precision: Precision = "double"


def job_of(plan: Plan, optimizer: Optimizer, split: int, start: int = 0) -> Job:
    """Return one training from a random start, which stops at the last target."""
    return Job(
        model=Neural(joint="top", width=plan.width),
        optimizer=optimizer,
        protocol=Protocol(sum="direct", residual=OpenResidual(), precision=plan.precision),
        prepare=Preparation(texts="codes", missing="fill", rare=0.0),
        batch_size=plan.batch,
        epochs=plan.epochs,
        seed=start,
        split=split,
        test_fraction=plan.test,
        evaluate_every=plan.every,
        target={"metric": "auc", "value": plan.targets[-1]} if plan.test else None,
        accepts=("columns",),
    )


def with_networks(parties: list[Party], width: int) -> list[Party]:
    """Return the parties, each with a Wide & Deep network for its columns."""
    for party in parties:
        kind = towers.WideDeepTop if party.active else towers.WideDeep
        party.model = TorchModel(partial(kind, towers.Fields.of(party), width))
    return parties
