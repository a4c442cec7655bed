"""Keys for masks between the contributors of a sum: pairwise keys, and keys that a group shares.

A group key of every contributor, which the readers (a subset of the contributors) know and the collector does not:

0. k <-> reader     X25519 public keys; HKDF derives the pairwise key k_kj
1. k -> reader      a fresh key K_k, encrypted under a key derived from k_kj and the sender's name
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from securevfl.base.roles import CONTRIBUTOR, READER
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, derive_key
from securevfl.crypto.wrapping import unwrap, wrap
from securevfl.errors import PartiesError, ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord


class SumPublicKey(Message, frozen=True):
    """The sender's X25519 public key for one sum protocol of this session."""

    key: bytes


class WrappedMaskKey(DisclosingMessage, frozen=True):
    """The sender's mask key of this session, encrypted for the receiver."""

    sealed: bytes


KEY_MESSAGES = [
    MessageDeclaration(SumPublicKey, CONTRIBUTOR, READER, Reveal("public")),
    MessageDeclaration(SumPublicKey, READER, CONTRIBUTOR, Reveal("public")),
    MessageDeclaration(
        WrappedMaskKey, CONTRIBUTOR, READER, Reveal("output", "the sender's key of this session"), structured=True
    ),
]


def exchange_keys(context: PartyContext, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
    """Exchange public keys, and return the 32-byte key shared with each other party of `among`.

    The keys are bound to this session, domain and subchannel. Raise CryptoError if a public key is invalid.
    """
    peers = [party for party in among if party != context.me]
    for peer in peers:
        context.channel.send(peer, SumPublicKey(pair.public), context.subchannel)
    publics = {peer: context.channel.recv(peer, SumPublicKey, context.subchannel).key for peer in peers}
    return {
        peer: pair.agree(public, session=key_session(context), party=context.me, peer=peer, domain=domain)
        for peer, public in publics.items()
    }


def exchange_mask_keys(context: PartyContext, readers: Collection[str], domain: str) -> dict[str, bytes]:
    """Create this contributor's mask key, and send it to the readers.

    The keys are bound to this session, domain and subchannel.

    Args:
        context: this party's context.
        readers: the contributors that receive the keys of all others.
        domain: name of the protocol that uses the keys.

    Returns:
        By party, the 32-byte keys that this party knows: its key, and at a reader those of all contributors.

    Raises:
        PartiesError: if there are fewer than two contributors, or a reader is not a contributor.
        ProtocolError: if a received key has another length.
    """
    if len(context.contributors) < 2 or not readers or not set(readers) <= set(context.contributors):
        raise PartiesError(
            f"{domain}: the workers are {', '.join(context.contributors)}, the readers of sums are "
            f"{', '.join(readers) or 'nobody'}",
            "name two workers or more, and readers among them",
            code="SVFL-PARTIES-ROLE",
        )
    reads = context.me in readers
    among = [name for name in context.contributors if reads or name in readers or name == context.me]
    pairs = exchange_keys(context, KeyPair(), among, domain=domain)  # 0
    keys = {context.me: os.urandom(SYMMETRIC_KEY_BYTES)}

    def wrapping_key(peer: str, sender: str) -> bytes:
        return derive_key(pairs[peer], "own key", sender)  # a pairwise key is used in both directions

    for peer in pairs:
        if peer in readers:
            sealed = wrap(wrapping_key(peer, context.me), keys[context.me], domain.encode())
            permit = context.channel.permit(DisclosureRecord(peer, "keys", 1, 8 * SYMMETRIC_KEY_BYTES))
            context.channel.send(peer, WrappedMaskKey(sealed), context.subchannel, permit=permit)  # 1
    for peer in pairs if reads else ():
        sealed = context.channel.recv(peer, WrappedMaskKey, context.subchannel).sealed  # 1
        keys[peer] = unwrap(wrapping_key(peer, peer), sealed, domain.encode())
        if len(keys[peer]) != SYMMETRIC_KEY_BYTES:
            raise ProtocolError(
                f"{peer} sent a key of {len(keys[peer])} bytes, keys have {SYMMETRIC_KEY_BYTES}",
                code="SVFL-PROTOCOL-SIZE",
                party=peer,
            )
    return keys


def key_session(context: PartyContext) -> str:
    """Return the name of this run and this subchannel that keys are bound to."""
    return f"{context.channel.session.hex()}/{context.subchannel}"
