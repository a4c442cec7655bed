"""Inputs of derived values: each input is changed separately, and the value must change.

`TABLE` has one row for each digest, key, tag and claim: its function, its inputs by name, and another value of each.
Nothing here is random: a value that ignores an input is found every time.

bound       a value that stays the same when one of its inputs changes
fresh       one that changes when none does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto import share_scheme
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.transfers.ot_extension import OtSender
from securevfl.crypto.transfers.row_hash import RowHash, tweaks
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.data.register import Register
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.defences import Noise
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import table_transfers
from securevfl.transport import secure_transport
from securevfl.transport.end_to_end import EndToEndSession, KeyOffer

__all__ = ["CHECKS", "TABLE", "Derived"]

_A, _B = bytes(range(32)), bytes(range(1, 33))


@dataclass(frozen=True)
class Derived:
    """A value and its inputs: `make` takes `inputs` by name, `other` has another value of each."""

    what: str
    make: Callable[..., bytes]
    inputs: Mapping[str, Any]
    other: Mapping[str, Any]


@lru_cache(maxsize=4)
def _ledger(key: bytes) -> ScoreLedger:
    ledger = ScoreLedger(None)
    ledger._file.key = key
    return ledger


@lru_cache(maxsize=4)
def _pair(number: int) -> KeyPair:
    return KeyPair()


def _commitment(key: bytes, row: bytes, X: bytes) -> bytes:
    return _ledger(key).commitments([row], np.frombuffer(X, "<f8").reshape(1, -1))


def _challenge(coin: bytes, number: int, first: bytes, middle: bytes, last: bytes) -> bytes:
    """Return the tags of one fixed column, which differ by the challenge alone."""
    end, column = OtSender(bytes(16), [_A] * 128, coin), np.arange(64, dtype=np.uint8).reshape(1, 64)
    return end._tags(number, first + middle + last, column)


def _agreed(pair: int, peer: int, session: str, party: str, name: str, domain: str) -> bytes:
    return _pair(pair).agree(_pair(peer).public, session=session, party=party, peer=name, domain=domain)


def _hashed(key: bytes, number: int, purpose: int, choice: int, x: int) -> bytes:
    tweak = tweaks(number, 1, purpose)
    tweak[:, 1] |= np.uint64(choice << 8)
    return RowHash(key)(np.full((1, 2), x, np.uint64), tweak).tobytes()


def _value(coin: bytes, z: int, x: int) -> bytes:
    """Return F (the PRF of the alignment) of one sum and one key."""
    return PrfHash(coin).values(np.full((1, 2), z, np.uint64), np.full((1, 2), x, np.uint64)).tobytes()


def _offer(number: int) -> KeyOffer:
    return KeyOffer(bytes([number]) * 32, b"a certificate")


def _digest_of_job(**keys: Any) -> bytes:
    return Job(model=Logistic(), optimizer=FedSGD(lr=0.1), protocol=Protocol(residual="open"), **keys).digest


_JOB: dict[str, Any] = {"batch_size": 64, "epochs": 3, "seed": 1, "test_fraction": 0.25, "reshuffle": False}

TABLE = (
    Derived(
        "the commitment to a row that is scored",
        _commitment,
        {"key": _A, "row": b"one", "X": bytes(16)},
        {"key": _B, "row": b"two", "X": bytes(15) + b"\1"},
    ),
    Derived(
        "the challenge to columns of transfers",
        _challenge,
        {"coin": _A, "number": 0, "first": bytes(64), "middle": bytes(64), "last": bytes(64)},
        {"coin": _B, "number": 1, "first": b"\1" + bytes(63), "middle": b"\1" + bytes(63), "last": bytes(63) + b"\1"},
    ),
    Derived(
        "an agreed key",
        _agreed,
        {"pair": 1, "peer": 2, "session": "s", "party": "a", "name": "b", "domain": "d"},
        {"pair": 3, "peer": 4, "session": "t", "party": "c", "name": "e", "domain": "f"},
    ),
    Derived(
        "the coin of a key for shared products",
        lambda holder, evaluator, chunk, purpose: share_scheme.common_coin(holder, evaluator, chunk, purpose),
        {"holder": _A, "evaluator": _B, "chunk": 1, "purpose": "x"},
        {"holder": _B, "evaluator": _A, "chunk": 2, "purpose": "y"},
    ),
    Derived(
        "a derived key",
        lambda key, first, second: derive_key(key, first, second),
        {"key": _A, "first": "a", "second": 1},
        {"key": _B, "first": b"a", "second": 2},
    ),
    Derived(
        "a keystream",
        lambda key, label, number: Prg(key, label).array(2, np.uint64, number=number).tobytes(),
        {"key": _A, "label": "a", "number": 0},
        {"key": _B, "label": "b", "number": 1},
    ),
    Derived(
        "the noise of a defence",
        lambda key, subchannel, number: Noise(key, subchannel, number).take().array(2, np.uint64).tobytes(),
        {"key": _A, "subchannel": "a", "number": 0},
        {"key": _B, "subchannel": "b", "number": 1},
    ),
    Derived(
        "a pad of transfers",
        _hashed,
        {"key": bytes(16), "number": 1, "purpose": 1, "choice": 0, "x": 1},
        {"key": _A[:16], "number": 2, "purpose": 2, "choice": 1, "x": 2},
    ),
    Derived(
        "a seed of transfers of one conversation and purpose",
        lambda seed, subchannel, purpose: table_transfers.derived_seeds((seed,), subchannel, purpose)[0],
        {"seed": _A, "subchannel": "", "purpose": "tops"},
        {"seed": _B, "subchannel": "/ahead", "purpose": "switches"},
    ),
    Derived(
        "a value of the PRF of an id",
        _value,
        {"coin": _A, "z": 1, "x": 2},
        {"coin": _B, "z": 3, "x": 4},
    ),
    Derived(
        "a party's signature of a session",
        lambda session, sender, receiver: secure_transport._claim(session, sender, receiver),
        {"session": bytes(16), "sender": "shop", "receiver": "bank"},
        {"session": b"\1" * 16, "sender": "telco", "receiver": "telco"},
    ),
    Derived(
        "a party's signature of a sealed session",
        lambda sender, receiver, offer, other: EndToEndSession._claim(sender, receiver, _offer(offer), _offer(other)),
        {"sender": "shop", "receiver": "bank", "offer": 1, "other": 2},
        {"sender": "telco", "receiver": "telco", "offer": 3, "other": 3},
    ),
    Derived(
        "the key of a table's rows",
        lambda first, last: Register.of_ids(np.array([list(first), list(last)], np.uint8)).key,
        {"first": bytes(16), "last": b"\2" * 16},
        {"first": bytes(15) + b"\1", "last": b"\2" * 15 + b"\3"},
    ),
    Derived(
        "the digest of a job",
        _digest_of_job,
        _JOB,
        {"batch_size": 65, "epochs": 4, "seed": 2, "test_fraction": 0.3, "reshuffle": True},
    ),
)


def bindings(table: tuple[Derived, ...] = TABLE) -> Outcome:
    """Check every row of the table."""
    outcome = Outcome()
    for derived in table:
        value = derived.make(**derived.inputs)
        if derived.make(**derived.inputs) != value:
            outcome.add("fresh", derived.what, "changes though none of its inputs does")
        for name, other in derived.other.items():
            if derived.make(**{**derived.inputs, name: other}) == value:
                outcome.add("bound", derived.what, f"does not follow from {name}")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {"derived values": bindings}
