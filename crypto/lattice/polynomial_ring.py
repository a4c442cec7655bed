"""Z_q[x]/(x^4096 + 1) in SEAL: BFV with plaintexts modulo t = 2^bits in coefficients, and keys to a given polynomial.

BFV (Fan, Vercauteren 2012) encrypts m modulo t as (c0, c1) with c0 + c1 s = q/t m + noise modulo q. Integers modulo t
enter and leave as they are: a plaintext of SEAL is an array of coefficients below t.

*A key whose second polynomial is given.* A public key is (b, a), b = -(a s + e). SEAL draws a by itself, and a party
that chose its a could read the other's factor out of one reply. Here a is expanded from a coin or a seed that nobody
gives a structure, and b is made without sampling anything by hand: SEAL encrypts zero, (c0, c1) with c0 = -(c1 s + e),
and decrypts (c0, c1 - a) in its CKKS mode, where decryption is c0 + (c1 - a) s and no more:

    c0 + (c1 - a) s = -(a s + e) = b

Keys live at the modulus of all primes, and SEAL keeps the last of its primes from ciphertexts; so the context that
makes keys has one prime more. Only its secret key is of that modulus; what leaves is within the 128-bit bound. The
secret key goes from this context to that of BFV through memory of the process.

Parameters are checked against the 128-bit column of the HomomorphicEncryption.org standard (2018, table 1, classical
security, ternary secret): at most 109 bits of q, special prime included, for N = 4096.

*A share of a mask.* A mask r uniform modulo q, as it is added to c0, is a share -round(t r / q) of what it hides: it is
put together from its residues and divided in Python's integers, exactly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.lattice.residue_bytes import Residues, pack, packed_size, unpack
from securevfl.crypto.lattice.seal_io import SEAL_SEED_BYTES, SealIO
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError, CryptoError

# SEAL objects to and from arrays of residues: the one place that knows SEAL's serialisation format.
#
# `tenseal.sealapi` saves to and loads from file paths only, and always compresses (zstd) when it saves. An object
# passes through an anonymous file in memory that is closed at once; no secret key is ever written.
#
# What travels between parties is not SEAL's format but plain residues, packed into as many bytes as their prime needs.
# So a peer cannot hand SEAL a header, a size or a compressed stream of its choosing: every byte of the header is
# written here, the array has the size the parameters ask for, and SEAL's validated `load` then checks that each residue
# is below its prime.
#
# The format (SEAL 4, `Serialization::SEALHeader`, `Ciphertext::save_members`, `DynArray::save_members`):
#
#     header      magic A15E, header size 16, version (2 bytes), compression, 0, total size (u64)
#     ciphertext  parms_id (32), in NTT form (1), polynomials, N, primes (u64 each), scale (f64), correction (u64),
#     array
#     plaintext   parms_id (32), N times primes (u64), scale (f64), array; a secret key is one at the key's parms_id
#     array       header, count (u64), residues (u64 each)
#     seeded      a ciphertext whose array holds the first polynomial only, then header, generator (1), seed (64)
#
# Residues are (polynomials, primes, N) uint64.


if sys.version_info >= (3, 14):
    pass
else:
    pass


MAX_MODULUS_BITS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret
SPECIAL_NOISE = math.sqrt((1 + 2 * DEGREE / 3) / 6)  # deviation that the special prime leaves of an encryption of zero
_SPARE_BITS = 17


class SealRing:
    """A context of SEAL for plaintexts modulo 2^bits, and what makes keys for it.

    `sizes` lists the sizes of the primes; the last one serves inside public-key encryption only. ConfigError if the
    parameters fall short of 128-bit security.
    """

    def __init__(self, sizes: Sequence[int], bits: int) -> None:
        if sum(sizes) > MAX_MODULUS_BITS:
            raise ConfigError(
                f"ring: {sum(sizes)} bits of modulus at N = {DEGREE} is below 128-bit security "
                f"(HomomorphicEncryption.org allows {MAX_MODULUS_BITS}); use fewer bits"
            )
        moduli = seal.CoeffModulus.Create(DEGREE, [*sizes, _SPARE_BITS])
        self.bits = bits
        self.key_primes = [p.value() for p in moduli[:-1]]
        self.primes = self.key_primes[:-1]
        self.q = math.prod(self.primes)
        self.column = np.array(self.primes, np.uint64)[:, None]
        self.shape = 2, len(self.primes), DEGREE  # of a ciphertext
        self.context = _context(seal.SCHEME_TYPE.BFV, moduli[:-1], bits)
        self.level = self.context.first_parms_id()
        self.io = SealIO(self.context)
        self.evaluator = seal.Evaluator(self.context)
        self._maker = _context(seal.SCHEME_TYPE.CKKS, moduli, None)

    def second(self, prg: Prg) -> Residues:
        """Second polynomial (key primes, N) of a public key, in NTT form, from the next streams of `prg`."""
        return uniform(prg, self.key_primes, DEGREE)

    def keypair(self, second: Residues) -> tuple[Residues, Residues]:
        """Draw a fresh secret key; return it and the first polynomial b of its public key (b, a) for a = `second`.

        All are residues (key primes, N) in NTT form.
        """
        level, io = self._maker.first_parms_id(), SealIO(self._maker)
        secret = seal.KeyGenerator(self._maker).secret_key()
        encryptor = seal.Encryptor(self._maker, secret)
        zero, plain = seal.Ciphertext(), seal.Plaintext()
        encryptor.encrypt_zero_symmetric(level, zero)
        given = io.ciphertext(level, np.stack([np.zeros_like(second), second]), ntt=True)
        seal.Evaluator(self._maker).sub_inplace(zero, given)
        seal.Decryptor(self._maker, secret).decrypt(zero, plain)
        first = io.plain_residues(plain, second.shape)
        return io.plain_residues(secret, (len(self.key_primes) + 1, DEGREE))[:-1], first

    def encryptor(self, first: Residues, second: Residues) -> Any:
        """Build the encryptor of a public key (b, a) from residues in NTT form."""
        return seal.Encryptor(self.context, self.io.public_key(np.stack([first, second])))

    def sealed_size(self, layout: RingLayout, width: int) -> int:
        """Bytes that a ciphertext of so many outputs takes on its way up."""
        return packed_size(self.primes, layout.points * width) + SEAL_SEED_BYTES

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Bytes of the ciphertexts of an answer about d columns."""
        blocks = layout.output_blocks * layout.column_blocks(d)
        return blocks * packed_size(self.primes, DEGREE) + packed_size(self.primes, layout.c * d)

    def unsealed(self, layout: RingLayout, width: int, part: bytes | memoryview) -> Any:
        """Read a ciphertext of so many outputs, in NTT form, ready for products; outputs that were not sent are 0."""
        first = np.zeros((len(self.primes), layout.points, layout.r), np.uint64)
        first[..., :width] = unpack(part, self.primes, layout.points * width).reshape(*first.shape[:2], width)
        cipher = self.io.seeded(self.level, first.reshape(-1, DEGREE), bytes(part[-SEAL_SEED_BYTES:]))
        self.evaluator.transform_to_ntt_inplace(cipher)
        return cipher

    def plaintext(self, layout: RingLayout, coefficients: Floats) -> tuple[Any, bool]:
        """Make a plaintext of integers (M,) in NTT form, modulo t, and say whether it has an entry.

        SEAL refuses a product that is zero, so one without any has a unit, and `inner` throws its product away.
        """
        words = np.zeros(DEGREE, np.uint64)
        words[:: layout.r] = coefficients.astype(np.int64).view(np.uint64) & np.uint64(2**self.bits - 1)
        if not (filled := bool(words.any())):
            words[0] = 1
        plain = self.io.plaintext(words)
        self.evaluator.transform_to_ntt_inplace(plain, self.level)
        return plain, filled

    def inner(self, ciphertexts: Sequence[Any], plains: Sequence[tuple[Any, bool]]) -> Any | None:
        """Sum the products; return None if there is no entry. It takes the same steps in any case."""
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
        """Return c1 of a sum of products plus `zero`, an encryption of zero, and with a mask (primes, columns, outputs)
        on them the wanted coefficients of c0."""
        if total is not None:
            summand = seal.Ciphertext()
            self.evaluator.transform_from_ntt(total, summand)
            self.evaluator.add_inplace(zero, summand)
        first, second = self.io.residues(zero, self.shape)
        wanted = (self.wanted(layout, first, mask.shape[1:]) + mask) % self.column[..., None]
        return pack(second, self.primes) + pack(wanted.reshape(len(self.primes), -1), self.primes)

    @staticmethod
    def wanted(layout: RingLayout, polynomials: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Take of polynomials (..., N) the coefficients of so many columns and outputs, (..., columns, outputs)."""
        columns, width = shape
        whole = polynomials.reshape(*polynomials.shape[:-1], layout.points, layout.r)
        return whole[..., layout.wanted[:columns], :width]

    def zero(self, encryptor: Any) -> Any:
        """Encrypt zero under a public key, in coefficients."""
        zero = seal.Ciphertext()
        encryptor.encrypt_zero(self.level, zero)
        return zero

    def numbers(self, residues: Residues) -> NDArray[np.object_]:
        """Put the numbers (any shape) modulo q together from their residues (primes, *shape), as Python's integers."""
        total = sum(
            row.astype(object) * (self.q // p * pow(self.q // p, -1, p))
            for row, p in zip(residues, self.primes, strict=True)
        )
        return np.asarray(total % self.q)

    def nearest(self, residues: Residues) -> Words:
        """round(t x / q) modulo t, exactly, for each x modulo q given by its residues (primes, *shape)."""
        return np.asarray(
            ((self.numbers(residues) << self.bits + 1) + self.q) // (2 * self.q) % 2**self.bits, np.uint64
        )


class SealSecretKey(Secret):
    """A secret key, inside SEAL's objects."""

    def __init__(self, ring: SealRing, secret: Residues) -> None:
        self.residues, self._ring = secret, ring
        key = ring.io.secret_key(secret)
        self._encryptor, self._decryptor = seal.Encryptor(ring.context, key), seal.Decryptor(ring.context, key)

    def seal(self, layout: RingLayout, message: Words) -> bytes:
        """Encrypt coefficients below t (M, outputs): c0 as far as there are outputs, and the seed of c1."""
        ring, (points, width) = self._ring, message.shape
        whole = np.zeros((points, layout.r), np.uint64)
        whole[:, :width] = message
        seeded = self._encryptor.encrypt_symmetric(ring.io.plaintext(whole.reshape(-1)))
        first, seed = ring.io.seeded_residues(seeded, ring.shape[1:])
        sent = first.reshape(-1, points, layout.r)[..., :width]
        return pack(sent.reshape(len(first), -1), ring.primes) + seed

    def reveal(
        self, layout: RingLayout, shape: tuple[int, int], view: memoryview, dither: Residues | None = None
    ) -> Words:
        """Decrypt the wanted coefficients (columns, outputs) of a ciphertext of an answer, once a dither (primes,
        columns, outputs) is added to them."""
        ring, primes = self._ring, self._ring.primes
        residues, count = np.zeros(ring.shape, np.uint64), math.prod(shape)
        residues[1] = unpack(view, primes, DEGREE)
        first = unpack(view[packed_size(primes, DEGREE) :], primes, count).reshape(len(primes), *shape)
        if (first >= ring.column[..., None]).any() or (dither is not None and not residues[1].any()):
            raise CryptoError("lattice: an answer holds values outside its modulus; it is malformed")
        if dither is not None:
            first = (first + dither) % ring.column[..., None]
        whole = residues[0].reshape(-1, layout.points, layout.r)
        whole[:, layout.wanted[: shape[0]], : shape[1]] = first
        return ring.wanted(layout, self.decrypt(residues), shape)

    def decrypt(self, residues: Residues) -> Words:
        """Decrypt a ciphertext (2, primes, N) in coefficients: N coefficients below t."""
        ring, plain, out = self._ring, seal.Plaintext(), np.zeros(DEGREE, np.uint64)
        self._decryptor.decrypt(ring.io.ciphertext(ring.level, residues, ntt=False), plain)
        count = plain.coeff_count()  # SEAL leaves the highest zeros out
        out[:count] = ring.io.plain_residues(plain, (1, count))[0]
        return out


class SealProductHider:
    """The evaluator's end of a key (b, a) of SEAL: what hides products before they leave."""

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
    # the maker of keys has a prime too many for SEAL's own check; the caller has checked what leaves
    level = seal.SEC_LEVEL_TYPE.NONE
    if bits is not None:
        parms.set_plain_modulus(2**bits)
        level = seal.SEC_LEVEL_TYPE.TC128
    context = seal.SEALContext(parms, True, level)
    if not context.parameters_set():
        raise ConfigError(f"ring: SEAL refuses N = {DEGREE} with t = 2^{bits} at 128-bit security")
    return context


def uniform(prg: Prg, primes: Sequence[int], count: int) -> Residues:
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
