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
from pydantic import field_validator

from securevfl.base.arrays import Floats
from securevfl.base.config import read_nested
from securevfl.errors import CryptoError, ProtocolError, RangeError
from securevfl.families.fdml.local_noise import LocalNoise
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.party_context import PartyContext

OUTPUT_SPACE = Reals()  # |H| of one entry never exceeds its bound
SUM_OF_OTHERS = (
    "the sum of all workers' forward outputs; over a run the columns of all others, with two workers of the other"
)


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
        beyond the bound of `OUTPUT_SPACE`.
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
        check_payloads(stored)
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
    def declares(self) -> list[MessageDeclaration]:
        """Declare what its own messages reveal, in the roles of a sum and of who reads it: those that make keys."""

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    @property
    def pooling(self) -> str:
        """Who must pool what they hold to learn more than is declared, as a line for people."""
        return "the server and any worker that is told sums together open the forward outputs of every worker"


def check_payloads(stored: Mapping[str, bytes]) -> None:
    """ProtocolError unless all payloads are words of 8 bytes, equally many."""
    (first, one), *_ = stored.items()
    for name, payload in stored.items():
        if len(payload) != len(one) or len(payload) % 8 or not payload:
            raise ProtocolError(
                f"payloads of one batch of equal length were expected, {name} sent {len(payload)} bytes and {first} "
                f"{len(one)}; do both run the same job?"
            )
