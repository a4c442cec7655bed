"""Columns that the active party recovers, and labels that passive parties recover: the tables of docs/threat-model.md.

The active party has the labels, and passive parties have only columns. The attacks are those of the audit.

    python benchmarks/columns.py DATA
    python benchmarks/columns.py DATA --only "partial score"

DATA is a folder with UCI_Credit_Card.csv.gz, default_credit_hetero_{guest,host}.csv.gz and a9a.npz. The recovered
columns are 11 columns of 3,000 clients of the UCI credit table, 4 of them binary. One passive party has them; three
have them if the sum protocol should hide the outputs of single parties.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from pathlib import Path

import numpy as np

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.base import Score
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.optim.optimizer import Optimizer

ROWS, BATCH, EPOCHS, SEEDS = 3000, 750, 20, 3
FEW = (EPOCHS, 8, 4, 3, 2)


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """Return the header and the rows of a table."""
    with gzip.open(path, "rt") as file:
        head, *rows = csv.reader(file)
    return head, np.array(rows, dtype=np.float64)


def credit(data: Path, passives: int, rows: int) -> list[vfl.Party]:
    """Return a bank with 12 columns of bills and payments, and others with 11 columns, 4 of them binary."""
    head, table = read(data / "UCI_Credit_Card.csv.gz")
    table = table[np.random.default_rng(0).permutation(len(table))[:rows]]
    raw = dict(zip(head, table.T, strict=True))
    shop = {
        "limit": raw["LIMIT_BAL"],
        "sex": raw["SEX"] == 1,
        "married": raw["MARRIAGE"] == 1,
        "university": raw["EDUCATION"] == 2,
        "age": raw["AGE"],
        "late": raw["PAY_0"] > 0,
        "pay1": raw["PAY_AMT1"],
        "pay2": raw["PAY_AMT2"],
        "pay3": raw["PAY_AMT3"],
        "bill1": raw["BILL_AMT1"],
        "bill2": raw["BILL_AMT2"],
    }
    bank = [f"PAY_{k}" for k in range(2, 7)] + [f"{kind}{k}" for k in (4, 5, 6) for kind in ("BILL_AMT", "PAY_AMT")]
    parties = [
        vfl.Party(
            "bank", np.column_stack([raw[name] for name in bank]), table[:, -1].astype(int), columns=bank, aligned=True
        )
    ]
    for k, names in enumerate(np.array_split(list(shop), passives)):
        parties.append(
            vfl.Party(f"shop{k}", np.column_stack([shop[name] for name in names]), columns=list(names), aligned=True)
        )
    return parties


def job(sums: object, residual: object, optimizer: Optimizer | None = None, epochs: int = EPOCHS) -> vfl.Job:
    """Return a job with this sum and residual."""
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=optimizer or vfl.FedBCD(local_steps=5, lr=0.1),
        protocol=vfl.Protocol(sum=sums, residual=residual),  # type: ignore[arg-type]
        batch_size=BATCH,
        epochs=epochs,
    )


def columns(data: Path, only: str, rows: int) -> None:
    """Print the table of recovered columns."""
    one, three = credit(data, 1, rows), credit(data, 3, rows)
    in_turn = vfl.FedBCD(local_steps=5, lr=0.1, mode="sequential")
    hiding = (vfl.PairwiseSum(), vfl.TreeSum(), vfl.CipherSum())
    settings: list[tuple[str, vfl.Job, list[vfl.Party]]] = [
        *((f"direct, sealed (CKKS), {epochs} epochs", job("direct", vfl.Ckks(), epochs=epochs), one) for epochs in FEW),
        *((f"{sums!r}, sealed (CKKS)", job(sums, vfl.Ckks()), three) for sums in hiding),
        ("cipher (Paillier), sealed", job(vfl.CipherSum(engine=vfl.Paillier(bits=2048)), vfl.Ckks()), three),
        ("direct, sealed (Paillier)", job("direct", vfl.Paillier(bits=2048)), one),
        ("direct, open", job("direct", "open"), one),
        ("pairwise, open", job("pairwise", "open"), three),
        ("pairwise, sealed, sequential", job("pairwise", vfl.Ckks(), in_turn), three),
        ("direct, sealed, FedSGD", job("direct", vfl.Ckks(), vfl.FedSGD(lr=0.1)), one),
        ("direct, sealed, FedPBCD", job("direct", vfl.Ckks(), vfl.FedPBCD(lr=0.1, mu=0.1)), one),
    ]
    for name, local, parties in settings:
        if not name.startswith(only):
            continue
        stage = RealIdealPair(local, parties, 0)
        for attack in ("column_space", "binary_columns", "first_difference"):
            if not ATTACKS[attack].skip_reason(local):
                show(f"{name}: {attack}", ATTACKS[attack].score(stage))


def partial_scores(data: Path, only: str, seeds: int) -> None:
    """Print the table of label AUCs of partial scores."""
    guest, host = (read(data / f"default_credit_hetero_{side}.csv.gz")[1] for side in ("guest", "host"))
    guest, host = (side[np.argsort(side[:, 0])] for side in (guest, host))
    a9a = np.load(data / "a9a.npz", allow_pickle=False)
    X, y = a9a["X"][:32561].astype(np.float64), a9a["y"][:32561] > 0
    ours, theirs = (X[:, columns][:, X[:, columns].any(axis=0)] for columns in (a9a["g"], a9a["h"]))
    tables = {
        "breast_cancer": (vfl.datasets.breast_cancer(), 128),
        "default_credit": (
            [
                vfl.Party("bank", guest[:, 2:], guest[:, 1] > 0, aligned=True),
                vfl.Party("shop", host[:, 1:], aligned=True),
            ],
            1024,
        ),
        "a9a": ([vfl.Party("bank", ours, y, aligned=True), vfl.Party("shop", theirs, aligned=True)], 1024),
    }
    for name, (parties, batch) in tables.items():
        for residual in (vfl.Ckks(), "open"):
            if not f"partial score, {name}".startswith(only):
                continue
            attacked_job = job("direct", residual, epochs=10).model_copy(update={"batch_size": batch})
            scores = [ATTACKS["partial_score"](attacked_job, parties, seed).real for seed in range(seeds)]
            print(f"partial score, {name}, {residual}: {np.mean(scores):.3f}", flush=True)


def show(name: str, score: Score) -> None:
    """Print one score."""
    print(
        f"{name}: {score.real:.3f} (ideal {score.simulated:.3f}, chance {score.chance:.3f}) {score.detail}", flush=True
    )


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--only", default="", help="only the lines whose names begin with this text")
    options.add_argument("--rows", type=int, default=ROWS, help="clients of the credit table")
    options.add_argument("--seeds", type=int, default=SEEDS, help="runs of each partial score")
    arguments = options.parse_args()
    columns(arguments.data, arguments.only, arguments.rows)
    partial_scores(arguments.data, arguments.only, arguments.seeds)


if __name__ == "__main__":
    main()
