"""Rounds to a target AUC with convolutional parties: FedSGD against FedBCD-p and -s, each with its own step size.

    python benchmarks/mnist.py --data ../shared/data --json out/mnist.json

The setting of FedBCD 2019, Table 1, MNIST-CNN: one party has the left halves of the pictures and the labels, one the
right halves; each has two 3 x 3 convolutions and a dense layer, and the loss is logistic on the sum of both outputs.
The task is even against odd, which the paper leaves open. `--width 64 --dense 256` is the paper's network; the default
is a narrower one for quick runs. Rows: algorithm, Q, lr, the best AUC, and rounds to each target; None where the cap
comes first or the training diverges.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import securevfl as vfl
from securevfl.errors import DivergenceError
from securevfl.optim.fedbcd import FedBCD
from securevfl.training.costs import format_table

GRID = (0.01, 0.03, 0.1, 0.3, 1.0)
HEIGHT, WIDTH = 28, 14  # of half a picture
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels
TARGETS = 0.95, 0.97, 0.98, 0.99, 0.997


def half(width: int, dense: int) -> nn.Module:
    """Two convolutions of so many channels, each followed by a 2 x 2 maximum, and a dense layer."""
    convolutions = [
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    ]
    flat = width * (HEIGHT // 4) * (WIDTH // 4)
    head = nn.Flatten(), nn.Linear(flat, dense), nn.ReLU(), nn.Linear(dense, 1)
    module = nn.Sequential(nn.Unflatten(1, (1, HEIGHT, WIDTH)), *convolutions, *head)
    for layer in [*module][:-1]:  # by He et al. 2015: from torch's default plain gradient descent plateaus
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return module


def halves(path: Path, rows: int, make: Callable[[], nn.Module], positive: Sequence[int], seed: int) -> list[vfl.Party]:
    """So many pictures, as a party of left halves, with the labels, and one of right halves. positive: digits of the
    class that is looked for."""
    with np.load(path, allow_pickle=False) as table:
        chosen = np.random.default_rng(seed).permutation(len(table["y"]))[:rows]
        X, y, sides = (
            (table["X"][chosen] / 255.0 - MEAN) / DEVIATION,
            np.isin(table["y"][chosen], positive).astype(int),
            (table["g"], table["h"]),
        )
    return [
        vfl.Party(name, X[:, own], None if k else y, ids=np.arange(rows), model=vfl.TorchModel(make))
        for k, (name, own) in enumerate(zip(("left", "right"), sides, strict=True))
    ]


def curve(parties: Sequence[vfl.Party], optimizer: FedBCD, options: argparse.Namespace) -> list[tuple[int, float]]:
    """Rounds and held-out AUC as the training goes, up to the last target; empty if it diverges."""
    train = round(len(parties[0]) * (1 - options.test))
    job = vfl.Job(
        model=vfl.Neural(),
        optimizer=optimizer,
        protocol=vfl.Protocol(sum="direct", residual="open"),
        batch_size=options.batch,
        epochs=max(1, options.cap * options.batch // train),
        seed=options.seed,
        scale="none",
        test_fraction=options.test,
        evaluate_every=options.every,
        target=vfl.Target(metric="auc", value=TARGETS[-1]),
        accepts=["columns", "sequential"],
    )
    try:
        run = vfl.simulate(job, parties)
    except DivergenceError:
        return []
    return [(int(record["round"]), record["auc"]) for record in run.history if "auc" in record]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--test", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--cap", type=int, default=300)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--dense", type=int, default=64)
    parser.add_argument("--local-steps", type=int, nargs="*", default=[1, 3, 5])
    parser.add_argument("--lr", type=float, nargs="*", default=GRID)
    parser.add_argument("--rule", default="sgd")
    parser.add_argument("--positive", type=int, nargs="*", default=[1, 3, 5, 7, 9])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make = partial(half, options.width, options.dense)
    parties = halves(options.data / "mnist.npz", options.rows, make, options.positive, options.seed)
    rows: list[dict[str, str | int | float | None]] = []
    for Q in options.local_steps:
        for mode in ("parallel", "sequential") if Q > 1 else ("parallel",):
            for lr in options.lr:
                own = {"lr": lr, "rule": options.rule}
                optimizer = vfl.FedSGD(**own) if Q == 1 else vfl.FedBCD(local_steps=Q, mode=mode, **own)
                seen = curve(parties, optimizer, options)
                found = {f"to {each}": next((t for t, auc in seen if auc >= each), None) for each in TARGETS}
                best = round(max((auc for _, auc in seen), default=0.0), 4)
                rows.append({"algorithm": optimizer.label, "q": Q, "lr": lr, "auc": best} | found)
                print(rows[-1], flush=True)
    print(format_table([{name: "-" if cell is None else cell for name, cell in row.items()} for row in rows]))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {name: value for name, value in vars(options).items() if name not in ("data", "json")}
        found = {"schema": "securevfl.bench.mnist/1", "machine": platform.platform(), "options": facts, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
