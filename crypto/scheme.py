"""Interfaces of homomorphic encryption engines, divided by the party that calls them.

*Encrypted vector-Jacobian product* (one round trip, `LinearScheme`):

    key holder                                  evaluator (has J)
    sealed  = encrypt(g, bound)          ->     product = transpose_product(prepare(J), sealed)
       or the pieces of encrypt_pieces          one after the other, as they arrive
    opened  = open(blinded)              <-     blinded, mask = blind(product)
                                         ->     J^T g = unblind(opened, mask)

The key holder decrypts only uniform noise. The evaluator sees only ciphertexts and, at the end, J^T g. In addition to
the columns of J, the evaluator lets the holder decrypt secret combinations of the columns. They show whether the holder
has changed decrypted values.

*Encrypted sum* (`AdditiveScheme`): adders encrypt and add under the holder's public key. The holder decrypts the sum.

All messages are bytes. A message begins with four letters that name its kind and the version of its format, followed by
the fingerprint of its key. Every engine checks these and the length first (`securevfl.crypto.message_headers`). A
secret key never leaves the object of its holder, which has no accessor for it, no informative `repr` and cannot be
pickled. A prepared J depends on J and public parameters alone, so it remains valid when keys change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, ClassVar, NamedTuple

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.crypto.secret import Secret
from securevfl.errors import ShapeMismatch

MAX_PLAINTEXT_BYTES = 1 << 30
"""Bytes of plaintexts that an evaluator caches by default."""


class OpeningShape(NamedTuple):
    """The shape that a key holder has agreed to decrypt: J^T g for g (rows, outputs) and J (rows, columns).

    Attributes:
        rows: number of rows of a batch.
        outputs: number of columns of g.
        columns: number of columns of J.
        word: bits of each value that are decrypted, if J and g consist of integers and g has one output; None to
            decrypt values in full.
    """

    rows: int
    outputs: int
    columns: int
    word: int | None = None

    def check(self, rows: int, outputs: int, columns: int) -> None:
        """Compare the shape that a message names with the agreed one.

        Args:
            rows: number of rows in the message.
            outputs: number of outputs in the message.
            columns: number of columns in the message.

        Raises:
            ShapeMismatch: if they differ, or a number is less than one.
        """
        if (rows, outputs, columns) != self[:3] or min(self[:3]) < 1:
            raise ShapeMismatch(
                f"the peer asks to decrypt J^T g for {rows} rows, {outputs} outputs and {columns} columns, but "
                f"{self.rows} rows, {self.outputs} outputs and {self.columns} columns were agreed",
                "use the same batch on both sides; nothing is decrypted",
                code="SVFL-CRYPTO-SHAPE",
                agreed=self[:3],
            )


class KeyHolder(Secret, ABC):
    """The party whose key encrypts g and which decrypts blinded products.

    Attributes:
        public: the public key for evaluators.
    """

    public: bytes

    @abstractmethod
    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """Encrypt g (n, c) with fresh randomness.

        Args:
            g: the values.
            bound: largest absolute value.

        Returns:
            The message for evaluators.

        Raises:
            RangeError: if a value is not finite or exceeds the bound.
        """

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """Encrypt g (n, c) in consecutive pieces, so that one piece is sent while the next one is computed.

        Args:
            g: the values.
            bound: largest absolute value.

        Yields:
            Each piece, and whether it is the last one.
        """
        yield self.encrypt(g, bound=bound), True

    @abstractmethod
    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a blinded product. The plaintexts are uniform to the holder.

        The holder also decrypts the checks that the evaluator adds to the columns; both know their number. If words are
        agreed, it returns `LinearScheme.opened_bits` bits in all, whatever the evaluator has sent.

        Args:
            blinded: the bytes that `Evaluator.blind` returned.
            shape: the agreed shape.

        Returns:
            The message for the evaluator.

        Raises:
            ShapeMismatch: if the product has another shape; nothing is decrypted then.
        """


class Evaluator(ABC):
    """The party that has J (n, d) and the holder's public key."""

    @abstractmethod
    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> Any:
        """Convert J (n, d) to the form that products need. It is computed once for a batch and reused.

        The attribute `nbytes` of the result estimates its memory in this process. `encode` and products may add to it.

        Args:
            J: the matrix.
            max_bytes: approximate limit of the memory in each process that holds rows of J.

        Returns:
            The prepared matrix.

        Raises:
            RangeError: if J is not finite.
            ConfigError: if the engine does not support chunked matrices.
        """

    def encode(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> None:  # noqa: B027
        """Compute plaintexts of J for the product with a piece of g in advance, within the memory limit.

        Args:
            prepared: the prepared J.
            sealed: the piece of g.
            onto: the product with the previous pieces.
        """

    @abstractmethod
    def transpose_product(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> Any:
        """Return the encrypted product J^T g, which must be blinded before it is sent.

        Args:
            prepared: the prepared J.
            sealed: g, or a piece of it.
            onto: the product with the previous pieces, to which this piece is added.

        Returns:
            The product.
        """

    @abstractmethod
    def blind(self, product: Any) -> tuple[bytes, Any]:
        """Re-randomise a product and add a mask that is uniform over the plaintext space.

        Args:
            product: the encrypted product.

        Returns:
            The message for the holder, and the mask, which is single-use and remains with the evaluator.
        """

    @abstractmethod
    def unblind(self, opened: bytes, mask: Any, word: int | None = None) -> Floats:
        """Return J^T g (d, c) from the holder's answer and the mask.

        Args:
            opened: the bytes that `KeyHolder.open` returned.
            mask: the mask of this product.
            word: bits of each value if words are agreed; with log2(2 n) bits, the error is less than two.

        Returns:
            The product.

        Raises:
            OpeningMismatch: if the checks show that the answer is not the decrypted product.
        """


class LinearScheme(ABC):
    """An engine for J^T [[g]], without state apart from its public parameters."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def strength(self) -> str:
        """One line for people: key size or ring, security level, assumption."""

    @abstractmethod
    def distance_bits(self, values: int) -> float:
        """Bound the statistical distance of a run that decrypts `values` values from the ideal one.

        The ideal run reveals J^T g and nothing else. The distance is in addition to the assumption of `strength`.

        Args:
            values: number of decrypted values.

        Returns:
            -log2 of the distance, at least.
        """

    @property
    @abstractmethod
    def checks(self) -> int:
        """Largest number of check values that are decrypted for the columns of J^T g."""

    @abstractmethod
    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """Return the bits of J^T g (columns, 1) that are decrypted in words of `word` bits, including checks."""

    @abstractmethod
    def opened_size(self, shape: OpeningShape) -> int:
        """Return the largest size in bytes of a holder's answer of this shape, including checks."""

    @property
    @abstractmethod
    def rotates(self) -> bool:
        """Whether the holder should generate new keys every epoch."""

    @abstractmethod
    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """Create a holder with a fresh key. Any width of J and any number of products work with it.

        Args:
            executor: processes for expensive operations; None for the calling thread.
            columns: expected width of J, the largest one of several; 0 if unknown.
            openings: expected number of products with each g.

        Returns:
            The holder.
        """

    @abstractmethod
    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        """Create the evaluator for a holder's public key.

        Args:
            public: the public key.
            executor: processes for expensive operations; None for the calling thread.

        Returns:
            The evaluator.

        Raises:
            CryptoError: if the key is malformed or too weak.
        """


class SumHolder(Secret, ABC):
    """The party that may learn the sum.

    Attributes:
        public: the public key for adders.
    """

    public: bytes

    @abstractmethod
    def decrypt(self, total: bytes) -> Floats:
        """Decrypt the sum (m,) of the vectors that were added."""


class Adder(ABC):
    """A party that adds its vector without seeing the vectors of others."""

    @abstractmethod
    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        """Encrypt a vector.

        Args:
            v: the vector (m,).
            bound: largest absolute value.
            terms: how many such vectors may be added.

        Returns:
            The encrypted vector.

        Raises:
            RangeError: if a value exceeds the bound.
        """

    @abstractmethod
    def size(self, values: int, *, terms: int) -> int:
        """Return the bytes of an encrypted vector of `values` values, which is also the size of a sum."""

    @abstractmethod
    def add(self, *parts: bytes) -> bytes:
        """Add encrypted vectors, and re-randomise the sum.

        Args:
            *parts: encrypted vectors or sums of such.

        Returns:
            The encrypted sum.

        Raises:
            CryptoError: if lengths, bounds or keys differ.
        """


class AdditiveScheme(ABC):
    """An engine for sums under encryption."""

    name: ClassVar[str]

    @abstractmethod
    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        """Create a holder with a fresh key; expensive operations run in the executor."""

    @abstractmethod
    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        """Create an adder for a holder's public key; expensive operations run in the executor."""
