"""Stored sums: what the server sees, how readers (workers that receive sums) check answers, and recomputed payloads.

A payload is a worker's masked outputs; check words ("marks") show whether a sum was decrypted correctly. Kinds of
findings, in addition to those of `transcripts`:

    output     a reader computes another sum from an honest total, or refuses it
    derived    a payload, a mark or an encrypted key differs from the one computed from its parts and the entropy
    keys       a party that receives no sums has a key
    answers    a reader accepts a total of other payloads than named, or a worker masks twice under one version
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securevfl.audit.recording.protocol_record import COLLECTS
from securevfl.audit.transcript_checks import Outcome, check_transcript
from securevfl.base.arrays import Floats
from securevfl.errors import SecureVFLError
from securevfl.families.fdml.masked_store import StoredMasks
from securevfl.families.fdml.stored_sum import OUTPUT_SPACE, StoredSum
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.protocols.sums.mask_keys import SumPublicKey, WrappedMaskKey
from securevfl.protocols.sums.residue_sums import to_residues
from selfcheck.checks import slow_reference
from selfcheck.checks.draws import watched
from selfcheck.checks.two_runs import same_shape
from selfcheck.entropy import Drawn, recorded
from selfcheck.stored_runs import WORKERS, StoredPush, StoredRun, WorkerStep, record_stored, steps

_NEAR = 1e-3  # tolerance of a sum of three values under CKKS
_SUBCHANNEL = ""


def outputs(seed: int, *, batches: int = 2, visits: int = 3, rows: int = 120) -> dict[WorkerStep, Floats]:
    """Return outputs of workers that hardly change between visits, so that a mask that is used twice is noticed."""
    generator = np.random.default_rng(seed)
    base = {(name, b): generator.normal(size=(rows, 1)) for name in WORKERS for b in range(batches)}
    return {
        step: base[step.worker, step.batch] + 1e-3 * generator.normal(size=(rows, 1)) for step in steps(batches, visits)
    }


def stored_check(stored: StoredSum, *, visits: int = 3) -> Outcome:
    """Check two sessions: transcripts, sizes, sums, and their randomness."""
    with watched() as draws:
        runs = [record_stored(stored, outputs(seed, visits=visits)) for seed in range(2)]
    transcripts = [run.transcript for run in runs]
    outcome = check_transcript(*transcripts).merge(same_shape(*transcripts)).merge(draws.outcome())
    for run in runs:
        for reader in {item.reader for item in run.pulled if _wrong(item.sum, item.truth)}:
            outcome.add("output", reader, "made another sum of an honest total than that of the parts")
    return outcome


def _wrong(pulled: Floats | None, truth: Floats) -> bool:
    return pulled is None or pulled.shape != truth.shape or bool(np.abs(pulled - truth).max() > _NEAR)


def recomputed(stored: StoredSum, domain: str) -> Outcome:
    """Check keys, masks and marks against their draws, and that parties that receive no sums have no key."""
    outcome, readers = Outcome(), WORKERS[:2]
    with recorded() as drawn:
        run = record_stored(stored, outputs(7, rows=24), readers)
    secrets = {name: drawn.of_size(name, 32) for name in WORKERS}
    if any(len(draws) != 1 for draws in secrets.values()):
        outcome.add("derived", "all", "a worker has drawn no key, or several")
        return outcome
    keys = {name: draws[0] for name, draws in secrets.items()}
    _sealed(outcome, run, drawn, keys, readers, domain)
    for step, payload in _payloads(run).items():
        if not _as_made(run, step, payload, slow_reference.derived(keys[step.worker], step.batch, step.version)):
            outcome.add("derived", step.worker, "a payload is not what its parts and its worker's key make")
            break
    return outcome


def _payloads(run: StoredRun) -> dict[WorkerStep, bytes]:
    payloads = {}
    for event in run.transcript.received:
        if isinstance(event.message, StoredPush):
            payloads[WorkerStep(event.peer, event.message.batch, event.message.version)] = event.message.payload
    return payloads


def _as_made(run: StoredRun, step: WorkerStep, payload: bytes, key: bytes) -> bool:
    H = run.outputs[step]
    words = np.append(to_residues(H, OUTPUT_SPACE, len(WORKERS)).ravel(), np.zeros(2, np.uint64))
    mask = np.frombuffer(slow_reference.keystream(key, "mask of a stored payload", 0, words.nbytes), "<u8")
    return bool((words + mask).astype("<u8").tobytes() == payload)


def _sealed(
    outcome: Outcome, run: StoredRun, drawn: Drawn, keys: Mapping[str, bytes], readers: tuple[str, ...], domain: str
) -> None:
    """Check that every key that was sent is encrypted under the key of the two parties, and is sent only to readers."""
    publics = {name: drawn.keys[name][0].public_key().public_bytes_raw() for name in WORKERS}
    session = f"{next(iter(run.transcript.protocol_record.sessions)).hex()}/{_SUBCHANNEL}"
    for event in run.transcript.received:
        message, me, peer = event.message, event.me, event.peer
        if isinstance(message, SumPublicKey) and message.key != publics[peer]:
            outcome.add("derived", peer, "a public key was not generated by its party")
        if isinstance(message, WrappedMaskKey) and me not in readers:
            outcome.add("keys", me, f"is sent a key by {peer} and receives no sums")
            continue
        if isinstance(message, WrappedMaskKey):
            pair = slow_reference.agreed(
                drawn.keys[me][0], publics[peer], session=session, party=me, peer=peer, domain=domain
            )
            if not _opens(slow_reference.derived(pair, "own key", peer), message.sealed, domain.encode(), keys[peer]):
                outcome.add("derived", peer, "its key is not sealed under the key of the two parties and its name")


def _opens(key: bytes, sealed: bytes, context: bytes, expected: bytes) -> bool:
    try:
        plaintext = ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag:
        return False
    return plaintext == expected


def answered(stored: StoredSum) -> Outcome:
    """Check that answers of a deviating server are refused, and that a worker never conceals twice under one
    version."""
    outcome, H = Outcome(), np.linspace(-1, 1, 12).reshape(-1, 1)
    run = record_stored(stored, {WorkerStep(name, 0, 0): H for name in WORKERS})
    server: Any = run.sides[COLLECTS]
    workers: dict[str, Any] = {name: run.sides[name] for name in WORKERS}
    old = {name: workers[name].conceal(H, 1, 1) for name in WORKERS}
    with suppress(SecureVFLError):
        workers["P1"].conceal(H, 1, 1)
        outcome.add("answers", "P1", "conceals twice under one version")
    new = {name: workers[name].conceal(H, 1, 2) for name in WORKERS}
    versions = dict.fromkeys(WORKERS, 2)
    wrong: dict[str, Callable[[], tuple[bytes, dict[str, int]]]] = {
        "one worker's payload as the sum of all": lambda: (server.add_payloads({"P2": new["P2"]}), versions),
        "a sum of two by their names": lambda: (
            server.add_payloads({name: new[name] for name in ("P1", "P2")}),
            {"P1": 2, "P2": 2},
        ),
        "older payloads under newer versions": lambda: (server.add_payloads(old | {"P1": new["P1"]}), versions),
        "the worker's part of an older version": lambda: (
            server.add_payloads(new | {"P1": old["P1"]}),
            versions | {"P1": 1},
        ),
    }
    for what, make in wrong.items():
        with suppress(SecureVFLError):
            total, named = make()
            workers["P1"].reveal(total, named, 1, H.shape)
            outcome.add("answers", "P1", f"takes {what}")
    workers["P1"].reveal(server.add(new), versions, 1, H.shape)
    with suppress(SecureVFLError):
        workers["P1"].reveal(server.add_payloads(new | {"P2": old["P2"]}), versions | {"P2": 1}, 1, H.shape)
        outcome.add("answers", "P1", "takes another worker's older payload after a newer one")
    return outcome


def stored_checks() -> dict[str, Callable[[], Outcome]]:
    """Return one check for each registered kind, and one of the refusals of kinds that hide payloads."""
    checks: dict[str, Callable[[], Outcome]] = {}
    for kind in STORED_SUMS.values():
        for label, item in kind.variants().items():
            checks[f"stored {label}"] = partial(stored_check, item.with_smallest_keys, visits=2 if item.pooled else 3)
            if item.hides_parts:
                checks[f"stored {label}: answers"] = partial(answered, item.with_smallest_keys)
    return checks


CHECKS: dict[str, Callable[[], Outcome]] = {
    **stored_checks(),
    "stored masks recomputed": partial(recomputed, StoredMasks(), "stored sum under masks"),
}
