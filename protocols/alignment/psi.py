"""Private alignment: the parties learn the ids that all of them have, and order these rows in the same way.

0. P_i -> A   number of rows;  A -> P_i  number of rows, nonce, protocol of the PRF
   all        an oblivious PRF, a key-value store of its values, and the names of the common ids (psi_many.py). The PRF
   is
              evaluated by elliptic-curve points if each set has fewer than 4,096 ids (psi_points.py). Otherwise it is
              evaluated by oblivious transfer (psi_transfers.py), which avoids curve operations for each id; these take
              most of the time (docs/benchmarks.md).

Two parties learn the ids that both have, and each other's number of rows. They do not learn the position of a common id
in the other's table, nor anything about ids that they do not share. With more parties, nobody learns the common ids of
two others.

The common order is ascending by AES of the id under the nonce. It depends only on the common ids and the nonce.

A party can only ask about ids that are in its set, and the other parties see the size of the set. Nothing prevents it
from adding ids that it does not have: each guess costs one entry. With oblivious transfer a malicious party can add as
many ids as its store has slots, a third more than its stated number of rows. The others record this number
(docs/proof.md). If the others have granted it a number of ids, they check this number before any of their points is
sent, and the party must use points. It can only name ids as common that it has asked about, and at most its stated
number, because a name is a digest of the PRF.

An interrupted alignment resumes after the last complete chunk if every party has kept its journal. It uses the same
secrets and stores for the same ids, so the others see nothing new. If a party has lost its journal, all parties start
again with fresh secrets.
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
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes

ALIGNMENT_NONCE_BYTES = 16
MIN_ROWS_FOR_TRANSFERS = 4096  # with fewer rows, points are faster


def declares(passives: Sequence[str], *, transfers: bool) -> list[MessageDeclaration]:
    """Declare what each message of an alignment with these passive parties reveals."""
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
    """Align as the active party: return the indices of its rows that all parties have, in the common order."""
    hellos = {passive: work.channel.recv(passive, AlignmentHello) for passive in work.passives}  # 0
    for passive, hello in hellos.items():
        check_count(passive, "rows", hello.rows, 1, 1 << 40)
    rows = {passive: hello.rows for passive, hello in hellos.items()}
    transfers = work.granted is None and max(work.rows, *rows.values()) >= MIN_ROWS_FOR_TRANSFERS
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
        )  # 0
    work.start(nonce, transfers=transfers, resumes=resumes)
    done = {passive: hello.done if resumes else 0 for passive, hello in hellos.items()}
    return psi_many.lead(work, rows, done)


def align_passive(work: AlignmentWork) -> NDArray[np.intp]:
    """Align as a passive party: return the indices of its rows that all parties have, in the common order."""
    saved = work.saved()
    done = 0 if saved is None else work.journal.count("theirs")
    hello = AlignmentHello(work.rows, b"" if saved is None else saved.nonce, done)
    work.channel.send(work.active, hello, permit=permit_sizes(work.channel, work.active))  # 0
    begin = work.channel.recv(work.active, AlignmentStart)  # 0
    check_count(work.active, "rows", begin.rows, 1, 1 << 40)
    check_granted(work, begin)
    fits = saved is not None and (saved.nonce, saved.transfers) == (begin.nonce, begin.transfers)
    if len(begin.nonce) != ALIGNMENT_NONCE_BYTES or (begin.resumes and not fits):
        raise ProtocolError(
            f"{work.active} started an alignment with an invalid nonce, or resumed one that this party has not stored",
            "start all parties again",
            code="SVFL-PROTOCOL-MESSAGE",
            party=work.active,
        )
    work.start(begin.nonce, transfers=begin.transfers, resumes=begin.resumes)
    return psi_many.follow(work, begin)
