"""Compare disclosure records with the bytes of the messages that contain numbers in the clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from securevfl.protocols.residuals.sealed_residual import OpenedProduct
from securevfl.protocols.shares.word_shuffle import ShuffledWords
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureGate, DisclosurePermit, DisclosureRecord

COUNTED_KINDS = {"labels", "columns", "scores", "phases"}
MARK = 128  # bits of the field that names the owner of a stored payload


@dataclass(frozen=True)
class Said:
    """A message that `giver` has sent: the bits of its numbers, and its ledger entry."""

    giver: str
    kind: type[Message]
    bits: int
    entry: DisclosureRecord

    @property
    def short(self) -> bool:
        """Return whether the message has more bits than its entry, except for padding of bytes.

        The check omits opened products, which are masked and contain check values, so that they are larger by design;
        their numbers are counted elsewhere. It also omits words in a hidden order, which have more bits than the
        logarithm of the number of their multisets, which their entry states.
        """
        over = self.bits - self.entry.numbers * self.entry.bits
        return over > (MARK if self.kind.__name__ == "Push" else 7) and self.kind not in (OpenedProduct, ShuffledWords)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Said]:
    """List the disclosures that pass any gate from now on, if they contain numbers that a party reads."""
    disclosed, check = list[Said](), DisclosureGate.check

    def checked(self: DisclosureGate, message: Message, permit: DisclosurePermit | None) -> None:
        if isinstance(message, DisclosingMessage) and permit is not None and permit.record.kind in COUNTED_KINDS:
            bits = sum(_bits(getattr(message, name)) for name in message.__struct_fields__)
            disclosed.append(Said(self.me, type(message), bits, permit.record))
        check(self, message, permit)

    monkeypatch.setattr(DisclosureGate, "check", checked)
    return disclosed


def _bits(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return 8 * value.nbytes
    return 8 * len(value) if isinstance(value, bytes) else 0
