"""Oblivious key-value stores: a table that answers n keys with their values and every other key with noise.

    encode: {key: value} -> seed, table          decode: seed, table, key -> value

A table of random values does not show which keys are in it (Garimella, Pinkas, Rosulek, Trieu, Yanai 2021, "Oblivious
key-value stores and amplification for private set intersection"). Here it is theirs over GF(2) with three hashes
(3H-GCT): key x reads three sparse slots and a subset of 64 dense ones,

    value(x) = T[h1(x)] ^ T[h2(x)] ^ T[h3(x)] ^ XOR of D[j] over the bits j of h4(x)

`encode` draws the whole table at random, then sets what the keys determine: keys are peeled off one by one where a
sparse slot belongs to one key alone; what cannot be peeled (the 2-core, nearly always nothing) is solved with the dense
slots by elimination; the peeled keys follow in reverse. Each step maps (values, free slots) one to one to the table,
so with uniform values the table is uniform and says nothing of the keys, the seed aside: a seed is kept only if it
works, so a key set for which it would fail is ruled out. Table sizes make that happen with a chance below 2^-40:

    sparse slots   n max(1.3, 1.223 + 49.2 / (5.05 n^0.555))     no 2-core but a small one
    dense slots    64 >= 40 / log2(sparse slots) + 40            for the rank that a small 2-core lacks

after Raghuraman, Rindal 2022 ("Blazing fast PSI"), section 3; their constants are fitted to experiments, not proven.

Keys are 32 bytes each, values 16 bytes each as two uint64; arrays (n, 2).
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Executor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import CryptoError

__all__ = ["KEY_BYTES", "SEED_BYTES", "VALUE_BYTES", "Words", "decode", "digests", "encode", "slots"]

Words = NDArray[np.uint64]

KEY_BYTES = 32
SEED_BYTES = 16
VALUE_BYTES = 16
_DENSE = 64
_LARGEST_CORE = 4096
_TRIES = 64
_CHUNK = 1 << 14


def digests(
    rows: bytes, size: int, *, key: bytes, purpose: bytes, width: int = KEY_BYTES, executor: Executor | None = None
) -> Words:
    """BLAKE2b under `key` (up to 64 bytes) of each of n rows of `width` bytes: (n, size / 8) words.

    A pseudorandom function if the key is secret, a hash if not; `purpose` (up to 16 bytes) keeps uses apart.
    """
    step = _CHUNK * width
    chunks = [rows[start : start + step] for start in range(0, len(rows), step)]
    work = partial(_digest_chunk, size, key, purpose, width)
    raw = b"".join(executor.map(work, chunks) if executor else map(work, chunks))
    return np.frombuffer(raw, "<u8").reshape(-1, size // 8).astype(np.uint64, copy=False)


def _digest_chunk(size: int, key: bytes, purpose: bytes, width: int, rows: bytes) -> bytes:
    blake = hashlib.blake2b
    starts = range(0, len(rows), width)
    return b"".join([blake(rows[at : at + width], digest_size=size, key=key, person=purpose).digest() for at in starts])


def slots(n: int) -> int:
    """Rows of the table for n keys, sparse and dense."""
    return 3 * _third(n) + _DENSE


def _third(n: int) -> int:
    expansion = max(1.3, 1.223 + 49.2 / (5.05 * max(n, 1) ** 0.555))
    return int(expansion * max(n, 1)) // 3 + 1


def encode(keys: bytes, values: Words, executor: Executor | None = None) -> tuple[bytes, Words]:
    """Seed (16 bytes) and table (slots(n), 2) for n different keys (n x 32 bytes) and their values (n, 2).

    The table is oblivious if the values are uniform to whoever sees it. It serves once: two tables of the same pairs
    show by where they agree which keys they hold. CryptoError if two keys are equal or the counts differ.
    """
    n = len(keys) // KEY_BYTES
    if len(keys) != n * KEY_BYTES or values.shape != (n, 2):
        raise CryptoError(f"key-value store: {len(keys)} bytes of keys and values of shape {values.shape} do not match")
    for _ in range(_TRIES):
        seed = os.urandom(SEED_BYTES)
        sparse, dense = _places(seed, keys, _third(n), executor)
        rounds, core = _peel(sparse, 3 * _third(n))
        if len(core) > _LARGEST_CORE:
            continue
        table = np.frombuffer(os.urandom(slots(n) * VALUE_BYTES), np.uint64).reshape(-1, 2).copy()
        if _solve(core, sparse, dense, values, table):
            break
    else:
        raise CryptoError(f"key-value store: no seed fits these {n} keys; expected different keys, are two equal?")
    target = values ^ _subset_sums(table[-_DENSE:], dense)
    for peeled, own in reversed(rounds):
        table[own] = 0
        table[own] = target[peeled] ^ _three(table, sparse[peeled])
    return seed, table


def decode(seed: bytes, table: Words, keys: bytes, executor: Executor | None = None) -> Words:
    """Return the values (k, w) of k keys (k x 32 bytes): what was encoded, noise for keys that were not.

    The table may have any width w: the answer is the same XOR of its rows, on which crypto/transfers/ot_extension.py
    relies.
    """
    sparse, dense = _places(seed, keys, (len(table) - _DENSE) // 3, executor)
    return _three(table, sparse) ^ _subset_sums(table[-_DENSE:], dense)


def _three(table: Words, sparse: NDArray[np.int64]) -> Words:
    return table[sparse[:, 0]] ^ table[sparse[:, 1]] ^ table[sparse[:, 2]]


def _places(seed: bytes, keys: bytes, third: int, executor: Executor | None) -> tuple[NDArray[np.int64], Words]:
    """Sparse slots (n, 3), one in each third of the table, and the dense subset (n,) as bits."""
    words = digests(keys, 32, key=seed, purpose=b"okvs", executor=executor)
    sparse = (words[:, :3] % np.uint64(third)).astype(np.int64) + np.arange(3) * third
    return sparse, words[:, 3].copy()


def _subset_sums(rows: Words, subsets: Words) -> Words:
    """XOR of the rows (64, w) that each subset (n,) names, through tables of all subsets of eight rows."""
    total = np.zeros((len(subsets), rows.shape[1]), np.uint64)
    for group in range(_DENSE // 8):
        sums = np.zeros((1, rows.shape[1]), np.uint64)
        for row in rows[8 * group : 8 * group + 8]:
            sums = np.concatenate([sums, sums ^ row])
        total ^= sums[(subsets >> np.uint64(8 * group)) & np.uint64(255)]
    return total


def _peel(
    sparse: NDArray[np.int64], m: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Return rounds of (keys, the slot each has alone once earlier rounds are gone), and the keys left over."""
    count = np.bincount(sparse.ravel(), minlength=m)
    link = np.zeros(m, np.int64)  # XOR of the numbers of a slot's keys: with one key left, its number
    for column in range(3):
        np.bitwise_xor.at(link, sparse[:, column], np.arange(len(sparse)))
    left = np.ones(len(sparse), np.bool_)
    rounds = []
    while (free := np.flatnonzero(count == 1)).size:
        peeled, first = np.unique(link[free], return_index=True)
        rounds.append((peeled, free[first]))
        left[peeled] = False
        for column in range(3):
            np.subtract.at(count, sparse[peeled, column], 1)
            np.bitwise_xor.at(link, sparse[peeled, column], peeled)
    return rounds, np.flatnonzero(left)


def _solve(core: NDArray[np.int64], sparse: NDArray[np.int64], dense: Words, values: Words, table: Words) -> bool:
    """Set slots of the table so that it answers the core's keys; the others keep their random values.

    Elimination over GF(2): an equation is an integer, one bit a slot. False if the keys' equations are dependent.
    """
    places = [*np.unique(sparse[core]).tolist(), *range(len(table) - _DENSE, len(table))]
    column = {place: bit for bit, place in enumerate(places)}
    solved: dict[int, tuple[int, Words]] = {}
    for key in core.tolist():
        equation = int(dense[key]) << len(places) - _DENSE
        for place in sparse[key].tolist():
            equation ^= 1 << column[place]
        value = values[key].copy()
        while equation and (top := equation.bit_length() - 1) in solved:
            equation ^= solved[top][0]
            value ^= solved[top][1]
        if not equation:
            return False
        solved[top] = equation, value
    for top in sorted(solved):
        equation, value = solved[top]
        for bit in range(top):
            if equation >> bit & 1:
                value = value ^ table[places[bit]]
        table[places[top]] = value
    return True
