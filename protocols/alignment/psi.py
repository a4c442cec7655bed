"""Private alignment: the parties learn the ids that all of them have, and order these rows in the same way.

A is the active party, which has the labels, and P_i a passive party. Each has a table whose rows have ids.

0. P_i -> A   its number of rows
   A -> P_i   its number of rows, a nonce, and the protocol for the pseudorandom function (PRF)
   all        compare their ids with an oblivious PRF, so that they learn only the common ones (psi_many.py)

Comments refer to this step by number. If each table has fewer than 4,096 rows, the PRF is evaluated on elliptic-curve
points (psi_points.py). Otherwise it is evaluated by oblivious transfer (psi_transfers.py), which needs no curve
operation for each id and is faster for large tables (docs/benchmarks.md).

Two parties learn the ids that both have, and each other's number of rows. They do not learn the position of a common id
in the other's table, nor anything about ids that they do not share. With more parties, nobody learns the common ids of
two others. All parties sort the common ids by a pseudorandom function (AES) under the nonce, so their order depends
only on the ids and the nonce.

A party can only ask about ids that are in its set, and the other parties see the size of the set. Nothing prevents it
from adding ids that it guesses: each guess costs one entry. With oblivious transfer, a malicious party can ask about a
third more ids than its stated number of rows; the others enter this larger number in their accounts (docs/proof.md). If
the other parties have granted it a fixed number of ids before, it must use points, and they check the number before
they send any answer. It cannot name an id as common without having asked about it, because it names ids by their PRF
values.

Each party stores its completed work in a journal. An interrupted alignment resumes after the last complete chunk of
messages if all parties still have their journals. It then uses the same secrets for the same ids, so nobody sees
anything new. If a party has lost its journal, all parties start again with new secrets. With an older copy of a journal
a peer could ask about further ids under the same secrets; journal_folder.py refuses it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi_many, psi_transfers
from securevfl.protocols.alignment.psi_work import (
    AlignmentHello,
    AlignmentStart,
    AlignmentWork,
    Points,
    TwiceBlinded,
    check_count,
    check_granted,
    check_protocol,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes

ALIGNMENT_NONCE_BYTES = 16


def declares(passives: Sequence[str], *, transfers: bool) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message of an alignment with these passive parties."""
    points = [
        MessageDeclaration(Points, "active", "passive", Reveal("ciphertext", "active"), structured=True),
        MessageDeclaration(TwiceBlinded, "passive", "active", Reveal("ciphertext", "passive"), structured=True),
    ]
    return [
        MessageDeclaration(AlignmentHello, "passive", "active", Reveal("plain", "the sender's number of rows")),
        MessageDeclaration(AlignmentStart, "active", "passive", Reveal("plain", "the sender's number of rows")),
        *(psi_transfers.declares() if transfers else points),
        *psi_many.declares(len(passives)),
    ]


def align_active(work: AlignmentWork) -> NDArray[np.intp]:
    """Run the active party's side: return the indices of its rows that all parties have, in the common order."""
    hellos = {passive: work.channel.recv(passive, AlignmentHello) for passive in work.passives}  # step 0
    for passive, hello in hellos.items():
        check_count(passive, "rows", hello.rows, 1, 1 << 40)
        check_count(passive, "chunks", hello.done, 0, 1 << 40 if hello.saved else 0)
    rows = {passive: hello.rows for passive, hello in hellos.items()}
    transfers = work.granted is None and max(work.rows, *rows.values()) >= work.min_transfer_rows
    saved = work.saved()
    resumes = (
        saved is not None
        and all(hello.saved == saved.nonce for hello in hellos.values())
        and saved.transfers == transfers
        and (not transfers or psi_transfers.ready(work))
    )
    nonce = saved.nonce if saved is not None and resumes else secrets.token_bytes(ALIGNMENT_NONCE_BYTES)
    for passive in work.passives:
        streams = work.stream("back", passive), work.stream("store", passive)
        counts = [work.journal.count(stream) if resumes else 0 for stream in streams]
        work.channel.send(
            passive,
            AlignmentStart(work.rows, nonce, transfers, resumes, *counts),
            permit=permit_sizes(work.channel, passive),
        )  # step 0
    work.start(nonce, transfers=transfers, resumes=resumes)
    done = {passive: hello.done if resumes else 0 for passive, hello in hellos.items()}
    return psi_many.lead(work, rows, done)


def align_passive(work: AlignmentWork) -> NDArray[np.intp]:
    """Run a passive party's side: return the indices of its rows that all parties have, in the common order."""
    saved = work.saved()
    done = 0 if saved is None else work.journal.count("theirs")
    hello = AlignmentHello(work.rows, b"" if saved is None else saved.nonce, done)
    work.channel.send(work.active, hello, permit=permit_sizes(work.channel, work.active))  # step 0
    begin = work.channel.recv(work.active, AlignmentStart)  # step 0
    check_count(work.active, "rows", begin.rows, 1, 1 << 40)
    check_granted(work, begin)
    check_protocol(work, begin)
    fits = saved is not None and (saved.nonce, saved.transfers) == (begin.nonce, begin.transfers)
    if len(begin.nonce) != ALIGNMENT_NONCE_BYTES or (begin.resumes and not fits):
        raise ProtocolError(
            f"{work.active} started an alignment with an invalid nonce, or resumed one that is not in this party's "
            "journal",
            "start all parties again",
            code="SVFL-PROTOCOL-MESSAGE",
            party=work.active,
        )
    work.start(begin.nonce, transfers=begin.transfers, resumes=begin.resumes)
    return psi_many.follow(work, begin)
