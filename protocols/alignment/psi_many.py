"""Private set intersection for two or more parties, based on an oblivious pseudorandom function.

P_1 is the active party, and P_i is one of the other K - 1 parties (passive); P_i has the set X_i of ids. All of them
learn which of their ids all parties have. F_i is a pseudorandom function (PRF) with a key that only P_i has. P_i can
evaluate it on any id, and P_1 only on its ids, obliviously: P_i does not learn these ids. Two protocols provide F_i:
psi_transfers.py, or psi_points.py for small sets. F_i(x) has two halves of 16 bytes: F_i'(x), which serves to find
common ids, and F_i"(x), the tag that names a common id. With K >= 3 parties, P_i sends a key-value store
(crypto/transfers/okvs.py): an array that yields the value of every id in X_i and random values for all other ids. ^ is
the XOR of 16-byte values.

0. P_i -> P_1  number of rows;  P_1 -> P_i  number of rows, nonce, protocol of the PRF
   P_i <-> P_j X25519 public keys between all pairs: a new key k_ij for each pair   (only for K >= 3)
   every P_i   s_i(x) = XOR over all j of PRF(k_ij, x). So the XOR of s_i(x) over all parties i is 0
1. P_1 <-> P_i the oblivious PRF
2. K = 2:  P_2 -> P_1  F_2'(y) for all y in X_2, sorted;  x is common if F_2'(x) is among them
   K >= 3: P_i -> P_1  a key-value store T_i of y -> F_i'(y) ^ s_i(y) for all y in X_i, with its seed
           P_1         v_i(x) = T_i(x) ^ F_i'(x); x is common if s_1(x) ^ (XOR over all i of v_i(x)) is 0
3. P_1 -> P_i  the tags F_i"(x) of the common x, ascending

Comments refer to these steps by number. `lead` documents who learns what. Each party stores its completed work in a
journal, so that an interrupted alignment can resume (psi_work.py).
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
    """Values F_2'(y) of the sender's ids for step 2 with two parties: up to 65,536 of 16 bytes each, ascending."""

    values: bytes


class StoreHeader(Message, frozen=True):
    """The seed and the number of slots of a key-value store T_i (step 2); the slots follow in further messages."""

    seed: bytes
    slots: int


class StoreSlots(DisclosingMessage, frozen=True):
    """Up to 65,536 slots of a key-value store T_i (step 2), 16 bytes each."""

    slots: bytes


class IntersectionSize(DisclosingMessage, frozen=True):
    """The number of rows that all parties have (step 3)."""

    rows: int


class IntersectionTags(DisclosingMessage, frozen=True):
    """Tags F_i"(x) of common ids (step 3): up to 65,536 of 16 bytes each, ascending."""

    tags: bytes


def declares(passives: int) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of the messages of steps 0, 2 and 3, for a number of passive parties."""
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
    """Run the side of P_1, the active party, from step 1 on.

    The protocol follows Kolesnikov, Matania, Pinkas, Rosulek, Trieu 2017 ("Practical multi-party private set
    intersection from symmetric-key techniques").

    With K = 2, P_1 learns which of its ids are common, and the size of X_2; F_2' of other ids is pseudorandom to it.

    With K >= 3 and an id x of P_1, v_i(x) is s_i(x) if P_i has x, and pseudorandom otherwise. s_i(x) depends on the key
    of P_i and another passive party, which P_1 does not have. So each single v_i(x) is pseudorandom to P_1, and so is
    every XOR that omits a passive party or includes one without x. P_1 learns which of its ids all parties have, and
    the sizes of all sets. P_i learns which of its ids all parties have, and the size of X_1, and nothing about other
    passive parties. If P_1 colludes with all passive parties except P_i, they learn the intersection of X_1 and X_i. If
    P_1 colludes with fewer passive parties, they learn which of P_1's ids all others have. Passive parties that collude
    learn nothing more.

    P_1 has F_i"(x) only for ids about which it has asked P_i. A malicious P_1 therefore cannot name an id that it has
    not asked about, and not more ids than its stated number. P_i raises the same error for every tag that it does not
    have. The error reveals whether P_i has some id that P_1 asked about. The disclosure record of step 1 covers this:
    it counts one answer for each id that P_1 may have asked about, which is one per slot of P_1's store, or one per
    point. What other passive parties learn about X_i follows from these answers. P_1 counts one answer for each of
    P_i's stated rows, because P_i can bring ids that are not its own.

    Each party enters these counts in its account before it sends anything that depends on its ids (`record_ids`).

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        passive_rows: the number of rows of each passive party.
        done: for each passive party, the number of messages of step 1 that it received before an interruption.

    Returns:
        Indices of the common rows in P_1's table, in the order that all parties use.
    """
    work.record_ids(passive_rows)
    ask = psi_transfers.ask if work.transfers else psi_points.ask
    answers = ask(work, done)  # step 1
    values = {passive: answers(passive) for passive in work.passives}  # step 1
    if len(values) == 1:
        ((passive, prf),) = values.items()
        common = intersect(prf[:, :2], _values_of(work, passive, passive_rows[passive]))
    else:
        total = work.zero_share()
        for passive, prf in values.items():
            seed, table = _store_of(work, passive, passive_rows[passive])  # step 2
            total ^= okvs.decode(seed, work.keys, table)[0] ^ prf[:, :2]
        common = np.flatnonzero(~total.any(axis=1))
    shared = work.in_shared_order(common)
    for passive in work.passives:
        names = values[passive][shared, 2:]
        tags = names[ascending_order(names)].tobytes()
        permit = work.permit_ids(passive, passive_rows[passive])
        work.channel.send(passive, IntersectionSize(len(shared)), permit=permit)  # step 3
        for start in range(0, len(tags), ITEMS_PER_MESSAGE * TAG_BYTES):
            work.channel.send(
                passive, IntersectionTags(tags[start : start + ITEMS_PER_MESSAGE * TAG_BYTES]), permit=permit
            )  # step 3
    return shared


def _values_of(work: AlignmentWork, passive: str, rows: int) -> Words:
    stream = work.stream("store", passive)
    for number in range(work.journal.count(stream), chunks(rows)):
        chunk = work.channel.recv(passive, PrfValues).values  # step 2
        check_size(passive, "values", chunk, okvs.VALUE_BYTES, number, rows)
        work.journal.append(stream, chunk)
    values = words(work.journal.read(stream))
    check_ascending_blocks(passive, "values", values)
    return values


def _store_of(work: AlignmentWork, passive: str, rows: int) -> tuple[bytes, Words]:
    stream = work.stream("store", passive)
    head = work.channel.recv(passive, StoreHeader)  # step 2
    if head.slots != okvs.table_rows(rows) or len(head.seed) != okvs.OKVS_SEED_BYTES:
        raise ProtocolError(
            f"{passive} sent a key-value store of {head.slots} entries, but its {rows} rows need "
            f"{okvs.table_rows(rows)}",
            code="SVFL-PROTOCOL-SIZE",
            party=passive,
        )
    for number in range(work.journal.count(stream), chunks(head.slots)):
        chunk = work.channel.recv(passive, StoreSlots).slots  # step 2
        check_size(passive, "slots", chunk, okvs.VALUE_BYTES, number, head.slots)
        work.journal.append(stream, chunk)
    return head.seed, words(work.journal.read(stream))


def follow(work: AlignmentWork, begin: AlignmentStart) -> NDArray[np.intp]:
    """Run the side of P_i, a passive party, from step 1 on.

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        begin: the active party's message that started the alignment.

    Returns:
        Indices of the common rows in P_i's table, in the order that all parties use.
    """
    prf, two_parties = psi_transfers if work.transfers else psi_points, len(work.passives) == 1
    items = work.rows if two_parties else okvs.table_rows(work.rows)
    questions = prf.questions(begin.rows)
    work.record_ids({work.active: questions})
    check_count(work.active, "chunks", begin.second, 0, chunks(items))
    values = prf.serve(work, begin)()  # step 1
    if not work.journal.count("store"):
        # the key-value store is in the journal before it is sent: another one after a resume would reveal the ids in
        # both
        if two_parties:
            seed, table = b"", values[ascending_order(values[:, :2]), :2]
        else:
            seed, table = okvs.encode(work.keys, values[:, :2] ^ work.zero_share())
        work.journal.append("store", seed + table.tobytes())
    store = work.journal.chunk("store", 0)
    seed, answers = store[: -items * okvs.VALUE_BYTES], store[-items * okvs.VALUE_BYTES :]
    permit = work.permit_ids(work.active, questions)
    if not two_parties:
        work.channel.send(work.active, StoreHeader(seed, items))  # step 2
    step = ITEMS_PER_MESSAGE * okvs.VALUE_BYTES
    for start in range(begin.second * step, len(answers), step):
        part = answers[start : start + step]
        work.channel.send(work.active, PrfValues(part) if two_parties else StoreSlots(part), permit=permit)  # step 2
    return _rows_of_tags(work, values[:, 2:], min(work.rows, begin.rows))


def _rows_of_tags(work: AlignmentWork, names: Words, limit: int) -> NDArray[np.intp]:
    count = work.channel.recv(work.active, IntersectionSize).rows  # step 3
    check_count(work.active, "common rows", count, 0, limit)
    parts = []
    for number in range(chunks(count)):
        parts.append(work.channel.recv(work.active, IntersectionTags).tags)  # step 3
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
