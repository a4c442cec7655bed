"""Sums under Paillier: many values in a plaintext, with room for every summand.

    adder     [[v]], values side by side     ->   adder   product of ciphertexts, times h^s   ->   holder decrypts

A slot holds a value of 32 bits and sign times the number of summands, so no slot reaches its neighbour and the
holder's plaintext is the sum and nothing else. An adder encrypts by h^s, s of |n|/2 bits (Damgard, Jurik, Nielsen
2010), so its vector is hidden from all but the holder, who must be handed totals only. A total tells the holder the sum
and nothing else, whatever n and h it chose: what it is multiplied by does not depend on the parts. An h of small order
opens parts to those on the way, as would a holder that shows its key.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.paillier import fixed_point, paillier_messages
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
MAX_PAILLIER_TERMS = 1 << 16
_MAX_LENGTH = 1 << 28


def _pitch(terms: int) -> int:
    """Bits of a slot that holds a sum of `terms` values."""
    return VALUE_BITS + terms.bit_length() + 1


def _per(public: PublicKey, terms: int) -> int:
    """Values in a plaintext, one bit of n kept free for the sign."""
    return int(public.bits - 2) // _pitch(terms)


class PaillierSum(AdditiveScheme):
    """Sums under Paillier keys of `bits` bits. ConfigError below 2048."""

    name: ClassVar[str] = "paillier"

    def __init__(self, bits: int = 3072) -> None:
        self.bits = check_bits(bits)

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        return PaillierSumHolder(SecretKey.generate(self.bits), executor)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        return PaillierAdder(PublicKey.load(public, self.bits), executor)


class PaillierSumHolder(SumHolder):
    """See `SumHolder`. With an executor, p and q go to its workers: it must run within the party."""

    def __init__(self, key: SecretKey, executor: Executor | None = None) -> None:
        self._key = key
        self._executor = executor
        self.public = key.public.data

    def decrypt(self, total: bytes) -> Floats:
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
        return np.array([fixed_point.decode(v, header.bound, VALUE_BITS) for v in values], dtype=np.float64)


class PaillierAdder(Adder):
    """See `Adder`. A value is off by at most bound * 2^-32."""

    def __init__(self, public: PublicKey, executor: Executor | None = None) -> None:
        self._public = public
        self._executor = executor

    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        public, values = self._public, np.asarray(v, dtype=np.float64)
        if values.ndim != 1 or not 1 <= values.size <= _MAX_LENGTH:
            raise RangeError(f"v must be a vector of 1 to {_MAX_LENGTH} entries, got shape {values.shape}")
        if not 1 <= terms <= MAX_PAILLIER_TERMS:
            raise ConfigError(f"a sum takes 1 to {MAX_PAILLIER_TERMS} terms, got {terms}")
        ints = fixed_point.encode(values, bound, VALUE_BITS)
        plaintexts = list(pack(ints, _per(public, terms), _pitch(terms)))
        header = PaillierHeader(MessageKind.SUM, public.fingerprint, (values.size, terms, 1), float(bound))
        return write_message(header, self._with_noise(plaintexts), public.size)

    def size(self, values: int, *, terms: int) -> int:
        return paillier_messages.message_size(-(-values // _per(self._public, terms)), self._public.size)

    def add(self, *parts: bytes) -> bytes:
        public = self._public
        if not parts:
            raise CryptoError("nothing to add; pass at least one encrypted vector")
        first, total = _read(public, parts[0])
        m, terms, added = first.sizes
        for part in parts[1:]:
            header, ciphertexts = _read(public, part)
            if header.sizes[:2] != (m, terms) or header.bound != first.bound:
                raise CryptoError("the vectors differ in length, bound or terms; all parties must agree on them")
            added += header.sizes[2]
            total = [int(a * b % public.square) for a, b in zip(total, ciphertexts, strict=True)]
        if added > terms:
            raise CryptoError(f"{added} vectors were added where {terms} fit; encrypt with larger `terms`")
        fresh = self._with_noise([0] * len(total))
        total = [int(a * b % public.square) for a, b in zip(total, fresh, strict=True)]
        return write_message(
            PaillierHeader(MessageKind.SUM, public.fingerprint, (m, terms, added), first.bound), total, public.size
        )

    def _with_noise(self, plaintexts: list[int]) -> list[int]:
        head = (int(self._public.n), int(self._public.h))
        if self._executor is None:
            return encrypt_all(head, plaintexts)
        return run_in_pieces(self._executor, encrypt_all, head, plaintexts)


def _read(public: PublicKey, data: bytes) -> tuple[PaillierHeader, list[int]]:
    """Header and ciphertexts of an encrypted vector, all checked."""
    header, body, promised = read_message(data, MessageKind.SUM, public.fingerprint)
    m, terms, added = header.sizes
    if m > _MAX_LENGTH or terms > MAX_PAILLIER_TERMS or not 1 <= added <= terms:
        raise CryptoError("the header has an impossible length or number of terms; the bytes were altered")
    ciphertexts = read_numbers(body, promised, -(-m // _per(public, terms)), public.size)
    public.check_units(ciphertexts)
    return header, ciphertexts
