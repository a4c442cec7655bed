"""Stored sums: a server stores the workers' latest outputs on each batch, and sends sums (FDML, Hu et al. 2019).

A worker pushes its local predictions H_k (n, c) on a batch to the server, as a *payload*, and pulls the *total*, the
sum of all workers' latest payloads of that batch. The *version* of a payload is the iteration of its push.
1. worker k -> server   conceal(H_k, batch, version)     replaces the earlier payload of k and this batch
2. server -> worker k   add(latest payloads), versions   `reveal` computes the sum of all H_j from the total

A stored sum states what a payload reveals to the server (`pushed`) and a total to a worker (`pulled`). If it hides
payloads, *readers* (the workers that receive sums) have a key that the server lacks, so the server and a reader must
not collude. Keys are new in each session, and each version of a batch is single-use. A worker checks the versions that
the server reports: one for every worker, its own latest one, and none older than before.
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

OUTPUT_SPACE = Reals()  # the number format of H, which bounds the absolute values of its entries
SUM_OF_OTHERS = (
    "the sum of all workers' forward outputs; over a run the columns of all others, with two workers of the other"
)
_SAME_JOB = "check that both parties run the same job"


class StoredWorker(ABC):
    """The object with which one worker conceals outputs and reveals sums in one session; not thread-safe.

    Args:
        context: this party's channel, and the roles of all parties in the sums that the server receives.
        needs_all: whether a total must contain a payload of every worker, as it must if payloads are hidden from the
            server.
    """

    def __init__(self, context: PartyContext, *, needs_all: bool) -> None:
        self.me = context.me
        self.workers = context.contributors
        self._needs_all = self.hides_parts = needs_all
        self._concealed: dict[int, int] = {}  # the latest version that this worker has concealed, for each batch
        self._seen: dict[tuple[int, str], int] = {}  # the latest version in any total so far, for each batch and worker

    def conceal(self, H: Floats, batch: int, version: int) -> bytes:
        """Return the payload of this worker's outputs on a batch.

        Args:
            H: this worker's outputs on the batch (n, c).
            batch: number of the batch.
            version: version of the outputs.

        Returns:
            The payload.

        Raises:
            CryptoError: if the version is not above all earlier versions of the batch.
            RangeError: if H is not a matrix. Entries that are not finite or out of range raise it too.
        """
        latest = self._concealed.get(batch, -1)
        if version <= latest:
            raise CryptoError(
                f"{self.me}: version {version} of batch {batch} is not above the latest version {latest}",
                "use every version once, in rising order",
                code="SVFL-CRYPTO-REUSE",
                batch=batch,
            )
        values = np.asarray(H, np.float64)
        if values.ndim != 2 or not values.size:
            raise RangeError(
                f"{self.me}: forward outputs of shape {values.shape} are not of the form (n, c)",
                "pass one row for each row of the batch",
                code="SVFL-CRYPTO-SHAPE",
            )
        self._concealed[batch] = version
        return self.encode_payload(values, batch, version)

    def reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        """Return the sum (n, c) that a total contains; only a reader can.

        Impossible versions raise ProtocolError. A total that is not the sum of these payloads raises CryptoError.

        Args:
            total: the sum of payloads that the server sent.
            versions: the version of each worker's payload in the total.
            batch: number of the batch.
            shape: n rows of the batch and c outputs per row.

        Returns:
            The sum (n, c).
        """
        self._check_versions(versions, batch)
        return self.decode_total(total, versions, batch, shape)

    def _check_versions(self, versions: Mapping[str, int], batch: int) -> None:
        """Check that a total contains all required workers, this worker's latest payload, and no outdated one."""
        missing = set(self.workers) - set(versions) if self._needs_all else {self.me} - set(versions)
        if missing or not set(versions) <= set(self.workers):
            raise ProtocolError(
                f"{self.me}: the server's sum of batch {batch} is over {', '.join(sorted(versions)) or 'nobody'} "
                f"instead of {', '.join(self.workers)}",
                "let the server answer when all workers have pushed",
                code="SVFL-PROTOCOL-CHEATING",
                batch=batch,
            )
        if versions[self.me] != self._concealed.get(batch):
            raise ProtocolError(
                f"{self.me}: the server's sum of batch {batch} contains version {versions[self.me]} of this worker's "
                "outputs, which is not its latest one",
                "check that both parties run the same session",
                code="SVFL-PROTOCOL-CHEATING",
                batch=batch,
            )
        for name, version in versions.items():
            if version < self._seen.get((batch, name), 0):
                raise ProtocolError(
                    f"{self.me}: the server's sum of batch {batch} contains version {version} of {name}, which is "
                    "older than one that it has already used",
                    "let the server store the latest payloads",
                    code="SVFL-PROTOCOL-CHEATING",
                    batch=batch,
                )
            self._seen[batch, name] = version

    @abstractmethod
    def size(self, H: Floats) -> int:
        """Return the number of bytes of a payload for H (n, c)."""

    @abstractmethod
    def encode_payload(self, H: Floats, batch: int, version: int) -> bytes:
        """Return the payload of H (n, c), after `conceal` has checked the version and added noise."""

    @abstractmethod
    def decode_total(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        """Return the sum (n, c) that a total contains, after `reveal` has checked the versions."""


class StoredServer(ABC):
    """The object with which the server adds payloads in one session. It has no secret.

    Args:
        context: this party's channel, and the roles of all parties in the sums that the server receives.
        needs_all: whether a total must contain a payload of every worker.
    """

    def __init__(self, context: PartyContext, *, needs_all: bool) -> None:
        self._workers = context.contributors
        self._needs_all = needs_all

    def add(self, stored: Mapping[str, bytes]) -> bytes:
        """Add the payloads of one batch.

        Args:
            stored: each worker's payload, by its name.

        Returns:
            The sum of the payloads, as the server sends it to workers.

        Raises:
            ProtocolError: if a required payload is missing. Payloads of different lengths raise it too.
        """
        missing = set(self._workers) - set(stored) if self._needs_all else set()
        if missing or not stored or not set(stored) <= set(self._workers):
            raise ProtocolError(
                f"the server has payloads of {', '.join(sorted(stored)) or 'nobody'} and needs those of "
                f"{', '.join(self._workers)}",
                "let pulls wait until all workers have pushed",
                code="SVFL-STATE",
            )
        check_payloads(stored)
        return self.add_payloads(stored)

    @abstractmethod
    def add_payloads(self, stored: Mapping[str, bytes]) -> bytes:
        """Return the total of payloads by worker, after `add` has checked them."""


class StoredSum(MessageProtocol):
    """How a server stores local predictions: in the clear, or concealed."""

    pushed: ClassVar[Reveal]
    """What a payload reveals to the server."""
    pulled: ClassVar[Reveal]
    """What a total reveals to a worker."""
    hides_parts: ClassVar[bool] = True
    """Whether payloads are hidden from the server; a total then needs a payload of every worker."""
    noise: LocalNoise | None = None
    """Noise that workers add to local predictions before they conceal them, so that all pushes of a row together are
    differentially private: a table with the keys epsilon, delta and clip."""

    @field_validator("noise", mode="before")
    @classmethod
    def _read_noise(cls, value: Any) -> Any:
        return read_nested(LocalNoise, value)

    @abstractmethod
    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        """Create a worker's object. All workers and the server do so at the same point, because keys may be exchanged.

        Args:
            context: this party's channel, and the roles of all parties in the sums that the server receives.
            readers: the workers that receive sums.

        Returns:
            The worker's object.
        """

    @abstractmethod
    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        """Create the server's object, at the same point as the workers.

        Args:
            context: this party's channel, and the roles of all parties in the sums that the server receives.
            readers: the workers that receive sums.

        Returns:
            The server's object.
        """

    @abstractmethod
    def declares(self) -> list[MessageDeclaration]:
        """Declare what each message of the key exchange reveals."""

    @property
    def label(self) -> str:
        """The name of this stored sum in a table of costs."""
        return self.name

    @property
    def pooling(self) -> str:
        """One line that states which groups of parties could together learn more than is declared."""
        return "the server and any worker that receives sums can together open the forward outputs of every worker"


def check_payloads(stored: Mapping[str, bytes]) -> None:
    """Check that all payloads are 8-byte words and equally long.

    Args:
        stored: each worker's payload, by its name.

    Raises:
        ProtocolError: if a payload has another length.
    """
    (first, reference), *_ = stored.items()
    for name, payload in stored.items():
        if len(payload) != len(reference) or len(payload) % 8 or not payload:
            raise ProtocolError(
                f"payloads of one batch differ in length: {name} sent {len(payload)} bytes and {first} "
                f"{len(reference)}",
                _SAME_JOB,
                code="SVFL-PROTOCOL-SIZE",
            )
