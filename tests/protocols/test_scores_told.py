"""Records and messages of scores for several outputs and blocks, for each requesting party."""

from __future__ import annotations

from pathlib import Path

import pytest
from selfcheck.checks import draws

from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.score_ledger.score_limits import MIN_ITERATIONS
from securevfl.protocols.shares.opened_scores import RoundedScores, ScoreShare, ShareStored
from securevfl.protocols.shares.share_products import Products
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosurePermit
from tests.disclosure.door_watch import watched
from tests.protocols.test_shares_predict import HALVES, Model, names


@pytest.mark.parametrize(
    ("widths", "outputs", "to"), [((5, 7, 3), 1, "a"), ((5, 7, 3), 3, "a"), ((5, 7), 3, "b"), ((5, 7, 3), 3, "c")]
)
def test_bits_of_all_outputs_are_recorded_and_sent(
    widths: tuple[int, ...], outputs: int, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each output of a row counts 7 bits in every ledger but the requesting party's, and in the opened message."""
    model = Model(*widths, outputs=outputs)
    blocks, left = [model.columns(6, seed) for seed in (1, 2)], watched(monkeypatch)
    ledgers = {name: ScoreLedger(None) for name in model.names}
    for ledger in ledgers.values():
        ledger.record_model(b"model", MIN_ITERATIONS, [b"trained"])
    model.ask(blocks, [names(6), names(6, 6)], ledgers=ledgers, to=to, levels=HALVES)  # type: ignore[no-untyped-call]
    for name, ledger in ledgers.items():
        bits = [scored for scored, _ in ledger.disclosed_bits(names(12))]  # type: ignore[no-untyped-call]
        assert bits == [0 if name == to else 7 * outputs] * 12
    opened = [item for item in left if item.kind is RoundedScores]
    assert [(item.entry.to, item.entry.numbers, item.short) for item in opened] == [(to, 6 * outputs, False)] * 2


def test_no_stream_is_made_twice_over_blocks_of_several_outputs() -> None:
    """No party uses masks of shares, products or dithers in more than one block."""
    model = Model(4, 2, 3, outputs=3)
    block = model.columns(50)
    with draws.watched() as drawn:
        model.ask([block, block], [names(50), names(50, 50)], levels=HALVES)  # type: ignore[no-untyped-call]
    assert len(drawn.streams) > 10
    assert not drawn.outcome().findings


@pytest.mark.parametrize("to", ["a", "b", "c"])
def test_a_share_is_stored_before_it_is_announced(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share holder stores its share of a block's scores before it reports or sends it.

    Otherwise a crash between both steps could lead to two different answers to one query.
    """
    model = Model(5, 7, 3)
    ledgers, sent, send = (
        {name: ScoreLedger(tmp_path / name) for name in model.names},
        list[tuple[str, int]](),
        Products.send,
    )
    for ledger in ledgers.values():
        ledger.record_model(b"model", MIN_ITERATIONS, [b"trained"])

    def noted(self: Products, name: str, message: Message, permit: DisclosurePermit | None = None) -> None:
        if isinstance(message, ShareStored | RoundedScores | ScoreShare):
            connection = ledgers[self.context.me]._file._connection
            (stored,) = connection.execute("SELECT count(*) FROM scored WHERE part IS NOT NULL").fetchone()
            sent.append((type(message).__name__, stored // 6))
        send(self, name, message, permit)

    monkeypatch.setattr(Products, "send", noted)
    blocks = [model.columns(6, seed) for seed in (1, 2)]
    model.ask(blocks, [names(6), names(6, 6)], ledgers=ledgers, to=to, levels=HALVES)  # type: ignore[no-untyped-call]
    for kind in {kind for kind, _ in sent}:
        assert [count for sent_kind, count in sent if sent_kind == kind] == [1, 2]
    assert {kind for kind, _ in sent} == {"ShareStored", "RoundedScores"} | ({"ScoreShare"} if to == "c" else set())
