"""Values that the partner reads from lookup tables are uniform for each row, output and iteration."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from selfcheck.checks import draws

import securevfl as vfl
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.families import leak_kinds
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.iteration import MaskedTables
from securevfl.protocols.shares.lifted_shares import CarryWords
from securevfl.protocols.shares.offline_phase import OfflinePhase, PreprocessedBlock
from securevfl.protocols.shares.opened_loss import LossSum
from securevfl.protocols.shares.table_lookup import MaskedEntries
from securevfl.protocols.shares.word_shuffle import ShuffledWords
from securevfl.runtime.observer import Event

ROWS, BATCH = 120, 45
MASKED_MESSAGES: tuple[Any, ...] = (MaskedTables, MaskedEntries, CarryWords)
Chosen = tuple[ShareRing, Any, Words]


def trained(loss: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Chosen], list[Any], list[PreprocessedBlock]]:
    """Train with three parties over two chunks.

    Returns:
        The partner's choices, the tables that it received, and the preprocessed blocks of the share holders.
    """
    lock, chosen, visits, tables = threading.Lock(), list[Chosen](), list[PreprocessedBlock](), list[Any]()
    real, take = table_transfers.chosen, OfflinePhase.take

    def choose(stored: Any, ring: ShareRing) -> Any:
        result = real(stored, ring)
        chosen.append((ring, *result))
        return result

    def taken(self: OfflinePhase, *where: int) -> PreprocessedBlock:
        block = take(self, *where)
        with lock:
            visits.append(block)
        return block

    def note(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, MASKED_MESSAGES):
            tables.append(event.message)

    for owner, name, watched in ((table_transfers, "chosen", choose), (OfflinePhase, "take", taken)):
        monkeypatch.setattr(owner, name, watched)
    X = np.random.default_rng(0).normal(size=(ROWS, 6))
    y = np.arange(ROWS) % 3 if loss == "one_vs_rest" else 1 + np.arange(ROWS) % 2
    job = vfl.Job(
        model=vfl.GeneralLinear(loss=loss),
        optimizer=vfl.FedSGD(lr=0.1),
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=1)),
        batch_size=BATCH,
        epochs=2,
        test_fraction=0.25,
        accepts=[*leak_kinds()],
    )
    parties = [vfl.Party("bank", X[:, :2], y, aligned=True)]
    parties += [vfl.Party(name, X[:, k : k + 2], aligned=True) for name, k in (("shop", 2), ("telco", 4))]
    with draws.watched() as drawn:
        vfl.simulate(job, parties, observe=note)
    assert not drawn.outcome().findings
    return chosen, tables, visits


@pytest.mark.parametrize("loss", ["one_vs_rest", "poisson"])
def test_values_read_from_tables_are_uniform(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reused mask would leave values close together, because the masked values are small.

    A uniform value repeats one of k earlier values with probability k / 2^bits at most. Therefore the number of
    repetitions exceeds the binomial bound once in 10^10 messages; a reused mask leaves a few different values.
    """
    chosen, tables, visits = trained(loss, monkeypatch)
    outputs = 3 if loss == "one_vs_rest" else 1
    evaluation = 2 if loss == "poisson" else 3  # losses and their lift, and scores that are clipped
    assert len(chosen) == len(tables) == 2 * 2 + 2 + evaluation  # iterations, counts
    read = list[tuple[int, np.ndarray]]()
    for (ring, chi, pad), message in zip(chosen, tables, strict=True):
        rows = np.arange(len(chi))
        if isinstance(message, CarryWords):
            values = ring.reduce(ring.unpack(message.words, (2, len(chi)))[chi, rows] + pad)
        else:
            entries = ring.unpack(message.entries, (len(chi), 8 * len(message.entries) // ring.bits // len(chi)))
            values = ring.reduce(entries[rows, chi] + pad)
        read.append((ring.bits, values))
        if isinstance(message, MaskedTables):
            assert len(values) == BATCH * outputs
    for bits, values in read:
        near = 0 if bits <= 16 else 3
        signed = values.astype(np.int64)
        repeated = sum(bool((np.abs(signed[:k] - signed[k]) <= near).any()) for k in range(len(signed)))
        share = (len(signed) - 1) * (2 * near + 1) / 2.0 ** (bits + 1)  # the mean over the values
        assert repeated <= stats.binom.isf(1e-10, len(signed), share), bits
    psi = np.concatenate([block.psi.T for block in visits if block.psi.size])  # two holders, each visit, each output
    assert len(psi) == 2 * 4 * outputs
    assert len(np.unique(psi)) == psi.size


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_evaluations_are_recorded_before_they_disclose(loss: str, tmp_path: Path) -> None:
    """The partner stores each evaluation on disk before it sends pairs or sums, during training and at its end."""
    X = np.random.default_rng(0).normal(size=(ROWS, 4))
    job = vfl.Job(
        model=vfl.GeneralLinear(loss=loss),
        optimizer=vfl.FedSGD(lr=0.1),
        protocol=vfl.Protocol(shares=vfl.Shares()),
        batch_size="all",
        epochs=2,
        evaluate_every=1,
        test_fraction=0.25,
        accepts=[*leak_kinds()],
    )
    ids = range(ROWS)
    parties = [vfl.Party("bank", X[:, :2], np.arange(ROWS) % 2, ids=ids), vfl.Party("shop", X[:, 2:], ids=ids)]
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in ("bank", "shop")}
    held_out = [id_digest("shop", row_id) for row_id in ids]
    noted = list[int]()

    def watch(event: Event) -> None:
        if event.direction == "send" and isinstance(event.message, ShuffledWords | LossSum):
            noted.append(ScoreLedger(ledgers[event.me].path).evaluation_count(held_out))

    vfl.simulate(job, parties, ledgers=ledgers, observe=watch)
    assert noted == ([1, 2, 2] if loss == "logistic" else [1, 2])
