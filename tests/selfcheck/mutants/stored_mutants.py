"""Mutants (deliberate errors) of stored sums: masks, keys, check words ("marks"), and a server that does not add."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

import numpy as np

from securevfl.crypto.key_derivation import derive_key
from securevfl.families.fdml import masked_store
from securevfl.families.fdml.masked_store import MaskedServer, MaskedWorker, PayloadMasks
from securevfl.families.fdml.stored_sum import StoredWorker
from securevfl.protocols.sums import mask_keys
from selfcheck.mutants.mutant import Mutant, Stand, patched

_of, _conceal, _keys = PayloadMasks.of, StoredWorker.conceal, mask_keys.exchange_mask_keys


def _one_version(self: Any, worker: str, batch: int, version: int, words: int) -> Any:
    return _of(self, worker, batch, 0, words)


def _one_batch(self: Any, worker: str, batch: int, version: int, words: int) -> Any:
    return _of(self, worker, 0, version, words)


class _Bare(PayloadMasks):
    def of(self, worker: str, batch: int, version: int, words: int) -> Any:
        return np.zeros(words, np.uint64)


def _known(size: int) -> bytes:
    """Return bytes that every party can compute: a hash of the name of the one that runs this thread."""
    return hashlib.sha256(threading.current_thread().name.encode()).digest()[:size]


def _read_by_all(context: Any, readers: Any, domain: str) -> Any:
    return _keys(context, context.contributors, domain)


def _first(self: Any, stored: Any) -> bytes:
    payload: bytes = stored[min(stored)]
    return payload


def _any_total(self: Any, total: bytes, versions: Any, batch: int, shape: Any) -> Any:
    """`MaskedWorker.decode_total` without a check of the marks."""
    words = np.frombuffer(total, "<u8").astype(np.uint64)
    for name, version in versions.items():
        words -= self._masks.of(name, batch, version, len(words))
    return words[:-2].view(np.int64).reshape(shape) * 2.0**-49


def _again(self: Any, H: Any, batch: int, version: int) -> bytes:
    self._concealed.pop(batch, None)
    return _conceal(self, H, batch, version)


def _in_clear(key: bytes, secret: bytes, context: bytes) -> bytes:
    return secret + bytes(16)


def _cut(key: bytes, sealed: bytes, context: bytes) -> bytes:
    return sealed[:-16]


def _one_way(key: bytes, *context: Any) -> bytes:
    """Derive the key of a pair without its direction, so that it is the same in both directions."""
    return derive_key(key, *context[:1])


MUTANTS = [
    Mutant(
        "stored masks: one for all versions",
        "a worker's mask of a batch is the same in every version",
        "stored masks",
        "difference",
        patched((PayloadMasks, "of", _one_version)),
    ),
    Mutant(
        "stored masks: one for all batches",
        "a worker's mask follows the version and not the batch",
        "stored masks recomputed",
        "derived",
        patched((PayloadMasks, "of", _one_batch)),
    ),
    Mutant(
        "stored masks: left out",
        "payloads are pushed as they are, in fixed point",
        "stored masks",
        "uniform",
        patched((masked_store, "PayloadMasks", _Bare)),
    ),
    Mutant(
        "stored masks: keys of names",
        "a worker's key follows from its name, which the server knows",
        "stored masks recomputed",
        "derived",
        patched((mask_keys, "os", Stand(os, urandom=_known))),
    ),
    Mutant(
        "stored masks: keys for all",
        "workers that receive no sums are sent all keys as well",
        "stored masks recomputed",
        "keys",
        patched((masked_store, "exchange_mask_keys", _read_by_all)),
    ),
    Mutant(
        "stored masks: keys sent in the clear",
        "the server that forwards messages reads the keys of all workers",
        "stored masks recomputed",
        "derived",
        patched((mask_keys, "wrap", _in_clear), (mask_keys, "unwrap", _cut)),
    ),
    Mutant(
        "stored masks: one key both ways",
        "two workers seal their keys for each other under one key and nonce",
        "stored masks recomputed",
        "derived",
        patched((mask_keys, "derive_key", _one_way)),
    ),
    Mutant(
        "stored sum: the server hands out one payload",
        "a total is the payload of the first worker",
        "stored masks",
        "output",
        patched((MaskedServer, "add_payloads", _first)),
    ),
    Mutant(
        "stored sum: one payload, and nobody looks at marks",
        "a reader accepts any message as the sum",
        "stored masks: answers",
        "answers",
        patched((MaskedWorker, "decode_total", _any_total)),
    ),
    Mutant(
        "stored sum: any versions",
        "a reader accepts a sum of fewer workers or of older payloads if the server states so",
        "stored masks: answers",
        "answers",
        patched((StoredWorker, "_check_versions", lambda *_: None)),
    ),
    Mutant(
        "stored sum: a version serves twice",
        "a worker conceals as often under one version as it is asked to",
        "stored masks: answers",
        "answers",
        patched((StoredWorker, "conceal", _again)),
    ),
]
