"""Oblivious key-value stores (`securevfl.crypto.transfers.okvs`), compared with a slow decoder."""

import os
from hashlib import blake2b

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.okvs import decode, encode, table_rows
from securevfl.errors import CryptoError
from tests.builders import raises_code


def fresh(n: int) -> tuple[Words, Words]:
    keys, values = np.frombuffer(os.urandom(32 * n), np.uint64).reshape(2, n, 2)
    return keys, values


def slow_decode(seed: bytes, table: Words, key: bytes) -> int:
    """Decode one key with plain integers."""
    ciphers = blake2b(b"okvs", key=seed, digest_size=32).digest()
    one, two = (
        Cipher(algorithms.AES(cipher_key), modes.ECB()).encryptor().update(key)
        for cipher_key in (ciphers[:16], ciphers[16:])
    )
    rows = [int(low) | int(high) << 64 for low, high in table.tolist()]
    third = (len(rows) - 64) // 3
    total = 0
    for j in range(3):
        total ^= rows[j * third + (int.from_bytes(one[4 * j : 4 * j + 4], "little") * third >> 32)]
    for bit in range(64):
        if int.from_bytes(two[:8], "little") >> bit & 1:
            total ^= rows[3 * third + bit]
    return total


@settings(max_examples=60)
@given(st.integers(0, 300))
def test_every_key_gets_its_value(n: int) -> None:
    keys, values = fresh(n)
    seed, table = encode(keys, values)
    assert table.shape == (table_rows(n), 2)
    np.testing.assert_array_equal(decode(seed, keys, table)[0], values)
    for number in range(min(n, 5)):
        expected = int(values[number, 0]) | int(values[number, 1]) << 64
        assert slow_decode(seed, table, keys[number].tobytes()) == expected


def test_many_keys() -> None:
    keys, values = fresh(50_000)
    seed, table = encode(keys, values)
    np.testing.assert_array_equal(decode(seed, keys, table)[0], values)
    assert len(table) <= 1.3 * 50_000 + 100


def test_other_keys_get_noise() -> None:
    keys, values = fresh(200)
    seed, table = encode(keys, values)
    others, _ = fresh(5000)
    (answers,) = decode(seed, others, table)
    assert len(np.unique(answers[:, 0])) == 5000
    assert abs(np.unpackbits(answers.view(np.uint8)).mean() - 0.5) < 0.01


@pytest.mark.parametrize("n", [3, 40, 400])
def test_a_crowded_table_is_solved_with_its_dense_slots(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer sparse slots, up to 40 keys remain that no sparse slot solves (2-core);
    the dense slots must solve them.
    """
    cores = []
    solve = okvs._solve

    def watched(core: np.ndarray, *arguments: np.ndarray) -> bool:
        cores.append(len(core))
        return solve(core, *arguments)

    monkeypatch.setattr(okvs, "_third", lambda n: max(1, int(n * 1.0) // 3))
    monkeypatch.setattr(okvs, "_solve", watched)
    keys, values = fresh(n)
    seed, table = encode(keys, values)
    np.testing.assert_array_equal(decode(seed, keys, table)[0], values)
    assert max(cores) > 0


def test_a_seed_fails_so_rarely_that_none_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(okvs, "_MAX_SEEDS", 1)
    for n in (1, 2, 3, 5, 10, 30, 100, 300):
        for _ in range(30):
            keys, values = fresh(n)
            encode(keys, values)


def test_equal_keys_and_other_counts_are_refused() -> None:
    keys, values = fresh(5)
    with raises_code(CryptoError, "SVFL-CRYPTO-PARAMETERS"):
        encode(np.concatenate([keys, keys[:1]]), np.concatenate([values, values[:1]]))
    with raises_code(CryptoError, "SVFL-CRYPTO-SHAPE"):
        encode(keys, values[:4])


def table_bits(n: int) -> float:
    """Return the share of ones in the table, as the distance from one half in standard deviations."""
    keys, values = fresh(n)
    bits = np.unpackbits(encode(keys, values)[1].view(np.uint8))
    return float(abs(bits.mean() - 0.5) * 2 * np.sqrt(len(bits)))


def empty_slots(n: int) -> int:
    keys, values = fresh(n)
    return int((~encode(keys, values)[1].any(axis=1)).sum())


def test_a_table_is_uniform() -> None:
    assert table_bits(1000) < 6
    assert empty_slots(1000) == 0


def test_the_check_detects_empty_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.urandom
    monkeypatch.setattr(okvs.os, "urandom", lambda size: real(size) if size == okvs.OKVS_SEED_BYTES else bytes(size))
    keys, values = np.frombuffer(real(32_000), np.uint64).reshape(2, -1, 2)
    _, table = encode(keys, values)
    assert (~table.any(axis=1)).sum() > 100
    assert abs(np.unpackbits(table.view(np.uint8)).mean() - 0.5) * 2 * np.sqrt(table.nbytes * 8) > 6
