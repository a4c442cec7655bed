"""Shared words in a hidden order: the active party A learns the words of all rows, and of none which row it is of.

A has x_A, its partner B x_B, words modulo 2^k of every row; rows come in blocks, and each block is put in an order of
its own by switches (crypto/transfers/ot_extension.py). B draws the orders, for each shuffle anew.

1. B -> A   corrections of a transfer 1-of-2 for each switch, its choices chi random (table_transfers.py)
2. B -> A   setting ^ chi, a bit for each switch
   A        a mask r for each word as it enters. Of a switch with masks a, b at its entrances: its pads for the
   straight
            setting make the masks behind it, c = a - p, d = b - q, so that those as the words leave, s, follow
3. A -> B   for each switch b - c - p', a - d - q' with the pads p', q' for the crossed setting
4. A -> B   x_A - r
   B        x_A + x_B - r goes through its switches: + p, + q where one is straight, crossed + p' and + q' with 3
5. B -> A   the words as they leave, pi(x_A + x_B) - s
   A        + s

1 to 3 go ahead, on random numbers alone, and serve once; 4 and 5 are one round trip. Of each switch B has one pad of
two, so the other's masks, and all that comes to it, are uniform; what comes to A are random bits and, in 5, the words
in an order that is uniform to it: nothing else is told, if both follow the protocol. A party that does not may mark
single rows by the words that it puts in, so what it learns at most is the words with their rows.

The networks by which a permutation is switched obliviously are those of Mohassel and Sadeghian 2013 (section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers.ot_extension import SenderBlock
from securevfl.crypto.transfers.switch_network import SwitchNetwork, switch_network
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.share_products import unpack_words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MAX_WORD_BITS = 32  # of a word: a pad of 64 bits holds two

_HALF = np.uint64(32)


class SwitchSettings(Message, frozen=True):
    """A bit for each switch, eight to a byte."""

    bits: bytes


class SwitchWords(Message, frozen=True):
    """The message with two words for each switch of a network, for its crossed setting."""

    words: bytes


class MaskedWords(Message, frozen=True):
    """The message with the active party's words less its masks, x_A - r."""

    words: bytes


class ShuffledWords(DisclosingMessage, frozen=True):
    """The words as they leave, less their masks."""

    words: bytes


def declares_shuffle(told: str) -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner. told: what the words are."""
    return [
        *table_transfers.declares(),
        MessageDeclaration(SwitchSettings, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(SwitchWords, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedWords, "active", "partner", Reveal("uniform")),
        MessageDeclaration(ShuffledWords, "partner", "active", Reveal("output", told)),
    ]


@dataclass(repr=False)
class Shuffle:
    """What one holder has ready for a shuffle of `rows` words, k bits each. Serves once.

    entering, leaving: at the active party the masks r and s (rows,). settings (switches,), added (2 x switches): at the
    partner how its switches stand, and what each adds to the two words that leave it.
    """

    ring: ShareRing
    network: SwitchNetwork
    entering: Words | None = None
    leaving: Words | None = None
    settings: NDArray[np.uint8] | None = None
    added: Words | None = None
    _spent: bool = field(default=False, init=False)

    def spend(self) -> None:
        """Mark the shuffle as used. ProtocolError if it is already: two shuffles in one order compare rows."""
        if self._spent:
            raise ProtocolError("a shuffle that nobody has used was expected, this one was; make a new one")
        self._spent = True


def prepare_shuffle(
    context: PartyContext, peer: str, transfers: Transfers, rows: int, bits: int, *, blocks: int = 1
) -> Shuffle:
    """One holder's side of a shuffle to come, of blocks of so many rows; both call it at the same point.

    peer: the other holder. transfers: of two entries. bits: k, of a word, up to MOST_BITS.
    """
    ring, switched = ShareRing(bits), switch_network(rows, blocks)
    (stored,) = transfers.generate([switched.switches])  # 1
    if context.me == context.active:
        return _offered(context, peer, ring, switched, stored)
    chi, pad = np.frombuffer(stored[0], np.uint8), np.frombuffer(stored[1], "<u8").astype(np.uint64, copy=False)
    settings = switched.settings(_orders(rows, blocks))
    context.channel.send(
        peer, SwitchSettings(np.packbits(settings ^ chi, bitorder="little").tobytes()), context.subchannel
    )  # 2
    data = context.channel.recv(peer, SwitchWords, context.subchannel).words  # 3
    crossing = unpack_words(peer, data, ring, (2, switched.switches)) * settings
    return Shuffle(ring, switched, settings=settings, added=ring.reduce(_halves(pad) + crossing))


def run_shuffle(context: PartyContext, peer: str, shuffle: Shuffle, own: Words) -> Words | None:
    """Shuffle both holders' words: return their sums (rows,) in a hidden order at the active party, None at its
    partner.

    own: this holder's words (rows,). ProtocolError if the shuffle has been used, or words of another number come.
    """
    shuffle.spend()
    ring, channel = shuffle.ring, context.channel
    if shuffle.settings is None or shuffle.added is None:
        assert shuffle.entering is not None and shuffle.leaving is not None, "it is the active party's"  # noqa: PT018
        channel.send(peer, MaskedWords(ring.pack(ring.reduce(own - shuffle.entering))), context.subchannel)  # 4
        left = unpack_words(peer, channel.recv(peer, ShuffledWords, context.subchannel).words, ring, own.shape)  # 5
        return ring.reduce(left + shuffle.leaving)
    value = unpack_words(peer, channel.recv(peer, MaskedWords, context.subchannel).words, ring, own.shape) + own  # 4
    start = 0
    for first, second in shuffle.network.layers:
        at = slice(start, start := start + len(first))
        crossed, (one, other) = shuffle.settings[at].astype(bool), shuffle.added[:, at]
        a, b = value[first], value[second]
        value[first], value[second] = np.where(crossed, b, a) + one, np.where(crossed, a, b) + other
    about = tuple(name for name in context.parties if name != peer)
    permit = channel.permit(DisclosureRecord(peer, "scores", own.size, ring.bits, about=about))
    channel.send(peer, ShuffledWords(ring.pack(ring.reduce(value))), context.subchannel, permit=permit)  # 5
    return None


def _offered(
    context: PartyContext, peer: str, ring: ShareRing, switched: SwitchNetwork, stored: tuple[bytes, ...]
) -> Shuffle:
    """Run the active party's side of steps 2 and 3."""
    offered, count = SenderBlock.restored(stored), switched.switches
    data = context.channel.recv(peer, SwitchSettings, context.subchannel).bits  # 2
    if len(data) != -(-count // 8):
        raise ProtocolError(
            f"{peer}: {count} settings were expected, {len(data)} bytes came; do both run the same job?"
        )
    straight = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    pads = context.meter("transfer", lambda: offered.pads(0, count))
    places = np.arange(count)
    behind, crossing = _halves(pads[straight, places]), _halves(pads[1 - straight, places])
    entering = ring.uniform(Prg.fresh("masks of a shuffle"), switched.rows)
    mask, start = entering.copy(), 0
    for first, second in switched.layers:
        at = slice(start, start := start + len(first))
        a, b = mask[first], mask[second]
        c, d = a - behind[0, at], b - behind[1, at]
        crossing[:, at] = b - c - crossing[0, at], a - d - crossing[1, at]
        mask[first], mask[second] = c, d
    context.channel.send(peer, SwitchWords(ring.pack(ring.reduce(crossing))), context.subchannel)  # 3
    return Shuffle(ring, switched, entering=entering, leaving=ring.reduce(mask))


def _halves(pads: Words) -> Words:
    """Two words (2 x switches) of each pad."""
    return np.stack([pads & np.uint64(2**32 - 1), pads >> _HALF])


def _orders(rows: int, blocks: int) -> NDArray[np.intp]:
    """Draw a fresh order of each block's rows, behind each other."""
    drawn = Prg.fresh("order of a shuffle").array((blocks, rows), np.uint64)
    return (np.argsort(drawn, axis=1) + np.arange(blocks)[:, None] * rows).ravel()
