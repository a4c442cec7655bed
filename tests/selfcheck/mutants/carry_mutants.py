"""Mutants (deliberate errors) of the lift, which converts shares of table entries from k bits to L bits."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import numpy as np

from securevfl.crypto.transfers import field_transfers
from securevfl.crypto.transfers.field_transfers import TransferReceiver
from securevfl.protocols.shares.carry_lift import CarryLift
from securevfl.protocols.shares.iteration import LabelParty
from selfcheck.mutants.mutant import Mutant, Stand, edited, patched

_extend = TransferReceiver.extend
_CHECK = "shares: lifted entries"
_latest: dict[str, Any] = {}


def _bit_of_the_index(self: Any, rows: int) -> Any:
    """Use the lowest bit of the latest table index as the choice of a transfer of one bit for equally many rows."""
    if self._bits > 1:
        message, block = _extend(self, rows)
        _latest["choices"] = block.choices
        return message, block
    if len(_latest.get("choices", ())) != rows:
        return _extend(self, rows)
    chosen = np.packbits(_latest["choices"] & np.uint8(1), bitorder="little").tobytes()

    def drawn(count: int) -> bytes:
        return chosen + os.urandom(count - len(chosen))

    with mock.patch.object(field_transfers, "os", Stand(os, urandom=drawn)):
        return _extend(self, rows)


MUTANTS = [
    Mutant(
        "a bit of the index in the lift",
        "the partner's bit c of a lift is the lowest bit of chi",
        _CHECK,
        "choices",
        patched((TransferReceiver, "extend", _bit_of_the_index)),
    ),
    Mutant(
        "a lift without c",
        "the partner sends the top bit of its entry in the clear",
        _CHECK,
        "choices",
        patched(edited(CarryLift, "request", ("self.top_bits(b) ^ c", "self.top_bits(b)"))),
    ),
    Mutant(
        "a lift without alpha",
        "the word that the partner opens is the carry alone",
        _CHECK,
        "uniform",
        patched(edited(CarryLift, "answer", ("-(mask.high + pads)", "np.uint64(0) - pads"))),
    ),
    Mutant(
        "a lift without pads",
        "both words of a lift differ by the carry",
        _CHECK,
        "uniform",
        patched(edited(CarryLift, "answer", ("-(mask.high + pads)", "-(mask.high + np.uint64(0) * pads)"))),
    ),
    Mutant(
        "short entries without a",
        "entries of k bits are hidden by pads alone, so the partner opens residuals",
        _CHECK,
        "uniform",
        patched((LabelParty, "_split_psi", lambda self, lift, block: lift.split(np.zeros(block.psi.size, np.uint64)))),
    ),
]
