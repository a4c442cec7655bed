"""Private set intersection by an oblivious PRF, for two parties or more.

After Kolesnikov, Matania, Pinkas, Rosulek, Trieu 2017 ("Practical multi-party private set intersection from symmetric
key techniques"): an oblivious PRF programmed through a key-value store (crypto/transfers/okvs.py), and zero sharing.
P_1 is the active party, P_i one of the other K - 1 >= 1 parties. F_i is a PRF that P_i can evaluate on any id, and P_1
only on its ids, by one of two protocols: psi_transfers.py, or psi_points.py for small sets.

F_i has two halves of 16 bytes, F_i' and F_i".

0. P_i -> P_1  number of rows;  P_1 -> P_i  number of rows, nonce, protocol of the PRF
   P_i <-> P_j X25519 public keys between all pairs: a fresh key k_ij for each pair   (K >= 3)
   every P_i   s_i(x) = XOR over j of PRF(k_ij, x), so XOR over all i of s_i(x) = 0
1. P_1 <-> P_i the oblivious PRF
2. K = 2:  P_2 -> P_1  sort(F_2'(y) for y in X_2);  x is common if F_2'(x) is among them
   K >= 3: P_i -> P_1  seed, T_i: a store of y -> F_i'(y) ^ s_i(y) for y in X_i
           P_1         v_i(x) = T_i(x) ^ F_i'(x); x is common iff s_1(x) ^ XOR over i of v_i(x) = 0   (128 bits)
3. P_1 -> P_i  F_i"(x) for the common x, ascending

With K = 2, P_1 learns which of its ids are common, and |X_2|; F_2' of other ids is pseudorandom to it.

With K >= 3, for x in X_1, v_i(x) is s_i(x) if P_i has x, and pseudorandom otherwise. s_i(x) contains PRF(k_ij, x) of
another passive party P_j, whose key P_1 does not have. So each single v_i(x) is pseudorandom to P_1, and so is every
XOR that omits a passive party or includes one without x. P_1 learns which of its ids all parties have, and the sizes
|X_i|. P_i learns which of its ids all parties have, and |X_1|, and nothing about other passive parties. Coalitions: P_1
with all passive parties except P_i learns the intersection of X_1 and X_i. P_1 with fewer passive parties learns which
of its ids are common to all others. Passive parties together learn what each of them learns.

A name of step 3 is half of F_i(x), which P_1 has only for ids that it has asked P_i about. A malicious P_1 therefore
cannot name an id that it has not asked about, and not more ids than its stated number. P_i raises the same error for
every name that it cannot assign. The error reveals whether P_i has some id that was asked about; the record of step 1
covers this, because it counts one answer for each id that P_1 may have asked about: one per slot of its store, or one
per point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi_points, psi_transfers
from securevfl.protocols.alignment.psi_work import (
    ITEMS_PER_MESSAGE,
    TAG_BYTES,
    AlignmentStart,
    AlignmentWork,
    PairKey,
    ascending_order,
    check_ascending_blocks,
    check_count,
    check_size,
    chunks,
    intersect,
    words,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class PrfValues(DisclosingMessage, frozen=True):
    """Up to 65,536 first halves of F in ascending order, 16 bytes each."""

    values: bytes


class StoreHeader(Message, frozen=True):
    """The seed and the size of a key-value store; its slots follow."""

    seed: bytes
    slots: int


class StoreSlots(DisclosingMessage, frozen=True):
    """Up to 65,536 slots of a key-value store, 16 bytes each."""

    slots: bytes


class IntersectionSize(DisclosingMessage, frozen=True):
    """The number of common rows."""

    rows: int


class IntersectionTags(DisclosingMessage, frozen=True):
    """Up to 65,536 tags of common ids in ascending order, 16 bytes each."""

    tags: bytes


def declares(passives: int) -> list[MessageDeclaration]:
    """Declare what the messages reveal, except those of the pseudorandom function (PRF)."""
    pairs = [("active", "passive"), ("passive", "active"), ("passive", "passive")]
    common = Reveal("output", "which of the receiver's ids all parties have")
    store = Reveal("output", "together with all other stores: which of the receiver's ids all parties have")
    answers = [
        *(MessageDeclaration(PairKey, sender, receiver, Reveal("public")) for sender, receiver in pairs),
        MessageDeclaration(StoreHeader, "passive", "active", Reveal("uniform")),
        MessageDeclaration(StoreSlots, "passive", "active", store),
    ]
    return [
        *(answers if passives > 1 else [MessageDeclaration(PrfValues, "passive", "active", common)]),
        MessageDeclaration(IntersectionSize, "active", "passive", common),
        MessageDeclaration(IntersectionTags, "active", "passive", common),
    ]


def lead(work: AlignmentWork, passive_rows: dict[str, int], done: dict[str, int]) -> NDArray[np.intp]:
    """Run P_1.

    Args:
        work: the state of this party.
        passive_rows: number of rows by passive party.
        done: number of complete chunks of step 1 by passive party, if the alignment resumes.

    Returns:
        Indices of the common rows in the common order.
    """
    ask = psi_transfers.ask if work.transfers else psi_points.ask
    answers = ask(work, done)  # 1
    values = {passive: answers(passive) for passive in work.passives}  # 1
    if len(values) == 1:
        ((passive, prf),) = values.items()
        common = intersect(prf[:, :2], _values_of(work, passive, passive_rows[passive]))
    else:
        total = work.zero_share()
        for passive, prf in values.items():
            seed, table = _store_of(work, passive, passive_rows[passive])  # 2
            total ^= okvs.decode(seed, work.keys, table)[0] ^ prf[:, :2]
        common = np.flatnonzero(~total.any(axis=1))
    shared = work.in_shared_order(common)
    for passive in work.passives:
        names = values[passive][shared, 2:]
        tags = names[ascending_order(names)].tobytes()
        permit = work.permit_ids(passive, len(shared))
        work.channel.send(passive, IntersectionSize(len(shared)), permit=permit)  # 3
        for start in range(0, len(tags), ITEMS_PER_MESSAGE * TAG_BYTES):
            work.channel.send(
                passive, IntersectionTags(tags[start : start + ITEMS_PER_MESSAGE * TAG_BYTES]), permit=permit
            )  # 3
    return shared


def _values_of(work: AlignmentWork, passive: str, rows: int) -> Words:
    stream = work.stream("store", passive)
    for number in range(work.journal.count(stream), chunks(rows)):
        chunk = work.channel.recv(passive, PrfValues).values  # 2
        check_size(passive, "values", chunk, okvs.VALUE_BYTES, number, rows)
        work.journal.append(stream, chunk)
    values = words(work.journal.read(stream))
    check_ascending_blocks(passive, "values", values)
    return values


def _store_of(work: AlignmentWork, passive: str, rows: int) -> tuple[bytes, Words]:
    stream = work.stream("store", passive)
    head = work.channel.recv(passive, StoreHeader)  # 2
    if head.slots != okvs.table_rows(rows) or len(head.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{passive} sent a store of {head.slots} slots, its {rows} rows need {okvs.table_rows(rows)}",
            code="SVFL-PROTOCOL-SIZE",
            party=passive,
        )
    for number in range(work.journal.count(stream), chunks(head.slots)):
        chunk = work.channel.recv(passive, StoreSlots).slots  # 2
        check_size(passive, "slots", chunk, okvs.VALUE_BYTES, number, head.slots)
        work.journal.append(stream, chunk)
    return head.seed, words(work.journal.read(stream))


def follow(work: AlignmentWork, begin: AlignmentStart) -> NDArray[np.intp]:
    """Run P_i; return the indices of the common rows in the common order."""
    prf, two_parties = psi_transfers if work.transfers else psi_points, len(work.passives) == 1
    items = work.rows if two_parties else okvs.table_rows(work.rows)
    check_count(work.active, "chunks", begin.second, 0, chunks(items))
    values = prf.serve(work, begin)()  # 1
    if not work.journal.count("store"):
        # Stored before it is sent: a second, different store of the same ids would show which ids are in both.
        if two_parties:
            seed, table = b"", values[ascending_order(values[:, :2]), :2]
        else:
            seed, table = okvs.encode(work.keys, values[:, :2] ^ work.zero_share())
        work.journal.append("store", seed + table.tobytes())
    store = work.journal.chunk("store", 0)
    seed, answers = store[: -items * okvs.VALUE_BYTES], store[-items * okvs.VALUE_BYTES :]
    permit = work.permit_ids(work.active, prf.questions(begin.rows))
    if not two_parties:
        work.channel.send(work.active, StoreHeader(seed, items))  # 2
    step = ITEMS_PER_MESSAGE * okvs.VALUE_BYTES
    for start in range(begin.second * step, len(answers), step):
        part = answers[start : start + step]
        work.channel.send(work.active, PrfValues(part) if two_parties else StoreSlots(part), permit=permit)  # 2
    return _rows_of_tags(work, values[:, 2:], min(work.rows, begin.rows))


def _rows_of_tags(work: AlignmentWork, names: Words, limit: int) -> NDArray[np.intp]:
    count = work.channel.recv(work.active, IntersectionSize).rows  # 3
    check_count(work.active, "common rows", count, 0, limit)
    parts = []
    for number in range(chunks(count)):
        parts.append(work.channel.recv(work.active, IntersectionTags).tags)  # 3
        check_size(work.active, "tags", parts[-1], TAG_BYTES, number, count)
    tags = words(b"".join(parts))
    check_ascending_blocks(work.active, "tags", tags)
    rows = intersect(names, tags)
    if len(rows) != count:
        raise ProtocolError(
            f"{work.active} named a common id that it has not asked about or that this party does not have",
            "start all parties again",
            code="SVFL-PROTOCOL-CHEATING",
            party=work.active,
        )
    return work.in_shared_order(rows)
