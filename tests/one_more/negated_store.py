"""Another stored sum: local predictions lie at the server with their signs turned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from securevfl.base.arrays import Floats
from securevfl.families.fdml.open_store import OpenWorker, StoredOpen
from securevfl.families.fdml.stored_sum import StoredWorker
from securevfl.protocols.declarations import Reveal
from securevfl.protocols.party_context import PartyContext


class NegatedWorker(OpenWorker):
    def encode_payload(self, H: Floats, batch: int, version: int) -> bytes:
        return super().encode_payload(-H, batch, version)

    def decode_total(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        return -super().decode_total(total, versions, batch, shape)


class NegatedStore(StoredOpen):
    name: ClassVar[str] = "negated"
    pushed: ClassVar[Reveal] = Reveal("plain", "the sender's forward outputs, negated")

    def worker(self, context: PartyContext, readers: Collection[str]) -> StoredWorker:
        return NegatedWorker(context, needs_all=False)
