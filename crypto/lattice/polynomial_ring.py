"""Encryption with the library SEAL: the BFV scheme, with public keys whose second polynomial is given.

A holder encrypts a matrix, whose columns are called outputs. An evaluator multiplies it by a matrix with d columns,
hides the product with a mask, and sends it back as the answer. A layout (ring_layout.py) divides both matrices into
blocks. A polynomial of the holder has M = N / r rows of one coefficient for each of r outputs; a polynomial of the
evaluator has M coefficients that may differ from 0.

Values are polynomials with N = 4096 coefficients modulo x^N + 1 and modulo q, the product of a few primes. In BFV (Fan,
Vercauteren 2012) a message is a polynomial m with coefficients modulo t = 2^bits. A ciphertext is a pair of polynomials
(c0, c1) with c0 + c1 * s = q/t * m + noise, for the secret key s with coefficients -1, 0 and 1. SEAL stores polynomials
as coefficients or in NTT form, that is by their values at N points, as residues modulo each prime.

A public key is (b, a) with b = -(a * s + e) and small errors e. SEAL draws a itself. But a party that chooses this
polynomial could read the other party's matrix from one answer. So a must be computed from a coin or seed, from which
nobody can obtain a polynomial of their choice. b is computed with SEAL's own random numbers: SEAL encrypts zero as
(c0, c1) with c0 = -(c1 * s + e). Then it decrypts (c0, c1 - a) in its CKKS mode, where decryption is just a sum:

    c0 + (c1 - a) * s = -(a * s + e) = b

SEAL never uses its last prime in ciphertexts, but keys here need all primes of q. So the context that generates keys
has one more prime. Only its secret key has the larger modulus; everything that is sent is within the bound for 128-bit
security. The secret key is passed from this context to that of BFV in memory.

Parameters are checked against the HomomorphicEncryption.org standard (2018, table 1, classical security, ternary
secret): for 128-bit security and N = 4096, the product of q and the special prime has at most 109 bits. SEAL uses the
special prime only while it encrypts.

A mask u, uniform modulo q, that is added to c0 gives its owner the share -round(t * u / q). u is reconstructed from its
residues, and divided exactly in Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE, MAX_MODULUS_BITS
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.lattice.residue_encoding import Residues, pack, packed_size, unpack
from securevfl.crypto.lattice.seal_io import SEAL_SEED_BYTES, SealIO
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError, CryptoError

SPECIAL_NOISE = math.sqrt((1 + 2 * DEGREE / 3) / 6)
"""Standard deviation of the noise of an encryption of zero, after SEAL's division by the special prime."""
_SPARE_BITS = 17  # bits of the additional prime for the generation of keys


class SealRing:
    """A context of SEAL for messages modulo 2^bits: key generation, encryption and arithmetic.

    Args:
        sizes: numbers of bits of the primes; the last prime is used only inside public-key encryption.
        bits: number of bits of a message's coefficient, t = 2^bits.

    Raises:
        ConfigError: if the parameters have less than 128-bit security.

    Attributes:
        primes: the primes of ciphertexts, whose product is q.
        key_primes: the primes of keys, which include the special prime.
        q: the modulus of ciphertexts.
        shape: the shape of a ciphertext as residues (2, primes, N).
    """

    def __init__(self, sizes: Sequence[int], bits: int) -> None:
        if sum(sizes) > MAX_MODULUS_BITS:
            raise ConfigError(
                f"a modulus of {sum(sizes)} bits for N = {DEGREE} has less than 128-bit security",
                f"use at most {MAX_MODULUS_BITS} bits, the limit of HomomorphicEncryption.org",
                code="SVFL-JOB-KEY-SIZE",
            )
        moduli = seal.CoeffModulus.Create(DEGREE, [*sizes, _SPARE_BITS])
        self.bits = bits
        self.key_primes = [p.value() for p in moduli[:-1]]
        self.primes = self.key_primes[:-1]
        self.q = math.prod(self.primes)
        self.column = np.array(self.primes, np.uint64)[:, None]
        self.shape = 2, len(self.primes), DEGREE
        self.context = _context(seal.SCHEME_TYPE.BFV, moduli[:-1], bits)
        self.level = self.context.first_parms_id()
        self.io = SealIO(self.context)
        self.evaluator = seal.Evaluator(self.context)
        self._maker = _context(seal.SCHEME_TYPE.CKKS, moduli, None)

    def second(self, prg: Prg) -> Residues:
        """Draw the second polynomial a of a public key from a generator, in NTT form (key primes, N)."""
        return uniform(prg, self.key_primes, DEGREE)

    def keypair(self, second: Residues) -> tuple[Residues, Residues]:
        """Generate a new secret key and its public key.

        All polynomials are residues (key primes, N) in NTT form.

        Args:
            second: the second polynomial a of the public key.

        Returns:
            The secret key s, and the first polynomial b of the public key.
        """
        level, io = self._maker.first_parms_id(), SealIO(self._maker)
        secret = seal.KeyGenerator(self._maker).secret_key()
        encryptor = seal.Encryptor(self._maker, secret)
        zero, plain = seal.Ciphertext(), seal.Plaintext()
        encryptor.encrypt_zero_symmetric(level, zero)
        shift = io.ciphertext(level, np.stack([np.zeros_like(second), second]), ntt=True)
        seal.Evaluator(self._maker).sub_inplace(zero, shift)
        seal.Decryptor(self._maker, secret).decrypt(zero, plain)
        first = io.plain_residues(plain, second.shape)
        return io.plain_residues(secret, (len(self.key_primes) + 1, DEGREE))[:-1], first

    def encryptor(self, first: Residues, second: Residues) -> Any:
        """Return SEAL's encryptor for a public key, given by its polynomials b and a as residues in NTT form."""
        return seal.Encryptor(self.context, self.io.public_key(np.stack([first, second])))

    def sealed_size(self, layout: RingLayout, width: int) -> int:
        """Return the number of bytes of one ciphertext for the evaluator, of a block with `width` outputs."""
        return packed_size(self.primes, layout.points * width) + SEAL_SEED_BYTES

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of all ciphertexts in an answer, for d columns of the evaluator's matrix."""
        blocks = layout.output_blocks * layout.column_blocks(d)
        return blocks * packed_size(self.primes, DEGREE) + packed_size(self.primes, layout.c * d)

    def unsealed(self, layout: RingLayout, width: int, part: bytes | memoryview) -> Any:
        """Read the ciphertext of a block with `width` outputs, and return it in NTT form.

        In c0, the coefficients of the other r - `width` outputs become 0.
        """
        first = np.zeros((len(self.primes), layout.points, layout.r), np.uint64)
        first[..., :width] = unpack(part, self.primes, layout.points * width).reshape(*first.shape[:2], width)
        cipher = self.io.seeded(self.level, first.reshape(-1, DEGREE), bytes(part[-SEAL_SEED_BYTES:]))
        self.evaluator.transform_to_ntt_inplace(cipher)
        return cipher

    def plaintext(self, layout: RingLayout, coefficients: Floats) -> tuple[Any, bool]:
        """Encode one block of the evaluator's matrix as a polynomial of SEAL in NTT form.

        SEAL refuses to compute products that are zero. If all integers are 0, the polynomial 1 is returned instead, and
        `inner` discards the product.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            coefficients: the integers of the block (M,), in the order of the layout; they are taken modulo t.

        Returns:
            The polynomial; and True if some integer is not 0.
        """
        words = np.zeros(DEGREE, np.uint64)
        words[:: layout.r] = coefficients.astype(np.int64).view(np.uint64) & np.uint64(2**self.bits - 1)
        if not (filled := bool(words.any())):
            words[0] = 1
        plain = self.io.plaintext(words)
        self.evaluator.transform_to_ntt_inplace(plain, self.level)
        return plain, filled

    def inner(self, ciphertexts: Sequence[Any], plains: Sequence[tuple[Any, bool]]) -> Any | None:
        """Multiply each ciphertext by its polynomial, and return the sum; None if all polynomials are zero.

        `plains` are results of `plaintext`. Zero polynomials are multiplied too, so that the time does not reveal them.
        """
        sums: dict[bool, Any] = {}
        for cipher, (plain, filled) in zip(ciphertexts, plains, strict=True):
            term = seal.Ciphertext()
            self.evaluator.multiply_plain(cipher, plain, term)
            if filled in sums:
                self.evaluator.add_inplace(sums[filled], term)
            else:
                sums[filled] = term
        return sums.get(True)

    def answer(self, layout: RingLayout, total: Any | None, zero: Any, mask: Residues) -> bytes:
        """Hide a sum of encrypted products with an encryption of zero and a mask.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            total: the sum; None for zero.
            zero: an encryption of zero, which is changed in place.
            mask: the mask of the wanted coefficients (see `wanted`), as residues (primes, columns, outputs).

        Returns:
            The bytes for the answer: c1, and the wanted coefficients of c0 with the mask.
        """
        if total is not None:
            summand = seal.Ciphertext()
            self.evaluator.transform_from_ntt(total, summand)
            self.evaluator.add_inplace(zero, summand)
        first, second = self.io.residues(zero, self.shape)
        coefficients = (self.wanted(layout, first, mask.shape[1:]) + mask) % self.column[..., None]
        return pack(second, self.primes) + pack(coefficients.reshape(len(self.primes), -1), self.primes)

    @staticmethod
    def wanted(layout: RingLayout, polynomials: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the coefficients that contain entries of the matrix product, as an array (..., columns, outputs).

        The polynomials have the shape (..., N). `shape` is the number of columns and the number of outputs.
        """
        columns, width = shape
        blocks = polynomials.reshape(*polynomials.shape[:-1], layout.points, layout.r)
        return blocks[..., layout.wanted[:columns], :width]

    def zero(self, encryptor: Any) -> Any:
        """Return an encryption of zero under a public key, in coefficient form."""
        zero = seal.Ciphertext()
        encryptor.encrypt_zero(self.level, zero)
        return zero

    def numbers(self, residues: Residues) -> NDArray[np.object_]:
        """Return the numbers modulo q that have these residues (primes, *shape), as an array of Python integers."""
        total = sum(
            row.astype(object) * (self.q // p * pow(self.q // p, -1, p))
            for row, p in zip(residues, self.primes, strict=True)
        )
        return np.asarray(total % self.q)

    def nearest(self, residues: Residues) -> Words:
        """Return round(t * x / q) modulo t, exactly, for numbers x modulo q given as residues (primes, *shape)."""
        return np.asarray(
            ((self.numbers(residues) << self.bits + 1) + self.q) // (2 * self.q) % 2**self.bits, np.uint64
        )


class SealSecretKey(Secret):
    """A secret key with SEAL's objects for encryption and decryption.

    Args:
        ring: SEAL's context, with all parameters.
        secret: the secret key s, as residues (key primes, N) in NTT form.
    """

    def __init__(self, ring: SealRing, secret: Residues) -> None:
        self.residues, self._ring = secret, ring
        key = ring.io.secret_key(secret)
        self._encryptor, self._decryptor = seal.Encryptor(ring.context, key), seal.Decryptor(ring.context, key)

    def seal(self, layout: RingLayout, message: Words) -> bytes:
        """Encrypt a message, and return as bytes: the coefficients of c0 for its outputs, then the seed of c1.

        `message` contains integers (M, outputs) below t.
        """
        ring, (points, width) = self._ring, message.shape
        padded = np.zeros((points, layout.r), np.uint64)
        padded[:, :width] = message
        seeded = self._encryptor.encrypt_symmetric(ring.io.plaintext(padded.reshape(-1)))
        first, seed = ring.io.seeded_residues(seeded, ring.shape[1:])
        sent = first.reshape(-1, points, layout.r)[..., :width]
        return pack(sent.reshape(len(first), -1), ring.primes) + seed

    def reveal(
        self, layout: RingLayout, shape: tuple[int, int], view: memoryview, dither: Residues | None = None
    ) -> Words:
        """Decrypt the wanted coefficients (see `SealRing.wanted`) in a ciphertext of an answer.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            shape: the number of columns and the number of outputs in the ciphertext.
            view: the bytes of the ciphertext.
            dither: random residues (primes, columns, outputs) that are added before decryption; None adds nothing.

        Returns:
            The results (columns, outputs), integers below t.

        Raises:
            CryptoError: if a residue is not below its prime; with `dither`, also if the second polynomial is 0, because
                the first one would then be opened without the secret key.
        """
        ring, primes = self._ring, self._ring.primes
        residues, count = np.zeros(ring.shape, np.uint64), math.prod(shape)
        residues[1] = unpack(view, primes, DEGREE)
        first = unpack(view[packed_size(primes, DEGREE) :], primes, count).reshape(len(primes), *shape)
        if dither is not None and not residues[1].any():
            raise CryptoError(
                "lattice: the second polynomial of an answer is 0, so it is not encrypted",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        if (first >= ring.column[..., None]).any():
            raise CryptoError("lattice: an answer contains values outside its modulus", code="SVFL-CRYPTO-CIPHERTEXT")
        if dither is not None:
            first = (first + dither) % ring.column[..., None]
        blocks = residues[0].reshape(-1, layout.points, layout.r)
        blocks[:, layout.wanted[: shape[0]], : shape[1]] = first
        return ring.wanted(layout, self.decrypt(residues), shape)

    def decrypt(self, residues: Residues) -> Words:
        """Decrypt a ciphertext in coefficient form (2, primes, N), and return its N coefficients below t."""
        ring, plain, out = self._ring, seal.Plaintext(), np.zeros(DEGREE, np.uint64)
        self._decryptor.decrypt(ring.io.ciphertext(ring.level, residues, ntt=False), plain)
        count = plain.coeff_count()  # fewer than N if the last coefficients are 0, because SEAL omits these
        out[:count] = ring.io.plain_residues(plain, (1, count))[0]
        return out


class SealProductHider:
    """Base class of an evaluator with SEAL, which hides its products with the public key before it sends them."""

    def _has_key(self, ring: SealRing, first: memoryview, second: Residues) -> None:
        self._ring = ring
        self._encryptor = ring.encryptor(unpack(first, ring.key_primes, DEGREE), second)

    def _zero(self) -> Any:
        return self._ring.zero(self._encryptor)

    def _uniform(self, prg: Prg, shape: tuple[int, int]) -> Residues:
        moduli = self._ring.primes
        return uniform(prg, moduli, math.prod(shape)).reshape(len(moduli), *shape)


def _context(scheme: Any, moduli: Any, bits: int | None) -> Any:
    parms = seal.EncryptionParameters(scheme)
    parms.set_poly_modulus_degree(DEGREE)
    parms.set_coeff_modulus(moduli)
    # The context that generates keys has one more prime than SEAL's check allows; the caller has checked the others.
    level = seal.SEC_LEVEL_TYPE.NONE
    if bits is not None:
        parms.set_plain_modulus(2**bits)
        level = seal.SEC_LEVEL_TYPE.TC128
    context = seal.SEALContext(parms, True, level)
    if not context.parameters_set():
        raise ConfigError(
            f"SEAL refuses N = {DEGREE} for the generation of keys"
            if bits is None
            else f"SEAL refuses N = {DEGREE} with t = 2^{bits} at 128-bit security",
            code="SVFL-CRYPTO-PARAMETERS",
        )
    return context


def uniform(prg: Prg, primes: Sequence[int], count: int) -> Residues:
    """Draw residues (primes, count) by rejection, so that they are exactly uniform below their primes."""
    out = np.empty((len(primes), count), np.uint64)
    for row, p in zip(out, primes, strict=True):
        filled = 0
        while filled < count:
            drawn = (count - filled) * 2 ** p.bit_length() // p + 64
            words = prg.array(drawn, np.uint64) >> np.uint64(64 - p.bit_length())
            accepted = words[words < p][: count - filled]
            row[filled : filled + len(accepted)] = accepted
            filled += len(accepted)
    return out
