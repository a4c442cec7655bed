"""The transfers of a training on shares: pads for a table a row, made ahead for all visits of a chunk.

0. partner -> active   the offer of the base transfers;  active -> partner   128 choices     once a session
   both                seeds of this conversation and purpose from those of the base transfers
1. partner -> active   corrections and check for the rows of some visits, its choices chi random
   active              all 2^b pads of each row, made when the visit comes
   partner             pad(chi) of each row

The active party, with the tables, offers; in the base transfers it chooses. Each receives uniform bits
(crypto/transfers/ot_extension.py).

All transfers of a session go in this direction, so one set of base transfers serves them: its conversations and
purposes are further blocks of one extension. The active party's bits s are the same in all; streams of T and T' differ,
as each derives its seeds under its own name (HKDF-Expand), and so do the permutations of the hash, by the coin. A
partner that guesses bits of s in the check of any block ends the session where it is wrong, so it passes no more often
than it would with as many blocks of one purpose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers import base_transfers, ot_extension
from securevfl.crypto.transfers.ot_extension import BASE_TRANSFERS, OtReceiver, OtSender, SenderBlock
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.codec import Message

_ROWS = 1 << 17  # transfers are made for so many rows at a time


class TransferOffer(Message, frozen=True):
    """A point of 32 bytes, Ed25519."""

    public: bytes


class TransferChoices(Message, frozen=True):
    """128 points of 32 bytes, Ed25519."""

    points: bytes


class TransferCorrections(Message, frozen=True):
    """Columns and check for the transfers of some visits."""

    columns: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages of the transfers reveal."""
    return [
        MessageDeclaration(TransferOffer, "partner", "active", Reveal("public")),
        MessageDeclaration(TransferChoices, "active", "partner", Reveal("uniform"), structured=True),
        MessageDeclaration(TransferCorrections, "partner", "active", Reveal("uniform")),
    ]


class BaseTransfers(Secret):
    """One holder's end of the base transfers of a session with the other holder."""

    __slots__ = ("_context", "_peer", "_secret", "_seeds")

    def __init__(self, context: PartyContext, peer: str) -> None:
        """Nothing is sent before `meet`."""
        self._context, self._peer = context, peer
        self._secret = b""
        self._seeds: list[tuple[bytes, ...]] = []

    def establish(self) -> None:
        """Make them, unless they are made: both holders at the same point. CryptoError if what comes is no point."""
        context, channel, peer = self._context, self._context.channel, self._peer
        if self._seeds:
            return
        if context.me == context.active:
            self._secret, choices = ot_extension.fresh_secret()
            points, seeds = base_transfers.receive_keys(
                channel.recv(peer, TransferOffer, context.subchannel).public, choices
            )  # 0
            channel.send(peer, TransferChoices(points), context.subchannel)  # 0
            self._seeds = [(seed,) for seed in seeds]
            return
        offerer = base_transfers.BaseSender()
        channel.send(peer, TransferOffer(offerer.offer), context.subchannel)  # 0
        points = channel.recv(peer, TransferChoices, context.subchannel).points  # 0
        if len(points) != BASE_TRANSFERS * base_transfers.EDWARDS_POINT_BYTES:
            raise ProtocolError(f"{peer} was expected to send {BASE_TRANSFERS} choices, {len(points)} bytes came")
        self._seeds = list(offerer.pairs(points))

    def transfers(self, context: PartyContext, purpose: str, coin: bytes, bits: int) -> Transfers:
        """Return this end of the transfers of one conversation, by its subchannel, and purpose.

        coin: 32 bytes that both ends have, of this conversation and purpose alone. bits: b.
        """
        self.establish()
        seeds = [tuple(derived_seed(seed, context.subchannel, purpose) for seed in pair) for pair in self._seeds]
        if context.me == context.active:
            offerer = OtSender(self._secret, [seed for (seed,) in seeds], coin, bits)
            return ActiveTransfers(context, self._peer, offerer)
        return PartnerTransfers(
            context, self._peer, OtReceiver([(first, second) for first, second in seeds], coin, bits)
        )


def derived_seed(seed: bytes, subchannel: str, purpose: str) -> bytes:
    """Return the seed (32 bytes) of one conversation and purpose from that of a base transfer. Under one seed, two of
    them would tell the active party by which choices they differ."""
    return derive_key(seed, "transfers", subchannel, purpose)


class Transfers(ABC):
    """One end of a conversation's oblivious transfers, by which table entries are chosen."""

    @abstractmethod
    def generate(self, rows: Sequence[int]) -> Iterator[tuple[bytes, ...]]:
        """Yield what this end stores of the transfers of each visit, given how many rows each has."""


class ActiveTransfers(Transfers):
    """The active party's end of the transfers, which offers the rows."""

    def __init__(self, context: PartyContext, peer: str, offerer: OtSender) -> None:
        self._context, self._peer, self._offerer = context, peer, offerer

    def generate(self, rows: Sequence[int]) -> Iterator[tuple[bytes, ...]]:
        for part in _parted(rows):
            columns = self._context.channel.recv(self._peer, TransferCorrections, self._context.subchannel).columns  # 1
            offered = self._context.meter("transfer", partial(self._offerer.extend, sum(part), columns))
            start = 0
            for count in part:
                yield offered.stored(start, start + count)
                start += count


class PartnerTransfers(Transfers):
    """The partner's end of the transfers, which chooses entries of the rows."""

    def __init__(self, context: PartyContext, peer: str, chooser: OtReceiver) -> None:
        self._context, self._peer, self._chooser = context, peer, chooser

    def generate(self, rows: Sequence[int]) -> Iterator[tuple[bytes, ...]]:
        for part in _parted(rows):
            columns, made = self._context.meter("transfer", partial(self._chooser.extend, sum(part)))
            self._context.channel.send(self._peer, TransferCorrections(columns), self._context.subchannel)  # 1
            start = 0
            for count in part:
                stop = start + count
                yield made.choices[start:stop].tobytes(), made.pads[start:stop].astype("<u8").tobytes()
                start = stop


def pads(stored: tuple[bytes, ...], ring: ShareRing) -> Words:
    """All pads (2^b x rows) of a visit, from what the active party has stored."""
    offered = SenderBlock.restored(stored)
    found = offered.pads(0, offered.rows)
    found &= ring.mask
    return found


def chosen(stored: tuple[bytes, ...], ring: ShareRing) -> tuple[NDArray[np.uint8], Words]:
    """chi and pad(chi) (rows,) of a visit, from what the partner has stored."""
    choices, kept = stored
    return np.frombuffer(choices, np.uint8), ring.reduce(np.frombuffer(kept, "<u8").astype(np.uint64, copy=False))


def _parted(rows: Sequence[int]) -> Iterator[list[int]]:
    """Divide the visits' rows into groups that are made at once."""
    part: list[int] = []
    for count in rows:
        if part and sum(part) + count > _ROWS:
            yield part
            part = []
        part.append(count)
    if part:
        yield part
