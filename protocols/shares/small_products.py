"""Products of one share holder's words with the other's small integers, row by row, as additive shares modulo 2^L.

The *sender* has words w_k (integers modulo 2^L) of each row, and the *receiver* small signed integers b_v. For every v
and k of a row they obtain shares of b_v * w_k, from one correlated transfer (`crypto/transfers`) for each bit of b_v:
b_v is the sum of its bits times 1, 2, 4 and -8, and the share of the product is the sum of the shares of the bits. From
the transfer for a bit, the sender has two random words z_0 and z_1, and the receiver has the one that its bit selects:

1. receiver -> sender   the message of the transfers, whose choices are the bits of all b_v of some rows
2. sender -> receiver   for each transfer and word, y = z_0 - z_1 + (weight of the bit) * w_k
   sender               its share is -z_0
   receiver             its share is z_0 if the bit is 0, and z_1 + y if it is 1

Comments refer to these steps by number. The message of step 1 looks uniform to the sender, and that of step 2 to the
receiver. The receiver sends the next step 1 before it receives step 2, so that nobody waits. Both share holders can be
the sender; each direction has base transfers of its own. *Packed* integers take only the bytes that their bits need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers.correlated_transfers import CorrelatedBlock, CorrelatedReceiver, CorrelatedSender
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.share_products import unpack_words
from securevfl.protocols.shares.table_transfers import (
    SeedTrees,
    TransferChoices,
    TransferCorrections,
    TransferOffer,
)
from securevfl.runtime.codec import Message

SMALL_BITS = 4
"""Number of bits of the receiver's integers, which are between -8 and 7."""
PRODUCT_ROWS = 2048
"""Number of rows whose products are computed at a time, to limit memory."""

_TRANSFERS_AT_ONCE = 4096

SmallIntegers = NDArray[np.int8]


class MaskedCorrelations(Message, frozen=True):
    """The sender's numbers y of step 2: packed integers, one for each transfer and word."""

    words: bytes


def declares(*, reverse: bool = False) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message, base transfers included. Roles: active, partner.

    Args:
        reverse: whether the partner has the words, in place of the active party.

    Returns:
        The declarations.
    """
    sender, receiver = ("partner", "active") if reverse else ("active", "partner")
    return [
        MessageDeclaration(TransferOffer, receiver, sender, Reveal("public")),
        MessageDeclaration(TransferChoices, sender, receiver, Reveal("uniform"), structured=True),
        MessageDeclaration(SeedTrees, receiver, sender, Reveal("uniform")),
        MessageDeclaration(TransferCorrections, receiver, sender, Reveal("uniform")),
        MessageDeclaration(MaskedCorrelations, sender, receiver, Reveal("uniform")),
    ]


class WordFactors:
    """The sender's side, which has the words.

    Args:
        context: the context of the session, with its subchannel.
        peer: name of the receiver.
        transfers: generates the sender's side of correlated transfers with `count` words each.
        ring: the integers modulo 2^L.
        count: the number of words that are multiplied by one integer.
    """

    def __init__(
        self, context: PartyContext, peer: str, transfers: CorrelatedSender, ring: ShareRing, count: int
    ) -> None:
        self._context, self._peer, self._transfers, self._ring, self._count = context, peer, transfers, ring, count

    def shares(self, blocks: Iterable[Words], integers: int) -> Iterator[Words]:
        """Yield this party's shares of all products, block by block.

        Args:
            blocks: the words (m, 1, count) or (m, integers, count) of the rows of each block.
            integers: the number of the receiver's integers of a row.

        Yields:
            The shares (m, integers, count).
        """
        channel, subchannel = self._context.channel, self._context.subchannel
        for words in blocks:
            rows = len(words) * integers * SMALL_BITS
            message = channel.recv(self._peer, TransferCorrections, subchannel).columns  # step 1
            block = self._context.meter("transfer", partial(self._transfers.accept, rows, message))
            packed, share = self._context.meter("transfer", partial(self._multiply, block, words, integers))
            channel.send(self._peer, MaskedCorrelations(packed), subchannel)  # step 2
            yield share

    def _multiply(self, block: CorrelatedBlock, words: Words, integers: int) -> tuple[bytes, Words]:
        shape = len(words), integers, SMALL_BITS, self._count
        total = len(words) * integers * SMALL_BITS
        weighted = np.broadcast_to(words[:, :, None] * _bit_weights()[:, None], shape).reshape(total, self._count)
        y, share = np.empty((total, self._count), np.uint64), np.empty((total, self._count), np.uint64)
        for first in range(0, total, _TRANSFERS_AT_ONCE):
            part = slice(first, min(first + _TRANSFERS_AT_ONCE, total))
            zeros, ones = block.words(part.start, part.stop)
            y[part] = self._ring.reduce(zeros - ones + weighted[part])
            share[part] = zeros
        return self._ring.pack(y), self._ring.reduce(-share.reshape(shape).sum(axis=2, dtype=np.uint64))


class SmallFactors:
    """The receiver's side, which has the small integers.

    Args:
        context: the context of the session, with its subchannel.
        peer: name of the sender.
        transfers: generates the receiver's side of correlated transfers with `count` words each.
        ring: the integers modulo 2^L.
        count: the number of words that are multiplied by one integer.
    """

    def __init__(
        self, context: PartyContext, peer: str, transfers: CorrelatedReceiver, ring: ShareRing, count: int
    ) -> None:
        self._context, self._peer, self._transfers, self._ring, self._count = context, peer, transfers, ring, count

    def shares(self, blocks: Iterable[SmallIntegers]) -> Iterator[Words]:
        """Yield this party's shares of all products, block by block.

        Args:
            blocks: the integers (m, v) of the rows of each block.

        Yields:
            The shares (m, v, count).
        """
        pending: tuple[SmallIntegers, NDArray[np.uint8], Words] | None = None
        for integers in blocks:
            bits = _bits(integers)
            message, words = self._context.meter("transfer", partial(self._transfers.request, bits))
            self._context.channel.send(self._peer, TransferCorrections(message), self._context.subchannel)  # step 1
            if pending is not None:
                yield self._finish(*pending)
            pending = integers, bits, words
        if pending is not None:
            yield self._finish(*pending)

    def _finish(self, integers: SmallIntegers, bits: NDArray[np.uint8], words: Words) -> Words:
        message = self._context.channel.recv(self._peer, MaskedCorrelations, self._context.subchannel)  # step 2
        y = unpack_words(self._peer, message.words, self._ring, words.shape, "correlations")
        y *= bits[:, None].astype(np.uint64)
        y += words
        return self._ring.reduce(y.reshape(*integers.shape, SMALL_BITS, -1).sum(axis=2, dtype=np.uint64))


def _bit_weights() -> Words:
    """Return the factor of each bit of a small integer, modulo 2^64."""
    weights = 1 << np.arange(SMALL_BITS, dtype=np.int64)
    weights[-1] *= -1
    return weights.view(np.uint64)


def _bits(integers: SmallIntegers) -> NDArray[np.uint8]:
    """Return the bits of all integers, those of an integer one after the other, the lowest first."""
    places = np.arange(SMALL_BITS, dtype=np.uint8)
    bits: NDArray[Any] = integers.view(np.uint8)[..., None] >> places & np.uint8(1)
    return bits.reshape(-1)
