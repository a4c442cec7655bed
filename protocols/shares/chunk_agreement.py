"""Agreement on stored preprocessing: all parties use a chunk, or all of them discard it and generate a new one.

1. all -> all   the name of the chunk that is stored for the next iterations, or nothing
2. all -> all   nothing, after the last iteration

A chunk is used if all parties have one with the same name, which is unique. Otherwise all parties discard what they
have from there on, because later chunks depend on it. Names are digests of nonces that all parties know, and not
secret. Step 2 ensures that every party's last state is on disk: a process that is killed afterwards resumes with the
same model, for which the same rows may be scored again.
"""

from __future__ import annotations

from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.runtime.codec import Message


class ChunkName(Message, frozen=True):
    """The name of the chunk that a party has stored: 16 bytes, or nothing."""

    name: bytes


def declares() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages. Roles: active, partner, passive (any party that is neither)."""
    return [MessageDeclaration(ChunkName, *pair, Reveal("public")) for pair in share_products.PAIRS]


def agree_on_chunk(context: PartyContext, phase: OfflinePhase, number: int, iterations: int) -> bool:
    """Return whether all parties have an unused chunk that they generated together; otherwise discard later chunks.

    Args:
        context: this party's context.
        phase: its offline phase.
        number: the number of the chunk.
        iterations: the number of iterations that the chunk must have.

    Returns:
        True if the chunk can be used.
    """
    name = phase.usable_chunk(number, iterations)
    names = [name, *_exchange(context, name)]
    agreed = bool(name) and len(set(names)) == 1
    if not agreed:
        phase.drop_from(number)
    return agreed


def wait_for_all(context: PartyContext) -> None:
    """Wait until every party has reached the end of the training."""
    _exchange(context, b"")  # 2


def _exchange(context: PartyContext, name: bytes) -> list[bytes]:
    """Send a name to all other parties, and return theirs."""
    others = [party for party in context.parties if party != context.me]
    for party in others:
        context.channel.send(party, ChunkName(name), context.subchannel)  # 1
    return [context.channel.recv(party, ChunkName, context.subchannel).name for party in others]  # 1
