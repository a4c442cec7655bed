"""Rounds to an AUC with convolutional parties: FedSGD against FedBCD-p and -s under the paper's rule.

The setting of FedBCD (Liu et al. 2019), Table 1, MNIST-CNN: one party has the left halves of the pictures and the
labels, one the right halves. Each has two 3 x 3 convolutions and a dense layer, and the loss is logistic in the sum of
both outputs. The task is odd against even, which the paper does not state; its network has 64 channels and 256 units.
Weights start as torch initialises them. Steps are eta0 / sqrt(t + 1), as in the paper; eta0 is chosen on validation
pictures of the first split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.papers.study import (
    DIVERGED,
    Curve,
    Rows,
    Runs,
    choose,
    development,
    mean,
    one_step,
    reached,
    rounds_figures,
    toll,
)
from benchmarks.tables import archive
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel, torch
from securevfl.optim.fedbcd import FedBCD, FedSGD
from securevfl.protocols.protocol_options import Protocol
from securevfl.training.simulate import simulate

if TYPE_CHECKING:
    from torch import nn

IMAGE_HEIGHT, HALF_IMAGE_WIDTH = 28, 14  # pixels of half a picture
MEAN, DEVIATION = 0.1307, 0.3081  # pixels of a picture
TEST_FRACTION = 0.25


@dataclass(frozen=True)
class Plan:
    """Trainings on pictures, of which the rounds to an AUC are counted.

    Attributes:
        rows: number of pictures.
        width: number of channels of a convolution.
        dense: number of units of the dense layer.
        steps: numbers Q of local steps.
        grid: values of eta0 from which one is chosen.
        cap: maximum number of rounds.
        batch: number of pictures of a batch.
        targets: the AUCs to reach.
        every: number of rounds between two evaluations.
        splits: number of random splits.
        starts: number of random starts of each split.
    """

    rows: int = 2400
    width: int = 8
    dense: int = 64
    steps: tuple[int, ...] = (1, 3, 5)
    grid: tuple[float, ...] = (0.1, 0.3, 1.0)
    cap: int = 120
    batch: int = 128
    targets: tuple[float, ...] = (0.90, 0.93, 0.95)
    every: int = 2
    splits: int = 1
    starts: int = 5


@dataclass(frozen=True)
class Try:
    """A value of eta0, the local steps used with it, and splits."""

    eta0: float
    steps: tuple[int, ...]
    splits: int


@dataclass(frozen=True)
class RulePlan:
    """Trainings in which all algorithms have the same eta0.

    Attributes:
        setting: pictures and options of the trainings; its grid, local steps and splits are not used.
        tries: the values of eta0 to try, with their local steps and splits.
    """

    setting: Plan
    tries: tuple[Try, ...]


FULL = Plan()
RULE = RulePlan(
    Plan(rows=20_000, width=64, dense=256, cap=300, every=10, targets=(0.90, 0.93, 0.95, 0.97), starts=3),
    (Try(0.1, (1, 3, 5), 1),),
)
QUICK = Plan(240, 1, 4, (1, 3), (0.02,), 12, 40, (0.7, 0.9), 1, 1, 1)
RULE_QUICK = RulePlan(QUICK, (Try(0.02, (1, 3), 1),))


def run(data: Path | None, plan: Plan, runs: Runs) -> Rows:
    """Return a row for each algorithm and target. DataError if the pictures are missing."""
    torch().set_num_threads(1)
    parties = halves(data, plan.rows, partial(half, plan.width, plan.dense))
    kinds = _kinds(plan.steps)
    inner = development(parties, _job(FedSGD(lr=1.0), plan, 0))
    choices = []
    for q, mode in kinds:

        def merit(eta: float, q: int = q, mode: str = mode) -> float:
            runs(f"mnist, Q = {q}, {mode}, eta0 = {eta:g}")
            return toll(curve(inner, optimizer(q, mode, eta), plan, 0, 0), plan.targets, plan.cap)

        choices.append(choose(plan.grid, merit))
    together = one_step(choices)
    rows = []
    for (q, mode), choice in zip(kinds, choices, strict=True):
        runs(f"mnist, Q = {q}, {mode}")
        seen = {eta: _curves(parties, optimizer(q, mode, eta), plan) for eta in {choice.step, together}}
        for target in plan.targets:
            local, same = ([reached(item, target) for item in seen[eta]] for eta in (choice.step, together))
            rows.append(
                {
                    "algorithm": optimizer(q, mode, 1.0).label,
                    "q": q,
                    "target": target,
                    **choice.row(),
                    **rounds_figures(local),
                    "one_step": together,
                    **{f"one_{name}": figure for name, figure in rounds_figures(same).items()},
                    "auc": mean([max((auc for _, auc in item), default=0.0) for item in seen[choice.step]]),
                    "splits": plan.splits,
                    "pictures": plan.rows,
                    "channels": plan.width,
                    "curve": [list(point) for point in seen[choice.step][0]],
                }
            )
    return rows


def at_one_rule(data: Path | None, plan: RulePlan, runs: Runs) -> Rows:
    """Return a row for each algorithm and target, all under one eta0 / sqrt(t + 1), by which nothing was chosen."""
    torch().set_num_threads(1)
    setting = plan.setting
    parties = halves(data, setting.rows, partial(half, setting.width, setting.dense))
    rows: Rows = []
    trainings = [(attempt, kind) for attempt in plan.tries for kind in _kinds(attempt.steps)]
    for one, (q, mode) in trainings:
        eta0, tried = one.eta0, replace(setting, splits=one.splits)
        runs(f"mnist, Q = {q}, {mode}, eta0 = {eta0:g}")
        what = {"setting": asdict(tried), "eta0": eta0, "q": q, "mode": mode}
        result: list[Curve] = runs.once(what, partial(_curves, parties, optimizer(q, mode, eta0), tried))
        for target in setting.targets:
            rounds = [reached(attempt, target) for attempt in result]
            best = mean([max((auc for _, auc in attempt), default=0.0) for attempt in result])
            row = {"eta0": eta0, "algorithm": optimizer(q, mode, 1.0).label, "q": q, "target": target, "auc": best}
            rows.append(row | rounds_figures(rounds))
    return rows


def _kinds(steps: Sequence[int]) -> list[tuple[int, str]]:
    return [(q, mode) for q in steps for mode in (("parallel",) if q == 1 else ("parallel", "sequential"))]


def optimizer(q: int, mode: str, eta: float) -> FedBCD:
    """Return Q local steps under the paper's rule."""
    if q == 1:
        return FedSGD(lr=eta, decay="sqrt_t")
    return FedBCD(lr=eta, decay="sqrt_t", local_steps=q, mode="sequential" if mode == "sequential" else "parallel")


def half(width: int, dense: int) -> nn.Module:
    """Return two convolutions with this number of channels, each followed by a 2 x 2 maximum, and a dense layer."""
    layer = import_extra("torch.nn", "torch", "convolutional parties")
    convolutions = [
        *(layer.Conv2d(1, width, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2)),
        *(layer.Conv2d(width, width, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2)),
    ]
    flat = width * (IMAGE_HEIGHT // 4) * (HALF_IMAGE_WIDTH // 4)
    head = layer.Flatten(), layer.Linear(flat, dense), layer.ReLU(), layer.Linear(dense, 1)
    module: nn.Module = layer.Sequential(layer.Unflatten(1, (1, IMAGE_HEIGHT, HALF_IMAGE_WIDTH)), *convolutions, *head)
    return module


def halves(data: Path | None, rows: int, make: Callable[[], nn.Module]) -> list[Party]:
    """Return pictures as a party of left halves, with the labels, and one of right halves."""
    pixels = np.arange(IMAGE_HEIGHT * 2 * HALF_IMAGE_WIDTH).reshape(IMAGE_HEIGHT, 2 * HALF_IMAGE_WIDTH)
    if data is None:
        X, y = made_up(rows)
        sides = {"g": pixels[:, :HALF_IMAGE_WIDTH].ravel(), "h": pixels[:, HALF_IMAGE_WIDTH:].ravel()}
    else:
        file = archive(data / "mnist.npz")
        chosen = np.random.default_rng(0).permutation(len(file["y"]))[:rows]
        X, y, sides = file["X"][chosen], (file["y"][chosen] % 2).astype(int), {"g": file["g"], "h": file["h"]}
    X = (X / 255.0 - MEAN) / DEVIATION
    return [
        Party("left", X[:, sides["g"]], y, aligned=True, model=TorchModel(make)),
        Party("right", X[:, sides["h"]], aligned=True, model=TorchModel(make)),
    ]


def made_up(rows: int) -> tuple[Any, Any]:
    """Return pictures with a bright left or right half; odd if it is the left one."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, rows)
    X = generator.integers(0, 60, (rows, IMAGE_HEIGHT, 2 * HALF_IMAGE_WIDTH))
    X[:, :, :HALF_IMAGE_WIDTH] += np.where(y, 150, 0)[:, None, None]
    X[:, :, HALF_IMAGE_WIDTH:] += np.where(y, 0, 150)[:, None, None]
    return X.reshape(rows, -1), y


def curve(parties: Sequence[Party], chosen: FedBCD, plan: Plan, split: int, start: int) -> Curve:
    """Return rounds and held-out AUC during a training from a random start; empty if it diverges."""
    try:
        history = simulate(_job(chosen, plan, split, start, len(parties[0])), parties).history
    except DIVERGED:
        return []
    return [(record["round"], record["auc"]) for record in history if "auc" in record]


def _curves(parties: Sequence[Party], chosen: FedBCD, plan: Plan) -> list[Curve]:
    pairs = [(split, start) for split in range(plan.splits) for start in range(plan.starts)]
    return [curve(parties, chosen, plan, split, start) for split, start in pairs]


def _job(chosen: FedBCD, plan: Plan, split: int, start: int = 0, rows: int = 0) -> Job:
    return Job(
        model=Neural(),
        optimizer=chosen,
        protocol=Protocol(sum="direct", residual="open"),
        batch_size=plan.batch,
        epochs=max(1, round(plan.cap * plan.batch / ((rows or plan.rows) * (1 - TEST_FRACTION)))),
        scale="none",
        seed=start,
        split=split,
        test_fraction=TEST_FRACTION,
        evaluate_every=plan.every,
        target={"metric": "auc", "value": plan.targets[-1]},
        accepts=("columns", "sequential"),
    )
