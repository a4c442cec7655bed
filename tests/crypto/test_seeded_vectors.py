"""Encrypted uniform vectors from a seed: exact products, exact uniformity, and messages that are refused.

Results are compared with integer arithmetic. In tests/crypto/test_kernel_and_seal.py, SEAL decrypts the ciphertexts.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.kernel.residues import Primes
from securevfl.crypto.kernel.seeded_vectors import (
    pack_remainders,
    remainder_bits,
    remainder_limit,
    remainders,
    remainders_size,
    unpack_remainders,
)
from securevfl.crypto.kernel.share_protocol import QUERY_HEADER
from securevfl.crypto.kernel.shares import SEEDED_QUERY, KernelHolder, KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import CryptoError
from tests.builders import raises_code

START = QUERY_HEADER.size + 32
PRIMES = {40: Primes(24, 3), 48: Primes(20, 4), 56: Primes(23, 4)}


def parties(scheme: Any) -> tuple[Any, Any]:
    coin = os.urandom(32)
    holder = scheme.keygen(coin)
    return holder, scheme.evaluator(holder.public, coin)


@pytest.mark.parametrize(
    ("scheme", "seeded"),
    [
        (KernelShares(40), True),
        (KernelShares(48), True),
        (KernelShares(56), True),
        (KernelShares(16), False),
        (LatticeShares(48), False),
    ],
    ids=["40", "48", "56", "16", "seal"],
)
@pytest.mark.parametrize(("n", "c", "d"), [(3000, 3, 2), (1000, 70, 2), (200, 1, 1), (40, 30, 60)])
def test_products_with_uniform_vectors_are_exact(scheme: Any, seeded: bool, n: int, c: int, d: int) -> None:
    """Cases: blocks with fewer rows than points, several blocks of outputs, and layouts
    for which no seed can be used.
    """
    holder, evaluator = parties(scheme)
    sealed, V = holder.encrypt_uniform(n, c, columns=d)
    assert (sealed[:4] == SEEDED_QUERY) == (seeded and n > 200)
    W = np.random.default_rng(n).integers(-500, 500, (n, d))
    reply, share = evaluator.product(evaluator.prepare(W), sealed)
    ring = ShareRing(scheme.bits)
    error = ring.signed(ring.reduce(share + holder.open(reply) - W.astype(np.uint64).T @ V))
    assert np.abs(error).max() <= 1
    assert np.count_nonzero(error) <= 2
    if sealed[:4] == SEEDED_QUERY:
        assert len(sealed) == START + remainders_size(PRIMES[scheme.bits], scheme.bits, n * c)
        assert remainders_size(PRIMES[scheme.bits], scheme.bits, 10) == (45 if scheme.bits == 56 else 40)


@pytest.mark.parametrize(("q", "bits"), [(1009, 3), (4001, 4), (257, 2), (8191, 6)])
def test_every_word_has_the_same_remainders(q: int, bits: int) -> None:
    """Every word occurs with the same remainders: all pairs of a word and a remainder up to the limit occur once."""
    limit, t = remainder_limit(SimpleNamespace(q=q), bits), 2**bits  # type: ignore[arg-type]
    found = []
    for z in range(q):
        word = (2 * t * z + q) // (2 * q) % t
        rho = (z - (2 * q * word + t) // (2 * t) + q // 2) % q - q // 2
        if abs(rho) <= limit:
            found.append((word, rho))
    assert sorted(found) == [(word, rho) for word in range(t) for rho in range(-limit, limit + 1)]
    assert q - len(found) < 2 * t + 1, "few z are discarded"


@pytest.mark.parametrize("bits", PRIMES)
def test_words_and_remainders_are_uniform_and_independent(bits: int) -> None:
    holder, _ = parties(KernelShares(bits))
    sealed, V = holder.encrypt_uniform(4096, 8, columns=1)
    limit = remainder_limit(PRIMES[bits], bits)
    rho = unpack_remainders(PRIMES[bits], bits, sealed[START:], V.size)
    words = V.reshape(-1)
    parts = [(words >> np.uint64(shift)).astype(np.int64) & 15 for shift in (0, 12, bits - 4)]
    parts += [(rho + limit) & 15, (rho + limit) * 16 // (2 * limit + 1)]
    for k, one in enumerate(parts):
        for other in parts[:k]:
            counts = np.bincount(16 * one + other, minlength=256)
            assert ((counts - 128) ** 2 / 128).sum() < 255 + 7 * (2 * 255) ** 0.5


class Discarding(KernelHolder):
    """A holder whose first seeds lead to a remainder beyond the limit."""

    tried: list[bytes]

    def _expanded(self, layout: Any, seed: bytes) -> Any:
        V, rho = super()._expanded(layout, seed)
        self.tried.append(seed)
        if len(self.tried) < 3:
            rho[-1, -1] = (-1) ** len(self.tried) * (remainder_limit(PRIMES[48], 48) + 1)
        return V, rho


def test_a_seed_with_a_remainder_beyond_the_limit_is_discarded() -> None:
    scheme = KernelShares(48)
    holder = Discarding(scheme.keygen(bytes(32))._parameters, bytes(32))  # type: ignore[attr-defined]
    holder.tried = []
    sealed, _ = holder.encrypt_uniform(5000, 1, columns=1)
    assert len(set(holder.tried)) == 3
    assert sealed[QUERY_HEADER.size : START] == holder.tried[-1]


@pytest.mark.parametrize("bits", PRIMES)
@pytest.mark.parametrize("count", [1, 6, 7])
def test_remainders_have_one_encoding(bits: int, count: int) -> None:
    primes, limit = PRIMES[bits], remainder_limit(PRIMES[bits], bits)
    values = np.resize(np.array([-limit, limit, 0, -1, 1, limit - 1]), count)
    assert np.array_equal(remainders(primes, primes.centred(values)), values)
    data = pack_remainders(primes, bits, values)
    assert len(data) == remainders_size(primes, bits, count)
    assert np.array_equal(unpack_remainders(primes, bits, data, count), values)
    beyond = pack_remainders(primes, bits, np.append(values[1:], limit + 1))
    if remainder_bits(primes, bits) == 36 and count % 2:
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            unpack_remainders(primes, bits, data[:-1] + bytes([data[-1] | 0x10]), count)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        unpack_remainders(primes, bits, beyond, count)


def test_malformed_queries_are_refused() -> None:
    scheme = KernelShares(48)
    holder, evaluator = parties(scheme)
    sealed, _ = holder.encrypt_uniform(5000, 1, columns=1)
    prepared = evaluator.prepare(np.ones((5000, 1), int))
    magic, key, n, c, r, s = QUERY_HEADER.unpack_from(sealed)
    several_columns = QUERY_HEADER.pack(magic, key, n, c, r, s // 4) + sealed[QUERY_HEADER.size :]
    for altered in (
        sealed[:-1],
        sealed + b"\0",
        several_columns,
        sealed[:START] + b"\xff" * (len(sealed) - START),
        b"SKV2" + sealed[4:],
        sealed[:4] + bytes(16) + sealed[20:],
    ):
        with pytest.raises(CryptoError):
            evaluator.product(prepared, altered)
