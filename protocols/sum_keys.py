"""Pair keys between the parties of a sum, from public keys that go straight between them."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.crypto.agreement import KeyPair
from securevfl.protocols.base import Seat
from securevfl.runtime.codec import Message


class SumPublic(Message, frozen=True):
    """The sender's X25519 public key for one sum protocol of this session."""

    key: bytes


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


def session(seat: Seat) -> str:
    """Names this run and this seat's lane in a key's context."""
    return f"{seat.channel.session.hex()}/{seat.lane}"
