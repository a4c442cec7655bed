"""Where samples, columns and outputs sit in the coefficients of a polynomial (Huang et al. 2022, Cheetah, section 4).

A block holds s samples, f columns of J and p outputs of g, s f p <= N, in windows of W = floor(N / p) coefficients:

    message      g[i, o]              at  o W + i
    plaintext    J[i, j]              at  j s + (s - 1 - i)
    product      sum_i g[i, o] J[i, j]  at  o W + j s + s - 1

Everything else in the product lands elsewhere. With B = ceil(n/s) sample blocks, F = ceil(d/f) column blocks and
P = ceil(c/p) output blocks, P B ciphertexts go up, P B F products are taken, and P F ciphertexts come down.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.polynomial_ring import NOISE_STD, Ring
from securevfl.errors import CryptoError

# Milliseconds of one core for one ciphertext up (encode, encrypt, save, load), one down (encryption of zero, save,
# load, decrypt, decode) and one product. Only their ratios matter.
UP, DOWN, PRODUCT = 1.8, 3.8, 0.08

LEAST, MOST = 3, 20  # check columns beside those of J (`row_products.checked`)


class Blocked(Protocol):
    """A layout of any engine: rows of J in blocks of s, columns in blocks of f."""

    @property
    def n(self) -> int: ...

    @property
    def c(self) -> int: ...

    @property
    def s(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def sample_blocks(self) -> int: ...

    def column_blocks(self, d: int) -> int: ...


@dataclass(frozen=True)
class Layout:
    """Samples s and outputs p in a block, at ring degree N, for g of n x c. Known to both sides."""

    degree: int
    n: int
    c: int
    s: int
    p: int

    @property
    def window(self) -> int:
        return self.degree // self.p

    @property
    def columns(self) -> int:
        """f: how many columns of J fit in a block."""
        return self.window // self.s

    @property
    def sample_blocks(self) -> int:
        return -(-self.n // self.s)

    @property
    def output_blocks(self) -> int:
        return -(-self.c // self.p)

    def column_blocks(self, d: int) -> int:
        return -(-d // self.columns)

    def messages(self, g: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of g (m x c) that begin with a sample block as coefficients (P, B, N), B = ceil(m/s) blocks."""
        B, P, s, p = -(-len(g) // self.s), self.output_blocks, self.s, self.p
        padded = np.zeros((B * s, P * p))
        padded[: len(g), : self.c] = g
        out = np.zeros((P, B, self.degree))
        windows = out[..., : p * self.window].reshape(P, B, p, self.window)
        windows[..., :s] = padded.reshape(B, s, P, p).transpose(2, 0, 3, 1)
        out[..., : p * self.window] = windows.reshape(P, B, -1)
        return out

    def plaintexts(self, J: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of J (m x d) that begin with a sample block as coefficients (F, B, N), B = ceil(m/s) blocks."""
        m, d = J.shape
        B, F, s, f = -(-m // self.s), self.column_blocks(d), self.s, self.columns
        padded = np.zeros((B * s, F * f))
        padded[:m, :d] = J
        out = np.zeros((F, B, self.degree))
        out[..., : f * s] = padded.reshape(B, s, F, f).transpose(2, 0, 3, 1)[..., ::-1].reshape(F, B, f * s)
        return out

    def wanted(self, d: int, column_block: int, output_block: int) -> NDArray[np.intp]:
        """Positions of the results of one reply, (outputs x columns), outputs first."""
        outputs = np.arange(min(self.p, self.c - output_block * self.p))
        columns = np.arange(min(self.columns, d - column_block * self.columns))
        return (outputs[:, None] * self.window + columns * self.s + self.s - 1).ravel()


@functools.lru_cache(maxsize=256)
def choose(degree: int, n: int, c: int, d: int, openings: int = 1) -> Layout:
    """Return the cheapest layout for g of n x c when the evaluator has about d columns and asks so many products with
    g.

    It has room for the fewest checks beside them.
    """
    best, d = None, d + LEAST
    for p in sorted({-(-c // blocks) for blocks in range(1, c + 1)}):
        if p > degree:
            continue
        P, window = -(-c // p), degree // p
        for F in range(1, d + 1):
            f = -(-d // F)
            if f > window:
                continue
            B = -(-n // min(window // f, n))
            s = -(-n // B)
            B = -(-n // s)
            cost = P * (B * UP + openings * (F * DOWN + B * F * PRODUCT))
            if best is None or cost < best[0]:
                best = (cost, s, p)
            if best[0] < P * openings * F * DOWN:
                break
    assert best is not None
    return Layout(degree, n, c, best[1], best[2])


# What both sides of the lattice engine agree on: sizes, fixed-point scale, headers of messages.
#
# Both primes are kept to the end: q has 93 bits. To divide a third prime out before the reply, as rescaling does, would
# shrink value and noise alike (36 + 36 + 20 bits, 20 divided out) and cost half as many transforms again.
#
# How far openings are from noise-free ones. An opened value is w + D with the low `drop` bits cut off, D the sum of
# three secret integers uniform below M = 2^k, less its mean; the noise e moves it to w + e + D. Take squared Hellinger
# distances, H^2 = 1 - sum sqrt(P Q). A density moved by e is within I e^2 / 8 of itself, I its Fisher information,
# since its square root moves by at most e times the norm of its derivative; for three uniform summands I = 4.563 / M^2.
# Given all noises of a run, the openings are drawn one after the other, each within .571 e^2 / M^2 whatever came before
# it and however its mask was chosen. So their squared distances add up, and so do their means over the noises, whose
# variance is at most `noise`^2. With total variation <= sqrt(2) H, a run that opens R values is within
#
#     sqrt(2 R .571) noise / M
#
# of one whose openings are made from J^T g and the mask alone. (J must not follow the noise; ciphertexts are RLWE's
# affair.) One uniform summand, of the same error, would cost 2 bits more here, and R in place of sqrt(R) with masks
# that aim at its edges.
#
# The last character of a message's magic is the version of its format.


ENGINE = "lattice"  # in errors
PUBLIC = struct.Struct("<4s")
SEALED = struct.Struct("<4s16sIIIId")  # magic, key, n, c, s, p, bound
BLINDED = struct.Struct("<4s16sIIIII")  # magic, key, n, c, s, p, d
OPENED = struct.Struct("<4s16sII")  # magic, key, values of J^T g, and of checks

FISHER = 0.571  # an eighth of the Fisher information of three uniform summands, rounded up


@dataclass(frozen=True)
class Profile:
    """Sizes of the lattice scheme that are chosen to go together.

    `bits` are the primes, special prime last; `k` bits has each of the three summands of the dither, `drop` bits are
    cut off after it; `T` bounds the norm of an encoded column block.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float

    def noise(self, degree: int) -> float:
        """Bound the standard deviation of the noise in a reply: of the products, then rounding by the special prime."""
        rounding = (1 + 2 * degree / 3) / 12
        return math.sqrt((NOISE_STD * self.T) ** 2 + 2 * rounding)

    def distance_bits(self, degree: int, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.k - math.log2(self.noise(degree) * math.sqrt(2 * FISHER * values))


PROFILE = Profile((47, 46, 16), 72, 68, 2.0**21)
OPENINGS = 2**18  # values that a run may open within 2^-40 of noise-free ones


class FixedPoint:
    """The scales of g and J that a profile and a modulus give: they depend on public numbers alone."""

    def __init__(self, profile: Profile, modulus: int) -> None:
        self.profile = profile
        self.modulus = modulus
        self.levels = modulus / 2.0**profile.drop  # distinct values of an opened number


class Parameters(FixedPoint):
    """A profile's ring and the numbers that follow from both."""

    def __init__(self, profile: Profile = PROFILE, degree: int = 4096) -> None:
        self.ring = Ring(degree, profile.bits)
        super().__init__(profile, math.prod(self.ring.primes))
        self.sealed_size = polynomial_ring.packed_size(self.ring.primes, degree) + polynomial_ring.SEED_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, (self.profile, self.ring.degree)

    def layout(self, n: int, c: int, s: int, p: int) -> Layout:
        """Check the layout that a peer names, and return it. CryptoError if there is no such layout."""
        degree = self.ring.degree
        if not (
            1 <= s <= n and 1 <= p <= c and p <= degree and s <= degree // p and (-(-n // s)) * (-(-c // p)) < 2**32
        ):
            raise CryptoError(
                f"lattice: a peer names a layout that does not exist (n={n}, c={c}, s={s}, p={p}, N={degree})"
            )
        return Layout(degree, n, c, s, p)


@functools.lru_cache(maxsize=4)
def shared(profile: Profile, degree: int) -> Parameters:
    """Return this process's own copy of these parameters when they came from another process."""
    return Parameters(profile, degree)


def fingerprint(public: bytes) -> bytes:
    """Name a key as every message does: by the first 16 bytes of SHA-256 of its public bytes."""
    return hashlib.sha256(public).digest()[:16]
