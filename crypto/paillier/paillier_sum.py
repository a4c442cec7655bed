"""Encrypted sums of vectors under the Paillier cryptosystem.

Adders encrypt their vectors under the holder's public key, multiply ciphertexts, which adds the vectors, and
re-randomise the result. The holder decrypts only the total. Several values share a plaintext, in slots of some bits
each. A slot has room for the sum of all summands' values, which have 32 bits with their sign, so sums do not overflow
into the next slot.

An adder randomises with h^s, a power of a base h in the public key (paillier_keys.py), where s has half as many bits as
the modulus n (Damgard, Jurik, Nielsen 2010). So its vector is hidden from everyone except the holder. A total reveals
only the sum to the holder, whatever n and h it has chosen, because the randomness does not depend on the vectors. If
the holder has chosen an h of small order, the other adders can read vectors; but the holder could just as well show
them its secret key.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.paillier import fixed_point_integers, paillier_messages
from securevfl.crypto.paillier.packing import pack, unpack
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey, check_bits
from securevfl.crypto.paillier.paillier_messages import (
    MessageKind,
    PaillierHeader,
    read_message,
    read_numbers,
    write_message,
)
from securevfl.crypto.paillier.paillier_workers import decrypt_all, encrypt_all, run_in_pieces
from securevfl.crypto.scheme import Adder, AdditiveScheme, SumHolder
from securevfl.errors import ConfigError, CryptoError, RangeError

VALUE_BITS = 31
"""Number of bits of a value without its sign."""
MAX_PAILLIER_TERMS = 1 << 16
"""Largest number of vectors ("terms") in a sum."""
_MAX_LENGTH = 1 << 28


def _pitch(terms: int) -> int:
    """Return the number of bits of a slot, for a sum of up to `terms` values."""
    return VALUE_BITS + terms.bit_length() + 1


def _per(public: PublicKey, terms: int) -> int:
    """Return the number of slots in a plaintext; one bit of n is reserved for the sign."""
    return int(public.bits - 2) // _pitch(terms)


class PaillierSum(AdditiveScheme):
    """The Paillier scheme for encrypted sums.

    Args:
        bits: size of the keys, which is the number of bits of n.

    Raises:
        ConfigError: if the size is below 2048 bits or impossible.
    """

    name: ClassVar[str] = "paillier"

    def __init__(self, bits: int = 3072) -> None:
        self.bits = check_bits(bits)

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        """Create a holder with a new key; see `AdditiveScheme.sum_keygen`."""
        return PaillierSumHolder(SecretKey.generate(self.bits), executor)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        """Create an adder for a holder's public key; see `AdditiveScheme.adder`."""
        return PaillierAdder(PublicKey.load(public, self.bits), executor)


class PaillierSumHolder(SumHolder):
    """The party that learns the sum.

    Args:
        key: the secret key.
        executor: processes of this party for expensive operations, which receive the secret key; None for the calling
            thread.
    """

    def __init__(self, key: SecretKey, executor: Executor | None = None) -> None:
        self._key = key
        self._executor = executor
        self.public = key.public.data

    def decrypt(self, total: bytes) -> Floats:
        """Decrypt a sum of vectors; see `SumHolder.decrypt`."""
        public = self._key.public
        header, ciphertexts = _read(public, total)
        m, terms, _ = header.sizes
        if self._executor is None:
            plaintexts = self._key.decrypt(ciphertexts)
        else:
            plaintexts = run_in_pieces(self._executor, decrypt_all, self._key.parts_for_workers(), ciphertexts)
        per, pitch, n = _per(public, terms), _pitch(terms), int(public.n)
        values: list[int] = []
        for plaintext in plaintexts:
            signed = plaintext - n if plaintext > n // 2 else plaintext
            values += unpack(signed, min(per, m - len(values)), pitch)
        return np.array([fixed_point_integers.decode(v, header.bound, VALUE_BITS) for v in values], dtype=np.float64)


class PaillierAdder(Adder):
    """A party that adds its encrypted vector. Fixed point changes a value by at most bound * 2^-32.

    Args:
        public: the holder's public key.
        executor: processes for expensive operations; None for the calling thread.
    """

    def __init__(self, public: PublicKey, executor: Executor | None = None) -> None:
        self._public = public
        self._executor = executor

    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        """Encrypt a vector; see `Adder.encrypt`."""
        public, values = self._public, np.asarray(v, dtype=np.float64)
        if values.ndim != 1 or not 1 <= values.size <= _MAX_LENGTH:
            raise RangeError(
                f"v of shape {values.shape} is not a vector of 1 to {_MAX_LENGTH} entries", code="SVFL-CRYPTO-SHAPE"
            )
        if not 1 <= terms <= MAX_PAILLIER_TERMS:
            raise ConfigError(
                f"a sum under Paillier cannot have {terms} terms",
                f"use 1 to {MAX_PAILLIER_TERMS} terms",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        ints = fixed_point_integers.encode(values, bound, VALUE_BITS)
        plaintexts = list(pack(ints, _per(public, terms), _pitch(terms)))
        header = PaillierHeader(MessageKind.SUM, public.fingerprint, (values.size, terms, 1), float(bound))
        return write_message(header, self._with_noise(plaintexts), public.size)

    def size(self, values: int, *, terms: int) -> int:
        """Return the size of an encrypted vector in bytes; see `Adder.size`."""
        return paillier_messages.message_size(-(-values // _per(self._public, terms)), self._public.size)

    def add(self, *parts: bytes) -> bytes:
        """Add encrypted vectors, and re-randomise the sum; see `Adder.add`."""
        public = self._public
        if not parts:
            raise CryptoError("there is nothing to add", "pass at least one encrypted vector", code="SVFL-CRYPTO-SHAPE")
        first, total = _read(public, parts[0])
        m, terms, added = first.sizes
        for part in parts[1:]:
            header, ciphertexts = _read(public, part)
            if header.sizes[:2] != (m, terms) or header.bound != first.bound:
                raise CryptoError(
                    "the encrypted vectors differ in length, bound or number of summands",
                    "set these three alike at all parties",
                    code="SVFL-CRYPTO-SHAPE",
                )
            added += header.sizes[2]
            total = [int(a * b % public.square) for a, b in zip(total, ciphertexts, strict=True)]
        if added > terms:
            raise CryptoError(
                f"{added} vectors were added, but only {terms} may be added",
                "encrypt with a larger `terms`",
                code="SVFL-CRYPTO-RANGE",
            )
        fresh = self._with_noise([0] * len(total))
        total = [int(a * b % public.square) for a, b in zip(total, fresh, strict=True)]
        return write_message(
            PaillierHeader(MessageKind.SUM, public.fingerprint, (m, terms, added), first.bound), total, public.size
        )

    def _with_noise(self, plaintexts: list[int]) -> list[int]:
        key = (int(self._public.n), int(self._public.h))
        if self._executor is None:
            return encrypt_all(key, plaintexts)
        return run_in_pieces(self._executor, encrypt_all, key, plaintexts)


def _read(public: PublicKey, data: bytes) -> tuple[PaillierHeader, list[int]]:
    """Return the header and the ciphertexts of an encrypted vector. Raise CryptoError if it is malformed."""
    header, body, promised = read_message(data, MessageKind.SUM, public.fingerprint)
    m, terms, added = header.sizes
    if m > _MAX_LENGTH or terms > MAX_PAILLIER_TERMS or not 1 <= added <= terms:
        raise CryptoError(
            "a Paillier message has an impossible length or number of terms", code="SVFL-CRYPTO-CIPHERTEXT"
        )
    ciphertexts = read_numbers(body, promised, -(-m // _per(public, terms)), public.size)
    public.check_units(ciphertexts)
    return header, ciphertexts
