"""The registry of stored sums: the ways in which a server of FDML stores workers' outputs, masked or in the clear."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.families.fdml.masked_store import StoredMasks
from securevfl.families.fdml.open_store import StoredOpen
from securevfl.families.fdml.stored_sum import StoredSum

STORED_SUMS: Registry[StoredSum] = Registry("stored sum", StoredOpen, StoredMasks)
