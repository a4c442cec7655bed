"""Mutants of the engines and of how the residual protocol uses them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tenseal.sealapi as seal
from gmpy2 import mpz

from securevfl.audit.mutant import Mutant, patched
from securevfl.crypto import (
    fixedpoint,
    lattice,
    lattice_profile,
    lattice_ring,
    paillier,
    paillier_keys,
    paillier_sum,
    paillier_wire,
)
from securevfl.crypto.lattice import LatticeEvaluator, LatticeHolder, LatticeScheme
from securevfl.crypto.lattice_sum import LatticeAdder
from securevfl.crypto.paillier import PaillierEvaluator, PaillierHolder
from securevfl.crypto.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier_sum import PaillierAdder
from securevfl.errors import CryptoError, RangeError

_encrypt = SecretKey.encrypt
_holder_encrypt, _lattice_encrypt = PaillierHolder.encrypt, LatticeHolder.encrypt


def _identity(self: Any, plaintexts: Any) -> list[int]:
    return [int(m % self.public.n) or 1 for m in plaintexts]


def _bare(self: Any, plaintexts: Any) -> list[int]:
    return [int((1 + m % self.public.n * self.public.n) % self.public.square) for m in plaintexts]


def _one_nonce(self: Any, plaintexts: Any) -> list[int]:
    r = _encrypt(self, [0])[0]
    return [int(r * self.public.shift(m) % self.public.square) for m in plaintexts]


def _one_nonce_for_ever(self: Any, plaintexts: Any) -> list[int]:
    r = pow(3, int(self.public.n), int(self.public.square))
    return [int(mpz(r) ** (i + 1) * self.public.shift(m) % self.public.square) for i, m in enumerate(plaintexts)]


def _no_noise(self: Any) -> int:
    return 1


def _bare_vector(self: Any, plaintexts: list[int]) -> list[int]:
    return [int(self._public.shift(m)) for m in plaintexts]


def _no_refresh(self: Any, *parts: bytes) -> bytes:
    with mock.patch.object(type(self), "_with_noise", lambda self, zeros: [1] * len(zeros)):
        return _paillier_add(self, *parts)


_paillier_add = PaillierAdder.add


def _small_masks(bits: int) -> Callable[[int], int]:
    return lambda limit: secrets.randbits(bits)


class _Secrets:
    """`secrets` with another randbelow."""

    def __init__(self, randbelow: Callable[[int], int]) -> None:
        self.randbelow = randbelow

    def __getattr__(self, name: str) -> Any:
        return getattr(secrets, name)


def _data_scale(self: Any, g: Any, *, bound: float) -> bytes:
    return _holder_encrypt(self, g, bound=float(np.abs(g).max()) or 1.0)


def _lattice_data_scale(self: Any, g: Any, *, bound: float) -> bytes:
    return _lattice_encrypt(self, g, bound=float(np.abs(g).max()) or 1.0)


def _no_check(self: Any, values: Any) -> list[mpz]:
    return [mpz(v) for v in values]


def _telling_check(self: Any, values: Any) -> list[mpz]:
    """Says which ciphertext is bad and how: an answer for whoever sends forged ones."""
    found = _check(self, [v for v in values if 0 < v < self.square and v % self.n])
    for value in values:
        if not 0 < value < self.square or value % self.n == 0:
            raise CryptoError(f"a ciphertext shares a factor with n or is none: case {value % 7}")
    return found


_check = PublicKey.check_units
_read = paillier_wire.read


def _any_key(data: bytes, kind: Any, fingerprint: bytes) -> Any:
    return _read(data, kind, data[6:22])


def _any_header(self: Any, shape: Any, magic: bytes, message: bytes, fingerprint: bytes) -> Any:
    return shape.unpack_from(message)[3:]


def _no_zero(self: Any, cipher: Any) -> Any:
    if not self._parameters.profile.drop:
        return cipher
    total = seal.Ciphertext()
    self._parameters.ring.evaluator.rescale_to_next(cipher, total)
    total.scale = 1.0
    return total


def _no_lattice_mask(self: Any, count: int) -> Any:
    return np.zeros((len(self._parameters.reply_primes), count), np.uint64)


def _narrow_lattice_mask(self: Any, count: int) -> Any:
    return lattice_ring.dither_residues(self._parameters.reply_primes, 84, count)


def _no_dither(self: Any, count: int) -> Any:
    return np.zeros((len(self._parameters.reply_primes), count), np.uint64)


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
    """The key holder makes no new key when the epoch changes."""
    from securevfl.audit import transcript

    with (
        mock.patch.object(transcript, "_rotates", _true),
        mock.patch.object(LatticeScheme, "rotates", property(_not_rotating)),
    ):
        yield


_lattice_add = LatticeAdder.add


def _repeat(self: Any, parts: tuple[bytes, ...]) -> bytes:
    """The same sum always gives the same bytes."""
    kept: dict[tuple[bytes, ...], bytes] = self.__dict__.setdefault("_kept", {})
    if parts not in kept:
        kept[parts] = _lattice_add(self, *parts)
    return kept[parts]


@contextmanager
def _weak_rings() -> Iterator[None]:
    """Neither our table nor SEAL's own check stands in the way of a ring below 128 bits."""
    context = seal.SEALContext

    class Loose:
        def __getattr__(self, name: str) -> Any:
            return getattr(seal, name)

        def SEALContext(self, parms: Any, expand: bool, level: Any) -> Any:
            return context(parms, expand, seal.SEC_LEVEL_TYPE.NONE)

    with (
        mock.patch.object(lattice_ring, "MAX_BITS_128", dict.fromkeys((1024, 2048, 4096, 8192), 400)),
        mock.patch.object(lattice_ring, "seal", Loose()),
    ):
        yield


@contextmanager
def _key_in_public() -> Iterator[None]:
    """p travels behind the public key, as a key pair sent whole would."""
    make, load = PaillierHolder.__init__, PublicKey.load.__func__  # type: ignore[attr-defined]

    def init(self: Any, key: Any, executor: Any = None) -> None:
        make(self, key, executor)
        self.public = key.public.data + int(key._p).to_bytes(key.public.bits // 16, "big")

    def take(cls: Any, data: bytes, bits: int) -> Any:
        return load(cls, data[: 7 + 3 * bits // 8], bits)

    with mock.patch.object(PaillierHolder, "__init__", init), mock.patch.object(PublicKey, "load", classmethod(take)):
        yield


@contextmanager
def _seal_key_on_disk() -> Iterator[None]:
    """The SEAL secret key is written beside every saved part."""
    from securevfl.part import Part

    made: list[Any] = []
    generator, save = seal.KeyGenerator, Part.save

    class Keeping:
        def __getattr__(self, name: str) -> Any:
            return getattr(seal, name)

        def KeyGenerator(self, context: Any) -> Any:
            found = generator(context)
            made.append((found.secret_key(), context))
            return found

    def save_more(self: Any, path: Any) -> None:
        from securevfl.crypto.sealio import SealIO

        save(self, path)
        secret, context = made[-1]
        parms = context.key_context_data().parms()
        shape = (len(parms.coeff_modulus()), parms.poly_modulus_degree())
        path.with_suffix(".key").write_bytes(SealIO(context).plain_residues(secret, shape).tobytes())

    with mock.patch.object(lattice, "seal", Keeping()), mock.patch.object(Part, "save", save_more):
        yield


def _speaking_encode(values: Any, bound: float, bits: int) -> Any:
    if np.abs(values).max() > bound:
        raise RangeError(f"{np.abs(values).max()} is beyond {bound}")
    return _fixed(values, bound, bits)


_fixed = fixedpoint.encode

MUTANTS = [
    Mutant(
        "Paillier: encrypt returns its input",
        "ciphertexts are the plaintexts",
        "engine paillier",
        "uniform",
        patched((SecretKey, "encrypt", _identity)),
    ),
    Mutant(
        "Paillier: randomness off",
        "ciphertexts are 1 + mN",
        "engine paillier",
        "bare",
        patched((SecretKey, "encrypt", _bare)),
    ),
    Mutant(
        "Paillier: one nonce",
        "all ciphertexts of a message share r",
        "engine paillier",
        "fresh",
        patched((SecretKey, "encrypt", _one_nonce)),
    ),
    Mutant(
        "Paillier: nonces from a counter",
        "r = 3^i, the same in every message",
        "engine paillier",
        "fresh",
        patched((SecretKey, "encrypt", _one_nonce_for_ever)),
    ),
    Mutant(
        "Paillier: product not re-randomised",
        "blind adds its mask and no noise",
        "engine paillier",
        "fresh",
        patched((PaillierEvaluator, "_noise", _no_noise)),
    ),
    Mutant(
        "Paillier: no mask",
        "the holder opens J^T g itself",
        "engine paillier",
        "fresh",
        patched((paillier, "secrets", _Secrets(lambda limit: 0))),
    ),
    Mutant(
        "Paillier: mask of 64 bits",
        "a mask that covers the lowest slot only",
        "engine paillier",
        "uniform",
        patched((paillier, "secrets", _Secrets(_small_masks(64)))),
    ),
    Mutant(
        "Paillier: mask of 32 bits of seed",
        "the mask is drawn from 32 random bits",
        "engine paillier",
        "short",
        patched((paillier, "secrets", _Secrets(_small_masks(32)))),
    ),
    Mutant(
        "Paillier: scale in the clear",
        "the header holds max|g| as its bound",
        "engine paillier",
        "shape",
        patched((PaillierHolder, "encrypt", _data_scale)),
    ),
    Mutant(
        "Paillier: elements unchecked",
        "0, n and multiples of p are opened",
        "engine paillier",
        "refusal",
        patched((PublicKey, "check_units", _no_check)),
    ),
    Mutant(
        "Paillier: refusals that tell",
        "the error says more than that a ciphertext is invalid",
        "engine paillier",
        "refusal",
        patched((PublicKey, "check_units", _telling_check)),
    ),
    Mutant(
        "Paillier: keys not told apart",
        "a ciphertext of another key is taken",
        "engine paillier",
        "refusal",
        patched((paillier, "read", _any_key)),
    ),
    Mutant(
        "Paillier sums: randomness off",
        "vectors are sent as 1 + mN",
        "engine paillier sums",
        "bare",
        patched((PaillierAdder, "_with_noise", _bare_vector)),
    ),
    Mutant(
        "Paillier sums: product not re-randomised",
        "a sum is the product of its parts",
        "engine paillier sums",
        "fresh",
        patched((PaillierAdder, "add", _no_refresh)),
    ),
    Mutant(
        "Paillier sums: keys not told apart",
        "vectors under two keys are added",
        "engine paillier sums",
        "refusal",
        patched((paillier_sum, "read", _any_key)),
    ),
    Mutant(
        "Paillier: key floor lowered",
        "keys of any size are made",
        "key sizes",
        "size",
        patched((paillier_keys, "MIN_BITS", 512)),
    ),
    Mutant(
        "Paillier: key sent to the evaluator",
        "p travels behind the public key",
        "secret keys stay home",
        "keys",
        _key_in_public,
    ),
    Mutant(
        "lattice: no encryption of zero",
        "c1 of the reply is c1(g) J, from which the holder divides J out",
        "engine ckks",
        "fresh",
        patched((LatticeEvaluator, "_rerandomised", _no_zero)),
    ),
    Mutant(
        "lattice: no mask",
        "the holder opens J^T g itself",
        "engine ckks",
        "uniform",
        patched((LatticeEvaluator, "_uniform", _no_lattice_mask)),
    ),
    Mutant(
        "lattice: no mask, seen by the simulator",
        "as above",
        "simulator residual ckks",
        "simulator",
        patched((LatticeEvaluator, "_uniform", _no_lattice_mask)),
    ),
    Mutant(
        "lattice: mask of 84 bits",
        "a mask 8 bits short of the modulus",
        "engine ckks",
        "uniform",
        patched((LatticeEvaluator, "_uniform", _narrow_lattice_mask)),
    ),
    Mutant(
        "lattice: no dither",
        "openings show the noise, which is linear in the key",
        "engine ckks",
        "fresh",
        patched((LatticeHolder, "_dither", _no_dither)),
    ),
    Mutant(
        "lattice: masks serve twice", "a mask is not spent by an opening", "engine ckks", "fresh", _masks_serve_twice
    ),
    Mutant(
        "lattice: scale in the clear",
        "the header holds max|g| as its bound",
        "engine ckks",
        "shape",
        patched((LatticeHolder, "encrypt", _lattice_data_scale)),
    ),
    Mutant(
        "lattice: keys not told apart",
        "a ciphertext of another key is taken",
        "engine ckks",
        "refusal",
        patched((lattice_profile.Parameters, "header", _any_header)),
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
        "lattice: key written to a file",
        "the SEAL secret key is saved beside a part",
        "secret keys stay home",
        "keys",
        _seal_key_on_disk,
    ),
    Mutant(
        "errors that show a value",
        "an overflow names the largest value",
        "errors are silent",
        "silent",
        patched((fixedpoint, "encode", _speaking_encode)),
    ),
]
