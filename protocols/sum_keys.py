"""Keys between the parties of a sum, from public keys that go straight between them: of pairs, and of all.

A key of all contributors, which the collector lacks:

0. k <-> j          X25519 public keys; HKDF gives the key k_kj of each two
1. first -> other   a fresh key K, sealed under k_kj
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from securevfl.crypto.agreement import KeyPair
from securevfl.crypto.prg import KEY_BYTES
from securevfl.crypto.wrapping import unwrap, wrap
from securevfl.errors import PartiesError, ProtocolError
from securevfl.protocols.base import Declared, Reveal, Seat
from securevfl.roles import CONTRIBUTOR
from securevfl.runtime.codec import Message


class SumPublic(Message, frozen=True):
    """The sender's X25519 public key for one sum protocol of this session."""

    key: bytes


class GroupKey(Message, frozen=True):
    """A key that all contributors of a sum share, sealed for the receiver."""

    sealed: bytes


GROUP_MESSAGES = [
    Declared(SumPublic, CONTRIBUTOR, CONTRIBUTOR, Reveal("public")),
    Declared(GroupKey, CONTRIBUTOR, CONTRIBUTOR, Reveal("output", "the key that all workers share"), structured=True),
]


def exchange_keys(seat: Seat, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
    """The 32-byte key with every other party of `among`, by name; for this session, domain and lane alone.

    CryptoError if a peer's public key is none.
    """
    peers = [party for party in among if party != seat.me]
    for peer in peers:
        seat.channel.send(peer, SumPublic(pair.public), seat.lane)
    publics = {peer: seat.channel.recv(peer, SumPublic, seat.lane).key for peer in peers}
    return {
        peer: pair.agree(public, session=session(seat), own=seat.me, peer=peer, domain=domain)
        for peer, public in publics.items()
    }


def group_key(seat: Seat, domain: str) -> bytes:
    """A 32-byte key that all contributors of the seat share; for this session, domain and lane alone.

    PartiesError with fewer than two contributors, CryptoError if a peer's key is none or does not open.
    """
    if len(seat.contributors) < 2:
        raise PartiesError(
            f"{domain}: at least two workers were expected, {len(seat.contributors)} came; there is nobody to share a "
            "key with"
        )
    pairs = exchange_keys(seat, KeyPair(), seat.contributors, domain=domain)  # 0
    first = seat.contributors[0]
    if seat.me != first:
        key = unwrap(pairs[first], seat.channel.recv(first, GroupKey, seat.lane).sealed, domain.encode())  # 1
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"{first} was expected to send a key of {KEY_BYTES} bytes, {len(key)} came; stop here")
        return key
    key = os.urandom(KEY_BYTES)
    for peer, sealing in pairs.items():
        seat.channel.send(peer, GroupKey(wrap(sealing, key, domain.encode())), seat.lane)  # 1
    return key


def session(seat: Seat) -> str:
    """Names this run and this seat's lane in a key's context."""
    return f"{seat.channel.session.hex()}/{seat.lane}"
