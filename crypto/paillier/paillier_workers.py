"""The slow Paillier operations as functions of integers, which worker processes of the same party can run.

A worker caches its two most recent keys with their tables of powers. These contain secret numbers, so an executor must
belong to one party. n is the modulus of the public key; ciphertexts are numbers modulo n^2.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from functools import lru_cache
from itertools import pairwise
from os import cpu_count
from typing import TypeVar

import gmpy2
from gmpy2 import mpz

from securevfl.crypto.paillier.multiexp import BaseRange, evaluate
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey, noise

KeyNumbers = tuple[int, int, int, int]
"""The secret numbers of a key, from `SecretKey.parts_for_workers`."""

Key = TypeVar("Key")


@lru_cache(maxsize=2)
def _secret(parts: KeyNumbers) -> SecretKey:
    return SecretKey(*parts)


@lru_cache(maxsize=2)
def _public(n: int, h: int) -> PublicKey:
    return PublicKey(n, h)


def encrypt_as_holder(parts: KeyNumbers, plaintexts: list[int]) -> list[int]:
    """Encrypt plaintexts with the secret key, which is faster than with the public key."""
    return _secret(parts).encrypt(plaintexts)


def decrypt_all(parts: KeyNumbers, ciphertexts: list[int]) -> list[int]:
    """Decrypt ciphertexts to plaintexts in [0, n)."""
    return _secret(parts).decrypt(ciphertexts)


def encrypt_all(key: tuple[int, int], plaintexts: list[int]) -> list[int]:
    """Encrypt plaintexts under the public key (n, h), with random powers of h."""
    public = _public(*key)
    bits = public.bits // 2
    return [int(public.shift(m) * noise(public, bits, 8) % public.square) for m in plaintexts]


def rerandomise_all(n: int, ciphertexts: list[int]) -> list[int]:
    """Multiply each ciphertext by x^n mod n^2, for a new x that is uniform among the units modulo n."""
    square, modulus = mpz(n) ** 2, mpz(n)
    return [int(c * gmpy2.powmod(_unit(modulus), modulus, square) % square) for c in ciphertexts]


def _unit(n: mpz) -> mpz:
    """Draw a uniformly random unit modulo n. A bad n with small factors has many numbers that are not units."""
    while gmpy2.gcd(x := mpz(secrets.randbelow(int(n))), n) != 1:
        pass
    return x


def evaluate_block(block: BaseRange, bases: list[int], modulus: int) -> list[int]:
    """Compute the products of powers in one worker's block of work (multiexp.py)."""
    return [int(x) for x in evaluate(block, bases, modulus)]


def worker_count(executor: Executor | None) -> int:
    """Return the number of pieces that work is divided into: the executor's workers, or this computer's processors."""
    return 1 if executor is None else getattr(executor, "workers", None) or cpu_count() or 1


def run_in_pieces(
    executor: Executor, function: Callable[[Key, list[int]], list[int]], key: Key, items: list[int]
) -> list[int]:
    """Divide items into one piece for each worker, and run a function on the pieces in parallel.

    Args:
        executor: this party's processes.
        function: a function of the key and a piece, which returns a result for each item.
        key: the key that the function needs, secret or public.
        items: the numbers that the function processes, such as ciphertexts.

    Returns:
        The results of all items, in their order.
    """
    pieces = max(1, min(worker_count(executor), len(items)))
    edges = [len(items) * i // pieces for i in range(pieces + 1)]
    futures = [executor.submit(function, key, items[i:j]) for i, j in pairwise(edges)]
    return [result for future in futures for result in future.result()]
