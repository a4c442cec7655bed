"""The masks, dithers and encryptions of zero of the lattice engines, extracted from their messages.

A dither is a random number that is added before a decrypted number is rounded. Kinds of findings:
derived     a mask or a dither is not computed from its random bytes
size        dithers are too small for the noise that they hide
bits        one of its bits is biased, or depends on another bit of the same or of the next random number
related     an encryption of zero follows from others: by its sign, a rotation, a small factor, or as a sum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import gmpy2
import numpy as np
import tenseal.sealapi as seal
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD
from securevfl.crypto.kernel.row_parameters import FISHER_FACTOR, MAX_RUN_OPENINGS
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_gradient import (
    LatticeEvaluator,
    LatticeGradient,
    LatticeGradientParameters,
    LatticeHolder,
)
from securevfl.crypto.lattice.lattice_shares import blocks
from securevfl.crypto.lattice.lattice_sum import _SUM, LatticeSum
from securevfl.crypto.lattice.polynomial_ring import SealRing, SealSecretKey
from securevfl.crypto.lattice.residue_encoding import Residues
from securevfl.crypto.scheme import OpeningShape
from selfcheck.bits import bits_of, bits_of_numbers, bitwise
from selfcheck.entropy import recorded

_ROWS, _REPLIES = 400, 4
_WIDE, _NARROW = 200, 60  # columns, for several ciphertexts in a reply
_LONG = 5000  # values of a vector, for two ciphertexts
_DISTANCE = 40  # bits of statistical distance of a run with this number of openings
_MOST_ALIKE = 2  # equal residues, up to sign, of 4,096 with 46 bits each


@dataclass
class Hidden:
    """Residues (primes, count) of one ciphertext of a reply, and of what its holder decrypted."""

    masks: list[Residues] = field(default_factory=list)
    dithers: list[Residues] = field(default_factory=list)
    zeros: list[Residues] = field(default_factory=list)  # c1 of encryptions of zero, in coefficients
    for_masks: list[list[bytes]] = field(default_factory=list)
    for_openings: list[list[bytes]] = field(default_factory=list)


def _ends() -> tuple[LatticeGradientParameters, LatticeHolder, LatticeEvaluator]:
    scheme = LatticeGradient()
    holder = scheme.keygen()
    evaluator = scheme.evaluator(holder.public)
    assert isinstance(holder, LatticeHolder)
    assert isinstance(evaluator, LatticeEvaluator)
    return holder._parameters, holder, evaluator


def _exchange(replies: int, columns: int) -> tuple[LatticeGradientParameters, Hidden]:
    """Blind one product several times, open each reply, and subtract the added values."""
    parameters, holder, evaluator = _ends()
    ring, hidden = parameters.ring, Hidden()
    generator = np.random.default_rng(6)
    J, g = generator.normal(size=(_ROWS, columns)), generator.uniform(-1, 1, (_ROWS, 1))
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    layout, width = product.scale.layout, product.scale.width
    places = [columns for _, columns in blocks(layout, width, 1)]
    answer, decrypt = SealRing.answer, SealSecretKey.decrypt
    sent: list[tuple[Residues, Residues]] = []

    def noting_answer(self: SealRing, layout: RingLayout, total: Any, zero: Any, mask: Residues) -> bytes:
        bare = np.zeros(self.shape, np.uint64) if total is None else _flat(self, total)
        reply, count = answer(self, layout, total, zero, mask), mask.shape[1]
        view, size = memoryview(reply), residue_encoding.packed_size(self.primes, DEGREE)
        second = residue_encoding.unpack(view, self.primes, DEGREE)
        first = residue_encoding.unpack(view[size:], self.primes, count)
        mask_residues = self.io.residues(zero, self.shape)  # its summands before the mask is added
        hidden.masks.append((first + self.column - mask_residues[0][:, layout.wanted[:count]]) % self.column)
        hidden.zeros.append((second + self.column - bare[1]) % self.column)
        sent.append((first, second))
        return reply

    def noting_decrypt(self: SealSecretKey, residues: Residues) -> Any:
        first, second = sent.pop(0)
        if not np.array_equal(second, residues[1]):
            raise AssertionError("the decrypted value is not the encrypted one")
        full = residues[0][:, layout.wanted[: first.shape[1]]]
        hidden.dithers.append((full + ring.column - first) % ring.column)
        return decrypt(self, residues)

    with (
        mock.patch.object(SealRing, "answer", noting_answer),
        mock.patch.object(SealSecretKey, "decrypt", noting_decrypt),
    ):
        for _ in range(replies):
            with recorded() as blinding:
                blinded, _ = evaluator.blind(product)
            with recorded() as opening:
                holder.open(blinded, OpeningShape(_ROWS, 1, columns))
            hidden.for_masks.append(blinding.here())
            hidden.for_openings.append(opening.here())
    assert len(hidden.masks) == replies * len(places)
    return parameters, hidden


def _flat(ring: SealRing, total: Any) -> Residues:
    """Return the residues of a product's coefficients."""
    out = seal.Ciphertext()
    ring.evaluator.transform_from_ntt(total, out)
    return ring.io.residues(out, ring.shape)


def masks() -> Outcome:
    """Check masks and dithers of replies: computed from the random bytes drawn for them, and uniform bit by bit."""
    outcome, battery = Outcome(), Battery()
    parameters, hidden = _exchange(_REPLIES, _WIDE)
    ring, profile = parameters.ring, parameters.profile
    primes, k = ring.primes, profile.k
    count = len(hidden.masks) // _REPLIES
    for reply in range(_REPLIES):
        reply_slice = slice(reply * count, (reply + 1) * count)
        if not _as_drawn(primes, hidden.masks[reply_slice], hidden.for_masks[reply]):
            outcome.add("derived", "evaluator", "a mask does not follow from its draw")
        if not _as_opened(primes, k, hidden.dithers[reply_slice], hidden.for_openings[reply]):
            outcome.add("derived", "holder", "a dither does not follow from its draw")
    for p, row in zip(primes, np.concatenate(hidden.masks, axis=1), strict=True):
        bitwise(battery, f"masks modulo {p}", bits_of(row)[:, : p.bit_length()])
    numbers = [_above_least(number, primes, k) for number in _joined(np.concatenate(hidden.dithers, axis=1), primes)]
    bitwise(battery, "dithers", bits_of_numbers(numbers, k))
    # the width of each of three uniform summands
    width = min(2 * float(np.std([float(number) for number in numbers])), 2.0**k)
    if (far := width / (NOISE_STD * profile.T * math.sqrt(2 * FISHER_FACTOR * MAX_RUN_OPENINGS))) < 2.0**_DISTANCE:
        distance_text = f"2^{-math.log2(far):.1f} of its openings without noise, 2^-{_DISTANCE} is promised"
        outcome.add("size", "holder", f"dithers bring a run within {distance_text}")
    outcome.statistics("bits", "engine", battery)
    return outcome


def _above_least(number: int, primes: Sequence[int], k: int) -> int:
    """Turn a dither, which is the sum of three numbers below 2^k less their mean, back into that sum."""
    return int((number + 3 * 2 ** (k - 1)) % math.prod(primes))


class _Streams:
    """The numbered keystreams for random key bytes and a label, as 64-bit or 32-bit words."""

    def __init__(self, draws: Sequence[bytes], label: str) -> None:
        (draw,) = (draw for draw in draws if len(draw) == 32)
        self._key, self._number = derive_key(draw, "prg", label), 0

    def words(self, count: int, size: int) -> NDArray[np.uint64]:
        nonce = bytes(4) + self._number.to_bytes(12, "little")
        self._number += 1
        raw = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor().update(bytes(size * count))
        return np.frombuffer(raw, f"<u{size}").astype(np.uint64)


def _as_drawn(primes: Sequence[int], masks: Sequence[Residues], draws: Sequence[bytes]) -> bool:
    """Return whether masks are words, reduced to the bits of each prime, without those that are too large."""
    streams = _Streams(draws, "what hides a product")
    for mask in masks:
        for p, row in zip(primes, mask, strict=True):
            accepted = np.empty(0, np.uint64)
            while len(accepted) < len(row):
                left = len(row) - len(accepted)
                words = streams.words(left * 2 ** p.bit_length() // p + 64, 8) >> np.uint64(64 - p.bit_length())
                accepted = np.concatenate([accepted, words[words < p][:left]])
            if not np.array_equal(row, accepted):
                return False
    return True


def _as_opened(primes: Sequence[int], k: int, dithers: Sequence[Residues], draws: Sequence[bytes]) -> bool:
    """Return whether dithers are sums of three numbers below 2^k, in parts of 24 bits, minus their mean."""
    streams = _Streams(draws, "dither of an opening")
    for residues in dithers:
        count = residues.shape[1]
        limbs = streams.words(k // 24 * 3 * count, 4).reshape(k // 24, 3, count) & np.uint64(2**24 - 1)
        sums = [sum(int(x) << 24 * at for at, row in enumerate(limbs[..., i]) for x in row) for i in range(count)]
        if sums != [_above_least(number, primes, k) for number in _joined(residues, primes)]:
            return False
    return True


def _joined(residues: Residues, primes: Sequence[int]) -> list[int]:
    """Reconstruct the numbers modulo the product of the primes (Chinese remainder theorem)."""
    q = math.prod(primes)
    units = [q // p * pow(q // p, -1, p) for p in primes]
    return [sum(int(r) * unit for r, unit in zip(column, units, strict=True)) % q for column in residues.T]


def unrelated() -> Outcome:
    """Check that the encryptions of zero in replies and in sums are unrelated."""
    outcome = Outcome()
    parameters, hidden = _exchange(2, _NARROW)
    _relations(outcome, "replies", parameters.ring, hidden.zeros)
    _relations(outcome, "sums", *_sum_zeros())
    return outcome


def _sum_zeros() -> tuple[SealRing, list[Residues]]:
    scheme = LatticeSum()
    adder, ring = scheme.adder(scheme.sum_keygen().public), scheme._ring
    v = np.linspace(-1, 1, _LONG)
    parts = [adder.encrypt(v, bound=2.0, terms=4) for _ in range(2)]
    column = np.array(ring.primes, np.uint64)[:, None]
    size, zeros = residue_encoding.packed_size(ring.primes, DEGREE), []
    for _ in range(2):
        total = adder.add(*parts)
        for start in range(_SUM.size + size, len(total), 2 * size):
            c1, *terms = (residue_encoding.unpack(item[start:], ring.primes, DEGREE) for item in (total, *parts))
            for term in terms:
                c1 = (c1 + column - term) % column
            zeros.append(c1)
    return ring, zeros


def _relations(outcome: Outcome, what: str, ring: SealRing, zeros: Sequence[Residues]) -> None:
    """Find relations between the c1 of encryptions of zero, in NTT form, modulo the first prime."""
    p = ring.primes[0]
    rows = [_transformed(ring, zero, ntt=True)[0] for zero in zeros]
    either = [np.minimum(row, np.uint64(p) - row) for row in rows]
    for i, row in enumerate(either):
        for other in either[:i]:
            if len(np.intersect1d(row, other)) > _MOST_ALIKE:
                outcome.add("related", what, "an encryption of zero is another, up to sign and order")
                return
    for a, b in [*pairwise(rows), *((rows[0], row) for row in rows[2:])]:
        ratio = [int(x) * int(gmpy2.invert(int(y), p)) % p for x, y in zip(a, b, strict=True)]
        quotient = np.zeros(ring.shape[1:], np.uint64)
        quotient[0] = ratio
        coefficients = _transformed(ring, quotient, ntt=False)[0]
        if np.median(np.minimum(coefficients, np.uint64(p) - coefficients)) < p / 16:
            outcome.add("related", what, "an encryption of zero is another times a small polynomial")
            return
    if _rank([[int(x) for x in row[: 2 * len(rows)]] for row in rows], p) < len(rows):
        outcome.add("related", what, "an encryption of zero is a sum of multiples of others")


def _transformed(ring: SealRing, rows: Residues, *, ntt: bool) -> Residues:
    """Transform one polynomial (primes, N) to its values (NTT form), or back to coefficients."""
    cipher = ring.io.ciphertext(ring.level, np.stack([rows, np.ones_like(rows)]), ntt=not ntt)
    (ring.evaluator.transform_to_ntt_inplace if ntt else ring.evaluator.transform_from_ntt_inplace)(cipher)
    return ring.io.residues(cipher, ring.shape)[0]


def _rank(rows: list[list[int]], p: int) -> int:
    rank = 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, p)
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] * inverse % p
            rows[i] = [(x - factor * y) % p for x, y in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


CHECKS: dict[str, Callable[[], Outcome]] = {
    "bits of lattice masks": masks,
    "lattice replies are unrelated": unrelated,
}
