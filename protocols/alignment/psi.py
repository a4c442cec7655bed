"""Private alignment: which ids all parties have, and an order of those rows that all share.

0. P_i -> A   rows;  A -> P_i  rows, nonce, which flow
   all        an oblivious PRF, a store of answers and the names of the common ids: psi_many.py, by points where each
              set has fewer than 4,096 ids (psi_points.py), by transfers otherwise (psi_transfers.py), without
              products on the curve for each id, which are what takes the time here (docs/benchmarks.md)

Two parties learn which ids both have and the other's number of rows, not which of the other's rows one is in, nor
anything of ids that they do not share. With more parties nobody learns what two others share.

The shared order is ascending by AES of the id under the nonce: it depends on the common ids and the nonce, not on
anyone's rows.

A party may ask only about ids it puts into its set, and the size of its set is seen. Nothing here stops it from
putting in ids it does not have: guessing costs one entry a guess. By transfers one that deviates can put in as many as
its store has slots, a third more than it says; these are what the others enter (docs/proof.md). Where the
others have granted it a number of ids, they hold it to these before any point of theirs leaves, and it asks by points.
It can name as common only ids that it has asked about, and no more than it has said: a name is a digest of the PRF.

An alignment that broke off goes on from the last whole chunk if every party kept its journal: the same secrets and
stores for the same ids, so the others see nothing new. If one has lost it, all start afresh with new secrets.
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
    AlignmentWork,
    Begin,
    Points,
    TwiceBlinded,
    check_count,
    check_granted,
)
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes

NONCE_BYTES = 16
MANY = 4096  # rows from which transfers are quicker than points


def declares(passives: Sequence[str], *, transfers: bool) -> list[MessageDeclaration]:
    """Declare what each message of an alignment with these passive parties reveals."""
    points = [
        MessageDeclaration(Points, "active", "passive", Reveal("ciphertext", "active"), structured=True),
        MessageDeclaration(TwiceBlinded, "passive", "active", Reveal("ciphertext", "passive"), structured=True),
    ]
    return [
        MessageDeclaration(AlignmentHello, "passive", "active", Reveal("plain", "the sender's number of rows")),
        MessageDeclaration(Begin, "active", "passive", Reveal("plain", "the sender's number of rows")),
        *(psi_transfers.declares() if transfers else points),
        *psi_many.declares(len(passives)),
    ]


def align_active(work: AlignmentWork) -> NDArray[np.intp]:
    """Align as the active party: return its rows that all parties have, in the shared order."""
    hellos = {passive: work.channel.recv(passive, AlignmentHello) for passive in work.passives}  # 0
    for passive, hello in hellos.items():
        check_count(passive, "rows", hello.rows, 1, 1 << 40)
    rows = {passive: hello.rows for passive, hello in hellos.items()}
    transfers = work.granted is None and max(work.rows, *rows.values()) >= MANY
    kept = work.saved()
    resumes = (
        kept is not None
        and all(hello.saved == kept.nonce for hello in hellos.values())
        and kept.transfers == transfers
        and (not transfers or psi_transfers.ready(work))
    )
    nonce = kept.nonce if kept is not None and resumes else secrets.token_bytes(NONCE_BYTES)
    for passive in work.passives:
        streams = work.stream("back", passive), work.stream("store", passive)
        counts = [work.journal.count(stream) if resumes else 0 for stream in streams]
        work.channel.send(
            passive, Begin(work.rows, nonce, transfers, resumes, *counts), permit=permit_sizes(work.channel, passive)
        )  # 0
    work.start(nonce, transfers=transfers, resumes=resumes)
    done = {passive: hello.done if resumes else 0 for passive, hello in hellos.items()}
    return psi_many.lead(work, rows, done)


def align_passive(work: AlignmentWork) -> NDArray[np.intp]:
    """Align as a passive party: return its rows that all parties have, in the shared order."""
    kept = work.saved()
    done = 0 if kept is None else work.journal.count("theirs")
    hello = AlignmentHello(work.rows, b"" if kept is None else kept.nonce, done)
    work.channel.send(work.active, hello, permit=permit_sizes(work.channel, work.active))  # 0
    begin = work.channel.recv(work.active, Begin)  # 0
    check_count(work.active, "rows", begin.rows, 1, 1 << 40)
    check_granted(work, begin)
    fits = kept is not None and (kept.nonce, kept.transfers) == (begin.nonce, begin.transfers)
    if len(begin.nonce) != NONCE_BYTES or (begin.resumes and not fits):
        raise ProtocolError(f"{work.active} was expected to begin or go on with an alignment; start all parties again")
    work.start(begin.nonce, transfers=begin.transfers, resumes=begin.resumes)
    return psi_many.follow(work, begin)
