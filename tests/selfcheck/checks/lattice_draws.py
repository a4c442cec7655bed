"""What hides in the lattice engines, taken out of their messages: masks, dithers, fill and encryptions of zero.

derived     a mask, a dither or a fill is not what was drawn for it
size        dithers are too small for the noise that they hide
bits        one of its bits is biased, or follows from another of the same draw or of the next
related     an encryption of zero follows from others: by sign, a turn, a small factor, or as a sum of them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from securevfl.audit.statistics import Battery
from securevfl.audit.transcripts import Outcome
from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.lattice_product import LatticeEvaluator, LatticeHolder, LatticeScheme
from securevfl.crypto.lattice.lattice_sum import _SUM, LatticeSum
from securevfl.crypto.lattice.layout import BLINDED, FISHER, OPENINGS, Parameters
from securevfl.crypto.lattice.polynomial_ring import NOISE_STD, Residues, Ring
from securevfl.crypto.lattice.row_products import checked
from securevfl.crypto.scheme import Shape
from selfcheck.bits import bits_of, bits_of_numbers, bitwise
from selfcheck.entropy import recorded

_ROWS, _REPLIES = 400, 4
_WIDE, _NARROW = 200, 60  # columns: several ciphertexts a reply
_LONG = 5000  # values of a vector: two ciphertexts
_DISTANCE = 40  # bits, of a run with so many openings
_MOST_ALIKE = 2  # of 4,096 residues of 46 bits each, up to sign


@dataclass
class Hidden:
    """Residues (primes, count) of one ciphertext of a reply, and of what its holder decrypted."""

    masks: list[Residues] = field(default_factory=list)
    dithers: list[Residues] = field(default_factory=list)
    fills: list[Residues] = field(default_factory=list)
    zeros: list[Residues] = field(default_factory=list)  # c1 of encryptions of zero, NTT form
    for_masks: list[list[bytes]] = field(default_factory=list)
    for_openings: list[list[bytes]] = field(default_factory=list)


def _ends() -> tuple[Parameters, LatticeHolder, LatticeEvaluator]:
    scheme = LatticeScheme()
    holder = scheme.keygen()
    evaluator = scheme.evaluator(holder.public)
    assert isinstance(holder, LatticeHolder)
    assert isinstance(evaluator, LatticeEvaluator)
    return holder._parameters, holder, evaluator


def _blocks(parameters: Parameters, blinded: bytes) -> Iterator[tuple[Residues, Residues, NDArray[np.intp]]]:
    """c1 (NTT form) and the wanted coefficients of c0 of each ciphertext, and where these are."""
    *_, n, c, s, p, d = BLINDED.unpack_from(blinded)
    layout, primes, degree = parameters.layout(n, c, s, p), parameters.ring.primes, parameters.ring.degree
    view, width = memoryview(blinded)[BLINDED.size :], checked(layout, d)
    for output_block in range(layout.output_blocks):
        for column_block in range(layout.column_blocks(width)):
            where = layout.wanted(width, column_block, output_block)
            second = polynomial_ring.unpack(view, primes, degree)
            view = view[polynomial_ring.packed_size(primes, degree) :]
            first = polynomial_ring.unpack(view, primes, len(where))
            view = view[polynomial_ring.packed_size(primes, len(where)) :]
            yield second, first, where


def _exchange(replies: int, columns: int) -> tuple[Parameters, Hidden]:
    """Blinds one product several times and opens each reply, and takes out what was added on the way."""
    parameters, holder, evaluator = _ends()
    ring, hidden = parameters.ring, Hidden()
    column = np.array(ring.primes, np.uint64)[:, None]
    generator = np.random.default_rng(6)
    J, g = generator.normal(size=(_ROWS, columns)), generator.uniform(-1, 1, (_ROWS, 1))
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    bare = [ring.second_polynomial(cipher) for row in product.sums().ciphertexts for cipher in row]
    sums: list[Any] = []
    opened: list[tuple[Residues, Residues]] = []
    add, load = evaluator._rerandomised, ring.ciphertext

    def noting_sum(cipher: Any) -> Any:
        sums.append(add(cipher))
        return sums[-1]

    def noting_load(level: Any, first: Residues, second: Residues) -> Any:
        opened.append((first, second))
        return load(level, first, second)

    with (
        mock.patch.object(evaluator, "_rerandomised", noting_sum),
        mock.patch.object(ring, "ciphertext", noting_load),
    ):
        for _ in range(replies):
            with recorded() as blinding:
                blinded, _ = evaluator.blind(product)
            with recorded() as opening:
                holder.open(blinded, Shape(_ROWS, 1, columns))
            for number, (second, first, where) in enumerate(_blocks(parameters, blinded)):
                hidden.masks.append((first + column - ring.first_coefficients(sums.pop(0), where)) % column)
                hidden.zeros.append((second + column - bare[number]) % column)
                full, _ = opened.pop(0)
                hidden.dithers.append((full[:, where] + column - first) % column)
                hidden.fills.append(np.delete(full, where, axis=1))
            hidden.for_masks.append(blinding.here())
            hidden.for_openings.append(opening.here())
    return parameters, hidden


def masks() -> Outcome:
    """Masks, dithers and fills of replies: from the draws made for them, and bit by bit."""
    outcome, battery = Outcome(), Battery()
    parameters, hidden = _exchange(_REPLIES, _WIDE)
    ring, profile = parameters.ring, parameters.profile
    primes, k = ring.primes, profile.k
    blocks = len(hidden.masks) // _REPLIES
    for reply in range(_REPLIES):
        own = slice(reply * blocks, (reply + 1) * blocks)
        masks, dithers, fills = hidden.masks[own], hidden.dithers[own], hidden.fills[own]
        if not _as_drawn(primes, masks, iter(hidden.for_masks[reply])):
            outcome.add("derived", "evaluator", "a mask is not what was drawn for it")
        if not _as_opened(primes, k, list(zip(dithers, fills, strict=True)), iter(hidden.for_openings[reply])):
            outcome.add("derived", "holder", "a dither or a fill is not what was drawn for it")
    for name, residues in (("masks", hidden.masks), ("fill", hidden.fills)):
        for p, row in zip(primes, np.concatenate(residues, axis=1), strict=True):
            bitwise(battery, f"{name} modulo {p}", bits_of(row)[:, : p.bit_length()])
    numbers = [_above_least(number, primes, k) for number in _joined(np.concatenate(hidden.dithers, axis=1), primes)]
    bitwise(battery, "dithers", bits_of_numbers(numbers, k))
    width = min(2 * float(np.std([float(number) for number in numbers])), 2.0**k)  # of each of three uniform summands
    if (far := width / (NOISE_STD * profile.T * math.sqrt(2 * FISHER * OPENINGS))) < 2.0**_DISTANCE:
        said = f"2^{-math.log2(far):.1f} of its openings without noise, 2^-{_DISTANCE} is promised"
        outcome.add("size", "holder", f"dithers bring a run within {said}")
    outcome.statistics("bits", "engine", battery)
    return outcome


def _above_least(number: int, primes: Sequence[int], k: int) -> int:
    """Turn a dither, which is the sum of three numbers below 2^k less their mean, back into that sum."""
    return int((number + 3 * 2 ** (k - 1)) % math.prod(primes))


def _words(draw: bytes, count: int) -> NDArray[np.uint64]:
    raw = Cipher(algorithms.ChaCha20(draw, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def _uniform(p: int, count: int, draws: Iterator[bytes]) -> NDArray[np.uint64]:
    """`count` residues below p: words cut to the bits of p, those beyond p passed over."""
    found = np.empty(0, np.uint64)
    while len(found) < count:
        draw = next(draws, b"")
        if len(draw) != 32:
            return found
        left = count - len(found)
        words = _words(draw, left + 8) >> np.uint64(64 - p.bit_length())
        found = np.concatenate([found, words[words < p][:left]])
    return found


def _as_drawn(primes: Sequence[int], masks: Sequence[Residues], draws: Iterator[bytes]) -> bool:
    return all(
        np.array_equal(row, _uniform(p, len(row), draws)) for mask in masks for p, row in zip(primes, mask, strict=True)
    )


def _as_opened(
    primes: Sequence[int], k: int, opened: Sequence[tuple[Residues, Residues]], draws: Iterator[bytes]
) -> bool:
    """Say whether dithers and fills are what was drawn for them: for each ciphertext the fill first, over the whole
    ring; then, three times, the low 32 and the high k - 32 bits of its dithers."""
    for dithers, fills in opened:
        count, degree = dithers.shape[1], dithers.shape[1] + fills.shape[1]
        whole = [_uniform(p, degree, draws) for p in primes]
        words = [next(draws, b"") for _ in range(6)]
        if any(len(word) != 32 for word in words) or any(len(row) != degree for row in whole):
            return False
        low = [_words(word, count) >> np.uint64(32) for word in words[::2]]
        high = [_words(word, count) >> np.uint64(96 - k) for word in words[1::2]]
        sums = [
            sum(int(b) << 32 | int(a) for a, b in zip(lows, highs, strict=True))
            for lows, highs in zip(np.array(low).T, np.array(high).T, strict=True)
        ]
        if sums != [_above_least(number, primes, k) for number in _joined(dithers, primes)]:
            return False
        if not all(np.isin(row, own).all() for row, own in zip(fills, whole, strict=True)):
            return False
    return True


def _joined(residues: Residues, primes: Sequence[int]) -> list[int]:
    """Reconstruct the numbers modulo the product of the primes (Chinese remainder theorem)."""
    q = math.prod(primes)
    units = [q // p * pow(q // p, -1, p) for p in primes]
    return [sum(int(r) * unit for r, unit in zip(column, units, strict=True)) % q for column in residues.T]


def unrelated() -> Outcome:
    """Encryptions of zero in replies and in sums."""
    outcome = Outcome()
    parameters, hidden = _exchange(2, _NARROW)
    _relations(outcome, "replies", parameters.ring, hidden.zeros)
    _relations(outcome, "sums", *_sum_zeros())
    return outcome


def _sum_zeros() -> tuple[Ring, list[Residues]]:
    scheme = LatticeSum()
    adder, ring = scheme.adder(scheme.sum_keygen().public), scheme._ring
    v = np.linspace(-1, 1, _LONG)
    parts = [adder.encrypt(v, bound=2.0, terms=4) for _ in range(2)]
    column = np.array(ring.primes, np.uint64)[:, None]
    size, zeros = polynomial_ring.packed_size(ring.primes, ring.degree), []
    for _ in range(2):
        total = adder.add(*parts)
        for start in range(_SUM.size + size, len(total), 2 * size):
            c1, *terms = (polynomial_ring.unpack(each[start:], ring.primes, ring.degree) for each in (total, *parts))
            for term in terms:
                c1 = (c1 + column - term) % column
            zeros.append(c1)
    return ring, zeros


def _relations(outcome: Outcome, what: str, ring: Ring, zeros: Sequence[Residues]) -> None:
    """Between the c1 (NTT form) of encryptions of zero, modulo the first prime."""
    p = ring.primes[0]
    rows = [zero[0] for zero in zeros]
    either = [np.minimum(row, np.uint64(p) - row) for row in rows]
    for i, row in enumerate(either):
        for other in either[:i]:
            if len(np.intersect1d(row, other)) > _MOST_ALIKE:
                outcome.add("related", what, "an encryption of zero is another, up to sign and order")
                return
    for a, b in [*pairwise(rows), *((rows[0], row) for row in rows[2:])]:
        ratio = [int(x) * int(gmpy2.invert(int(y), p)) % p for x, y in zip(a, b, strict=True)]
        ntt = np.zeros((2, len(ring.primes), ring.degree), np.uint64)
        ntt[:, 0], ntt[1] = np.array(ratio, np.uint64), 1
        coefficients = ring.first_coefficients(ring.io.ciphertext(ring.level, ntt, ntt=True), np.arange(ring.degree))[0]
        if np.median(np.minimum(coefficients, np.uint64(p) - coefficients)) < p / 16:
            outcome.add("related", what, "an encryption of zero is another times a small polynomial")
            return
    if _rank([[int(x) for x in row[: 2 * len(rows)]] for row in rows], p) < len(rows):
        outcome.add("related", what, "an encryption of zero is a sum of multiples of others")


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
