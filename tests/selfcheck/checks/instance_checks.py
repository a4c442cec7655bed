"""Checks that what holds for the first chunk, block or output holds for the tenth chunk, second block, third output.

fresh       a number, a tweak of a hash or an encryption of zero that is used twice in a session or a message
kept        a precomputed record that is returned a second time
related     noise of one output that depends on that of another
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from builders import transfer_pair

from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.share_protocol import REPLY_HEADER
from securevfl.crypto.lattice.lattice_shares import BfvParameters, LatticeShares
from securevfl.crypto.lattice.lattice_shares import blocks as _ciphertexts
from securevfl.crypto.lattice.residue_encoding import packed_size
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.share_scheme import common_coin
from securevfl.crypto.transfers.row_hash import RowHash
from securevfl.families.fdml.local_noise import LocalNoise, LocalNoiseSampler
from securevfl.protocols.residuals.defences import Gaussian, Marvell, MaxNorm
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES

_BITS = 4
_BLOCKS = (60, 130, 60)  # rows of transfers, one block after the other
_NUMBERS = (0, 9, 10, 11, 123)  # of chunks
_NOISY = 4000  # rows


def replies() -> Outcome:
    """Check that each ciphertext of a reply has a different encryption of zero, and so has the next
    reply."""
    outcome, scheme = Outcome(), LatticeShares(48)
    coin = common_coin(os.urandom(32), os.urandom(32), 0, "audit")
    holder = scheme.keygen(coin)
    evaluator: Any = scheme.evaluator(holder.public, coin)
    V = ShareRing(48).uniform(Prg.fresh("audit"), (40, 2))
    nothing, sealed = np.zeros((40, 700), np.int64), holder.encrypt(V, columns=8)  # the reply contains only zeros
    pieces: list[bytes] = []
    for _ in range(2):
        reply, _ = evaluator.product(evaluator.prepare(nothing), sealed)
        pieces += _polynomials(scheme, reply)
    if len(pieces) < 6:
        outcome.add("fresh", "audit", "the check received no reply of several ciphertexts")
    if len(set(pieces)) < len(pieces):
        outcome.add("fresh", "evaluator", "ciphertexts of replies share one encryption of zero")
    return outcome


def _polynomials(scheme: LatticeShares, reply: bytes) -> Iterator[bytes]:
    """Yield the first bytes of the second polynomial of each ciphertext of a reply."""
    parameters = BfvParameters(scheme.bits)
    c, r, s, d = REPLY_HEADER.unpack_from(reply)[2:]
    at = REPLY_HEADER.size
    for outputs, columns in _ciphertexts(parameters.layout(s, c, r, s), d):
        yield reply[at : at + 64]
        count = (outputs.stop - outputs.start) * (columns.stop - columns.start)
        at += packed_size(parameters.bfv.primes, DEGREE) + packed_size(parameters.bfv.primes, count)


@contextmanager
def _tweaks() -> Iterator[list[bytes]]:
    """Collect the tweak of every block that is hashed while the block of code runs."""
    zeros: list[bytes] = []
    hash_ = RowHash.__call__

    def noting(self: RowHash, x: Words, tweak: Words) -> Words:
        zeros.extend(
            row.tobytes()
            for row in np.broadcast_to(tweak, np.broadcast_shapes(x.shape, tweak.shape)).reshape(-1, x.shape[-1])
        )
        return hash_(self, x, tweak)

    with mock.patch.object(RowHash, "__call__", noting):
        yield zeros


def blocks() -> Outcome:
    """Check that each choice of several blocks of transfers is opened, and that the receiver repeats no tweak."""
    outcome = Outcome()
    chooser, offerer = transfer_pair(_BITS)
    tweaks: list[bytes] = []
    for number, rows in enumerate(_BLOCKS):
        with _tweaks() as hashed:
            message, chosen = chooser.extend(rows)
        tweaks += hashed
        pads = offerer.extend(rows, message).pads()
        if not np.array_equal(pads[chosen.choices, np.arange(rows)], chosen.pads):
            outcome.add("output", "chooser", f"block {number} opens other pads than were chosen")
    if len(set(tweaks)) < len(tweaks):
        outcome.add("fresh", "chooser", "a purpose and a number make a tweak twice in a session")
    return outcome


def numbers() -> Outcome:
    """Check that a chunk that was begun is gone after a crash, whatever its number, and that one that was not begun is
    there."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        store = DiskStore(Path(folder) / "ahead")
        for number in _NUMBERS:
            store.put(number, bytes(NAME_BYTES), number, [b"one", b"two"])
        for number in _NUMBERS[1::2]:
            store.take(number, 0)
        store.close()
        left = DiskStore(Path(folder) / "ahead").chunk_numbers
    for number in _NUMBERS[1::2]:
        if number in left:
            outcome.add("kept", "all", f"chunk {number} was begun and is there again after a crash, masks and all")
    if not set(left) >= set(_NUMBERS[::2]):
        outcome.add("kept", "all", "chunks that were never begun are gone")
    return outcome


def noises() -> dict[str, tuple[int, Callable[[Floats], Floats]]]:
    """Return each source of noise by name: how many outputs get separate noise, and a function of (n x c).

    MaxNorm draws one number for a row, along g, by its definition.
    """
    prg = Prg.fresh("audit")
    local = LocalNoiseSampler(LocalNoise(epsilon=2.0, delta=1e-5, clip=1.0), 1)
    return {
        "local noise": (3, local),
        "gaussian": (3, lambda g: Gaussian(sigma=1.0).apply(g, prg)),
        "marvell": (1, lambda g: Marvell().apply(g, prg)),
        "max_norm": (1, lambda g: MaxNorm().apply(g, prg)),
    }


def outputs() -> Outcome:
    """Check that noise on one output of a row is independent of that on other outputs, and on the previous row."""
    outcome, battery = Outcome(), Battery()
    signs = np.random.default_rng(0).choice([-0.3, 0.4], (_NOISY, 1))
    for name, (count, blur) in noises().items():
        g = np.repeat(signs, count, axis=1)
        noise = blur(g) - g
        columns = [*noise.T, np.roll(noise[:, 0], 1)]
        for one, other in combinations(range(len(columns)), 2):
            r = float(np.corrcoef(columns[one], columns[other])[0, 1])
            battery.add(f"{name}: outputs {one} and {other}", _chance(r, len(noise)))
    outcome.statistics("related", "all", battery)
    return outcome


def _chance(r: float, rows: int) -> float:
    """Return the p-value of a correlation r over `rows` pairs of independent numbers (Fisher's transform)."""
    from scipy.stats import norm

    return float(2 * norm.sf(abs(np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15))) * np.sqrt(rows - 3)))


CHECKS: dict[str, Callable[[], Outcome]] = {
    "replies of several ciphertexts": replies,
    "several blocks of transfers": blocks,
    "chunks from ten on": numbers,
    "noise of several outputs": outputs,
}
