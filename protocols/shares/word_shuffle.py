"""Shuffle of secret-shared words: the active party A learns the words of all rows, but not which row a word belongs to.

A word is an integer modulo 2^k. For every row, A has a word x_A and its partner B has a word x_B; A shall learn the
sums x_A + x_B in a random order. Rows are divided into blocks, and each block is permuted separately by a network of
switches (crypto/transfers/switch_network.py). A switch has two entrances and two exits, and either passes its two words
straight on or crosses them. B draws fresh permutations pi for each shuffle, and sets its switches accordingly. A masks
all words with random numbers that change at every switch, so that B cannot read them:

1. B -> A   an oblivious transfer for each switch (table_transfers.py): A gets a pair of random pads for either setting;
            B gets a random bit chi and the pair with this number
2. B -> A   setting ^ chi, one bit for each switch
   A        draws a mask r for each word that enters the network. At a switch with the masks a, b at its entrances, the
            masks at its exits are c = a - p, d = b - q; p, q are the pads of the straight setting. So r and the pads
            determine the masks s of the words that leave the network
3. A -> B   for each switch: b - c - p', a - d - q', with the pads p', q' of the crossed setting
4. A -> B   x_A - r
   B        passes x_A + x_B - r through its switches. A straight switch adds p, q to its words; a crossed one adds p',
            q' and the two numbers of step 3
5. B -> A   the words that leave the network, which are pi(x_A + x_B) - s
   A        adds s

Comments refer to these steps by number. Steps 1 to 3 use random numbers only; they are precomputed, and their results
are single-use. Steps 4 and 5 are one round trip. B knows just one of the two pairs of pads of each switch, so
everything that it receives is uniform to it. A receives random bits and, in step 5, the words in an order that is
uniformly random to it. Nothing else is revealed if both follow the protocol. A party that deviates may put recognizable
words into single rows, and so learn at most which word belongs to which row.

The networks for oblivious permutation are those of Mohassel and Sadeghian 2013 (section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers.field_transfers import SenderBlock
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
"""The largest number of bits k of a word: an oblivious transfer gives pads of 64 bits, and a switch needs two words."""

MAX_SWITCHES_OF_A_PART = 1 << 17
"""The largest part of a network whose oblivious transfers are stored together; `Transfers.generate` groups parts."""

_HALF = np.uint64(32)


class SwitchSettings(Message, frozen=True):
    """The bits of step 2, one for each switch, eight in a byte."""

    bits: bytes


class SwitchWords(Message, frozen=True):
    """The two words for each switch of step 3, which B adds if the switch is crossed."""

    words: bytes


class MaskedWords(Message, frozen=True):
    """The active party's masked words x_A - r of step 4."""

    words: bytes


class ShuffledWords(DisclosingMessage, frozen=True):
    """The masked words that leave the network, in the order of step 5."""

    words: bytes


def declares_shuffle(words: str) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner.

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
    """One party's precomputed material for a shuffle. It is single-use.

    Attributes:
        ring: the integers modulo 2^k.
        network: the network of switches.
        entering: at the active party, the masks r (rows,) of the words that enter the network.
        leaving: at the active party, the masks s (rows,) of the words that leave it.
        settings: at the partner, the setting of each switch (switches,): 1 if it is crossed.
        added: at the partner, the numbers that each switch adds to its two words (2, switches).
    """

    ring: ShareRing
    network: SwitchNetwork
    entering: Words | None = None
    leaving: Words | None = None
    settings: NDArray[np.uint8] | None = None
    added: Words | None = None
    _used: bool = field(default=False, init=False)

    def spend(self) -> None:
        """Mark the material as used.

        Raises:
            ProtocolError: it was used before. Two shuffles in the same order would show which words belong to one row.
        """
        if self._used:
            raise ProtocolError(
                "the random order of this shuffle was used already",
                "prepare a new shuffle",
                code="SVFL-PROTOCOL-REPEATED",
            )
        self._used = True


def prepare_shuffle(
    context: PartyContext, peer: str, transfers: Transfers, rows: int, bits: int, *, blocks: int = 1
) -> Shuffle:
    """Precompute a shuffle with the other party: steps 1 to 3. Both parties must call this at the same point.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        peer: name of the partner at the active party, and of the active party at the partner.
        transfers: oblivious transfers of one of two pads.
        rows: the number of rows of a block.
        bits: the number of bits k of a word, at most `MAX_SHUFFLED_BITS`.
        blocks: the number of blocks.

    Returns:
        The precomputed material.
    """
    ring, network = ShareRing(bits), switch_network(rows, blocks)
    stored = list(transfers.generate(parts_of_switches(network.switches)))  # step 1
    if context.me == context.active:
        return _prepare_active(context, peer, ring, network, stored)
    chi = np.frombuffer(b"".join(choices for choices, _ in stored), np.uint8)
    pad = np.frombuffer(b"".join(pads for _, pads in stored), "<u8").astype(np.uint64, copy=False)
    settings = network.settings(_orders(rows, blocks))
    packed = np.packbits(settings ^ chi, bitorder="little").tobytes()
    context.channel.send(peer, SwitchSettings(packed), context.subchannel)  # step 2
    data = context.channel.recv(peer, SwitchWords, context.subchannel).words  # step 3
    crossing = unpack_words(peer, data, ring, (2, network.switches)) * settings
    return Shuffle(ring, network, settings=settings, added=ring.reduce(_halves(pad) + crossing))


def parts_of_switches(switches: int) -> list[int]:
    """Divide the switches of a network into parts, so that no extension of oblivious transfers has too many rows.

    Args:
        switches: the number of switches, at least 1.

    Returns:
        The number of switches of each part, from 1 to `MAX_SWITCHES_OF_A_PART`.
    """
    starts = range(0, switches, MAX_SWITCHES_OF_A_PART)
    return [min(MAX_SWITCHES_OF_A_PART, switches - start) for start in starts]


def multiset_bits(rows: int, bits: int) -> int:
    """Return how many bits about other parties' columns a shuffle of `rows` words of `bits` bits discloses at most.

    The active party learns the multiset of the words, in an order that is independent of it. Whatever it adds to the
    words, there are at most C(n + W - 1, W - 1) multisets of n words out of W, which is at most W^n
    (docs/proof.md#shuffled-words).

    Args:
        rows: the number n of words.
        bits: the bits of a word; W = 2^bits.

    Returns:
        The binary logarithm of the number of multisets, rounded up.
    """
    multisets = math.comb(rows + 2**bits - 1, rows)
    return (multisets - 1).bit_length()


def run_shuffle(context: PartyContext, peer: str, shuffle: Shuffle, words: Words) -> Words | None:
    """Shuffle this party's words with the other party: steps 4 and 5.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        peer: name of the partner at the active party, and of the active party at the partner.
        shuffle: an unused shuffle that `prepare_shuffle` has returned.
        words: this party's words (rows,), x_A or x_B.

    Returns:
        At the active party, the sums x_A + x_B (rows,) in an order that it does not know; None at its partner.
    """
    shuffle.spend()
    ring, channel, subchannel = shuffle.ring, context.channel, context.subchannel
    if shuffle.settings is None or shuffle.added is None:
        assert shuffle.entering is not None, "the active party has masks"
        assert shuffle.leaving is not None, "the active party has masks"
        channel.send(peer, MaskedWords(ring.pack(ring.reduce(words - shuffle.entering))), subchannel)  # step 4
        shuffled = unpack_words(peer, channel.recv(peer, ShuffledWords, subchannel).words, ring, words.shape)  # step 5
        return ring.reduce(shuffled + shuffle.leaving)
    value = unpack_words(peer, channel.recv(peer, MaskedWords, subchannel).words, ring, words.shape) + words  # step 4
    start = 0
    for first, second in shuffle.network.layers:
        layer = slice(start, start := start + len(first))
        crossed, (added_first, added_second) = shuffle.settings[layer].astype(bool), shuffle.added[:, layer]
        a, b = value[first], value[second]
        value[first] = np.where(crossed, b, a) + added_first
        value[second] = np.where(crossed, a, b) + added_second
    packed = ring.pack(ring.reduce(value))
    bits = sum(multiset_bits(rows, ring.bits) for rows in shuffle.network.sizes)
    record = DisclosureRecord(
        peer, "columns", bits, 1, about=context.without_labels, group="evaluations", max_bytes=len(packed)
    )
    channel.send(peer, ShuffledWords(packed), subchannel, permit=channel.permit(record))  # step 5
    return None


def _prepare_active(
    context: PartyContext, peer: str, ring: ShareRing, network: SwitchNetwork, stored: list[tuple[bytes, ...]]
) -> Shuffle:
    """Run the active party's side of steps 2 and 3, and return its precomputed material."""
    count = network.switches
    data = context.channel.recv(peer, SwitchSettings, context.subchannel).bits  # step 2
    size = -(-count // 8)
    if len(data) != size:
        raise ProtocolError(
            f"{peer} sent {len(data)} bytes of settings of the switches instead of {size}",
            code="SVFL-PROTOCOL-SIZE",
            party=peer,
        )
    straight = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    pads = context.meter("transfer", lambda: np.hstack([SenderBlock.restored(part).pads() for part in stored]))
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
    context.channel.send(peer, SwitchWords(ring.pack(ring.reduce(crossing))), context.subchannel)  # step 3
    return Shuffle(ring, network, entering=entering, leaving=ring.reduce(mask))


def _halves(pads: Words) -> Words:
    """Split each pad of 64 bits into two words (2, switches)."""
    return np.stack([pads & np.uint64(2**32 - 1), pads >> _HALF])


def _orders(rows: int, blocks: int) -> NDArray[np.intp]:
    """Draw a random permutation of each block's rows, and return all permutations concatenated (rows * blocks,)."""
    drawn = Prg.fresh("order of a shuffle").array((blocks, rows), np.uint64)
    return (np.argsort(drawn, axis=1) + np.arange(blocks)[:, None] * rows).ravel()
