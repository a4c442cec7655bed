"""Keys from which the contributors of a sum generate masks; the collector of the sum does not know them.

`exchange_keys` gives every two contributors a common key. `exchange_mask_keys` gives every contributor k a mask key K_k
that the readers know too. The readers are those contributors that may remove masks from a sum.

0. k <-> reader     X25519 public keys; HKDF derives a common key of the two
1. k -> reader      K_k, encrypted under a key that is derived from the common key and the sender's name

Comments refer to these steps by number. A session is one part of a run, until it ends or is interrupted.
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
    """The sender's X25519 public key, which is used for one sum protocol in one session."""

    key: bytes


class WrappedMaskKey(DisclosingMessage, frozen=True):
    """The sender's mask key K_k for this session, encrypted for the receiver."""

    sealed: bytes


KEY_MESSAGES = [
    MessageDeclaration(SumPublicKey, CONTRIBUTOR, READER, Reveal("public")),
    MessageDeclaration(SumPublicKey, READER, CONTRIBUTOR, Reveal("public")),
    MessageDeclaration(
        WrappedMaskKey, CONTRIBUTOR, READER, Reveal("output", "the sender's key of this session"), structured=True
    ),
]


def exchange_keys(context: PartyContext, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
    """Exchange public keys, and return for each other party of `among` the common key of 32 bytes.

    Keys differ between sessions, between subchannels, and between protocols, which are named by `domain`. Raise
    CryptoError if a public key is invalid.
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
    """Create this contributor's mask key, send it to the readers, and receive the keys of others if it is a reader.

    Keys differ between sessions, between subchannels, and between protocols.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        readers: the contributors that receive the mask keys of all others.
        domain: name of the protocol that uses the keys.

    Returns:
        The mask keys (32 bytes) that this party knows, by contributor: at a reader all of them, otherwise only its own.

    Raises:
        PartiesError: if there are fewer than two contributors, or a reader is not a contributor.
        ProtocolError: if a received key has another length.
    """
    if len(context.contributors) < 2 or not readers or not set(readers) <= set(context.contributors):
        raise PartiesError(
            f"{domain}: sums need two or more workers, and readers among them, but the workers are "
            f"{', '.join(context.contributors)} and the readers are {', '.join(readers) or 'nobody'}",
            "name two workers or more, and readers among them",
            code="SVFL-PARTIES-ROLE",
        )
    reads = context.me in readers
    among = [name for name in context.contributors if reads or name in readers or name == context.me]
    pairs = exchange_keys(context, KeyPair(), among, domain=domain)  # step 0
    keys = {context.me: os.urandom(SYMMETRIC_KEY_BYTES)}

    def wrapping_key(peer: str, sender: str) -> bytes:
        # the key depends on the sender, because both parties encrypt under keys that follow from their common key
        return derive_key(pairs[peer], "own key", sender)

    for peer in pairs:
        if peer in readers:
            sealed = wrap(wrapping_key(peer, context.me), keys[context.me], domain.encode())
            permit = context.channel.permit(DisclosureRecord(peer, "keys", 1, 8 * SYMMETRIC_KEY_BYTES))
            context.channel.send(peer, WrappedMaskKey(sealed), context.subchannel, permit=permit)  # step 1
    for peer in pairs if reads else ():
        sealed = context.channel.recv(peer, WrappedMaskKey, context.subchannel).sealed  # step 1
        keys[peer] = unwrap(wrapping_key(peer, peer), sealed, domain.encode())
        if len(keys[peer]) != SYMMETRIC_KEY_BYTES:
            raise ProtocolError(
                f"{peer} sent a key of {len(keys[peer])} bytes instead of {SYMMETRIC_KEY_BYTES}",
                code="SVFL-PROTOCOL-SIZE",
                party=peer,
            )
    return keys


def key_session(context: PartyContext) -> str:
    """Return a name of this session and subchannel, from which keys are derived so that no two sessions share one."""
    return f"{context.channel.session.hex()}/{context.subchannel}"
