"""Key streams of whole runs: no party begins one that it has begun before, in the tenth chunk or round either.

A generator begins its streams at number 0, and numbers go up while it lives. So a second generator of the same key and
label at one party repeats the first one's masks; the two ends of a pair hold one each.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import securevfl as vfl
from securevfl.crypto.prg import Prg
from securevfl.data.party import register_of
from tests.disclosure.test_account import EXAMPLES, example

ENDS = 2  # of a key that a pair shares
ROUNDS = 12
# What is expanded again wherever it is read: public polynomials, offsets of random features that all parties draw
# alike, and masks of stored payloads, of which a reader takes off one for each payload as often as it pulls it.
READ_AGAIN = "public ", "offset", "mask of a stored payload"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_no_key_stream_is_begun_twice_by_a_party_in_many_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin, lock = Counter[bytes](), Prg.__init__, threading.Lock()

    def counted(own: Prg, key: bytes, label: str) -> None:
        begin(own, key, label)
        with lock:
            begun[own._key] += not label.startswith(READ_AGAIN)

    monkeypatch.setattr(Prg, "__init__", counted)
    job, parties = example(name, epochs=1)
    shares = job.protocol.shares
    if shares is not None:  # a chunk a visit, as streams begin with chunks
        protocol = job.protocol.model_copy(update={"shares": shares.model_copy(update={"chunk": 1})})
        job = job.model_copy(update={"protocol": protocol})
    visits = max(1, len(job.schedule(register_of(parties))))
    vfl.simulate(job.model_copy(update={"epochs": -(-ROUNDS // visits)}), parties)
    assert max(begun.values(), default=0) <= ENDS
