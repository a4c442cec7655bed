"""The ring Z_q[x]/(x^N + 1) in residue form, borrowed from a CKKS context of SEAL.

No slots and no rotations: polynomials carry their message in the coefficients. SEAL's CKKS encoder takes the values of
a polynomial at the odd roots zeta^(3^i), zeta = exp(i pi / N), so an integer polynomial enters as its canonical
embedding at scale 1, computed here; exact for coefficients up to about 2^45. The embedding of a real polynomial is one
complex FFT of length N/2, since x^(N/2) = i at every root zeta^(4k+1):

    p(zeta^(4k+1)) = sum_j (c_j + i c_(j+N/2)) zeta^j exp(4 pi i jk / N),   j < N/2

and the roots with exponent 3 mod 4 are conjugates of these.

Parameters are checked against the 128-bit column of the HomomorphicEncryption.org standard (2018, table 1, classical
security, ternary secret): at most 54, 109, 218 and 438 bits of q, special prime included, for N = 2048 to 16384.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import random_words
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


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Residues = NDArray[np.uint64]

SEED_BYTES = 64
_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC = 0xA15E
_MEMBERS = struct.Struct("<32s?QQQdQ")
_PLAIN_MEMBERS = struct.Struct("<32sQd")
_COUNT = struct.Struct("<Q")
_BLAKE2XB = 1
_SEEDED_TAIL = _HEADER.size + 1 + SEED_BYTES


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """Open a file that only this process can name, gone when the block ends."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("securevfl", os.MFD_CLOEXEC)
        try:
            yield fd, f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
    else:
        with tempfile.NamedTemporaryFile() as file:
            yield file.fileno(), file.name


def _saved(obj: Any) -> bytes:
    with _scratch() as (fd, path):
        obj.save(path)
        return os.pread(fd, os.fstat(fd).st_size, 0)


def _load(make: Callable[[], Any], context: Any, body: bytes, version: tuple[int, int], what: str) -> Any:
    header = _HEADER.pack(_MAGIC, _HEADER.size, *version, 0, 0, _HEADER.size + len(body))
    obj = make()
    with _scratch() as (fd, path):
        with os.fdopen(os.dup(fd), "wb", buffering=0) as file:
            file.write(header + body)
        try:
            obj.load(context, path)
        except (ValueError, RuntimeError) as error:
            raise CryptoError(
                f"{what}: SEAL refused it as malformed or not of these parameters; ask for it again"
            ) from error
    return obj


def _array(residues: Residues, version: tuple[int, int]) -> bytes:
    size = _HEADER.size + _COUNT.size + residues.nbytes
    return _HEADER.pack(_MAGIC, _HEADER.size, *version, 0, 0, size) + _COUNT.pack(residues.size) + residues.tobytes()


class SealIO:
    """Moves ciphertexts and public keys of one context in and out. Residues are (polynomials, primes, N) uint64."""

    def __init__(self, context: Any) -> None:
        self._context = context
        saved = _saved(context.key_context_data().parms())
        self._version = (saved[3], saved[4])

    def _inflate(self, obj: Any, size: int) -> bytes:
        """Return the `size` bytes behind the header of what SEAL saves."""
        saved = _saved(obj)
        body = zstd.decompress(saved[_HEADER.size :]) if saved[5] else saved[_HEADER.size :]
        if len(body) != size:
            raise CryptoError(
                f"SEAL saves {len(body)} bytes where {size} were expected; install the SEAL of tenseal 0.3"
            )
        return body

    def residues(self, obj: Any, shape: tuple[int, int, int]) -> Residues:
        """Read the residues of a ciphertext or a public key whose shape the caller knows."""
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(obj, start + 8 * int(np.prod(shape)))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def plain_residues(self, plain: Any, shape: tuple[int, int]) -> Residues:
        """Read the residues (primes, N) of a plaintext in NTT form."""
        start = _PLAIN_MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(plain, start + 8 * int(np.prod(shape)))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def seeded_residues(self, obj: Any, shape: tuple[int, int]) -> tuple[Residues, bytes]:
        """First polynomial (primes, N) and the seed of the second, of what SEAL returns to be saved.

        `encrypt_symmetric(plain)` and `encrypt_zero_symmetric(parms_id)` do.
        """
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        count = int(np.prod(shape))
        body = self._inflate(obj, start + 8 * count + _SEEDED_TAIL)
        if body[-SEED_BYTES - 1] != _BLAKE2XB:
            raise CryptoError(
                "SEAL seeds its ciphertexts with another generator than Blake2xb; use SEAL's default build"
            )
        return np.frombuffer(body, np.uint64, count, offset=start).reshape(shape), body[-SEED_BYTES:]

    def _members(self, parms_id: Sequence[int], ntt: bool, polynomials: int, shape: tuple[int, ...]) -> bytes:
        primes, degree = shape[-2:]
        return _MEMBERS.pack(struct.pack("<4Q", *parms_id), ntt, polynomials, degree, primes, 1.0, 1)

    def ciphertext(self, parms_id: Sequence[int], residues: Residues, *, ntt: bool) -> Any:
        """Build a ciphertext of scale 1 from (2, primes, N) residues. CryptoError if one is not below its prime."""
        body = self._members(parms_id, ntt, len(residues), residues.shape) + _array(residues, self._version)
        return _load(seal.Ciphertext, self._context, body, self._version, "ciphertext")

    def seeded_ciphertext(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Build a ciphertext in NTT form from its first polynomial (primes, N) and the seed of the second."""
        return _load(
            seal.Ciphertext, self._context, self._seeded(parms_id, residues, seed), self._version, "seeded ciphertext"
        )

    def public_key(self, residues: Residues, seed: bytes) -> Any:
        """Build a public key (b, a) from b (primes and special prime, N) and the seed of a, which SEAL expands here."""
        body = self._seeded(self._context.key_parms_id(), residues, seed)
        return _load(seal.PublicKey, self._context, body, self._version, "public key")

    def _seeded(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> bytes:
        body = self._members(parms_id, True, 2, residues.shape) + _array(residues, self._version)
        return body + _HEADER.pack(_MAGIC, _HEADER.size, *self._version, 0, 0, _SEEDED_TAIL) + bytes([_BLAKE2XB]) + seed

    def constant_key(self, value: int, primes: int, degree: int) -> Any:
        """Build a secret key that is the constant `value`: it is public, and serves to take ciphertexts apart."""
        residues = np.full((primes, degree), value, np.uint64)
        parms_id = struct.pack("<4Q", *self._context.key_parms_id())
        body = _PLAIN_MEMBERS.pack(parms_id, residues.size, 1.0) + _array(residues, self._version)
        return _load(seal.SecretKey, self._context, body, self._version, "constant key")


def width(prime: int) -> int:
    """Bytes that one residue of `prime` takes on the wire."""
    return (prime.bit_length() + 7) // 8


def packed_size(primes: Sequence[int], count: int) -> int:
    """Bytes that `count` residues of every prime take."""
    return count * sum(width(p) for p in primes)


def pack(residues: Residues, primes: Sequence[int]) -> bytes:
    """(..., primes, count) residues to bytes, little-endian, each as wide as its prime."""
    octets = np.ascontiguousarray(residues, np.dtype("<u8")).view(np.uint8).reshape(*residues.shape, 8)
    flat = octets.reshape(-1, *residues.shape[-2:], 8)
    return b"".join(row[i, :, : width(p)].tobytes() for row in flat for i, p in enumerate(primes))


def unpack(data: bytes | memoryview, primes: Sequence[int], count: int) -> Residues:
    """Read the (primes, count) residues at the start of `data`. CryptoError if there are too few bytes."""
    if len(data) < packed_size(primes, count):
        raise CryptoError(f"residues: expected {packed_size(primes, count)} bytes, got {len(data)}; the message is cut")
    octets = np.zeros((len(primes), count, 8), np.uint8)
    start = 0
    for row, p in zip(octets, primes, strict=True):
        w = width(p)
        row[:, :w] = np.frombuffer(data, np.uint8, count * w, offset=start).reshape(count, w)
        start += count * w
    return octets.view(np.dtype("<u8"))[..., 0].astype(np.uint64, copy=False)


MAX_BITS_128 = {2048: 54, 4096: 109, 8192: 218, 16384: 438}
NOISE_STD = 10.5**0.5  # SEAL draws errors from a centred binomial distribution of 42 bits


class Ring:
    """A SEAL context, its encoder, and polynomials as numpy arrays.

    `bits` lists the sizes of the primes; the last one is the special prime, used by SEAL inside public-key encryption.
    ConfigError if the parameters fall short of 128-bit security.
    """

    def __init__(self, degree: int, bits: Sequence[int]) -> None:
        limit = MAX_BITS_128.get(degree, 0)
        if sum(bits) > limit:
            raise ConfigError(
                f"ring: {sum(bits)} bits of modulus at N = {degree} is below 128-bit security "
                f"(HomomorphicEncryption.org allows {limit}); use fewer bits or a larger N"
            )
        parms = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        parms.set_poly_modulus_degree(degree)
        parms.set_coeff_modulus(seal.CoeffModulus.Create(degree, list(bits)))
        context = seal.SEALContext(parms, True, seal.SEC_LEVEL_TYPE.TC128)
        if not context.parameters_set():
            raise ConfigError(f"ring: SEAL refuses N = {degree} with primes of {list(bits)} bits at 128-bit security")
        self.degree = degree
        self.context = context
        self.key_primes = [m.value() for m in parms.coeff_modulus()]
        self.primes = self.key_primes[:-1]
        self.level = context.first_parms_id()
        self.evaluator = seal.Evaluator(context)
        self.io = SealIO(context)
        self._first_of, self._sum_of = (
            seal.Decryptor(context, self.io.constant_key(value, len(bits), degree)) for value in (0, 1)
        )
        self._encoder = seal.CKKSEncoder(context)
        half = degree // 2
        exponents = np.array([pow(3, i, 2 * degree) for i in range(half)])
        self._conjugate = exponents % 4 == 3
        self._index = np.where(self._conjugate, 2 * degree - exponents, exponents) // 4
        self._twist = np.exp(1j * np.pi * np.arange(half) / degree)

    def secret_key(self) -> Any:
        """Draw a secret key, inside SEAL's objects."""
        return seal.KeyGenerator(self.context).secret_key()

    @property
    def public_size(self) -> int:
        """Bytes of a public key on the wire."""
        return packed_size(self.key_primes, self.degree) + SEED_BYTES

    def public_bytes(self, encryptor: Any) -> bytes:
        """Write a public key (b, a) for the wire: b, then the seed of a. The encryptor holds the secret key.

        A public key is an encryption of zero at the primes of the key. `KeyGenerator` makes it likewise, but hands out
        no seed.
        """
        zero = encryptor.encrypt_zero_symmetric(self.context.key_parms_id())
        b, seed = self.io.seeded_residues(zero, (len(self.key_primes), self.degree))
        return pack(b, self.key_primes) + seed

    def public_key(self, data: bytes) -> Any:
        """Read the key from `public_size` such bytes, its a expanded here. CryptoError if b is not below its primes."""
        return self.io.public_key(unpack(data, self.key_primes, self.degree), data[-SEED_BYTES:])

    def second_polynomial(self, cipher: Any) -> Residues:
        """Residues (primes, N) of c1, in NTT form, of a ciphertext (c0, c1) of scale 1.

        Decryption c0 + c1 s under the constants s = 0 and s = 1 takes a ciphertext apart into plaintexts, which SEAL
        saves several times faster than ciphertexts.
        """
        plain, rest = seal.Plaintext(), seal.Ciphertext()
        self._first_of.decrypt(cipher, plain)
        self.evaluator.sub_plain(cipher, plain, rest)
        self._sum_of.decrypt(rest, plain)
        return self.io.plain_residues(plain, (cipher.coeff_modulus_size(), self.degree))

    def first_coefficients(self, cipher: Any, where: NDArray[np.intp]) -> Residues:
        """Residues (primes, len(where)) of the coefficients of c0 at `where`."""
        flat = seal.Ciphertext()
        self.evaluator.transform_from_ntt(cipher, flat)
        rows = [[flat[i] for i in (prime * self.degree + where).tolist()] for prime in range(flat.coeff_modulus_size())]
        return np.array(rows, np.uint64)

    def ciphertext(self, level: Any, first: Residues, second: Residues) -> Any:
        """Build the ciphertext (c0, c1) from coefficients of c0 and NTT values of c1, both (primes, N)."""
        column = np.array(self.primes[: len(first)], np.uint64)[:, None]
        one = np.zeros_like(first)
        one[:, 0] = 1
        cipher = self.io.ciphertext(level, np.stack([first, one]), ntt=False)
        self.evaluator.transform_to_ntt_inplace(cipher)
        rest = np.stack([np.zeros_like(second), np.where(second > 0, second, column) - np.uint64(1)])
        self.evaluator.add_inplace(cipher, self.io.ciphertext(level, rest, ntt=True))
        return cipher

    def encode(self, coefficients: Floats) -> list[Any]:
        """Plaintexts in NTT form from integer polynomials (m x N), given as floats."""
        half = self.degree // 2
        folded = coefficients[:, :half] + 1j * coefficients[:, half:]
        values = np.fft.ifft(folded * self._twist, norm="forward")[:, self._index]
        np.conjugate(values, out=values, where=self._conjugate)
        plains = []
        for row in values:
            plain = seal.Plaintext()
            self._encoder.encode(row.tolist(), self.level, 1.0, plain)
            plains.append(plain)
        return plains

    def decode(self, plain: Any) -> Floats:
        """Decode the N coefficients of a plaintext, centred, to float precision relative to the largest of them."""
        half = self.degree // 2
        plain.scale = 1.0
        slots = np.fromiter(self._encoder.decode_complex(plain), np.complex128, half)
        np.conjugate(slots, out=slots, where=self._conjugate)
        values = np.empty(half, np.complex128)
        values[self._index] = slots
        folded = np.fft.fft(values, norm="forward") / self._twist
        return np.concatenate([folded.real, folded.imag])


def mulmod(a: Residues, b: int, p: int) -> Residues:
    """Compute a * b mod p for residues a < p and 0 <= b < p < 2^50, by a float quotient that is off by one at most."""
    quotient = np.floor(a.astype(np.float64) * (b / p)).astype(np.uint64)
    with np.errstate(over="ignore"):
        rest = (a * np.uint64(b) - quotient * np.uint64(p)).view(np.int64)
    return (rest % np.int64(p)).astype(np.uint64)


def fraction_of_modulus(residues: Residues, primes: Sequence[int]) -> Floats:
    """x / q in [0, 1) for x given by its (primes, count) residues, q their product (Chinese remainder theorem)."""
    q = 1
    for p in primes:
        q *= p
    total = np.zeros(residues.shape[1])
    for row, p in zip(residues, primes, strict=True):
        inverse = pow(q // p, -1, p)
        total += (row if inverse == 1 else mulmod(row, inverse, p)) / np.float64(p)
    return total % 1.0


def uniform_residues(primes: Sequence[int], count: int) -> Residues:
    """(primes, count) residues, each exactly uniform below its prime: rejection sampling from `random_words`."""
    out = np.empty((len(primes), count), np.uint64)
    for row, p in zip(out, primes, strict=True):
        have = 0
        while have < count:
            words = random_words(count - have + 8) >> np.uint64(64 - p.bit_length())
            kept = words[words < p][: count - have]
            row[have : have + len(kept)] = kept
            have += len(kept)
    return out


def dither_residues(primes: Sequence[int], bits: int, count: int) -> Residues:
    """(primes, count) residues of secret integers uniform below 2^bits (bits <= 96)."""
    low_bits = min(bits, 32)
    low = random_words(count) >> np.uint64(64 - low_bits)
    if bits <= 32:
        return np.stack([low % np.uint64(p) for p in primes])
    high = random_words(count) >> np.uint64(64 - (bits - 32))
    return np.stack([(mulmod(high % np.uint64(p), 2**32 % p, p) + low) % np.uint64(p) for p in primes])
