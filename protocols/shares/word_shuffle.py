"""Shuffle of shared words: the active party A learns the words of all rows, but not which row a word belongs to.

A has x_A and its partner B has x_B, words modulo 2^k of every row. Rows are divided into blocks, and switches permute
each block separately (crypto/transfers/switch_network.py). B draws fresh permutations for each shuffle.

1. B -> A   corrections of an oblivious transfer 1-of-2 for each switch, with random choices chi (table_transfers.py)
2. B -> A   setting ^ chi, a bit for each switch
   A        draws a mask r for each word at the entrance. For a switch with masks a, b at its entrances, the pads p, q
   of
            the straight setting give the masks behind it: c = a - p, d = b - q. This determines the masks s at the exit
3. A -> B   for each switch b - c - p', a - d - q' with the pads p', q' of the crossed setting
4. A -> B   x_A - r
   B        passes x_A + x_B - r through its switches: a straight one adds p, q; a crossed one adds p', q' and step 3
5. B -> A   the words at the exit, pi(x_A + x_B) - s
   A        adds s

Steps 1 to 3 are preprocessing on random numbers and single-use; steps 4 and 5 are one round trip. B has one of two pads
of each switch, so the other masks, and everything that it receives, are uniform. A receives random bits and, in step 5,
the words in an order that is uniform to it. Nothing else is revealed if both follow the protocol. A party that deviates
may mark single rows by its words, so at most it learns the words with their rows.

The networks for oblivious permutation are those of Mohassel and Sadeghian 2013 (section 3).
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

MAX_SHUFFLED_BITS = 32
"""The largest k: a pad of 64 bits contains two words."""

_HALF = np.uint64(32)


class SwitchSettings(Message, frozen=True):
    """One bit for each switch, eight in a byte."""

    bits: bytes


class SwitchWords(Message, frozen=True):
    """Two words for each switch of a network, for its crossed setting."""

    words: bytes


class MaskedWords(Message, frozen=True):
    """The active party's masked words x_A - r."""

    words: bytes


class ShuffledWords(DisclosingMessage, frozen=True):
    """The masked words at the exit of the network."""

    words: bytes


def declares_shuffle(words: str) -> list[MessageDeclaration]:
    """Declare the disclosures of the messages. Roles: active, partner.

    Args:
        words: a description of the shuffled words.

    Returns:
        The declarations.
    """
    return [
        *table_transfers.declares(),
        MessageDeclaration(SwitchSettings, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(SwitchWords, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedWords, "active", "partner", Reveal("uniform")),
        MessageDeclaration(ShuffledWords, "partner", "active", Reveal("output", words)),
    ]


@dataclass(repr=False)
class Shuffle:
    """One holder's precomputed material for a shuffle. It is single-use.

    Attributes:
        ring: the ring of the words.
        network: the network of switches.
        entering: at the active party, the masks r (rows,).
        leaving: at the active party, the masks s (rows,).
        settings: at the partner, the settings of its switches (switches,).
        added: at the partner, what each switch adds to its two words (2, switches).
    """

    ring: ShareRing
    network: SwitchNetwork
    entering: Words | None = None
    leaving: Words | None = None
    settings: NDArray[np.uint8] | None = None
    added: Words | None = None
    _used: bool = field(default=False, init=False)

    def spend(self) -> None:
        """Mark the shuffle as used. Raises ProtocolError if it was used: two shuffles in one order relate rows."""
        if self._used:
            raise ProtocolError("this shuffle was used already", "prepare a new one", code="SVFL-PROTOCOL-REPEATED")
        self._used = True


def prepare_shuffle(
    context: PartyContext, peer: str, transfers: Transfers, rows: int, bits: int, *, blocks: int = 1
) -> Shuffle:
    """Run one holder's side of the preprocessing of a shuffle. Both holders call this at the same point.

    Args:
        context: this party's context.
        peer: the other holder.
        transfers: oblivious transfers 1-of-2.
        rows: the number of words of a block.
        bits: k, at most `MAX_SHUFFLED_BITS`.
        blocks: the number of blocks.

    Returns:
        The precomputed material.
    """
    ring, network = ShareRing(bits), switch_network(rows, blocks)
    (stored,) = transfers.generate([network.switches])  # 1
    if context.me == context.active:
        return _prepare_active(context, peer, ring, network, stored)
    chi, pad = np.frombuffer(stored[0], np.uint8), np.frombuffer(stored[1], "<u8").astype(np.uint64, copy=False)
    settings = network.settings(_orders(rows, blocks))
    packed = np.packbits(settings ^ chi, bitorder="little").tobytes()
    context.channel.send(peer, SwitchSettings(packed), context.subchannel)  # 2
    data = context.channel.recv(peer, SwitchWords, context.subchannel).words  # 3
    crossing = unpack_words(peer, data, ring, (2, network.switches)) * settings
    return Shuffle(ring, network, settings=settings, added=ring.reduce(_halves(pad) + crossing))


def run_shuffle(context: PartyContext, peer: str, shuffle: Shuffle, words: Words) -> Words | None:
    """Run one holder's side of a shuffle.

    Args:
        context: this party's context.
        peer: the other holder.
        shuffle: the precomputed material.
        words: this holder's words (rows,).

    Returns:
        At the active party the sums of both holders' words (rows,) in a hidden order; None at its partner.
    """
    shuffle.spend()
    ring, channel, subchannel = shuffle.ring, context.channel, context.subchannel
    if shuffle.settings is None or shuffle.added is None:
        assert shuffle.entering is not None, "the active party has masks"
        assert shuffle.leaving is not None, "the active party has masks"
        channel.send(peer, MaskedWords(ring.pack(ring.reduce(words - shuffle.entering))), subchannel)  # 4
        shuffled = unpack_words(peer, channel.recv(peer, ShuffledWords, subchannel).words, ring, words.shape)  # 5
        return ring.reduce(shuffled + shuffle.leaving)
    value = unpack_words(peer, channel.recv(peer, MaskedWords, subchannel).words, ring, words.shape) + words  # 4
    start = 0
    for first, second in shuffle.network.layers:
        layer = slice(start, start := start + len(first))
        crossed, (added_first, added_second) = shuffle.settings[layer].astype(bool), shuffle.added[:, layer]
        a, b = value[first], value[second]
        value[first] = np.where(crossed, b, a) + added_first
        value[second] = np.where(crossed, a, b) + added_second
    about = tuple(name for name in context.parties if name != peer)
    permit = channel.permit(DisclosureRecord(peer, "scores", words.size, ring.bits, about=about))
    channel.send(peer, ShuffledWords(ring.pack(ring.reduce(value))), subchannel, permit=permit)  # 5
    return None


def _prepare_active(
    context: PartyContext, peer: str, ring: ShareRing, network: SwitchNetwork, stored: tuple[bytes, ...]
) -> Shuffle:
    """Run the active party's side of steps 2 and 3."""
    sender, count = SenderBlock.restored(stored), network.switches
    data = context.channel.recv(peer, SwitchSettings, context.subchannel).bits  # 2
    size = -(-count // 8)
    if len(data) != size:
        raise ProtocolError(
            f"{peer} sent {len(data)} bytes of switch settings instead of {size}", code="SVFL-PROTOCOL-SIZE", party=peer
        )
    straight = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    pads = context.meter("transfer", lambda: sender.pads(0, count))
    switches = np.arange(count)
    behind, crossing = _halves(pads[straight, switches]), _halves(pads[1 - straight, switches])
    entering = ring.uniform(Prg.fresh("masks of a shuffle"), network.rows)
    mask, start = entering.copy(), 0
    for first, second in network.layers:
        layer = slice(start, start := start + len(first))
        a, b = mask[first], mask[second]
        c, d = a - behind[0, layer], b - behind[1, layer]
        crossing[:, layer] = b - c - crossing[0, layer], a - d - crossing[1, layer]
        mask[first], mask[second] = c, d
    context.channel.send(peer, SwitchWords(ring.pack(ring.reduce(crossing))), context.subchannel)  # 3
    return Shuffle(ring, network, entering=entering, leaving=ring.reduce(mask))


def _halves(pads: Words) -> Words:
    """Return the two words (2, switches) of each pad."""
    return np.stack([pads & np.uint64(2**32 - 1), pads >> _HALF])


def _orders(rows: int, blocks: int) -> NDArray[np.intp]:
    """Draw a fresh permutation of each block's rows, and return them concatenated."""
    drawn = Prg.fresh("order of a shuffle").array((blocks, rows), np.uint64)
    return (np.argsort(drawn, axis=1) + np.arange(blocks)[:, None] * rows).ravel()
