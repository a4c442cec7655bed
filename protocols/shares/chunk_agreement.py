"""Which stretches of a training on shares have work ready at all its parties, from this session or an earlier one.

1. all -> all   the name of the chunk that is ready for the next visits, or nothing
2. all -> all   nothing, after the last visit

A chunk is gone through if all have one of the same name, which no two chunks have in common; else all throw away what
they have from there on and make a new one, as later ones rest on it. Names are no secrets: digests of nonces that all
parties have. By 2 everyone's last state is on disk, so that whoever is killed from there on comes back with the same
model, of which the same rows may be asked about again.
"""

from __future__ import annotations

from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.runtime.codec import Message


class ChunkName(Message, frozen=True):
    """The message that names the chunk a party has ready: 16 bytes, or none."""

    name: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [MessageDeclaration(ChunkName, *pair, Reveal("public")) for pair in share_products.PAIRS]


def agree_on_chunk(context: PartyContext, ahead: OfflinePhase, number: int, visits: int) -> bool:
    """Whether all parties have chunk `number` for so many visits, made together and untouched. What does not fit is
    thrown away."""
    own = ahead.usable_chunk(number, visits)
    names = [own, *_exchanged(context, own)]
    same = bool(own) and len(set(names)) == 1
    if not same:
        ahead.drop_from(number)
    return same


def wait_for_all(context: PartyContext) -> None:
    """Wait until every party has come to the end of the training."""
    _exchanged(context, b"")  # 2


def _exchanged(context: PartyContext, own: bytes) -> list[bytes]:
    others = [name for name in context.parties if name != context.me]
    for name in others:
        context.channel.send(name, ChunkName(own), context.subchannel)  # 1
    return [context.channel.recv(name, ChunkName, context.subchannel).name for name in others]  # 1
