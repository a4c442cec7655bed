"""Multi-exponentiation: many products of powers of the same bases, with signed exponents, modulo N.

Output j is the product of c_i^(e_ij) over all bases c_i. This is the method of Straus. Every exponent is written with
digits that are 0 or odd numbers below 2^(w-1) in magnitude (the width-w non-adjacent form); on average one bit in w + 1
starts a non-zero digit. A table contains the odd powers of each base, and all outputs use it. An output then takes one
multiplication for each non-zero digit, and one chain of squarings from the highest bit position to the lowest. Most
digits of an exponent are zero, because it consists of a few small numbers at distant bit positions, and only non-zero
digits are stored.

For negative digits, the table also contains inverse powers, or the output has a second chain that is inverted at the
end; `plan` chooses the faster way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securevfl.crypto.paillier.fixed_point_integers import Ints

MAX_TABLE_ENTRIES = 1 << 17
"""Largest number of entries of a table, which needs 70 MB for a modulus N of 4096 bits."""


@dataclass(frozen=True, repr=False)
class Chain:
    """The non-zero digits of one output, from the highest bit position to the lowest.

    The digits at bit position `positions[r]` are the table entries with the indices `entries[starts[r]:starts[r + 1]]`.
    """

    positions: NDArray[np.int32]
    starts: NDArray[np.int64]
    entries: NDArray[np.int32]


@dataclass(frozen=True, repr=False)
class BaseRange:
    """The work of one worker: the chains of some outputs, restricted to a range of the bases.

    Attributes:
        first_base: index of the first base of the range.
        bases: number of bases in the range.
        first_output: index of the first output.
        window: the width w of the digits.
        inverses: whether the table contains inverse powers.
        plus: for each output, the chain of its positive digits; of all digits if the table contains inverse powers.
        minus: for each output, the chain of its negative digits; empty if the table contains inverse powers.
    """

    first_base: int
    bases: int
    first_output: int
    window: int
    inverses: bool
    plus: tuple[Chain, ...]
    minus: tuple[Chain, ...]

    @property
    def outputs(self) -> int:
        """Number of outputs whose factors this worker computes."""
        return len(self.plus)


@dataclass(frozen=True, repr=False)
class ExponentTerms:
    """The exponents of all outputs, as a list of terms: base^(value * 2^shift) is a factor of an output.

    Attributes:
        bases: number of bases.
        outputs: number of outputs.
        base: for each term, the index of its base.
        value: for each term, the small integer in its exponent.
        shift: for each term, the bit position of this integer.
        output: for each term, the index of its output.
    """

    bases: int
    outputs: int
    base: NDArray[np.int64]
    value: Ints
    shift: NDArray[np.int64]
    output: NDArray[np.int64]


def naf(value: Ints, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the non-zero digits of the width-w non-adjacent forms of integers.

    value[i] is the sum of digit * 2^bit over all returned digits with the index i. Digits are odd, and less than
    2^(w-1) in magnitude.

    Args:
        value: the integers.
        window: the width w, at least 2; with 1 the function would not end.

    Returns:
        Three arrays of equal length: index, bit and digit.
    """
    remaining = np.flatnonzero(value)
    x = value[remaining].astype(np.int64)
    half = 1 << (window - 1)
    indices, bits, digits = [remaining[:0]], [remaining[:0]], [remaining[:0]]
    bit = 0
    while x.size:
        odd = np.flatnonzero(x & 1)
        digit = ((x[odd] + half) & (2 * half - 1)) - half
        x[odd] -= digit
        indices.append(remaining[odd])
        bits.append(np.full(odd.size, bit))
        digits.append(digit)
        x >>= 1
        bit += 1
        alive = x != 0
        if not alive.all():
            remaining, x = remaining[alive], x[alive]
    return np.concatenate(indices), np.concatenate(bits), np.concatenate(digits)


def plan(terms: ExponentTerms, workers: int = 1) -> list[BaseRange]:
    """Divide the work among workers in the way that needs the fewest multiplications.

    Multiplications are needed for tables (2^(w-2) for each base, twice as many with inverses), for digits, and for
    squarings (one for each bit position of each output). The bases or the outputs are divided among the workers. If the
    bases are divided, the caller must multiply the factors of each output.

    Args:
        terms: the exponents of all outputs, as a list of terms.
        workers: number of workers.

    Returns:
        One block of work for each worker; `evaluate` computes a block.
    """
    size = np.abs(terms.value)
    length = np.log2(np.maximum(size, 1)) + 1
    long = float(length[size > 1].sum())
    count = int((size > 1).sum())
    plain = float((size == 1).sum())
    squarings = float(terms.shift.max(initial=0) + length.max(initial=0)) * terms.outputs
    signed = bool((terms.value < 0).any())

    def cost(window: int, inverses: bool, by_base: bool) -> float:
        table = (1 << (window - 2)) * (2 if inverses else 1) + (4 if inverses else 1)
        tables = float(terms.bases * table)
        digits = long / (window + 1) + 0.5 * count + plain
        chains = squarings * (2 if signed and not inverses else 1)
        if by_base:
            ranges = max(workers, -(-terms.bases * table // MAX_TABLE_ENTRIES))
            return (tables + digits + chains * ranges) / workers
        share = -(-terms.outputs // workers) / max(terms.outputs, 1)
        chains *= -(-terms.bases * table // MAX_TABLE_ENTRIES)
        return tables + (digits + chains) * share

    window, inverses, by_base = min(
        ((w, i, b) for w in range(2, 13) for i in ({False, signed}) for b in (True, False)), key=lambda c: cost(*c)
    )
    return schedule(terms, window, inverses, workers if by_base else 1, 1 if by_base else workers)


def schedule(
    terms: ExponentTerms, window: int, inverses: bool, base_ranges: int, output_ranges: int
) -> list[BaseRange]:
    """Divide the work among workers, for given widths of digits and numbers of ranges.

    Args:
        terms: the exponents of all outputs, as a list of terms.
        window: the width w of the digits.
        inverses: whether tables contain inverse powers.
        base_ranges: number of ranges that the bases are divided into; more are used if a table would be too large.
        output_ranges: number of ranges that the outputs are divided into.

    Returns:
        One block of work for each worker; `evaluate` computes a block.
    """
    entries = (1 << (window - 2)) * (2 if inverses else 1)
    index, bit, digit = naf(terms.value, window)
    base, output = terms.base[index], terms.output[index]
    position = terms.shift[index] + bit
    half = 1 << (window - 2)
    entry = np.abs(digit) >> 1
    if inverses:
        entry = entry + half * (digit < 0)
    base_ranges = max(min(base_ranges, terms.bases), -(-terms.bases * entries // MAX_TABLE_ENTRIES))
    per_range = -(-terms.bases // base_ranges)
    per_group = -(-terms.outputs // max(1, min(output_ranges, terms.outputs)))
    order = np.lexsort((-position, output, base // per_range))
    base, output, position, entry = base[order], output[order], position[order], entry[order]
    negative = (digit[order] < 0) & (not inverses)
    blocks = []
    for first_base in range(0, terms.bases, per_range):
        bases = min(per_range, terms.bases - first_base)
        span = slice(*np.searchsorted(base // per_range, [first_base // per_range, first_base // per_range + 1]))
        slot = (base[span] - first_base) * entries + entry[span]
        edges = np.searchsorted(output[span], np.arange(terms.outputs + 1))
        for first_output in range(0, terms.outputs, per_group):
            rows = range(first_output, min(first_output + per_group, terms.outputs))
            plus, minus = [], []
            for j in rows:
                digits = slice(edges[j], edges[j + 1])
                below = negative[span][digits]
                plus.append(_chain(position[span][digits][~below], slot[digits][~below]))
                if not inverses:
                    minus.append(_chain(position[span][digits][below], slot[digits][below]))
            blocks.append(BaseRange(first_base, bases, first_output, window, inverses, tuple(plus), tuple(minus)))
    return blocks


def _chain(position: NDArray[np.int64], entry: NDArray[np.int64]) -> Chain:
    """Return the chain of digits that are sorted from the highest bit position to the lowest."""
    heads = np.flatnonzero(np.diff(position, prepend=-1)) if position.size else position
    starts = np.append(heads, position.size)
    return Chain(position[heads].astype(np.int32), starts.astype(np.int64), entry.astype(np.int32))


def batch_inverse(values: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """Return the inverses of all values, with only one inversion and three multiplications per value (Montgomery).

    Raise ZeroDivisionError if a value has no inverse.

    Args:
        values: units modulo the modulus.
        modulus: the modulus.

    Returns:
        The inverses.
    """
    prefix = [mpz(1)]
    for v in values:
        prefix.append(prefix[-1] * v % modulus)
    inverse = gmpy2.invert(prefix[-1], modulus)
    result = [mpz(0)] * len(values)
    for i in range(len(values) - 1, -1, -1):
        result[i] = inverse * prefix[i] % modulus
        inverse = inverse * values[i] % modulus
    return result


def _odd_powers(base: mpz, count: int, modulus: mpz) -> list[mpz]:
    powers = [base]
    if count > 1:
        square = base * base % modulus
        for _ in range(count - 1):
            powers.append(powers[-1] * square % modulus)
    return powers


def evaluate(block: BaseRange, bases: Sequence[int], modulus: int) -> list[mpz]:
    """Compute the factors of outputs for one worker's block.

    Args:
        block: the worker's block of work.
        bases: the values of the bases of the block, which must be units.
        modulus: the modulus N.

    Returns:
        For each output of the block, the product of powers of these bases.
    """
    m = mpz(modulus)
    units = [mpz(b) for b in bases]
    half = 1 << (block.window - 2)
    table: list[mpz] = []
    if block.inverses:
        for unit, inverse in zip(units, batch_inverse(units, m), strict=True):
            table += _odd_powers(unit, half, m)
            table += _odd_powers(inverse, half, m)
    else:
        for unit in units:
            table += _odd_powers(unit, half, m)
    plus = [_walk(chain, table, m) for chain in block.plus]
    if block.inverses:
        return plus
    minus = batch_inverse([_walk(chain, table, m) for chain in block.minus], m)
    return [a * b % m for a, b in zip(plus, minus, strict=True)]


def _walk(chain: Chain, table: list[mpz], m: mpz) -> mpz:
    entries = chain.entries.tolist()
    starts = chain.starts.tolist()
    positions = [*chain.positions.tolist(), 0]
    result = mpz(1)
    for run in range(len(positions) - 1):
        for entry in entries[starts[run] : starts[run + 1]]:
            result = result * table[entry] % m
        for _ in range(positions[run] - positions[run + 1]):
            result = result * result % m
    return result
