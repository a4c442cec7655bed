"""Private alignment by an oblivious PRF: all learn which ids all have, nobody what two others share.

After Kolesnikov, Matania, Pinkas, Rosulek, Trieu 2017 ("Practical multi-party private set intersection from symmetric
key techniques"): an oblivious PRF programmed through a key-value store (crypto/transfers/okvs.py), and zero sharing.
P_1 is the active party, P_i another of K - 1 >= 1. F_i is a PRF that P_i can evaluate anywhere and P_1 on its own ids
alone, by one of two protocols: psi_transfers.py, or psi_points.py for small sets.

F_i has two halves of 16 bytes, F_i' and F_i".

0. P_i -> P_1  rows;  P_1 -> P_i  rows, nonce, which PRF
   P_i <-> P_j X25519 public keys, all pairs: a fresh key k_ij for each   (K >= 3)
   every P_i   s_i(x) = XOR over j of PRF(k_ij, x), so XOR over all i of s_i(x) = 0
1. P_1 <-> P_i the oblivious PRF
2. K = 2:  P_2 -> P_1  sort(F_2'(y) for y in X_2);  x is common if F_2'(x) is among them
   K >= 3: P_i -> P_1  seed, T_i: a store of y -> F_i'(y) ^ s_i(y) for y in X_i
           P_1         v_i(x) = T_i(x) ^ F_i'(x); x is common iff s_1(x) ^ XOR over i of v_i(x) = 0   (128 bits)
3. P_1 -> P_i  F_i"(x) for the common x, ascending

Of K = 2, P_1 learns which of its ids are common and |X_2|: F_2' of other ids is noise to it.

For x in X_1, v_i(x) is s_i(x) if P_i has x, else noise. With K >= 3, s_i(x) holds PRF(k_ij, x) of another passive
P_j, a key P_1 lacks, so one v_i(x) is noise to P_1 either way, and so is every XOR that leaves a passive party out or
takes in one that lacks x. P_1 learns which of its ids all have and the sizes |X_i|; P_i learns which of its ids all
have and |X_1|, nothing of other passive parties. Who pools what: P_1 with all passive parties but P_i learns X_1 n X_i;
with fewer, P_1 learns of its ids which are common to the rest; passive parties together learn what each does.

A name of step 3 is half of F_i(x), which P_1 has on the ids alone that it asked P_i about. So a P_1 that deviates names
no id that it has not asked about, and at most as many as it has said; whichever of its names P_i cannot place, P_i ends
with the same words. What that tells, whether P_i has some id of those asked about, is in what is entered for asking:
an answer for each id that P_1 can have asked about, a slot of its store each or a point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi_points, psi_transfers
from securevfl.protocols.alignment.psi_work import (
    CHUNK,
    TAG_BYTES,
    AlignmentWork,
    Begin,
    PairKey,
    check_count,
    check_rising,
    check_size,
    chunks,
    met,
    rising,
    words,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Values(DisclosingMessage, frozen=True):
    """Up to 65,536 first halves of F, 16 bytes each, ascending."""

    values: bytes


class Store(Message, frozen=True):
    """The head of a key-value store; its slots follow."""

    seed: bytes
    slots: int


class Slots(DisclosingMessage, frozen=True):
    """Up to 65,536 slots of 16 bytes."""

    slots: bytes


class Common(DisclosingMessage, frozen=True):
    """The message that says how many rows are common."""

    rows: int


class Tags(DisclosingMessage, frozen=True):
    """Up to 65,536 tags of 16 bytes of common ids, ascending."""

    tags: bytes


def declares(passives: int) -> list[MessageDeclaration]:
    """Declare what the messages reveal, but for those of the pseudorandom function (PRF)."""
    lines = [("active", "passive"), ("passive", "active"), ("passive", "passive")]
    every = Reveal("output", "which of the receiver's ids all have")
    store = Reveal("output", "with those of all: which of the receiver's ids all have")
    answers = [
        *(MessageDeclaration(PairKey, sender, receiver, Reveal("public")) for sender, receiver in lines),
        MessageDeclaration(Store, "passive", "active", Reveal("uniform")),
        MessageDeclaration(Slots, "passive", "active", store),
    ]
    return [
        *(answers if passives > 1 else [MessageDeclaration(Values, "passive", "active", every)]),
        MessageDeclaration(Common, "active", "passive", every),
        MessageDeclaration(Tags, "active", "passive", every),
    ]


def lead(work: AlignmentWork, passive_rows: dict[str, int], done: dict[str, int]) -> NDArray[np.intp]:
    """P_1."""
    ask = psi_transfers.ask if work.transfers else psi_points.ask
    answers = ask(work, done)  # 1
    values = {passive: answers(passive) for passive in work.passives}  # 1
    if len(values) == 1:
        ((passive, own),) = values.items()
        common = met(own[:, :2], _values_of(work, passive, passive_rows[passive]))
    else:
        total = work.zero_share()
        for passive, own in values.items():
            seed, table = _store_of(work, passive, passive_rows[passive])  # 2
            total ^= okvs.decode(seed, work.keys, table)[0] ^ own[:, :2]
        common = np.flatnonzero(~total.any(axis=1))
    shared = work.in_shared_order(common)
    for passive in work.passives:
        names = values[passive][shared, 2:]
        tags = names[rising(names)].tobytes()
        permit = work.names(passive, len(shared))
        work.channel.send(passive, Common(len(shared)), permit=permit)  # 3
        for start in range(0, len(tags), CHUNK * TAG_BYTES):
            work.channel.send(passive, Tags(tags[start : start + CHUNK * TAG_BYTES]), permit=permit)  # 3
    return shared


def _values_of(work: AlignmentWork, passive: str, rows: int) -> Words:
    stream = work.stream("store", passive)
    for number in range(work.journal.count(stream), chunks(rows)):
        chunk = work.channel.recv(passive, Values).values  # 2
        check_size(passive, "values", chunk, okvs.VALUE_BYTES, number, rows)
        work.journal.append(stream, chunk)
    found = words(work.journal.whole(stream))
    check_rising(passive, "values", found)
    return found


def _store_of(work: AlignmentWork, passive: str, rows: int) -> tuple[bytes, Words]:
    stream = work.stream("store", passive)
    head = work.channel.recv(passive, Store)  # 2
    if head.slots != okvs.table_rows(rows) or len(head.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{passive} was expected to send a store of {okvs.table_rows(rows)} slots for its {rows} rows, "
            f"{head.slots} came; do both run the same version?"
        )
    for number in range(work.journal.count(stream), chunks(head.slots)):
        chunk = work.channel.recv(passive, Slots).slots  # 2
        check_size(passive, "slots", chunk, okvs.VALUE_BYTES, number, head.slots)
        work.journal.append(stream, chunk)
    return head.seed, words(work.journal.whole(stream))


def follow(work: AlignmentWork, begin: Begin) -> NDArray[np.intp]:
    """P_i."""
    prf, alone = psi_transfers if work.transfers else psi_points, len(work.passives) == 1
    items = work.rows if alone else okvs.table_rows(work.rows)
    check_count(work.active, "chunks", begin.second, 0, chunks(items))
    values = prf.serve(work, begin)()  # 1
    if not work.journal.count("store"):
        # Kept before any of it leaves: a second store of the same pairs would show which ids are in both.
        if alone:
            seed, table = b"", values[rising(values[:, :2]), :2]
        else:
            seed, table = okvs.encode(work.keys, values[:, :2] ^ work.zero_share())
        work.journal.append("store", seed + table.tobytes())
    store = work.journal.chunk("store", 0)
    seed, answers = store[: -items * okvs.VALUE_BYTES], store[-items * okvs.VALUE_BYTES :]
    permit = work.names(work.active, prf.questions(begin.rows))
    if not alone:
        work.channel.send(work.active, Store(seed, items))  # 2
    step = CHUNK * okvs.VALUE_BYTES
    for start in range(begin.second * step, len(answers), step):
        some = answers[start : start + step]
        work.channel.send(work.active, Values(some) if alone else Slots(some), permit=permit)  # 2
    return _rows_of_tags(work, values[:, 2:], min(work.rows, begin.rows))


def _rows_of_tags(work: AlignmentWork, names: Words, most: int) -> NDArray[np.intp]:
    count = work.channel.recv(work.active, Common).rows  # 3
    check_count(work.active, "common rows", count, 0, most)
    parts = []
    for number in range(chunks(count)):
        parts.append(work.channel.recv(work.active, Tags).tags)  # 3
        check_size(work.active, "tags", parts[-1], TAG_BYTES, number, count)
    tags = words(b"".join(parts))
    check_rising(work.active, "tags", tags)
    rows = met(names, tags)
    if len(rows) != count:
        raise ProtocolError(
            f"{work.active} was expected to name ids that it has asked about and that are here, it named another; "
            "start all parties again"
        )
    return work.in_shared_order(rows)
