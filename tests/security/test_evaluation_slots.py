"""A party with labels that deviates in evaluations reads no more of the partner's columns than their records state.

It fills its tables of residuals with zeros, so that all weights stay 0, and adds a number to its share of one weight of
the partner when rows are measured. A row's score is then the value of one column. The party also adds a slot of its
choice to its word of each row. The order of the opened words is hidden, but a word in the slot of a single row shows
the column's value in that row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.crypto.share_ring import Words
from securevfl.disclosure.counts import Disclosure, in_column_bits
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import LeakageError
from securevfl.families.shares.shares_outputs import MAX_EVALUATION_SHARE
from securevfl.protocols.shares import score_label_pairs
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.opened_loss import LOSS_SUM_BITS
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.word_shuffle import Shuffle

ROWS, COLUMNS, COLUMN = 2000, 12, 3
LOGISTIC: dict[str, Any] = {"model": "logistic", "optimizer": vfl.FedSGD(lr=0.3), "scale": "none"}
SMALL_TREES: dict[str, Any] = {"model": vfl.Trees(trees=1, depth=1, boosted_score=False)}


@dataclass
class SlotReader:
    """The party with labels in one job: what it adds to its words, and what it reads.

    Attributes:
        uses_marks: whether it uses the bit for labels as well, which doubles the number of slots.
        read: the values that it has read, by position among the measured rows.
        opened: how often pairs were opened.
    """

    uses_marks: bool
    read: dict[int, bool]
    opened: int = 0

    def shuffle(
        self, honest: Callable[..., Words | None], context: Any, peer: str, shuffle: Shuffle, words: Words
    ) -> Words | None:
        """Run the shuffle with a slot for each of the first rows, and read these rows from its result."""
        if context.me != context.active:
            return honest(context, peer, shuffle, words)
        self.opened += 1
        if self.opened > 1:  # a later model of a comparison: the rows of the first one are what it has read
            return honest(context, peer, shuffle, words)
        # A score is 0 or 1 level. A slot has room for both, and for both values of the bit for labels.
        size, mask = 2 ** (shuffle.ring.bits - 2), np.uint64(2**shuffle.ring.bits - 1)
        slots = 2 * size if self.uses_marks else size
        slot = np.minimum(np.arange(len(words)), slots - 1)  # all other rows share the last slot
        target = (4 * (slot % size) + slot // size).astype(np.uint64)
        result = honest(context, peer, shuffle, ((words & ~np.uint64(1)) + target) & mask)
        assert result is not None
        values = (result + np.uint64(2)) & mask  # both holders round down, so v levels are opened as v - 1
        for row in range(slots - 1):
            self.read[row] = bool((values == target[row] + np.uint64(2)).any())
        return result


def with_hidden_columns(seed: int = 0) -> list[vfl.Party]:
    draw = np.random.default_rng(seed)
    hidden = (draw.random((ROWS, COLUMNS)) < 0.5).astype(float)
    bank = draw.normal(size=(ROWS, 3))
    y = (bank[:, 0] + hidden[:, 0] + draw.normal(size=ROWS) > 0.5).astype(int)
    noise = draw.normal(size=(ROWS, 1))
    ids = np.arange(ROWS)
    return [vfl.Party("bank", bank, y, ids=ids), vfl.Party("shop", np.hstack([hidden, noise]), ids=ids)]


def attacked(
    monkeypatch: pytest.MonkeyPatch,
    ledgers: dict[str, DisclosureLedger],
    *,
    uses_marks: bool,
    evaluations: int = 1,
    options: Mapping[str, Any] = LOGISTIC,
    seed: int = 0,
    train: Callable[..., object] = vfl.simulate,
) -> tuple[SlotReader, NDArray[np.bool_]]:
    """Train with such a party; return what it has read, and the column of the measured rows.

    All weights stay 0, so that one iteration before each evaluation is enough.
    """
    tables, reader = with_hidden_columns(), SlotReader(uses_marks, {})
    job = vfl.Job(
        protocol="shares",
        batch_size="all",
        epochs=evaluations,
        evaluate_every=1 if evaluations > 1 else 0,
        test_fraction=0.25,
        seed=seed,
        **options,
    )
    computed, prepared, honest = ResidualTables._compute, ForwardSums.__init__, score_label_pairs.run_shuffle

    def add_weight(
        self: ForwardSums, products: Any, params: Any, state: SharedState, occasion: str, *remaining: Any
    ) -> None:
        if products.context.me == "bank" and occasion == "measure":
            weights = np.zeros((params.columns["shop"], 1))
            weights[COLUMN] = vfl.Shares().metric_quantizer(params.encoding, classifies=True).size
            shares = state.peer_shares["shop"].copy()
            shares[0] += params.encoding.encode_weights(weights)
            state = replace(state, peer_shares={"shop": shares})
        prepared(self, products, params, state, occasion, *remaining)

    with monkeypatch.context() as patch:
        deviations: list[tuple[Any, str, Any]] = [
            (ResidualTables, "_compute", staticmethod(lambda *of: tuple(map(np.zeros_like, computed(*of))))),
            (ForwardSums, "__init__", add_weight),
            (score_label_pairs, "run_shuffle", lambda *arguments: reader.shuffle(honest, *arguments)),
        ]
        for owner, name, replacement in deviations:
            patch.setattr(owner, name, replacement)
        train(job, tables, ledgers=ledgers)
    rows = np.sort(job.schedule(tables[0].register).test)
    return reader, tables[1].X[rows, COLUMN] > 0


def counted_bits(disclosures: Iterable[Disclosure]) -> tuple[int, int]:
    """Return the bits of evaluations among these disclosures, and all bits of the columns."""
    counted = [item for item in disclosures if in_column_bits(item)]
    return sum(item.count for item in counted), max(item.capacity for item in counted)


@pytest.mark.parametrize(("uses_marks", "rows"), [(False, 63), (True, 127)])
def test_slots_read_one_row_for_each_level_once_a_job(
    uses_marks: bool, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Words of 11 bits, opened in each of three evaluations, would show 3 * 511 rows and count as scores only."""
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in ("bank", "shop")}
    reader, column = attacked(monkeypatch, ledgers, uses_marks=uses_marks, evaluations=3)
    assert reader.opened == 1
    assert len(reader.read) == rows
    assert all(column[row] == value for row, value in reader.read.items())
    entered, _ = counted_bits(entry.disclosure for entry in ledgers["shop"].read().entries)
    # at least a bit of each row, and one sum of losses of each of the three evaluations
    assert entered >= len(reader.read) + 3 * LOSS_SUM_BITS
    assert not [entry for entry in ledgers["shop"].read().entries if entry.disclosure.kind == "scores"]


def test_other_splits_are_stopped_by_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each job holds other rows out. All that they read stays below the bits that the limit allows."""
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in ("bank", "shop")}
    bits_read = 0
    for seed in range(20):
        try:
            reader, _ = attacked(monkeypatch, ledgers, uses_marks=True, seed=seed)
        except LeakageError:
            break
        bits_read += len(reader.read)
    else:
        pytest.fail("no job was refused")
    entered, capacity = counted_bits(entry.disclosure for entry in ledgers["shop"].read().entries)
    assert 1 <= seed <= 12
    assert bits_read <= entered <= MAX_EVALUATION_SHARE * capacity


def test_a_comparison_opens_pairs_once_for_each_of_its_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Words of 11 bits would show 511 rows in the first training. A second comparison would exceed the limit."""
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in ("bank", "shop")}
    reader, _ = attacked(monkeypatch, ledgers, uses_marks=True, options=SMALL_TREES, train=vfl.compare)
    assert reader.opened == 3
    assert len(reader.read) == 127
    entered, capacity = counted_bits(entry.disclosure for entry in ledgers["shop"].read().entries)
    assert 3 * len(reader.read) <= entered <= MAX_EVALUATION_SHARE * capacity
    with pytest.raises(LeakageError, match=r"measured|evaluations"):
        attacked(monkeypatch, ledgers, uses_marks=True, options=SMALL_TREES, train=vfl.compare)
