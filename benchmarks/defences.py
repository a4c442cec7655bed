"""The cost in AUC of each defence of an open residual, and the success of label attacks against it.

    python benchmarks/defences.py > table.md

A residual is the derivative of the loss by a row's output. An open residual is sent unencrypted; a defence adds noise
to it or clips it. The job is a logistic regression, trained by FedSGD with step 0.3, with a quarter of the rows held
out. Figures are means over a few seeds. Columns:
    AUC       of the model on the held-out rows, with its standard deviation over seeds
    direct    the best AUC of the labels from the received residuals (sign, norm, direction, all rounds together)
    by X^T g  the best of the same attacks from the gradients alone, which a sealed residual opens too
    epsilon   privacy loss of a row's label over all epochs (differential privacy, delta = 1e-5; Gaussian noise only)
"""

from __future__ import annotations

import argparse
import csv
import gzip
from functools import partial
from pathlib import Path

import numpy as np

import securevfl as vfl
from benchmarks.tables import shuffled
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Defence, Gaussian, Marvell, MaxNorm, Rounding

LABEL_ATTACKS = ("residual_sign", "residual_norm", "residual_direction", "cross_round")
MEASURED_DEFENCES: tuple[Defence, ...] = (
    Gaussian(sigma=0.5),
    Gaussian(sigma=2.0),
    Gaussian(sigma=8.0),
    Gaussian(sigma=2.0, clip=0.25),
    Marvell(power=1.0),
    Marvell(power=4.0),
    Marvell(power=25.0),
    MaxNorm(),
    Rounding(step=0.5),
    Rounding(step=2.0),
)


def default_credit(folder: Path, rows: int) -> list[vfl.Party]:
    """Return some rows of the table in FATE's split, with the host as the passive party."""
    tables = {}
    for side in ("guest", "host"):
        with gzip.open(folder / f"default_credit_hetero_{side}.csv.gz", "rt") as file:
            names, *lines = csv.reader(file)
        table = np.array(lines, dtype=np.float64)
        tables[side] = names, table[np.argsort(table[:, names.index("id")])]
    chosen = np.random.default_rng(0).permutation(len(tables["host"][1]))[:rows]
    parties = []
    for side, (names, table) in tables.items():
        columns = [j for j, name in enumerate(names) if name not in ("id", "y")]
        y = table[chosen, names.index("y")].astype(int) if "y" in names else None
        parties.append(vfl.Party(side, table[np.ix_(chosen, columns)], y, aligned=True))
    return parties


def measure(
    residual: ResidualProtocol, parties: list[vfl.Party], *, batch_size: int, epochs: int, seeds: int
) -> list[float]:
    """Return AUC, its standard deviation, the best direct attack and the best attack by gradients."""
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=vfl.Protocol(residual=residual),
        batch_size=batch_size,
        epochs=epochs,
        test_fraction=0.25,
    )
    aucs, rows = [], []
    for seed in range(seeds):
        worlds = RealIdealPair(job, shuffled(parties, seed), seed)
        scores = [ATTACKS[name].score(worlds) for name in LABEL_ATTACKS]
        aucs.append(worlds.real_run[0].metrics["auc"])
        rows.append([[score.real, score.simulated] for score in scores])
    best = np.mean(rows, axis=0).max(axis=0)
    return [float(np.mean(aucs)), float(np.std(aucs)), *best.tolist()]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--seeds", type=int, help="splits of a table; 10 of breast_cancer, 3 of default_credit")
    parser.add_argument("tables", nargs="*", default=["breast_cancer", "default_credit"])
    options = parser.parse_args()
    tables = {
        "breast_cancer": (vfl.datasets.breast_cancer, 128, 10, 10),
        "default_credit": (partial(default_credit, options.data, options.rows), 256, 5, 3),
    }
    for name in options.tables:
        read, batch_size, epochs, most = tables[name]
        parties, seeds = read(), options.seeds or most
        print(f"\n{name}: {len(parties[0])} rows, batches of {batch_size}, {epochs} epochs, {seeds} seeds\n")
        print("| residual | AUC | direct | by X^T g | epsilon |\n|---|---|---|---|---|")
        residuals = {"open": vfl.OpenResidual()}
        residuals |= {repr(defence): vfl.OpenResidual(defence=defence) for defence in MEASURED_DEFENCES}
        for label, residual in [*residuals.items(), ("sealed (CKKS)", vfl.SealedResidual(engine=vfl.Ckks()))]:
            auc, spread, direct, projected = measure(
                residual, parties, batch_size=batch_size, epochs=epochs, seeds=seeds
            )
            defence = residual.defence if isinstance(residual, vfl.OpenResidual) else None
            epsilon = f"{defence.epsilon(epochs, 1e-5):.3g}" if isinstance(defence, Gaussian) else ""
            seen = f"{direct:.3f}" if residual.name == "open" else ""
            print(f"| {label} | {auc:.3f} ± {spread:.3f} | {seen} | {projected:.3f} | {epsilon} |", flush=True)


if __name__ == "__main__":
    main()
