"""Key streams of whole runs: no party starts the same stream twice, not even in the tenth chunk or round.

Pair keys are agreed for one subchannel and one purpose of a session. A generator starts its streams at number 0 and
increases numbers during its life. So a second generator with the same key and label at one party would repeat the masks
of the first. The two ends of a pair have one generator each.
"""

from __future__ import annotations

import hmac
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import securevfl as vfl
from securevfl.crypto import key_derivation
from securevfl.crypto.key_agreement import KeyPair
from securevfl.data.party import register_of
from tests.disclosure.test_account import EXAMPLES, example

ENDS = 2  # parties that share a pair key
ROUNDS = 12
# variants of "shares" whose rounds are the same: they differ in the loss, in the columns, or in what is opened after
# the last round
SAME_ROUNDS = ("shares, counts", "shares, scores to another", "shares, trees", "shares, weights opened")
# Keys that are derived again on every use: of public polynomials, of offsets of random features that all parties draw
# alike, of masks of stored payloads (the numbers of a batch and a version), and of the order of a table.
READ_AGAIN = (
    b"public ", b"offset", b"fdskl", b"mask of a stored payload", b"securevfli",
    b"numbers of rows", b"partition", b"name of a table",
)  # fmt: skip


@pytest.fixture
def agreed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, ...]]]:
    """Check how often each party agrees on a key with each other party, by session, subchannel and purpose: once."""
    result, agree, lock = Counter[tuple[str, ...]](), KeyPair.agree, threading.Lock()

    def agreeing(pair: KeyPair, public: bytes, **context: str) -> bytes:
        with lock:
            result[tuple(context[key] for key in ("party", "peer", "session", "domain"))] += 1
        return agree(pair, public, **context)

    monkeypatch.setattr(KeyPair, "agree", agreeing)
    yield result
    assert set(result.values()) <= {1}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.usefixtures("agreed")
def test_no_key_stream_is_begun_twice_by_a_party_in_many_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is any key derived twice, for which a message may reveal one of two values that must differ."""
    begun, lock = Counter[tuple[bytes, bytes]](), threading.Lock()

    def counted(key: bytes, info: bytes, digest: str) -> bytes:
        with lock:
            begun[key, info] += not any(label in info for label in READ_AGAIN)
        return hmac.digest(key, info, digest)

    monkeypatch.setattr(key_derivation, "hmac", SimpleNamespace(digest=counted))
    job, parties = example(name, epochs=1)
    shares = job.protocol.shares
    if shares is not None:  # one chunk an iteration, because streams start with chunks
        protocol = job.protocol.model_copy(update={"shares": shares.model_copy(update={"chunk": 1})})
        job = job.model_copy(update={"protocol": protocol})
    visits = max(1, len(job.schedule(register_of(parties))))
    rounds = 2 if name in SAME_ROUNDS else ROUNDS
    vfl.simulate(job.model_copy(update={"epochs": -(-rounds // visits)}), parties)
    assert begun
    assert not [info for (_, info), count in begun.items() if count > ENDS]


def test_keys_of_several_sums_belong_to_one_collector_each(agreed: Counter[tuple[str, ...]]) -> None:
    (bank, *others), labels = vfl.datasets.breast_cancer(parties=4), vfl.datasets.breast_cancer(parties=4)[0].y
    parties = [bank, vfl.Party(others[0].name, others[0].X, labels, ids=others[0].ids), *others[1:]]
    job = vfl.Job(
        model=vfl.Kernel(gamma=0.1, blocks=2, block_size=32),
        optimizer=vfl.FDSKL(),
        protocol=vfl.Protocol(sum=vfl.PairwiseSum()),
        epochs=1,
    )
    vfl.simulate(job, parties)
    assert len({session for _, _, session, _ in agreed}) > 1
