"""Private alignment: which ids all parties have, and an order of those rows that all share (semi-honest parties).

Two parties of fewer than 4,096 rows each, A active and B passive, by blinded points (Meadows 1986; Huberman, Franklin,
Hogg 1999). H hashes an id to the curve, a and b are scalars fresh for this alignment, lists of points are sent in the
order of their bytes, which depends on the set alone.

0. B -> A     rows;  A -> B  rows, nonce, which flow
1. A -> B     sort(a H(x)) for x in X
2. B -> A     sort(b H(y)) for y in Y, then b (a H(x)) in the order of 1
   A          matches a (b H(y)) with b (a H(x))
3. A -> B     which of B's sorted points match

B sees points that are noise under decisional Diffie-Hellman, then which of its own ids are common. A sees b H(y) as
noise and matches it with its own: which of its ids are common. So each learns X n Y and the other's number of rows,
not which of the other's rows a match is in, nor anything of ids that do not match.

Larger sets, and three parties or more, take the flow of psi_many.py: for larger sets without products on the curve for
each id, which are what takes the time here (docs/benchmarks.md).

The shared order is ascending by Hash(nonce, H(x)), 16 bytes, H(x) a digest where no points are made: it depends on the
common ids and the nonce, not on anyone's rows.

A party may ask only about ids it puts into its set, and the size of its set is seen. Nothing here stops it from
putting in ids it does not have: that is an assumption (semi-honest), and guessing costs one entry a guess. Where the
others have granted it a number of ids, they hold it to these before any point of theirs leaves, and it asks by points.

An alignment that broke off goes on from the last whole chunk if every party kept its journal: the same secrets and
stores for the same ids, so the others see nothing new. If one has lost it, all start afresh with new secrets.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.curve import POINT_BYTES, common_positions, sort_points
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi_many, psi_transfers
from securevfl.protocols.alignment.psi_work import (
    AlignmentHello,
    AlignmentWork,
    Begin,
    Journal,
    Points,
    TwiceBlinded,
    check_count,
    check_granted,
    check_size,
    chunks,
)
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.giving import sizes
from securevfl.runtime.door import Telling

__all__ = ["AlignmentWork", "Journal", "align_active", "align_passive", "declares"]

NONCE_BYTES = 16
MANY = 4096  # rows from which transfers are quicker than points


class Matches(Telling, frozen=True):
    """One bit for each point the receiver sent, in its order."""

    bits: bytes


def declares(passives: Sequence[str], *, transfers: bool) -> list[Declared]:
    """Declare what each message of an alignment with these passive parties reveals."""
    both = Reveal("output", "which of the receiver's ids both have")
    points = [
        Declared(Points, "active", "passive", Reveal("ciphertext", "active"), structured=True),
        Declared(TwiceBlinded, "passive", "active", Reveal("ciphertext", "passive"), structured=True),
    ]
    if len(passives) == 1 and not transfers:
        own = [
            Declared(Points, "passive", "active", both, structured=True),
            Declared(Matches, "active", "passive", both),
        ]
    else:
        own = psi_many.declares(len(passives))
    return [
        Declared(AlignmentHello, "passive", "active", Reveal("plain", "the sender's number of rows")),
        Declared(Begin, "active", "passive", Reveal("plain", "the sender's number of rows")),
        *(psi_transfers.declares() if transfers else points),
        *own,
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
    two = _by_points(work, transfers=transfers)
    for passive in work.passives:
        first, second = ("theirs", "back") if two else (work.stream("back", passive), work.stream("store", passive))
        counts = (work.journal.count(first), work.journal.count(second)) if resumes else (0, 0)
        work.channel.send(
            passive, Begin(work.rows, nonce, transfers, resumes, *counts), told=sizes(work.channel, passive)
        )  # 0
    work.start(nonce, transfers=transfers, resumes=resumes)
    done = {passive: hello.done if resumes else 0 for passive, hello in hellos.items()}
    return _match(work, rows, done) if two else psi_many.lead(work, rows, done)


def align_passive(work: AlignmentWork) -> NDArray[np.intp]:
    """Align as a passive party: return its rows that all parties have, in the shared order."""
    kept = work.saved()
    done = 0 if kept is None else work.journal.count("theirs")
    hello = AlignmentHello(work.rows, b"" if kept is None else kept.nonce, done)
    work.channel.send(work.active, hello, told=sizes(work.channel, work.active))  # 0
    begin = work.channel.recv(work.active, Begin)  # 0
    check_count(work.active, "rows", begin.rows, 1, 1 << 40)
    check_granted(work, begin)
    fits = kept is not None and (kept.nonce, kept.transfers) == (begin.nonce, begin.transfers)
    if len(begin.nonce) != NONCE_BYTES or (begin.resumes and not fits):
        raise ProtocolError(f"{work.active} was expected to begin or go on with an alignment; start all parties again")
    work.start(begin.nonce, transfers=begin.transfers, resumes=begin.resumes)
    return _answer(work, begin) if _by_points(work, transfers=begin.transfers) else psi_many.follow(work, begin)


def _by_points(work: AlignmentWork, *, transfers: bool) -> bool:
    """Whether two parties match points directly."""
    return len(work.passives) == 1 and not transfers


def _match(work: AlignmentWork, passive_rows: dict[str, int], done: dict[str, int]) -> NDArray[np.intp]:
    """Match the active party's rows with those of the one passive party, where there are two parties."""
    ((passive, rows),) = passive_rows.items()
    check_count(passive, "chunks", done[passive], 0, chunks(work.rows))
    work.expect(work.rows + rows)
    mine, order = sort_points(work.blinded())
    for number in range(done[passive], chunks(work.rows)):
        work.send_points(passive, mine, number)  # 1
    theirs = b"".join(work.blind_theirs(passive, rows))  # 2
    for number in range(work.journal.count("back"), chunks(work.rows)):
        points = work.channel.recv(passive, TwiceBlinded).points  # 2
        check_size(passive, "points", points, POINT_BYTES, number, work.rows)
        work.journal.append("back", points)
    back = work.journal.whole("back")
    own, other = common_positions(back, theirs), common_positions(theirs, back)
    if len(own) != len(other):
        raise ProtocolError(f"{passive} was expected to return one point for each it received; some came back twice")
    matches = np.zeros(rows, np.bool_)
    matches[other] = True
    work.channel.send(passive, Matches(np.packbits(matches).tobytes()), told=work.names(passive, rows))  # 3
    return work.in_shared_order(np.sort(order[own]))


def _answer(work: AlignmentWork, begin: Begin) -> NDArray[np.intp]:
    """B of two parties."""
    work.expect(work.rows + begin.rows)
    check_count(work.active, "chunks", begin.first, 0, chunks(work.rows))
    check_count(work.active, "chunks", begin.second, 0, chunks(begin.rows))
    mine, order = sort_points(work.blinded())
    for number in range(begin.first, chunks(work.rows)):
        work.send_points(work.active, mine, number)  # 2
    for number, chunk in enumerate(work.blind_theirs(work.active, begin.rows)):  # 1
        if number >= begin.second:
            work.channel.send(work.active, TwiceBlinded(chunk))  # 2
    bits = work.channel.recv(work.active, Matches).bits  # 3
    if len(bits) != -(-work.rows // 8):
        raise ProtocolError(f"{work.active} was expected to mark {work.rows} points, {len(bits)} bytes of marks came")
    matches = np.unpackbits(np.frombuffer(bits, np.uint8), count=work.rows).astype(np.bool_)
    return work.in_shared_order(np.sort(order[matches]))
