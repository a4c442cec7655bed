"""Plaintexts of J for the lattice engine: kept for a J that stays, or passing by for one that serves once.

Columns are scaled to integers as the fixed point of `securevfl.crypto.lattice` says; a scale goes by the largest entry
and by both norms of its whole column. A J that moves with the weights is encoded anew in every product, so nothing is
gained by keeping its plaintexts, which take 16 bytes a number: `Passing` reads it in blocks of rows, once for the
scales and once for the products, and holds one block of rows and one ciphertext (131 kB) for each block of columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.lattice_layout import Layout
from securevfl.crypto.lattice_ring import Ring
from securevfl.crypto.scheme import Floats, Matrix, RowBlocks
from securevfl.errors import RangeError

AT_ONCE = 128  # polynomials that are encoded together


class Prepared:
    """Plaintexts of one J, by layout: the two layouts used last are kept."""

    def __init__(self, ring: Ring, T: float, J: Floats) -> None:
        self.shape = J.shape
        self._ring = ring
        self._T = T
        self._largest = np.abs(J).max(axis=0)
        self._J = J / np.where(self._largest > 0, self._largest, 1.0)
        self._layouts: dict[tuple[int, int], tuple[list[list[Any]], Floats]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of J and its plaintexts."""
        plains = sum(len(row) for rows, _ in self._layouts.values() for row in rows)
        return int(self._J.nbytes) + plains * self._ring.degree * len(self._ring.primes) * 8

    def encoded(self, layout: Layout, column_cap: float) -> tuple[list[list[Any]], Floats]:
        """Plaintexts [column block][sample block] and the worth (d,) of one integer in each column."""
        slot = (layout.s, layout.columns)
        if slot not in self._layouts:
            fresh = self._encode(layout, column_cap)
            self._layouts = dict([*self._layouts.items()][-1:])
            self._layouts[slot] = fresh
        return self._layouts[slot]

    def _encode(self, layout: Layout, column_cap: float) -> tuple[list[list[Any]], Floats]:
        euclid, absolute = np.sqrt((self._J**2).sum(axis=0)), np.abs(self._J).sum(axis=0)
        scale = _integers_per_unit(euclid, absolute, layout, self._T, column_cap)
        plains = self._ring.encode(_polynomials(self._J * scale, layout).reshape(-1, self._ring.degree))
        blocks = layout.sample_blocks
        return [plains[i : i + blocks] for i in range(0, len(plains), blocks)], self._largest / scale


class Passing:
    """One J (n x d) on its way through a product. RangeError if it is not finite or has no entries."""

    def __init__(self, ring: Ring, T: float, J: Matrix) -> None:
        if len(J.shape) != 2 or 0 in J.shape:
            raise RangeError(f"lattice: J is n x d with n, d >= 1, got shape {J.shape}")
        self._ring = ring
        self._T = T
        self._J = J
        self._n, self._d = J.shape

    def products(self, layout: Layout, column_cap: float, ups: list[list[Any]]) -> tuple[list[list[Any]], Floats]:
        """[[J^T g]] in ciphertexts [output block][column block], and the worth (d,) of one integer in each column.

        ups: [[g]] in ciphertexts [output block][sample block] of this layout.
        """
        largest, euclid, absolute = self._norms(layout)
        divisor = np.where(largest > 0, largest, 1.0)
        scale = _integers_per_unit(euclid / divisor, absolute / divisor, layout, self._T, column_cap)
        totals: list[list[Any]] = [[] for _ in ups]
        for place, rows in enumerate(self._blocks(layout)):
            block = Layout(layout.degree, len(rows), layout.c, layout.s, layout.p)
            polynomials = _polynomials(rows * (scale / divisor), block)[:, 0]
            for first in range(0, len(polynomials), AT_ONCE):
                plains = self._ring.encode(polynomials[first : first + AT_ONCE])
                for total, up in zip(totals, ups, strict=True):
                    self._add(total, first, up[place], plains)
        return totals, largest / scale

    def _add(self, total: list[Any], first: int, up: Any, plains: list[Any]) -> None:
        """Adds the products of one ciphertext with these plaintexts to the column blocks from `first` on."""
        evaluator = self._ring.evaluator
        for place, plain in enumerate(plains, first):
            term = seal.Ciphertext()
            evaluator.multiply_plain(up, plain, term)
            if place == len(total):
                total.append(term)
            else:
                evaluator.add_inplace(total[place], term)

    def _norms(self, layout: Layout) -> tuple[Floats, Floats, Floats]:
        """Largest entry, Euclidean norm and sum of absolute values of each column (d,)."""
        largest, euclid, absolute = np.zeros(self._d), np.zeros(self._d), np.zeros(self._d)
        for rows in self._blocks(layout):
            size = np.abs(rows)
            largest = np.maximum(largest, size.max(axis=0))
            euclid = np.hypot(euclid, np.linalg.norm(rows, axis=0))
            absolute += size.sum(axis=0)
        if not np.isfinite(absolute).all():
            raise RangeError("lattice: J has values that are not finite; drop or impute them first")
        return largest, euclid, absolute

    def _blocks(self, layout: Layout) -> Iterator[Floats]:
        """J by the sample blocks of the layout."""
        J = self._J
        for start in range(0, self._n, layout.s):
            stop = min(start + layout.s, self._n)
            yield J.rows(start, stop) if isinstance(J, RowBlocks) else J[start:stop]


def _integers_per_unit(euclid: Floats, absolute: Floats, layout: Layout, T: float, column_cap: float) -> Floats:
    """The scale (d,) of columns with these norms, taken after a division by their largest entries."""
    per_block = min(layout.columns, len(euclid))
    scale: Floats = np.minimum(
        T / math.sqrt(per_block) / np.where(euclid > 0, euclid, 1.0),
        column_cap / np.where(absolute > 0, absolute, 1.0),
    )
    return scale


def _polynomials(J: Floats, layout: Layout) -> Floats:
    """Integer polynomials (F, B, N) of a scaled J.

    SEAL raises on a product with a zero polynomial, which would show where J is zero: such a one carries one unit.
    """
    integers = np.rint(layout.plaintexts(J))
    integers[..., layout.s - 1] += ~integers.any(axis=-1)
    return integers
