"""Mutants that take a peer's chosen public values as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.polynomial_ring import Ring
from securevfl.crypto.paillier import paillier_keys
from securevfl.crypto.paillier.paillier_keys import noise
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator
from securevfl.crypto.scheme import Shape
from selfcheck.mutants.mutant import Mutant, patched


@contextmanager
def _both_halves() -> Iterator[None]:
    """Write a lattice key as (b, a), as SEAL saves it."""

    def size(self: Any) -> int:
        return 2 * polynomial_ring.packed_size(self.key_primes, self.degree)

    def write(self: Any, encryptor: Any) -> bytes:
        zero = seal.Ciphertext()
        encryptor.encrypt_zero_symmetric(self.context.key_parms_id(), zero)
        return polynomial_ring.pack(self.io.residues(zero, (2, len(self.key_primes), self.degree)), self.key_primes)

    def read(self: Any, data: bytes) -> Any:
        half = len(data) // 2
        rows = np.stack(
            [polynomial_ring.unpack(part, self.key_primes, self.degree) for part in (data[:half], data[half:])]
        )
        io = self.io
        body = io._members(self.context.key_parms_id(), True, 2, rows.shape) + polynomial_ring._array(rows, io._version)
        return polynomial_ring._load(seal.PublicKey, self.context, body, io._version, "public key")

    with (
        mock.patch.object(Ring, "public_size", property(size)),
        mock.patch.object(Ring, "public_bytes", write),
        mock.patch.object(Ring, "public_key", read),
    ):
        yield


def _holds(n: Any, roots: Any) -> bool:
    return True


def _by_powers_of_h(self: Any, ciphertexts: list[int]) -> list[int]:
    public = self._public
    return [int(c * noise(public, public.bits + 40, 6) % public.square) for c in ciphertexts]


def _any_shape(self: Any, rows: int, outputs: int, columns: int) -> None:
    """Accept every shape, so that the key holder opens whatever is asked for."""


MUTANTS = [
    Mutant(
        "lattice: both halves of a key",
        "the second half of a public key is taken from its holder",
        "lattice keys come as seeds",
        "refusal",
        _both_halves,
    ),
    Mutant(
        "Paillier: modulus not proved",
        "an n that shares a factor with phi(n) passes",
        "Paillier moduli are proved",
        "refusal",
        patched((paillier_keys, "holds", _holds)),
    ),
    Mutant(
        "Paillier: re-randomised by the holder's base",
        "powers of h, which may have a small order, hide the product",
        "engine paillier, weak base",
        "fresh",
        patched((PaillierEvaluator, "_rerandomised", _by_powers_of_h)),
    ),
    Mutant(
        "engines: any shape is opened",
        "the key holder opens products wider than was agreed",
        "engine ckks",
        "refusal",
        patched((Shape, "check", _any_shape)),
    ),
]
