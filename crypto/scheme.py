"""The two things a homomorphic engine is asked for, split by who does them.

*Encrypted vector-Jacobian product* (one round trip, `LinearScheme`):

    key holder                                  evaluator (owns J)
    sealed  = encrypt(g, bound)          ->     product = transpose_product(prepare(J), sealed)
       or the pieces of encrypt_pieces          one after the other, as they come
    opened  = open(blinded)              <-     blinded, mask = blind(product)
                                         ->     J^T g = unblind(opened, mask)

The key holder opens only uniform noise; the evaluator holds only ciphertexts and, at the end, J^T g. Beside the columns
of J it has secret combinations of them opened, by which it finds values that the holder has changed.

*Encrypted sum* (`AdditiveScheme`): adders encrypt and add under the holder's public key, the holder decrypts the sum.

What crosses a line is always bytes. A message begins with a magic of four letters, the last of which counts versions of
its format, and with the fingerprint of the key it is under; every engine checks these, and the length, before it reads
on (`header`, `sized`). A secret key never leaves its holder object: it has no accessor, no repr and does not pickle.
`Prepared` depends on J and the parameters alone, so it outlives a change of keys.
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

MAX_PLAINTEXT_BYTES = 1 << 30  # bytes of plaintexts that are kept


class OpeningShape(NamedTuple):
    """What a key holder has agreed to open: J^T g for g (rows x outputs) and J (rows x columns).

    word: the bits of each value that are opened, if J and g are whole numbers and only so many are agreed; g then has
    one output. None opens whole values.
    """

    rows: int
    outputs: int
    columns: int
    word: int | None = None

    def check(self, rows: int, outputs: int, columns: int) -> None:
        """ShapeMismatch unless a message names this shape, and it is one."""
        if (rows, outputs, columns) != self[:3] or min(self[:3]) < 1:
            raise ShapeMismatch(
                f"J^T g of {self.rows} rows, {self.outputs} outputs and {self.columns} columns was agreed, "
                f"{rows} rows, {outputs} outputs and {columns} columns are asked for; nothing is opened"
            )


class KeyHolder(Secret, ABC):
    """The party whose key seals g: it encrypts, and opens what comes back blinded."""

    public: bytes  # what the evaluators need; safe to publish

    @abstractmethod
    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """Encrypts g (n x c), freshly randomised. RangeError if any |g| > bound or is not finite."""

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """`encrypt` in consecutive pieces, each with whether it is the last, so that one is on its way while the next
        is made."""
        yield self.encrypt(g, bound=bound), True

    @abstractmethod
    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypts what `Evaluator.blind` made. The plaintexts are uniform to the holder.

        Beside the columns agreed it opens the checks that the evaluator adds to them, as many as both know. Where words
        are agreed it opens no more than these, `LinearScheme.opened_bits` in all, whatever the evaluator sent.
        ShapeMismatch, before anything is decrypted, if it is not a product of the shape that was agreed.
        """


class Evaluator(ABC):
    """The party that owns J (n x d) and the holder's public key."""

    @abstractmethod
    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> Any:
        """J (n x d) in the form the product wants; made once a batch and kept. RangeError if J is not finite.

        Its `nbytes` says about what memory of this process it takes; `encode` and products may add to it, up to about
        `max_bytes` bytes in each process that holds rows of J. ConfigError if the engine takes no tall matrix.
        """

    def encode(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> None:  # noqa: B027
        """Prepare, as far as there is room, what the product with this piece of g will want of J."""

    @abstractmethod
    def transpose_product(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> Any:
        """[[J^T g]], under the holder's key, or what this piece of g adds to `onto`, the product with those before.

        Not yet fit to leave: `blind` it first.
        """

    @abstractmethod
    def blind(self, product: Any) -> tuple[bytes, Any]:
        """Re-randomises the product and adds a mask uniform over the outgoing plaintext space.

        Returns the bytes for the holder and the mask, which stays here and serves once.
        """

    @abstractmethod
    def unblind(self, opened: bytes, mask: Any, word: int | None = None) -> Floats:
        """J^T g (d x c) from the holder's answer and the mask; within two where words of log2(2n) bits were agreed.

        OpeningMismatch if the answer is not what the product decrypts to, by secret combinations of columns beside it.
        """


class LinearScheme(ABC):
    """An engine for J^T [[g]]. Stateless apart from its public parameters."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def strength(self) -> str:
        """One line for people: key size or ring, security level, assumption."""

    @abstractmethod
    def distance_bits(self, values: int) -> float:
        """-log2 of how far a run that opens so many values is, at most, from one that opens J^T g and no more.

        In statistical distance, beside what `strength` assumes.
        """

    @property
    @abstractmethod
    def checks(self) -> int:
        """How many values are opened beside each column of J^T g, at most, to check it by."""

    @abstractmethod
    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """Return the bits that are opened of J^T g (rows x columns) in words of so many bits, checks included."""

    @abstractmethod
    def opened_size(self, shape: OpeningShape) -> int:
        """Return the bytes of what a holder opens of this shape, at most: the columns and the checks beside them."""

    @property
    @abstractmethod
    def rotates(self) -> bool:
        """Whether the holder should make new keys every epoch."""

    @abstractmethod
    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """Make a holder with a fresh key. Heavy calls go to `executor` (processes), inline when None.

        columns: the width of J to expect, the widest of several; 0 if it is not known. openings: how many products to
        expect with each g. Any width and number works.
        """

    @abstractmethod
    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        """Make the other side, from the holder's public bytes. CryptoError if they are malformed or too weak."""


class SumHolder(Secret, ABC):
    """The party that may learn the sum."""

    public: bytes

    @abstractmethod
    def decrypt(self, total: bytes) -> Floats:
        """Decrypt the sum (m,) of the vectors that were added into `total`."""


class Adder(ABC):
    """A party that adds its vector without seeing anyone else's."""

    @abstractmethod
    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        """Encrypts v (m,). At most `terms` such vectors may be summed. RangeError if any |v| > bound."""

    @abstractmethod
    def size(self, values: int, *, terms: int) -> int:
        """Return the bytes of an encrypted vector of so many values, and of a sum of such."""

    @abstractmethod
    def add(self, *parts: bytes) -> bytes:
        """Ciphertext of the sum, re-randomised. CryptoError if lengths, bounds or keys differ."""


class AdditiveScheme(ABC):
    """An engine for sums under encryption."""

    name: ClassVar[str]

    @abstractmethod
    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        """Make a holder with a fresh key."""

    @abstractmethod
    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        """Make the other side, from the holder's public bytes."""
