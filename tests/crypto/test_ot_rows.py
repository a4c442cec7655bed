"""Transfers by rows against a slow oracle, and the attacks they invite: each fails here and succeeds on a mutant."""

from __future__ import annotations

import copy
import os
import pickle
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.transfers import base_transfers, bit_matrices, ot_extension, row_hash
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.crypto.transfers.ot_extension import BASE_TRANSFERS, OtReceiver, OtSender, fresh_secret, message_bytes
from securevfl.crypto.transfers.row_hash import RowHash, tweaks
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code


def meet(bits=6, chooser=OtReceiver, offerer=OtSender):
    secret, choices = fresh_secret()
    base = base_transfers.BaseSender()
    points, seeds = base_transfers.receive_keys(base.offer, choices)
    coin = os.urandom(32)
    return chooser(base.pairs(points), coin, bits), offerer(secret, seeds, coin, bits)


def slow_hash(key: bytes, x: bytes, tweak: bytes) -> bytes:
    """H as the paper writes it, a block at a time."""
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


@settings(max_examples=30)
@given(st.integers(1, 70), st.sampled_from([64, 128, 512]), st.sampled_from([64, 1 << 16]))
def test_columns_become_rows(octets, count, at_once):
    """However many words are swapped at a time."""
    columns = np.frombuffer(os.urandom(count * octets), np.uint8).reshape(count, octets)
    with mock.patch.object(bit_matrices, "_WORDS_AT_ONCE", at_once):
        rows = transpose_bits(columns)
    slow = np.packbits(np.unpackbits(columns, axis=1, bitorder="little").T, axis=1, bitorder="little")
    np.testing.assert_array_equal(rows.view(np.uint8).reshape(slow.shape), slow)


@pytest.mark.parametrize("bits", [1, 5, 6, 7, 8])
@pytest.mark.parametrize("rows", [1, 21, 256, 5000])
def test_the_chooser_has_the_pad_it_has_chosen_and_no_other(bits, rows):
    chooser, offerer = meet(bits)
    message, chosen = chooser.extend(rows)
    assert len(message) == message_bytes(rows, bits)
    pads = offerer.extend(rows, message).pads(0, rows)
    assert pads.shape == (2**bits, rows)
    hits = pads == chosen.pads
    np.testing.assert_array_equal(hits, np.arange(2**bits)[:, None] == chosen.choices)
    assert len(np.unique(pads)) == pads.size


@pytest.mark.parametrize("bits", [2, 6])
def test_pads_are_those_of_the_docstring(bits):
    """The slow oracle: rows of Q and T bit by bit, keys and pads one at a time."""
    rows = 20
    chooser, offerer = meet(bits)
    message, chosen = chooser.extend(rows)
    offered = offerer.extend(rows, message)
    key = ot_extension.derive_key(chooser._coin, ot_extension.STREAM_LABEL, bits)[:16]
    s = offered._s.astype("<u8").tobytes()
    assert s == offerer._secret.tobytes()
    for row in range(rows):
        mixed = {j: bytes(16) for j in range(2**bits)}
        for bit in range(bits):
            number = row * bits + bit
            q = offered._q[number].astype("<u8").tobytes()
            other = bytes(a ^ b for a, b in zip(q, s, strict=True))
            tweak = number.to_bytes(8, "little") + (1).to_bytes(8, "little")
            keys = [slow_hash(key, item, tweak) for item in (q, other)]
            for j in mixed:
                mixed[j] = bytes(a ^ b for a, b in zip(mixed[j], keys[j >> bit & 1], strict=True))
        for j, total in mixed.items():
            tweak = row.to_bytes(8, "little") + (2 | j << 8).to_bytes(8, "little")
            pad = int.from_bytes(slow_hash(key, total, tweak)[:8], "little")
            assert pad == int(offered.pads(row, row + 1)[j, 0])
            assert (pad == int(chosen.pads[row])) == (j == chosen.choices[row])


def test_blocks_follow_each_other_and_rows_are_numbered_through(monkeypatch):
    monkeypatch.setattr(bit_matrices, "_WORDS_AT_ONCE", 17)
    chooser, offerer = meet()
    seen = []
    for rows in (40, 3, 64):
        message, chosen = chooser.extend(rows)
        offered = offerer.extend(rows, message)
        assert offered.rows == rows
        pads = offered.pads(0, rows)
        np.testing.assert_array_equal(pads[chosen.choices, np.arange(rows)], chosen.pads)
        np.testing.assert_array_equal(offered.pads(1, rows)[:, :2], pads[:, 1:3])
        seen.append(pads)
    assert len(np.unique(np.concatenate(seen, axis=1))) == 64 * 107


def test_choices_are_uniform():
    chooser, _ = meet()
    choices = chooser.extend(20000)[1].choices
    counts = np.bincount(choices, minlength=64)
    assert ((counts - 312.5) ** 2 / 312.5).sum() < 160  # 63 degrees: once in 1e9


def test_what_the_offerer_receives_is_uniform():
    chooser, _ = meet()
    counts = np.bincount(np.frombuffer(chooser.extend(5000)[0], np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 450  # 255 degrees: once in 1e12


def test_wrong_sizes_and_altered_messages_are_refused():
    chooser, offerer = meet()
    message, _ = chooser.extend(100)
    for altered in (b"", message[:-1], message + b"\0"):
        with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
            meet()[1].extend(100, altered)
    flipped = bytes([message[0] ^ 1]) + message[1:]  # the check then hashes with another key
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        offerer.extend(100, flipped)
    for rows in (0, ot_extension.MAX_BLOCK_ROWS + 1):
        with pytest.raises(ConfigError):
            meet()[0].extend(rows)
    for bits in (0, 9):
        with pytest.raises(ConfigError):
            meet(bits)


def test_secrets_stay():
    chooser, offerer = meet()
    message, chosen = chooser.extend(5)
    for secret in (chooser, offerer, offerer.extend(5, message)):
        assert "secret" in repr(secret)
        for attempt in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError):
                attempt(secret)
    assert str(int(chosen.pads[0])) not in repr(chosen)


# --- keys of an extension are related: XOR before hashing opens pads -------------------------------------------------


def unhashed(cls):
    """A mutant that puts raw rows of the extension together and hashes the result alone."""

    class Mutant(cls):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self._hash = _Unhashed(self._hash)

    return Mutant


class _Unhashed:
    def __init__(self, inner):
        self._inner = inner

    def __call__(self, x, tweak):
        return x.copy() if (tweak[..., 1] == ot_extension.KEY_TWEAK).all() else self._inner(x, tweak)


def opened(chooser, offerer, rows=60):
    """Return the fraction of other pads that the receiver computes: s cancels in an XOR of an even number of keys."""
    streams = []
    original = ot_extension.transpose_bits
    ot_extension.transpose_bits = lambda columns: streams.append(original(columns)) or streams[-1]
    try:
        message, chosen = chooser.extend(rows)
        t = streams[0][: rows * 6].reshape(rows, 6, 2)
        pads = offerer.extend(rows, message).pads(0, rows)
    finally:
        ot_extension.transpose_bits = original
    hashed = chooser._hash
    keys = hashed(t.reshape(-1, 2), tweaks(0, rows * 6, ot_extension.KEY_TWEAK))
    total = np.bitwise_xor.reduce(keys.reshape(rows, 6, 2), axis=1)
    hits = 0
    for j in range(64):
        other = j ^ chosen.choices
        tweak = tweaks(0, rows, ot_extension.PAD_TWEAK)
        tweak[:, 1] |= np.uint64(j << 8)
        guess = hashed(total, tweak)[:, 0]
        hits += int(((guess == pads[j]) & (other != 0)).sum())
    return hits / (rows * 63)


def test_pads_of_unhashed_keys_open_and_ours_do_not():
    assert opened(*meet(chooser=unhashed(OtReceiver), offerer=unhashed(OtSender))) > 0.45  # all with an even difference
    assert opened(*meet()) == 0


def test_a_hash_with_one_permutation_call_is_not_tweakable():
    """The form pi(sigma(x) ^ t) ^ sigma(x): H(x, t) = H(x ^ sigma^-1(d), t ^ d) ^ d, here with sigma the identity."""
    ours = RowHash(os.urandom(16))

    def one_call(x, t):
        return ours._permute(x ^ t) ^ x

    x, t, d = (np.frombuffer(os.urandom(320), np.uint64).reshape(20, 2) for _ in range(3))
    assert (one_call(x, t) == one_call(x ^ d, t ^ d) ^ d).all()
    assert not (ours(x, t) == ours(x ^ d, t ^ d) ^ d).any()
    assert row_hash.BLOCK_WORDS == 2


# --- a chooser with odd columns reads s ----------------------------------------------------------------------------


class OddColumns(OtReceiver):
    """Flips transfer j b of column j alone, for every j in `odd`, and keeps the rest as it should be."""

    odd = range(BASE_TRANSFERS)

    def extend(self, rows):
        message, chosen = super().extend(rows)
        octets = (len(message) - ot_extension.TAG_BYTES * (BASE_TRANSFERS + 1)) // BASE_TRANSFERS
        columns = np.frombuffer(message[: BASE_TRANSFERS * octets], np.uint8).reshape(BASE_TRANSFERS, octets).copy()
        for j in self.odd:
            columns[j, j * self._bits // 8] ^= 1 << j * self._bits % 8
        return columns.tobytes() + message[BASE_TRANSFERS * octets :], chosen


class Unchecked(OtSender):
    def _check(self, *arguments):
        pass


def secret_read(offerer_type):
    """The bits of s that the cheating chooser reads: its pad of row j is right if and only if s_j = 0."""
    chooser, offerer = meet(6, OddColumns, offerer_type)
    message, chosen = chooser.extend(BASE_TRANSFERS)
    pads = offerer.extend(BASE_TRANSFERS, message).pads(0, BASE_TRANSFERS)
    read = (pads[chosen.choices, np.arange(BASE_TRANSFERS)] != chosen.pads).astype(np.uint8)
    return (np.packbits(read, bitorder="little") == offerer._secret).all()


def test_only_the_check_protects_the_senders_secret():
    assert secret_read(Unchecked)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        secret_read(OtSender)


@pytest.mark.parametrize("column", [0, 1, 63, 64, 127])
def test_each_column_is_compared(column):
    """All columns except one pass the check: the tags are those of the sent columns."""

    class One(OddColumns):
        odd = (column,)

        def _tags(self, number, corrections, columns):
            altered = np.frombuffer(corrections, np.uint8).copy()
            octets = len(altered) // BASE_TRANSFERS
            altered[column * octets + column * self._bits // 8] ^= 1 << column * self._bits % 8
            return super()._tags(number, altered.data, columns)

    for _ in range(40):  # none of 40 such columns is used with probability 1e-12
        chooser, offerer = meet(6, One)
        message, _ = chooser.extend(BASE_TRANSFERS)
        if offerer._secret[column // 8] >> column % 8 & 1:  # otherwise the received value is not used
            break
        offerer.extend(BASE_TRANSFERS, message)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        offerer.extend(BASE_TRANSFERS, message)


def test_the_check_says_nothing_of_the_choices():
    """h(r) of equal choices differs: a block of random transfers follows them."""

    class Fixed(OtReceiver):
        def _tags(self, number, corrections, columns):
            tags.append(super()._tags(number, bytes(8), columns))  # one key for all, to compare
            return super()._tags(number, corrections, columns)

    tags: list[bytes] = []
    for _ in range(3):
        meet(chooser=Fixed)[0].extend(1)
    assert all(a[:16] != b[:16] for a, b in pairwise(tags))


class NoBlock(OtReceiver):
    """A mutant that does not hash the random block."""

    def _tags(self, number, corrections, columns):
        return super()._tags(number, corrections, [column[: -ot_extension.TAG_BYTES] for column in columns])


def fitting(chooser, choices=64):
    """The choices of one row that an offerer finds to fit h(r), all transfers but the row's being zero."""
    message, chosen = chooser.extend(1)
    octets = (len(message) - ot_extension.TAG_BYTES * (BASE_TRANSFERS + 1)) // BASE_TRANSFERS
    corrections, check = message[: BASE_TRANSFERS * octets], message[BASE_TRANSFERS * octets :]
    columns = np.zeros((choices, octets), np.uint8)
    columns[:, 0] = np.arange(choices)
    tags = chooser._tags(0, corrections, columns)
    fits = [choice for choice in range(choices) if tags[16 * choice : 16 * choice + 16] == check[:16]]
    return fits, int(chosen.choices[0])


def test_only_the_random_block_hides_choices_in_the_check(monkeypatch):
    assert fitting(meet()[0])[0] == []
    mutant = meet(chooser=NoBlock)[0]
    choice = os.urandom(1)[0] & 63
    monkeypatch.setattr(ot_extension.os, "urandom", lambda count: bytes([choice]) + bytes(count - 1))
    assert fitting(mutant) == ([choice], choice)
