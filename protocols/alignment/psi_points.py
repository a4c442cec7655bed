"""The oblivious pseudorandom function of alignment by elliptic-curve points, for small sets of ids.

P_1 is the active party with the ids X_1, and P_i a passive party. H hashes an id to a point of an elliptic curve. The
secret scalar of P_i is b_i, and that of P_1 is a. The pseudorandom function (PRF) of P_i is

    F_i(y) = Hash(H(y), b_i * H(y)), 32 bytes

P_1 learns it on its ids, which P_i does not see (Diffie-Hellman; Jarecki, Kiayias, Krawczyk 2014):

1. P_1 -> P_i  the points a * H(x) for all x in X_1, sorted
2. P_i -> P_1  these points multiplied by b_i, in the same order
   P_1         divides by a, and computes F_i(x) = Hash(H(x), b_i * H(x))

Comments refer to these steps by number. P_i sees points that are pseudorandom under the decisional Diffie-Hellman
assumption. P_1 learns F_i only on its ids. Lists are sent in chunks of 65,536 points. Each party stores its completed
work in a journal, so that an interrupted alignment can resume (psi_work.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.curve import POINT_BYTES, hash_to_group, sort_points
from securevfl.crypto.share_ring import Words
from securevfl.protocols.alignment.psi_work import (
    ITEMS_PER_MESSAGE,
    AlignmentStart,
    AlignmentWork,
    TwiceBlinded,
    check_count,
    check_size,
    chunk_rows,
    chunks,
    words,
)


def questions(rows: int) -> int:
    """Return about how many ids P_1 can ask about if it has stated `rows` rows: one id for each point."""
    return rows


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """Run the side of P_1: send its points to all passive parties.

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        done: for each passive party, the number of chunks of points that it received before an interruption.

    Returns:
        A function that receives the answers of a passive party, given by name, and returns F_i on P_1's ids as words
        (n, 4).
    """
    for passive in work.passives:
        check_count(passive, "chunks", done[passive], 0, chunks(work.rows))
    work.expect(work.rows * (1 + len(work.passives)))
    points = hash_to_group(work.ids, work.executor)
    sorted_blinded, order = sort_points(work.blinded(points))
    for number in range(min(done.values()), chunks(work.rows)):
        for passive in work.passives:
            if number >= done[passive]:
                work.send_points(passive, sorted_blinded, number)  # step 1
    sorted_points = _take(points, order)

    def answers(passive: str) -> Words:
        values = np.empty((work.rows, 4), np.uint64)
        stream = work.stream("back", passive)
        for number in range(chunks(work.rows)):
            if number >= work.journal.count(stream):
                points = work.channel.recv(passive, TwiceBlinded).points  # step 2
                check_size(passive, "points", points, POINT_BYTES, number, work.rows)
                start = number * ITEMS_PER_MESSAGE * POINT_BYTES
                hashed = sorted_points[start : start + len(points)]
                answer = _prf(hashed, work.blinder.unblind(points, work.executor))
                work.journal.append(stream, answer.tobytes())
            work.add_progress(chunk_rows(work.rows, number))
        values[order] = words(work.journal.read(stream), 4)
        return values

    return answers


def serve(work: AlignmentWork, begin: AlignmentStart) -> Callable[[], Words]:
    """Run the side of P_i: multiply P_1's points, and send them back.

    Args:
        work: this party's state in the alignment: its ids, secrets, journal and channel.
        begin: P_1's message that started the alignment.

    Returns:
        A function that computes F_i on P_i's ids as words (n, 4).
    """
    check_count(work.active, "chunks", begin.first, 0, chunks(begin.rows))
    work.expect(work.rows + begin.rows)
    points = hash_to_group(work.ids, work.executor)
    blinded = work.blinded(points)
    for number, chunk in enumerate(work.blind_theirs(work.active, begin.rows)):  # step 1
        if number >= begin.first:
            work.channel.send(work.active, TwiceBlinded(chunk))  # step 2
    return partial(_prf, points, blinded)


def _prf(points: bytes, blinded: bytes) -> Words:
    hashed = b"".join(
        hashlib.blake2b(
            points[start : start + POINT_BYTES] + blinded[start : start + POINT_BYTES],
            digest_size=32,
            person=b"oblivious prf",
        ).digest()
        for start in range(0, len(points), POINT_BYTES)
    )
    return np.frombuffer(hashed, np.uint64).reshape(-1, 4)


def _take(points: bytes, rows: NDArray[np.intp]) -> bytes:
    return np.frombuffer(points, np.uint8).reshape(-1, POINT_BYTES)[rows].tobytes()
