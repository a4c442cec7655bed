"""The oblivious pseudorandom function of alignment by vector OLE, for large sets of ids.

P_1 is the active party with the ids X_1, and P_i a passive party. The pseudorandom function F_i has a key that only P_i
knows; P_1 learns F_i on its ids, and P_i does not see these ids (crypto/transfers/vole_prf.py). P_1 encodes its ids in
a key-value store P: an array of slots, from which a hash h(x) can be computed for every x in X_1. Addition and
multiplication are those of the field GF(2^128). A vector OLE (crypto/transfers/vole.py) gives pseudorandom vectors with
one entry per slot: P_1 gets a and c, P_i gets b and the number Delta, and c = b + a * Delta. It is generated in pieces
from 128 slow base transfers, with trees of pseudorandom blocks:

0. P_1 -> P_i  the offer of the base transfers
   P_i -> P_1  its 128 choices in them, which are the bits of Delta
1. P_1 -> P_i  the seed of the store P, and its choices ("rows") for every piece of the vector OLE
2. P_i -> P_1  sums over the trees of every piece
3. P_1 -> P_i  check sums of the trees
4. P_i -> P_1  digests that prove the trees to be correct
5. P_1 -> P_i  d = P + a, 16 bytes for each slot
   P_1         computes F_i on X_1 from c
   P_i         computes F_i on its ids from b, d and Delta

Comments refer to these steps by number. Everything that P_i sees looks uniform to it, under the assumptions of dual
LPN, computational Diffie-Hellman and a secure pseudorandom generator. P_1 learns F_i only on its ids; all other values
are pseudorandom to it (with hashes as random oracles and AES as an ideal cipher), whatever it sends. It can store more
ids than its stated number, but not more than about one per slot (docs/proof.md), and P_i records this larger number.
P_1 sends and receives 21 bytes per id and passive party.

An alignment that resumes after an interruption sends the same values again. For that, seeds, choices and P are in the
journal before any value that depends on them is sent, and received values are in the journal too. If a check of a peer
fails, the journal is deleted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial

import numpy as np

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, encode_context
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs, vole_prf
from securevfl.crypto.transfers.base_transfers import EDWARDS_POINT_BYTES, BaseSender, receive_keys
from securevfl.crypto.transfers.ot_extension import ROW_BASES, SECRET_BYTES, fresh_secret
from securevfl.crypto.transfers.vole import CHECK_DIGEST_BYTES, SUM_BYTES, VoleReceiver, VoleSender, VoleSenderPiece
from securevfl.crypto.transfers.vole_pieces import choice_bytes, split_outcomes
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.errors import CryptoError, ProtocolError
from securevfl.protocols import permits
from securevfl.protocols.alignment.psi_work import (
    ITEMS_PER_MESSAGE,
    AlignmentStart,
    AlignmentWork,
    check_count,
    check_size,
    chunk_rows,
    chunks,
    words,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class BaseOtOffer(Message, frozen=True):
    """The sender's offer of the base transfers (step 0): an Ed25519 point of 32 bytes."""

    public: bytes


class BaseOtChoices(Message, frozen=True):
    """The sender's 128 blinded choices in the base transfers (step 0): Ed25519 points of 32 bytes each."""

    points: bytes


class VoleRequest(DisclosingMessage, frozen=True):
    """The seed and the number of slots of P_1's store (step 1)."""

    seed: bytes
    slots: int


class VoleRows(Message, frozen=True):
    """P_1's blinded choices for a piece of the vector OLE (step 1): 16 bytes for each oblivious transfer."""

    rows: bytes


class VoleTrees(Message, frozen=True):
    """P_i's sums over the trees of a piece of the vector OLE (step 2)."""

    sums: bytes


class VoleSums(Message, frozen=True):
    """P_1's check sums (step 3), 16 bytes for each piece of the vector OLE."""

    sums: bytes


class VoleDigests(Message, frozen=True):
    """P_i's proofs that its trees are correct (step 4): a digest of 32 bytes for each piece, which P_1 compares."""

    digests: bytes


class MaskedStore(Message, frozen=True):
    """P_1's masked store d (step 5): up to 65,536 slots of 16 bytes each."""

    slots: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. P_1 is the active party, P_i a passive one."""
    return [
        MessageDeclaration(BaseOtOffer, "active", "passive", Reveal("public")),
        MessageDeclaration(BaseOtChoices, "passive", "active", Reveal("uniform")),
        MessageDeclaration(VoleRequest, "active", "passive", Reveal("plain", "the sender's number of rows")),
        MessageDeclaration(VoleRows, "active", "passive", Reveal("uniform")),
        MessageDeclaration(VoleTrees, "passive", "active", Reveal("uniform")),
        MessageDeclaration(VoleSums, "active", "passive", Reveal("uniform")),
        MessageDeclaration(VoleDigests, "passive", "active", Reveal("uniform")),
        MessageDeclaration(MaskedStore, "active", "passive", Reveal("uniform")),
    ]


def ready(work: AlignmentWork) -> bool:
    """Return whether P_1's journal contains the store and the seeds that it needs to resume an alignment."""
    streams = ["request", *(work.stream("pairs", passive) for passive in work.passives)]
    return all(work.journal.count(stream) for stream in streams)


def questions(rows: int) -> int:
    """Return about how many ids P_1 can ask about if it has stated `rows` rows: one id for each slot of its store."""
    return okvs.table_rows(rows)


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """Run the side of P_1, which sends only the messages that a passive party has not received yet.

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        done: for each passive party, the number of messages that it received before an interruption.

    Returns:
        A function that returns, for a passive party given by name, its F_i on P_1's ids as words (n, 4).
    """
    offerers = {
        passive: BaseSender() for passive in work.passives if not work.journal.count(work.stream("pairs", passive))
    }
    for passive, offerer in offerers.items():
        work.channel.send(passive, BaseOtOffer(offerer.offer))  # step 0
    hashing = PrfHash(_coin(work, "all"))
    if not work.journal.count("request"):
        seed, table = okvs.encode(work.keys, hashing.target(work.keys))
        work.journal.append("request", seed + table.tobytes())
    request = work.journal.chunk("request", 0)
    seed, store = request[: okvs.OKVS_SEED_BYTES], words(request[okvs.OKVS_SEED_BYTES :])
    pieces = split_outcomes(len(store))
    for passive, offerer in offerers.items():
        points = work.channel.recv(passive, BaseOtChoices).points  # step 0
        if len(points) != ROW_BASES * EDWARDS_POINT_BYTES:
            raise ProtocolError(
                f"{passive} sent {len(points)} bytes of choices for base transfers instead of "
                f"{ROW_BASES * EDWARDS_POINT_BYTES}",
                code="SVFL-PROTOCOL-SIZE",
                party=passive,
            )
        pairs = b"".join(first + second for first, second in offerer.pairs(points))
        choices = os.urandom(sum(map(choice_bytes, pieces)))
        work.journal.append(work.stream("pairs", passive), pairs + choices)
    work.expect(len(work.passives) * (len(store) + work.rows))
    answers = {}
    for passive in work.passives:
        check_count(passive, "messages", done[passive], 0, len(pieces) + 1 + chunks(len(store)))
        work.channel.send(
            passive, VoleRequest(seed, len(store)), permit=permits.permit_sizes(work.channel, passive)
        )  # step 1
        try:
            a, c = _receive_vole(work, passive, len(store), done[passive])
        except CryptoError:
            work.journal.clear()
            raise
        a ^= store
        for number in range(chunks(len(store))):
            if len(pieces) + 1 + number >= done[passive]:
                work.channel.send(
                    passive, MaskedStore(a[number * ITEMS_PER_MESSAGE : (number + 1) * ITEMS_PER_MESSAGE].tobytes())
                )  # step 5
            work.add_progress(chunk_rows(len(store), number))
        answers[passive] = vole_prf.evaluate_stored(hashing, seed, c, work.keys)
        work.add_progress(work.rows)
    return answers.__getitem__


def _receive_vole(work: AlignmentWork, passive: str, slots: int, done: int) -> tuple[Words, Words]:
    """Run the side of P_1 in the vector OLE with one passive party, and return a and c (slots, 2).

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        passive: name of the passive party P_i.
        slots: the number of entries of the vector OLE.
        done: the number of messages that the passive party received before an interruption.

    Returns:
        The vectors a and c.
    """
    secrets_, stream = work.journal.chunk(work.stream("pairs", passive), 0), work.stream("back", passive)
    keys, left = (
        _keys(secrets_[: 2 * ROW_BASES * SYMMETRIC_KEY_BYTES]),
        secrets_[2 * ROW_BASES * SYMMETRIC_KEY_BYTES :],
    )
    receiver, pieces = (
        VoleReceiver(list(zip(keys[::2], keys[1::2], strict=True)), _coin(work, passive)),
        split_outcomes(slots),
    )
    for number, size in enumerate(pieces):
        choices, left = left[: choice_bytes(size)], left[choice_bytes(size) :]
        rows = receiver.ask(number, size, choices)
        if number >= done:
            work.channel.send(passive, VoleRows(rows))  # step 1
    received = []
    for number, size in enumerate(pieces):
        if number >= work.journal.count(stream):
            work.journal.append(stream, work.channel.recv(passive, VoleTrees).sums)  # step 2
        received.append(receiver.take(number, size, work.journal.chunk(stream, number)))
    if done <= len(pieces):
        work.channel.send(passive, VoleSums(b"".join(piece.response for piece in received)))  # step 3
    if work.journal.count(stream) == len(pieces):
        work.journal.append(stream, work.channel.recv(passive, VoleDigests).digests)  # step 4
    confirmed = work.journal.chunk(stream, len(pieces))
    for number, piece in enumerate(received):
        piece.check(confirmed[CHECK_DIGEST_BYTES * number : CHECK_DIGEST_BYTES * (number + 1)])
    outcomes = [piece.outcome() for piece in received]
    return np.concatenate([a for a, _ in outcomes]), np.concatenate([c for _, c in outcomes])


def serve(work: AlignmentWork, begin: AlignmentStart) -> Callable[[], Words]:
    """Run the side of P_i, and return a function that computes F_i on P_i's ids as words (n, 4)."""
    slots = okvs.table_rows(begin.rows)
    work.expect(slots + work.rows)
    if not work.journal.count("chosen"):
        secret, bits = fresh_secret()
        points, seeds = receive_keys(work.channel.recv(work.active, BaseOtOffer).public, bits)  # step 0
        work.journal.append("chosen", secret + os.urandom(SYMMETRIC_KEY_BYTES) + b"".join(seeds))
        work.channel.send(work.active, BaseOtChoices(points))  # step 0
    request = work.channel.recv(work.active, VoleRequest)  # step 1
    if request.slots != slots or len(request.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{work.active} announced a key-value store of {request.slots} entries, but one for {begin.rows} ids has "
            f"{slots}",
            code="SVFL-PROTOCOL-SIZE",
            party=work.active,
        )
    chosen = work.journal.chunk("chosen", 0)
    secret, roots = chosen[:SECRET_BYTES], chosen[SECRET_BYTES : SECRET_BYTES + SYMMETRIC_KEY_BYTES]
    sender = VoleSender(secret, _keys(chosen[SECRET_BYTES + SYMMETRIC_KEY_BYTES :]), roots, _coin(work, work.me))
    try:
        pieces = _send_vole(work, sender, slots, begin.first)
    except CryptoError:
        work.journal.clear()
        raise
    for number in range(chunks(slots)):
        if len(pieces) + 1 + number >= work.journal.count("theirs"):
            masked = work.channel.recv(work.active, MaskedStore).slots  # step 5
            check_size(work.active, "slots", masked, okvs.VALUE_BYTES, number, slots)
            work.journal.append("theirs", masked)
        work.add_progress(chunk_rows(slots, number))
    return partial(_values, work, request.seed, sender, pieces)


def _send_vole(work: AlignmentWork, sender: VoleSender, slots: int, first: int) -> list[VoleSenderPiece]:
    """Run the side of P_i in the vector OLE with P_1.

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        sender: this party's side of the vector OLE.
        slots: the number of entries of the vector OLE.
        first: the number of messages that P_1 received before an interruption; they are not sent again.

    Returns:
        P_i's values b and Delta, piece by piece.
    """
    journal, channel, active = work.journal, work.channel, work.active
    sizes, pieces = split_outcomes(slots), list[VoleSenderPiece]()
    check_count(active, "messages", first, 0, len(sizes) + 1)
    for number, size in enumerate(sizes):
        fresh = number >= journal.count("theirs")
        rows = channel.recv(active, VoleRows).rows if fresh else journal.chunk("theirs", number)  # step 1
        sums, piece = sender.answer(number, size, rows)
        if fresh:
            journal.append("theirs", rows)
        if number >= first:
            channel.send(active, VoleTrees(sums))  # step 2
        pieces.append(piece)
    if len(sizes) >= journal.count("theirs"):
        check_sums = channel.recv(active, VoleSums).sums  # step 3
        if len(check_sums) != SUM_BYTES * len(sizes):
            raise ProtocolError(
                f"{active} sent {len(check_sums)} bytes of check sums instead of {SUM_BYTES * len(sizes)}",
                code="SVFL-PROTOCOL-SIZE",
                party=active,
            )
        journal.append("theirs", check_sums)
    check_sums = journal.chunk("theirs", len(sizes))
    digests = [piece.confirm(check_sums[SUM_BYTES * k : SUM_BYTES * (k + 1)]) for k, piece in enumerate(pieces)]
    if first <= len(sizes):
        channel.send(active, VoleDigests(b"".join(digests)))  # step 4
    return pieces


def _values(work: AlignmentWork, seed: bytes, sender: VoleSender, pieces: list[VoleSenderPiece]) -> Words:
    b = np.concatenate([piece.outcome() for piece in pieces])
    d = words(b"".join(work.journal.chunk("theirs", len(pieces) + 1 + k) for k in range(chunks(len(b)))))
    values = vole_prf.evaluate_any(PrfHash(_coin(work, "all")), seed, b, d, sender.times, work.keys)
    work.add_progress(work.rows)
    return values


def _coin(work: AlignmentWork, whose: str) -> bytes:
    """Return the public coin (32 bytes) for the vector OLE with the party `whose`; "all" for the hashes of the PRF."""
    return hashlib.sha256(encode_context("alignment by transfers", work.nonce, work.active, whose)).digest()


def _keys(raw: bytes) -> list[bytes]:
    return [raw[start : start + SYMMETRIC_KEY_BYTES] for start in range(0, len(raw), SYMMETRIC_KEY_BYTES)]
