"""Oblivious transfers of a training on shares, precomputed: random pads with which tables can be read in secret.

The active party has a table of 2^b entries for each row, and its partner shall read one entry without revealing which
one. For each row, the transfer gives the active party 2^b random numbers, the pads, and gives the partner a random
index chi below 2^b ("choice") and the pad with this index. Later the active party sends its table masked by the pads,
rotated as the partner requests (iteration.py). Transfers of one or more iterations are extended from 129 slow *base
transfers*, by fast symmetric cryptography (crypto/transfers/field_transfers.py):

0. partner -> active   the offer of the base transfers                                           once a session
   active -> partner   its 129 choices
   partner -> active   sums of trees, with a consistency check (crypto/transfers/punctured_seeds.py)
   both                compute the seeds: 43 blocks of 8. The partner has all of them. The active party lacks one seed
                       of each block; which one is its secret, and follows from its choices. From these seeds both
                       derive others for each subchannel and purpose
1. partner -> active   correction bits for the rows of some iterations, and a consistency check: with the other
                       preprocessing, or during the training (delayed_transfers.py)
   active              can compute all 2^b pads of each row; it does so when the iteration begins
   partner             chi and pad(chi) of each row

Comments refer to these steps by number. In the extension the active party is the sender; in the base transfers it is
the receiver. Both receive uniform bits only.

All transfers of a session have this direction, so one set of base transfers suffices for all its subchannels and
purposes. The active party's secret is the same for all of them, and the derived seeds differ. A partner that deviates
can guess some bits of this secret in a consistency check, and a wrong guess ends the session. Using the same base
transfers for several purposes therefore gives it no more successful guesses than using them for one purpose as often.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_keys
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers import base_transfers, punctured_seeds
from securevfl.crypto.transfers.correlated_transfers import CorrelatedReceiver, CorrelatedSender
from securevfl.crypto.transfers.field_transfers import SenderBlock, TransferReceiver, TransferSender
from securevfl.crypto.transfers.punctured_seeds import TREE_BASES, Leaves
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.codec import Message

# choice bits that are extended at once, to limit memory: those of 2^17 rows with 64 entries each
_CHOICE_BITS_PER_EXTENSION = 6 << 17


class TransferOffer(Message, frozen=True):
    """The partner's offer of the base transfers: an Ed25519 point of 32 bytes."""

    public: bytes


class TransferChoices(Message, frozen=True):
    """The active party's blinded choices in the base transfers: 129 Ed25519 points of 32 bytes each."""

    points: bytes


class SeedTrees(Message, frozen=True):
    """The partner's sums of trees, from which the active party computes its seeds, and the consistency check."""

    sums: bytes


class TransferCorrections(Message, frozen=True):
    """The partner's correction bits for the rows of some iterations, followed by the consistency check."""

    columns: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message of the transfers. Roles: active, partner."""
    return [
        MessageDeclaration(TransferOffer, "partner", "active", Reveal("public")),
        MessageDeclaration(TransferChoices, "active", "partner", Reveal("uniform"), structured=True),
        MessageDeclaration(SeedTrees, "partner", "active", Reveal("uniform")),
        MessageDeclaration(TransferCorrections, "partner", "active", Reveal("uniform")),
    ]


class BaseTransfers(Secret):
    """One party's side of the base transfers. Nothing is sent before `establish`.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        peer: the other one of active party and partner.
        reverse: whether the partner is the sender of the transfers, in place of the active party. The two then
            exchange their parts in all steps.
    """

    __slots__ = ("_context", "_peer", "_secret", "_seeds", "_sends")

    def __init__(self, context: PartyContext, peer: str, *, reverse: bool = False) -> None:
        self._context, self._peer = context, peer
        self._sends = (context.me == context.active) != reverse
        self._secret = b""
        self._seeds: list[Leaves] = []

    def establish(self) -> None:
        """Run the base transfers; a second call does nothing. Both parties must call this at the same point.

        Raises:
            CryptoError: the peer sent an invalid point, or trees that fail the check.
            ProtocolError: the peer sent another number of points.
        """
        context, channel, peer = self._context, self._context.channel, self._peer
        if self._seeds:
            return
        if self._sends:
            self._secret, choices = punctured_seeds.fresh_secret()
            offer = channel.recv(peer, TransferOffer, context.subchannel).public  # step 0
            points, keys = context.meter("transfer", partial(base_transfers.receive_keys, offer, choices))
            channel.send(peer, TransferChoices(points), context.subchannel)  # step 0
            sums = channel.recv(peer, SeedTrees, context.subchannel).sums  # step 0
            bound = hashlib.sha256(offer + points).digest()
            self._seeds = context.meter("transfer", lambda: punctured_seeds.puncture(self._secret, keys, bound, sums))
            return
        sender = context.meter("transfer", base_transfers.BaseSender)
        channel.send(peer, TransferOffer(sender.offer), context.subchannel)  # step 0
        points = channel.recv(peer, TransferChoices, context.subchannel).points  # step 0
        size = TREE_BASES * base_transfers.EDWARDS_POINT_BYTES
        if len(points) != size:
            raise ProtocolError(
                f"{peer} sent {len(points)} bytes of base transfer choices instead of {size}",
                code="SVFL-PROTOCOL-SIZE",
                party=peer,
            )
        bound = hashlib.sha256(sender.offer + points).digest()
        sums, self._seeds = context.meter("transfer", lambda: punctured_seeds.grow(sender.pairs(points), bound))
        channel.send(peer, SeedTrees(sums), context.subchannel)  # step 0

    def transfers(self, context: PartyContext, purpose: str, coin: bytes, bits: int, pad_octets: int = 8) -> Transfers:
        """Return this party's side of the transfers for one subchannel and purpose.

        Args:
            context: the context of the session, with its subchannel.
            purpose: a name for the tables, such as "tables"; seeds are derived from it.
            coin: 32 bytes that both parties have, for this subchannel and purpose only.
            bits: the number b; every transfer selects one of 2^b pads.
            pad_octets: the length of a pad in bytes: 1, 2 or 8.

        Returns:
            The transfers.
        """
        seeds = self._derived(context, purpose)
        if self._sends:
            sender = TransferSender(self._secret, seeds, coin, bits, pad_octets)
            return ActiveTransfers(context, self._peer, sender)
        return PartnerTransfers(context, self._peer, TransferReceiver(seeds, coin, bits, pad_octets))

    def correlated(
        self, context: PartyContext, purpose: str, coin: bytes, ring: ShareRing, count: int
    ) -> CorrelatedSender | CorrelatedReceiver:
        """Return this party's side of correlated transfers for one subchannel and purpose.

        Args:
            context: the context of the session, with its subchannel.
            purpose: a name for the transfers; seeds are derived from it.
            coin: 32 bytes that both parties have, for this subchannel and purpose only.
            ring: the integers modulo 2^L.
            count: the number of words of each transfer.

        Returns:
            The sender or the receiver of the transfers.
        """
        seeds = self._derived(context, purpose)
        if self._sends:
            return CorrelatedSender(self._secret, seeds, coin, ring, count)
        return CorrelatedReceiver(seeds, coin, ring, count)

    def _derived(self, context: PartyContext, purpose: str) -> list[Leaves]:
        """Establish the base transfers; return the seeds for one subchannel and purpose."""
        self.establish()
        derive = partial(derived_seeds, subchannel=context.subchannel, purpose=purpose)
        return [punctured_seeds.map_known(block, derive, b"") for block in self._seeds]


def derived_seeds(seeds: Iterable[bytes], subchannel: str, purpose: str) -> list[bytes]:
    """Return the seeds (32 bytes) for one subchannel and purpose, derived from seeds of the session.

    If two purposes used the same seed, the active party would learn for which rows their random choices differ.
    """
    return derive_keys(seeds, "transfers", subchannel, purpose)


class Transfers(ABC):
    """One party's side of the oblivious transfers that select table entries.

    Attributes:
        bits: the number b; a transfer selects one of 2^b pads.
    """

    bits: int

    def generate(self, rows: Sequence[int]) -> Iterator[tuple[bytes, ...]]:
        """Generate the transfers of several iterations together with the other party.

        Args:
            rows: the number of rows of each iteration.

        Yields:
            For each iteration, the values that this party stores: the input of `pads` or `chosen`.
        """
        for group in grouped(rows, self.bits):
            yield from self.begin(group)()

    @abstractmethod
    def begin(self, rows: Sequence[int]) -> Callable[[], list[tuple[bytes, ...]]]:
        """Send or receive the message about some iterations or blocks.

        Args:
            rows: the number of rows of each.

        Returns:
            A function that computes, for each of them, the values that this party stores. It may be called later; the
            functions of several calls must be called in order.
        """


class ActiveTransfers(Transfers):
    """The active party's side, the sender of the transfers.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        peer: name of the partner, which receives the transfers.
        sender: the object that generates the sender's pads.
    """

    def __init__(self, context: PartyContext, peer: str, sender: TransferSender) -> None:
        self._context, self._peer, self._sender, self.bits = context, peer, sender, sender.bits

    def begin(self, rows: Sequence[int]) -> Callable[[], list[tuple[bytes, ...]]]:
        """Receive the partner's corrections; see `Transfers.begin`."""
        # step 1
        columns = self._context.channel.recv(self._peer, TransferCorrections, self._context.subchannel).columns

        def compute() -> list[tuple[bytes, ...]]:
            block = self._context.meter("transfer", partial(self._sender.extend, sum(rows), columns))
            return [block.stored(start, stop) for start, stop in pairwise(accumulate(rows, initial=0))]

        return compute


class PartnerTransfers(Transfers):
    """The partner's side, the receiver of the transfers.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        peer: name of the active party, which sends the transfers.
        receiver: the object that generates the receiver's choices and pads.
    """

    def __init__(self, context: PartyContext, peer: str, receiver: TransferReceiver) -> None:
        self._context, self._peer, self._receiver, self.bits = context, peer, receiver, receiver.bits

    def begin(self, rows: Sequence[int]) -> Callable[[], list[tuple[bytes, ...]]]:
        """Compute the partner's side, and send its corrections; see `Transfers.begin`."""
        columns, block = self._context.meter("transfer", partial(self._receiver.extend, sum(rows)))
        self._context.channel.send(self._peer, TransferCorrections(columns), self._context.subchannel)  # step 1
        octets = block.pads.astype(block.pads.dtype.newbyteorder("<"), copy=False)
        parts = [slice(start, stop) for start, stop in pairwise(accumulate(rows, initial=0))]
        return lambda: [(block.choices[part].tobytes(), octets[part].tobytes()) for part in parts]


def pads(stored: tuple[bytes, ...], ring: ShareRing) -> Words:
    """Return all pads (2^b, rows) of an iteration, of 8 bytes, from the values that the active party has stored."""
    words: Words = short_pads(stored)
    words &= ring.mask
    return words


def short_pads(stored: tuple[bytes, ...]) -> NDArray[Any]:
    """Return all pads (2^b, rows) of an iteration as unsigned integers of a pad's length, from the stored values."""
    return SenderBlock.restored(stored).pads()


def chosen(stored: tuple[bytes, ...], ring: ShareRing) -> tuple[NDArray[np.uint8], Words]:
    """Return chi and pad(chi) (rows,) of an iteration from the values that the partner has stored."""
    choices, pads_read = stored
    octets = len(pads_read) // len(choices)
    words = np.frombuffer(pads_read, f"<u{octets}").astype(np.uint64, copy=False)
    return np.frombuffer(choices, np.uint8), ring.reduce(words)


def grouped(rows: Sequence[int], bits: int) -> Iterator[list[int]]:
    """Divide iterations, given by their numbers of rows, into groups whose transfers are generated at once."""
    group: list[int] = []
    for count in rows:
        if group and (sum(group) + count) * bits > _CHOICE_BITS_PER_EXTENSION:
            yield group
            group = []
        group.append(count)
    if group:
        yield group
