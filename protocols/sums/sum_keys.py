"""Keys between the parties of a sum, from public keys that go straight between them: of pairs, and of groups.

A key of every contributor that some of them, the readers, share and the collector lacks:

0. k <-> reader     X25519 public keys; HKDF gives the key k_kj of each two
1. k -> reader      a fresh key K_k, sealed under a key that follows from k_kj and the sender's name
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from securevfl.base.roles import CONTRIBUTOR, READER
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.prg import KEY_BYTES, derive_key
from securevfl.crypto.wrapping import unwrap, wrap
from securevfl.errors import PartiesError, ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Entry, Telling


class SumPublic(Message, frozen=True):
    """The sender's X25519 public key for one sum protocol of this session."""

    key: bytes


class OwnKey(Telling, frozen=True):
    """The sender's key of this session, sealed for the receiver."""

    sealed: bytes


KEY_MESSAGES = [
    Declared(SumPublic, CONTRIBUTOR, READER, Reveal("public")),
    Declared(SumPublic, READER, CONTRIBUTOR, Reveal("public")),
    Declared(OwnKey, CONTRIBUTOR, READER, Reveal("output", "the sender's key of this session"), structured=True),
]


def exchange_keys(seat: Seat, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
    """Exchange public keys and return the 32-byte key with every other party of `among`, by name.

    The keys serve this session, domain and lane alone. CryptoError if a peer's public key is none.
    """
    peers = [party for party in among if party != seat.me]
    for peer in peers:
        seat.channel.send(peer, SumPublic(pair.public), seat.lane)
    publics = {peer: seat.channel.recv(peer, SumPublic, seat.lane).key for peer in peers}
    return {
        peer: pair.agree(public, session=session(seat), own=seat.me, peer=peer, domain=domain)
        for peer, public in publics.items()
    }


def own_keys(seat: Seat, readers: Collection[str], domain: str) -> dict[str, bytes]:
    """Return this contributor's fresh 32-byte key, and at a reader those of all contributors, by name.

    For this session, domain and lane alone. PartiesError if there are fewer than two contributors or a reader is none
    of them; CryptoError if a peer's key is none or does not open.
    """
    if len(seat.contributors) < 2 or not readers or not set(readers) <= set(seat.contributors):
        raise PartiesError(
            f"{domain}: two workers or more were expected, with those that are told sums among them, came "
            f"{', '.join(seat.contributors)} and {', '.join(readers) or 'nobody'}; correct the roles"
        )
    reads = seat.me in readers
    among = [name for name in seat.contributors if reads or name in readers or name == seat.me]
    pairs = exchange_keys(seat, KeyPair(), among, domain=domain)  # 0
    keys = {seat.me: os.urandom(KEY_BYTES)}

    def sealing(peer: str, sender: str) -> bytes:
        return derive_key(pairs[peer], "own key", sender)  # a pair's key serves both ways

    for peer in pairs:
        if peer in readers:
            sealed = wrap(sealing(peer, seat.me), keys[seat.me], domain.encode())
            told = seat.channel.tell(Entry(peer, "keys", bits=8 * KEY_BYTES))
            seat.channel.send(peer, OwnKey(sealed), seat.lane, told=told)  # 1
    for peer in pairs if reads else ():
        sealed = seat.channel.recv(peer, OwnKey, seat.lane).sealed  # 1
        keys[peer] = unwrap(sealing(peer, peer), sealed, domain.encode())
        if len(keys[peer]) != KEY_BYTES:
            raise ProtocolError(f"{peer} was expected to send a key of {KEY_BYTES} bytes, {len(keys[peer])} came; stop")
    return keys


def session(seat: Seat) -> str:
    """Names this run and this seat's lane in a key's context."""
    return f"{seat.channel.session.hex()}/{seat.lane}"
