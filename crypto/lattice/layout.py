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
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# Milliseconds of one core for one ciphertext up (encode, encrypt, save, load), one down (encryption of zero, save,
# load, decrypt, decode) and one product. Only their ratios matter.
UP, DOWN, PRODUCT = 1.8, 3.8, 0.08

LEAST, MOST = 3, 20  # check columns beside those of J (`row_encoding.checked`)


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
