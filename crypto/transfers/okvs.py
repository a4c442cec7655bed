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

Slots and subsets are what AES under keys of the seed makes of a key, which is a block: a pseudorandom function of the
key to whoever looks at it from outside, and an ideal cipher where somebody chooses keys and seed (proof.md). Keys and
values have 16 bytes each as two uint64; arrays (n, 2).
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.binary_field import take_rows
from securevfl.errors import CryptoError

OKVS_SEED_BYTES = 16
VALUE_BYTES = 16
_DENSE = 64
_LARGEST_CORE = 4096
_TRIES = 64
_AT_ONCE = 1 << 14

KeySlots = tuple[
    list[NDArray[np.int64]], NDArray[np.uint64]
]  # three sparse slots (n,) and the dense subset (n,) of bits


def table_rows(n: int) -> int:
    """Rows of the table for n keys, sparse and dense."""
    return 3 * _third(n) + _DENSE


def _third(n: int) -> int:
    expansion = max(1.3, 1.223 + 49.2 / (5.05 * max(n, 1) ** 0.555))
    return int(expansion * max(n, 1)) // 3 + 1


def encode(keys: Words, values: Words) -> tuple[bytes, Words]:
    """Seed (16 bytes) and table (slots(n), 2) for n different keys (n, 2) and their values (n, 2).

    The table is oblivious if the values are uniform to whoever sees it. It serves once: two tables of the same pairs
    show by where they agree which keys they hold. CryptoError if two keys are equal or the counts differ.
    """
    n = len(keys)
    if keys.shape != (n, 2) or values.shape != (n, 2):
        raise CryptoError(f"key-value store: keys of shape {keys.shape} and values of {values.shape} do not match")
    for _ in range(_TRIES):
        seed = os.urandom(OKVS_SEED_BYTES)
        sparse, dense = _places(seed, keys, _third(n))
        rounds, core = _peel(sparse, 3 * _third(n))
        if len(core) > _LARGEST_CORE:
            continue
        table = np.frombuffer(os.urandom(table_rows(n) * VALUE_BYTES), np.uint64).reshape(-1, 2).copy()
        if _solve(core, sparse, dense, values, table):
            break
    else:
        raise CryptoError(f"key-value store: no seed fits these {n} keys; expected different keys, are two equal?")
    target = values ^ _subset_sums(table[-_DENSE:], dense)
    for peeled, own in reversed(rounds):
        table[own] = 0
        table[own] = take_rows(target, peeled) ^ _three(table, [slot[peeled] for slot in sparse])
    return seed, table


def decode(seed: bytes, keys: Words, *tables: Words) -> list[Words]:
    """Return the values (k, 2) of k keys (k, 2) in each of the tables (m, 2), all as long: what was encoded, noise for
    keys that were not.

    A value is a sum of rows of the table, on which crypto/transfers/vole.py relies.
    """
    found = [np.empty((len(keys), 2), np.uint64) for _ in tables]
    third = (len(tables[0]) - _DENSE) // 3
    for start in range(0, len(keys), _AT_ONCE):
        sparse, dense = _places(seed, keys[start : start + _AT_ONCE], third)
        for out, table in zip(found, tables, strict=True):
            out[start : start + _AT_ONCE] = _three(table, sparse) ^ _subset_sums(table[-_DENSE:], dense)
    return found


def _three(table: Words, sparse: list[NDArray[np.int64]]) -> Words:
    total = take_rows(table, sparse[0])
    for slot in sparse[1:]:
        total ^= take_rows(table, slot)
    return total


def _places(seed: bytes, keys: Words, third: int) -> KeySlots:
    """Say where each key lies: one slot in each third of the table, 32 bits times its size over 2^32."""
    octets = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
    ciphers = hashlib.blake2b(b"okvs", key=seed, digest_size=2 * VALUE_BYTES).digest()
    one, two = (
        Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(octets)  # noqa: S305
        for key in (ciphers[:VALUE_BYTES], ciphers[VALUE_BYTES:])
    )
    drawn = np.frombuffer(one, "<u4").reshape(-1, 4)
    sparse = []
    for column in range(3):
        slot = drawn[:, column].astype(np.uint64)
        slot *= np.uint64(third)
        slot >>= np.uint64(32)
        slot += np.uint64(column * third)
        sparse.append(slot.view(np.int64))
    return sparse, np.frombuffer(two, "<u8")[::2].astype(np.uint64)


def _subset_sums(rows: Words, subsets: NDArray[np.uint64]) -> Words:
    """XOR of the rows (64, 2) that each subset (n,) names, through tables of all subsets of eight rows."""
    total = np.zeros((len(subsets), 2), np.uint64)
    octets = np.ascontiguousarray(subsets, "<u8").view(np.uint8).reshape(-1, _DENSE // 8)
    for group in range(_DENSE // 8):
        sums = np.zeros((1, 2), np.uint64)
        for row in rows[8 * group : 8 * group + 8]:
            sums = np.concatenate([sums, sums ^ row])
        total ^= take_rows(sums, octets[:, group])
    return total


def _peel(
    sparse: list[NDArray[np.int64]], m: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Return rounds of (keys, the slot each has alone once earlier rounds are gone), and the keys left over."""
    n = len(sparse[0])
    count = np.zeros(m, np.int64)
    link = np.zeros(m, np.int64)  # XOR of the numbers of a slot's keys: with one key left, its number
    for slot in sparse:
        count += np.bincount(slot, minlength=m)
        np.bitwise_xor.at(link, slot, np.arange(n))
    taken = np.full(n, -1)  # the slot that a key has been peeled by
    rounds = []
    while (free := np.flatnonzero(count == 1)).size:
        taken[link[free]] = free  # where a key is alone in several slots, the last one
        own = free[taken[link[free]] == free]
        peeled = link[own]
        rounds.append((peeled, own))
        for slot in sparse:
            np.subtract.at(count, slot[peeled], 1)
            np.bitwise_xor.at(link, slot[peeled], peeled)
    return rounds, np.flatnonzero(taken < 0)


def _solve(
    core: NDArray[np.int64], sparse: list[NDArray[np.int64]], dense: NDArray[np.uint64], values: Words, table: Words
) -> bool:
    """Set slots of the table so that it answers the core's keys; the others keep their random values.

    Elimination over GF(2): an equation is an integer, one bit a slot. False if the keys' equations are dependent.
    """
    slots_of = np.stack([slot[core] for slot in sparse], axis=1)
    places = [*np.unique(slots_of).tolist(), *range(len(table) - _DENSE, len(table))]
    column = {place: bit for bit, place in enumerate(places)}
    solved: dict[int, tuple[int, Words]] = {}
    for key, own in zip(core.tolist(), slots_of.tolist(), strict=True):
        equation = int(dense[key]) << len(places) - _DENSE
        for place in own:
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
