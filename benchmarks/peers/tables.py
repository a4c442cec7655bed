"""The input of all systems: prepared columns of the default job for peers, the tables for ours, ids for both."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from benchmarks.real_tables import TABLES
from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice
from securevfl.families.table_preparation import with_prepared_tables

SIDES = "bank", "shop"


@dataclass(frozen=True)
class Rows:
    """Prepared and scaled columns of both sides, split into training and held-out rows, in the job's order."""

    train: list[Floats]
    held_out: list[Floats]
    labels: Floats
    held_out_labels: Floats

    def write(self, folder: Path) -> None:
        """Write one file for each side, as the peers' parties read them."""
        folder.mkdir(parents=True, exist_ok=True)
        for k, side in enumerate(SIDES):
            labels = {"labels": self.labels[:, None]} if k == 0 else {}
            np.savez(folder / f"{side}.npz", train=self.train[k], held_out=self.held_out[k], **labels)

    def auc(self, scores: Floats) -> float:
        """Return the AUC of scores of the held-out rows."""
        return float(roc_auc_score(self.held_out_labels, scores))

    def pooled_linear(self) -> float:
        """Return the AUC of scikit-learn's logistic regression on all columns."""
        model = LogisticRegression(max_iter=1000).fit(np.hstack(self.train), self.labels)
        return self.auc(model.decision_function(np.hstack(self.held_out)))

    def pooled_trees(self, trees: int, depth: int, step: float) -> float:
        """Return the AUC of scikit-learn's boosting on all columns."""
        model = GradientBoostingClassifier(n_estimators=trees, max_depth=depth, learning_rate=step, random_state=0)
        model.fit(np.hstack(self.train), self.labels)
        return self.auc(model.decision_function(np.hstack(self.held_out)))


def parties(data: Path | None) -> list[vfl.Party]:
    """Return default_credit of the folder of real tables, joined; a small generated table without a folder."""
    if data is not None:
        return TABLES["default_credit"](data)
    return [party.take(np.arange(2000)) for party in vfl.align(list(vfl.datasets.loans()))]


def rows(tables: list[vfl.Party]) -> Rows:
    """Return rows and columns as in the default job."""
    job = vfl.Job(model=vfl.Logistic())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        _, prepared = with_prepared_tables(job, tables)
    schedule = job.schedule(prepared[0].register)
    sides = []
    for party in prepared:
        X = np.asarray(party.X, float)
        mean, deviation = X[schedule.train].mean(axis=0), X[schedule.train].std(axis=0)
        sides.append((X - mean) / np.where(deviation > 0, deviation, 1.0))
    y = np.unique(np.asarray(prepared[0].y), return_inverse=True)[1].astype(float)
    return Rows(
        [X[schedule.train] for X in sides], [X[schedule.test] for X in sides], y[schedule.train], y[schedule.test]
    )


def write_csv(tables: list[vfl.Party], folder: Path) -> list[int]:
    """Write the tables as our commands read them, `SIDE.csv`; return their numbers of columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for party in tables:
        columns = [str(name) for name in party.columns]
        with (folder / f"{party.name}.csv").open("w", encoding="utf-8") as file:
            file.write(",".join(["id", *(["y"] if party.y is not None else []), *columns]) + "\n")
            labels = None if party.y is None else np.asarray(party.y)
            for k, values in enumerate(np.asarray(party.X).tolist()):
                local = [] if labels is None else [str(labels[k])]
                file.write(",".join([str(party.ids[k]), *local, *map(repr, values)]) + "\n")
    return [len(party.columns) for party in tables]


def write_ids(count: int, folder: Path) -> int:
    """Write ids of both sides in random order, three quarters of them common; return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(count)
    common, local = count - count // 4, count // 4
    every = draw.choice(10**10, size=2 * (common + 2 * local), replace=True)
    every = draw.permutation(np.unique(every))[: common + 2 * local]
    both = every[:common]
    for side, remaining in zip(SIDES, (every[common : common + local], every[common + local :]), strict=True):
        ids = draw.permutation(np.concatenate([both, remaining]))
        with (folder / f"{side}.csv").open("w", encoding="utf-8") as file:
            file.write("id,x\n")
            file.writelines(f"{item:010d},{k % 97}\n" for k, item in enumerate(ids.tolist()))
    return common


def wide(count: int, local: int, other: int) -> list[vfl.Party]:
    """Return noise with labels that depend on a column of each, in the sizes of FATE's page."""
    draw = np.random.default_rng(0)
    X, further = draw.normal(size=(count, local)), draw.normal(size=(count, other))
    y = (X[:, 0] + further[:, 0] + draw.normal(size=count) > 0).astype(int)
    return [vfl.Party("bank", X, y, aligned=True), vfl.Party("shop", further, aligned=True)]


def write_npz(tables: list[vfl.Party], folder: Path) -> None:
    """Write tables as arrays, `SIDE.npz`, if their texts would take longer to read than to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    for party in tables:
        labels = {} if party.y is None else {"y": np.asarray(party.y)}
        np.savez(folder / f"{party.name}.npz", X=party.X, ids=np.arange(len(party)), **labels)
