"""The layout of samples, columns and outputs in ring elements that turns all products at a point into one of matrices.

R = Z_q[x]/(x^N + 1) has r elements over S = Z_q[y]/(y^M + 1), with y = x^r and M = N / r. Output o of a block of r
outputs is at x^o, so a plaintext is an element of S and has M numbers instead of N:

    message     V[i, o]                    at  x^(o + r i)            i < s
    plaintext   W[i, j]                    at  y^(j s + s - 1 - i)    j < f, s f <= M
    product     sum_i V[i, o] W[i, j]      at  x^(o + r (j s + s - 1))

With B = ceil(n/s) sample blocks, F = ceil(d/f) column blocks and Q = ceil(c/r) output blocks, Q B ciphertexts are sent
to the evaluator and Q F are returned. W is in S. Therefore only the elements of existing outputs are sent of c0; c1 has
all r, but follows from a seed on the way to the evaluator. If W is long, sample blocks are processed in groups of
`BLOCKS_PER_GROUP`, so that not everything is in memory at once.
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
"""Sample blocks that are processed together."""
MAX_BLOCK_OUTPUTS = 64
"""Largest number r of outputs in a block."""

# Milliseconds on one core for both sides (a ciphertext sent to the evaluator, one returned, their product, a plaintext
# of N coefficients), and on a line of 150 Mbit/s for the 45 kB of a ciphertext. Only their ratios matter.
LINE_MS = 2.4
UP_MS, DOWN_MS, PRODUCT_MS, PREPARE_MS = 0.8, 1.2, 0.007, 0.29
BLAS_CALL_MS = 0.0006  # a call for a point with few numbers

D = TypeVar("D", np.uint64, np.float64)


@dataclass(frozen=True)
class RingLayout:
    """The layout of V (n, c), which both sides know.

    Attributes:
        n: number of rows of V and W.
        c: number of columns of V, the outputs.
        r: outputs in a block.
        s: samples in a block.
    """

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
        """The sample blocks in slices of at most `BLOCKS_PER_GROUP` that are processed together."""
        return [
            slice(b, min(b + BLOCKS_PER_GROUP, self.sample_blocks))
            for b in range(0, self.sample_blocks, BLOCKS_PER_GROUP)
        ]

    @property
    def outputs(self) -> list[slice]:
        """The outputs of each block as slices; the last one may be shorter than r."""
        return [slice(start, min(self.c, start + self.r)) for start in range(0, self.c, self.r)]

    def messages(self, V: NDArray[D], blocks: slice) -> NDArray[D]:
        """Arrange sample blocks of V as coefficients.

        Args:
            V: the rows of these blocks (P, rows, outputs), for the outputs of one block.
            blocks: the sample blocks.

        Returns:
            Coefficients (P, M, outputs, blocks).
        """
        P, rows, width = V.shape
        count = blocks.stop - blocks.start
        padded = np.zeros((P, count * self.s, width), V.dtype)
        padded[:, :rows] = V
        out = np.zeros((P, self.points, width, count), V.dtype)
        out[:, : self.s] = padded.reshape(P, count, self.s, width).transpose(0, 2, 3, 1)
        return out

    def rows(self, blocks: slice) -> slice:
        """Return the rows of V and W in these sample blocks."""
        return slice(blocks.start * self.s, min(self.n, blocks.stop * self.s))

    def plaintexts(self, W: Integers | Floats, blocks: slice) -> Floats:
        """Arrange these sample blocks of W (n, d) as coefficients (M, blocks, F)."""
        d, f, s, count = W.shape[1], self.columns, self.s, blocks.stop - blocks.start
        rows, F = W[blocks.start * s : blocks.stop * s], self.column_blocks(d)
        padded = np.zeros((count * s, F * f))
        padded[: len(rows), :d] = rows
        out = np.zeros((self.points, count, F))
        out[: f * s] = padded.reshape(count, s, F, f)[:, ::-1].transpose(3, 1, 0, 2).reshape(f * s, count, F)
        return out

    @property
    def wanted(self) -> NDArray[np.intp]:
        """The powers of y (f,) whose coefficients are the results of a column block."""
        return np.arange(self.columns) * self.s + self.s - 1


def checked_layout(engine: str, n: int, c: int, r: int, s: int) -> RingLayout:
    """Return the layout that a peer names.

    Args:
        engine: name of the engine, for the error message.
        n: number of rows.
        c: number of outputs.
        r: outputs in a block.
        s: samples in a block.

    Returns:
        The layout.

    Raises:
        CryptoError: if there is no such layout.
    """
    fits = 1 <= r <= MAX_BLOCK_OUTPUTS and not r & (r - 1) and c >= 1 and 1 <= s <= min(n, DEGREE // max(r, 1))
    if not fits or -(-n // s) * -(-c // r) >= 2**32:
        raise CryptoError(
            f"{engine}: a message names a layout that does not exist ({n=}, {c=}, {r=}, {s=})",
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
        uses: how many such V are multiplied by the same plaintexts of W.
        openings: how many products are computed with each V.
        cost: cost function of the engine; by default `milliseconds`, that of the kernel.

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
    """Estimate the time of a product on one core, for both sides, and on the line.

    Args:
        layout: the layout.
        d: number of columns of W.
        uses: how many V are multiplied by the same plaintexts.
        openings: how many products are computed with each V.
        line: milliseconds of a ciphertext on the line.

    Returns:
        Milliseconds.
    """
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    per_output_block = (
        B * (UP_MS + line) * layout.c / (Q * layout.r)
        + openings * F * (DOWN_MS + line)
        + openings * max(B * F * PRODUCT_MS, layout.points * BLAS_CALL_MS * 4)
    )
    return Q * per_output_block + B * F * PREPARE_MS / layout.r / uses


def _equal_sizes(count: int, limit: int) -> list[int]:
    """Return the different sizes ceil(count / parts) of equal parts that are at most `limit`."""
    sizes, parts = [], -(-count // limit)
    while parts <= count:
        size = -(-count // parts)
        sizes.append(size)
        parts = count + 1 if size == 1 else -(-count // (size - 1))
    return sizes
