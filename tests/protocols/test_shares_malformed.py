"""Malformed messages of a training on shares, and messages under another key, raise typed errors.

Each test alters one message of one kind, in a job of three parties with an evaluation and scores. Wrong words of a ring
cannot be detected: L is a multiple of 8, so any bytes are words (docs/shares.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import securevfl as vfl
from securevfl.crypto.kernel import share_protocol
from securevfl.crypto.transfers import field_transfers
from securevfl.crypto.transfers.punctured_seeds import BLOCKS
from securevfl.errors import CryptoError, KeyMismatch, ProtocolError, RangeError, SecureVFLError
from securevfl.families.shares import shares_plan
from securevfl.runtime.channel import Channel
from tests.builders import cancer_parties, raises_code


def cut(data: bytes) -> bytes:
    return data[:-1]


def ones(data: bytes) -> bytes:
    """Replace the residues after the header by numbers that exceed every prime."""
    head = share_protocol.REPLY_HEADER.size
    return data[:head] + b"\xff" * (len(data) - head)


def other_key(data: bytes) -> bytes:
    return data[:4] + os.urandom(16) + data[20:]


def other_rows(data: bytes) -> bytes:
    """Increase the number of rows in the header of a query."""
    magic, key, n, c, r, s = share_protocol.QUERY_HEADER.unpack_from(data)
    return share_protocol.QUERY_HEADER.pack(magic, key, n + 1, c, r, s) + data[share_protocol.QUERY_HEADER.size :]


def other_columns(data: bytes) -> bytes:
    """Increase the number of columns in the header of a reply."""
    magic, key, c, r, s, d = share_protocol.REPLY_HEADER.unpack_from(data)
    return share_protocol.REPLY_HEADER.pack(magic, key, c, r, s, d + 4096) + data[share_protocol.REPLY_HEADER.size :]


def inconsistent(data: bytes) -> bytes:
    """Alter a receiver's message so that its choices differ from block to block, as if it cheated."""
    message = bytearray(data)
    octets = (len(message) - 16 * (field_transfers.COLUMNS + 1)) // BLOCKS
    for block in range(BLOCKS):
        message[block * octets] ^= 1 << block % 8
    return bytes(message)


def wrong_sums(data: bytes) -> bytes:
    """Alter both sums of a level of a tree."""
    return bytes([data[0] ^ 1]) + data[1:32] + bytes([data[32] ^ 1]) + data[33:]


def beyond(data: bytes) -> bytes:
    return b"\x40" + data[1:]


def another_level(publics: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(key[:4] + bytes([key[4] - 8]) + key[5:] for key in publics)


@dataclass(frozen=True)
class Case:
    """One altered message. The bank is the active party, the shop its partner; telco has columns only."""

    kind: str
    sender: str
    field: str
    change: Callable[[Any], Any]
    error: type[SecureVFLError]
    code: str


CASES = {
    "short nonce": Case("ProductGreeting", "telco", "nonce", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "invalid public key": Case(
        "ProductGreeting", "shop", "public", lambda _: bytes(32), CryptoError, "SVFL-CRYPTO-KEY"
    ),
    "missing public key": Case(
        "HolderKeys", "bank", "publics", lambda keys: keys[:-1], ProtocolError, "SVFL-PROTOCOL-SIZE"
    ),
    "truncated public key": Case(
        "HolderKeys", "shop", "publics", lambda keys: (cut(keys[0]), *keys[1:]), CryptoError, "SVFL-CRYPTO-CIPHERTEXT"
    ),
    "public key for another ring": Case("HolderKeys", "shop", "publics", another_level, CryptoError, "SVFL-CRYPTO-KEY"),
    "query under another key": Case("ProductQuery", "bank", "ciphertext", other_key, KeyMismatch, "SVFL-CRYPTO-KEY"),
    "truncated query": Case("ProductQuery", "shop", "ciphertext", cut, CryptoError, "SVFL-CRYPTO-CIPHERTEXT"),
    "query with residues out of range": Case(
        "ProductQuery", "bank", "ciphertext", ones, CryptoError, "SVFL-CRYPTO-CIPHERTEXT"
    ),
    "query about other rows": Case("ProductQuery", "shop", "ciphertext", other_rows, CryptoError, "SVFL-CRYPTO-SHAPE"),
    "query about another batch": Case(
        "ProductQuery", "bank", "batch", lambda batch: batch + 1, ProtocolError, "SVFL-PROTOCOL-MESSAGE"
    ),
    "reply under another key": Case("ProductReply", "telco", "ciphertext", other_key, KeyMismatch, "SVFL-CRYPTO-KEY"),
    "truncated reply": Case("ProductReply", "shop", "ciphertext", cut, CryptoError, "SVFL-CRYPTO-CIPHERTEXT"),
    "reply with residues out of range": Case(
        "ProductReply", "telco", "ciphertext", ones, CryptoError, "SVFL-CRYPTO-CIPHERTEXT"
    ),
    "reply with other columns": Case(
        "ProductReply", "shop", "ciphertext", other_columns, CryptoError, "SVFL-CRYPTO-CIPHERTEXT"
    ),
    "invalid offer": Case(
        "TransferOffer", "shop", "public", lambda _: b"\xff" * 32, CryptoError, "SVFL-PROTOCOL-CHEATING"
    ),
    "missing choices": Case(
        "TransferChoices", "bank", "points", lambda points: points[:-32], ProtocolError, "SVFL-PROTOCOL-SIZE"
    ),
    "inconsistent trees": Case("SeedTrees", "shop", "sums", wrong_sums, CryptoError, "SVFL-PROTOCOL-CHEATING"),
    "truncated trees": Case("SeedTrees", "shop", "sums", cut, CryptoError, "SVFL-PROTOCOL-SIZE"),
    "inconsistent corrections": Case(
        "TransferCorrections", "shop", "columns", inconsistent, CryptoError, "SVFL-PROTOCOL-CHEATING"
    ),
    "truncated corrections": Case("TransferCorrections", "shop", "columns", cut, CryptoError, "SVFL-PROTOCOL-SIZE"),
    "offsets out of range": Case("LookupRequest", "shop", "offsets", beyond, ProtocolError, "SVFL-PROTOCOL-VALUES"),
    "missing offsets": Case("LookupRequest", "shop", "offsets", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "request for another chunk": Case(
        "LookupRequest", "shop", "chunk", lambda name: name[::-1], ProtocolError, "SVFL-PROTOCOL-MESSAGE"
    ),
    "sum of another chunk": Case(
        "MaskedSum", "telco", "chunk", lambda name: name[::-1], ProtocolError, "SVFL-PROTOCOL-MESSAGE"
    ),
    "truncated sum": Case("MaskedSum", "telco", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated tables": Case("MaskedTables", "bank", "entries", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated carries": Case("LookupRequest", "shop", "carries", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated lift": Case("MaskedTables", "bank", "lifts", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated residual": Case("MaskedResidual", "shop", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "look-up offsets out of range": Case(
        "TableOffsets", "shop", "offsets", beyond, ProtocolError, "SVFL-PROTOCOL-VALUES"
    ),
    "truncated entries": Case("MaskedEntries", "bank", "entries", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated carry bits": Case("CarryBits", "shop", "bits", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated carry words": Case("CarryWords", "bank", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated sum of losses": Case("LossSum", "shop", "total", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated count": Case("OutOfRangeCount", "shop", "total", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "missing switch settings": Case("SwitchSettings", "shop", "bits", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated switch words": Case("SwitchWords", "bank", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated masked words": Case("MaskedWords", "bank", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "truncated shuffled words": Case("ShuffledWords", "shop", "words", cut, ProtocolError, "SVFL-PROTOCOL-SIZE"),
    "shuffled words out of range": Case(
        "ShuffledWords", "shop", "words", lambda words: b"\xff" * len(words), RangeError, "SVFL-PROTOCOL-VALUES"
    ),
}


@pytest.fixture(scope="module")
def training() -> tuple[vfl.Job, list[vfl.Party]]:
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=10, partner="shop", metrics_range=4, metrics_step=0.125)),
        batch_size="all",
        epochs=10,
        test_fraction=0.3,
    )
    return job, cancer_parties(3, rows=70)


@pytest.mark.parametrize("name", CASES)
def test_an_altered_message_raises_a_typed_error(
    name: str, training: tuple[vfl.Job, list[vfl.Party]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, send, altered = CASES[name], Channel.send, []
    if case.field in ("carries", "lifts"):
        monkeypatch.setattr(shares_plan, "MIN_LIFTED_ROWS", 1)

    def alter(self: Channel, to: str, message: Any, subchannel: str = "", *, permit: Any = None) -> None:
        if (
            type(message).__name__ == case.kind
            and self.me == case.sender
            and getattr(message, case.field) != b""
            and not altered
        ):
            changed = case.change(getattr(message, case.field))
            message = msgspec.structs.replace(message, **{case.field: changed})
            altered.append(message)
        send(self, to, message, subchannel, permit=permit)

    monkeypatch.setattr(Channel, "send", alter)
    with raises_code(case.error, case.code) as caught:
        vfl.simulate(*training, workers=1)
    assert altered
    assert case.kind not in ("ProductQuery", "ProductReply") or type(caught.value) is case.error
    assert not any(text in str(caught.value) for text in ("0x", "\\x"))  # no received bytes
