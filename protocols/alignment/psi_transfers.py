"""The oblivious PRF of alignment by vector OLE (crypto/transfers/vole.py): for all but small sets.

P_1 is the evaluator and the taker, P_i the holder of F_i and the giver; a, b, c, d, Delta and P are those of
crypto/transfers/vole.py.

0. P_1 -> P_i  the offer of the base transfers;  P_i -> P_1  128 choices, the bits of Delta
1. P_1 -> P_i  the seed of P, a store of x -> h(x) for x in X_1;  what a vector OLE as long as it asks for
2. P_i -> P_1  its trees        3. P_1 -> P_i  what it says of them        4. P_i -> P_1  what confirms them
5. P_1 -> P_i  d = P + a, 16 bytes for each slot of the store
   P_1         F_i on X_1                    P_i   F_i on its own ids

P_i sees uniform blocks under dual LPN, computational Diffie-Hellman and the PRG. P_1 has F_i on its own ids alone, the
rest is noise to it (hashes as random oracles, AES as an ideal cipher), whatever it sends: it can store more ids than it
says, one a slot at most or so (docs/proof.md), which is what P_i enters. An id costs P_1 21 bytes a passive party.

What has been sent stays the same if an alignment goes on after a break: seeds, choices and P are in the journal before
anything that depends on them leaves, and so is what came. Of a peer that was caught nothing is kept.
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
from securevfl.crypto.transfers.vole import DIGEST_BYTES, SUM_BYTES, VoleReceiver, VoleSender, VoleSenderPiece
from securevfl.crypto.transfers.vole_pieces import choice_bytes, split_outcomes
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.errors import CryptoError, ProtocolError
from securevfl.protocols import permits
from securevfl.protocols.alignment.psi_work import (
    CHUNK,
    AlignmentWork,
    Begin,
    check_count,
    check_size,
    chunk_rows,
    chunks,
    words,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Offer(Message, frozen=True):
    """A point of 32 bytes, Ed25519."""

    public: bytes


class Choices(Message, frozen=True):
    """128 points of 32 bytes, Ed25519."""

    points: bytes


class Question(DisclosingMessage, frozen=True):
    """The head of P_1's store; what each piece of the vector OLE takes, and d, follow."""

    seed: bytes
    slots: int


class VoleRows(Message, frozen=True):
    """What a piece of the vector OLE takes: 16 bytes for each of its transfers."""

    rows: bytes


class VoleTrees(Message, frozen=True):
    """The sums of a piece's trees."""

    sums: bytes


class Said(Message, frozen=True):
    """A sum over the noise of each piece, masked: 16 bytes a piece."""

    sums: bytes


class Confirmed(Message, frozen=True):
    """A digest for each piece, of 32 bytes, that P_1 can make as well."""

    digests: bytes


class Masked(Message, frozen=True):
    """d, 16 bytes for each of up to 65,536 slots."""

    slots: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages of the transfers reveal."""
    return [
        MessageDeclaration(Offer, "active", "passive", Reveal("public")),
        MessageDeclaration(Choices, "passive", "active", Reveal("uniform")),
        MessageDeclaration(Question, "active", "passive", Reveal("plain", "the sender's number of rows")),
        MessageDeclaration(VoleRows, "active", "passive", Reveal("uniform")),
        MessageDeclaration(VoleTrees, "passive", "active", Reveal("uniform")),
        MessageDeclaration(Said, "active", "passive", Reveal("uniform")),
        MessageDeclaration(Confirmed, "passive", "active", Reveal("uniform")),
        MessageDeclaration(Masked, "active", "passive", Reveal("uniform")),
    ]


def ready(work: AlignmentWork) -> bool:
    """P_1: whether the journal holds what every P_i's part of an alignment needs to go on."""
    streams = ["own", *(work.stream("pairs", passive) for passive in work.passives)]
    return all(work.journal.count(stream) for stream in streams)


def questions(rows: int) -> int:
    """How many ids of others whoever asks with so many rows may have asked about: as many as its store has slots."""
    return okvs.table_rows(rows)


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """P_1: sends what each P_i lacks; returns what gives F_i on P_1's ids, (n, 4)."""
    offerers = {
        passive: BaseSender() for passive in work.passives if not work.journal.count(work.stream("pairs", passive))
    }
    for passive, offerer in offerers.items():
        work.channel.send(passive, Offer(offerer.offer))  # 0
    hashing = PrfHash(_coin(work, "all"))
    if not work.journal.count("own"):
        seed, table = okvs.encode(work.keys, hashing.target(work.keys))
        work.journal.append("own", seed + table.tobytes())
    own = work.journal.chunk("own", 0)
    seed, store = own[: okvs.OKVS_SEED_BYTES], words(own[okvs.OKVS_SEED_BYTES :])
    pieces = split_outcomes(len(store))
    for passive, offerer in offerers.items():
        points = work.channel.recv(passive, Choices).points  # 0
        if len(points) != BASE_TRANSFERS * EDWARDS_POINT_BYTES:
            raise ProtocolError(f"{passive} was expected to send {BASE_TRANSFERS} choices, {len(points)} bytes came")
        pairs = b"".join(first + second for first, second in offerer.pairs(points))
        choices = os.urandom(sum(map(choice_bytes, pieces)))
        work.journal.append(work.stream("pairs", passive), pairs + choices)
    work.expect(len(work.passives) * (len(store) + work.rows))
    answers = {}
    for passive in work.passives:
        check_count(passive, "messages", done[passive], 0, len(pieces) + 1 + chunks(len(store)))
        work.channel.send(passive, Question(seed, len(store)), permit=permits.permit_sizes(work.channel, passive))  # 1
        try:
            a, c = _take_vole(work, passive, len(store), done[passive])
        except CryptoError:
            work.journal.clear()
            raise
        a ^= store
        for number in range(chunks(len(store))):
            if len(pieces) + 1 + number >= done[passive]:
                work.channel.send(passive, Masked(a[number * CHUNK : (number + 1) * CHUNK].tobytes()))  # 5
            work.did(chunk_rows(len(store), number))
        answers[passive] = vole_prf.evaluate_stored(hashing, seed, c, work.keys)
        work.did(work.rows)
    return answers.__getitem__


def _take_vole(work: AlignmentWork, passive: str, slots: int, done: int) -> tuple[Words, Words]:
    """P_1: a and c of the vector OLE with one P_i."""
    kept, stream = work.journal.chunk(work.stream("pairs", passive), 0), work.stream("back", passive)
    keys, left = (
        _keys(kept[: 2 * BASE_TRANSFERS * SYMMETRIC_KEY_BYTES]),
        kept[2 * BASE_TRANSFERS * SYMMETRIC_KEY_BYTES :],
    )
    taker, pieces = (
        VoleReceiver(list(zip(keys[::2], keys[1::2], strict=True)), _coin(work, passive)),
        split_outcomes(slots),
    )
    for number, size in enumerate(pieces):
        choices, left = left[: choice_bytes(size)], left[choice_bytes(size) :]
        asked = taker.ask(number, size, choices)
        if number >= done:
            work.channel.send(passive, VoleRows(asked))  # 1
    taken = []
    for number, size in enumerate(pieces):
        if number >= work.journal.count(stream):
            work.journal.append(stream, work.channel.recv(passive, VoleTrees).sums)  # 2
        taken.append(taker.take(number, size, work.journal.chunk(stream, number)))
    if done <= len(pieces):
        work.channel.send(passive, Said(b"".join(piece.response for piece in taken)))  # 3
    if work.journal.count(stream) == len(pieces):
        work.journal.append(stream, work.channel.recv(passive, Confirmed).digests)  # 4
    confirmed = work.journal.chunk(stream, len(pieces))
    for number, piece in enumerate(taken):
        piece.check(confirmed[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)])
    both = [piece.outcome() for piece in taken]
    return np.concatenate([a for a, _ in both]), np.concatenate([c for _, c in both])


def serve(work: AlignmentWork, begin: Begin) -> Callable[[], Words]:
    """P_i: takes P_1's question in; returns what gives F_i on P_i's ids, (n, 4)."""
    slots = okvs.table_rows(begin.rows)
    work.expect(slots + work.rows)
    if not work.journal.count("chosen"):
        secret, bits = fresh_secret()
        points, seeds = receive_keys(work.channel.recv(work.active, Offer).public, bits)  # 0
        work.journal.append("chosen", secret + os.urandom(SYMMETRIC_KEY_BYTES) + b"".join(seeds))
        work.channel.send(work.active, Choices(points))  # 0
    question = work.channel.recv(work.active, Question)  # 1
    if question.slots != slots or len(question.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{work.active} was expected to ask with a store of {slots} slots for its {begin.rows} rows, "
            f"{question.slots} came; do both run the same version?"
        )
    chosen = work.journal.chunk("chosen", 0)
    secret, roots = chosen[:SECRET_BYTES], chosen[SECRET_BYTES : SECRET_BYTES + SYMMETRIC_KEY_BYTES]
    giver = VoleSender(secret, _keys(chosen[SECRET_BYTES + SYMMETRIC_KEY_BYTES :]), roots, _coin(work, work.me))
    try:
        given = _give_vole(work, giver, slots, begin.first)
    except CryptoError:
        work.journal.clear()
        raise
    for number in range(chunks(slots)):
        if len(given) + 1 + number >= work.journal.count("theirs"):
            masked = work.channel.recv(work.active, Masked).slots  # 5
            check_size(work.active, "slots", masked, okvs.VALUE_BYTES, number, slots)
            work.journal.append("theirs", masked)
        work.did(chunk_rows(slots, number))
    return partial(_values, work, question.seed, giver, given)


def _give_vole(work: AlignmentWork, giver: VoleSender, slots: int, first: int) -> list[VoleSenderPiece]:
    """P_i: the pieces of its vector OLE with P_1, which has `first` messages of it."""
    journal, channel, active = work.journal, work.channel, work.active
    pieces, given = split_outcomes(slots), list[VoleSenderPiece]()
    check_count(active, "messages", first, 0, len(pieces) + 1)
    for number, size in enumerate(pieces):
        fresh = number >= journal.count("theirs")
        asked = channel.recv(active, VoleRows).rows if fresh else journal.chunk("theirs", number)  # 1
        sums, piece = giver.answer(number, size, asked)
        if fresh:
            journal.append("theirs", asked)
        if number >= first:
            channel.send(active, VoleTrees(sums))  # 2
        given.append(piece)
    if len(pieces) >= journal.count("theirs"):
        said = channel.recv(active, Said).sums  # 3
        if len(said) != SUM_BYTES * len(pieces):
            raise ProtocolError(f"{active} was expected to send {len(pieces)} sums, {len(said)} bytes came")
        journal.append("theirs", said)
    said = journal.chunk("theirs", len(pieces))
    digests = [piece.confirm(said[SUM_BYTES * at : SUM_BYTES * (at + 1)]) for at, piece in enumerate(given)]
    if first <= len(pieces):
        channel.send(active, Confirmed(b"".join(digests)))  # 4
    return given


def _values(work: AlignmentWork, seed: bytes, giver: VoleSender, given: list[VoleSenderPiece]) -> Words:
    b = np.concatenate([piece.outcome() for piece in given])
    d = words(b"".join(work.journal.chunk("theirs", len(given) + 1 + at) for at in range(chunks(len(b)))))
    values = vole_prf.evaluate_any(PrfHash(_coin(work, "all")), seed, b, d, giver.times, work.keys)
    work.did(work.rows)
    return values


def _coin(work: AlignmentWork, whose: str) -> bytes:
    """Return the public coin of a vector OLE, or of the PRFs of all."""
    return hashlib.sha256(encode_context("alignment by transfers", work.nonce, work.active, whose)).digest()


def _keys(raw: bytes) -> list[bytes]:
    return [raw[start : start + SYMMETRIC_KEY_BYTES] for start in range(0, len(raw), SYMMETRIC_KEY_BYTES)]
