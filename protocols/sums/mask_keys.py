"""Keys between the parties of a sum, from public keys that go straight between them: of pairs, and of groups.

A key of every contributor that some of them, the readers, share and the collector lacks:

0. k <-> reader     X25519 public keys; HKDF gives the key k_kj of each two
1. k -> reader      a fresh key K_k, sealed under a key that follows from k_kj and the sender's name
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


class SumPublic(Message, frozen=True):
    """The sender's X25519 public key for one sum protocol of this session."""

    key: bytes


class OwnKey(DisclosingMessage, frozen=True):
    """The sender's key of this session, sealed for the receiver."""

    sealed: bytes


KEY_MESSAGES = [
    MessageDeclaration(SumPublic, CONTRIBUTOR, READER, Reveal("public")),
    MessageDeclaration(SumPublic, READER, CONTRIBUTOR, Reveal("public")),
    MessageDeclaration(
        OwnKey, CONTRIBUTOR, READER, Reveal("output", "the sender's key of this session"), structured=True
    ),
]


def exchange_keys(context: PartyContext, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
    """Exchange public keys and return the 32-byte key with every other party of `among`, by name.

    The keys serve this session, domain and subchannel alone. CryptoError if a peer's public key is none.
    """
    peers = [party for party in among if party != context.me]
    for peer in peers:
        context.channel.send(peer, SumPublic(pair.public), context.subchannel)
    publics = {peer: context.channel.recv(peer, SumPublic, context.subchannel).key for peer in peers}
    return {
        peer: pair.agree(public, session=session(context), party=context.me, peer=peer, domain=domain)
        for peer, public in publics.items()
    }


def exchange_mask_keys(context: PartyContext, readers: Collection[str], domain: str) -> dict[str, bytes]:
    """Return this contributor's fresh 32-byte key, and at a reader those of all contributors, by name.

    For this session, domain and subchannel alone. PartiesError if there are fewer than two contributors or a reader is
    none
    of them; CryptoError if a peer's key is none or does not open.
    """
    if len(context.contributors) < 2 or not readers or not set(readers) <= set(context.contributors):
        raise PartiesError(
            f"{domain}: two workers or more were expected, with those that are told sums among them, came "
            f"{', '.join(context.contributors)} and {', '.join(readers) or 'nobody'}; correct the roles"
        )
    reads = context.me in readers
    among = [name for name in context.contributors if reads or name in readers or name == context.me]
    pairs = exchange_keys(context, KeyPair(), among, domain=domain)  # 0
    keys = {context.me: os.urandom(SYMMETRIC_KEY_BYTES)}

    def sealing(peer: str, sender: str) -> bytes:
        return derive_key(pairs[peer], "own key", sender)  # a pair's key serves both ways

    for peer in pairs:
        if peer in readers:
            sealed = wrap(sealing(peer, context.me), keys[context.me], domain.encode())
            permit = context.channel.permit(DisclosureRecord(peer, "keys", 1, 8 * SYMMETRIC_KEY_BYTES))
            context.channel.send(peer, OwnKey(sealed), context.subchannel, permit=permit)  # 1
    for peer in pairs if reads else ():
        sealed = context.channel.recv(peer, OwnKey, context.subchannel).sealed  # 1
        keys[peer] = unwrap(sealing(peer, peer), sealed, domain.encode())
        if len(keys[peer]) != SYMMETRIC_KEY_BYTES:
            raise ProtocolError(
                f"{peer} was expected to send a key of {SYMMETRIC_KEY_BYTES} bytes, {len(keys[peer])} came; stop"
            )
    return keys


def session(context: PartyContext) -> str:
    """Names this run and this context's subchannel in a key's context."""
    return f"{context.channel.session.hex()}/{context.subchannel}"
