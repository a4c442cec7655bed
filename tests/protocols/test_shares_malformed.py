"""A party of a training on shares that sends something malformed, or under another key, is told apart by a typed error.

Every kind of message is altered once on its way, in a whole job of three parties with a measurement and scores. What
cannot be told is that words of a ring are the wrong ones: L is whole bytes, so any bytes are words (docs/shares.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.kernel import share_protocol
from securevfl.crypto.transfers import ot_extension
from securevfl.errors import CryptoError, KeyMismatch, ProtocolError, RangeError, SecureVFLError
from securevfl.runtime.channel import Channel


def cut(data: bytes) -> bytes:
    return data[:-1]


def ones(data: bytes) -> bytes:
    """Residues beyond every prime, behind the header."""
    head = share_protocol.REPLY_HEADER.size
    return data[:head] + b"\xff" * (len(data) - head)


def other_key(data: bytes) -> bytes:
    return data[:4] + os.urandom(16) + data[20:]


def other_rows(data: bytes) -> bytes:
    """A query that names a row more than it has."""
    magic, key, n, c, r, s = share_protocol.QUERY_HEADER.unpack_from(data)
    return share_protocol.QUERY_HEADER.pack(magic, key, n + 1, c, r, s) + data[share_protocol.QUERY_HEADER.size :]


def other_columns(data: bytes) -> bytes:
    """An answer that names more columns than it has."""
    magic, key, c, r, s, d = share_protocol.REPLY_HEADER.unpack_from(data)
    return share_protocol.REPLY_HEADER.pack(magic, key, c, r, s, d + 4096) + data[share_protocol.REPLY_HEADER.size :]


def odd(data: bytes) -> bytes:
    """Columns that carry several choices, as a cheating chooser's would."""
    message = bytearray(data)
    octets = (len(message) - 16 * (ot_extension.BASE_TRANSFERS + 1)) // ot_extension.BASE_TRANSFERS
    for j in range(ot_extension.BASE_TRANSFERS):
        message[j * octets] ^= 1 << j % 8
    return bytes(message)


def beyond(data: bytes) -> bytes:
    return b"\x40" + data[1:]


def another_level(publics: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(each[:4] + bytes([each[4] - 8]) + each[5:] for each in publics)


@dataclass(frozen=True)
class Case:
    kind: str
    sender: str  # bank is the active party, shop its partner, telco has columns alone
    field: str
    change: Callable[[Any], Any]
    error: type[SecureVFLError]
    says: str


CASES = {
    "a nonce that is short": Case("ProductGreeting", "telco", "nonce", cut, ProtocolError, "nonce"),
    "a key that is no point": Case("ProductGreeting", "shop", "public", lambda _: bytes(32), CryptoError, ""),
    "a key too few": Case("HolderKeys", "bank", "publics", lambda own: own[:-1], ProtocolError, "public keys"),
    "a key that is cut": Case("HolderKeys", "shop", "publics", lambda own: (cut(own[0]), *own[1:]), CryptoError, ""),
    "a key for another ring": Case("HolderKeys", "shop", "publics", another_level, CryptoError, "one L"),
    "a query under another key": Case("ProductQuery", "bank", "ciphertext", other_key, KeyMismatch, "another key"),
    "a query that is cut": Case("ProductQuery", "shop", "ciphertext", cut, CryptoError, "expected"),
    "a query of residues beyond": Case("ProductQuery", "bank", "ciphertext", ones, CryptoError, "refused"),
    "a query of other rows": Case("ProductQuery", "shop", "ciphertext", other_rows, CryptoError, ""),
    "a query about another batch": Case(
        "ProductQuery", "bank", "batch", lambda own: own + 1, ProtocolError, "about batch"
    ),
    "an answer under another key": Case("ProductReply", "telco", "ciphertext", other_key, KeyMismatch, "another key"),
    "an answer that is cut": Case("ProductReply", "shop", "ciphertext", cut, CryptoError, "expected"),
    "an answer of residues beyond": Case("ProductReply", "telco", "ciphertext", ones, CryptoError, "refused"),
    "an answer of other columns": Case("ProductReply", "shop", "ciphertext", other_columns, CryptoError, ""),
    "an offer that is no point": Case("TransferOffer", "shop", "public", lambda _: b"\xff" * 32, CryptoError, ""),
    "choices too few": Case("TransferChoices", "bank", "points", lambda own: own[:-32], ProtocolError, "choices"),
    "odd columns of transfers": Case("TransferCorrections", "shop", "columns", odd, CryptoError, "cheating"),
    "columns of transfers that are cut": Case("TransferCorrections", "shop", "columns", cut, CryptoError, "expected"),
    "places beyond the table": Case("LookupRequest", "shop", "places", beyond, ProtocolError, "places below 64"),
    "places too few": Case("LookupRequest", "shop", "places", cut, ProtocolError, "places below 64"),
    "a turn of another chunk": Case("LookupRequest", "shop", "chunk", lambda own: own[::-1], ProtocolError, "chunk"),
    "a part of another chunk": Case("MaskedSum", "telco", "chunk", lambda own: own[::-1], ProtocolError, "chunk"),
    "a part that is cut": Case("MaskedSum", "telco", "words", cut, ProtocolError, "bytes"),
    "tables that are cut": Case("MaskedTables", "bank", "entries", cut, ProtocolError, "tables"),
    "a delta that is cut": Case("MaskedResidual", "shop", "words", cut, ProtocolError, "delta"),
    "places of a measurement beyond": Case("TableOffsets", "shop", "places", beyond, ProtocolError, "below 64"),
    "tables of a measurement cut": Case("MaskedEntries", "bank", "entries", cut, ProtocolError, "bytes"),
    "a sum that is cut": Case("OutOfRangeCount", "shop", "total", cut, ProtocolError, "bytes"),
    "settings too few": Case("SwitchSettings", "shop", "bits", cut, ProtocolError, "settings"),
    "words of switches that are cut": Case("SwitchWords", "bank", "words", cut, ProtocolError, "bytes"),
    "masked words that are cut": Case("MaskedWords", "bank", "words", cut, ProtocolError, "bytes"),
    "words in their order that are cut": Case("ShuffledWords", "shop", "words", cut, ProtocolError, "bytes"),
    "words in their order beyond their ring": Case(
        "ShuffledWords", "shop", "words", lambda own: b"\xff" * len(own), RangeError, "beyond"
    ),
}


@pytest.fixture(scope="module")
def game() -> tuple[vfl.Job, list[vfl.Party]]:
    tables = vfl.datasets.breast_cancer(3)
    shares = vfl.Protocol(shares=vfl.Shares(chunk=10, partner="shop"))
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=shares,
        batch_size="all",
        epochs=10,
        test_fraction=0.3,
    )
    return job, [party.take(np.arange(70)) for party in tables]


@pytest.mark.parametrize("name", CASES)
def test_a_message_that_was_altered_ends_the_run_with_a_typed_error(
    name: str, game: tuple[vfl.Job, list[vfl.Party]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, send, altered = CASES[name], Channel.send, []

    def alters(self: Channel, to: str, message: Any, subchannel: str = "", *, permit: Any = None) -> None:
        if type(message).__name__ == case.kind and self.me == case.sender and not altered:
            changed = case.change(getattr(message, case.field))
            message = msgspec.structs.replace(message, **{case.field: changed})
            altered.append(message)
        send(self, to, message, subchannel, permit=permit)

    monkeypatch.setattr(Channel, "send", alters)
    with pytest.raises(case.error, match=case.says or None) as raised:
        vfl.simulate(*game, workers=1)
    assert altered
    assert case.kind not in ("ProductQuery", "ProductReply") or type(raised.value) is case.error
    assert not any(word in str(raised.value) for word in ("0x", "\\x"))  # nothing of what came
