"""Encryption, answers and decryption on the kernel, which shares and sealed gradients have in common.

A query holds messages m of an output block at the points of its layout: c0 = m + e - a' s, a' expanded from a seed. An
answer holds c1 of products with (b u + e0, a u + e1) added, u, e0, e1 fresh, and of c0 the wanted coefficients alone,
under a mask uniform modulo q. Why that hides what it should is said in docs/proof.md.

*Draws.* Everything comes from a `Prg`, under a key from the operating system or, where both parties must find the same,
from a coin or seed. Uniform values are drawn by rejection, so how long that takes depends on words that are thrown away
and on none that is kept. An error is the bits set in 42 less 21, which is distributed as those set in 21 bits less
those in 21 others: a centred binomial distribution with standard deviation sqrt(10.5), as SEAL draws it.

*Bytes.* Residues travel in as many bytes as their primes need, primes of 20 bits two and two in five bytes. What
travels lies in [0, p). A residue of a peer that is not below its prime is refused, as is a message of another length,
so that every residue has one form alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE, Primes, multiplied, multiplier, summed, transform
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Secret
from securevfl.crypto.share_ring import Integers
from securevfl.errors import CryptoError

# Where samples, columns and outputs sit where all products of one point are a product of matrices.
#
# R = Z_q[x]/(x^N + 1) has r elements over S = Z_q[y]/(y^M + 1), y = x^r, M = N / r. Output o of a block of r outputs
# sits at x^o, so a plaintext is an element of S and has M numbers, not N:
#
#     message     V[i, o]                    at  x^(o + r i)            i < s
#     plaintext   W[i, j]                    at  y^(j s + s - 1 - i)    j < f, s f <= M
#     product     sum_i V[i, o] W[i, j]      at  x^(o + r (j s + s - 1))
#
# With B = ceil(n/s) sample blocks, F = ceil(d/f) column blocks and Q = ceil(c/r) output blocks, Q B ciphertexts go up
# and Q F come down. W is in S, so of c0 of a ciphertext only the elements of outputs that there are need travel, and of
# c1, which follows from a seed on the way up, all r. Where W is long, blocks of samples are taken in groups of `GROUP`,
# so that not all is made at a time.


GROUP = 64  # sample blocks that are taken together
MOST_OUTPUTS = 64  # r

# Milliseconds of one core, both ends: a ciphertext up, one down, their products and a plaintext of N coefficients; and
# of a line of 150 Mbps for the 45 kB of a ciphertext. Only their ratios matter.
LINE = 2.4
UP, DOWN, PRODUCT, PREPARE = 0.8, 1.2, 0.007, 0.29
SMALL = 0.0006  # a call of a BLAS for a point that holds little


D = TypeVar("D", np.uint64, np.float64)


@dataclass(frozen=True)
class RingLayout:
    """Samples s and outputs r in a block, for V of n x c. Known to both sides."""

    n: int
    c: int
    r: int
    s: int

    @property
    def points(self) -> int:
        """The number M = N / r of coefficients in y that a plaintext has."""
        return DEGREE // self.r

    @property
    def columns(self) -> int:
        """f: how many columns of W fit in a block."""
        return self.points // self.s

    @property
    def sample_blocks(self) -> int:
        """The number B = ceil(n / s) of blocks that the n samples fill."""
        return -(-self.n // self.s)

    @property
    def output_blocks(self) -> int:
        """The number Q = ceil(c / r) of blocks that the c outputs fill."""
        return -(-self.c // self.r)

    def column_blocks(self, d: int) -> int:
        """F."""
        return -(-d // self.columns)

    @property
    def groups(self) -> list[slice]:
        """The sample blocks as slices of up to `GROUP`, which are taken together."""
        return [slice(b, min(b + GROUP, self.sample_blocks)) for b in range(0, self.sample_blocks, GROUP)]

    @property
    def outputs(self) -> list[slice]:
        """Outputs by output blocks; the last block may have fewer than r."""
        return [slice(at, min(self.c, at + self.r)) for at in range(0, self.c, self.r)]

    def messages(self, V: NDArray[D], blocks: slice) -> NDArray[D]:
        """Place these sample blocks, the only rows of V (P, rows, outputs), outputs of one block, as coefficients
        (P, M, outputs, blocks)."""
        P, rows, width = V.shape
        count = blocks.stop - blocks.start
        padded = np.zeros((P, count * self.s, width), V.dtype)
        padded[:, :rows] = V
        out = np.zeros((P, self.points, width, count), V.dtype)
        out[:, : self.s] = padded.reshape(P, count, self.s, width).transpose(0, 2, 3, 1)
        return out

    def rows(self, blocks: slice) -> slice:
        """Return the rows of V or W that these sample blocks hold."""
        return slice(blocks.start * self.s, min(self.n, blocks.stop * self.s))

    def plaintexts(self, W: Integers | Floats, blocks: slice) -> Floats:
        """Place these sample blocks of W (n x d) as coefficients (M, blocks, F)."""
        d, f, s, count = W.shape[1], self.columns, self.s, blocks.stop - blocks.start
        rows, F = W[blocks.start * s : blocks.stop * s], self.column_blocks(d)
        padded = np.zeros((count * s, F * f))
        padded[: len(rows), :d] = rows
        out = np.zeros((self.points, count, F))
        out[: f * s] = padded.reshape(count, s, F, f)[:, ::-1].transpose(3, 1, 0, 2).reshape(f * s, count, F)
        return out

    @property
    def wanted(self) -> NDArray[np.intp]:
        """The powers of y (f,) at which the results of a column block's columns stand."""
        return np.arange(self.columns) * self.s + self.s - 1


def named(engine: str, n: int, c: int, r: int, s: int) -> RingLayout:
    """Return the layout a peer names. CryptoError, which names the engine, if there is no such one."""
    fits = 1 <= r <= MOST_OUTPUTS and not r & (r - 1) and c >= 1 and 1 <= s <= min(n, DEGREE // max(r, 1))
    if not fits or -(-n // s) * -(-c // r) >= 2**32:
        raise CryptoError(f"{engine}: a peer names a layout that does not exist ({n=}, {c=}, {r=}, {s=})")
    return RingLayout(n, c, r, s)


@functools.lru_cache(maxsize=256)
def choose(
    n: int, c: int, d: int, uses: int = 1, openings: int = 1, cost: Callable[..., float] | None = None
) -> RingLayout:
    """Return the cheapest layout for V of n x c and W of n x d.

    uses: how many such V the plaintexts of W serve for; openings: how many products are asked with each V; cost: what
    an engine takes, as `milliseconds` is what the kernel does.
    """
    return min(_layouts(n, c, d), key=lambda layout: (cost or milliseconds)(layout, d, uses, openings))


def _layouts(n: int, c: int, d: int) -> Iterator[RingLayout]:
    r = 1
    while r <= MOST_OUTPUTS and r < 2 * c:
        for f in _shares(d, DEGREE // r):
            s = min(DEGREE // r // f, n)
            yield RingLayout(n, c, r, -(-n // -(-n // s)))
        r *= 2


def milliseconds(layout: RingLayout, d: int, uses: int = 1, openings: int = 1, *, line: float = LINE) -> float:
    """About what a product takes of one core, both ends, and of a line; `line`: of it for one ciphertext."""
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    each = (
        B * (UP + line) * layout.c / (Q * layout.r)
        + openings * F * (DOWN + line)
        + openings * max(B * F * PRODUCT, layout.points * SMALL * 4)
    )
    return Q * each + B * F * PREPARE / layout.r / uses


def _shares(count: int, most: int) -> list[int]:
    """List the sizes ceil(count / parts) of equal parts, `most` at most, without repetition."""
    sizes, parts = [], -(-count // most)
    while parts <= count:
        size = -(-count // parts)
        sizes.append(size)
        parts = count + 1 if size == 1 else -(-count // (size - 1))
    return sizes


NOISE_STD = 10.5**0.5
_HALF = 21  # half the bits of an error
_WORD = 32  # bits of which a residue is drawn
_LIMB = 24  # bits of a part of a long integer
_THREES = 255  # the greatest multiple of three that a byte counts up to


def uniform(prg: Prg, primes: Primes, shape: tuple[int, ...]) -> Floats:
    """(P, *shape) residues about zero, each exactly uniform modulo its prime: from the next streams of `prg`, in order.

    A word of 32 bits serves if it is below the greatest multiple of the prime that 32 bits hold. Two who have the same
    `prg` find the same residues.
    """
    words = prg.array((len(primes), math.prod(shape)), np.uint32)
    most = np.array([2**_WORD // p * p - 1 for p in primes.values], np.uint32)
    left = np.flatnonzero(words > most[:, None])
    while len(left):
        words.reshape(-1)[left] = drawn = prg.array(len(left), np.uint32)
        left = left[drawn > most[left // words.shape[1]]]
    return primes.reduce(words.astype(np.float64)).reshape(len(primes), *shape)


def ternary(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Values -1, 0 and 1 (any shape), each a third of the time: bytes below 255 modulo 3."""
    count, found = math.prod(shape), np.empty(0, np.uint8)
    while len(found) < count:
        drawn = (count - len(found)) * 256 // _THREES + 64
        octets = prg.array(-(-drawn // 8), np.uint64).view(np.uint8)
        found = np.concatenate([found, octets[octets < _THREES]])
    return (found[:count] % np.uint8(3)).astype(np.float64).reshape(shape) - 1.0


def dither(prg: Prg, primes: Primes, bits: int, shape: tuple[int, ...]) -> Floats:
    """(P, *shape) residues of D: three integers uniform below 2^bits, a multiple of 24, less their mean."""
    limbs = prg.array((bits // _LIMB, 3, *shape), np.uint32) & np.uint32(2**_LIMB - 1)
    sums = limbs.sum(axis=1, dtype=np.float64)
    out = np.empty((len(primes), *shape))
    for row, p in zip(out, primes.values, strict=True):
        row[...] = -(3 * 2 ** (bits - 1) % p)
        for at, limb in enumerate(sums):
            row += limb * (pow(2, _LIMB * at, p))
    return primes.reduce(out)


def errors(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Errors (any shape), from -21 to 21: the bits set in 42, less their mean."""
    bits = np.bitwise_count(prg.array(shape, np.uint64) & np.uint64(2 ** (2 * _HALF) - 1))
    found: Floats = bits.astype(np.float64)
    found -= _HALF
    return found


_PLANES = {3: (2, 1), 5: (4, 1)}  # bytes of a word, as sizes of numpy's integers, the low ones first


def _words(primes: Primes) -> tuple[int, tuple[int, ...]]:
    """Residues that share a word, and its planes."""
    together = 2 if primes.bits % 8 == 4 and len(primes) % 2 == 0 else 1
    return together, _PLANES[-(-primes.bits * together // 8)]


def packed_size(primes: Primes, count: int) -> int:
    """Bytes that `count` residues of every prime take."""
    together, planes = _words(primes)
    return count * len(primes) // together * sum(planes)


def pack(primes: Primes, residues: Floats) -> bytes:
    """(P, *shape) residues about zero as bytes, little-endian: word by word of primes, low parts before high ones."""
    together, planes = _words(primes)
    whole = residues.reshape(len(primes), -1).astype(np.int32)
    whole += whole >> 31 & _column(primes)  # p where it is below zero
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = whole[::together].astype(kind) if together > 1 else whole.view(kind)
    for k in range(1, together):
        words |= whole[k::together].astype(kind) << kind(k * primes.bits)
    parts, at = [], 0
    for size in planes:
        parts.append((words >> kind(8 * at) if at else words).astype(f"<u{size}").tobytes())
        at += size
    return b"".join(parts)


def _column(primes: Primes) -> NDArray[np.int32]:
    return np.array(primes.values, np.int32)[:, None]


def unpack(primes: Primes, data: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
    """Read the residues (P, *shape), centred about zero, at the start of `data`.

    CryptoError if there are too few bytes, or a residue is not below its prime.
    """
    together, planes = _words(primes)
    count, rows = math.prod(shape), len(primes) // together
    if len(data) < packed_size(primes, count):
        raise CryptoError(f"residues: expected {packed_size(primes, count)} bytes, got {len(data)}; the message is cut")
    kind: Any = np.uint32 if together == 1 else np.uint64
    words: NDArray[Any] = np.zeros((rows, count), kind)
    at = 0
    for size in planes:
        plane = np.frombuffer(data, f"<u{size}", rows * count, offset=at * rows * count).reshape(rows, count)
        words |= plane.astype(kind) << kind(8 * at)
        at += size
    own = np.empty((len(primes), count), np.uint32)
    for k in range(len(primes)):
        shifted = words[k // together] >> kind(k % together * primes.bits) if together > 1 else words[k]
        own[k] = shifted & kind(2**primes.bits - 1) if k % together < together - 1 else shifted
    column = _column(primes)
    if count and (own >= column.view(np.uint32)).any():
        raise CryptoError("residues: a message with one that is not below its prime is refused; it was altered")
    signed = own.view(np.int32)
    signed -= column // 2 - signed >> 31 & column  # less p where it is above p / 2
    return signed.astype(np.float64).reshape(len(primes), *shape)


def column_groups(layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
    """Column blocks by groups, as they travel in answers, and the columns that are in each."""
    F = layout.column_blocks(d)
    for at in range(0, F, GROUP):
        stop = min(F, at + GROUP)
        yield slice(at, stop), slice(at * layout.columns, min(d, stop * layout.columns))


def answer_size(primes: Primes, layout: RingLayout, d: int) -> int:
    """Bytes of the ciphertexts of an answer about d columns."""
    blocks = layout.output_blocks * layout.column_blocks(d)
    return blocks * packed_size(primes, DEGREE) + packed_size(primes, layout.c * d)


def results(primes: Primes, layout: RingLayout, values: Floats) -> Floats:
    """Return what the wanted coefficients are (P, columns, outputs) of values (P, M, outputs, F): column after
    column."""
    found = transform(primes, layout.points).back(values, layout.wanted)
    return found.transpose(0, 3, 1, 2).reshape(len(primes), -1, values.shape[2])


class Opener(Secret):
    """A secret key, and what is done with it."""

    def __init__(self, primes: Primes, secret: Floats) -> None:
        self._primes, self.secret = primes, secret
        self._by_secret = functools.lru_cache(maxsize=2)(functools.partial(multiplier, primes, secret))

    def seal(self, layout: RingLayout, message: Floats, second: Floats, prg: Prg) -> bytes:
        """c0 of messages (P, M, outputs, blocks), residues, for a' = `second` (P, M, r, blocks); errors from `prg`."""
        primes, width = self._primes, message.shape[2]
        message += errors(prg, message.shape[1:])
        values = transform(primes, layout.points).forward(message)
        hidden, _ = summed(primes, None, 0, self._by_secret(layout.r)[:, :, :width], second)
        values -= hidden
        return pack(primes, primes.reduce(values))

    def reveal(self, layout: RingLayout, width: int, d: int, view: memoryview) -> Iterator[tuple[slice, Floats]]:
        """Columns, and what their coefficients (P, columns, outputs) decrypt to, of an output block of an answer."""
        primes = self._primes
        for blocks, columns in column_groups(layout, d):
            count, wanted = blocks.stop - blocks.start, columns.stop - columns.start
            second = unpack(primes, view, (layout.points, layout.r, count))
            view = view[packed_size(primes, DEGREE * count) :]
            first = unpack(primes, view, (wanted, width))
            view = view[packed_size(primes, wanted * width) :]
            hidden = results(primes, layout, multiplied(primes, self._by_secret(layout.r)[:, :, :width], second))
            yield columns, primes.reduce(first + hidden[:, :wanted])


def _multiplier(primes: Primes, first: Floats, second: Floats, r: int, width: int) -> Floats:
    """(P, M, width + r, r): what multiplies by b, so many of its rows, over what multiplies by a.

    Not a method: a cache of one would hold its object, and so each key of an epoch, until rings are looked for.
    """
    b, a = (multiplier(primes, each, r) for each in (first, second))
    return np.concatenate([b[:, :, :width], a], axis=2)


class Answering:
    """The evaluator's end of a key (b, a): hides products before they leave."""

    def _has_key(self, primes: Primes, first: Floats, second: Floats) -> None:
        self._primes, self._polynomials = primes, (first, second)
        self._by_key = functools.lru_cache(maxsize=2)(functools.partial(_multiplier, primes, first, second))

    def _hidden(self, layout: RingLayout, total: Floats, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Floats]:
        """Return the answer to products (P, M, outputs + r, blocks), c0 over c1, of so many columns and outputs, and
        its mask (P, *shape)."""
        primes, (wanted, width) = self._primes, shape
        total = primes.reduce(self._zero(layout, width, prg, total.shape[3]) + total)
        mask = self._uniform(prg, shape)
        first = results(primes, layout, total[:, :, :width])[:, :wanted]
        first = primes.reduce(first + errors(prg, shape) + mask)
        return pack(primes, total[:, :, width:]) + pack(primes, first), mask

    def _zero(self, layout: RingLayout, width: int, prg: Prg, count: int) -> Floats:
        """(b u, a u + e1) (P, M, width + r, count) for fresh u and e1, not reduced; e0 is added where c0 leaves."""
        primes, r = self._primes, layout.r
        ahead, shape = transform(primes, layout.points), (layout.points, r, count)
        drawn = ahead.forward(np.concatenate([ternary(prg, shape), errors(prg, shape)], axis=-1))  # one call for both
        total, _ = summed(primes, None, 0, self._by_key(r, width), drawn[..., :count])
        total[:, :, width:] += drawn[..., count:]
        return total

    def _uniform(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        return uniform(prg, self._primes, shape)


# Keys of the ring R on residues.
#
# A public key is (b, a) with b = -(a s + e): s ternary, e errors, a expanded from a coin that neither party decides. A
# ciphertext (c0, c1) of m has c0 + c1 s = m + noise. Polynomials of a key are kept as coefficients.


def second_polynomial(primes: Primes, coin: bytes) -> Floats:
    """Derive from this coin the second polynomial a (P, N) of the public key: coefficients uniform modulo each
    prime."""
    return uniform(Prg(coin, "public second polynomial of a key on the kernel"), primes, (DEGREE,))


def keypair(primes: Primes, second: Floats) -> tuple[Floats, Floats]:
    """Draw a fresh secret s (N,); return it and the first polynomial b (P, N) of its public key (b, a), a being
    `second`."""
    prg, whole = Prg.fresh("keys on the kernel"), transform(primes, DEGREE)
    secret = ternary(prg, (DEGREE,))
    product = primes.reduce(whole.forward(second[..., None]) * whole.forward(secret[:, None]))
    first = primes.reduce(-whole.back(product)[..., 0] - errors(prg, (DEGREE,)))
    return secret, first
