"""Oblivious transfers by rows, compared with a slow version, and attacks: each fails here and succeeds on a mutant.

The offerer has two messages for each row, and the chooser receives the one it chose. s is the offerer's secret.
"""

from __future__ import annotations

import copy
import os
import pickle
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.transfers import base_transfers, bit_matrices, ot_extension, row_hash
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.crypto.transfers.ot_extension import (
    ROW_BASES,
    OtReceiver,
    OtSender,
    fresh_secret,
    message_bytes,
)
from securevfl.crypto.transfers.row_hash import RowHash, tweaks
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code


def meet(chooser=OtReceiver, offerer=OtSender):
    secret, choices = fresh_secret()
    base = base_transfers.BaseSender()
    points, seeds = base_transfers.receive_keys(base.offer, choices)
    coin = os.urandom(32)
    return chooser(base.pairs(points), coin), offerer(secret, seeds, coin)


def correlated(chooser, rows):
    return chooser.correlated(rows, os.urandom(OtReceiver.choice_bytes(rows)))


def slow_hash(key: bytes, x: bytes, tweak: bytes) -> bytes:
    """Compute the hash H as in the paper, one block at a time."""
    aes = Cipher(algorithms.AES(key), modes.ECB())

    def permute(block: bytes) -> bytes:
        return aes.encryptor().update(block)

    def xor(a: bytes, b: bytes) -> bytes:
        return bytes(i ^ j for i, j in zip(a, b, strict=True))

    inner = permute(x)
    return xor(permute(xor(inner, tweak)), inner)


def test_the_hash_is_that_of_the_paper():
    key, blocks = os.urandom(16), os.urandom(16 * 50)
    x = np.frombuffer(blocks, "<u8").astype(np.uint64).reshape(50, 2)
    got = RowHash(key)(x, tweaks(7, 50, 3))
    for i in range(50):
        tweak = (7 + i).to_bytes(8, "little") + (3).to_bytes(8, "little")
        assert got[i].astype("<u8").tobytes() == slow_hash(key, blocks[16 * i : 16 * i + 16], tweak)


def test_tweaks_broadcast_and_keys_matter():
    x = np.zeros((4, 3, 2), np.uint64)
    one = RowHash(bytes(16))(x, tweaks(0, 3, 1))
    assert len({item.tobytes() for item in one[0]}) == 3
    assert (one[0] == one[3]).all()
    assert (RowHash(bytes(15) + b"\1")(x, tweaks(0, 3, 1)) != one).all()
    with pytest.raises(CryptoError):
        RowHash(bytes(32))


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 255, 256, 257, 1000])
def test_messages_have_room_for_all_rows_and_the_check(rows):
    """Each of 128 columns has whole blocks of 128 bits for its rows, and one more block, whose random bits hide the
    choices in the check. The check has a tag of 16 bytes for the choices and for each column."""
    blocks = sum(1 for _ in range(0, rows, 128)) + 1
    assert OtReceiver.choice_bytes(rows) == 16 * blocks
    chooser, _ = meet()
    message = correlated(chooser, rows)[0]
    assert len(message) == message_bytes(rows) == 128 * 16 * blocks + 129 * 16


@settings(max_examples=30)
@given(st.integers(1, 70), st.sampled_from([64, 128, 512]), st.sampled_from([64, 1 << 16]))
def test_columns_become_rows(octets, count, at_once):
    """Bits of columns become rows, for any number of words that are transposed at a time."""
    columns = np.frombuffer(os.urandom(count * octets), np.uint8).reshape(count, octets)
    with mock.patch.object(bit_matrices, "_WORDS_AT_ONCE", at_once):
        rows = transpose_bits(columns)
    slow = np.packbits(np.unpackbits(columns, axis=1, bitorder="little").T, axis=1, bitorder="little")
    np.testing.assert_array_equal(rows.view(np.uint8).reshape(slow.shape), slow)


@pytest.mark.parametrize("at_once", [17, 1 << 16])
def test_rows_of_both_parties_differ_by_the_secret(at_once, monkeypatch):
    monkeypatch.setattr(bit_matrices, "_WORDS_AT_ONCE", at_once)
    chooser, offerer = meet()
    for rows in (1, 21, 256, 5000):  # several blocks in sequence
        message, r, t = correlated(chooser, rows)
        assert len(message) == message_bytes(rows)
        q = offerer.correlated(rows, message)
        np.testing.assert_array_equal(q, t ^ r[:, None] * offerer._secret.view("<u8").astype(np.uint64))
        assert len(np.unique(t[:, 0])) == rows


def test_what_the_offerer_receives_is_uniform():
    chooser, _ = meet()
    counts = np.bincount(np.frombuffer(correlated(chooser, 30_000)[0], np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 450  # 255 degrees of freedom: exceeded once in 1e12


def test_wrong_sizes_and_altered_messages_are_refused():
    chooser, offerer = meet()
    message = correlated(chooser, 100)[0]
    for altered in (b"", message[:-1], message + b"\0"):
        with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
            meet()[1].correlated(100, altered)
    flipped = bytes([message[0] ^ 1]) + message[1:]  # with this message, the check hashes with another key
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        offerer.correlated(100, flipped)
    for rows in (0, ot_extension.MAX_BLOCK_ROWS + 1):
        with pytest.raises(ConfigError):
            correlated(meet()[0], rows)


def test_secrets_stay():
    for secret in meet():
        assert "secret" in repr(secret)
        for attempt in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError):
                attempt(secret)


def test_a_hash_with_one_permutation_call_is_not_tweakable():
    """For pi(sigma(x) ^ t) ^ sigma(x), H(x, t) = H(x ^ sigma^-1(d), t ^ d) ^ d; here sigma is the identity."""
    ours = RowHash(os.urandom(16))

    def one_call(x, t):
        return ours._permute(x ^ t) ^ x

    x, t, d = (np.frombuffer(os.urandom(320), np.uint64).reshape(20, 2) for _ in range(3))
    assert (one_call(x, t) == one_call(x ^ d, t ^ d) ^ d).all()
    assert not (ours(x, t) == ours(x ^ d, t ^ d) ^ d).any()
    assert row_hash.BLOCK_WORDS == 2


# --- a chooser that sends inconsistent columns learns s --------------------------------------------------------------


class OddColumns(OtReceiver):
    """A chooser that flips the choice of row j in column j only, for every j in `odd`."""

    odd = range(ROW_BASES)

    def correlated(self, rows, choices):
        message, r, t = super().correlated(rows, choices)
        octets = (len(message) - ot_extension.CHECK_BYTES * (ROW_BASES + 1)) // ROW_BASES
        columns = np.frombuffer(message[: ROW_BASES * octets], np.uint8).reshape(ROW_BASES, octets).copy()
        for j in self.odd:
            columns[j, j // 8] ^= 1 << j % 8
        return columns.tobytes() + message[ROW_BASES * octets :], r, t


class Unchecked(OtSender):
    def _check(self, *arguments):
        pass


def secret_read(offerer_type):
    """Return whether the chooser learns all bits of s: row j is correct if and only if s_j = 0."""
    chooser, offerer = meet(OddColumns, offerer_type)
    message, r, t = correlated(chooser, ROW_BASES)
    q = offerer.correlated(ROW_BASES, message)
    s = offerer._secret.view("<u8").astype(np.uint64)
    read = (q != (t ^ r[:, None] * s)).any(axis=1).astype(np.uint8)
    return (np.packbits(read, bitorder="little") == offerer._secret).all()


def test_only_the_check_protects_the_senders_secret():
    assert secret_read(Unchecked)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        secret_read(OtSender)


@pytest.mark.parametrize("column", [0, 1, 63, 64, 127])
def test_each_column_is_compared(column):
    """Each column is compared: the tags sent fit the altered columns, so all columns but one pass the check."""

    class One(OddColumns):
        odd = (column,)

        def _tags(self, number, corrections, columns):
            altered = np.frombuffer(corrections, np.uint8).copy()
            octets = len(altered) // ROW_BASES
            altered[column * octets + column // 8] ^= 1 << column % 8
            return super()._tags(number, altered.data, columns)

    for _ in range(40):  # the probability that none of 40 such columns is used is 1e-12
        chooser, offerer = meet(One)
        message = correlated(chooser, ROW_BASES)[0]
        if offerer._secret[column // 8] >> column % 8 & 1:  # otherwise the received value is not used
            break
        offerer.correlated(ROW_BASES, message)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        offerer.correlated(ROW_BASES, message)
