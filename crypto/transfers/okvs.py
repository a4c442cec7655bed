"""Oblivious key-value stores: a table that yields the values of n keys, and noise for every other key.

    encode: {key: value} -> seed, table          decode: seed, table, key -> value

If the values are random, the table does not reveal its keys (Garimella, Pinkas, Rosulek, Trieu, Yanai 2021, "Oblivious
key-value stores and amplification for private set intersection"). Keys and values have 16 bytes each, and are rows of
two uint64 in arrays (n, 2). ^ is XOR. The rows of a table are called slots. The first slots T are sparse: a key x uses
three of them. The last 64 slots D are dense: a key uses a random subset. This is the construction 3H-GCT of the paper:

    value(x) = T[h1(x)] ^ T[h2(x)] ^ T[h3(x)] ^ (XOR of D[j] for all j in the subset h4(x))

The hashes h1 to h4 are AES encryptions of the key under keys that are derived from a seed.

`encode` must find a table that satisfies this equation for all n keys. It draws a random table and then changes some
slots. First it removes, one by one, keys of which a sparse slot is used by no other remaining key. For the keys that
remain in the end (the "core", which is nearly always empty) it solves the equations by elimination, with the help of
the dense slots. Then it adds the removed keys in reverse order, and sets the slot that each has alone. With uniform
values, the resulting table is uniform and reveals nothing about the keys. Only the seed does: if a seed does not work
for the keys, another one is tried, so a seed excludes key sets for which it fails. That is rare, with a probability
below 2^-40, because of the size of the table:

    sparse slots   n * max(1.3, 1.223 + 49.2 / (5.05 * n^0.555))     so that the core is small
    dense slots    64 >= 40 / log2(sparse slots) + 40                so that the equations of a small core are solvable

These numbers are from Raghuraman, Rindal 2022 ("Blazing fast PSI"), section 3; they are fitted to experiments, not
proven. To a party that does not choose the keys, the hashes are pseudorandom functions; if somebody chooses keys and
seed, AES is assumed to be an ideal cipher (docs/proof.md).
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
"""Length of a seed in bytes."""
VALUE_BYTES = 16
"""Length of a key, and of a value, in bytes."""
_DENSE_SLOTS = 64
_MAX_CORE_KEYS = 4096
_MAX_SEEDS = 64
_KEYS_AT_ONCE = 1 << 14

KeySlots = tuple[list[NDArray[np.int64]], NDArray[np.uint64]]
"""For n keys: three arrays (n,) with the sparse slots of each key, and its subset of dense slots as 64 bits (n,)."""


def table_rows(n: int) -> int:
    """Return the number of sparse and dense slots of the table for n keys."""
    return 3 * _third(n) + _DENSE_SLOTS


def _third(n: int) -> int:
    expansion = max(1.3, 1.223 + 49.2 / (5.05 * max(n, 1) ** 0.555))
    return int(expansion * max(n, 1)) // 3 + 1


def encode(keys: Words, values: Words) -> tuple[bytes, Words]:
    """Encode keys and their values.

    The table hides the keys if the values look uniform to everyone who sees it. Do not send two tables with the same
    keys and values: anybody can test whether a key has the same value in both.

    Args:
        keys: n different keys (n, 2).
        values: the values of the keys (n, 2).

    Returns:
        The seed, and the table (table_rows(n), 2).

    Raises:
        CryptoError: if two keys are equal, or the numbers of keys and values differ.
    """
    n = len(keys)
    if keys.shape != (n, 2) or values.shape != (n, 2):
        raise CryptoError(
            f"keys of shape {keys.shape} and values of shape {values.shape} do not match",
            "pass one value for each key",
            code="SVFL-CRYPTO-SHAPE",
        )
    for _ in range(_MAX_SEEDS):
        seed = os.urandom(OKVS_SEED_BYTES)
        sparse, dense = _slots_of_keys(seed, keys, _third(n))
        rounds, core = _peel(sparse, 3 * _third(n))
        if len(core) > _MAX_CORE_KEYS:
            continue
        table = np.frombuffer(os.urandom(table_rows(n) * VALUE_BYTES), np.uint64).reshape(-1, 2).copy()
        if _solve(core, sparse, dense, values, table):
            break
    else:
        raise CryptoError(
            f"a key-value store of {n} keys cannot be encoded", "remove equal keys", code="SVFL-CRYPTO-PARAMETERS"
        )
    target = values ^ _subset_sums(table[-_DENSE_SLOTS:], dense)
    for peeled, free in reversed(rounds):
        table[free] = 0
        table[free] = take_rows(target, peeled) ^ _three(table, [slot[peeled] for slot in sparse])
    return seed, table


def decode(seed: bytes, keys: Words, *tables: Words) -> list[Words]:
    """Return the values of keys in several tables of equal length; the value of a key that was not encoded is noise.

    A value is the XOR of rows of the table; crypto/transfers/vole_prf.py depends on this linearity.

    Args:
        seed: the seed of the tables.
        keys: k keys (k, 2).
        *tables: tables of m slots (m, 2).

    Returns:
        The values (k, 2) for each table.
    """
    values = [np.empty((len(keys), 2), np.uint64) for _ in tables]
    third = (len(tables[0]) - _DENSE_SLOTS) // 3
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        sparse, dense = _slots_of_keys(seed, keys[start : start + _KEYS_AT_ONCE], third)
        for out, table in zip(values, tables, strict=True):
            out[start : start + _KEYS_AT_ONCE] = _three(table, sparse) ^ _subset_sums(table[-_DENSE_SLOTS:], dense)
    return values


def _three(table: Words, sparse: list[NDArray[np.int64]]) -> Words:
    total = take_rows(table, sparse[0])
    for slot in sparse[1:]:
        total ^= take_rows(table, slot)
    return total


def _slots_of_keys(seed: bytes, keys: Words, third: int) -> KeySlots:
    """Return the slots of each key.

    A key has one sparse slot in each third of the sparse slots. Its position there is `third`, the number of slots of a
    third, times a random number of 32 bits, divided by 2^32.
    """
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
    """Return the XOR of each of n subsets of the rows (64, 2). A subset is given by 64 bits (n,).

    For speed, the XORs of all 256 subsets of eight consecutive rows are computed first.
    """
    total = np.zeros((len(subsets), 2), np.uint64)
    octets = np.ascontiguousarray(subsets, "<u8").view(np.uint8).reshape(-1, _DENSE_SLOTS // 8)
    for group in range(_DENSE_SLOTS // 8):
        sums = np.zeros((1, 2), np.uint64)
        for row in rows[8 * group : 8 * group + 8]:
            sums = np.concatenate([sums, sums ^ row])
        total ^= take_rows(sums, octets[:, group])
    return total


def _peel(
    sparse: list[NDArray[np.int64]], m: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Remove keys in rounds, as long as some remaining key has a sparse slot that no other remaining key uses.

    Args:
        sparse: the three sparse slots of each key.
        m: number of sparse slots.

    Returns:
        For each round, the indices of the removed keys, and for each of these a slot that no other remaining key uses;
        and the indices of the keys that remain (the core).
    """
    n = len(sparse[0])
    count = np.zeros(m, np.int64)
    link = np.zeros(m, np.int64)  # XOR of the indices of all remaining keys of a slot; of one key, its index
    for slot in sparse:
        count += np.bincount(slot, minlength=m)
        np.bitwise_xor.at(link, slot, np.arange(n))
    slot_of = np.full(n, -1)  # the slot that each removed key had alone; -1 for keys that remain
    rounds = []
    while (free := np.flatnonzero(count == 1)).size:
        slot_of[link[free]] = free  # if a key has several slots alone, this stores the last of them
        chosen = free[slot_of[link[free]] == free]
        peeled = link[chosen]
        rounds.append((peeled, chosen))
        for slot in sparse:
            np.subtract.at(count, slot[peeled], 1)
            np.bitwise_xor.at(link, slot[peeled], peeled)
    return rounds, np.flatnonzero(slot_of < 0)


def _solve(
    core: NDArray[np.int64], sparse: list[NDArray[np.int64]], dense: NDArray[np.uint64], values: Words, table: Words
) -> bool:
    """Change slots of the table so that the keys of the core have their values, by elimination over GF(2).

    An equation is an integer with one bit for each slot. Slots that no equation determines keep their random values.

    Args:
        core: the indices of the keys in the core.
        sparse: the three sparse slots of each key.
        dense: the subset of dense slots of each key, as bits.
        values: the values of all keys.
        table: the table, which is changed in place.

    Returns:
        False if there is no solution, because the equations are linearly dependent.
    """
    slots_of = np.stack([slot[core] for slot in sparse], axis=1)
    slots = [*np.unique(slots_of).tolist(), *range(len(table) - _DENSE_SLOTS, len(table))]
    column = {slot: bit for bit, slot in enumerate(slots)}
    solved: dict[int, tuple[int, Words]] = {}
    for key, sparse_slots in zip(core.tolist(), slots_of.tolist(), strict=True):
        equation = int(dense[key]) << len(slots) - _DENSE_SLOTS
        for slot in sparse_slots:
            equation ^= 1 << column[slot]
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
                value = value ^ table[slots[bit]]
        table[slots[top]] = value
    return True
