"""J^T [[g]] on a ring, whichever library multiplies: the protocol, fixed point, checks, rows of J wherever they lie.

    1. key holder   g in coefficients, encrypted symmetrically with fresh seeds         `encrypt`
    2. evaluator    products with the plaintexts of J, summed over sample blocks,
                    group after group as they come, wherever the rows of J lie          `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask, compares the checks                             `unblind`

The kernel (gradient.py) and SEAL (crypto/lattice/lattice_gradient.py) add how they make keys, encrypt, multiply, hide
and decrypt. Pieces of g go to the parts of J whose rows they meet, and what comes back is summed.

Who learns what, and why not more:

- The product's second polynomial c1 is c1(g) J, from which the holder of g would divide J out. The encryption of zero
  of step 3 makes it uniform (RLWE, even to the owner of the secret key), so the reply says nothing about J.
- Of the first polynomial only the wanted coefficients leave, each with a mask uniform modulo q: value and noise e J
  are hidden perfectly. The unwanted coefficients, cross terms between columns, never leave.
- An exact decryption would show the evaluator, which knows its mask, the noise, which is linear in the secret key (Li
  and Micciancio 2021). The holder adds a secret dither D to w and returns the top bits alone; how far that is from an
  opening without noise, by value and by run, is derived below.
- The dither is added modulo q, before anything is rounded, and each coefficient is rounded by itself: what is returned
  is a function of dithered values alone.
- Zeros in J change no step.

A key that the holder chose. What the holder sends is b and the seed from which a is expanded; the evaluator does so
itself, so a cannot be chosen (from a = 0, or any structured a, J would come out by division, as without step 3). With
the expansion (ChaCha20 and rejection) as a random oracle a is uniform. Then:

- An encryption of zero is (b u + e0, a u + e1), u, e0, e1 fresh and known to the evaluator alone. b does not enter the
  second half, which is an RLWE sample under u: c1 of the reply, c1(g) J + a u + e1, is pseudorandom whatever b and
  c1(g) are, to everyone, the holder included. The first half leaves under the mask. So a reply is as good as uniform
  for any b and any [[g]]: nothing else is asked of the holder's key or of its ciphertexts.
- A wrong b makes the opened values wrong: they hold b u at the wanted positions. That is found by the checks beside
  them, as any value is that the holder does not open as it decrypts.
- A holder may try Q seeds and take the best: its advantage is at most Q times that against one uniform a, as for any
  scheme that expands its key. A nonce from the evaluator would take the factor away. It costs a message before every
  key and a key for each evaluator, so it is left out.

Crafted replies. The holder cannot tell a reply from any other ring element: an evaluator that sends c1 of its choosing
has linear functions of the secret key opened, and may collect the key of that epoch, which opens each [[g]] of the
epoch. What is checked is the shape: no more values are opened than J has columns and checks for. New keys every epoch
are the limit. Paillier's windows do not lead to its key, and where a holder keeps what it decrypts there is no such
door.

Fixed point. For a layout of f columns and a public cap T, columns are scaled to integers x with ||x||_2 <= T / sqrt(f)
and ||x||_1 <= L = T sqrt(n / f); g is scaled to integers below G = 0.98 (q/2) / L. So |sum g x| < q/2 for every g
within its bound, the noise of a product has standard deviation at most sqrt(10.5) T, and the scale of g depends on n,
the layout and the bound alone. The scales of J's columns never leave the evaluator. Entry j of J^T g errs by at most
||J_j||_2 (1.6e-6 sqrt(n) bound + 2^-22 sqrt(f) sum |g|), typically by a third of the first term and far less of the
second: on data of unit scale a mean gradient J^T g / n is good to some 1e-6.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, MatrixPart
from securevfl.crypto.kernel import row_plaintexts
from securevfl.crypto.kernel.opened_words import cut_words, read_words, word_error, word_size
from securevfl.crypto.kernel.opening_checks import (
    MAX_CHECKS,
    MIN_CHECKS,
    check_tolerance,
    columns_with_checks,
    draw_check_weights,
    passes_checks,
)
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout, checked_layout
from securevfl.crypto.kernel.row_encoding import ColumnNorms, RowEncoding, column_norms, g_scale, merge_norms
from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, OPENED_HEADER, SEALED_HEADER, RowParameters
from securevfl.crypto.kernel.row_plaintexts import (
    SealedBlocks,
    blocks_of_piece,
    cached_bytes,
    encode_rows,
    multiply_rows,
)
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES as SEED_BYTES
from securevfl.crypto.message_headers import check_length, read_header
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import MAX_PLAINTEXT_BYTES, Evaluator, KeyHolder, LinearScheme, OpeningShape
from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, CryptoError, OpeningMismatch, RangeError


class RowScheme(LinearScheme):
    """J^T [[g]] on a ring, under 128-bit RLWE alone.

    `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder tunes itself to
    the widths it has opened. Executors are not used. ConfigError for an impossible width.
    """

    holders: ClassVar[type[RowHolder]]
    evaluators: ClassVar[type[RowEvaluator]]

    def __init__(self, parameters: RowParameters, columns: int) -> None:
        if columns < 1:
            raise ConfigError(f"{parameters.engine}: columns is the expected width of J, at least 1, got {columns}")
        self._columns = columns
        self._parameters: Any = parameters

    @property
    def strength(self) -> str:
        return f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        return float(self._parameters.profile.distance_bits(values))

    @property
    def checks(self) -> int:
        return MAX_CHECKS

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        return (columns + MIN_CHECKS) * word

    def opened_size(self, shape: OpeningShape) -> int:
        if shape.word is not None:
            return OPENED_HEADER.size + (shape.columns + MIN_CHECKS) * word_size(shape.word)
        return OPENED_HEADER.size + 4 * shape.outputs * (shape.columns + MAX_CHECKS)

    @property
    def rotates(self) -> bool:
        return True

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return self.holders(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return self.evaluators(self._parameters, public)


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class RowHolder(KeyHolder):
    """Owns the secret key, which is never written anywhere."""

    def __init__(self, parameters: Any, columns: int, openings: int = 1) -> None:
        seed = os.urandom(SEED_BYTES)
        self._parameters = parameters
        self._columns, self._openings, self._widest = columns, openings, 0
        self.public = parameters.magic[0] + seed + self._new_key(seed)
        self._fingerprint = _fingerprint(self.public)

    @abstractmethod
    def _new_key(self, seed: bytes) -> bytes:
        """Make a secret key; return the first polynomial of its public key as it travels."""

    @abstractmethod
    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        """Encrypt g (rows x outputs of a block), in whole numbers, the rows of these sample blocks."""

    @abstractmethod
    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        """Yield columns, and (w + D) / 2^drop, rounded, of each (columns, outputs), of an output block of an answer."""

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED_HEADER.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        g, engine = np.asarray(g, np.float64), self._parameters.engine
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"{engine}: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(f"{engine}: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{engine}: g has values that are not finite or above its bound {bound}; pass values within it"
            )
        layout = self._parameters.choose(*g.shape, (self._widest or self._columns) + MIN_CHECKS, self._openings)
        return self._pieces(layout, g * g_scale(self._parameters, layout, bound), bound)

    def _pieces(self, layout: RingLayout, g: Floats, bound: float) -> Iterator[tuple[bytes, bool]]:
        prg = Prg.fresh("errors of a sealed residual")
        magic = self._parameters.magic[1]
        head = SEALED_HEADER.pack(magic, self._fingerprint, layout.n, layout.c, layout.r, layout.s, bound)
        for start in range(0, layout.sample_blocks, row_plaintexts.BLOCKS_PER_PIECE):
            blocks = blocks_of_piece(layout, start // row_plaintexts.BLOCKS_PER_PIECE)
            some = slice(blocks.start, blocks.stop)
            rows = np.rint(g[layout.rows(some)])
            parts = [self._sealed(layout, rows[:, outputs], some, prg) for outputs in layout.outputs]
            yield b"".join([head, *parts]), blocks.stop == layout.sample_blocks

    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        parameters = self._parameters
        n, c, r, s, d = read_header(parameters.engine, BLINDED_HEADER, parameters.magic[2], blinded, self._fingerprint)
        shape.check(n, c, d)
        layout = checked_layout(parameters.engine, n, c, r, s)
        wide = columns_with_checks(layout, d)
        check_length(
            parameters.engine, parameters.magic[2], blinded, BLINDED_HEADER.size + parameters.answer_size(layout, wide)
        )
        view, prg, opened = memoryview(blinded)[BLINDED_HEADER.size :], Prg.fresh("dither of an opening"), []
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            whole = np.empty((wide, width))
            for columns, levels in self._levels(layout, width, wide, view, prg):
                whole[columns] = levels
            opened.append(whole.T.ravel())
            view = view[parameters.answer_size(replace(layout, c=width), wide) :]
        self._widest = max(self._widest, d)
        agreed = shape._replace(columns=d)
        return opening_message(
            parameters.magic[3], self._fingerprint, np.concatenate(opened), agreed, parameters.levels
        )


def opening_message(magic: bytes, key: bytes, values: Floats, shape: OpeningShape, levels: float) -> bytes:
    """Return what a key holder opens of its values, columns and then checks of each output, as the shape agreed says.

    Of values that are not agreed to be whole no more leaves than the words of the columns and LEAST checks.
    """
    outputs, columns, word = shape.outputs, shape.columns, shape.word
    if word is None:
        body = values.astype("<i4").tobytes()
        return OPENED_HEADER.pack(magic, key, outputs * columns, len(values) - outputs * columns) + body
    if outputs != 1:
        raise RangeError(f"words are opened of one output, {outputs} were agreed; open whole values")
    return OPENED_HEADER.pack(magic, key, columns, MIN_CHECKS) + cut_words(values[: columns + MIN_CHECKS], levels, word)


class PreparedRows:
    """J, here or in parts elsewhere, what its scale follows from, and the bytes of plaintexts each part may keep."""

    def __init__(self, J: ChunkedMatrix, found: ColumnNorms, room: int) -> None:
        self.J = J
        self.norms = found
        self.room = room
        self._rho: dict[int, Floats] = {}

    def rho(self, layout: RingLayout) -> Floats:
        """Return the combinations of columns in the checks, the same whenever J is multiplied in this layout."""
        d = self.J.shape[1]
        checks = columns_with_checks(layout, d) - d
        if checks not in self._rho:
            self._rho[checks] = draw_check_weights(d, checks)
        return self._rho[checks]

    @property
    def nbytes(self) -> int:
        """Bytes of J and its plaintexts, of what is in this process."""
        here = [part.chunk for part in self.J.parts if isinstance(part, LocalPart)]
        return sum(stretch.nbytes + cached_bytes(stretch) for stretch in here)


@dataclass(frozen=True)
class OpeningScale:
    """How opened integers read as J^T g, and what the checks beside it should be."""

    layout: RingLayout
    columns: Floats  # (d,): worth of one integer step in each column of J
    g: float  # worth of one integer step of g
    rho: Floats  # (d x checks): the share of each column in each check
    within: Floats  # (checks,): how far off a check may be, in levels

    @property
    def width(self) -> int:
        """Columns that are opened, checks included."""
        return sum(self.rho.shape)


class RowProduct:
    """[[J^T g]]; not fit to leave before it is blinded.

    `taken` sample blocks of g are in it, or on their way to the parts of J, which work on their own.
    """

    def __init__(self, parameters: RowParameters, encoding: RowEncoding, scale: OpeningScale, bound: float) -> None:
        self.scale = scale
        self.encoding = encoding
        self.bound = bound
        self.taken = 0
        self._parameters = parameters
        self._held: dict[int, SealedBlocks] = {}  # by part of J: too few for a call
        self._coming: list[Future[Any]] = []

    @property
    def left(self) -> int:
        """Sample blocks of g that have not come yet."""
        return self.scale.layout.sample_blocks - self.taken

    def take(self, blocks: SealedBlocks, prepared: PreparedRows) -> None:
        """Send the next blocks to the rows that they belong to."""
        for place, part in enumerate(prepared.J.parts):
            if not (own := self.of(part, blocks)):
                continue
            mine = blocks.some(own)
            if place in self._held:
                mine = self._held.pop(place).then(mine)
            if mine.count < part.min_blocks and own.stop * self.scale.layout.s < part.stop:
                self._held[place] = mine
                continue
            args = self._parameters, self.encoding, part.start, mine, prepared.room
            self._coming.append(part.run(multiply_rows, *args))
            while len(self._coming) > 1 and self._coming[0].done() and self._coming[1].done():
                self._add_up()
        self.taken += blocks.count

    def of(self, part: MatrixPart, blocks: SealedBlocks) -> range:
        """Which of these blocks hold rows of this part of J."""
        s, stop = self.scale.layout.s, blocks.first + blocks.count
        return range(max(blocks.first, part.start // s), min(stop, -(-part.stop // s)))

    def sums(self) -> Any:
        """Return the ciphertexts of the product. CryptoError if blocks of g are missing."""
        if self.left:
            raise CryptoError(
                f"{self._parameters.engine}: {self.left + self.taken} blocks of g were expected, {self.taken} came; "
                "it was cut, ask for it again"
            )
        while len(self._coming) > 1:
            self._add_up()
        return self._coming[0].result()

    def _add_up(self) -> None:
        self._coming[0].result().add(self._coming.pop(1).result())


class RowMask(Secret):
    """What `blind` added, as fractions of the modulus, and how to read the rest. Serves once."""

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: OpeningScale, masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class RowEvaluator(Evaluator):
    """Owns J, here or in parts elsewhere. Needs of the holder its public key and, per message, n, c, the layout and the
    bound."""

    def __init__(self, parameters: Any, public: bytes) -> None:
        magic = parameters.magic[0]
        start = len(magic) + SEED_BYTES
        if public[: len(magic)] != magic:
            raise CryptoError(
                f"{parameters.engine}: not a public key of this version; both sides must run the same release"
            )
        check_length(parameters.engine, magic, public, start + parameters.key_size)
        self._parameters, self._fingerprint, self._engine = parameters, _fingerprint(public), parameters.engine
        self._has_public(memoryview(public)[start:], public[len(magic) : start])

    @abstractmethod
    def _has_public(self, first: memoryview, seed: bytes) -> None:
        """Take the public key. CryptoError if a residue is not below its prime."""

    @abstractmethod
    def _answer(
        self, layout: RingLayout, total: Any, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Any]]:
        """Hide the products of an output block, so many columns and outputs; yield what is sent, columns, and their
        mask as a fraction of q (columns, outputs)."""

    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> PreparedRows:
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(f"{self._engine}: J is n x d with n, d >= 1, got shape {J.shape}")
        tall = J if isinstance(J, ChunkedMatrix) else ChunkedMatrix.local(np.asarray(J, np.float64))
        found = [part.run(column_norms) for part in tall.parts]
        rows = sum(part.chunk.nbytes for part in tall.parts if isinstance(part, LocalPart))
        return PreparedRows(tall, merge_norms(each.result() for each in found), max(0, max_bytes - rows))

    def encode(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> None:
        product, blocks = self._begun(prepared, sealed, onto)
        for part in prepared.J.parts:
            if isinstance(part, LocalPart):  # elsewhere plaintexts are made when they are multiplied
                own = product.of(part, blocks)
                part.run(encode_rows, self._parameters, product.encoding, part.start, own, prepared.room)

    def transpose_product(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> RowProduct:
        product, blocks = self._begun(prepared, sealed, onto)
        product.take(blocks, prepared)
        return product

    def _blocks(self, product: RowProduct, sealed: bytes) -> SealedBlocks:
        """Return the blocks in a message, the next ones of the product. CryptoError if it is of another length."""
        layout, parameters = product.scale.layout, self._parameters
        if product.taken % row_plaintexts.BLOCKS_PER_PIECE:
            raise CryptoError(f"{self._engine}: a message of g begins within a group; it is malformed")
        if layout.output_blocks * SEED_BYTES > len(sealed):  # before a list of so many is made
            raise CryptoError(f"{self._engine}: a message of g has fewer bytes than outputs; it is cut")
        groups: dict[int, list[bytes]] = {}
        at, taken = SEALED_HEADER.size, product.taken
        while taken < layout.sample_blocks and (at < len(sealed) or not groups):
            blocks, parts = blocks_of_piece(layout, taken // row_plaintexts.BLOCKS_PER_PIECE), []
            for outputs in layout.outputs:
                size = parameters.sealed_size(layout, outputs.stop - outputs.start, len(blocks))
                parts.append(sealed[at : at + size])
                at += size
            groups[taken // row_plaintexts.BLOCKS_PER_PIECE], taken = parts, blocks.stop
        check_length(parameters.engine, parameters.magic[1], sealed, at)
        return SealedBlocks(range(product.taken, taken), groups)

    def blind(self, product: RowProduct) -> tuple[bytes, RowMask]:
        layout, wide, parameters = product.scale.layout, product.scale.width, self._parameters
        sizes = layout.n, layout.c, layout.r, layout.s, len(product.scale.columns)
        parts = [BLINDED_HEADER.pack(parameters.magic[2], self._fingerprint, *sizes)]
        masks, prg = [], Prg.fresh("what hides a product")
        for outputs, total in zip(layout.outputs, product.sums().reduced(), strict=True):
            width = outputs.stop - outputs.start
            fractions = np.empty((wide, width))
            for part, columns, mask in self._answer(layout, total, wide, width, prg):
                parts.append(part)
                fractions[columns] = mask
            masks.append(fractions.T.ravel())
        return b"".join(parts), RowMask(product.scale, masks)

    def _begun(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None) -> tuple[RowProduct, SealedBlocks]:
        """Return the product that this message continues or begins, and the blocks of g in it."""
        parameters = self._parameters
        n, c, r, s, bound = read_header(
            parameters.engine, SEALED_HEADER, parameters.magic[1], sealed, self._fingerprint
        )
        layout = checked_layout(parameters.engine, n, c, r, s)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError(f"{self._engine}: a message of g has no positive finite bound; it is malformed")
        if layout.n != len(prepared.J):
            raise CryptoError(
                f"{self._engine}: g has {layout.n} rows, J has {len(prepared.J)}; both sides must use the same batch"
            )
        if onto is None:
            encoding = RowEncoding.of(layout, self._parameters, prepared.norms, prepared.rho(layout))
            unit, profile = g_scale(self._parameters, layout, bound), self._parameters.profile
            within = check_tolerance(encoding.rho, layout, profile, unit * bound / 2.0**profile.drop)
            scale = OpeningScale(layout, encoding.worth, 1 / unit, encoding.rho, within)
            onto = RowProduct(self._parameters, encoding, scale, bound)
        if (layout, bound) != (onto.scale.layout, onto.bound):
            raise CryptoError(f"{self._engine}: messages of one g have different headers; they are malformed")
        if not onto.left:
            raise CryptoError(f"{self._engine}: messages hold more blocks than g has; they are malformed")
        return onto, self._blocks(onto, sealed)

    def unblind(self, opened: bytes, mask: RowMask, word: int | None = None) -> Floats:
        layout, levels, rho, within = mask.scale.layout, self._parameters.levels, mask.scale.rho, mask.scale.within
        if word is not None:
            rho = rho[:, :MIN_CHECKS]
            within = within[:MIN_CHECKS] + word_error(rho, levels, word)
        width, per = sum(rho.shape), 4 if word is None else word_size(word)
        count, checks = read_header(
            self._parameters.engine, OPENED_HEADER, self._parameters.magic[3], opened, self._fingerprint
        )
        sent = tuple(layout.c * each for each in rho.shape)
        if (count, checks) != sent:
            raise CryptoError(
                f"{self._engine}: {count} opened values and {checks} checks came, {sent[0]} and {sent[1]} were sent; "
                "it is not the answer"
            )
        check_length(
            self._parameters.engine, self._parameters.magic[3], opened, OPENED_HEADER.size + per * (count + checks)
        )
        if mask.spent:
            raise CryptoError(f"{self._engine}: this mask has been used; a mask serves for one opening")
        mask.spent = True
        body = opened[OPENED_HEADER.size :]
        values = np.frombuffer(body, "<i4") if word is None else read_words(body, levels, word)
        rest = values - np.concatenate(mask.masks)[: len(values)] * levels
        rest -= levels * np.rint(rest / levels)
        result = rest.reshape(layout.c, width).T
        if not passes_checks(result, rho, levels, within):
            raise OpeningMismatch(
                f"{self._engine}: what was opened does not fit the checks beside it: it is not what was decrypted, "
                "or g is no residual; nothing of it is used"
            )
        worth = mask.scale.g * 2.0**self._parameters.profile.drop * mask.scale.columns
        return result[: len(worth)] * worth[:, None]
