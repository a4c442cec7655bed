"""Oblivious PRF by transfer extension: one end evaluates F on keys of its own, the other holds F.

Kolesnikov, Kumaresan, Rosulek, Trieu 2016 extend a few base transfers to an oblivious PRF by hashing alone; Pinkas,
Rosulek, Trieu, Yanai 2020 ("PSI from PaXoS", their semi-honest case) evaluate it on all keys at once through a linear
key-value store. C is a linear code of 512 bits and distance 172 (ot_extension.py), h hashes a key to its 76 bits,
[D](x) is what a store D answers to x (okvs.py), an XOR of some of its rows:

    base transfers   the holder chooses s, 512 bits, and has one seed of each of 512 pairs; the evaluator has all
    T, T'            bits (rows, 512): column j is the PRG on seed 0, on seed 1, of pair j; a row for a row of D
    evaluator        D: a store of x -> h(x);  U = T ^ T' ^ C(D) row by row; sends U
    holder           Q: column j is T's where s_j = 0, that of T' ^ U where it is 1; by rows Q = T ^ (s & C(D))
    F(x)             holder: Hash(x, [Q](x) ^ (s & C(h(x))));  evaluator, for a key it has stored: Hash(x, [T](x))

To the holder U is uniform: it lacks one of T, T' in each column. For a key that is not stored [D](x) ^ h(x) is not 0
(but for a chance of 2^-76), so at least 172 bits of s stand between the evaluator and F(x): noise to it, if Hash is
correlation robust. Semi-honest: an evaluator that sends other U can ask for more than its keys.

Work is cut into blocks of rows, each with its own stream of the PRG. Bits are uint64, (rows, 8). Where a function takes
an `executor`, hashing goes there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import lru_cache

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Secret
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.base_ot import transposed
from securevfl.crypto.transfers.okvs import Words, digests

__all__ = [
    "BLOCK",
    "CODE_BITS",
    "DISTANCE",
    "MESSAGE_BITS",
    "ROW_BYTES",
    "Holder",
    "PrfEvaluator",
    "encode",
    "fresh_choices",
    "target",
]


# The binary linear code of the oblivious transfer extension: 76 bits to 512, any two words 172 bits apart.
#
# The BCH code [511, 76, 171] over GF(2) with a parity bit, as Orru, Orsini, Scholl 2017 ("Actively secure 1-out-of-N OT
# extension with application to private set intersection") use it. Its generator polynomial g is the product of the
# minimal polynomials of alpha, alpha^2, .. alpha^170, alpha a root of x^9 + x^4 + 1, so the BCH bound gives a distance
# of 171; the parity bit makes every weight even.


CODE_BITS = 512
MESSAGE_BITS = 76
DISTANCE = 172
_FIELD = 0b1000010001  # x^9 + x^4 + 1, primitive over GF(2)
_DEGREE = 9


def encode(messages: Words) -> Words:
    """Code words (n, 8) of messages (n, 2): 76 bits each, bit i of a message in word i // 64."""
    tables = _tables()
    total = np.zeros((len(messages), CODE_BITS // 64), np.uint64)
    octets = np.ascontiguousarray(messages, "<u8").view(np.uint8)
    for position, table in enumerate(tables):
        total ^= table[octets[:, position]]
    return total


@lru_cache(maxsize=1)
def _tables() -> Words:
    """Tabulate, for each of the ten octets of a message, the words of its 256 values: (10, 256, 8)."""
    octets = -(-MESSAGE_BITS // 8)
    rows = [_words(_generator() << bit) for bit in range(MESSAGE_BITS)]
    rows += [np.zeros(CODE_BITS // 64, np.uint64)] * (8 * octets - MESSAGE_BITS)
    tables = np.zeros((octets, 256, CODE_BITS // 64), np.uint64)
    for position in range(octets):
        for bit in range(8):
            tables[position, 1 << bit : 2 << bit] = tables[position, : 1 << bit] ^ rows[8 * position + bit]
    return tables


def _words(word: int) -> Words:
    """Append the parity to a word of 511 bits, and return it as eight uint64."""
    whole = word | (word.bit_count() & 1) << (CODE_BITS - 1)
    return np.frombuffer(whole.to_bytes(CODE_BITS // 8, "little"), "<u8").astype(np.uint64)


@lru_cache(maxsize=1)
def _generator() -> int:
    """g, bit i the coefficient of x^i: degree 511 - 76."""
    powers = _powers()
    product, done = 1, set[int]()
    for root in range(1, DISTANCE - 1):
        if root in done:
            continue
        conjugates = {root * 2**k % 511 for k in range(_DEGREE)}
        done |= conjugates
        minimal = [1]  # coefficients in GF(512), lowest first; they come out as 0 and 1
        for each in conjugates:
            shifted = [0, *minimal]
            scaled = [_times(coefficient, powers[each]) for coefficient in minimal] + [0]
            minimal = [a ^ b for a, b in zip(shifted, scaled, strict=True)]
        product = _carryless(product, sum(bit << place for place, bit in enumerate(minimal)))
    return product


def _powers() -> list[int]:
    """alpha^0 .. alpha^510 as polynomials in alpha, one bit a coefficient."""
    powers = [1]
    while len(powers) < 511:
        power = powers[-1] << 1
        powers.append(power ^ _FIELD if power >> _DEGREE else power)
    return powers


def _times(a: int, b: int) -> int:
    product = _carryless(a, b)
    while (excess := product.bit_length() - 1 - _DEGREE) >= 0:
        product ^= _FIELD << excess
    return product


def _carryless(a: int, b: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a, b = a << 1, b >> 1
    return product


BLOCK = 1 << 16  # rows
ROW_BYTES = CODE_BITS // 8
_WIDTH = CODE_BITS // 64  # words in a row
_KEYS = 1 << 16  # keys answered at a time
_LABEL = "transfer extension"


def fresh_choices() -> bytes:
    """s: 512 secret bits."""
    return os.urandom(ROW_BYTES)


def target(keys: bytes, executor: Executor | None = None) -> Words:
    """h (n, 2) of n keys (n x 32 bytes); the code reads 76 bits of it."""
    return digests(keys, 16, key=b"", purpose=b"ot target", executor=executor)


class PrfEvaluator(Secret):
    """The end that learns F on the keys it has stored, and on no other."""

    __slots__ = ("_first", "_second", "_seed", "_store", "_transfers")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], seed: bytes, store: Words) -> None:
        """pairs: 512 of 32-byte seeds, fresh. seed, store: as `okvs.encode(keys, target(keys))` made them."""
        self._first = [Prg(first, _LABEL) for first, _ in pairs]
        self._second = [Prg(second, _LABEL) for _, second in pairs]
        self._seed, self._store = seed, store
        self._transfers: list[Words] = []

    def corrections(self, number: int) -> bytes:
        """U of block `number`, 64 bytes for each row of the store. Blocks come in order, once each."""
        rows = self._block(number)
        second = _stream(self._second, number, len(rows))
        return (self._transfers[-1] ^ second ^ encode(rows)).astype("<u8", copy=False).tobytes()

    def skip(self, number: int) -> None:
        """Skip block `number`, in place of `corrections`: the holder has it from these very seeds and this store."""
        self._block(number)

    def _block(self, number: int) -> Words:
        rows = self._store[number * BLOCK : (number + 1) * BLOCK]
        self._transfers.append(_stream(self._first, number, len(rows)))
        return rows

    def answers(self, keys: bytes, executor: Executor | None = None) -> Words:
        """F (n, 2) on n stored keys (n x 32 bytes), after all blocks."""
        transfer = np.concatenate(self._transfers)
        return _prf(self._seed, transfer, keys, executor, lambda rows, _: rows)


class Holder(Secret):
    """The end that can tell F on any key."""

    __slots__ = ("_choices", "_rows", "_seeds")

    def __init__(self, choices: bytes, seeds: Sequence[bytes]) -> None:
        """choices: s, 64 bytes. seeds: of each pair the one that its bit of s has chosen, lowest bit first."""
        self._choices = np.frombuffer(choices, "<u8").astype(np.uint64)
        self._seeds = [Prg(seed, _LABEL) for seed in seeds]
        self._rows: list[Words] = []

    def correct(self, number: int, corrections: bytes) -> None:
        """Take block `number` of the corrections U, in order."""
        received = np.frombuffer(corrections, "<u8").reshape(-1, _WIDTH)
        self._rows.append(_stream(self._seeds, number, len(received)) ^ (received & self._choices))

    def values(self, seed: bytes, keys: bytes, executor: Executor | None = None) -> Words:
        """F (n, 2) on n keys (n x 32 bytes), after all blocks. seed: of the evaluator's store."""
        hashed = target(keys, executor)
        corrected = np.concatenate(self._rows)
        return _prf(seed, corrected, keys, executor, lambda rows, at: rows ^ (encode(hashed[at]) & self._choices))


def _prf(
    seed: bytes,
    matrix: Words,
    keys: bytes,
    executor: Executor | None,
    finish: Callable[[Words, slice], Words],
) -> Words:
    """Hash(x, finish([matrix](x))) for each key x, some keys at a time."""
    found = []
    for start in range(0, len(keys), _KEYS * okvs.KEY_BYTES):
        part = keys[start : start + _KEYS * okvs.KEY_BYTES]
        first = start // okvs.KEY_BYTES
        rows = finish(okvs.decode(seed, matrix, part, executor), slice(first, first + len(part) // okvs.KEY_BYTES))
        octets = np.ascontiguousarray(rows, "<u8").view(np.uint8)
        both = np.concatenate([np.frombuffer(part, np.uint8).reshape(-1, okvs.KEY_BYTES), octets], axis=1)
        found.append(digests(both.tobytes(), 16, key=b"", purpose=b"ot prf", width=both.shape[1], executor=executor))
    return np.concatenate(found)


def _stream(prgs: Sequence[Prg], number: int, rows: int) -> Words:
    """Return the bits (rows, 8) of block `number`: column j of the matrix is what generator j makes."""
    octets = -(-rows // 8)
    columns = np.empty((CODE_BITS, 8 * -(-octets // 8)), np.uint8)
    for column, prg in zip(columns, prgs, strict=True):
        prg.fill(column.view(np.uint64), number=number)
    return transposed(columns)[:rows]
