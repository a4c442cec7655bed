"""A run that was killed and resumed discloses values again, and the ledger counts them."""

from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints


class Cut(Exception):
    """Raised in place of a lost process."""


def ckks_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "batch_size": 128}
    defaults |= {
        "protocol": vfl.Protocol(residual=vfl.Ckks()),
        "epochs": 2,
        "test_fraction": 0.25,
        "accepts": ["columns", "fresh_equations"],
    }
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


@pytest.mark.exact_outputs
def test_repeated_disclosures_of_a_resumed_training_count(tmp_path: Path) -> None:
    """Noise of encryption changes the weights of repeated rounds, and so the numbers about each row."""
    _, shop = parties = vfl.datasets.breast_cancer()
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    schedule, sums = ckks_job().schedule(shop.register), list[np.ndarray]()
    batch, visits = schedule.partition(0)[1], [visit.index for visit in schedule.iterations()]
    sent: list[int] = []

    def watch(event: Event) -> None:
        if event.direction == "send" and isinstance(event.message, Summand):
            if visits[len(sent)] == 1:
                sums.append(np.frombuffer(event.message.values, "<f8"))
            sent.append(1)

    def cut(done: int, of: int) -> None:
        if done == of - 1:
            raise Cut

    for _ in range(4):
        sent.clear()
        states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=100) for party in parties}
        with pytest.raises(Cut):
            vfl.simulate(ckks_job(), parties, ledgers=ledgers, checkpoints=states, on_round=cut, observe=watch)
    size = np.linalg.svd(np.array(sums), compute_uv=False)
    assert len(batch) == len(sums[0])
    new = int((size > 1e-12 * size[0]).sum())
    debited = total_to(ledgers["shop"].read().entries, "columns", "bank").count
    assert 4 <= new <= debited  # two iterations disclose two numbers if they give the same result
