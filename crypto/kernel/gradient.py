"""J^T [[g]] as products of matrices under RLWE encryption (crypto/kernel, N = 4096).

    1. key holder   g in coefficients, encrypted symmetrically with fresh seeds         `encrypt`
    2. evaluator    at each point the ciphertexts times the values of J, summed over
                    sample blocks, group after group as they come                       `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask                                                  `unblind`

The same as lattice_product.py in other arithmetic: who learns what, and why not more, is said there and holds here word
for word, but that there is no special prime (gradient_sizes.py) and that decryption is exact. Only wanted coefficients
are decrypted, modulo q; the dither is added modulo q; what is returned is the rounded fraction of q, a function of the
dithered value alone. a is expanded from the holder's seed, so it is uniform for any seed (the expansion taken as a
random oracle), and c1 of a reply, c1(g) J + a u + e1, is pseudorandom for any b and any [[g]].

Nothing branches on a secret: products take the same steps for zeros, and rejection depends on discarded words alone.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import check, gradient_sizes
from securevfl.crypto.kernel.ciphertexts import (
    Answering,
    Opener,
    answer_size,
    column_groups,
    dither,
    pack,
    packed_size,
    uniform,
    unpack,
)
from securevfl.crypto.kernel.gradient_rows import SLOT, Groups, KernelSums, encode, group_range, multiply
from securevfl.crypto.kernel.gradient_sizes import ENGINE, SECONDS, GradientParameters
from securevfl.crypto.kernel.keys import keypair
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout, choose, named
from securevfl.crypto.lattice import opened_words
from securevfl.crypto.lattice.layout import LEAST, MOST
from securevfl.crypto.lattice.profile import BLINDED, SEALED
from securevfl.crypto.lattice.row_encoding import checked, g_scale
from securevfl.crypto.lattice.row_products import Mask, Product, RowEvaluator, RowWork, answer
from securevfl.crypto.prg import KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Evaluator, KeyHolder, LinearScheme, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, RangeError

__all__ = ["KernelGradient", "KernelGradientEvaluator", "KernelGradientHolder"]

_MAGIC = b"SGK2"
_USES = 8  # products that the plaintexts of a batch serve for, about


class KernelGradient(LinearScheme):
    """J^T [[g]] on small residues in doubles, under 128-bit RLWE alone.

    `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder tunes itself to
    the widths it has opened. Executors are not used. ConfigError for an impossible width, or a BLAS that is not exact.
    """

    name: ClassVar[str] = "kernel"

    def __init__(self, *, columns: int = 32) -> None:
        if columns < 1:
            raise ConfigError(f"{ENGINE}: columns is the expected width of J, at least 1, got {columns}")
        if why := check.fault():
            raise ConfigError(f"{ENGINE}: {why}, or name the other library: {check.OTHER}")
        self._columns = columns
        self._parameters = GradientParameters()

    @property
    def strength(self) -> str:
        bits = math.ceil(math.log2(self._parameters.modulus))
        return f"RLWE ring N={DEGREE}, {bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        return self._parameters.distance_bits(values)

    @property
    def checks(self) -> int:
        return MOST

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        return opened_words.opened_bits(columns, word)

    @property
    def rotates(self) -> bool:
        return True

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return KernelGradientHolder(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return KernelGradientEvaluator(self._parameters, public)


def _second(parameters: GradientParameters, seed: bytes) -> Floats:
    """Expand a (P, N) of a key from the seed in it."""
    return uniform(Prg(seed, "public second polynomial of a key"), parameters.primes, (DEGREE,))


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class KernelGradientHolder(KeyHolder):
    """Owns the secret key, which is never written anywhere."""

    def __init__(self, parameters: GradientParameters, columns: int, openings: int = 1) -> None:
        primes, seed = parameters.primes, os.urandom(SEED_BYTES)
        secret, first = keypair(primes, _second(parameters, seed))
        self._parameters, self._opener = parameters, Opener(primes, secret)
        self._columns, self._openings, self._widest = columns, openings, 0
        self.public = _MAGIC + seed + pack(primes, first)
        self._fingerprint = _fingerprint(self.public)

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        g = np.asarray(g, np.float64)
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"{ENGINE}: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(f"{ENGINE}: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{ENGINE}: g has values that are not finite or above its bound {bound}; pass values within it"
            )
        width = self._widest or self._columns
        layout = choose(*g.shape, width + LEAST, _USES, self._openings)
        return self._pieces(layout, g * g_scale(self._parameters, layout, bound), bound)

    def _pieces(self, layout: RingLayout, g: Floats, bound: float) -> Iterator[tuple[bytes, bool]]:
        primes, prg = self._parameters.primes, Prg.fresh("errors of a sealed residual")
        head = SEALED.pack(b"SGG2", self._fingerprint, layout.n, layout.c, layout.r, layout.s, bound)
        for start in range(0, layout.sample_blocks, gradient_sizes.PIECE):
            blocks = group_range(layout, start // gradient_sizes.PIECE)
            parts = [head]
            for outputs in layout.outputs:
                seed = os.urandom(SEED_BYTES)
                some = slice(blocks.start, blocks.stop)
                message = layout.messages(primes.whole(np.rint(g[layout.rows(some), outputs])), some)
                second = uniform(Prg(seed, SECONDS), primes, (layout.points, layout.r, len(blocks)))
                parts += [seed, self._opener.seal(layout, message, second, prg)]
            yield b"".join(parts), blocks.stop == layout.sample_blocks

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        parameters, primes = self._parameters, self._parameters.primes
        n, c, r, s, d = header(ENGINE, BLINDED, b"SGB2", blinded, self._fingerprint)
        shape.check(n, c, d)
        layout = named(ENGINE, n, c, r, s)
        wide = checked(layout, d)
        sized(ENGINE, b"SGB2", blinded, BLINDED.size + answer_size(primes, layout, wide))
        view, prg, opened = memoryview(blinded)[BLINDED.size :], Prg.fresh("dither of an opening"), []
        for outputs in layout.outputs:
            width, levels = outputs.stop - outputs.start, np.empty((wide, outputs.stop - outputs.start))
            for columns, values in self._opener.reveal(layout, width, wide, view):
                levels[columns] = self._rounded(prg, values)
            opened.append(levels.T.ravel())
            view = view[answer_size(primes, replace(layout, c=width), wide) :]
        self._widest = max(self._widest, d)
        return answer(b"SGO1", self._fingerprint, np.concatenate(opened), shape._replace(columns=d), parameters.levels)

    def _rounded(self, prg: Prg, values: Floats) -> Floats:
        """(w + D) / 2^drop, rounded, of residues of w (P, *shape): exact dither first, floats after."""
        parameters, primes = self._parameters, self._parameters.primes
        dithered = primes.reduce(values + self._dither(prg, values.shape[1:]))
        levels: Floats = np.rint(primes.fraction(dithered) * parameters.levels)
        return levels

    def _dither(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        """Residues (P, *shape) of D: three integers uniform below 2^k, less their mean."""
        return dither(prg, self._parameters.primes, self._parameters.profile.k, shape)


class KernelGradientEvaluator(Answering, RowEvaluator[RingLayout, Groups, KernelSums]):
    """Owns J. Needs of the holder its public key and, per message, n, c, the layout and the bound."""

    name: ClassVar[str] = ENGINE
    opened: ClassVar[bytes] = b"SGO1"
    work: ClassVar[RowWork] = RowWork(encode, multiply, SLOT)
    _parameters: GradientParameters

    def __init__(self, parameters: GradientParameters, public: bytes) -> None:
        primes, start = parameters.primes, len(_MAGIC) + SEED_BYTES
        if public[: len(_MAGIC)] != _MAGIC:
            raise CryptoError(f"{ENGINE}: not a public key of this version; both sides must run the same release")
        sized(ENGINE, _MAGIC, public, start + packed_size(primes, DEGREE))
        first = unpack(primes, memoryview(public)[start:], (DEGREE,))
        self._has_key(primes, first, _second(parameters, public[len(_MAGIC) : start]))
        self._parameters, self._fingerprint = parameters, _fingerprint(public)

    def _header(self, sealed: bytes) -> tuple[RingLayout, float]:
        n, c, r, s, bound = header(ENGINE, SEALED, b"SGG2", sealed, self._fingerprint)
        return named(ENGINE, n, c, r, s), bound

    def _blocks(self, product: Product[RingLayout, Groups, KernelSums], sealed: bytes) -> Groups:
        layout, primes = product.scale.layout, self._parameters.primes
        if product.taken % gradient_sizes.PIECE:
            raise CryptoError(f"{ENGINE}: a message of g begins within a group; it is malformed")
        found: dict[int, list[bytes]] = {}
        at, taken = SEALED.size, product.taken
        while taken < layout.sample_blocks and (at < len(sealed) or not found):
            blocks, parts = group_range(layout, taken // gradient_sizes.PIECE), []
            for outputs in layout.outputs:
                size = SEED_BYTES + packed_size(primes, layout.points * (outputs.stop - outputs.start) * len(blocks))
                parts.append(sealed[at : at + size])
                at += size
            found[taken // gradient_sizes.PIECE], taken = parts, blocks.stop
        sized(ENGINE, b"SGG2", sealed, at)
        return Groups(range(product.taken, taken), found)

    def blind(self, product: Product[RingLayout, Groups, KernelSums]) -> tuple[bytes, Mask[RingLayout]]:
        layout, wide, primes = product.scale.layout, product.scale.width, self._parameters.primes
        sizes = layout.n, layout.c, layout.r, layout.s, len(product.scale.columns)
        parts = [BLINDED.pack(b"SGB2", self._fingerprint, *sizes)]
        masks, prg = [], Prg.fresh("what hides a product")
        for total in product.sums().reduced():
            assert total is not None, "J has rows, so something was multiplied"
            fractions = np.empty((wide, total.shape[2] - layout.r))
            for blocks, columns in column_groups(layout, wide):
                part, mask = self._hidden(layout, total[..., blocks], columns.stop - columns.start, prg)
                parts.append(part)
                fractions[columns] = primes.fraction(mask)
            masks.append(fractions.T.ravel())
        return b"".join(parts), Mask(product.scale, masks)

    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return ((slice(0, d), outputs) for outputs in layout.outputs)
