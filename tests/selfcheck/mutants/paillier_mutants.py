"""Mutants (deliberate errors) of Paillier and its sums."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from gmpy2 import mpz

from securevfl.crypto.paillier import paillier_keys, paillier_messages, paillier_product, paillier_sum
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator, PaillierHolder
from securevfl.crypto.paillier.paillier_sum import PaillierAdder
from securevfl.errors import CryptoError
from selfcheck.mutants.mutant import Mutant, Stand, patched

_encrypt = SecretKey.encrypt


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


def _as_it_is(self: Any, ciphertexts: list[int]) -> list[int]:
    return ciphertexts


def _here_alone(owner: Any, name: str, instead: Callable[..., list[int]]) -> tuple[Any, str, Any]:
    """Return a patch that breaks a function only if there is an executor."""
    right = getattr(owner, name)

    def either(self: Any, items: list[int]) -> list[int]:
        checked: list[int] = (right if self._executor is None else instead)(self, items)
        return checked

    return owner, name, either


def _bare_vector(self: Any, plaintexts: list[int]) -> list[int]:
    return [int(self._public.shift(m)) for m in plaintexts]


def _bare_pieces(parts: Any, plaintexts: list[int]) -> list[int]:
    n = mpz(parts[0]) * mpz(parts[1])
    return [int((1 + m * n) % n**2) for m in plaintexts]


def _no_refresh(self: Any, *parts: bytes) -> bytes:
    with mock.patch.object(type(self), "_with_noise", lambda self, zeros: [1] * len(zeros)):
        return _paillier_add(self, *parts)


_paillier_add = PaillierAdder.add


def _small_masks(bits: int) -> Callable[[int], int]:
    return lambda limit: secrets.randbits(bits)


_holder_encrypt = PaillierHolder.encrypt


def _data_scale(self: Any, g: Any, *, bound: float) -> bytes:
    return _holder_encrypt(self, g, bound=float(np.abs(g).max()) or 1.0)


def _no_check(self: Any, values: Any) -> list[mpz]:
    return [mpz(v) for v in values]


def _telling_check(self: Any, values: Any) -> list[mpz]:
    """State which ciphertext is invalid and why, from which a sender of forged ones could learn."""
    checked = _check(self, [v for v in values if 0 < v < self.square and v % self.n])
    for value in values:
        if not 0 < value < self.square or value % self.n == 0:
            raise CryptoError(f"a ciphertext is invalid or shares a factor with n: case {value % 7}")
    return checked


_check = PublicKey.check_units


_read = paillier_messages.read_message


def _any_key(data: bytes, kind: Any, fingerprint: bytes) -> Any:
    return _read(data, kind, data[6:22])


@contextmanager
def _key_in_public() -> Iterator[None]:
    """Send p after the public key, as if the whole key pair were sent."""
    make, load = PaillierHolder.__init__, PublicKey.load.__func__  # type: ignore[attr-defined]

    def init(self: Any, key: Any, executor: Any = None) -> None:
        make(self, key, executor)
        self.public = key.public.data + int(key._p).to_bytes(key.public.bits // 16, "big")

    def take(cls: Any, data: bytes, bits: int) -> Any:
        return load(cls, data[: 7 + 11 * bits // 8], bits)

    with mock.patch.object(PaillierHolder, "__init__", init), mock.patch.object(PublicKey, "load", classmethod(take)):
        yield


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
        patched((PaillierEvaluator, "_rerandomised", _as_it_is)),
    ),
    Mutant(
        "Paillier: product not re-randomised on an executor",
        "pieces that workers are sent come back as they are",
        "Paillier recomputed",
        "derived",
        patched(_here_alone(PaillierEvaluator, "_rerandomised", _as_it_is)),
    ),
    Mutant(
        "Paillier: encryption not random on an executor",
        "workers make ciphertexts 1 + mN of a holder's numbers",
        "Paillier recomputed",
        "derived",
        patched((paillier_product, "encrypt_as_holder", _bare_pieces)),
    ),
    Mutant(
        "Paillier sums: randomness off on an executor",
        "vectors are 1 + mN where workers make them",
        "Paillier recomputed",
        "derived",
        patched(_here_alone(PaillierAdder, "_with_noise", _bare_vector)),
    ),
    Mutant(
        "Paillier: no mask",
        "the holder opens J^T g itself",
        "engine paillier",
        "fresh",
        patched((paillier_product, "secrets", Stand(secrets, randbelow=lambda limit: 0))),
    ),
    Mutant(
        "Paillier: mask of 64 bits",
        "a mask that covers the lowest slot only",
        "engine paillier",
        "uniform",
        patched((paillier_product, "secrets", Stand(secrets, randbelow=_small_masks(64)))),
    ),
    Mutant(
        "Paillier: mask of 32 bits of seed",
        "the mask is drawn from 32 random bits",
        "engine paillier",
        "short",
        patched((paillier_product, "secrets", Stand(secrets, randbelow=_small_masks(32)))),
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
        "Paillier: informative refusals",
        "the error states more than that a ciphertext is invalid",
        "engine paillier",
        "refusal",
        patched((PublicKey, "check_units", _telling_check)),
    ),
    Mutant(
        "Paillier: keys not distinguished",
        "a ciphertext of another key is taken",
        "engine paillier",
        "refusal",
        patched((paillier_product, "read_message", _any_key)),
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
        "Paillier sums: keys not distinguished",
        "vectors under two keys are added",
        "engine paillier sums",
        "refusal",
        patched((paillier_sum, "read_message", _any_key)),
    ),
    Mutant(
        "Paillier: key floor lowered",
        "keys of any size are generated",
        "key sizes",
        "size",
        patched((paillier_keys, "MIN_PAILLIER_BITS", 512)),
    ),
    Mutant(
        "Paillier: key sent to the evaluator",
        "p travels behind the public key",
        "secret keys stay home",
        "keys",
        _key_in_public,
    ),
]
