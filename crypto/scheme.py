"""Interfaces of homomorphic encryption schemes ("engines"), with a class for each party.

A `LinearScheme` computes an encrypted vector-Jacobian product. The key holder has a matrix g (n, c), the residuals of n
rows for c model outputs. The evaluator has a matrix J (n, d), derivatives of its outputs by its parameters, and learns
J^T g:

    key holder                                  evaluator
    sealed  = encrypt(g, bound)          ->     product = transpose_product(prepare(J), sealed)
       or the pieces of encrypt_pieces          one after the other, as they arrive
    opened  = open(blinded)              <-     blinded, mask = blind(product)
                                         ->     J^T g = unblind(opened, mask)

The key holder decrypts only uniform noise, because of the mask. The evaluator sees only ciphertexts and, at the end,
J^T g. It lets the holder decrypt not only the products with the columns of J, but also products with secret
combinations of the columns ("checks"), which show whether the holder has changed decrypted values.

An `AdditiveScheme` computes an encrypted sum: several adders encrypt vectors under the holder's public key and add the
ciphertexts, and the holder decrypts only the sum.

All messages are bytes. A message begins with four letters that name its kind and the version of its format, followed by
the fingerprint of its key. Every engine checks these and the length first (`securevfl.crypto.message_headers`). A
secret key never leaves the object of its holder: the object has no accessor for it, does not show it in its `repr`, and
cannot be pickled. A prepared J depends on J and public parameters alone, so it can be used with other keys as well.
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
"""By default, an evaluator caches at most this number of bytes of a prepared J."""


class OpeningShape(NamedTuple):
    """The shape of the products J^T g that a key holder has agreed to decrypt.

    Attributes:
        rows: number of rows of g and J.
        outputs: number of columns of g.
        columns: number of columns of J.
        word: number of bits that are decrypted of each value, if J and g consist of integers and g has one column; None
            to decrypt complete values.
    """

    rows: int
    outputs: int
    columns: int
    word: int | None = None

    def check(self, rows: int, outputs: int, columns: int) -> None:
        """Compare the shape that a message states with the agreed one.

        Args:
            rows: number of rows that the message states.
            outputs: number of outputs that the message states.
            columns: number of columns that the message states.

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
    """The party that encrypts g under its key, and decrypts blinded products.

    Attributes:
        public: the public key for evaluators.
    """

    public: bytes

    @abstractmethod
    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """Encrypt g with new randomness.

        Args:
            g: the matrix (n, c).
            bound: public bound on the absolute values of its entries.

        Returns:
            The message for evaluators.

        Raises:
            RangeError: if a value is not finite or exceeds the bound.
        """

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """Encrypt g in pieces, so that one piece can be sent while the next one is computed.

        Args:
            g: the matrix (n, c).
            bound: public bound on the absolute values of its entries.

        Yields:
            Each piece, and whether it is the last one.
        """
        yield self.encrypt(g, bound=bound), True

    @abstractmethod
    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a blinded product. The decrypted numbers are uniform to the holder.

        The holder also decrypts the checks, whose number both parties know. If `shape.word` is not None, the answer has
        `LinearScheme.opened_bits` bits in all, whatever the evaluator has sent.

        Args:
            blinded: the bytes that `Evaluator.blind` returned.
            shape: the shape of the products that the holder has agreed to decrypt.

        Returns:
            The message for the evaluator.

        Raises:
            ShapeMismatch: if the product has another shape; nothing is decrypted then.
        """


class Evaluator(ABC):
    """The party that has J (n, d) and the holder's public key."""

    @abstractmethod
    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> Any:
        """Convert J to the form that products need. The result can be reused for every product with this J.

        Its attribute `nbytes` estimates its memory in this process, which `encode` and products may increase.

        Args:
            J: the matrix (n, d).
            max_bytes: approximate limit of its memory, in each process that stores rows of J.

        Returns:
            J in the form that products need.

        Raises:
            RangeError: if J has infinite or missing values.
            ConfigError: if J is a chunked matrix and the engine does not support that.
        """

    def encode(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> None:  # noqa: B027
        """Compute in advance, within the memory limit, the encoded rows of J that a piece of g is multiplied with.

        Args:
            prepared: J, as `prepare` returned it.
            sealed: the encrypted piece of g.
            onto: the product with the previous pieces, if there are any.
        """

    @abstractmethod
    def transpose_product(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> Any:
        """Return the encrypted product J^T g, which must be blinded before it is sent.

        Args:
            prepared: J, as `prepare` returned it.
            sealed: the encrypted g, or a piece of it.
            onto: the product with the previous pieces, to which the product with this piece is added.

        Returns:
            The encrypted product.
        """

    @abstractmethod
    def blind(self, product: Any) -> tuple[bytes, Any]:
        """Re-randomise a product and add a mask that is uniform over the plaintext space.

        Args:
            product: the encrypted product J^T g.

        Returns:
            The message for the holder, and the mask, which is single-use and remains with the evaluator.
        """

    @abstractmethod
    def unblind(self, opened: bytes, mask: Any, word: int | None = None) -> Floats:
        """Return J^T g from the holder's answer, by removing the mask.

        Args:
            opened: the bytes that `KeyHolder.open` returned.
            mask: the mask that `blind` returned for this product.
            word: the number of bits of each value, as in `OpeningShape`. If J contains 0 and 1, and g contains -1 and
                1, log2(2 * n) bits are enough for an error of less than 2.

        Returns:
            The product (d, c).

        Raises:
            OpeningMismatch: if the checks show that the answer is not the decrypted product.
        """


class LinearScheme(ABC):
    """An encryption scheme for products J^T g with encrypted g. It has public parameters only."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def strength(self) -> str:
        """Key size or ring dimension, security level and assumption, as one line of text."""

    @abstractmethod
    def distance_bits(self, values: int) -> float:
        """Return how little a run reveals in addition to J^T g, as a statistical distance.

        An ideal run reveals J^T g and nothing else. The real run has at most this distance from it, apart from breaking
        the assumption in `strength`.

        Args:
            values: number of values that the run decrypts.

        Returns:
            A lower bound on -log2 of the distance.
        """

    @property
    @abstractmethod
    def checks(self) -> int:
        """Largest number of check values that are decrypted for one column of g."""

    @abstractmethod
    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """Return the bits that the evaluator learns if the key holder sends `word` bits of each decrypted value.

        Args:
            rows: number of rows of g and J.
            columns: number of columns of J; g has one column.
            word: number of bits that are decrypted of each value.

        Returns:
            The number of bits, including those of the checks.
        """

    @abstractmethod
    def opened_size(self, shape: OpeningShape) -> int:
        """Return the largest possible size in bytes of a holder's answer of this shape, including checks."""

    @property
    @abstractmethod
    def rotates(self) -> bool:
        """Whether the holder should generate a new key every epoch, because answers reveal a little about the key."""

    @abstractmethod
    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """Create a holder with a new key, which works with any J and any number of products.

        The expected numbers affect only the speed.

        Args:
            executor: processes for expensive operations; None for the calling thread.
            columns: expected number of columns of J, the largest one if there are several; 0 if unknown.
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
    """The party that learns the sum.

    Attributes:
        public: the public key for adders.
    """

    public: bytes

    @abstractmethod
    def decrypt(self, total: bytes) -> Floats:
        """Decrypt the sum (m,) of all vectors (m,) that were added."""


class Adder(ABC):
    """A party that adds its vector without seeing the vectors of others."""

    @abstractmethod
    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        """Encrypt a vector.

        Args:
            v: the vector (m,).
            bound: public bound on the absolute values of its entries.
            terms: largest number of vectors in the sum.

        Returns:
            The encrypted vector.

        Raises:
            RangeError: if an entry exceeds the bound.
        """

    @abstractmethod
    def size(self, values: int, *, terms: int) -> int:
        """Return the size in bytes of an encrypted vector of `values` values, or of a sum of such vectors."""

    @abstractmethod
    def add(self, *parts: bytes) -> bytes:
        """Add encrypted vectors, and re-randomise the sum, so that nobody can recognize its parts.

        Args:
            *parts: encrypted vectors, or encrypted sums.

        Returns:
            The encrypted sum.

        Raises:
            CryptoError: if lengths, bounds or keys differ.
        """


class AdditiveScheme(ABC):
    """An encryption scheme for sums of several parties' vectors."""

    name: ClassVar[str]

    @abstractmethod
    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        """Create a holder with a new key. Expensive operations run in the executor, if there is one."""

    @abstractmethod
    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        """Create an adder for a holder's public key. Expensive operations run in the executor, if there is one."""
