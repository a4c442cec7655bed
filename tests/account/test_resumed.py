"""A run that is interrupted after any iteration and resumed counts what an uninterrupted run counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.training.checkpoint import Checkpoints
from tests.builders import cancer_parties

EPOCHS, INTERVAL = 7, 3
JOBS: dict[str, dict[str, Any]] = {
    "rounds, open": {"protocol": "open", "batch_size": "all", "accepts": ["columns", "rank"]},
    "rounds, CKKS": {"protocol": vfl.Protocol(residual=vfl.Ckks()), "batch_size": "all", "accepts": ["columns"]},
    "shares": {"protocol": "shares", "accepts": ["small_metrics"]},
    "trees": {"model": vfl.Trees(depth=2), "protocol": "shares", "accepts": ["small_metrics"]},
}


class Stopped(Exception):
    """The operator has stopped the process."""


def counted(name: str, folder: Path, stop: int | None) -> dict[str, Counter[tuple[str, str, str]]]:
    """Return the counts of both parties' ledgers, by kind, learner and group, after a run that stops once.

    Args:
        name: name of the job.
        folder: a folder for ledgers and checkpoints.
        stop: the iteration after which the run stops and is resumed; None for a run without interruption.
    """
    keys = {"model": vfl.Logistic(), "epochs": EPOCHS, "test_fraction": 0.3, "evaluate_every": INTERVAL}
    keys |= JOBS[name] | {"patience": {"evaluations": 9}}
    keys["accepts"] = [*keys["accepts"], "fresh_equations", "label_auc"]
    job, parties = vfl.Job(**keys), cancer_parties()
    ledgers = {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}
    checkpoints = {party.name: Checkpoints(folder / party.name, party.name, every=1) for party in parties}

    def on_round(done: int, of: int) -> None:
        if done == stop:
            raise Stopped

    if stop is not None:
        with pytest.raises(Stopped):
            vfl.simulate(job, parties, ledgers=ledgers, checkpoints=checkpoints, on_round=on_round)
    vfl.simulate(job, parties, ledgers=ledgers, checkpoints=checkpoints)
    counts = {party: Counter[tuple[str, str, str]]() for party in ledgers}
    for party, ledger in ledgers.items():
        for entry in ledger.read().entries:
            item = entry.disclosure
            counts[party][item.kind, item.learner, item.group] += item.count
    return counts


@pytest.mark.parametrize("name", JOBS)
def test_a_stopped_run_counts_exactly_the_sent_values(name: str, tmp_path: Path) -> None:
    """After a stop between an evaluation and its checkpoint, the evaluation and its decision are sent twice."""
    complete = counted(name, tmp_path / "complete", None)
    for stop in range(1, EPOCHS):
        resumed = counted(name, tmp_path / str(stop), stop)
        for party, counts in complete.items():
            again = resumed[party]
            lacking = {key: (count, again[key]) for key, count in counts.items() if again[key] < count}
            assert not lacking, f"{party}, stopped after {stop} iterations"
        repeats = int(stop % INTERVAL == 0)
        decisions = complete["bank"]["labels", "shop", "verdicts"]
        assert resumed["bank"]["labels", "shop", "verdicts"] == decisions * (2 + repeats) // 2
        if "rounds" not in name:
            scores = complete["shop"]["scores", "bank", "held out"]
            assert resumed["shop"]["scores", "bank", "held out"] == scores * (2 + repeats) // 2
