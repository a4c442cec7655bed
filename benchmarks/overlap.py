"""Whether local steps overlap with the exchange: CELU-VFL in two processes over mutual TLS, through a slow link.

    python benchmarks/overlap.py --mbps 300 --rtt-ms 20 --repeats 3 --json out/overlap.json

In CELU-VFL, an exchange (model outputs and the residual, the derivative of the loss by them) is used for R local steps.
Up to W exchanges are cached, so that local steps continue while the next exchange is under way.

The link is slowed as in benchmarks/delay.py. All seconds are for one round. `measured_s` is the wall-clock time of the
training at the active party, which has the labels. `exchange_s` is the same job with R = 1: an exchange and one step,
which one thread does during the local steps. `compute_s` is the computing time of the busier party in the measured run.
`line_s` is the transfer time of a round's bytes. `overlap` is measured_s / max(exchange_s, compute_s), which is 1 with
full overlap. `apart_s` is measured with W = 1, a run without overlap. Virtual times are those that `simulate` computes
with the measured network. The shortest of several repeats counts.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from delay import Told, measured, virtual
from torch import nn

import securevfl as vfl
from securevfl.runtime.costs import Kind
from securevfl.training.text_table import format_table

ROWS, COLUMNS = 16_384, 20


def module(hidden: int, width: int) -> nn.Module:
    """Return a network with this number of hidden units."""
    return nn.Sequential(nn.Linear(COLUMNS, hidden), nn.ReLU(), nn.Linear(hidden, width))


class Tables:
    """Two parties with generated columns and networks with a number of hidden units."""

    def __init__(self, hidden: int, width: int) -> None:
        self._hidden, self._width = hidden, width

    def __call__(self) -> list[vfl.Party]:
        torch.set_num_threads(1)
        generator = np.random.default_rng(0)
        X = generator.normal(size=(ROWS, 2 * COLUMNS))
        y = (X[:, ::3].sum(axis=1) + X[:, 0] * X[:, -1] > 0).astype(int)
        torch.manual_seed(0)
        shop = vfl.TorchModel(module(self._hidden, self._width))
        bank = vfl.TorchModel(Top(self._hidden, self._width))
        return [
            vfl.Party("bank", X[:, :COLUMNS], y, aligned=True, model=bank),
            vfl.Party("shop", X[:, COLUMNS:], aligned=True, model=shop),
        ]


class Top(nn.Module):
    """The active party's bottom model, and a layer on both parties' outputs."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.bottom = module(hidden, width)
        self.top = nn.Linear(2 * width, 1)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the top model."""
        result: torch.Tensor = self.top(torch.cat([self.bottom(x), z], dim=1).relu())
        return result


def job(R: int, W: int, width: int, batch: int, epochs: int) -> vfl.Job:
    """Return the job of the measurement."""
    return vfl.Job(
        model=vfl.Neural(joint="top", width=width),
        optimizer=vfl.CeluVFL(R=R, W=W, lr=0.01, rule=vfl.AdaGrad()),
        protocol=vfl.Protocol(sum="direct", residual="open"),
        batch_size=batch,
        epochs=epochs,
        accepts=["columns"],
    )


def a_round(disclosed: Told) -> float:
    """Return the seconds of one round."""
    return float(disclosed.seconds.sum()) / disclosed.rounds


def row(
    work: Callable[[int, int], vfl.Job], tables: Tables, mbps: float, rtt_ms: float, repeats: int
) -> dict[str, float]:
    """Measure one row."""

    def best(R: int, W: int) -> dict[str, Told]:
        tries = [measured(work(R, W), tables, mbps, rtt_ms) for _ in range(repeats)]
        return min(tries, key=lambda item: a_round(item["bank"]))

    neighbours, exchange, apart = best(5, 5), best(1, 5), best(5, 1)
    seconds, alone = a_round(neighbours["bank"]), a_round(exchange["bank"])
    compute = max(float(item.seconds[Kind.LOCAL]) / item.rounds for item in neighbours.values())
    network = neighbours["bank"].network
    disclosed = min(virtual(work(5, 5), tables, network) for _ in range(repeats)) / neighbours["bank"].rounds
    model = work(5, 5)
    numbers = model.model.output_width(1) * int(model.batch_size)
    return {
        "rtt_ms": rtt_ms,
        "rounds": neighbours["bank"].rounds,
        "measured_s": seconds,
        "exchange_s": alone,
        "compute_s": compute,
        "line_s": 2 * (network.latency + network.transfer(8 * numbers)),
        "overlap": seconds / max(alone, compute),
        "apart_s": a_round(apart["bank"]),
        "virtual_s": disclosed,
        "virtual_ratio": seconds / disclosed,
        **{f"found_{name}": figure for name, figure in asdict(network).items()},
    }


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mbps", type=float, default=300.0)
    options.add_argument("--rtt-ms", type=float, nargs="+", default=[5.0, 20.0, 100.0])
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--width", type=int, default=32)
    options.add_argument("--batch", type=int, default=1024)
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", type=Path, default=Path("out/overlap.json"))
    arguments = options.parse_args()
    rows = []
    for rtt_ms in arguments.rtt_ms:
        tables = Tables(arguments.hidden, arguments.width)
        rows.append(
            row(
                lambda R, W: job(R, W, arguments.width, arguments.batch, arguments.epochs),
                tables,
                arguments.mbps,
                rtt_ms,
                arguments.repeats,
            )
        )
        print(rows[-1], flush=True)
    print(format_table(rows))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    report = {"schema": "securevfl.bench.overlap/1", "machine": machine, "rows": rows}
    arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
