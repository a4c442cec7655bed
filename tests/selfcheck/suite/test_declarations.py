"""Every message type of the protocols has a declaration in the selfcheck."""

from __future__ import annotations

from docs.declarations_page import sections, table
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.protocols.alignment import psi_many, psi_work
from securevfl.protocols.protocol_options import RESIDUALS, SUMS
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


def _messages(kind: type[Message]) -> set[type[Message]]:
    below = set(kind.__subclasses__())
    return below.union(*map(_messages, below)) if below else below


def test_every_message_of_a_protocol_is_declared() -> None:
    declared = {item.message for section in sections() for item in section.declared}
    places = ("securevfl.protocols.", "securevfl.organisations.", "securevfl.runtime.channel")
    known = {kind for kind in _messages(Message) if kind.__module__.startswith(places)} - {
        DisclosingMessage
    }  # base classes
    assert {psi_work.Points, psi_many.StoreSlots} <= known
    assert not known - declared


def test_every_registered_protocol_has_a_section() -> None:
    text = table()
    assert all(f"## Sum: {name}" in text for name in SUMS)
    assert all(f"## Residual: {name}" in text for name in RESIDUALS)
    assert all(f"## Stored sum: {name}" in text for name in STORED_SUMS)


def test_kinds_say_what_they_must() -> None:
    """Plain and output name a thing, ciphertext names a key."""
    for section in sections():
        for item in section.declared:
            assert bool(item.reveals.what) == (item.reveals.kind in ("plain", "output", "ciphertext")), item
