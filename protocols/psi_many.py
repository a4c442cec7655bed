"""Private alignment of three parties or more: all learn which ids all have, nobody what two others share.

After Kolesnikov, Matania, Pinkas, Rosulek, Trieu 2017 ("Practical multi-party private set intersection from symmetric
key techniques"): an oblivious PRF programmed through a key-value store, and zero sharing. Here the PRF is blinded
Diffie-Hellman (Jarecki, Kiayias, Krawczyk 2014) and the store is crypto/okvs.py. H, the scalars a and b_i, the order
of points and the shared order are those of psi.py; P_1 is the active party, P_i another, K >= 3.

0. P_i -> P_1  rows;  P_1 -> P_i  rows, nonce
   P_i <-> P_j X25519 public keys, all pairs: a fresh key k_ij for each
   every P_i   s_i(x) = XOR over j of PRF(k_ij, H(x)), so XOR over all i of s_i(x) = 0
1. P_1 -> P_i  q = sort(a H(x)) for x in X_1
2. P_i -> P_1  b_i q in the order of 1;  seed, T_i: a store of y -> F_i(y) ^ s_i(y) for y in X_i
               F_i(y) = Hash(H(y), b_i H(y)), which P_1 has for its own ids alone: Hash(H(x), b_i q without a)
   P_1         v_i(x) = T_i(x) ^ F_i(x); x is common iff s_1(x) ^ XOR over i of v_i(x) = 0   (128 bits)
3. P_1 -> P_i  Hash(nonce, H(x)) for the common x, ascending

For x in X_1, v_i(x) is s_i(x) if P_i has x, else noise. s_i(x) holds PRF(k_ij, H(x)) of another passive P_j, a key
P_1 lacks, so one v_i(x) is noise to P_1 either way, and so is every XOR that leaves a passive party out or takes in
one that lacks x. P_1 learns which of its ids all have and the sizes |X_i|; P_i learns which of its ids all have and
|X_1|, nothing of other passive parties. Who pools what: P_1 with all passive parties but P_i learns X_1 n X_i; with
fewer, P_1 learns of its ids which are common to the rest; passive parties together learn what each does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.codec import Message
from securevfl.crypto import okvs
from securevfl.crypto.curve import POINT_BYTES, sort_points
from securevfl.crypto.okvs import Words
from securevfl.errors import ProtocolError
from securevfl.protocols.base import Declared, Reveal
from securevfl.protocols.psi_work import (
    CHUNK,
    TAG_BYTES,
    Begin,
    PairKey,
    TwiceBlinded,
    Work,
    check_ascending,
    check_count,
    check_size,
    chunk_rows,
    chunks,
    take,
    words,
)


class Store(Message, frozen=True):
    """The head of a key-value store; its slots follow."""

    seed: bytes
    slots: int


class Slots(Message, frozen=True):
    """Up to 65,536 slots of 16 bytes."""

    slots: bytes


class Common(Message, frozen=True):
    """How many rows are common."""

    rows: int


class Tags(Message, frozen=True):
    """Up to 65,536 tags of 16 bytes of common ids, ascending."""

    tags: bytes


def declares() -> list[Declared]:
    """What the messages reveal that the flow of two parties does not have."""
    lines = [("active", "passive"), ("passive", "active"), ("passive", "passive")]
    every = Reveal("output", "which of the receiver's ids all have")
    return [
        *(Declared(PairKey, sender, receiver, Reveal("public")) for sender, receiver in lines),
        Declared(Store, "passive", "active", Reveal("uniform")),
        Declared(
            Slots, "passive", "active", Reveal("output", "with those of all: which of the receiver's ids all have")
        ),
        Declared(Common, "active", "passive", every),
        Declared(Tags, "active", "passive", every),
    ]


def lead(work: Work, passive_rows: dict[str, int], done: dict[str, int]) -> NDArray[np.intp]:
    """P_1 of three parties or more."""
    work.expect(work.rows * (1 + len(work.passives)))
    mine, order = sort_points(work.blinded())
    for number in range(min(done.values()), chunks(work.rows)):
        for passive in work.passives:
            if number >= done[passive]:
                work.send_points(passive, mine, number)  # 1
    total = work.zero_share()
    sorted_points = take(work.points, order)
    for passive, rows in passive_rows.items():
        answers = _oblivious_answers(work, passive, sorted_points)
        seed, table = _store_of(work, passive, rows)
        total[order] ^= okvs.decode(seed, table, sorted_points, work.executor) ^ answers
    common = np.flatnonzero(~total.any(axis=1))
    shared = work.in_shared_order(common)
    tags = work.tags(shared).tobytes()
    for passive in work.passives:
        work.channel.send(passive, Common(len(shared)))  # 3
        for start in range(0, len(tags), CHUNK * TAG_BYTES):
            work.channel.send(passive, Tags(tags[start : start + CHUNK * TAG_BYTES]))  # 3
    return shared


def _oblivious_answers(work: Work, passive: str, sorted_points: bytes) -> Words:
    """F_i(x) of P_1's ids, in the order of 1."""
    stream = work.stream("back", passive)
    for number in range(chunks(work.rows)):
        if number >= work.journal.count(stream):
            points = work.channel.recv(passive, TwiceBlinded).points  # 2
            check_size(passive, "points", points, POINT_BYTES, number, work.rows)
            start = number * CHUNK * POINT_BYTES
            hashed = sorted_points[start : start + len(points)]
            answer = work.oblivious(hashed, work.blinder.unblind(points, work.executor))
            work.journal.append(stream, answer.tobytes())
        work.did(chunk_rows(work.rows, number))
    return words(work.journal.whole(stream))


def _store_of(work: Work, passive: str, rows: int) -> tuple[bytes, Words]:
    stream = work.stream("store", passive)
    head = work.channel.recv(passive, Store)  # 2
    if head.slots != okvs.slots(rows) or len(head.seed) != okvs.SEED_BYTES:
        raise ProtocolError(
            f"{passive} was expected to send a store of {okvs.slots(rows)} slots for its {rows} rows, "
            f"{head.slots} came; do both run the same version?"
        )
    for number in range(work.journal.count(stream), chunks(head.slots)):
        chunk = work.channel.recv(passive, Slots).slots  # 2
        check_size(passive, "slots", chunk, okvs.VALUE_BYTES, number, head.slots)
        work.journal.append(stream, chunk)
    return head.seed, words(work.journal.whole(stream))


def follow(work: Work, begin: Begin) -> NDArray[np.intp]:
    """P_i of three parties or more."""
    check_count(work.active, "chunks", begin.first, 0, chunks(begin.rows))
    check_count(work.active, "chunks", begin.second, 0, chunks(okvs.slots(work.rows)))
    blinded = work.blinded()
    for number, chunk in enumerate(work.blind_theirs(work.active, begin.rows)):  # 1
        if number >= begin.first:
            work.channel.send(work.active, TwiceBlinded(chunk))  # 2
    if not work.journal.count("store"):
        # Kept before any of it leaves: a second store of the same pairs would show which ids are in both.
        values = work.oblivious(work.points, blinded) ^ work.zero_share()
        seed, table = okvs.encode(work.points, values, work.executor)
        work.journal.append("store", seed + table.astype("<u8").tobytes())
    store = work.journal.chunk("store", 0)
    seed, slots = store[: okvs.SEED_BYTES], store[okvs.SEED_BYTES :]
    work.channel.send(work.active, Store(seed, len(slots) // okvs.VALUE_BYTES))  # 2
    step = CHUNK * okvs.VALUE_BYTES
    for start in range(begin.second * step, len(slots), step):
        work.channel.send(work.active, Slots(slots[start : start + step]))  # 2
    return _rows_of_tags(work)


def _rows_of_tags(work: Work) -> NDArray[np.intp]:
    count = work.channel.recv(work.active, Common).rows  # 3
    check_count(work.active, "common rows", count, 0, work.rows)
    tags, last = b"", b""
    for number in range(chunks(count)):
        chunk = work.channel.recv(work.active, Tags).tags  # 3
        check_size(work.active, "tags", chunk, TAG_BYTES, number, count)
        last = check_ascending(work.active, "tags", chunk, TAG_BYTES, last)
        tags += chunk
    own = work.tags(np.arange(work.rows))
    order = np.argsort(own, kind="stable")
    found = np.isin(own[order], np.frombuffer(tags, f"S{TAG_BYTES}"))
    if found.sum() != count:
        raise ProtocolError(f"{work.active} was expected to name common ids, {count - found.sum()} are not ids here")
    return order[found]
