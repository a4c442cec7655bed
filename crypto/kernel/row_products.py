"""Encrypted products J^T g under lattice-based encryption: the protocol, fixed point, and checks.

The key holder has g (n, c), the residuals of n rows, and a secret key s. The evaluator has a matrix J (n, d) and learns
J^T g. Values are coefficients of polynomials modulo x^4096 + 1 and modulo q (residues.py). A ciphertext is a pair of
polynomials (c0, c1); decryption computes c0 + c1 * s = message + small noise. The public key (b, a) satisfies
b = -(a * s + error). Rows are divided into blocks ("sample blocks") that become polynomials (ring_layout.py), and a
product of polynomials contains entries of J^T g in its wanted coefficients.

    1. key holder   encrypts g with its secret key, in pieces of several sample blocks      `encrypt`
    2. evaluator    multiplies the pieces by its rows of J as they arrive, and adds up;
                    several processes may each have some rows of J                          `transpose_product`
    3. evaluator    adds an encryption of zero under the public key, and a mask; sends      `blind`
    4. key holder   decrypts, adds a random dither, removes the lowest bits; sends          `open`
    5. evaluator    subtracts its mask, and tests the checks (opening_checks.py)            `unblind`

Comments in this module and in gradient.py (this package's arithmetic) and crypto/lattice/lattice_gradient.py (SEAL)
use these steps. `RowScheme` documents who learns what, and the fixed-point format.
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
    pieces_of,
    starts_piece,
)
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.message_headers import check_length, read_header
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import MAX_PLAINTEXT_BYTES, Evaluator, KeyHolder, LinearScheme, OpeningShape
from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, CryptoError, OpeningMismatch, RangeError


class RowScheme(LinearScheme):
    """Base class of the schemes for encrypted products J^T g, with 128-bit security. Executors are not used.

    Who learns what, and why not more:

    - The second polynomial of a product is c1 * J, for the second polynomial c1 of g's ciphertext. The holder knows c1
      and could compute J from c1 * J. The encryption of zero of step 3 makes c1 * J look uniform, even to the owner of
      the secret key (RLWE, ring learning with errors). The evaluator's message in step 3 (the reply) therefore reveals
      nothing about J.
    - Of the first polynomial, only the wanted coefficients are sent, each with a mask that is uniform modulo q. The
      mask hides value and noise perfectly. The other coefficients, which mix different columns, are never sent.
    - If the holder sent the exact decrypted value w, the evaluator, which knows its mask, would learn the noise, which
      is linear in the secret key (Li and Micciancio 2021). The holder therefore adds a random dither D to w, and sends
      only the top bits. row_parameters.py derives how little this differs from a decryption without noise.
    - The dither is added modulo q before anything is rounded, and each coefficient is rounded separately, so the
      holder's message in step 4 depends on the dithered values alone.
    - Zeros in J do not change any step.

    A holder may choose a bad key. It sends b and a seed, from which the evaluator computes a, so the holder cannot
    choose a (with a = 0, for example, step 3 would not hide J). With this computation (ChaCha20 and rejection) as a
    random oracle, a is uniform. Then:

    - An encryption of zero is (b * u + e0, a * u + e1) with new random u, e0 and e1 that only the evaluator knows. The
      second polynomial of the reply is c1 * J + a * u + e1. It is pseudorandom for everyone, whatever b and c1 are,
      because a * u + e1 is (RLWE). The first polynomial is sent with masks. So a reply looks uniform for any b and any
      ciphertext of g, and nothing else is required of the holder's key or ciphertexts.
    - A wrong b makes the decrypted values wrong, because they contain b * u. The checks detect that, as they detect any
      value that the holder changes.
    - A holder may try many seeds and use the best one. With k seeds, its advantage is at most k times as large, as for
      any scheme with keys computed from seeds. A nonce of the evaluator would remove this factor, but needs a message
      before every key and a key for each evaluator, so it is omitted.

    An evaluator may send a crafted reply, because the holder cannot distinguish a reply from any other polynomials.
    With a c1 of its choice it obtains linear functions of the secret key, and may collect the key of an epoch, with
    which it can decrypt every g of the epoch. The holder checks only the shape: it decrypts no more values than J has
    columns and checks. New keys in every epoch limit this attack. It is not possible with Paillier, or if the holder
    keeps the decrypted values to itself.

    Fixed point: for a layout with f columns in a block and a public bound T, every column of J is scaled to integers x
    with ||x||_2 <= T / sqrt(f) and ||x||_1 <= L = T * sqrt(n / f), and g is scaled to integers of at most 0.98 * (q/2)
    / L. Therefore |sum of g * x| < q/2 for every g within its bound, and the noise of a product has a standard
    deviation of at most sqrt(10.5) * T. The scale of g depends only on n, the layout and the bound. The scales of the
    columns of J never leave the evaluator. The error of entry j of J^T g is at most ||J[:, j]||_2 * (1.6e-6 * sqrt(n) *
    bound + 2^-22 * sqrt(f) * sum |g|), typically a third of the first term and far less than the second. For columns
    and residuals of unit scale, a mean gradient J^T g / n has an error of about 1e-6.

    Args:
        parameters: moduli, sizes and operations of the implementation (`RowParameters`).
        columns: expected number of columns of J, for a holder's first layout. Any number works. A holder uses the
            largest number that it has decrypted for later layouts.

    Raises:
        ConfigError: if the number of columns is not positive.
    """

    holders: ClassVar[type[RowHolder]]
    evaluators: ClassVar[type[RowEvaluator]]

    def __init__(self, parameters: RowParameters, columns: int) -> None:
        if columns < 1:
            raise ConfigError(
                f"{parameters.engine}: the evaluator's matrix J cannot have {columns} columns",
                "set `columns` to the expected number of columns, at least 1",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self._columns = columns
        self._parameters: Any = parameters

    @property
    def strength(self) -> str:
        """Ring dimension, size of the modulus and security level, as one line of text."""
        return f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        """Return -log2 of the statistical distance of a run from an ideal one; see `LinearScheme.distance_bits`."""
        return float(self._parameters.profile.distance_bits(values))

    @property
    def checks(self) -> int:
        """Largest number of check values that are decrypted for one column of g."""
        return MAX_CHECKS

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """Return the number of bits in an answer whose values have few bits each; see `LinearScheme.opened_bits`."""
        return (columns + MIN_CHECKS) * word

    def opened_size(self, shape: OpeningShape) -> int:
        """Return the largest size of a holder's answer in bytes; see `LinearScheme.opened_size`."""
        if shape.word is not None:
            return OPENED_HEADER.size + (shape.columns + MIN_CHECKS) * word_size(shape.word)
        return OPENED_HEADER.size + 4 * shape.outputs * (shape.columns + MAX_CHECKS)

    @property
    def rotates(self) -> bool:
        """Whether keys should be replaced in every epoch: always True, because crafted replies may reveal a key."""
        return True

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """Create a holder with a new key; see `LinearScheme.keygen`."""
        return self.holders(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        """Create the evaluator for a public key; see `LinearScheme.evaluator`."""
        return self.evaluators(self._parameters, public)


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class RowHolder(KeyHolder):
    """The party with g and the secret key, which never leaves this object.

    Args:
        parameters: moduli, sizes and operations of the implementation (`RowParameters`).
        columns: expected number of columns of J.
        openings: expected number of products with each g.
    """

    def __init__(self, parameters: Any, columns: int, openings: int = 1) -> None:
        seed = os.urandom(SYMMETRIC_KEY_BYTES)
        self._parameters = parameters
        self._columns, self._openings, self._widest = columns, openings, 0
        self.public = parameters.magic[0] + seed + self._new_key(seed)
        self._fingerprint = _fingerprint(self.public)

    @abstractmethod
    def _new_key(self, seed: bytes) -> bytes:
        """Generate a secret key and return the first polynomial of its public key as bytes."""

    @abstractmethod
    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        """Encrypt some sample blocks of g.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            g: the rows of these blocks for the outputs of one block, as integers (rows, outputs).
            blocks: the numbers of the sample blocks.
            prg: the generator of the errors.

        Returns:
            The ciphertexts as bytes.
        """

    @abstractmethod
    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        """Decrypt the results for one block of outputs, and add the dither.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            width: number of outputs in the block.
            d: number of columns, including checks.
            view: the bytes of the message from this block on.
            prg: the generator of the dither.

        Yields:
            A slice of columns, and the rounded numbers (w + D) / 2^drop for them (columns, outputs).
        """

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """Encrypt g in one message; see `KeyHolder.encrypt`."""
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED_HEADER.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """Encrypt g in several messages; see `KeyHolder.encrypt_pieces`."""
        g, engine = np.asarray(g, np.float64), self._parameters.engine
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(
                f"{engine}: residuals g of shape {g.shape} are not a matrix with entries", code="SVFL-CRYPTO-SHAPE"
            )
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(
                f"{engine}: the bound of the residuals g is not a positive finite number",
                "pass the largest absolute value that a residual of the loss can have",
                code="SVFL-CRYPTO-RANGE",
            )
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{engine}: the residuals g have values that are not finite or exceed the bound {bound}",
                code="SVFL-CRYPTO-RANGE",
            )
        layout = self._parameters.choose(*g.shape, (self._widest or self._columns) + MIN_CHECKS, self._openings)
        return self._pieces(layout, g * g_scale(self._parameters, layout, bound), bound)

    def _pieces(self, layout: RingLayout, g: Floats, bound: float) -> Iterator[tuple[bytes, bool]]:
        prg = Prg.fresh("errors of a sealed residual")
        magic = self._parameters.magic[1]
        header = SEALED_HEADER.pack(magic, self._fingerprint, layout.n, layout.c, layout.r, layout.s, bound)
        for piece in pieces_of(range(layout.sample_blocks)):
            numbers = blocks_of_piece(layout, piece)
            blocks = slice(numbers.start, numbers.stop)
            rows = np.rint(g[layout.rows(blocks)])
            ciphertexts = [self._sealed(layout, rows[:, outputs], blocks, prg) for outputs in layout.outputs]
            yield b"".join([header, *ciphertexts]), blocks.stop == layout.sample_blocks

    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a blinded product; see `KeyHolder.open`."""
        parameters = self._parameters
        n, c, r, s, d = read_header(parameters.engine, BLINDED_HEADER, parameters.magic[2], blinded, self._fingerprint)
        shape.check(n, c, d)
        layout = checked_layout(parameters.engine, n, c, r, s)
        width = columns_with_checks(layout, d)
        check_length(
            parameters.engine,
            parameters.magic[2],
            blinded,
            BLINDED_HEADER.size + parameters.answer_size(layout, width),
        )
        view, prg, opened = memoryview(blinded)[BLINDED_HEADER.size :], Prg.fresh("dither of an opening"), []
        for outputs in layout.outputs:
            output_count = outputs.stop - outputs.start
            values = np.empty((width, output_count))
            for columns, levels in self._levels(layout, output_count, width, view, prg):
                values[columns] = levels
            opened.append(values.T.ravel())
            view = view[parameters.answer_size(replace(layout, c=output_count), width) :]
        self._widest = max(self._widest, d)
        agreed = shape._replace(columns=d)
        return opening_message(
            parameters.magic[3], self._fingerprint, np.concatenate(opened), agreed, parameters.levels
        )


def opening_message(magic: bytes, key: bytes, values: Floats, shape: OpeningShape, levels: float) -> bytes:
    """Return a key holder's answer.

    If the parties have agreed on a number of bits per value (`shape.word`), the answer contains just these bits of the
    columns' values and of MIN_CHECKS checks.

    Args:
        magic: the four letters of the message.
        key: fingerprint of the key.
        values: dithered values as integers; for each output, those of the columns and then those of the checks.
        shape: the shape of the products that the holder has agreed to decrypt.
        levels: number of different values.

    Returns:
        The message.

    Raises:
        RangeError: if a number of bits was agreed for several outputs.
    """
    outputs, columns, word = shape.outputs, shape.columns, shape.word
    if word is None:
        body = values.astype("<i4").tobytes()
        return OPENED_HEADER.pack(magic, key, outputs * columns, len(values) - outputs * columns) + body
    if outputs != 1:
        raise RangeError(
            f"{outputs} model outputs were agreed, with decrypted values cut to {word} bits; values can be cut only "
            "if there is one output",
            "agree on complete values",
            code="SVFL-CRYPTO-SHAPE",
        )
    return OPENED_HEADER.pack(magic, key, columns, MIN_CHECKS) + cut_words(values[: columns + MIN_CHECKS], levels, word)


class PreparedRows:
    """The matrix J, prepared for products: with the norms of its columns and the weights of its check columns.

    Args:
        J: the matrix; several processes may each store some of its rows.
        norms: the norms of its columns.
        max_bytes: limit on the bytes of encoded rows that each process may cache.
    """

    def __init__(self, J: ChunkedMatrix, norms: ColumnNorms, max_bytes: int) -> None:
        self.J = J
        self.norms = norms
        self.max_bytes = max_bytes
        self._rho: dict[int, Floats] = {}

    def rho(self, layout: RingLayout) -> Floats:
        """Return the weights (d, checks) with which the columns of J are combined to check columns."""
        d = self.J.shape[1]
        checks = columns_with_checks(layout, d) - d
        if checks not in self._rho:
            self._rho[checks] = draw_check_weights(d, checks)
        return self._rho[checks]

    @property
    def nbytes(self) -> int:
        """Bytes of J and of its cached encoded rows in this process."""
        local = [part.chunk for part in self.J.parts if isinstance(part, LocalPart)]
        return sum(chunk.nbytes + cached_bytes(chunk) for chunk in local)


@dataclass(frozen=True)
class OpeningScale:
    """The scales that turn decrypted integers into J^T g, and the tolerances of the checks.

    Attributes:
        layout: the division of matrices into blocks (`ring_layout.py`).
        columns: the real value that the integer 1 represents in each column of J (d,).
        g: the real value that the integer 1 represents in g.
        rho: the weight of each column in each check (d, checks).
        within: the largest deviation of each check from its expected value (checks,), in units of decrypted integers.
    """

    layout: RingLayout
    columns: Floats
    g: float
    rho: Floats
    within: Floats

    @property
    def width(self) -> int:
        """Number of decrypted columns, which are those of J and the checks."""
        return sum(self.rho.shape)


class RowProduct:
    """An encrypted product J^T g, which must be blinded before it is sent.

    Args:
        parameters: moduli, sizes and operations of the implementation (`RowParameters`).
        encoding: how the columns of J are scaled to integers, and which columns are check columns.
        scale: the scales that turn decrypted integers into J^T g.
        bound: the public bound on absolute values in g.

    Attributes:
        block_count: number of sample blocks of g that have been received, even if they are not multiplied yet.
    """

    def __init__(self, parameters: RowParameters, encoding: RowEncoding, scale: OpeningScale, bound: float) -> None:
        self.scale = scale
        self.encoding = encoding
        self.bound = bound
        self.block_count = 0
        self._parameters = parameters
        self._waiting: dict[int, SealedBlocks] = {}  # by process: blocks that were not sent to it yet
        self._futures: list[Future[Any]] = []

    @property
    def missing(self) -> int:
        """Number of sample blocks of g that have not been received yet."""
        return self.scale.layout.sample_blocks - self.block_count

    def add(self, sealed: SealedBlocks, prepared: PreparedRows) -> None:
        """Send encrypted sample blocks to the processes that have the same rows of J, which multiply them."""
        for number, part in enumerate(prepared.J.parts):
            if not (blocks := self.blocks_in(part, sealed.blocks)):
                continue
            some = sealed.some(blocks)
            if number in self._waiting:
                some = self._waiting.pop(number).then(some)
            if len(some.blocks) < part.min_blocks and blocks.stop * self.scale.layout.s < part.stop:
                self._waiting[number] = some
                continue
            args = self._parameters, self.encoding, part.start, some, prepared.max_bytes
            self._futures.append(part.run(multiply_rows, *args))
            while len(self._futures) > 1 and self._futures[0].done() and self._futures[1].done():
                self._add_up()
        self.block_count += len(sealed.blocks)

    def blocks_in(self, part: MatrixPart, blocks: range) -> range:
        """Return those of the sample blocks that have rows in one process's part of J."""
        s = self.scale.layout.s
        return range(max(blocks.start, part.start // s), min(blocks.stop, -(-part.stop // s)))

    def sums(self) -> Any:
        """Return the sum of all products. Raise CryptoError if sample blocks of g are missing."""
        if self.missing:
            raise CryptoError(
                f"{self._parameters.engine}: received {self.block_count} encrypted blocks of the residuals g, and "
                f"{self.missing} are missing",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        while len(self._futures) > 1:
            self._add_up()
        return self._futures[0].result()

    def _add_up(self) -> None:
        self._futures[0].result().add(self._futures.pop(1).result())


class RowMask(Secret):
    """The mask that `blind` has added, as fractions of the modulus q. It is single-use.

    Args:
        scale: the scales that turn decrypted integers into J^T g.
        masks: the mask of each block of outputs.
    """

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: OpeningScale, masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class RowEvaluator(Evaluator):
    """The party that has J (the evaluator); several processes may each store some rows of J.

    Args:
        parameters: moduli, sizes and operations of the implementation (`RowParameters`).
        public: the holder's public key.

    Raises:
        CryptoError: if the key is malformed.
    """

    def __init__(self, parameters: Any, public: bytes) -> None:
        magic = parameters.magic[0]
        start = len(magic) + SYMMETRIC_KEY_BYTES
        if public[: len(magic)] != magic:
            raise CryptoError(
                f"{parameters.engine}: the bytes are not a public key of this version",
                "run the same version of securevfl on both sides",
                code="SVFL-CRYPTO-KEY",
            )
        check_length(parameters.engine, magic, public, start + parameters.key_size)
        self._parameters, self._fingerprint, self._engine = parameters, _fingerprint(public), parameters.engine
        self._has_public(memoryview(public)[start:], public[len(magic) : start])

    @abstractmethod
    def _has_public(self, first: memoryview, seed: bytes) -> None:
        """Store the public key. Raise CryptoError if a residue in its bytes is not below its prime."""

    @abstractmethod
    def _answer(
        self, layout: RingLayout, total: Any, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Any]]:
        """Add encryptions of zero and masks to the products of one block of outputs.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            total: the sum of the products.
            d: number of columns, including checks.
            width: number of outputs in the block.
            prg: the generator of all randomness.

        Yields:
            The bytes for the message, the slice of columns that they contain, and their masks as fractions of q.
        """

    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> PreparedRows:
        """Encode J for products; see `Evaluator.prepare`."""
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(
                f"{self._engine}: derivatives J of shape {J.shape} are not a matrix with entries",
                code="SVFL-CRYPTO-SHAPE",
            )
        matrix = J if isinstance(J, ChunkedMatrix) else ChunkedMatrix.local(np.asarray(J, np.float64))
        futures = [part.run(column_norms) for part in matrix.parts]
        row_bytes = sum(part.chunk.nbytes for part in matrix.parts if isinstance(part, LocalPart))
        norms = merge_norms(future.result() for future in futures)
        return PreparedRows(matrix, norms, max(0, max_bytes - row_bytes))

    def encode(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> None:
        """Encode the rows of J in this process in advance; see `Evaluator.encode`.

        Other processes with rows of J encode their rows when they multiply them.
        """
        product, received = self._read(prepared, sealed, onto)
        for part in prepared.J.parts:
            if isinstance(part, LocalPart):
                blocks = product.blocks_in(part, received.blocks)
                part.run(encode_rows, self._parameters, product.encoding, part.start, blocks, prepared.max_bytes)

    def transpose_product(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> RowProduct:
        """Return the encrypted product J^T g; see `Evaluator.transpose_product`."""
        product, received = self._read(prepared, sealed, onto)
        product.add(received, prepared)
        return product

    def _blocks(self, product: RowProduct, sealed: bytes) -> SealedBlocks:
        """Return the sample blocks in a message with the next part of g. Raise CryptoError if its length is wrong."""
        layout, parameters = product.scale.layout, self._parameters
        if not starts_piece(product.block_count):
            raise CryptoError(
                f"{self._engine}: a message with encrypted residuals g begins in the middle of a block",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        if layout.output_blocks * SYMMETRIC_KEY_BYTES > len(sealed):  # checked before the loop over all outputs
            raise CryptoError(
                f"{self._engine}: a message with encrypted residuals g is too short for its number of outputs",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        pieces: dict[int, list[bytes]] = {}
        position, block = SEALED_HEADER.size, product.block_count
        while block < layout.sample_blocks and (position < len(sealed) or not pieces):
            (piece,) = pieces_of(range(block, block + 1))
            blocks, ciphertexts = blocks_of_piece(layout, piece), []
            for outputs in layout.outputs:
                size = parameters.sealed_size(layout, outputs.stop - outputs.start, len(blocks))
                ciphertexts.append(sealed[position : position + size])
                position += size
            pieces[piece], block = ciphertexts, blocks.stop
        check_length(parameters.engine, parameters.magic[1], sealed, position)
        return SealedBlocks(range(product.block_count, block), pieces)

    def blind(self, product: RowProduct) -> tuple[bytes, RowMask]:
        """Hide an encrypted product before it is sent; see `Evaluator.blind`."""
        layout, width, parameters = product.scale.layout, product.scale.width, self._parameters
        sizes = layout.n, layout.c, layout.r, layout.s, len(product.scale.columns)
        message = [BLINDED_HEADER.pack(parameters.magic[2], self._fingerprint, *sizes)]
        masks, prg = [], Prg.fresh("what hides a product")
        for outputs, total in zip(layout.outputs, product.sums().reduced(), strict=True):
            output_count = outputs.stop - outputs.start
            fractions = np.empty((width, output_count))
            for answer, columns, mask in self._answer(layout, total, width, output_count, prg):
                message.append(answer)
                fractions[columns] = mask
            masks.append(fractions.T.ravel())
        return b"".join(message), RowMask(product.scale, masks)

    def _read(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None) -> tuple[RowProduct, SealedBlocks]:
        """Return the product that a message of g continues, or a new one, and the sample blocks in the message."""
        parameters = self._parameters
        n, c, r, s, bound = read_header(
            parameters.engine, SEALED_HEADER, parameters.magic[1], sealed, self._fingerprint
        )
        layout = checked_layout(parameters.engine, n, c, r, s)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError(
                f"{self._engine}: a message with encrypted residuals g has no positive finite bound",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        if layout.n != len(prepared.J):
            raise CryptoError(
                f"{self._engine}: the residuals g have {layout.n} rows, but the matrix J has {len(prepared.J)}",
                code="SVFL-CRYPTO-SHAPE",
            )
        if onto is None:
            encoding = RowEncoding.of(layout, self._parameters, prepared.norms, prepared.rho(layout))
            unit, profile = g_scale(self._parameters, layout, bound), self._parameters.profile
            within = check_tolerance(encoding.rho, layout, profile, unit * bound / 2.0**profile.drop)
            scale = OpeningScale(layout, encoding.worth, 1 / unit, encoding.rho, within)
            onto = RowProduct(self._parameters, encoding, scale, bound)
        if (layout, bound) != (onto.scale.layout, onto.bound):
            raise CryptoError(
                f"{self._engine}: messages with blocks of the same residuals g have different headers",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        if not onto.missing:
            raise CryptoError(
                f"{self._engine}: a peer sent more blocks of encrypted residuals than agreed",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        return onto, self._blocks(onto, sealed)

    def unblind(self, opened: bytes, mask: RowMask, word: int | None = None) -> Floats:
        """Return J^T g from the holder's answer; see `Evaluator.unblind`."""
        layout, levels, rho, within = mask.scale.layout, self._parameters.levels, mask.scale.rho, mask.scale.within
        if word is not None:
            rho = rho[:, :MIN_CHECKS]
            within = within[:MIN_CHECKS] + word_error(rho, levels, word)
        width, value_size = sum(rho.shape), 4 if word is None else word_size(word)
        count, checks = read_header(
            self._parameters.engine, OPENED_HEADER, self._parameters.magic[3], opened, self._fingerprint
        )
        sent = tuple(layout.c * size for size in rho.shape)
        if (count, checks) != sent:
            raise CryptoError(
                f"{self._engine}: received {count} decrypted values and {checks} check values instead of {sent[0]} "
                f"and {sent[1]}",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        check_length(
            self._parameters.engine,
            self._parameters.magic[3],
            opened,
            OPENED_HEADER.size + value_size * (count + checks),
        )
        if mask.spent:
            raise CryptoError(
                f"{self._engine}: the mask that hides this product was already used",
                "blind the product again: a mask is single-use",
                code="SVFL-CRYPTO-REUSE",
            )
        mask.spent = True
        body = opened[OPENED_HEADER.size :]
        values = np.frombuffer(body, "<i4") if word is None else read_words(body, levels, word)
        difference = values - np.concatenate(mask.masks)[: len(values)] * levels
        difference -= levels * np.rint(difference / levels)
        result = difference.reshape(layout.c, width).T
        if not passes_checks(result, rho, levels, within):
            raise OpeningMismatch(
                f"{self._engine}: the decrypted values do not pass their checks, so none of them is used",
                "stop, and ask the key holder for the reason: it returned other values, or its residuals g exceed "
                "their bound",
                code="SVFL-CRYPTO-OPENING",
            )
        worth = mask.scale.g * 2.0**self._parameters.profile.drop * mask.scale.columns
        return result[: len(worth)] * worth[:, None]
