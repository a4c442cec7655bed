"""Mutants (deliberate errors) that accept a peer's public values without checks."""

from __future__ import annotations

from typing import Any

from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_gradient import LatticeEvaluator
from securevfl.crypto.paillier import paillier_keys
from securevfl.crypto.paillier.paillier_keys import noise
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator
from securevfl.crypto.scheme import OpeningShape
from selfcheck.mutants.mutant import Mutant, patched


def _takes_both(self: Any, parameters: Any, public: bytes) -> None:
    """Read a lattice key as (b, a), of which the holder chooses both."""
    ring, body = parameters.ring, public[4:]
    parts = body[: len(body) // 2], body[len(body) // 2 :]
    first, second = (residue_encoding.unpack(part, ring.key_primes, DEGREE) for part in parts)
    self._parameters, self._engine, self._fingerprint = parameters, parameters.engine, bytes(16)
    self._encryptor = ring.encryptor(first, second)


def _holds(n: Any, roots: Any) -> bool:
    return True


def _by_powers_of_h(self: Any, ciphertexts: list[int]) -> list[int]:
    public = self._public
    return [int(c * noise(public, public.bits + 40, 6) % public.square) for c in ciphertexts]


def _any_shape(self: Any, rows: int, outputs: int, columns: int) -> None:
    """Accept every shape, so that the key holder decrypts whatever is requested."""


MUTANTS = [
    Mutant(
        "lattice: both halves of a key",
        "the second half of a public key is taken from its holder",
        "lattice keys come as seeds",
        "refusal",
        patched((LatticeEvaluator, "__init__", _takes_both)),
    ),
    Mutant(
        "Paillier: modulus not proved",
        "an n that shares a factor with phi(n) passes",
        "Paillier moduli are proved",
        "refusal",
        patched((paillier_keys, "verify_modulus", _holds)),
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
        patched((OpeningShape, "check", _any_shape)),
    ),
]
