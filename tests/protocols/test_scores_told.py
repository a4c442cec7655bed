"""What is noted of scores, and what goes with them, for several outputs and blocks, whoever asks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.shares.new_sums import SumPart
from securevfl.protocols.shares.opened_scores import OpenedScores
from securevfl.protocols.shares.score_ledger import FEWEST_VISITS, Ledger
from tests.disclosure.door_watch import watched
from tests.protocols.test_shares_predict import HALVES, NUMBERS, Model, names


@pytest.mark.parametrize(
    ("widths", "outputs", "to"), [((5, 7, 3), 1, "a"), ((5, 7, 3), 3, "a"), ((5, 7), 3, "b"), ((5, 7, 3), 3, "c")]
)
def test_bits_of_all_outputs_are_noted_and_told(
    widths: tuple[int, ...], outputs: int, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 bits for each output of a row, in every ledger but that of who asks, and so many in what is opened."""
    model = Model(*widths, outputs=outputs)
    blocks, left = [model.columns(6, seed) for seed in (1, 2)], watched(monkeypatch)
    ledgers = {name: Ledger(None) for name in model.names}
    for own in ledgers.values():
        own.trained(b"model", FEWEST_VISITS, [b"trained"])
    model.ask(blocks, [names(6), names(6, 6)], ledgers=ledgers, to=to, levels=HALVES)  # type: ignore[no-untyped-call]
    for name, own in ledgers.items():
        bits = [noted[b"model".hex()] for noted in own._scored.values()]
        assert bits == ([] if name == to else [7 * outputs] * 12)
    opened = [each for each in left if each.kind is OpenedScores]
    assert [(each.entry.to, each.entry.numbers, each.short) for each in opened] == [(to, 6 * outputs, False)] * 2


def test_parts_of_further_parties_are_masked_anew_in_each_block_and_output() -> None:
    """The same rows in two blocks, and weights that are the same for all outputs: no two parts differ by what they say
    alone."""
    model = Model(4, 2, 3, outputs=3)
    for state in (*model.states.values(),):
        for words in (state.own, *state.others.values()):
            words[..., 1:] = words[..., :1]
    block = model.columns(50)
    model.ask([block, block], [names(50), names(50, 50)])  # type: ignore[no-untyped-call]
    ring = ShareRing(NUMBERS.bits)
    parts = [e.message.words for e in model.events if e.direction == "recv" and isinstance(e.message, SumPart)]
    assert len(parts) == 2
    masked = [column for part in parts for column in ring.unpack(part, (50, 3)).T]
    gaps = [ring.signed(ring.reduce(one - other)) for one, other in combinations(masked, 2)]
    assert all(np.abs(gap).max() > 2.0 ** (NUMBERS.bits - 8) for gap in gaps)
