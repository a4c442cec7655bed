"""A proof that n has no common factor with phi(n), which is part of every Paillier public key.

phi(n) is the number of units modulo n, that is of numbers below n without a common factor with n. The function x -> x^n
permutes the units if and only if gcd(n, phi(n)) = 1. If n and phi(n) share a prime factor l, at most one unit in l has
an n-th root (Goldberg, Reyzin, Sagga, Baldimtsi 2019, "Efficient noninteractive certification of RSA moduli and
beyond", section 3.2).

    holder     sends the n-th roots modulo n of PROOF_ROOTS numbers, which are hashes of n
    verifier   checks that n has no factor below 2^16 (so l is larger), that the numbers are units, and that each root
               to the power n is its number

A modulus without the property passes with probability (2^-16)^PROOF_ROOTS = 2^-128, with SHAKE-256 as a random oracle.
The proof reveals nothing else, because anyone can draw a random root and compute its n-th power.

If the property holds, the function (r, x) -> (1 + n)^r * x^n maps pairs of a number r modulo n and a unit x modulo n
one to one to the units modulo n^2 (Paillier 1999, section 3). A ciphertext times (1 + n)^r * x^n, for uniformly random
r and x, is therefore a uniformly random unit, whatever primes the holder has chosen. Without the property, a holder
with q = 2 * k * p + 1, for example, could read exponents of the evaluator modulo p.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256

import gmpy2
from gmpy2 import mpz

PROOF_ROOTS = 8
"""Number of n-th roots in a proof."""


def _elements(n: mpz) -> list[mpz]:
    """Return PROOF_ROOTS numbers below n, hashes of n that are uniform up to a statistical distance of 2^-128."""
    size = (n.bit_length() + 7) // 8 + 16
    head = b"securevfl n-th roots 1" + gmpy2.to_binary(n)
    return [mpz(int.from_bytes(shake_256(head + bytes([i])).digest(size), "big")) % n for i in range(PROOF_ROOTS)]


def prove_modulus(p: int, q: int) -> list[int]:
    """Return the n-th roots for n = p * q, for different primes p and q with gcd(n, (p - 1) * (q - 1)) = 1."""
    n = mpz(p) * q
    invert = gmpy2.invert(q, p)
    roots = []
    for element in _elements(n):
        x, y = (gmpy2.powmod(element, gmpy2.invert(n, prime - 1), prime) for prime in (p, q))
        roots.append(int(y + q * ((x - y) * invert % p)))
    return roots


def verify_modulus(n: mpz, roots: Sequence[int]) -> bool:
    """Return whether a proof is valid. The caller must have checked that n has no factor below 2^16."""
    elements = _elements(n)
    if len(roots) != PROOF_ROOTS or any(gmpy2.gcd(element, n) != 1 for element in elements):
        return False
    return all(gmpy2.powmod(root, n, n) == element for root, element in zip(roots, elements, strict=True))
