"""J^T [[g]] on a ring, for every library that multiplies: the protocol, fixed point, and checks.

    1. key holder   g in coefficients, encrypted symmetrically with fresh seeds          `encrypt`
    2. evaluator    products with the plaintexts of J, summed over sample blocks,
                    piece after piece as they arrive, wherever the rows of J are         `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends             `blind`
    4. key holder   decrypts noise, adds a secret dither, removes low bits, returns      `open`
    5. evaluator    subtracts its mask, compares the checks                              `unblind`

The kernel (gradient.py) and SEAL (crypto/lattice/lattice_gradient.py) implement the generation of keys, encryption,
multiplication, hiding and decryption. Pieces of g are sent to the parts of J whose rows they contain, and the results
are summed.

Who learns what, and why not more:

- The second polynomial c1 of the product is c1(g) J, and the holder of g could divide J out of it. The encryption of
  zero of step 3 makes it uniform (RLWE, even for the owner of the secret key), so the reply reveals nothing about J.
- Only the wanted coefficients of the first polynomial are sent, each with a mask that is uniform modulo q: the value
  and the noise e J are hidden perfectly. The other coefficients, cross terms between columns, are never sent.
- An exact decryption would reveal the noise to the evaluator, which knows its mask. The noise is linear in the secret
  key (Li and Micciancio 2021). The holder therefore adds a secret dither D to w and returns only the top bits.
  row_parameters.py derives the distance of the result from that of a decryption without noise.
- The dither is added modulo q before anything is rounded, and each coefficient is rounded separately: the result is a
  function of the dithered values alone.
- Zeros in J do not change any step.

*Keys that the holder chooses.* The holder sends b and the seed of a. The evaluator expands the seed
itself, so the holder cannot choose a. (With a = 0 or a structured a, J could be divided out, as without step 3.) With
the expansion (ChaCha20 and rejection) as a random oracle, a is uniform. Then:

- An encryption of zero is (b u + e0, a u + e1) for fresh u, e0 and e1 that only the evaluator knows. b does not enter
  the second half, which is an RLWE sample under u: c1 of the reply, c1(g) J + a u + e1, is pseudorandom for everyone,
  whatever b and c1(g) are. The first half is sent under the mask. A reply is therefore as good as uniform for any b and
  any [[g]], and nothing else is required of the holder's key or ciphertexts.
- A wrong b makes the decrypted values wrong, because they contain b u at the wanted positions. The checks detect it, as
  they detect any value that the holder does not return as decrypted.
- A holder may try Q seeds and take the best. Its advantage is at most Q times that against one uniform a, as for any
  scheme that expands its key. A nonce of the evaluator would remove the factor, but costs a message before every key
  and a key for each evaluator, so it is omitted.

*Crafted replies.* The holder cannot distinguish a reply from another ring element. An evaluator that sends a c1 of its
choice obtains linear functions of the secret key and may collect the key of that epoch, which decrypts every [[g]] of
the epoch. Only the shape is checked: no more values are decrypted than J has columns and checks. New keys every epoch
limit this attack. It does not apply to Paillier, whose windows do not lead to its key, or if the holder keeps the
decrypted values.

*Fixed point.* For a layout with f columns in a block and a public cap T, columns are scaled to integers x with
||x||_2 <= T / sqrt(f) and ||x||_1 <= L = T sqrt(n / f). g is scaled to integers below G = 0.98 (q/2) / L. Therefore
|sum g x| < q/2 for every g within its bound, the noise of a product has a standard deviation of at most sqrt(10.5) T,
and the scale of g depends on n, the layout and the bound alone. The scales of the columns of J never leave the
evaluator. The error of entry j of J^T g is at most ||J_j||_2 (1.6e-6 sqrt(n) bound + 2^-22 sqrt(f) sum |g|), typically
a third of the first term and far less of the second. On data of unit scale, a mean gradient J^T g / n has an error of
about 1e-6.
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
    """J^T [[g]] on a ring, under 128-bit RLWE alone. Executors are not used.

    Args:
        parameters: the parameters of the engine.
        columns: expected width of J, for the first layout of a holder. Any width works, and a holder adapts to the
            widths that it has decrypted.

    Raises:
        ConfigError: if the width is impossible.
    """

    holders: ClassVar[type[RowHolder]]
    evaluators: ClassVar[type[RowEvaluator]]

    def __init__(self, parameters: RowParameters, columns: int) -> None:
        if columns < 1:
            raise ConfigError(
                f"{parameters.engine}: J cannot have {columns} columns",
                "set `columns` to the expected number of columns, at least 1",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self._columns = columns
        self._parameters: Any = parameters

    @property
    def strength(self) -> str:
        """One line for people: ring, security level, assumption."""
        return f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        """See `LinearScheme.distance_bits`."""
        return float(self._parameters.profile.distance_bits(values))

    @property
    def checks(self) -> int:
        """Largest number of check values that are decrypted for the columns of J^T g."""
        return MAX_CHECKS

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """See `LinearScheme.opened_bits`."""
        return (columns + MIN_CHECKS) * word

    def opened_size(self, shape: OpeningShape) -> int:
        """See `LinearScheme.opened_size`."""
        if shape.word is not None:
            return OPENED_HEADER.size + (shape.columns + MIN_CHECKS) * word_size(shape.word)
        return OPENED_HEADER.size + 4 * shape.outputs * (shape.columns + MAX_CHECKS)

    @property
    def rotates(self) -> bool:
        """True: crafted replies may reveal the key of an epoch, so it should be replaced every epoch."""
        return True

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """See `LinearScheme.keygen`."""
        return self.holders(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        """See `LinearScheme.evaluator`."""
        return self.evaluators(self._parameters, public)


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class RowHolder(KeyHolder):
    """The party with the secret key, which is never written anywhere.

    Args:
        parameters: the parameters of the engine.
        columns: expected width of J.
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
        """Encrypt the rows of these sample blocks of g (rows, outputs of a block), which are integers."""

    @abstractmethod
    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        """Yield slices of columns, and (w + D) / 2^drop, rounded (columns, outputs), of an output block."""

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """See `KeyHolder.encrypt`."""
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED_HEADER.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """See `KeyHolder.encrypt_pieces`."""
        g, engine = np.asarray(g, np.float64), self._parameters.engine
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"{engine}: g of shape {g.shape} is not a matrix with entries", code="SVFL-CRYPTO-SHAPE")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(
                f"{engine}: the bound on g is not a positive finite number", "correct it", code="SVFL-CRYPTO-RANGE"
            )
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{engine}: g has values that are not finite or exceed the bound {bound}", code="SVFL-CRYPTO-RANGE"
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
        """See `KeyHolder.open`."""
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

    If words are agreed, the answer contains no more than the words of the columns and of MIN_CHECKS checks.

    Args:
        magic: letters of the message.
        key: fingerprint of the key.
        values: decrypted values in levels, columns and then checks of each output.
        shape: the agreed shape.
        levels: number of levels.

    Returns:
        The message.

    Raises:
        RangeError: if words of several outputs are agreed.
    """
    outputs, columns, word = shape.outputs, shape.columns, shape.word
    if word is None:
        body = values.astype("<i4").tobytes()
        return OPENED_HEADER.pack(magic, key, outputs * columns, len(values) - outputs * columns) + body
    if outputs != 1:
        raise RangeError(
            f"words of {outputs} outputs were agreed, but only one output can have words",
            "agree on values in full",
            code="SVFL-CRYPTO-SHAPE",
        )
    return OPENED_HEADER.pack(magic, key, columns, MIN_CHECKS) + cut_words(values[: columns + MIN_CHECKS], levels, word)


class PreparedRows:
    """J with the norms of its columns and the weights of its checks.

    Args:
        J: the matrix, in this process or in several.
        norms: the norms of its columns.
        max_bytes: bytes of plaintexts that each part may cache.
    """

    def __init__(self, J: ChunkedMatrix, norms: ColumnNorms, max_bytes: int) -> None:
        self.J = J
        self.norms = norms
        self.max_bytes = max_bytes
        self._rho: dict[int, Floats] = {}

    def rho(self, layout: RingLayout) -> Floats:
        """Return the weights of the checks, which stay the same for products with the same number of checks."""
        d = self.J.shape[1]
        checks = columns_with_checks(layout, d) - d
        if checks not in self._rho:
            self._rho[checks] = draw_check_weights(d, checks)
        return self._rho[checks]

    @property
    def nbytes(self) -> int:
        """Bytes of J and its plaintexts in this process."""
        local = [part.chunk for part in self.J.parts if isinstance(part, LocalPart)]
        return sum(chunk.nbytes + cached_bytes(chunk) for chunk in local)


@dataclass(frozen=True)
class OpeningScale:
    """How decrypted integers become J^T g, and how far its checks may deviate.

    Attributes:
        layout: the layout.
        columns: value of one integer step in each column of J (d,).
        g: value of one integer step of g.
        rho: weight of each column in each check (d, checks).
        within: tolerance of each check (checks,) in levels.
    """

    layout: RingLayout
    columns: Floats
    g: float
    rho: Floats
    within: Floats

    @property
    def width(self) -> int:
        """Number of decrypted columns, including checks."""
        return sum(self.rho.shape)


class RowProduct:
    """An encrypted product J^T g, which must be blinded before it is sent.

    Args:
        parameters: the parameters of the engine.
        encoding: the encoding of J.
        scale: the scale of the result.
        bound: the bound on g.

    Attributes:
        block_count: sample blocks of g that have been received; parts of J may still be multiplying them.
    """

    def __init__(self, parameters: RowParameters, encoding: RowEncoding, scale: OpeningScale, bound: float) -> None:
        self.scale = scale
        self.encoding = encoding
        self.bound = bound
        self.block_count = 0
        self._parameters = parameters
        self._waiting: dict[int, SealedBlocks] = {}  # by part of J: blocks that are too few for a call
        self._futures: list[Future[Any]] = []

    @property
    def missing(self) -> int:
        """Sample blocks of g that have not been received."""
        return self.scale.layout.sample_blocks - self.block_count

    def add(self, sealed: SealedBlocks, prepared: PreparedRows) -> None:
        """Send the next sample blocks to the parts of J that have their rows."""
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
        """Return which of these sample blocks have rows in a part of J."""
        s = self.scale.layout.s
        return range(max(blocks.start, part.start // s), min(blocks.stop, -(-part.stop // s)))

    def sums(self) -> Any:
        """Return the ciphertexts of the product; CryptoError if sample blocks of g are missing."""
        if self.missing:
            raise CryptoError(
                f"{self._parameters.engine}: received {self.block_count} blocks of g, {self.missing} are missing",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        while len(self._futures) > 1:
            self._add_up()
        return self._futures[0].result()

    def _add_up(self) -> None:
        self._futures[0].result().add(self._futures.pop(1).result())


class RowMask(Secret):
    """The mask that `blind` has added, as fractions of the modulus; it is single-use.

    Args:
        scale: how to read the result.
        masks: the mask of each output block.
    """

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: OpeningScale, masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class RowEvaluator(Evaluator):
    """The party that has J, in this process or in several.

    Args:
        parameters: the parameters of the engine.
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
        """Store the public key; CryptoError if a residue is not below its prime."""

    @abstractmethod
    def _answer(
        self, layout: RingLayout, total: Any, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Any]]:
        """Hide products of d columns and `width` outputs; yield bytes, columns, and masks as fractions of q."""

    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> PreparedRows:
        """See `Evaluator.prepare`."""
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(
                f"{self._engine}: J of shape {J.shape} is not a matrix with entries", code="SVFL-CRYPTO-SHAPE"
            )
        matrix = J if isinstance(J, ChunkedMatrix) else ChunkedMatrix.local(np.asarray(J, np.float64))
        futures = [part.run(column_norms) for part in matrix.parts]
        row_bytes = sum(part.chunk.nbytes for part in matrix.parts if isinstance(part, LocalPart))
        norms = merge_norms(future.result() for future in futures)
        return PreparedRows(matrix, norms, max(0, max_bytes - row_bytes))

    def encode(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> None:
        """See `Evaluator.encode`; parts in other processes compute plaintexts when they multiply them."""
        product, received = self._read(prepared, sealed, onto)
        for part in prepared.J.parts:
            if isinstance(part, LocalPart):
                blocks = product.blocks_in(part, received.blocks)
                part.run(encode_rows, self._parameters, product.encoding, part.start, blocks, prepared.max_bytes)

    def transpose_product(self, prepared: PreparedRows, sealed: bytes, onto: RowProduct | None = None) -> RowProduct:
        """See `Evaluator.transpose_product`."""
        product, received = self._read(prepared, sealed, onto)
        product.add(received, prepared)
        return product

    def _blocks(self, product: RowProduct, sealed: bytes) -> SealedBlocks:
        """Return the sample blocks in a message, the next ones of the product; CryptoError if its length is wrong."""
        layout, parameters = product.scale.layout, self._parameters
        if not starts_piece(product.block_count):
            raise CryptoError(f"{self._engine}: a message of g begins within a piece", code="SVFL-CRYPTO-CIPHERTEXT")
        if layout.output_blocks * SYMMETRIC_KEY_BYTES > len(sealed):  # before a list of this length is created
            raise CryptoError(
                f"{self._engine}: a message of g is too short for its outputs", code="SVFL-CRYPTO-CIPHERTEXT"
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
        """See `Evaluator.blind`."""
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
        """Return the product that a message continues or begins, and the sample blocks of g in it."""
        parameters = self._parameters
        n, c, r, s, bound = read_header(
            parameters.engine, SEALED_HEADER, parameters.magic[1], sealed, self._fingerprint
        )
        layout = checked_layout(parameters.engine, n, c, r, s)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError(
                f"{self._engine}: a message of g has no positive finite bound", code="SVFL-CRYPTO-CIPHERTEXT"
            )
        if layout.n != len(prepared.J):
            raise CryptoError(
                f"{self._engine}: g has {layout.n} rows, but J has {len(prepared.J)}", code="SVFL-CRYPTO-SHAPE"
            )
        if onto is None:
            encoding = RowEncoding.of(layout, self._parameters, prepared.norms, prepared.rho(layout))
            unit, profile = g_scale(self._parameters, layout, bound), self._parameters.profile
            within = check_tolerance(encoding.rho, layout, profile, unit * bound / 2.0**profile.drop)
            scale = OpeningScale(layout, encoding.worth, 1 / unit, encoding.rho, within)
            onto = RowProduct(self._parameters, encoding, scale, bound)
        if (layout, bound) != (onto.scale.layout, onto.bound):
            raise CryptoError(
                f"{self._engine}: messages of one g have different headers", code="SVFL-CRYPTO-CIPHERTEXT"
            )
        if not onto.missing:
            raise CryptoError(f"{self._engine}: a peer sent more blocks than agreed", code="SVFL-CRYPTO-CIPHERTEXT")
        return onto, self._blocks(onto, sealed)

    def unblind(self, opened: bytes, mask: RowMask, word: int | None = None) -> Floats:
        """See `Evaluator.unblind`."""
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
                f"{self._engine}: received {count} values and {checks} checks instead of {sent[0]} and {sent[1]}",
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
                f"{self._engine}: this mask was already used",
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
                "stop, and ask the key holder for the reason: it returned other values, or g exceeds its bound",
                code="SVFL-CRYPTO-OPENING",
            )
        worth = mask.scale.g * 2.0**self._parameters.profile.drop * mask.scale.columns
        return result[: len(worth)] * worth[:, None]
