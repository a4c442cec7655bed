"""The expensive Paillier operations as functions of integers, for worker processes of the same party.

A worker caches its two most recent keys with their tables, which are computed once in a process. Until then, secret
numbers stay in its memory, so an executor must belong to one party.
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
"""The secret numbers of a key, see `SecretKey.parts_for_workers`."""

Key = TypeVar("Key")


@lru_cache(maxsize=2)
def _secret(parts: KeyNumbers) -> SecretKey:
    return SecretKey(*parts)


@lru_cache(maxsize=2)
def _public(n: int, h: int) -> PublicKey:
    return PublicKey(n, h)


def encrypt_as_holder(parts: KeyNumbers, plaintexts: list[int]) -> list[int]:
    """Encrypt plaintexts with the secret key, with fixed-base tables mod p^2 and q^2."""
    return _secret(parts).encrypt(plaintexts)


def decrypt_all(parts: KeyNumbers, ciphertexts: list[int]) -> list[int]:
    """Decrypt ciphertexts to plaintexts in [0, n)."""
    return _secret(parts).decrypt(ciphertexts)


def encrypt_all(key: tuple[int, int], plaintexts: list[int]) -> list[int]:
    """Encrypt plaintexts under the public key (n, h) with h^s, where s has |n|/2 bits."""
    public = _public(*key)
    bits = public.bits // 2
    return [int(public.shift(m) * noise(public, bits, 8) % public.square) for m in plaintexts]


def rerandomise_all(n: int, ciphertexts: list[int]) -> list[int]:
    """Multiply each ciphertext by x^n mod n^2 for a fresh x that is uniform in Z_n^*."""
    square, modulus = mpz(n) ** 2, mpz(n)
    return [int(c * gmpy2.powmod(_unit(modulus), modulus, square) % square) for c in ciphertexts]


def _unit(n: mpz) -> mpz:
    """Draw a uniform element of Z_n^*; an n with factors of 17 bits has elements without an inverse."""
    while gmpy2.gcd(x := mpz(secrets.randbelow(int(n))), n) != 1:
        pass
    return x


def evaluate_block(block: BaseRange, bases: list[int], modulus: int) -> list[int]:
    """Compute one block of a multi-exponentiation."""
    return [int(x) for x in evaluate(block, bases, modulus)]


def worker_count(executor: Executor | None) -> int:
    """Return into how many pieces work is divided: the executor's number of workers, or that of processors here."""
    return 1 if executor is None else getattr(executor, "workers", None) or cpu_count() or 1


def run_in_pieces(
    executor: Executor, function: Callable[[Key, list[int]], list[int]], key: Key, items: list[int]
) -> list[int]:
    """Run a function on items in one piece for each worker.

    Args:
        executor: the executor.
        function: a function of the key and a piece.
        key: the key.
        items: the items.

    Returns:
        The results in the order of the items.
    """
    pieces = max(1, min(worker_count(executor), len(items)))
    edges = [len(items) * i // pieces for i in range(pieces + 1)]
    futures = [executor.submit(function, key, items[i:j]) for i, j in pairwise(edges)]
    return [result for future in futures for result in future.result()]
