"""The layout: how matrices are divided into blocks that become the coefficients of polynomials.

The product of two polynomials can contain many entries of a matrix product W^T V in its coefficients, for V (n, c) and
W (n, d). Polynomials have N = 4096 coefficients modulo q, and x^N = -1. A block of V has s rows ("samples") and r
columns ("outputs"); a block of W has the same s rows and f columns. With y = x^r and M = N / r, a polynomial of W
contains only powers of y, so it has M coefficients instead of N. The entries are placed as follows:

    V[i, o]                          at the power  x^(o + r * i)                  for i < s, o < r
    W[i, j]                          at the power  y^(j * s + s - 1 - i)          for j < f, with s * f <= M
    sum over i of V[i, o] * W[i, j]  is then at    x^(o + r * (j * s + s - 1))    in the product

There are B = ceil(n / s) blocks of rows ("sample blocks"), F = ceil(d / f) column blocks and Q = ceil(c / r) output
blocks. Q * B ciphertexts are sent to the evaluator, and Q * F are sent back. A ciphertext is a pair of polynomials
(c0, c1). If an output block has fewer than r outputs, only those coefficients of c0 that belong to outputs are sent. A
seed is sent to the evaluator in place of c1. If W has many rows, sample blocks are processed in groups of
`BLOCKS_PER_GROUP`, so that not everything is in memory at once. P is the number of primes whose product is q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.share_ring import Integers
from securevfl.errors import CryptoError

BLOCKS_PER_GROUP = 64
"""Number of sample blocks that are processed together."""
MAX_BLOCK_OUTPUTS = 64
"""Largest number r of outputs in a block."""

LINE_MS = 2.4
"""Time to send a ciphertext of 45 kB at 150 Mbit/s. All times are estimates; only their ratios matter."""
UP_MS, DOWN_MS, PRODUCT_MS, PREPARE_MS = 0.8, 1.2, 0.007, 0.29
"""Times of both parties together, on one core: for a ciphertext to the evaluator, for a ciphertext back, for the
product of a ciphertext and a polynomial of W, and to encode a polynomial of W with N coefficients."""
BLAS_CALL_MS = 0.0006  # milliseconds of a call of BLAS for very small matrices

D = TypeVar("D", np.uint64, np.float64)


@dataclass(frozen=True)
class RingLayout:
    """The division into blocks of V (n, c) and of any W with n rows; both parties know it.

    Attributes:
        n: number of rows of V and W.
        c: number of columns of V, the outputs.
        r: number of outputs in a block, a power of two.
        s: number of rows in a block.
    """

    n: int
    c: int
    r: int
    s: int

    @property
    def points(self) -> int:
        """The number M = N / r of coefficients of a polynomial of W, and of points at which it is evaluated."""
        return DEGREE // self.r

    @property
    def columns(self) -> int:
        """The number f of columns of W in a block."""
        return self.points // self.s

    @property
    def sample_blocks(self) -> int:
        """The number B = ceil(n / s) of sample blocks."""
        return -(-self.n // self.s)

    @property
    def output_blocks(self) -> int:
        """The number Q = ceil(c / r) of output blocks."""
        return -(-self.c // self.r)

    def column_blocks(self, d: int) -> int:
        """Return the number F = ceil(d / f) of column blocks."""
        return -(-d // self.columns)

    @property
    def groups(self) -> list[slice]:
        """The groups of at most `BLOCKS_PER_GROUP` sample blocks that are processed together, as slices."""
        return [
            slice(b, min(b + BLOCKS_PER_GROUP, self.sample_blocks))
            for b in range(0, self.sample_blocks, BLOCKS_PER_GROUP)
        ]

    @property
    def outputs(self) -> list[slice]:
        """The outputs of each block, as slices; the last one may have fewer than r."""
        return [slice(start, min(self.c, start + self.r)) for start in range(0, self.c, self.r)]

    def messages(self, V: NDArray[D], blocks: slice) -> NDArray[D]:
        """Arrange the entries of V as coefficients of polynomials.

        Args:
            V: the rows of some sample blocks, for the outputs of one block (P, rows, outputs), modulo each of P primes.
            blocks: the numbers of these sample blocks.

        Returns:
            The coefficients (P, M, outputs, blocks).
        """
        P, rows, width = V.shape
        count = blocks.stop - blocks.start
        padded = np.zeros((P, count * self.s, width), V.dtype)
        padded[:, :rows] = V
        out = np.zeros((P, self.points, width, count), V.dtype)
        out[:, : self.s] = padded.reshape(P, count, self.s, width).transpose(0, 2, 3, 1)
        return out

    def rows(self, blocks: slice) -> slice:
        """Return the row numbers of V and W that belong to these sample blocks."""
        return slice(blocks.start * self.s, min(self.n, blocks.stop * self.s))

    def plaintexts(self, W: Integers | Floats, blocks: slice) -> Floats:
        """Arrange the entries of W (n, d) in these sample blocks as coefficients of polynomials (M, blocks, F)."""
        d, f, s, count = W.shape[1], self.columns, self.s, blocks.stop - blocks.start
        rows, F = W[blocks.start * s : blocks.stop * s], self.column_blocks(d)
        padded = np.zeros((count * s, F * f))
        padded[: len(rows), :d] = rows
        out = np.zeros((self.points, count, F))
        out[: f * s] = padded.reshape(count, s, F, f)[:, ::-1].transpose(3, 1, 0, 2).reshape(f * s, count, F)
        return out

    @property
    def wanted(self) -> NDArray[np.intp]:
        """The powers of y (f,) at which a product has the results for the f columns of a block."""
        return np.arange(self.columns) * self.s + self.s - 1


def checked_layout(engine: str, n: int, c: int, r: int, s: int) -> RingLayout:
    """Return the layout that a peer's message states.

    Args:
        engine: name of the implementation, for the error message.
        n: number of rows.
        c: number of outputs.
        r: number of outputs in a block.
        s: number of rows in a block.

    Returns:
        The layout.

    Raises:
        CryptoError: if the numbers do not form a layout.
    """
    fits = 1 <= r <= MAX_BLOCK_OUTPUTS and not r & (r - 1) and c >= 1 and 1 <= s <= min(n, DEGREE // max(r, 1))
    if not fits or -(-n // s) * -(-c // r) >= 2**32:
        raise CryptoError(
            f"{engine}: a message states an impossible layout: {n} rows and {c} outputs in blocks of {s} rows and {r} "
            "outputs",
            code="SVFL-CRYPTO-CIPHERTEXT",
        )
    return RingLayout(n, c, r, s)


@functools.lru_cache(maxsize=256)
def choose_layout(
    n: int, c: int, d: int, uses: int = 1, openings: int = 1, cost: Callable[..., float] | None = None
) -> RingLayout:
    """Return the fastest layout for V (n, c) and W (n, d).

    Args:
        n: number of rows.
        c: number of outputs.
        d: number of columns of W.
        uses: number of matrices V that are multiplied by the same W, which is encoded once.
        openings: number of products that are computed with each V.
        cost: function that estimates the time of a layout; `milliseconds` by default.

    Returns:
        The layout.
    """
    return min(_layouts(n, c, d), key=lambda layout: (cost or milliseconds)(layout, d, uses, openings))


def _layouts(n: int, c: int, d: int) -> Iterator[RingLayout]:
    r = 1
    while r <= MAX_BLOCK_OUTPUTS and r < 2 * c:
        for f in _equal_sizes(d, DEGREE // r):
            s = min(DEGREE // r // f, n)
            yield RingLayout(n, c, r, -(-n // -(-n // s)))
        r *= 2


def milliseconds(layout: RingLayout, d: int, uses: int = 1, openings: int = 1, *, line: float = LINE_MS) -> float:
    """Estimate the time of a product by this package's arithmetic.

    It includes the computation of both parties on one core, and the transmission.

    Args:
        layout: the division of matrices into blocks (`ring_layout.py`).
        d: number of columns of W.
        uses: number of V that are multiplied by the same W, which is encoded once.
        openings: number of products that are computed with each V.
        line: milliseconds for sending a ciphertext.

    Returns:
        The time in milliseconds.
    """
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    per_output_block = (
        B * (UP_MS + line) * layout.c / (Q * layout.r)
        + openings * F * (DOWN_MS + line)
        + openings * max(B * F * PRODUCT_MS, layout.points * BLAS_CALL_MS * 4)
    )
    return Q * per_output_block + B * F * PREPARE_MS / layout.r / uses


def _equal_sizes(count: int, limit: int) -> list[int]:
    """Return all different sizes, up to `limit`, of the parts if `count` items are divided into about equal parts."""
    sizes, parts = [], -(-count // limit)
    while parts <= count:
        size = -(-count // parts)
        sizes.append(size)
        parts = count + 1 if size == 1 else -(-count // (size - 1))
    return sizes
