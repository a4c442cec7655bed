"""The stored sum in the clear: the server can read the local predictions of every worker.

A payload is what a worker pushes to the server: here its outputs H (n, c) on a batch, without a mask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import ProtocolError, RangeError
from securevfl.families.fdml.stored_sum import OUTPUT_SPACE, SUM_OF_OTHERS, StoredServer, StoredSum, StoredWorker
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext


class StoredOpen(StoredSum):
    """The job option for payloads in the clear: the server sees every worker's local predictions."""

    name: ClassVar[str] = "open"
    pushed: ClassVar[Reveal] = Reveal("plain", "the sender's forward outputs H_k, which over a run span its columns")
    pulled: ClassVar[Reveal] = Reveal("plain", SUM_OF_OTHERS)
    hides_parts: ClassVar[bool] = False

    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        """Create the object with which a worker encodes outputs; it needs no keys."""
        return OpenWorker(context, needs_all=False)

    def server(self, context: PartyContext, readers: Collection[str]) -> StoredServer:
        """Create the object with which the server adds payloads."""
        return OpenServer(context, needs_all=False)

    def declares(self) -> list[MessageDeclaration]:
        """Return no declarations: there is no key exchange."""
        return []

    @property
    def strength(self) -> str:
        """One line that states the security assumption."""
        return "none: the server stores local predictions in the clear"

    @property
    def pooling(self) -> str:
        """One line on which parties together learn more than is declared: here the server alone."""
        return "the server alone learns the forward outputs of every worker"


class OpenWorker(StoredWorker):
    """The object with which a worker encodes its outputs H as payloads, in the clear."""

    def size(self, H: Floats) -> int:
        """Return the number of bytes of a payload for H (n, c)."""
        return 8 * H.size

    def encode_payload(self, H: Floats, batch: int, version: int) -> bytes:
        """Write the values as 64-bit floats, after a check of their range."""
        # written with `not`, so that NaN is refused as well: every comparison with NaN is false
        if not np.all(np.abs(H) <= OUTPUT_SPACE.bound):
            raise RangeError(
                f"{self.me}: a forward output is not finite, or its absolute value exceeds {OUTPUT_SPACE.bound:g}",
                "lower the step size",
                code="SVFL-CRYPTO-RANGE",
            )
        return np.ascontiguousarray(H, "<f8").tobytes()

    def decode_total(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        """Read a total of payloads from its bytes, 64-bit floats."""
        if len(total) != 8 * shape[0] * shape[1]:
            raise ProtocolError(
                f"{self.me}: the server sent a sum of {len(total)} bytes; a sum of shape {shape} has "
                f"{8 * shape[0] * shape[1]}",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-SIZE",
            )
        values = np.frombuffer(total, "<f8").reshape(shape)
        if not np.isfinite(values).all():
            raise ProtocolError(
                f"{self.me}: the server sent a sum with NaN or infinite values",
                "lower the step size",
                code="SVFL-PROTOCOL-VALUES",
            )
        return values.astype(np.float64)


class OpenServer(StoredServer):
    """A server that stores and adds up workers' payloads in the clear."""

    def add_payloads(self, stored: Mapping[str, bytes]) -> bytes:
        """Add up payloads, which are 64-bit floats in the clear."""
        total: Floats = np.sum([np.frombuffer(payload, "<f8") for payload in stored.values()], axis=0)
        return total.astype("<f8").tobytes()
