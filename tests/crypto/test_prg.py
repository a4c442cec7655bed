"""The pseudorandom generator (`securevfl.crypto.prg`), compared with ChaCha20 of RFC 8439 in plain integers."""

import hashlib
import os
import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.key_derivation import derive_key, encode_context
from securevfl.crypto.prg import Prg, first_streams
from securevfl.errors import CryptoError
from tests.builders import raises_code

KEY = bytes(range(32))
MASK32 = 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3, in plain integers."""
    words = [int.from_bytes(raw, "little") for raw in (b"expa", b"nd 3", b"2-by", b"te k")]
    words += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    words += [counter] + [int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4)]
    x = list(words)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & MASK32
            y = x[r] ^ x[p]
            x[r] = ((y << turn) | (y >> (32 - turn))) & MASK32

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return b"".join(((a + b) & MASK32).to_bytes(4, "little") for a, b in zip(x, words, strict=True))


def plain_keystream(key: bytes, label: str, number: int, length: int) -> bytes:
    mac = hmac.HMAC(key, hashes.SHA256())  # HKDF-Expand of one block: HMAC(key, info || 1)
    mac.update(encode_context("securevfl", "prg", label) + b"\x01")
    derived = mac.finalize()
    nonce = number.to_bytes(12, "little")
    return b"".join(chacha20_block(derived, i, nonce) for i in range(length // 64 + 1))[:length]


def test_the_oracle_block_is_the_one_of_rfc_8439():
    block = chacha20_block(KEY, 1, bytes.fromhex("000000090000004a00000000"))
    assert block[:16].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@given(number=st.integers(0, 2**90), length=st.integers(0, 300))
def test_streams_are_chacha20(dtype, number, length):
    raw = plain_keystream(KEY, "label", number, length * np.dtype(dtype).itemsize)
    got = Prg(KEY, "label").array(length, dtype, number=number)
    assert got.dtype == dtype
    assert np.array_equal(got, np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")))


def test_first_streams_of_many_keys_are_those_of_generators():
    keys = [hashlib.sha256(bytes([number])).digest() for number in range(5)]
    for key, stream in zip(keys, first_streams(keys, "label"), strict=True):
        parts = [np.empty(size, np.uint64) for size in (3, 20)]
        for part in parts:
            stream.fill(part)
        assert b"".join(part.tobytes() for part in parts) == plain_keystream(key, "label", 0, 23 * 8)
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        first_streams([KEY, b"short"], "label")


def test_a_long_stream_is_one_keystream_across_chunks():
    long = Prg(KEY, "label").array((3, 7, 1999), np.uint64)
    assert long.tobytes() == plain_keystream(KEY, "label", 0, long.nbytes)


def test_no_stream_serves_twice():
    prg = Prg(KEY, "label")
    first, second = prg.array(8, np.uint64), prg.array(8, np.uint64)
    assert not np.array_equal(first, second)
    prg.array(8, np.uint64, number=10)
    for used in (0, 1, 5, 10):
        with raises_code(CryptoError, "SVFL-CRYPTO-REUSE"):
            prg.array(8, np.uint64, number=used)
    assert np.array_equal(prg.array(8, np.uint64), Prg(KEY, "label").array(8, np.uint64, number=11))


def test_a_generator_that_forgets_its_number_is_caught():
    class Forgetful(Prg):
        def _take(self, number):
            return 0

    def repeats(prg):
        return np.array_equal(prg.array(8, np.uint64), prg.array(8, np.uint64))

    assert repeats(Forgetful(KEY, "label"))
    assert not repeats(Prg(KEY, "label"))


def test_keys_and_labels_separate_streams():
    def head(prg):
        return prg.array(4, np.uint64).tobytes()

    heads = {head(Prg(KEY, "a")), head(Prg(KEY, "b")), head(Prg(KEY, "ab")), head(Prg(bytes(32), "a"))}
    heads |= {head(Prg.fresh("a")), head(Prg.fresh("a"))}
    assert len(heads) == 6


def test_threads_share_a_generator_without_repeats():
    prg, seen = Prg.fresh("threads"), []
    workers = [
        threading.Thread(target=lambda: seen.extend(prg.array(2, np.uint64).tobytes() for _ in range(200)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(set(seen)) == 800


def test_a_copy_in_another_process_refuses(monkeypatch):
    """Neither a generator nor a stream that was begun before, of a generator or of several keys, is read."""
    prg = Prg.fresh("fork")
    streams = [prg.keystream(), *first_streams([bytes(32), bytes([1] * 32)], "fork")]
    for stream in streams:
        stream.fill(np.empty(3, np.uint64))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with raises_code(CryptoError, "SVFL-CRYPTO-REUSE"):
        prg.array(1, np.uint64)
    for stream in streams:
        with raises_code(CryptoError, "SVFL-CRYPTO-REUSE"):
            stream.fill(np.empty(1, np.uint8))


def test_bytes_are_uniform():
    counts = np.bincount(Prg.fresh("bytes").array(1 << 17, np.uint64).view(np.uint8), minlength=256)
    expected = (1 << 20) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 450  # chi-squared, 255 degrees of freedom: p < 1e-12 beyond


@given(st.lists(st.one_of(st.text(), st.binary(), st.integers())), st.lists(st.one_of(st.text(), st.binary())))
def test_contexts_do_not_collide(a, b):
    assert (encode_context(*a) == encode_context(*b)) == (a == b)


@pytest.mark.parametrize(
    "context", [(), ("a",), ("prg", "label"), (b"", 0, "x" * 300), (-1, b"bytes", "umlaut: \u00fc")]
)
def test_keys_are_those_of_the_librarys_hkdf(context: tuple[str | bytes | int, ...]) -> None:
    library = HKDFExpand(hashes.SHA256(), 32, encode_context("securevfl", *context))
    assert derive_key(KEY, *context) == library.derive(KEY)


def test_derived_keys_differ_and_misuse_is_refused():
    assert len({derive_key(KEY, "a", "bc"), derive_key(KEY, "ab", "c"), derive_key(KEY, "a", 1), KEY}) == 4
    for make in (lambda: Prg(b"short", "x"), lambda: derive_key(bytes(33))):
        with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
            make()
    with raises_code(CryptoError, "SVFL-CRYPTO-PARAMETERS"):
        Prg(KEY, "x").fill(np.zeros((4, 4), np.uint64)[:, ::2])
    with raises_code(CryptoError, "SVFL-CRYPTO-PARAMETERS"):
        Prg(KEY, "x").fill(np.zeros(4))


def test_a_generator_shows_and_pickles_nothing():
    secret = hashlib.sha256(b"key").digest()
    prg = Prg(secret, "x")
    assert secret.hex() not in repr(prg)
    assert repr(secret) not in repr(prg)
    with pytest.raises(TypeError):
        pickle.dumps(prg)
