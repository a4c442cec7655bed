"""What hides in the lattice engines, taken out of their messages: masks, dithers, fill and encryptions of zero.

derived     a mask, a dither or a fill is not what was drawn for it
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

from securevfl.audit.checker import Outcome
from securevfl.audit.recorded import recorded
from securevfl.audit.statistics import Battery, bits_of, bits_of_numbers, bitwise
from securevfl.crypto import sealio
from securevfl.crypto.lattice import LatticeEvaluator, LatticeHolder, LatticeScheme
from securevfl.crypto.lattice_profile import BLINDED, Parameters
from securevfl.crypto.lattice_ring import Ring
from securevfl.crypto.lattice_sum import _SUM, LatticeSum
from securevfl.crypto.sealio import Residues

_ROWS, _COLUMNS = 400, 200
_REPLIES = 6
_SUMS, _LONG = 3, 9000  # values of a vector: three ciphertexts
_MOST_ALIKE = 2  # of 4,096 residues of 46 bits each, up to sign


@dataclass
class Drawn:
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
    layout, primes, degree = parameters.layout(n, c, s, p), parameters.reply_primes, parameters.ring.degree
    view = memoryview(blinded)[BLINDED.size :]
    for output_block in range(layout.output_blocks):
        for column_block in range(layout.column_blocks(d)):
            where = layout.wanted(d, column_block, output_block)
            second = sealio.unpack(view, primes, degree)
            view = view[sealio.packed_size(primes, degree) :]
            first = sealio.unpack(view, primes, len(where))
            view = view[sealio.packed_size(primes, len(where)) :]
            yield second, first, where


def _exchange(replies: int) -> tuple[Parameters, Drawn]:
    """Blinds one product several times and opens each reply, and takes out what was added on the way."""
    parameters, holder, evaluator = _ends()
    ring, drawn = parameters.ring, Drawn()
    column = np.array(parameters.reply_primes, np.uint64)[:, None]
    generator = np.random.default_rng(6)
    J, g = generator.normal(size=(_ROWS, _COLUMNS)), generator.uniform(-1, 1, (_ROWS, 1))
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    bare = [ring.second_polynomial(cipher) for row in product.ciphertexts for cipher in row]
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
                holder.open(blinded)
            for number, (second, first, where) in enumerate(_blocks(parameters, blinded)):
                drawn.masks.append((first + column - ring.first_coefficients(sums.pop(0), where)) % column)
                drawn.zeros.append((second + column - bare[number]) % column)
                full, _ = opened.pop(0)
                drawn.dithers.append((full[:, where] + column - first) % column)
                drawn.fills.append(np.delete(full, where, axis=1))
            drawn.for_masks.append(blinding.here())
            drawn.for_openings.append(opening.here())
    return parameters, drawn


def masks() -> Outcome:
    """Masks, dithers and fills of replies: from the draws made for them, and bit by bit."""
    outcome, battery = Outcome(), Battery()
    parameters, drawn = _exchange(_REPLIES)
    primes, k = parameters.reply_primes, parameters.profile.k
    blocks = len(drawn.masks) // _REPLIES
    for reply in range(_REPLIES):
        own = slice(reply * blocks, (reply + 1) * blocks)
        masks, dithers, fills = drawn.masks[own], drawn.dithers[own], drawn.fills[own]
        if not _as_drawn(primes, masks, iter(drawn.for_masks[reply])):
            outcome.add("derived", "evaluator", "a mask is not what was drawn for it")
        if not _as_opened(primes, k, list(zip(dithers, fills, strict=True)), iter(drawn.for_openings[reply])):
            outcome.add("derived", "holder", "a dither or a fill is not what was drawn for it")
    for name, residues in (("masks", drawn.masks), ("fill", drawn.fills)):
        for p, row in zip(primes, np.concatenate(residues, axis=1), strict=True):
            bitwise(battery, f"{name} modulo {p}", bits_of(row)[:, : p.bit_length()])
    numbers = _joined(np.concatenate(drawn.dithers, axis=1), primes)
    if max(numbers) >> k:
        outcome.add("bits", "holder", "a dither is beyond the bits that are dropped")
    bitwise(battery, "dithers", bits_of_numbers(numbers, k))
    outcome.statistics("bits", "engine", battery)
    return outcome


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
    """Of each ciphertext the fill first, over the whole ring; then 32 low bits and k - 32 high bits of each dither."""
    for dithers, fills in opened:
        count, degree = dithers.shape[1], dithers.shape[1] + fills.shape[1]
        whole = [_uniform(p, degree, draws) for p in primes]
        low, high = next(draws, b""), next(draws, b"")
        if len(low) != 32 or len(high) != 32 or any(len(row) != degree for row in whole):
            return False
        pairs = zip(_words(low, count) >> np.uint64(32), _words(high, count) >> np.uint64(96 - k), strict=True)
        if [int(b) << 32 | int(a) for a, b in pairs] != _joined(dithers, primes):
            return False
        if not all(np.isin(row, own).all() for row, own in zip(fills, whole, strict=True)):
            return False
    return True


def _joined(residues: Residues, primes: Sequence[int]) -> list[int]:
    """The numbers modulo the product of the primes (Chinese remainder theorem)."""
    q = math.prod(primes)
    units = [q // p * pow(q // p, -1, p) for p in primes]
    return [sum(int(r) * unit for r, unit in zip(column, units, strict=True)) % q for column in residues.T]


def unrelated() -> Outcome:
    """Encryptions of zero in replies and in sums."""
    outcome = Outcome()
    parameters, drawn = _exchange(2)
    _relations(outcome, "replies", parameters.ring, parameters.reply_primes, parameters.reply_level, drawn.zeros)
    ring, zeros = _sum_zeros()
    _relations(outcome, "sums", ring, ring.primes, ring.level, zeros)
    return outcome


def _sum_zeros() -> tuple[Ring, list[Residues]]:
    scheme = LatticeSum()
    adder, ring = scheme.adder(scheme.sum_keygen().public), scheme._ring
    v = np.linspace(-1, 1, _LONG)
    parts = [adder.encrypt(v, bound=2.0, terms=4) for _ in range(2)]
    column = np.array(ring.primes, np.uint64)[:, None]
    size, zeros = sealio.packed_size(ring.primes, ring.degree), []
    for _ in range(_SUMS):
        total = adder.add(*parts)
        for start in range(_SUM.size + size, len(total), 2 * size):
            c1, *terms = (sealio.unpack(each[start:], ring.primes, ring.degree) for each in (total, *parts))
            for term in terms:
                c1 = (c1 + column - term) % column
            zeros.append(c1)
    return ring, zeros


def _relations(
    outcome: Outcome, what: str, ring: Ring, primes: Sequence[int], level: Any, zeros: Sequence[Residues]
) -> None:
    """Between the c1 (NTT form) of encryptions of zero, modulo the first prime."""
    p = primes[0]
    rows = [zero[0] for zero in zeros]
    either = [np.minimum(row, np.uint64(p) - row) for row in rows]
    for i, row in enumerate(either):
        for other in either[:i]:
            if len(np.intersect1d(row, other)) > _MOST_ALIKE:
                outcome.add("related", what, "an encryption of zero is another, up to sign and order")
                return
    for a, b in [*pairwise(rows), *((rows[0], row) for row in rows[2:])]:
        ratio = [int(x) * int(gmpy2.invert(int(y), p)) % p for x, y in zip(a, b, strict=True)]
        ntt = np.zeros((2, len(primes), ring.degree), np.uint64)
        ntt[:, 0], ntt[1] = np.array(ratio, np.uint64), 1
        coefficients = ring.first_coefficients(ring.io.ciphertext(level, ntt, ntt=True), np.arange(ring.degree))[0]
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
