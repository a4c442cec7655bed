"""A proof that n has no common factor with phi(n), which is part of every Paillier public key.

Goldberg, Reyzin, Sagga, Baldimtsi 2019 ("Efficient noninteractive certification of RSA moduli and beyond", section
3.2): x -> x^n permutes Z_n^* if and only if gcd(n, phi(n)) = 1. If n and phi(n) share a prime l, at most one element in
l has an n-th root.

    holder     n-th roots mod n of PROOF_ROOTS elements that a hash of n determines verifier   n has no factor below
    2^16, so l is larger; the elements are units; each root to the power n is its element

A modulus without this property passes with probability (2^-16)^PROOF_ROOTS = 2^-128, with SHAKE-256 as a random oracle.
Roots of elements that nobody has chosen reveal nothing else: anyone can draw a root first and compute its power.

The property makes (r, x) -> (1 + n)^r x^n a bijection from Z_n x Z_n^* to the units mod n^2 (Paillier 1999, section 3:
an element of the kernel has x^n = 1 mod n, so x = 1 and r = 0, and both sides have n phi(n) elements). A ciphertext
times (1 + n)^r x^n for uniform r and x is therefore a uniform unit, whatever the primes are, how many there are, and
how smooth p - 1 is. Without the property, a holder with q = 2 k p + 1, for example, could read an evaluator's exponents
modulo p.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256

import gmpy2
from gmpy2 import mpz

PROOF_ROOTS = 8
"""Number of roots in a proof."""


def _elements(n: mpz) -> list[mpz]:
    """Return PROOF_ROOTS elements of Z_n, uniform within 2^-128."""
    size = (n.bit_length() + 7) // 8 + 16
    head = b"securevfl n-th roots 1" + gmpy2.to_binary(n)
    return [mpz(int.from_bytes(shake_256(head + bytes([i])).digest(size), "big")) % n for i in range(PROOF_ROOTS)]


def prove_modulus(p: int, q: int) -> list[int]:
    """Return the roots of the proof for n = p q, with distinct primes and gcd(n, (p - 1)(q - 1)) = 1."""
    n = mpz(p) * q
    invert = gmpy2.invert(q, p)
    roots = []
    for element in _elements(n):
        x, y = (gmpy2.powmod(element, gmpy2.invert(n, prime - 1), prime) for prime in (p, q))
        roots.append(int(y + q * ((x - y) * invert % p)))
    return roots


def verify_modulus(n: mpz, roots: Sequence[int]) -> bool:
    """Return whether a proof is valid; the caller must have checked that n has no factor below 2^16."""
    elements = _elements(n)
    if len(roots) != PROOF_ROOTS or any(gmpy2.gcd(element, n) != 1 for element in elements):
        return False
    return all(gmpy2.powmod(root, n, n) == element for root, element in zip(roots, elements, strict=True))
