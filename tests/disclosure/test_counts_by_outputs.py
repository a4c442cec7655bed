"""Counts equal the numbers that are sent, for one output and for three, by the disclosure records of the parties."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.families import leak_kinds
from securevfl.families.run_facts import pooled_run_facts
from securevfl.protocols.shares.opened_loss import LOSS_SUM_BITS
from securevfl.protocols.shares.range_count import COUNT_BITS
from securevfl.protocols.shares.word_shuffle import multiset_bits
from tests.builders import disclosures_in_run
from tests.disclosure.door_watch import watched

ROWS, HELD_OUT = 120, 0.25
PROTOCOLS = {"open": vfl.Protocol(residual="open"), "sealed": vfl.Protocol(residual=vfl.Ckks())}
TESTED_OPTIMIZERS = {"FedSGD": vfl.FedSGD(lr=0.1), "FedBCD": vfl.FedBCD(local_steps=3, lr=0.1)}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("optimizer", TESTED_OPTIMIZERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_count_is_of_all_outputs(protocol: str, optimizer: str, outputs: int) -> None:
    X = np.random.default_rng(0).normal(size=(ROWS, 6))
    y = (X[:, 0] > 0).astype(int) if outputs == 1 else np.digitize(X[:, 0], [-0.4, 0.4])
    parties = [vfl.Party("bank", X[:, :3], y, aligned=True), vfl.Party("shop", X[:, 3:], aligned=True)]
    job = vfl.Job(
        model=vfl.Logistic() if outputs == 1 else vfl.Softmax(),
        optimizer=TESTED_OPTIMIZERS[optimizer],
        protocol=PROTOCOLS[protocol],
        batch_size=40,
        epochs=4,
        test_fraction=HELD_OUT,
        accepts=[*leak_kinds()],
    )
    disclosed: Counter[tuple[Any, ...]] = Counter()
    for entries in (seen.disclosures for seen in RealIdealPair(job, parties, 0).evaluated_run[1].values()):
        for entry in entries:
            disclosed[entry.to, entry.kind, entry.group] += entry.numbers
    counts = {
        (disclosure.learner, disclosure.kind, disclosure.group): disclosure.count
        for disclosure in disclosures_in_run(job, pooled_run_facts(job, parties).shape)
    }
    trained, held_out = round(ROWS * (1 - HELD_OUT)), round(ROWS * HELD_OUT)
    batches = 3 * 4  # batches times epochs
    assert counts["bank", "columns", "training"] * trained == disclosed["bank", "columns", "training"]
    assert counts["bank", "columns", "held out"] * held_out == disclosed["bank", "columns", "held out"]
    assert counts["bank", "scores", "training"] == disclosed["bank", "columns", "held out"]
    if protocol == "open":  # each residual reveals f of its row and output
        assert counts["shop", "columns", "training"] * trained == disclosed["shop", "labels", "training"]
    else:
        assert counts["shop", "labels", "training"] * batches == disclosed["shop", "labels", "training"]
    assert disclosed["bank", "columns", "training"] == trained * 4 * outputs


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("sums", ["direct", "pairwise", "tree"])
def test_every_count_of_three_parties_is_of_all_outputs(sums: str, mode: Any, outputs: int) -> None:
    """For each passive party's columns, alone and in a sum, the count grows with the number of disclosed values."""
    X = np.random.default_rng(0).normal(size=(ROWS, 9))
    y = (X[:, 0] > 0).astype(int) if outputs == 1 else np.digitize(X[:, 0], [-0.4, 0.4])
    names = ("bank", "shop", "telco")
    parties = [vfl.Party(name, X[:, 3 * k : 3 * k + 3], None if k else y, aligned=True) for k, name in enumerate(names)]
    job = vfl.Job(
        model=vfl.Logistic() if outputs == 1 else vfl.Softmax(),
        optimizer=vfl.FedBCD(local_steps=2, lr=0.1, mode=mode),
        protocol=vfl.Protocol(sum=sums, residual="open"),
        batch_size=40,
        epochs=4,
        test_fraction=HELD_OUT,
        accepts=[*leak_kinds()],
    )
    disclosed: Counter[str] = Counter()
    for entries in (seen.disclosures for seen in RealIdealPair(job, parties, 0).evaluated_run[1].values()):
        for entry in entries:
            if (entry.to, entry.kind, entry.group) == ("bank", "columns", "training"):
                for name in entry.about:
                    disclosed[name] += entry.numbers
    counts: Counter[str] = Counter()
    for disclosure in disclosures_in_run(job, pooled_run_facts(job, parties).shape):
        if (disclosure.learner, disclosure.kind, disclosure.group) == ("bank", "columns", "training"):
            for name in disclosure.about:
                counts[name] += disclosure.count
    trained = round(ROWS * (1 - HELD_OUT))
    assert counts.keys() >= disclosed.keys() > set()
    for name, numbers in disclosed.items():
        # each of two parties discloses its summand, and the sum is one value
        alone = numbers if sums == "direct" else numbers / 2
        assert counts[name] * trained >= alone, name
        assert counts[name] % outputs == 0, name


@pytest.mark.parametrize(("metrics", "epochs"), [("pairs", 3), ("sum", 4)])
def test_opened_shares_count_the_bits_of_all_outputs(
    metrics: str, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels, labels, sums and weights of one output and of three: counts and bits equal those of the messages.

    The training has one or two full chunks of two epochs, and one of a single epoch.
    """
    X = np.random.default_rng(0).normal(size=(90, 4))
    outputs = 3 if metrics == "pairs" else 1
    y = np.digitize(X[:, 0], [-0.4, 0.4]) + (metrics == "sum")
    job = vfl.Job(
        model=vfl.GeneralLinear(loss="one_vs_rest" if metrics == "pairs" else "poisson"),
        optimizer=vfl.FedSGD(lr=0.1),
        protocol=vfl.Protocol(shares=vfl.Shares(open_weights=["shop"], chunk=2)),
        batch_size="all",
        epochs=epochs,
        test_fraction=1 / 3,
        accepts=[*leak_kinds()],
    )
    left = watched(monkeypatch)
    parties = [vfl.Party("bank", X[:, :2], y, aligned=True), vfl.Party("shop", X[:, 2:], aligned=True)]
    vfl.simulate(job, parties)
    assert not [message for message in left if message.short]
    numbers = {message.kind.__name__: message.entry.numbers for message in left}
    sent: Counter[str] = Counter()
    for message in left:
        sent[message.kind.__name__] += message.entry.numbers
    planned = {output.name: output.count for output in job.family.outputs(job, pooled_run_facts(job, parties).shape)}
    assert planned["counts of rows out of range"] == sent["OutOfRangeCount"] == -(-epochs // 2) * COUNT_BITS
    assert planned["sums of losses"] == sent["LossSum"]
    pairs = {"ShuffledWords": outputs * multiset_bits(30, 8)} if metrics == "pairs" else {}
    assert numbers == {"OpenedWeights": 2 * outputs, "OutOfRangeCount": COUNT_BITS, "LossSum": LOSS_SUM_BITS} | pairs
