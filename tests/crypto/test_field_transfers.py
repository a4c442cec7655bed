"""Oblivious transfers over the field F_8, compared with a slow version, and attacks that their checks and hash prevent.

The receiver gets the keys (pads) of its choices; the sender has a secret in the field for each block of rows.
"""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats

from securevfl.crypto.prg import Prg
from securevfl.crypto.transfers import base_transfers, bit_matrices, field_transfers, ot_extension, punctured_seeds
from securevfl.crypto.transfers.field_transfers import (
    COLUMNS,
    PAD_TYPES,
    SenderBlock,
    TransferReceiver,
    TransferSender,
    message_bytes,
    symbol_widths,
)
from securevfl.crypto.transfers.punctured_seeds import BLOCKS, ELEMENTS, SMALL_FIELD_BITS
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code, transfer_pair
from tests.crypto.test_ot_rows import slow_hash

TAGS = 16 * (COLUMNS + 1)


def product(x: int, y: int) -> int:
    """Multiply in F_2[z] / (z^3 + z + 1), bit by bit."""
    total = 0
    for bit in range(3):
        if y >> bit & 1:
            total ^= x << bit
    for bit in (4, 3):
        if total >> bit & 1:
            total ^= 0b1011 << (bit - 3)
    return total


def row_block(elements: list[int]) -> bytes:
    """Return the first 128 bits of 43 elements, which are the input of the hash."""
    return (sum(element << (3 * number) for number, element in enumerate(elements)) % 2**128).to_bytes(16, "little")


@pytest.mark.parametrize("bits", [2, 3, 6, 8])
@pytest.mark.parametrize("octets", [1, 8])
def test_pads_are_those_of_the_docstring(bits: int, octets: int) -> None:
    """The slow version computes every stream, sum, key and pad alone, from the receiver's 8
    seeds and the sender's secret.
    """
    secret, choices = punctured_seeds.fresh_secret()
    base, coin, rows = base_transfers.BaseSender(), os.urandom(32), 5
    points, keys = base_transfers.receive_keys(base.offer, choices)
    sums, seeds = punctured_seeds.grow(base.pairs(points), coin)
    message, chosen = TransferReceiver(seeds, coin, bits, octets).extend(rows)
    sender = TransferSender(secret, punctured_seeds.puncture(secret, keys, coin, sums), coin, bits, octets)
    pads = sender.extend(rows, message).pads()
    assert pads.shape == (2**bits, rows)
    assert pads.dtype == PAD_TYPES[octets]
    size = 16 * bits + 16
    streams = np.empty((BLOCKS, ELEMENTS, size // 8), np.uint64)
    for block in range(BLOCKS):
        for x in range(ELEMENTS):
            Prg(seeds[block][x], field_transfers.FIELD_TRANSFER_LABEL).fill(streams[block, x], number=0)
    bit_of = np.unpackbits(streams.view(np.uint8).reshape(BLOCKS, ELEMENTS, size), axis=2, bitorder="little")
    widths = symbol_widths(bits)
    for row in range(rows):
        keys_of: list[list[bytes]] = []
        start = 0
        for symbol, width in enumerate(widths):
            v = [0] * BLOCKS
            for block in range(BLOCKS):
                for bit in range(width):
                    for x in range(ELEMENTS):
                        if bit_of[block, x, 128 * (start + bit) + row]:
                            v[block] ^= product(x, 1 << bit)
            value = int(chosen.choices[row]) >> start & (2**width - 1)
            words = 2**bits // 2**width
            expanded = []
            for x in range(2**width):
                elements = [v[block] ^ product(x ^ value, secret[block]) for block in range(BLOCKS)]
                data = b""
                for counter in range(-(-words * octets // 16)):
                    tweak = row.to_bytes(8, "little") + (symbol | counter << 8).to_bytes(8, "little")
                    data += slow_hash(sender._hash.key, row_block(elements), tweak)
                expanded.append(data)
            keys_of.append(expanded)
            start += width
        for j in range(2**bits):
            total, start = 0, 0
            for symbol, width in enumerate(widths):
                value = j >> start & (2**width - 1)
                word = (j >> (start + width) << start) | (j & (2**start - 1))
                total += int.from_bytes(keys_of[symbol][value][octets * word : octets * (word + 1)], "little")
                start += width
            assert total % 2 ** (8 * octets) == int(pads[j, row])
            if j == chosen.choices[row]:
                assert int(chosen.pads[row]) == int(pads[j, row])


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("octets", list(PAD_TYPES))
def test_the_receiver_has_the_pad_it_has_chosen(bits: int, octets: int) -> None:
    receiver, sender = transfer_pair(bits, octets)
    for rows in (1, 21, 130, 4100):  # several blocks in sequence
        message, chosen = receiver.extend(rows)
        assert len(message) == message_bytes(rows, bits)
        block = sender.extend(rows, message)
        pads = block.pads()
        np.testing.assert_array_equal(pads[chosen.choices, np.arange(rows)], chosen.pads)
        first, last = rows // 3, rows - rows // 5
        if last > first:
            np.testing.assert_array_equal(SenderBlock.restored(block.stored(first, last)).pads(), pads[:, first:last])
        if octets == 8:
            assert len(np.unique(pads)) == pads.size
            assert ((pads == chosen.pads) == (np.arange(2**bits)[:, None] == chosen.choices)).all()


class _Numbered(TransferSender):
    """A sender that notes the numbers of the rows that it hashes."""

    noted: list[int]

    def _block(self, start: int, q: Any) -> SenderBlock:
        self.noted += range(start, start + q.shape[1])
        return super()._block(start, q)


@pytest.mark.parametrize("bits", [1, 6, 8])
def test_no_two_rows_of_a_session_are_hashed_under_one_number(bits: int) -> None:
    receiver, sender = transfer_pair(bits, 8, sender=_Numbered)
    sender.noted = []
    for rows in (3, 1, 200, 1, 129):
        message, _ = receiver.extend(rows)
        sender.extend(rows, message)
    assert sender.noted == list(range(334))


def test_six_bits_cost_a_third_of_transfers_of_single_bits() -> None:
    assert message_bytes(100_000, 6) / 100_000 < 32.4
    assert 6 * ot_extension.message_bytes(100_000) / 100_000 > 95


def test_choices_messages_and_pads_are_uniform() -> None:
    receiver, sender = transfer_pair(6, 1)
    message, chosen = receiver.extend(20_000)
    pads = sender.extend(20_000, message).pads()
    others = pads[:, np.arange(20_000)][np.arange(64)[:, None] != chosen.choices]
    for values, cells in ((chosen.choices, 64), (np.frombuffer(message, np.uint8), 256), (others, 256)):
        assert stats.chisquare(np.bincount(values, minlength=cells)).pvalue > 1e-9
    pairs = pads[0].astype(int) * 256 + pads[9]  # two pads of one row without a common symbol
    assert stats.chisquare(np.bincount(pairs % 251, minlength=251)).pvalue > 1e-9


def test_pads_of_a_row_have_no_linear_relation() -> None:
    """pad(h, l) - pad(h', l) - pad(h, l') + pad(h', l') would be 0 if each word depended on one symbol only."""
    receiver, sender = transfer_pair(6, 8)
    message, _ = receiver.extend(500)
    grid = sender.extend(500, message).pads().reshape(8, 8, 500)
    assert (grid[1:, 1:] - grid[1:, :1] - grid[:1, 1:] + grid[:1, :1] != 0).all()


def test_wrong_sizes_and_altered_messages_are_refused() -> None:
    receiver, sender = transfer_pair(6)
    message, _ = receiver.extend(100)
    for altered in (b"", message[:-1], message + b"\0"):
        with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
            transfer_pair(6)[1].extend(100, altered)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        sender.extend(100, bytes([message[0] ^ 1]) + message[1:])
    for rows in (0, ot_extension.MAX_BLOCK_ROWS + 1):
        with pytest.raises(ConfigError):
            transfer_pair(6)[0].extend(rows)
    for bits, octets in ((0, 8), (9, 8), (6, 3), (6, 0)):
        with pytest.raises(ConfigError):
            transfer_pair(bits, octets)


def test_secrets_stay() -> None:
    receiver, sender = transfer_pair(6)
    message, chosen = receiver.extend(5)
    for secret in (receiver, sender, sender.extend(5, message)):
        assert "secret" in repr(secret)
        for attempt in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError):
                attempt(secret)
    assert str(int(chosen.pads[0])) not in repr(chosen)


# --- a receiver that makes different choices in the blocks learns the secret ----------------------------------------


class OddBlocks(TransferReceiver):
    """A receiver that flips the choice of row i in block i only."""

    def extend(self, rows: int) -> Any:
        message, chosen = super().extend(rows)
        columns = np.frombuffer(message[:-TAGS], np.uint8).reshape(BLOCKS, -1).copy()
        for block in range(BLOCKS):
            columns[block, block // 8] ^= 1 << block % 8
        return columns.tobytes() + message[-TAGS:], chosen


class Unchecked(TransferSender):
    def _check(self, *arguments: Any) -> None:
        pass


def zeros_read(sender_type: type[TransferSender]) -> bool:
    """Return whether the receiver finds all blocks with secret Delta = 0, where a wrong
    choice leaves the pad unchanged.
    """
    receiver, sender = transfer_pair(1, 8, OddBlocks, sender_type)
    message, chosen = receiver.extend(BLOCKS)
    pads = sender.extend(BLOCKS, message).pads()
    right = pads[chosen.choices, np.arange(BLOCKS)] == chosen.pads
    used = np.array([*[7] * (BLOCKS - 1), 3], np.uint8)  # the hash H does not use the last of the 129 bits
    return bool((right == (np.frombuffer(sender._secret, np.uint8) & used == 0)).all())


def test_only_the_check_protects_the_secret() -> None:
    assert zeros_read(Unchecked)
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        zeros_read(TransferSender)


@pytest.mark.parametrize("block", [0, 21, BLOCKS - 1])
def test_one_odd_block_passes_only_if_its_secret_is_zero(block: int) -> None:
    """The tags sent fit the altered corrections, so that only the choices of one block are wrong."""

    class One(TransferReceiver):
        def _tags(self, number: int, corrections: Any, columns: Any) -> bytes:
            altered = np.frombuffer(corrections, np.uint8).copy()
            altered.reshape(BLOCKS, -1)[block, 0] ^= 1
            return super()._tags(number, altered.data, columns)

        def extend(self, rows: int) -> Any:
            message, chosen = super().extend(rows)
            data = bytearray(message)
            data[block * (len(message) - TAGS) // BLOCKS] ^= 1
            return bytes(data), chosen

    results = set()
    for _ in range(24):  # until a secret was 0 and another one was not; that none of 24 was 0 is not asserted
        receiver, sender = transfer_pair(2, 8, One)
        message, _ = receiver.extend(50)
        passes = sender._secret[block] == 0
        if passes:
            sender.extend(50, message)
        else:
            with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
                sender.extend(50, message)
        results.add(passes)
        if len(results) == 2:
            break
    assert False in results


def test_the_check_says_nothing_of_the_choices() -> None:
    """h(chi) of one row equals that of none of the 64 choices followed by zeros, because random bits follow them."""
    receiver, _ = transfer_pair(6)
    message, chosen = receiver.extend(1)
    size = (len(message) - TAGS) // BLOCKS
    columns = np.zeros((64, size), np.uint8)
    for bit in range(6):
        columns[:, 16 * bit] = np.arange(64) >> bit & 1
    tags = receiver._tags(0, message[:-TAGS], columns)
    assert message[-TAGS:][:16] not in [tags[16 * choice : 16 * choice + 16] for choice in range(64)]
    assert chosen.choices[0] < 64


# --- trees of seeds --------------------------------------------------------------------------------------------------


def seeds(secret: bytes | None = None, alter: Any = bytes) -> tuple[bytes, list[list[bytes]], list[list[bytes]]]:
    fresh, _ = punctured_seeds.fresh_secret()
    secret = fresh if secret is None else secret
    base, coin = base_transfers.BaseSender(), os.urandom(32)
    points, keys = base_transfers.receive_keys(base.offer, punctured_seeds.choices_of(secret))
    sums, grown = punctured_seeds.grow(base.pairs(points), coin)
    assert len(sums) == punctured_seeds.TREES_BYTES
    return secret, grown, punctured_seeds.puncture(secret, keys, coin, alter(sums))


@pytest.mark.parametrize("delta", [None, *range(ELEMENTS)])
def test_all_seeds_except_one_are_common(delta: int | None) -> None:
    secret, grown, punctured = seeds(None if delta is None else bytes([delta]) * BLOCKS)
    for number, whole, partial in zip(secret, grown, punctured, strict=True):
        assert len(set(whole)) == ELEMENTS
        assert [seed or b"" for seed in partial] == [b"" if x == number else seed for x, seed in enumerate(whole)]


def test_secrets_are_uniform() -> None:
    counts = np.bincount(list(b"".join(punctured_seeds.fresh_secret()[0] for _ in range(300))), minlength=ELEMENTS)
    assert stats.chisquare(counts).pvalue > 1e-9
    assert len(counts) == ELEMENTS == 2**SMALL_FIELD_BITS


@pytest.mark.parametrize(("level", "block"), [(0, 0), (1, BLOCKS - 1)])
def test_wrong_sums_are_found_if_they_are_used(level: int, block: int) -> None:
    """A sum of one side of a tree is used for half of the secrets; one of the two sides is always used."""

    def altered(*sides: int) -> Any:
        def alter(sums: bytes) -> bytes:
            data = bytearray(sums)
            for side in sides:
                data[32 * (5 * block + 2 * level + side)] ^= 1
            return bytes(data)

        return alter

    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        seeds(None, altered(0, 1))
    for delta in range(ELEMENTS):
        secret = bytes([delta]) * BLOCKS
        used = 1 - (delta >> (1 - level) & 1)
        with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
            seeds(secret, altered(used))
        seeds(secret, altered(1 - used))


def test_wrong_check_words_digests_and_sizes_are_refused() -> None:
    for at in (32 * 4, 32 * 5 * BLOCKS):
        with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
            seeds(None, lambda sums, at=at: sums[:at] + bytes([sums[at] ^ 1]) + sums[at + 1 :])
    for alter in (lambda sums: sums[:-1], lambda sums: sums + b"\0", lambda sums: b""):
        with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
            seeds(None, alter)


def test_rows_need_not_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((bit_matrices, "_WORDS_AT_ONCE"), (field_transfers, "_ROWS_AT_ONCE")):
        monkeypatch.setattr(module, name, 17)
    monkeypatch.setattr(field_transfers, "_CHOSEN_ROWS_AT_ONCE", 5)
    receiver, sender = transfer_pair(7, 2)
    message, chosen = receiver.extend(100)
    pads = sender.extend(100, message).pads()
    np.testing.assert_array_equal(pads[chosen.choices, np.arange(100)], chosen.pads)
