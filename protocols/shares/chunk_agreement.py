"""Agreement on stored preprocessing: all parties use a chunk, or all of them discard it and generate a new one.

A chunk is the random material for a number of iterations of a training on shares, which the parties generated together
and stored. Each party stores the random numbers that it alone knows, under a name that all parties use for the chunk.

1. all -> all   the name of the stored chunk for the next iterations; empty if the party has none
2. all -> all   an empty name, after the last iteration

If all names are equal, the parties use the chunk. Otherwise every party discards this chunk and all later ones, because
later chunks depend on it. Names are digests of random numbers that all parties know, and not secret. A party sends the
message of step 2 after it has stored its final state. When a party has received all of them, every party can resume
with the same model, even if a process is killed afterwards; so a row is not scored again with a different model.
"""

from __future__ import annotations

from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.runtime.codec import Message


class ChunkName(Message, frozen=True):
    """The name of the chunk that a party has stored (16 bytes); empty if it has none."""

    name: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [MessageDeclaration(ChunkName, *pair, Reveal("public")) for pair in share_products.ROLE_PAIRS]


def agree_on_chunk(context: PartyContext, phase: OfflinePhase, number: int, iterations: int) -> bool:
    """Return whether all parties have an unused chunk that they generated together; otherwise discard later chunks.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        phase: this party's offline phase, which stores its chunks.
        number: the number of the chunk; chunks of a training are counted from 0.
        iterations: the number of iterations that the chunk must have.

    Returns:
        Whether all parties have the same unused chunk with this number.
    """
    name = phase.usable_chunk(number, iterations)
    names = [name, *_exchange(context, name)]
    agreed = bool(name) and len(set(names)) == 1
    if not agreed:
        phase.drop_from(number)
    return agreed


def wait_for_all(context: PartyContext) -> None:
    """Wait until every party has reached the end of the training."""
    _exchange(context, b"")  # step 2


def _exchange(context: PartyContext, name: bytes) -> list[bytes]:
    """Send a chunk's name to all other parties, and return the names that they sent."""
    others = [party for party in context.parties if party != context.me]
    for party in others:
        context.channel.send(party, ChunkName(name), context.subchannel)  # step 1
    return [context.channel.recv(party, ChunkName, context.subchannel).name for party in others]  # step 1
