"""Z_q[x]/(x^4096 + 1) with SEAL: BFV with plaintexts modulo t = 2^bits, and keys for a given polynomial.

BFV (Fan, Vercauteren 2012) encrypts m modulo t as (c0, c1) with c0 + c1 s = q/t m + noise modulo q. A plaintext of SEAL
is an array of coefficients below t.

*Keys with a given second polynomial.* A public key is (b, a) with b = -(a s + e). SEAL draws a itself, and a party that
chooses its a could read the other party's factor from one reply. Here a is expanded from a coin or seed that nobody can
structure, and b is computed without sampling anything outside SEAL. SEAL encrypts zero as (c0, c1) with
c0 = -(c1 s + e), and decrypts (c0, c1 - a) in its CKKS mode, where decryption is c0 + (c1 - a) s and no more:

    c0 + (c1 - a) s = -(a s + e) = b

Keys have the modulus of all primes, and SEAL does not use its last prime in ciphertexts, so the context that generates
keys has one prime more. Only its secret key has that modulus; everything that is sent is within the 128-bit bound. The
secret key is passed from this context to that of BFV through memory of the process.

Parameters are checked against the 128-bit column of the HomomorphicEncryption.org standard (2018, table 1, classical
security, ternary secret): at most 109 bits of q, including the special prime, for N = 4096.

*A share of a mask.* A mask r that is uniform modulo q and is added to c0 gives the share -round(t r / q). It is
reconstructed from its residues and divided exactly in Python integers.
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
"""Standard deviation of an encryption of zero after the division by the special prime."""
_SPARE_BITS = 17


class SealRing:
    """A context of SEAL for plaintexts modulo 2^bits, with the generation of its keys.

    Args:
        sizes: sizes of the primes; the last one is used inside public-key encryption only.
        bits: size of t.

    Raises:
        ConfigError: if the parameters have less than 128-bit security.

    Attributes:
        primes: the primes of ciphertexts.
        key_primes: the primes of keys.
        q: the modulus of ciphertexts.
        shape: the shape of a ciphertext (2, primes, N).
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
        """Return the second polynomial (key primes, N) of a public key in NTT form, from the next streams of `prg`."""
        return uniform(prg, self.key_primes, DEGREE)

    def keypair(self, second: Residues) -> tuple[Residues, Residues]:
        """Draw a fresh secret key.

        All polynomials are residues (key primes, N) in NTT form.

        Args:
            second: the second polynomial a of the public key.

        Returns:
            The secret key, and the first polynomial b of the public key (b, a).
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
        """Return the encryptor of a public key (b, a) of residues in NTT form."""
        return seal.Encryptor(self.context, self.io.public_key(np.stack([first, second])))

    def sealed_size(self, layout: RingLayout, width: int) -> int:
        """Return the bytes of a ciphertext of `width` outputs that is sent to the evaluator."""
        return packed_size(self.primes, layout.points * width) + SEAL_SEED_BYTES

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the bytes of the ciphertexts of an answer for d columns."""
        blocks = layout.output_blocks * layout.column_blocks(d)
        return blocks * packed_size(self.primes, DEGREE) + packed_size(self.primes, layout.c * d)

    def unsealed(self, layout: RingLayout, width: int, part: bytes | memoryview) -> Any:
        """Read a ciphertext of `width` outputs and return it in NTT form; outputs that were not sent are 0."""
        first = np.zeros((len(self.primes), layout.points, layout.r), np.uint64)
        first[..., :width] = unpack(part, self.primes, layout.points * width).reshape(*first.shape[:2], width)
        cipher = self.io.seeded(self.level, first.reshape(-1, DEGREE), bytes(part[-SEAL_SEED_BYTES:]))
        self.evaluator.transform_to_ntt_inplace(cipher)
        return cipher

    def plaintext(self, layout: RingLayout, coefficients: Floats) -> tuple[Any, bool]:
        """Return a plaintext of integers (M,) modulo t in NTT form, and whether it has an entry.

        SEAL refuses a product that is zero. A plaintext without entries gets a unit, and `inner` discards its product.

        Args:
            layout: the layout.
            coefficients: the integers (M,).

        Returns:
            The plaintext, and whether it has an entry.
        """
        words = np.zeros(DEGREE, np.uint64)
        words[:: layout.r] = coefficients.astype(np.int64).view(np.uint64) & np.uint64(2**self.bits - 1)
        if not (filled := bool(words.any())):
            words[0] = 1
        plain = self.io.plaintext(words)
        self.evaluator.transform_to_ntt_inplace(plain, self.level)
        return plain, filled

    def inner(self, ciphertexts: Sequence[Any], plains: Sequence[tuple[Any, bool]]) -> Any | None:
        """Return the sum of products, or None if no plaintext has an entry; the steps are the same in both cases."""
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
        """Hide a sum of products.

        Args:
            layout: the layout.
            total: the sum; None for zero.
            zero: an encryption of zero, which is changed in place.
            mask: mask of the wanted coefficients (primes, columns, outputs).

        Returns:
            c1 of the sum, and the masked coefficients of c0, as bytes.
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
        """Return the wanted coefficients (..., columns, outputs) of polynomials (..., N) for this shape."""
        columns, width = shape
        blocks = polynomials.reshape(*polynomials.shape[:-1], layout.points, layout.r)
        return blocks[..., layout.wanted[:columns], :width]

    def zero(self, encryptor: Any) -> Any:
        """Return an encryption of zero under a public key, in coefficients."""
        zero = seal.Ciphertext()
        encryptor.encrypt_zero(self.level, zero)
        return zero

    def numbers(self, residues: Residues) -> NDArray[np.object_]:
        """Return the numbers modulo q of residues (primes, *shape), as Python integers of this shape."""
        total = sum(
            row.astype(object) * (self.q // p * pow(self.q // p, -1, p))
            for row, p in zip(residues, self.primes, strict=True)
        )
        return np.asarray(total % self.q)

    def nearest(self, residues: Residues) -> Words:
        """Return round(t x / q) modulo t, exactly, for the numbers x of residues (primes, *shape)."""
        return np.asarray(
            ((self.numbers(residues) << self.bits + 1) + self.q) // (2 * self.q) % 2**self.bits, np.uint64
        )


class SealSecretKey(Secret):
    """A secret key inside SEAL's objects.

    Args:
        ring: the ring.
        secret: residues (key primes, N) in NTT form.
    """

    def __init__(self, ring: SealRing, secret: Residues) -> None:
        self.residues, self._ring = secret, ring
        key = ring.io.secret_key(secret)
        self._encryptor, self._decryptor = seal.Encryptor(ring.context, key), seal.Decryptor(ring.context, key)

    def seal(self, layout: RingLayout, message: Words) -> bytes:
        """Encrypt coefficients (M, outputs) below t; return c0 of these outputs and the seed of c1."""
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
        """Decrypt the wanted coefficients of a ciphertext of an answer.

        Args:
            layout: the layout.
            shape: numbers of columns and outputs.
            view: the ciphertext.
            dither: residues (primes, columns, outputs) that are added first.

        Returns:
            The coefficients (columns, outputs) modulo t.
        """
        ring, primes = self._ring, self._ring.primes
        residues, count = np.zeros(ring.shape, np.uint64), math.prod(shape)
        residues[1] = unpack(view, primes, DEGREE)
        first = unpack(view[packed_size(primes, DEGREE) :], primes, count).reshape(len(primes), *shape)
        if (first >= ring.column[..., None]).any() or (dither is not None and not residues[1].any()):
            raise CryptoError("lattice: an answer contains values outside its modulus", code="SVFL-CRYPTO-CIPHERTEXT")
        if dither is not None:
            first = (first + dither) % ring.column[..., None]
        blocks = residues[0].reshape(-1, layout.points, layout.r)
        blocks[:, layout.wanted[: shape[0]], : shape[1]] = first
        return ring.wanted(layout, self.decrypt(residues), shape)

    def decrypt(self, residues: Residues) -> Words:
        """Decrypt a ciphertext (2, primes, N) in coefficients and return N coefficients below t."""
        ring, plain, out = self._ring, seal.Plaintext(), np.zeros(DEGREE, np.uint64)
        self._decryptor.decrypt(ring.io.ciphertext(ring.level, residues, ntt=False), plain)
        count = plain.coeff_count()  # SEAL omits the highest zeros
        out[:count] = ring.io.plain_residues(plain, (1, count))[0]
        return out


class SealProductHider:
    """The evaluator's side of a key (b, a) of SEAL, which hides products before they are sent."""

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
    # the context that generates keys has one prime more than SEAL's own check allows; the caller has checked the rest
    level = seal.SEC_LEVEL_TYPE.NONE
    if bits is not None:
        parms.set_plain_modulus(2**bits)
        level = seal.SEC_LEVEL_TYPE.TC128
    context = seal.SEALContext(parms, True, level)
    if not context.parameters_set():
        raise ConfigError(
            f"SEAL refuses N = {DEGREE} with t = 2^{bits} at 128-bit security", code="SVFL-CRYPTO-PARAMETERS"
        )
    return context


def uniform(prg: Prg, primes: Sequence[int], count: int) -> Residues:
    """Draw residues (primes, count), each exactly uniform below its prime, from the next streams of `prg`."""
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
