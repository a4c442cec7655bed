"""The stored sum under masks: *readers* (workers that receive sums) can remove the masks, and the server cannot.

A worker pushes *payloads*, its masked outputs H_k (n, c) on a batch, to the server. The *version* of a payload is the
iteration in which it was pushed.
0. worker <-> reader    X25519 public keys, and every worker's fresh key K_k, encrypted for each reader (`mask_keys`)
1. worker k -> server   payload y_k = (H_k, 0, 0) + PRG(K_k; batch, version)      in Z_2^64, H_k in fixed point
2. server -> reader     sum of the latest y_k, and their versions
   reader               subtracts the masks of these versions: (sum of all H_k, 0, 0)

To the server all payloads of a session look uniform, because each mask is used once. A reader learns the sum only. The
two zeros are *check words*: after a wrong key, payload or version they are not zero, except with probability 2^-128.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.errors import KeyMismatch, ProtocolError
from securevfl.families.fdml.stored_sum import OUTPUT_SPACE, SUM_OF_OTHERS, StoredServer, StoredSum, StoredWorker
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.mask_keys import KEY_MESSAGES, exchange_mask_keys
from securevfl.protocols.sums.residue_sums import from_residues, to_residues

CHECK_WORDS = 2  # number of zero words at the end of every payload
_DOMAIN = "stored sum under masks"


class StoredMasks(StoredSum):
    """The job option for payloads under masks: only readers can remove the masks from sums, and sums are exact."""

    name: ClassVar[str] = "masks"
    pushed: ClassVar[Reveal] = Reveal("uniform")
    pulled: ClassVar[Reveal] = Reveal("output", SUM_OF_OTHERS)

    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        """Exchange keys with the readers, and create the object with which a worker masks and unmasks."""
        return MaskedWorker(context, exchange_mask_keys(context, readers, _DOMAIN))

    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        """Create the object with which the server adds up payloads."""
        return MaskedServer(context, needs_all=True)

    def declares(self) -> list[MessageDeclaration]:
        """Declare the messages of the key exchange."""
        return KEY_MESSAGES

    @property
    def strength(self) -> str:
        """One line that states the security assumption."""
        return "X25519, and ChaCha20 as a pseudorandom generator; masks uniform over the ring"


class PayloadMasks(Secret):
    """The masks of one session, for the workers whose keys are known.

    Args:
        keys: the key of each worker.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def of(self, worker: str, batch: int, version: int, words: int) -> NDArray[np.uint64]:
        """Return the mask of a payload: `words` numbers of 64 bits, which look uniformly random to the server."""
        key = derive_key(self._keys[worker], batch, version)
        return Prg(key, "mask of a stored payload").array(words, np.uint64)


class MaskedWorker(StoredWorker):
    """A worker that masks its payloads and, as a reader, removes the masks of all workers from a total.

    Args:
        context: this party's channel, and the roles of all parties in the sums that the server receives.
        keys: this worker's key, and those of all workers at a reader.
    """

    def __init__(self, context: PartyContext, keys: Mapping[str, bytes]) -> None:
        super().__init__(context, needs_all=True)
        self._masks = PayloadMasks(keys)

    def size(self, H: Floats) -> int:
        """Return the number of bytes of a payload for H (n, c)."""
        return 8 * (H.size + CHECK_WORDS)

    def encode_payload(self, H: Floats, batch: int, version: int) -> bytes:
        """Add this worker's masks to the values and to the check words, modulo 2^64."""
        words = np.append(to_residues(H, OUTPUT_SPACE, len(self.workers)).ravel(), np.zeros(CHECK_WORDS, np.uint64))
        words += self._masks.of(self.me, batch, version, len(words))
        return words.astype("<u8").tobytes()

    def decode_total(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        """Remove all workers' masks from a total, and check that the check words are zero."""
        count = shape[0] * shape[1] + CHECK_WORDS
        if len(total) != 8 * count:
            raise ProtocolError(
                f"{self.me}: the server sent a masked sum of {len(total)} bytes; shape {shape} needs {8 * count}",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-SIZE",
            )
        words = np.frombuffer(total, "<u8").astype(np.uint64)
        for name, version in versions.items():
            words -= self._masks.of(name, batch, version, count)
        if words[-CHECK_WORDS:].any():
            raise KeyMismatch(
                f"{self.me}: the server's total of batch {batch} is not the sum of the payloads that it names, or was "
                "computed with keys of another session",
                "start the session again; nothing of the total was used",
                code="SVFL-CRYPTO-KEY",
                batch=batch,
            )
        return np.asarray(from_residues(words[:-CHECK_WORDS], OUTPUT_SPACE, len(self.workers)).reshape(shape))


class MaskedServer(StoredServer):
    """A server that adds masked payloads as words modulo 2^64."""

    def add_payloads(self, stored: Mapping[str, bytes]) -> bytes:
        """Add masked payloads as words modulo 2^64."""
        words = [np.frombuffer(payload, "<u8") for payload in stored.values()]
        return np.sum(words, axis=0, dtype=np.uint64).astype("<u8").tobytes()
