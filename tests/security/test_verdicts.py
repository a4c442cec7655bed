"""Decisions of early stopping: a metric that depends on one row reveals a label each time, and each is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.protocols.permits import STOP_DECISION_BITS

PROTOCOLS: dict[str, Any] = {
    "open": {"protocol": vfl.Protocol(residual="open")},
    "sealed": {"protocol": vfl.Protocol(residual=vfl.Ckks())},
    "shares": {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=2))},
}
WATCHES: dict[str, Any] = {
    "target": {"target": vfl.Target(metric="loss", value=0.0)},
    "patience": {"patience": {"metric": "loss", "evaluations": 50}},
    "neither": {"evaluate_every": 2},
}
ACCEPTS = ("columns", "rank", "fresh_equations", "small_metrics", "scores", "label_auc")


@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_stop_decision_counts_as_bits_of_labels(protocol: str, watch: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(240)
    parties = [
        vfl.Party("bank", rng.normal(size=(240, 3)), rng.integers(0, 2, 240), ids=ids),
        vfl.Party("shop", rng.normal(size=(240, 4)), ids=ids),
    ]
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in parties}
    keys = PROTOCOLS[protocol] | {"evaluate_every": 2} | WATCHES[watch]
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.1),
        epochs=8,
        batch_size="all",
        test_fraction=0.25,
        accepts=ACCEPTS,
        **keys,
    )
    run = vfl.simulate(job, parties, ledgers=ledgers)
    evaluated = sum("loss" in record and record["round"] < run.parts["shop"].rounds for record in run.history)
    entries = [entry for entry in ledgers["bank"].read().entries if entry.disclosure.group == "verdicts"]
    disclosed = total_to(entries, "labels", "shop").count
    print(f"{protocol}, {watch}: {evaluated} evaluations, {disclosed} bits counted")
    if watch == "neither":
        assert not entries
    else:
        assert disclosed >= STOP_DECISION_BITS * evaluated > 0
        assert {entry.disclosure.capacity for entry in entries} <= set(range(50, 61))  # the information in 60 labels
    assert not [entry for entry in ledgers["shop"].read().entries if entry.disclosure.group == "verdicts"]
