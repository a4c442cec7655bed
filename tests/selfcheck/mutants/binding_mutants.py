"""Mutants (deliberate errors) of the inputs on which signatures, keys, hashes and encrypted bytes must depend."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np

from securevfl.crypto import key_agreement, key_derivation
from securevfl.crypto.transfers import base_transfers
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.models import inputs
from securevfl.protocols.alignment.psi_work import AlignmentWork
from securevfl.transport import end_to_end, secure_transport
from securevfl.transport.end_to_end import EndToEndSession
from selfcheck.mutants.mutant import Mutant, Stand, patched


def _claim_of_sender(session: bytes, sender: str, receiver: str) -> bytes:
    return b"securevfl identity 1" + hashlib.sha256(sender.encode()).digest()


def _proof_of_sender(sender: str, receiver: str, offer: Any, other: Any) -> bytes:
    return b"securevfl seal 1" + end_to_end._digest(sender, offer)


class _OneNonce:
    """SHA-256 that uses only the first party's name and nonce."""

    def __init__(self, data: bytes = b"") -> None:
        self._inner, self._full = hashlib.sha256(data), False

    def update(self, data: bytes) -> None:
        if not self._full:
            self._inner.update(data)
        self._full = True

    def digest(self) -> bytes:
        return self._inner.digest()


def _no_nonce(size: int) -> bytes:
    return bytes(size)


_values = PrfHash.values


def _values_of_sums(self: Any, sums: Any, keys: Any) -> Any:
    return _values(self, sums, np.zeros_like(keys))


def _key_of_point(number: int, offer: bytes, point: bytes, shared: bytes) -> bytes:
    return hashlib.blake2b(shared, digest_size=32, person=b"securevfl ot").digest()


class _OfItsName:
    """SHAKE-256 that absorbs only its initial input."""

    def __init__(self, data: bytes) -> None:
        self._inner = hashlib.shake_256(data)

    def update(self, data: bytes) -> None:
        return

    def digest(self, size: int) -> bytes:
        return self._inner.digest(size)


_encode = key_derivation.encode_context


def _no_names(*parts: Any) -> bytes:
    return _encode(*parts[:4])


def _cut_parts(*parts: Any) -> bytes:
    return _encode(*(part if isinstance(part, int) else part[:32] for part in parts))


_zero_share = AlignmentWork.zero_share


def _shares_with_active(self: Any) -> Any:
    """Passive parties agree on masks only with the active party, which then knows every mask."""
    pair_keys = self.pair_keys
    if self.me != self.active:
        self.pair_keys = {self.active: pair_keys[self.active]} if pair_keys else {}
    try:
        return _zero_share(self)
    finally:
        self.pair_keys = pair_keys


MUTANTS = [
    Mutant(
        "SessionProof: signature of the name alone",
        "a signature of another session, or for another receiver, will do",
        "signatures are bound",
        "bound",
        patched((secure_transport, "_claim", _claim_of_sender)),
    ),
    Mutant(
        "hub: proof of the sender's offer alone",
        "a proof made for another receiver, or another offer of its, will do",
        "signatures are bound",
        "bound",
        patched((EndToEndSession, "_claim", staticmethod(_proof_of_sender))),
    ),
    Mutant(
        "session: one nonce for all",
        "of everyone's nonces one enters the session, whose sender may make it happen twice",
        "signatures are bound",
        "bound",
        patched((secure_transport, "hashlib", Stand(hashlib, sha256=_OneNonce))),
    ),
    Mutant(
        "greetings without a nonce",
        "two runs of one job are one session",
        "signatures are bound",
        "fresh",
        patched((secure_transport, "secrets", Stand(secrets, token_bytes=_no_nonce))),
    ),
    Mutant(
        "transfers: hash without the key",
        "F(x) is a hash of the sum alone",
        "transfers are known answers",
        "derived",
        patched((PrfHash, "values", _values_of_sums)),
    ),
    Mutant(
        "base transfers: keys of the shared point alone",
        "neither the number of a transfer nor its points enter its keys",
        "transfers are known answers",
        "derived",
        patched((base_transfers, "_key", _key_of_point)),
    ),
    Mutant(
        "start: weights of the seed and the shape",
        "anyone can compute the active party's first weights",
        "first weights follow the table",
        "derived",
        patched((inputs, "hashlib", Stand(hashlib, shake_256=_OfItsName))),
    ),
    Mutant(
        "agreement: names not bound",
        "neither names nor public keys enter an agreed key",
        "agreed keys are known answers",
        "derived",
        patched((key_agreement, "encode_context", _no_names)),
    ),
    Mutant(
        "keys: contexts cut",
        "of each part of a key's context 32 characters count, so that subchannels share keys",
        "agreed keys are known answers",
        "derived",
        patched((key_derivation, "encode_context", _cut_parts), (key_agreement, "encode_context", _cut_parts)),
    ),
    Mutant(
        "alignment: no zero sharing between passive parties",
        "the active party reads from each store which ids one party has",
        "alignment recomputed",
        "derived",
        patched((AlignmentWork, "zero_share", _shares_with_active)),
    ),
]
