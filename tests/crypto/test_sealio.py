"""SEAL objects as residues: conversions are lossless, and malformed bytes are refused."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import tenseal.sealapi as seal
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.lattice.polynomial_ring import SealRing, uniform
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code


@pytest.fixture(scope="module")
def ring():
    return SealRing((46, 46, 17), 40)


def uniform_residues(primes, count):
    return uniform(Prg.fresh("test"), primes, count)


@given(st.lists(st.sampled_from([3, 257, 114689, 2**46 - 21, 2**54 - 33]), min_size=1, max_size=4), st.integers(1, 20))
def test_packing_is_lossless_and_as_wide_as_each_prime(primes, count):
    residues = uniform_residues(primes, count)
    packed = residue_encoding.pack(residues, primes)
    assert len(packed) == residue_encoding.packed_size(primes, count)
    assert packed == b"".join(
        int(x).to_bytes(residue_encoding.width(p), "little")
        for p, row in zip(primes, residues, strict=True)
        for x in row
    )
    assert np.array_equal(residue_encoding.unpack(packed, primes, count), residues)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        residue_encoding.unpack(packed[:-1], primes, count)


@pytest.mark.parametrize("ntt", [True, False])
def test_ciphertext_round_trip(ring, ntt):
    residues = np.stack([uniform_residues(ring.primes, 4096), uniform_residues(ring.primes, 4096)])
    cipher = ring.io.ciphertext(ring.level, residues, ntt=ntt)
    assert cipher.is_ntt_form() == ntt
    assert [cipher[i] for i in (0, 4095, 4096, 16383)] == [int(residues.ravel()[i]) for i in (0, 4095, 4096, 16383)]
    assert np.array_equal(ring.io.residues(cipher, residues.shape), residues)


def test_seeded_ciphertext_expands_to_what_seal_itself_loads(ring, tmp_path):
    encryptor = seal.Encryptor(ring.context, seal.KeyGenerator(ring.context).secret_key())
    seeded = encryptor.encrypt_symmetric(ring.io.plaintext(np.ones(4096, np.uint64)))
    seeded.save(str(tmp_path / "seeded"))
    expected = seal.Ciphertext()
    expected.load(ring.context, str(tmp_path / "seeded"))
    first, seed = ring.io.seeded_residues(seeded, (2, 4096))
    got, shape = ring.io.seeded(ring.level, first, seed), (2, 2, 4096)
    assert np.array_equal(ring.io.residues(got, shape), ring.io.residues(expected, shape))


def test_a_residue_at_its_prime_is_refused(ring):
    residues = np.stack([uniform_residues(ring.primes, 4096)] * 2)
    residues[1, 1, 77] = ring.primes[1]
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        ring.io.ciphertext(ring.level, residues, ntt=True)


def test_wrong_parameters_are_refused(ring):
    residues = np.stack([uniform_residues(ring.primes, 2048)] * 2)
    with pytest.raises(CryptoError):
        ring.io.ciphertext(ring.level, residues, ntt=True)
    with pytest.raises(CryptoError):
        ring.io.ciphertext((1, 2, 3, 4), np.stack([uniform_residues(ring.primes, 4096)] * 2), ntt=True)


def test_no_descriptor_is_left_open(ring):
    residues = np.stack([uniform_residues(ring.primes, 4096)] * 2)
    gc.collect()  # clean up after other tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ring.io.residues(ring.io.ciphertext(ring.level, residues, ntt=True), residues.shape)
    residues[0, 0, 0] = ring.primes[0]
    for _ in range(20):
        with pytest.raises(CryptoError):
            ring.io.ciphertext(ring.level, residues, ntt=True)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_without_anonymous_files_no_key_is_made(ring, monkeypatch):
    residues = np.stack([uniform_residues(ring.primes, 4096)] * 2)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with raises_code(ConfigError, "SVFL-CRYPTO-LIBRARY"):
        ring.io.ciphertext(ring.level, residues, ntt=True)
    with raises_code(ConfigError, "SVFL-CRYPTO-LIBRARY"):
        LatticeSum().sum_keygen()
