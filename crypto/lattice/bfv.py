"""The ring of the shared products: BFV in SEAL, plaintexts modulo t = 2^L in coefficients, keys to a given polynomial.

BFV (Fan, Vercauteren 2012) encrypts m modulo t as (c0, c1) with c0 + c1 s = q/t m + noise modulo q. The integers modulo
2^L enter and leave as they are: a plaintext of SEAL is an array of coefficients below t.

*A key whose second polynomial is given.* A public key is (b, a), b = -(a s + e). SEAL draws a by itself, and a party
that chose its a could read the other's factor out of one reply. Here a is expanded from a coin that neither party
decides, and b is made without sampling anything by hand: SEAL encrypts zero, (c0, c1) with c0 = -(c1 s + e), and
decrypts (c0, c1 - a) in its CKKS mode, where decryption is c0 + (c1 - a) s and no more:

    c0 + (c1 - a) s = -(a s + e) = b

Keys live at the modulus of all three primes, and SEAL keeps the last of its primes from ciphertexts; so the context
that makes keys has one prime more. Only its secret key is of that modulus; what leaves is within the 128-bit bound of
polynomial_ring.py. The secret key goes from this context to that of BFV through memory of the process.

*Two contexts of one ring.* What an evaluator does (products, sums, encryptions of zero, changes of form) is the same
whatever t is, but SEAL turns a plaintext into the form of products at half the cost where t is below every prime. So
evaluators work in a context whose t is just large enough for signed columns, holders in one whose t is 2^L.

*A share of a mask.* A mask r uniform modulo q, as it is added to c0, is a share -round(t r / q) of what it hides. It is
computed exactly: with x_i = r (q/p_i)^-1 mod p_i, t r / q = sum t x_i / p_i modulo t, and t x_i / p_i comes from a long
division in words of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.polynomial_ring import (
    _HEADER,
    _PLAIN_MEMBERS,
    MAX_BITS_128,
    Residues,
    SealIO,
    _array,
    _load,
    mulmod,
)
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words
from securevfl.errors import ConfigError, CryptoError

_NO_LEVEL = bytes(32)  # the parms_id of a plaintext in coefficients
_SPARE_BITS = 17


class Bfv:
    """A context of SEAL for plaintexts modulo 2^plain_bits, and what makes keys for it.

    `bits` lists the sizes of the primes; the last one serves inside public-key encryption only. ConfigError if the
    parameters fall short of 128-bit security.
    """

    def __init__(self, degree: int, bits: Sequence[int], plain_bits: int) -> None:
        limit = MAX_BITS_128.get(degree, 0)
        if sum(bits) > limit:
            raise ConfigError(
                f"BFV: {sum(bits)} bits of modulus at N = {degree} is below 128-bit security "
                f"(HomomorphicEncryption.org allows {limit}); use fewer bits or a larger N"
            )
        primes = seal.CoeffModulus.Create(degree, [*bits, _SPARE_BITS])
        self.degree = degree
        self.plain_bits = plain_bits
        self.key_primes = [p.value() for p in primes[:-1]]
        self.primes = self.key_primes[:-1]
        self.factor_bits = min(prime.bit_length() for prime in self.primes) - 2
        self.holding = Context(_context(seal.SCHEME_TYPE.BFV, degree, primes[:-1], plain_bits))
        self.products = Context(_context(seal.SCHEME_TYPE.BFV, degree, primes[:-1], self.factor_bits))
        self.evaluator = seal.Evaluator(self.products.seal)
        self._maker = _context(seal.SCHEME_TYPE.CKKS, degree, primes, None)
        self._maker_io = BfvIO(self._maker)

    def keypair(self, second: Residues) -> tuple[Residues, Residues]:
        """Draw a fresh secret key; return it and the first polynomial b of its public key (b, a) for a = `second`.

        All are residues (key primes, N) in NTT form.
        """
        shape, level = (len(self.key_primes), self.degree), self._maker.first_parms_id()
        secret = seal.KeyGenerator(self._maker).secret_key()
        encryptor = seal.Encryptor(self._maker, secret)
        zero, given, plain = seal.Ciphertext(), seal.Ciphertext(), seal.Plaintext()
        encryptor.encrypt_zero_symmetric(level, zero)
        given = self._maker_io.ciphertext(level, np.stack([np.zeros_like(second), second]), ntt=True)
        seal.Evaluator(self._maker).sub_inplace(zero, given)
        seal.Decryptor(self._maker, secret).decrypt(zero, plain)
        first = self._maker_io.plain_residues(plain, shape)
        return self._maker_io.secret_residues(secret, (shape[0] + 1, self.degree))[:-1], first

    def public_key(self, first: Residues, second: Residues) -> Any:
        """Build the public key (b, a), for an evaluator, from residues in NTT form."""
        return self.products.io.given_key(np.stack([first, second]))

    def transformed(self, coefficients: Integers) -> Any:
        """Return a plaintext (up to N signed integers of less than `factor_bits`) in NTT form, ready for products."""
        words = coefficients.view(np.uint64) & np.uint64(2**self.factor_bits - 1)
        plain = self.products.io.plaintext(words)
        self.evaluator.transform_to_ntt_inplace(plain, self.products.level)
        return plain

    def sealed(self, first: Residues, seed: bytes) -> Any:
        """Build a ciphertext in NTT form, ready for products, from its first polynomial and the seed of its second."""
        cipher = self.products.io.seeded_coefficients(self.products.level, first, seed)
        self.evaluator.transform_to_ntt_inplace(cipher)
        return cipher


class Context:
    """A context of SEAL, the level of its ciphertexts, and what moves objects in and out."""

    def __init__(self, context: Any) -> None:
        self.seal = context
        self.level = context.first_parms_id()
        self.io = BfvIO(context)


class BfvIO(SealIO):
    """`SealIO` with what BFV adds: plaintexts in coefficients, ciphertexts seeded in coefficients, secret keys."""

    def plaintext(self, coefficients: Words) -> Any:
        """Build a plaintext of up to N coefficients below t."""
        body = _PLAIN_MEMBERS.pack(_NO_LEVEL, coefficients.size, 1.0) + _array(coefficients, self._version)
        return _load(seal.Plaintext, self._context, body, self._version, "plaintext")

    def coefficients(self, plain: Any, degree: int) -> Words:
        """Read the N coefficients of a plaintext; SEAL leaves the highest zeros out."""
        count = plain.coeff_count()
        out = np.zeros(degree, np.uint64)
        out[:count] = self.plain_residues(plain, (1, count))[0]
        return out

    def seeded_coefficients(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Build a ciphertext in coefficients from its first polynomial (primes, N) and the seed of the second."""
        body = self._members(parms_id, False, 2, residues.shape) + _array(residues, self._version)
        tail = _HEADER.pack(polynomial_ring._MAGIC, _HEADER.size, *self._version, 0, 0, polynomial_ring._SEEDED_TAIL)
        body += tail + bytes([polynomial_ring._BLAKE2XB]) + seed
        return _load(seal.Ciphertext, self._context, body, self._version, "seeded ciphertext")

    def given_key(self, residues: Residues) -> Any:
        """Build a public key from both of its polynomials (2, key primes, N) in NTT form."""
        body = self._members(self._context.key_parms_id(), True, len(residues), residues.shape)
        return _load(seal.PublicKey, self._context, body + _array(residues, self._version), self._version, "public key")

    def secret_residues(self, secret: Any, shape: tuple[int, int]) -> Residues:
        """Read the residues (primes, N) of a secret key, for another context of this process."""
        return self.plain_residues(secret, shape)

    def secret_key(self, residues: Residues) -> Any:
        """Build a secret key from its residues (key primes, N) in NTT form."""
        parms_id = struct.pack("<4Q", *self._context.key_parms_id())
        body = _PLAIN_MEMBERS.pack(parms_id, residues.size, 1.0) + _array(residues, self._version)
        return _load(seal.SecretKey, self._context, body, self._version, "secret key")


def _context(scheme: Any, degree: int, primes: Any, plain_bits: int | None) -> Any:
    parms = seal.EncryptionParameters(scheme)
    parms.set_poly_modulus_degree(degree)
    parms.set_coeff_modulus(primes)
    # the maker of keys has a prime too many for SEAL's own check; the caller has checked what leaves
    level = seal.SEC_LEVEL_TYPE.NONE
    if plain_bits is not None:
        parms.set_plain_modulus(2**plain_bits)
        level = seal.SEC_LEVEL_TYPE.TC128
    context = seal.SEALContext(parms, True, level)
    if not context.parameters_set():
        raise ConfigError(f"BFV: SEAL refuses N = {degree} with t = 2^{plain_bits} at 128-bit security")
    return context


def expanded(prg: Prg, primes: Sequence[int], count: int) -> Residues:
    """(primes, count) residues, each exactly uniform below its prime: rejection from the streams of `prg`, in order."""
    out = np.empty((len(primes), count), np.uint64)
    for row, p in zip(out, primes, strict=True):
        have = 0
        while have < count:
            drawn = (count - have) * 2 ** p.bit_length() // p + 64
            words = prg.array(drawn, np.uint64) >> np.uint64(64 - p.bit_length())
            kept = words[words < p][: count - have]
            row[have : have + len(kept)] = kept
            have += len(kept)
    return out


def nearest(residues: Residues, primes: Sequence[int], bits: int) -> Words:
    """round(2^bits x / q) modulo 2^bits, exactly, for each x modulo q given by its (primes, count) residues."""
    q = 1
    for p in primes:
        q *= p
    whole = np.zeros(residues.shape[1], np.uint64)
    parts, rest = np.zeros(residues.shape[1]), []
    for row, p in zip(residues, primes, strict=True):
        inverse = pow(q // p, -1, p)
        rest.append(mulmod(row, inverse, p))
        digits, left = _divided(rest[-1], p, bits)
        whole += digits
        parts += left / np.float64(p)
    close = np.flatnonzero(np.abs(parts - np.floor(parts) - 0.5) < 2.0**-40)
    whole += np.floor(parts + 0.5).astype(np.uint64)
    for i in close:  # too near a half for floats
        x = sum(int(r[i]) * (q // p) for r, p in zip(rest, primes, strict=True))
        whole[i] = np.uint64(((x * 2 ** (bits + 1) + q) // (2 * q)) % 2**64)
    return whole & np.uint64(2**bits - 1)


def _divided(x: Residues, p: int, bits: int) -> tuple[Words, Words]:
    """floor(2^bits x / p) modulo 2^64 and the rest of the division, for x < p < 2^62."""
    if p.bit_length() > 62:
        raise CryptoError(f"shares: a prime of at most 62 bits was expected, one of {p.bit_length()} came")
    whole, rest, step = np.zeros_like(x), x, 64 - p.bit_length()
    while bits:
        shift = np.uint64(min(step, bits))
        rest = rest << shift
        digit = rest // np.uint64(p)
        rest = rest - digit * np.uint64(p)
        whole = (whole << shift) + digit
        bits -= int(shift)
    return whole, rest
