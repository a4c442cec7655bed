"""The layout of layout.py for integers modulo 2^L, and its choice where plaintexts must be made first.

The E visits of one batch are the outputs c = E of a layout: they share the plaintexts of W. A plaintext costs more than
the product it is for, and with many outputs in a block it holds few entries of W, so what it costs to prepare weighs as
much as the ciphertexts saved: a plaintext used once and one used many times want different layouts.
"""

from __future__ import annotations

import functools

import numpy as np

from securevfl.crypto.lattice.layout import Layout
from securevfl.crypto.share_ring import Integers, Words

__all__ = ["choose", "messages", "milliseconds", "plaintexts"]

# Milliseconds of one core, both ends: a ciphertext up (encrypt, save, load, transform), one down (transform back,
# encryption of zero, save, load, decrypt), a product with its sum, a plaintext made; and of a line of 150 Mbps for the
# 45 kB of either ciphertext. Only their ratios matter.
LINE = 2.4
UP, DOWN, PRODUCT, PREPARE = 1.3 + LINE, 2.5 + LINE, 0.07, 0.14


@functools.lru_cache(maxsize=256)
def choose(degree: int, n: int, c: int, d: int, uses: int = 1) -> Layout:
    """Choose the cheapest layout for V of n x c and W of n x d whose plaintexts serve for `uses` such V."""
    best = None
    for p in _shares(c):
        P, window = -(-c // p), degree // p
        for f in _shares(d):
            if f > window:
                continue
            F, B = -(-d // f), -(-n // min(window // f, n))
            s = -(-n // B)
            B = -(-n // s)
            cost = _cost(B, P, F, uses)
            if best is None or cost < best[0]:
                best = (cost, s, p)
    if best is None:  # one output and one column always fit
        raise AssertionError(f"no layout for n={n}, c={c}, d={d}")
    return Layout(degree, n, c, best[1], best[2])


def milliseconds(layout: Layout, d: int, uses: int = 1) -> float:
    """About what a product takes of one core, both ends, and of a line."""
    return _cost(layout.sample_blocks, layout.output_blocks, layout.column_blocks(d), uses)


def _cost(B: int, P: int, F: int, uses: int) -> float:
    return P * (B * UP + F * DOWN + B * F * PRODUCT) + B * F * PREPARE / uses


def _shares(count: int) -> list[int]:
    """List the sizes ceil(count / parts) of equal parts, without repetition."""
    sizes, size = [], count
    while size > 1:
        sizes.append(size)
        parts = -(-count // size)
        size = min(size - 1, -(-count // (parts + 1)))
    return [*sizes, 1]


def messages(layout: Layout, V: Words) -> Words:
    """V (n x c) as coefficients (P, B, N), as `Layout.messages` for floats."""
    B, P, s, p = layout.sample_blocks, layout.output_blocks, layout.s, layout.p
    padded = np.zeros((B * s, P * p), np.uint64)
    padded[: layout.n, : layout.c] = V
    out = np.zeros((P, B, layout.degree), np.uint64)
    windows = out[..., : p * layout.window].reshape(P, B, p, layout.window)
    windows[..., :s] = padded.reshape(B, s, P, p).transpose(2, 0, 3, 1)
    out[..., : p * layout.window] = windows.reshape(P, B, -1)
    return out


def plaintexts(layout: Layout, W: Integers) -> Integers:
    """W (n x d) as coefficients (F, B, f s), as `Layout.plaintexts` for floats; the rest of each polynomial is zero."""
    d = W.shape[1]
    B, F, s, f = layout.sample_blocks, layout.column_blocks(d), layout.s, layout.columns
    padded = np.zeros((B * s, F * f), np.int64)
    padded[: layout.n, :d] = W
    return np.ascontiguousarray(padded.reshape(B, s, F, f).transpose(2, 0, 3, 1)[..., ::-1]).reshape(F, B, f * s)
