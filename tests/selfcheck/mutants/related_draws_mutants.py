"""Mutants (deliberate errors) whose random numbers are never equal but can be computed from one another."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.lattice.lattice_gradient import LatticeEvaluator
from securevfl.crypto.lattice.lattice_sum import LatticeAdder
from securevfl.crypto.paillier.paillier_keys import SecretKey
from securevfl.crypto.transfers import base_transfers, ot_extension
from securevfl.protocols.alignment import psi_transfers
from securevfl.protocols.sums.tree_sum import TreeSumRole
from selfcheck.mutants.mutant import Mutant, patched


def _opposite_neighbours(self: Any, part: Any) -> Any:
    mask = self._masks.array(part.shape, part.dtype.type)
    half = len(mask) // 2
    mask[1 : 2 * half : 2] = np.negative(mask[0 : 2 * half : 2])
    return mask


_scalar = base_transfers._scalar
_last = threading.local()


def _next_scalar() -> bytes:
    """Return the last scalar of this party plus one."""
    number = getattr(_last, "number", None) or int.from_bytes(_scalar(), "little") % 2**250
    _last.number = number + 1
    return int(number).to_bytes(32, "little")


def _same_halves() -> Any:
    secret = os.urandom(ot_extension.SECRET_BYTES // 2) * 2
    return secret, np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()


_zero = LatticeEvaluator._zero


def _zero_turned(self: Any) -> Any:
    """Use one encryption of zero for each key, multiplied by x^k for a random k in each reply."""
    ring = self._parameters.ring
    if not hasattr(self, "_cached_zero"):
        self._cached_zero = _zero(self)
        ring.evaluator.transform_to_ntt_inplace(self._cached_zero)
    monomial, turned = np.zeros(4096), seal.Ciphertext()
    monomial[int.from_bytes(os.urandom(16), "little") % 4096] = 1.0
    plain, _ = ring.plaintext(RingLayout(1, 1, 1, 1), monomial)
    ring.evaluator.multiply_plain(self._cached_zero, plain, turned)
    ring.evaluator.transform_from_ntt_inplace(turned)
    return turned


_reply = LatticeEvaluator.blind


def _zero_of_reply(self: Any) -> Any:
    ring = self._parameters.ring
    if self._cached_zero is None:
        self._cached_zero = ring.io.residues(_zero(self), ring.shape)
    return ring.io.ciphertext(ring.level, self._cached_zero, ntt=False)


def _reply_with_one_zero(self: Any, product: Any) -> Any:
    self._cached_zero = None
    return _reply(self, product)


_add = LatticeAdder.add


class _OneZero:
    """An encryptor that always returns its first encryption of zero."""

    def __init__(self, inner: Any, evaluator: Any) -> None:
        self._inner, self._evaluator, self._negative = inner, evaluator, None

    def encrypt_zero(self, level: Any, out: Any) -> None:
        if self._negative is None:
            first, self._negative = seal.Ciphertext(), seal.Ciphertext()
            self._inner.encrypt_zero(level, first)
            self._evaluator.negate(first, self._negative)
        self._evaluator.negate(self._negative, out)


def _sum_with_one_zero(self: Any, *parts: bytes) -> bytes:
    inner = self._encryptor
    self._encryptor = _OneZero(inner, self._ring.evaluator)
    try:
        return _add(self, *parts)
    finally:
        self._encryptor = inner


_encrypt = SecretKey.encrypt


def _squared_nonces(self: Any, plaintexts: Any) -> list[int]:
    square = self.public.square
    r, sealed = _encrypt(self, [0])[0], []
    for m in plaintexts:
        sealed.append(int(r * self.public.shift(m) % square))
        r = r * r % square
    return sealed


MUTANTS = [
    Mutant(
        "tree: opposite neighbours",
        "of two rows the second's mask is minus the first's, so that their sum shows",
        "bits of masks",
        "bits",
        patched((TreeSumRole, "_mask", _opposite_neighbours)),
    ),
    Mutant(
        "transfers: scalars in sequence",
        "b_(j+1) = b_j + 1, so that differences of points show the choices",
        "transfers are known answers",
        "derived",
        patched((base_transfers, "_scalar", _next_scalar)),
    ),
    Mutant(
        "transfers: choices repeat",
        "the second half of the holder's secret is its first",
        "transfers are known answers",
        "derived",
        patched((psi_transfers, "fresh_secret", _same_halves)),
    ),
    Mutant(
        "lattice: one encryption of zero, turned",
        "one encryption of zero a key, times a random monomial for each reply",
        "lattice replies are unrelated",
        "related",
        patched((LatticeEvaluator, "_zero", _zero_turned)),
    ),
    Mutant(
        "lattice: one encryption of zero a reply",
        "all ciphertexts of a reply share one, so that differences are those of the products",
        "lattice replies are unrelated",
        "related",
        patched((LatticeEvaluator, "blind", _reply_with_one_zero), (LatticeEvaluator, "_zero", _zero_of_reply)),
    ),
    Mutant(
        "lattice sums: one encryption of zero a sum",
        "all ciphertexts of a sum share one",
        "lattice replies are unrelated",
        "related",
        patched((LatticeAdder, "add", _sum_with_one_zero)),
    ),
    Mutant(
        "Paillier: nonces squared",
        "each ciphertext's randomness is the square of the one before",
        "Paillier recomputed",
        "derived",
        patched((SecretKey, "encrypt", _squared_nonces)),
    ),
]
