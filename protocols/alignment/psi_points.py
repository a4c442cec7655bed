"""The oblivious PRF of alignment by Diffie-Hellman (Jarecki, Kiayias, Krawczyk 2014): for small sets.

    F_i(y) = Hash(H(y), b_i H(y)),  H to the curve, b_i the scalar of P_i

1. P_1 -> P_i  q = sort(a H(x)) for x in X_1
2. P_i -> P_1  b_i q in the order of 1
   P_1         Hash(H(x), b_i q without a)

P_i sees points that are noise under decisional Diffie-Hellman; P_1 has F_i on its own ids alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from securevfl.crypto.curve import POINT_BYTES, sort_points
from securevfl.crypto.transfers.okvs import Words
from securevfl.protocols.alignment.psi_work import (
    CHUNK,
    AlignmentWork,
    Begin,
    TwiceBlinded,
    as_rows,
    check_count,
    check_size,
    chunk_rows,
    chunks,
    take,
    words,
)


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """P_1: sends what each P_i lacks; returns what gives F_i on P_1's ids, (n, 2)."""
    for passive in work.passives:
        check_count(passive, "chunks", done[passive], 0, chunks(work.rows))
    work.expect(work.rows * (1 + len(work.passives)))
    mine, order = sort_points(work.blinded())
    for number in range(min(done.values()), chunks(work.rows)):
        for passive in work.passives:
            if number >= done[passive]:
                work.send_points(passive, mine, number)  # 1
    sorted_points = take(work.keys, order)

    def answers(passive: str) -> Words:
        own = np.empty((work.rows, 2), np.uint64)
        own[order] = _answers(work, passive, sorted_points)
        return own

    return answers


def _answers(work: AlignmentWork, passive: str, sorted_points: bytes) -> Words:
    stream = work.stream("back", passive)
    for number in range(chunks(work.rows)):
        if number >= work.journal.count(stream):
            points = work.channel.recv(passive, TwiceBlinded).points  # 2
            check_size(passive, "points", points, POINT_BYTES, number, work.rows)
            start = number * CHUNK * POINT_BYTES
            hashed = sorted_points[start : start + len(points)]
            answer = _prf(work, hashed, work.blinder.unblind(points, work.executor))
            work.journal.append(stream, answer.tobytes())
        work.did(chunk_rows(work.rows, number))
    return words(work.journal.whole(stream))


def serve(work: AlignmentWork, begin: Begin) -> Callable[[], Words]:
    """P_i: answers P_1; returns what gives F_i on P_i's ids, (n, 2)."""
    check_count(work.active, "chunks", begin.first, 0, chunks(begin.rows))
    work.expect(work.rows + begin.rows)
    blinded = work.blinded()
    for number, chunk in enumerate(work.blind_theirs(work.active, begin.rows)):  # 1
        if number >= begin.first:
            work.channel.send(work.active, TwiceBlinded(chunk))  # 2
    return partial(_prf, work, work.keys, blinded)


def _prf(work: AlignmentWork, points: bytes, blinded: bytes) -> Words:
    both = np.concatenate([as_rows(points, POINT_BYTES), as_rows(blinded, POINT_BYTES)], axis=1)
    return work.digests(both.tobytes(), b"", b"oblivious prf", 2 * POINT_BYTES)
