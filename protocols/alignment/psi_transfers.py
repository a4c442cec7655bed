"""The oblivious PRF of alignment by vector OLE (crypto/transfers/vole.py), for all but small sets.

P_1 is the evaluator and the VOLE receiver, P_i holds F_i and is the VOLE sender; a, b, c, d, Delta and P are those of
crypto/transfers/vole.py.

0. P_1 -> P_i  the offer of the base transfers;  P_i -> P_1  128 choices, the bits of Delta
1. P_1 -> P_i  the seed of P, a store of x -> h(x) for x in X_1;  the rows of a vector OLE with one entry per slot
2. P_i -> P_1  its trees        3. P_1 -> P_i  check sums of the trees        4. P_i -> P_1  digests that confirm them
5. P_1 -> P_i  d = P + a, 16 bytes for each slot of the store
   P_1         F_i on X_1                    P_i   F_i on its ids

P_i sees uniform blocks under dual LPN, computational Diffie-Hellman and the PRG. P_1 learns F_i only on its ids; all
other values are pseudorandom to it (hashes as random oracles, AES as an ideal cipher), whatever it sends. It can store
more ids than its stated number, about one per slot at most (docs/proof.md), and P_i records this number. An id costs
P_1 21 bytes per passive party.

An alignment that resumes after an interruption sends the same values. Seeds, choices and P are in the journal before
any value that depends on them is sent, and received values are in the journal too. If a check of a peer fails, the
journal is deleted.
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
from securevfl.crypto.transfers.ot_extension import BASE_TRANSFERS, SECRET_BYTES, fresh_secret
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
    """The sender's point of the base transfers: 32 bytes, Ed25519."""

    public: bytes


class BaseOtChoices(Message, frozen=True):
    """The receiver's points of the base transfers: 128 points of 32 bytes, Ed25519."""

    points: bytes


class VoleRequest(DisclosingMessage, frozen=True):
    """The seed and the size of P_1's store; the rows of the vector OLE and d follow."""

    seed: bytes
    slots: int


class VoleRows(Message, frozen=True):
    """The receiver's rows of a piece of the vector OLE: 16 bytes for each of its transfers."""

    rows: bytes


class VoleTrees(Message, frozen=True):
    """The sums of the trees of a piece."""

    sums: bytes


class VoleSums(Message, frozen=True):
    """A masked sum over the noise of each piece, 16 bytes per piece."""

    sums: bytes


class VoleDigests(Message, frozen=True):
    """A digest of 32 bytes for each piece, which P_1 can compute as well."""

    digests: bytes


class MaskedStore(Message, frozen=True):
    """d for up to 65,536 slots, 16 bytes each."""

    slots: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages of this PRF reveal."""
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
    """Return whether P_1's journal is complete enough to resume the alignment with every P_i."""
    streams = ["request", *(work.stream("pairs", passive) for passive in work.passives)]
    return all(work.journal.count(stream) for stream in streams)


def questions(rows: int) -> int:
    """Return the number of ids that a party with this number of rows can ask about: one per slot of its store."""
    return okvs.table_rows(rows)


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """Run P_1: send what each P_i has not received; return a function from P_i to F_i on P_1's ids (n, 4)."""
    offerers = {
        passive: BaseSender() for passive in work.passives if not work.journal.count(work.stream("pairs", passive))
    }
    for passive, offerer in offerers.items():
        work.channel.send(passive, BaseOtOffer(offerer.offer))  # 0
    hashing = PrfHash(_coin(work, "all"))
    if not work.journal.count("request"):
        seed, table = okvs.encode(work.keys, hashing.target(work.keys))
        work.journal.append("request", seed + table.tobytes())
    request = work.journal.chunk("request", 0)
    seed, store = request[: okvs.OKVS_SEED_BYTES], words(request[okvs.OKVS_SEED_BYTES :])
    pieces = split_outcomes(len(store))
    for passive, offerer in offerers.items():
        points = work.channel.recv(passive, BaseOtChoices).points  # 0
        if len(points) != BASE_TRANSFERS * EDWARDS_POINT_BYTES:
            raise ProtocolError(
                f"{passive} sent choices of {len(points)} bytes, expected {BASE_TRANSFERS * EDWARDS_POINT_BYTES}",
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
        )  # 1
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
                )  # 5
            work.add_progress(chunk_rows(len(store), number))
        answers[passive] = vole_prf.evaluate_stored(hashing, seed, c, work.keys)
        work.add_progress(work.rows)
    return answers.__getitem__


def _receive_vole(work: AlignmentWork, passive: str, slots: int, done: int) -> tuple[Words, Words]:
    """Run P_1 of the vector OLE with one P_i; return a and c."""
    secrets_, stream = work.journal.chunk(work.stream("pairs", passive), 0), work.stream("back", passive)
    keys, left = (
        _keys(secrets_[: 2 * BASE_TRANSFERS * SYMMETRIC_KEY_BYTES]),
        secrets_[2 * BASE_TRANSFERS * SYMMETRIC_KEY_BYTES :],
    )
    receiver, pieces = (
        VoleReceiver(list(zip(keys[::2], keys[1::2], strict=True)), _coin(work, passive)),
        split_outcomes(slots),
    )
    for number, size in enumerate(pieces):
        choices, left = left[: choice_bytes(size)], left[choice_bytes(size) :]
        rows = receiver.ask(number, size, choices)
        if number >= done:
            work.channel.send(passive, VoleRows(rows))  # 1
    received = []
    for number, size in enumerate(pieces):
        if number >= work.journal.count(stream):
            work.journal.append(stream, work.channel.recv(passive, VoleTrees).sums)  # 2
        received.append(receiver.take(number, size, work.journal.chunk(stream, number)))
    if done <= len(pieces):
        work.channel.send(passive, VoleSums(b"".join(piece.response for piece in received)))  # 3
    if work.journal.count(stream) == len(pieces):
        work.journal.append(stream, work.channel.recv(passive, VoleDigests).digests)  # 4
    confirmed = work.journal.chunk(stream, len(pieces))
    for number, piece in enumerate(received):
        piece.check(confirmed[CHECK_DIGEST_BYTES * number : CHECK_DIGEST_BYTES * (number + 1)])
    outcomes = [piece.outcome() for piece in received]
    return np.concatenate([a for a, _ in outcomes]), np.concatenate([c for _, c in outcomes])


def serve(work: AlignmentWork, begin: AlignmentStart) -> Callable[[], Words]:
    """Run P_i: receive P_1's request; return a function that computes F_i on P_i's ids (n, 4)."""
    slots = okvs.table_rows(begin.rows)
    work.expect(slots + work.rows)
    if not work.journal.count("chosen"):
        secret, bits = fresh_secret()
        points, seeds = receive_keys(work.channel.recv(work.active, BaseOtOffer).public, bits)  # 0
        work.journal.append("chosen", secret + os.urandom(SYMMETRIC_KEY_BYTES) + b"".join(seeds))
        work.channel.send(work.active, BaseOtChoices(points))  # 0
    request = work.channel.recv(work.active, VoleRequest)  # 1
    if request.slots != slots or len(request.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{work.active} announced a store of {request.slots} slots, its {begin.rows} rows need {slots}",
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
            masked = work.channel.recv(work.active, MaskedStore).slots  # 5
            check_size(work.active, "slots", masked, okvs.VALUE_BYTES, number, slots)
            work.journal.append("theirs", masked)
        work.add_progress(chunk_rows(slots, number))
    return partial(_values, work, request.seed, sender, pieces)


def _send_vole(work: AlignmentWork, sender: VoleSender, slots: int, first: int) -> list[VoleSenderPiece]:
    """Run P_i of the vector OLE with P_1, which has received `first` messages of it; return its pieces."""
    journal, channel, active = work.journal, work.channel, work.active
    sizes, pieces = split_outcomes(slots), list[VoleSenderPiece]()
    check_count(active, "messages", first, 0, len(sizes) + 1)
    for number, size in enumerate(sizes):
        fresh = number >= journal.count("theirs")
        rows = channel.recv(active, VoleRows).rows if fresh else journal.chunk("theirs", number)  # 1
        sums, piece = sender.answer(number, size, rows)
        if fresh:
            journal.append("theirs", rows)
        if number >= first:
            channel.send(active, VoleTrees(sums))  # 2
        pieces.append(piece)
    if len(sizes) >= journal.count("theirs"):
        check_sums = channel.recv(active, VoleSums).sums  # 3
        if len(check_sums) != SUM_BYTES * len(sizes):
            raise ProtocolError(
                f"{active} sent check sums of {len(check_sums)} bytes, expected {SUM_BYTES * len(sizes)}",
                code="SVFL-PROTOCOL-SIZE",
                party=active,
            )
        journal.append("theirs", check_sums)
    check_sums = journal.chunk("theirs", len(sizes))
    digests = [piece.confirm(check_sums[SUM_BYTES * k : SUM_BYTES * (k + 1)]) for k, piece in enumerate(pieces)]
    if first <= len(sizes):
        channel.send(active, VoleDigests(b"".join(digests)))  # 4
    return pieces


def _values(work: AlignmentWork, seed: bytes, sender: VoleSender, pieces: list[VoleSenderPiece]) -> Words:
    b = np.concatenate([piece.outcome() for piece in pieces])
    d = words(b"".join(work.journal.chunk("theirs", len(pieces) + 1 + k) for k in range(chunks(len(b)))))
    values = vole_prf.evaluate_any(PrfHash(_coin(work, "all")), seed, b, d, sender.times, work.keys)
    work.add_progress(work.rows)
    return values


def _coin(work: AlignmentWork, whose: str) -> bytes:
    """Return the public coin of the vector OLE with one party, or of all PRFs."""
    return hashlib.sha256(encode_context("alignment by transfers", work.nonce, work.active, whose)).digest()


def _keys(raw: bytes) -> list[bytes]:
    return [raw[start : start + SYMMETRIC_KEY_BYTES] for start in range(0, len(raw), SYMMETRIC_KEY_BYTES)]
