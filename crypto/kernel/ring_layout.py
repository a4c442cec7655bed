"""Where samples, columns and outputs sit where all products of one point are a product of matrices.

R = Z_q[x]/(x^N + 1) has r elements over S = Z_q[y]/(y^M + 1), y = x^r, M = N / r. Output o of a block of r outputs sits
at x^o, so a plaintext is an element of S and has M numbers, not N:

    message     V[i, o]                    at  x^(o + r i)            i < s
    plaintext   W[i, j]                    at  y^(j s + s - 1 - i)    j < f, s f <= M
    product     sum_i V[i, o] W[i, j]      at  x^(o + r (j s + s - 1))

With B = ceil(n/s) sample blocks, F = ceil(d/f) column blocks and Q = ceil(c/r) output blocks, Q B ciphertexts go up and
Q F come down. W is in S, so of c0 of a ciphertext only the elements of outputs that there are need travel, and of c1,
which follows from a seed on the way up, all r. Where W is long, blocks of samples are taken in groups of
`BLOCKS_PER_GROUP`, so that not all is made at a time.
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

BLOCKS_PER_GROUP = 64  # sample blocks that are taken together

MAX_BLOCK_OUTPUTS = 64  # r

# Milliseconds of one core, both ends: a ciphertext up, one down, their products and a plaintext of N coefficients; and
# of a line of 150 Mbps for the 45 kB of a ciphertext. Only their ratios matter.
LINE_MS = 2.4

UP_MS, DOWN_MS, PRODUCT_MS, PREPARE_MS = 0.8, 1.2, 0.007, 0.29

BLAS_CALL_MS = 0.0006  # a call of a BLAS for a point that holds little


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
        """The sample blocks as slices of up to `BLOCKS_PER_GROUP`, which are taken together."""
        return [
            slice(b, min(b + BLOCKS_PER_GROUP, self.sample_blocks))
            for b in range(0, self.sample_blocks, BLOCKS_PER_GROUP)
        ]

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


def checked_layout(engine: str, n: int, c: int, r: int, s: int) -> RingLayout:
    """Return the layout a peer names. CryptoError, which names the engine, if there is no such one."""
    fits = 1 <= r <= MAX_BLOCK_OUTPUTS and not r & (r - 1) and c >= 1 and 1 <= s <= min(n, DEGREE // max(r, 1))
    if not fits or -(-n // s) * -(-c // r) >= 2**32:
        raise CryptoError(f"{engine}: a peer names a layout that does not exist ({n=}, {c=}, {r=}, {s=})")
    return RingLayout(n, c, r, s)


@functools.lru_cache(maxsize=256)
def choose_layout(
    n: int, c: int, d: int, uses: int = 1, openings: int = 1, cost: Callable[..., float] | None = None
) -> RingLayout:
    """Return the cheapest layout for V of n x c and W of n x d.

    uses: how many such V the plaintexts of W serve for; openings: how many products are asked with each V; cost: what
    an engine takes, as `milliseconds` is what the kernel does.
    """
    return min(_layouts(n, c, d), key=lambda layout: (cost or milliseconds)(layout, d, uses, openings))


def _layouts(n: int, c: int, d: int) -> Iterator[RingLayout]:
    r = 1
    while r <= MAX_BLOCK_OUTPUTS and r < 2 * c:
        for f in _shares(d, DEGREE // r):
            s = min(DEGREE // r // f, n)
            yield RingLayout(n, c, r, -(-n // -(-n // s)))
        r *= 2


def milliseconds(layout: RingLayout, d: int, uses: int = 1, openings: int = 1, *, line: float = LINE_MS) -> float:
    """About what a product takes of one core, both ends, and of a line; `line`: of it for one ciphertext."""
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    each = (
        B * (UP_MS + line) * layout.c / (Q * layout.r)
        + openings * F * (DOWN_MS + line)
        + openings * max(B * F * PRODUCT_MS, layout.points * BLAS_CALL_MS * 4)
    )
    return Q * each + B * F * PREPARE_MS / layout.r / uses


def _shares(count: int, most: int) -> list[int]:
    """List the sizes ceil(count / parts) of equal parts, `most` at most, without repetition."""
    sizes, parts = [], -(-count // most)
    while parts <= count:
        size = -(-count // parts)
        sizes.append(size)
        parts = count + 1 if size == 1 else -(-count // (size - 1))
    return sizes
