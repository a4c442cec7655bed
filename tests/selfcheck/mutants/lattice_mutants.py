"""Mutants (deliberate errors) of the lattice engine and its sums, and of error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.kernel import row_products
from securevfl.crypto.kernel.row_products import RowScheme
from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.lattice_gradient import LatticeEvaluator, LatticeHolder
from securevfl.crypto.lattice.lattice_sum import LatticeAdder
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.paillier import fixed_point_integers
from securevfl.errors import RangeError
from selfcheck.mutants.mutant import Mutant, patched

_lattice_encrypt = LatticeHolder.encrypt


def _lattice_data_scale(self: Any, g: Any, *, bound: float) -> bytes:
    return _lattice_encrypt(self, g, bound=float(np.abs(g).max()) or 1.0)


def _any_header(engine: str, shape: Any, magic: bytes, message: bytes, key: bytes) -> Any:
    return shape.unpack_from(message)[2:]


def _no_zero(self: Any) -> Any:
    return no_zero(self._parameters.ring)


def no_zero(ring: SealRing) -> Any:
    """Return a value that hides nothing instead of an encryption of zero; a ciphertext with c1 = 0 would be refused."""
    residues = np.zeros(ring.shape, np.uint64)
    residues[1, :, 0] = 1
    return ring.io.ciphertext(ring.level, residues, ntt=False)


def _none(self: Any, prg: Any, shape: Any) -> Any:
    return np.zeros((len(self._parameters.ring.primes), *shape), np.uint64)


def _narrow_lattice_mask(self: Any, prg: Any, shape: Any) -> Any:
    high, low = (prg.array(shape, np.uint64).astype(object) for _ in range(2))
    product = (high << 21) + (low >> 43)  # 85 bits
    return np.stack([np.asarray(product % p, np.uint64) for p in self._parameters.ring.primes])


@contextmanager
def _masks_serve_twice() -> Iterator[None]:
    unblind = LatticeEvaluator.unblind

    def again(self: Any, opened: bytes, mask: Any) -> Any:
        mask.spent = False
        return unblind(self, opened, mask)

    with mock.patch.object(LatticeEvaluator, "unblind", again):
        yield


def _not_rotating(self: Any) -> bool:
    return False


def _true(residual: Any) -> bool:
    return True


@contextmanager
def _kept_key() -> Iterator[None]:
    """Use the same key of the key holder when the epoch changes."""
    from securevfl.audit.recording import transcript_recording

    with (
        mock.patch.object(transcript_recording, "_rotates", _true),
        mock.patch.object(RowScheme, "rotates", property(_not_rotating)),
    ):
        yield


_lattice_add = LatticeAdder.add


def _repeat(self: Any, parts: tuple[bytes, ...]) -> bytes:
    """Return the same bytes for the same sum."""
    cache: dict[tuple[bytes, ...], bytes] = self.__dict__.setdefault("_kept", {})
    if parts not in cache:
        cache[parts] = _lattice_add(self, *parts)
    return cache[parts]


@contextmanager
def _weak_rings() -> Iterator[None]:
    """Disable this library's table and SEAL's check of rings with less than 128 bits of security."""
    context = seal.SEALContext

    class Loose:
        def __getattr__(self, name: str) -> Any:
            return getattr(seal, name)

        def SEALContext(self, parms: Any, expand: bool, level: Any) -> Any:
            return context(parms, expand, seal.SEC_LEVEL_TYPE.NONE)

    with (
        mock.patch.object(polynomial_ring, "MAX_MODULUS_BITS", 400),
        mock.patch.object(polynomial_ring, "seal", Loose()),
    ):
        yield


def _speaking_encode(values: Any, bound: float, bits: int) -> Any:
    if np.abs(values).max() > bound:
        raise RangeError(f"{np.abs(values).max()} is beyond {bound}")
    return _fixed(values, bound, bits)


_fixed = fixed_point_integers.encode


MUTANTS = [
    Mutant(
        "lattice: no encryption of zero",
        "c1 of the reply is c1(g) J, so the holder recovers J by division",
        "engine ckks on SEAL",
        "fresh",
        patched((LatticeEvaluator, "_zero", _no_zero)),
    ),
    Mutant(
        "lattice: no mask",
        "the holder opens J^T g itself",
        "engine ckks on SEAL",
        "uniform",
        patched((LatticeEvaluator, "_uniform", _none)),
    ),
    Mutant(
        "lattice: mask of 85 bits",
        "a mask 8 bits short of the modulus",
        "engine ckks on SEAL",
        "uniform",
        patched((LatticeEvaluator, "_uniform", _narrow_lattice_mask)),
    ),
    Mutant(
        "lattice: no dither",
        "openings show the noise, which is linear in the key",
        "engine ckks on SEAL",
        "fresh",
        patched((LatticeHolder, "_dither", _none)),
    ),
    Mutant(
        "lattice: masks serve twice",
        "a mask is not spent by an opening",
        "engine ckks on SEAL",
        "fresh",
        _masks_serve_twice,
    ),
    Mutant(
        "lattice: scale in the clear",
        "the header holds max|g| as its bound",
        "engine ckks on SEAL",
        "shape",
        patched((LatticeHolder, "encrypt", _lattice_data_scale)),
    ),
    Mutant(
        "lattice: keys not distinguished",
        "a ciphertext of another key is taken",
        "engine ckks on SEAL",
        "refusal",
        patched((row_products, "read_header", _any_header)),
    ),
    Mutant(
        "lattice: one key for all epochs", "the key holder never makes a new key", "residual ckks", "keys", _kept_key
    ),
    Mutant(
        "lattice sums: sum not re-randomised",
        "the same parts give the same bytes",
        "engine ckks sums",
        "fresh",
        patched((LatticeAdder, "add", lambda self, *parts: _repeat(self, parts))),
    ),
    Mutant(
        "lattice: rings below 128 bits",
        "parameters are not held against the standard",
        "key sizes",
        "size",
        _weak_rings,
    ),
    Mutant(
        "errors that show a value",
        "an overflow names the largest value",
        "errors are silent",
        "silent",
        patched((fixed_point_integers, "encode", _speaking_encode)),
    ),
]
