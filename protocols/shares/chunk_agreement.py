"""Agreement on stored preprocessing: all parties use a chunk, or all of them discard it and generate a new one.

A chunk is the random material for a number of iterations of a training on shares, which the parties generated together
and stored. Each party stores the random numbers that it alone knows, under a name that all parties use for the chunk.

1. all -> all   the name of the stored chunk for the next iterations, empty if the party has none; and whether the
                party stores chunks on disk
2. all -> all   an empty name, after the last iteration

If all names are equal, the parties use the chunk. Otherwise every party discards this chunk and all later ones, because
later chunks depend on it. Names are digests of random numbers that all parties know, and not secret. A party sends the
message of step 2 after it has stored its final state. When a party has received all of them, every party can resume
with the same model, even if a process is killed afterwards; so a row is not scored again with a different model.
"""

from __future__ import annotations

from typing import NamedTuple

from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.runtime.codec import Message


class ChunkName(Message, frozen=True):
    """The chunk that a party has stored.

    Attributes:
        name: the name of the chunk (16 bytes); empty if the party has none.
        on_disk: whether the party stores chunks on disk.
    """

    name: bytes
    on_disk: bool


class ChunkAgreement(NamedTuple):
    """What all parties know about a chunk.

    Attributes:
        usable: whether all parties have the same unused chunk with this number.
        on_disk: whether all parties store chunks on disk. A new chunk is then complete before it is used, so that
            later sessions can use it. Otherwise no later session can, because some party will have lost its part.
    """

    usable: bool
    on_disk: bool


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [MessageDeclaration(ChunkName, *pair, Reveal("public")) for pair in share_products.ROLE_PAIRS]


def agree_on_chunk(context: PartyContext, phase: OfflinePhase, number: int, iterations: int) -> ChunkAgreement:
    """Find out whether all parties have an unused chunk that they generated together; otherwise discard later chunks.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        phase: this party's offline phase, which stores its chunks.
        number: the number of the chunk; chunks of a training are counted from 0.
        iterations: the number of iterations that the chunk must have.

    Returns:
        Whether all parties have the same unused chunk with this number, and whether all of them store chunks on disk.
    """
    local = ChunkName(phase.usable_chunk(number, iterations), phase.store.on_disk)
    chunks = [local, *_exchange(context, local)]
    usable = bool(local.name) and len({chunk.name for chunk in chunks}) == 1
    if not usable:
        phase.drop_from(number)
    return ChunkAgreement(usable, all(chunk.on_disk for chunk in chunks))


def wait_for_all(context: PartyContext) -> None:
    """Wait until every party has reached the end of the training."""
    _exchange(context, ChunkName(b"", on_disk=False))  # step 2


def _exchange(context: PartyContext, chunk: ChunkName) -> list[ChunkName]:
    """Send a message about this party's chunk to all other parties, and return theirs."""
    others = [party for party in context.parties if party != context.me]
    for party in others:
        context.channel.send(party, chunk, context.subchannel)  # step 1
    return [context.channel.recv(party, ChunkName, context.subchannel) for party in others]  # step 1
