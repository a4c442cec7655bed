"""Rounds to a target AUC with convolutional parties: FedSGD against FedBCD-p and -s, each at every step size of a grid.

The setting of FedBCD (Liu et al. 2019), Table 1, MNIST-CNN: one party has the left halves of the pictures and the
labels, one the right halves; each has two 3 x 3 convolutions and a dense layer, and the loss is logistic on the sum of
both outputs. The task is odd against even, which the paper leaves open. The paper's network has 64 channels and 256
units. A row is a training: its algorithm, local steps, step size, the best held-out AUC (None if it diverges), and the
rounds to each target, None where the cap comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securevfl.bench.tables import archive
from securevfl.data.party import Party
from securevfl.errors import DivergenceError
from securevfl.extras import extra
from securevfl.job import Job, Target
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel
from securevfl.optim.adam import Adam
from securevfl.optim.fedbcd import FedBCD, FedSGD
from securevfl.protocols.choice import Protocol
from securevfl.training.simulate import simulate

if TYPE_CHECKING:
    from torch import nn

SCHEMA = "securevfl.bench.mnist/1"
RATES = (0.0003, 0.001, 0.003, 0.01)  # the same grid for all
TARGETS = (0.95, 0.97, 0.98, 0.99, 0.997)  # the last is the paper's
HEIGHT, WIDTH = 28, 14  # of half a picture
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels
TEST = 0.25
EVERY = 2  # rounds between evaluations


def run(
    data: Path,
    *,
    rows: int = 8000,
    width: int = 8,
    dense: int = 64,
    steps: Sequence[int] = (1, 3, 5),
    rates: Sequence[float] = RATES,
    cap: int = 150,
    batch: int = 256,
    on_row: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for each algorithm and step size, under Adam. rows: pictures, a quarter of them held out; width: channels
    of a convolution; dense: units of the layer after them; steps: local steps Q, 1 for FedSGD; cap: rounds at most.
    DataError if the pictures are missing."""
    parties = halves(data, rows, partial(half, width, dense))
    found = []
    for optimizer in _optimizers(steps, rates):
        on_row(f"{optimizer.label}, Q = {optimizer.local_steps}, lr = {optimizer.lr}")
        seen = curve(parties, optimizer, cap=cap, batch=batch)
        best = max((auc for _, auc in seen), default=None)
        row = {"algorithm": optimizer.label, "q": optimizer.local_steps, "lr": optimizer.lr, "auc": best}
        found.append(row | {f"to_{each}": next((t for t, auc in seen if auc >= each), None) for each in TARGETS})
    return found


def half(width: int, dense: int) -> nn.Module:
    """Two convolutions of so many channels, each followed by a 2 x 2 maximum, and a dense layer."""
    layer = extra("torch.nn", "torch", "convolutional parties")
    convolutions = [
        *(layer.Conv2d(1, width, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2)),
        *(layer.Conv2d(width, width, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2)),
    ]
    flat = width * (HEIGHT // 4) * (WIDTH // 4)
    head = layer.Flatten(), layer.Linear(flat, dense), layer.ReLU(), layer.Linear(dense, 1)
    module: nn.Module = layer.Sequential(layer.Unflatten(1, (1, HEIGHT, WIDTH)), *convolutions, *head)
    for each in [*module.children()][:-1]:  # by He et al. 2015: from torch's default plain gradient descent plateaus
        if isinstance(each, layer.Conv2d | layer.Linear):
            layer.init.kaiming_normal_(each.weight, nonlinearity="relu")
    return module


def halves(data: Path, rows: int, make: Callable[[], nn.Module]) -> list[Party]:
    """So many pictures, as a party of left halves, with the labels, and one of right halves."""
    file = archive(data / "mnist.npz")
    chosen = np.random.default_rng(0).permutation(len(file["y"]))[:rows]
    X, y = (file["X"][chosen] / 255.0 - MEAN) / DEVIATION, (file["y"][chosen] % 2).astype(int)
    return [
        Party("left", X[:, file["g"]], y, aligned=True, model=TorchModel(make)),
        Party("right", X[:, file["h"]], aligned=True, model=TorchModel(make)),
    ]


def curve(parties: Sequence[Party], optimizer: FedBCD, *, cap: int, batch: int) -> list[tuple[int, float]]:
    """Rounds and held-out AUC as a training goes, up to the last target; empty if it diverges."""
    job = Job(
        model=Neural(),
        optimizer=optimizer,
        protocol=Protocol(sum="direct", residual="open"),
        batch_size=batch,
        epochs=max(1, round(cap * batch / (len(parties[0]) * (1 - TEST)))),
        scale="none",
        test_fraction=TEST,
        evaluate_every=EVERY,
        target=Target(metric="auc", value=TARGETS[-1]),
        accepts=("columns", "sequential"),
    )
    try:
        history = simulate(job, parties).history
    except DivergenceError:
        return []
    return [(int(record["round"]), record["auc"]) for record in history if "auc" in record]


def _optimizers(steps: Sequence[int], rates: Sequence[float]) -> Iterator[FedBCD]:
    rule = Adam()
    for Q in steps:
        for lr in rates:
            if Q == 1:
                yield FedSGD(lr=lr, rule=rule)
                continue
            yield FedBCD(local_steps=Q, lr=lr, rule=rule)
            yield FedBCD(local_steps=Q, lr=lr, rule=rule, mode="sequential")
