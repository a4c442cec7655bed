"""The heavy Paillier calls as functions of plain integers, for worker processes of the same party.

A worker keeps the two keys it was given last, with their tables, so that these are built once a process. Secret parts
stay in its memory until then: an executor belongs to one party.
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

Parts = tuple[int, int, int, int]

Head = TypeVar("Head")


@lru_cache(maxsize=2)
def _secret(parts: Parts) -> SecretKey:
    return SecretKey(*parts)


@lru_cache(maxsize=2)
def _public(n: int, h: int) -> PublicKey:
    return PublicKey(n, h)


def encrypt_as_holder(parts: Parts, plaintexts: list[int]) -> list[int]:
    """Fresh encryptions, by combs mod p^2 and q^2."""
    return _secret(parts).encrypt(plaintexts)


def decrypt_all(parts: Parts, ciphertexts: list[int]) -> list[int]:
    """Plaintexts in [0, n)."""
    return _secret(parts).decrypt(ciphertexts)


def encrypt_all(head: tuple[int, int], plaintexts: list[int]) -> list[int]:
    """Fresh encryptions under the public key (n, h), by h^s with s of |n|/2 bits."""
    public = _public(*head)
    bits = public.bits // 2
    return [int(public.shift(m) * noise(public, bits, 8) % public.square) for m in plaintexts]


def rerandomise_all(n: int, ciphertexts: list[int]) -> list[int]:
    """Each ciphertext times x^n mod n^2 for a fresh x, uniform in Z_n^*."""
    square, modulus = mpz(n) ** 2, mpz(n)
    return [int(c * gmpy2.powmod(_unit(modulus), modulus, square) % square) for c in ciphertexts]


def _unit(n: mpz) -> mpz:
    """Draw a uniform element of Z_n^*: an n with factors of 17 bits has elements without an inverse."""
    while gmpy2.gcd(x := mpz(secrets.randbelow(int(n))), n) != 1:
        pass
    return x


def evaluate_block(block: BaseRange, bases: list[int], modulus: int) -> list[int]:
    """Compute one block of a multi-exponentiation."""
    return [int(x) for x in evaluate(block, bases, modulus)]


def worker_count(executor: Executor | None) -> int:
    """Into how many pieces work is cut: what an executor says of itself, or one for each processor here."""
    return 1 if executor is None else getattr(executor, "workers", None) or cpu_count() or 1


def run_in_pieces(
    executor: Executor, function: Callable[[Head, list[int]], list[int]], head: Head, items: list[int]
) -> list[int]:
    """function(head, items) in as many pieces as there are workers, put together in order."""
    pieces = max(1, min(worker_count(executor), len(items)))
    edges = [len(items) * i // pieces for i in range(pieces + 1)]
    futures = [executor.submit(function, head, items[i:j]) for i, j in pairwise(edges)]
    return [result for future in futures for result in future.result()]
