"""Stored sums: a server keeps what each worker last sent of a batch, and hands out sums (FDML, Hu et al. 2019).

In FDML workers go at their own pace. A worker pushes its local predictions H_k (n x c) on a batch and pulls the sum of
the latest that all workers have pushed of that batch, its own among them:

1. worker k -> server   conceal(H_k, batch, version)     the server keeps it in place of what k sent of the batch before
2. server -> worker k   add(latest of each), versions    which reveal turns into the sum of all H_j, of these versions

The messages that carry both are the method's. What a payload shows is the stored sum's: it says so for the way up
(`pushed`) and the way down (`pulled`). Versions differ from worker to worker, so masks of pairs cannot cancel; what
hides a payload from the server is a key that all who are told sums (the readers) have and the server lacks. So the
assumption is the same for all that hide: *the server and a reader do not pool what they hold*. Together they open every
payload. A worker that is told no sums opens nothing, with whomever it pools.

A key lives as long as a session. Whoever comes back after a kill meets all others again, who then make a new key; so a
version that was pushed just before a state was written cannot serve twice under one key, and what a server keeps of an
earlier session opens to nobody: it starts empty. Within a session a version of a batch serves once, in rising order,
which the worker's side enforces.

What is asked of the server's answers: a version of every worker, the worker's own latest one, and none older than one
that was seen. So a server that hands out one worker's payload as a sum is found out, by names or by marks: numbers that
workers know and the server does not, added to every payload, which must come out of every total.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from securevfl.base.arrays import Floats
from securevfl.base.config import Registry, read_nested
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError, KeyMismatch, ProtocolError, RangeError
from securevfl.families.fdml.local_noise import LocalNoise
from securevfl.protocols.declared import Declared, MessageProtocol, Reals, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.sum_masks import KEY_MESSAGES, from_residues, own_keys, to_residues

SPACE = Reals()  # |H| of one entry never exceeds its bound
OTHERS = "the sum of all workers' forward outputs; over a run the columns of all others, with two workers of the other"


class StoredWorker(ABC):
    """One worker's side, good for one session. One thread at a time."""

    def __init__(self, context: PartyContext, *, whole: bool) -> None:
        """whole: whether a total must hold a payload of every worker, as where payloads hide who gave what."""
        self.me = context.me
        self.workers = context.contributors
        self._whole = self.hides_parts = whole
        self._concealed: dict[int, int] = {}
        self._seen: dict[tuple[int, str], int] = {}

    def conceal(self, H: Floats, batch: int, version: int) -> bytes:
        """Return the payload for H (n x c) on this batch.

        CryptoError unless the version is above all before it of the batch; RangeError if an entry of H is not finite or
        beyond the bound of `SPACE`.
        """
        latest = self._concealed.get(batch, -1)
        if version <= latest:
            raise CryptoError(
                f"{self.me}: a version above {latest} was expected for batch {batch}, got {version}; a version serves "
                "once, count on from the last"
            )
        values = np.asarray(H, np.float64)
        if values.ndim != 2 or not values.size:
            raise RangeError(f"{self.me}: forward outputs (n x c) were expected, got shape {values.shape}")
        self._concealed[batch] = version
        return self._conceal(values, batch, version)

    def reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        """Return, for a reader, the sum (n x c) behind a total of the versions given by worker.

        ProtocolError if the server's versions cannot be; CryptoError if the total is none of them under this key.
        """
        self._check(versions, batch)
        return self._reveal(total, versions, batch, shape)

    def _check(self, versions: Mapping[str, int], batch: int) -> None:
        missing = set(self.workers) - set(versions) if self._whole else {self.me} - set(versions)
        if missing or not set(versions) <= set(self.workers):
            raise ProtocolError(
                f"{self.me}: a sum of batch {batch} over {', '.join(self.workers)} was expected, the server names "
                f"{', '.join(sorted(versions)) or 'nobody'}; it answers once all have pushed"
            )
        if versions[self.me] != self._concealed.get(batch):
            raise ProtocolError(
                f"{self.me}: the server was expected to add its latest payload of batch {batch}, it added version "
                f"{versions[self.me]}; do both run the same session?"
            )
        for name, version in versions.items():
            if version < self._seen.get((batch, name), 0):
                raise ProtocolError(
                    f"{self.me}: a version of {name} on batch {batch} as new as before was expected, the server went "
                    f"back to {version}; it must keep the latest"
                )
            self._seen[batch, name] = version

    @abstractmethod
    def size(self, H: Floats) -> int:
        """Return the bytes of a payload for H (n x c)."""

    @abstractmethod
    def _conceal(self, H: Floats, batch: int, version: int) -> bytes: ...

    @abstractmethod
    def _reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats: ...


class StoredServer(ABC):
    """The server's side, good for one session. It holds no secret."""

    def __init__(self, context: PartyContext, *, whole: bool) -> None:
        """whole: as at the workers."""
        self._workers = context.contributors
        self._whole = whole

    def add(self, stored: Mapping[str, bytes]) -> bytes:
        """Add the payloads of one batch, by worker, and return the total.

        ProtocolError if a worker's is missing that must be there, or one does not fit the others.
        """
        missing = set(self._workers) - set(stored) if self._whole else set()
        if missing or not stored or not set(stored) <= set(self._workers):
            raise ProtocolError(
                f"the server was expected to add payloads of {', '.join(self._workers)}, it has those of "
                f"{', '.join(sorted(stored)) or 'nobody'}; let pulls wait until all have pushed"
            )
        fit(stored)
        return self._add(stored)

    @abstractmethod
    def _add(self, stored: Mapping[str, bytes]) -> bytes: ...


class StoredSum(MessageProtocol):
    """How local predictions lie at a server. All workers, and the server, make their sides at the same point."""

    pushed: ClassVar[Reveal]  # what a payload tells the server
    pulled: ClassVar[Reveal]  # what a total tells a worker
    hides_parts: ClassVar[bool] = True  # from the server; a total then takes a payload of every worker
    noise: LocalNoise | None = None
    """Blurs local predictions before they are concealed, with an account over the run; a table of its keys."""

    @field_validator("noise", mode="before")
    @classmethod
    def _read_noise(cls, value: Any) -> Any:
        return read_nested(LocalNoise, value)

    @abstractmethod
    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        """Create a contributor's side; the context's collector is the server. readers: the workers that are told
        sums."""

    @abstractmethod
    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        """Create the side of the context's collector, which is the server."""

    @abstractmethod
    def declares(self) -> list[Declared]:
        """Declare what its own messages reveal, in the roles of a sum and of who reads it: those that make keys."""

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    @property
    def pooling(self) -> str:
        """Who must pool what they hold to learn more than is declared, as a line for people."""
        return "the server and any worker that is told sums together open the forward outputs of every worker"


class StoredOpen(StoredSum):
    """Payloads in the clear: the server sees every worker's local predictions."""

    name: ClassVar[str] = "open"
    pushed: ClassVar[Reveal] = Reveal("plain", "the sender's forward outputs H_k, which over a run span its columns")
    pulled: ClassVar[Reveal] = Reveal("plain", OTHERS)
    hides_parts: ClassVar[bool] = False

    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        return OpenWorker(context, whole=False)

    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        return OpenServer(context, whole=False)

    def declares(self) -> list[Declared]:
        return []

    @property
    def strength(self) -> str:
        return "none: local predictions lie at the server in the clear"

    @property
    def pooling(self) -> str:
        return "the server learns the forward outputs of every worker by itself"


class OpenWorker(StoredWorker):
    """A contributor that sends its forward outputs H as they are."""

    def size(self, H: Floats) -> int:
        return 8 * H.size

    def _conceal(self, H: Floats, batch: int, version: int) -> bytes:
        if not np.all(np.abs(H) <= SPACE.bound):  # false for NaN too
            raise RangeError(f"{self.me}: a forward output is not finite or beyond {SPACE.bound:g}; lower the step")
        return np.ascontiguousarray(H, "<f8").tobytes()

    def _reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        if len(total) != 8 * shape[0] * shape[1]:
            raise ProtocolError(
                f"{self.me}: a sum of shape {shape} ({8 * shape[0] * shape[1]} bytes) was expected, {len(total)} bytes "
                "came; do both run the same job?"
            )
        values = np.frombuffer(total, "<f8").reshape(shape)
        if not np.isfinite(values).all():
            raise ProtocolError(f"{self.me}: a sum with NaN or infinite values came; lower the step size")
        return values.astype(np.float64)


class OpenServer(StoredServer):
    """A server that adds the numbers it receives as they are."""

    def _add(self, stored: Mapping[str, bytes]) -> bytes:
        total: Floats = np.sum([np.frombuffer(payload, "<f8") for payload in stored.values()], axis=0)
        return total.astype("<f8").tobytes()


def fit(stored: Mapping[str, bytes]) -> None:
    """ProtocolError unless all payloads are words of 8 bytes, equally many."""
    (first, one), *_ = stored.items()
    for name, payload in stored.items():
        if len(payload) != len(one) or len(payload) % 8 or not payload:
            raise ProtocolError(
                f"payloads of one batch of equal length were expected, {name} sent {len(payload)} bytes and {first} "
                f"{len(one)}; do both run the same job?"
            )


# The stored sum under masks that those who are told sums can take off.
#
# 0. worker <-> reader    X25519 public keys, and every worker's fresh key K_k, sealed for each reader (`sum_keys`)
# 1. worker k -> server   y_k = (H_k, 0, 0) + PRG(K_k; batch, version)      in Z_2^64, H_k in fixed point
# 2. server -> reader     sum of the latest y_k, and their versions
#    reader               subtracts the masks of these versions: (sum of all H_k, 0, 0)
#
# To the server every y_k is uniform, alone and with all others of a session, as a mask serves one (worker, batch,
# version) and there are new keys for every session. A reader learns the sum and no more: it could make every mask,
# but is sent totals alone. The two words of zero are the marks: another key, payload or version than was named, or a
# payload too few, leaves them other than zero but for a chance of 2^-128.

MARKS = 2
_DOMAIN = "stored sum under masks"


class StoredMasks(StoredSum):
    """Payloads under masks that readers can take off and the server cannot; sums are exact to the fixed point."""

    name: ClassVar[str] = "masks"
    pushed: ClassVar[Reveal] = Reveal("uniform")
    pulled: ClassVar[Reveal] = Reveal("output", OTHERS)

    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        return MaskedWorker(context, own_keys(context, readers, _DOMAIN))

    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        return MaskedServer(context, whole=True)

    def declares(self) -> list[Declared]:
        return KEY_MESSAGES

    @property
    def strength(self) -> str:
        return "X25519, and ChaCha20 as a pseudorandom generator; masks uniform over the ring"


class Masks(Secret):
    """The masks of one session by worker, batch and version, of the workers whose keys these are."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def of(self, worker: str, batch: int, version: int, words: int) -> NDArray[np.uint64]:
        """So many words, uniform over Z_2^64."""
        key = derive_key(self._keys[worker], batch, version)
        return Prg(key, "mask of a stored payload").array(words, np.uint64)


class MaskedWorker(StoredWorker):
    """Puts its own masks on, and as a reader takes everybody's off the total."""

    def __init__(self, context: PartyContext, keys: Mapping[str, bytes]) -> None:
        super().__init__(context, whole=True)
        self._masks = Masks(keys)

    def size(self, H: Floats) -> int:
        return 8 * (H.size + MARKS)

    def _conceal(self, H: Floats, batch: int, version: int) -> bytes:
        words = np.append(to_residues(H, SPACE, len(self.workers)).ravel(), np.zeros(MARKS, np.uint64))
        words += self._masks.of(self.me, batch, version, len(words))
        return words.astype("<u8").tobytes()

    def _reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        count = shape[0] * shape[1] + MARKS
        if len(total) != 8 * count:
            raise ProtocolError(
                f"{self.me}: a masked sum of shape {shape} ({8 * count} bytes) was expected, {len(total)} bytes came; "
                "do both run the same job?"
            )
        words = np.frombuffer(total, "<u8").astype(np.uint64)
        for name, version in versions.items():
            words -= self._masks.of(name, batch, version, count)
        if words[-MARKS:].any():
            raise KeyMismatch(
                f"{self.me}: the total of batch {batch} is not that of the payloads the server names, or is of another "
                "session's key; nothing of it is used, start the session again"
            )
        return np.asarray(from_residues(words[:-MARKS], SPACE, len(self.workers)).reshape(shape))


class MaskedServer(StoredServer):
    """A server that adds masked payloads as words modulo 2^64."""

    def _add(self, stored: Mapping[str, bytes]) -> bytes:
        words = [np.frombuffer(payload, "<u8") for payload in stored.values()]
        return np.sum(words, axis=0, dtype=np.uint64).astype("<u8").tobytes()


STORED: Registry[StoredSum] = Registry("stored sum", StoredOpen, StoredMasks)
