"""Keys of the ring R on residues, and what multiplies by one of their polynomials.

A public key is (b, a) with b = -(a s + e): s ternary, e errors, a expanded from a coin that neither party decides. A
ciphertext (c0, c1) of m has c0 + c1 s = m + noise. Polynomials of a key are kept as coefficients; at each of the M
points of S, where R has r elements, to multiply by a polynomial g of R is an r x r matrix:

    (g h)_o = sum over i <= o of g_(o - i) h_i  +  y sum over i > o of g_(o - i + r) h_i
"""

from __future__ import annotations

import numpy as np

from securevfl.crypto.kernel.residues import DEGREE, Floats, Primes
from securevfl.crypto.kernel.sampling import errors, ternary, uniform
from securevfl.crypto.kernel.transform import transform
from securevfl.crypto.prg import Prg

__all__ = ["keypair", "multiplier", "second_polynomial"]


def second_polynomial(primes: Primes, coin: bytes) -> Floats:
    """Derive from this coin the second polynomial a (P, N) of the public key: coefficients uniform modulo each
    prime."""
    return uniform(Prg(coin, "public second polynomial of a key on the kernel"), primes, (DEGREE,))


def keypair(primes: Primes, second: Floats) -> tuple[Floats, Floats]:
    """Draw a fresh secret s (N,); return it and the first polynomial b (P, N) of its public key (b, a), a being
    `second`."""
    prg, whole = Prg.fresh("keys on the kernel"), transform(primes, DEGREE)
    secret = ternary(prg, (DEGREE,))
    product = primes.reduce(whole.forward(second[..., None]) * whole.forward(secret[:, None]))
    first = primes.reduce(-whole.back(product)[..., 0] - errors(prg, (DEGREE,)))
    return secret, first


def multiplier(primes: Primes, polynomial: Floats, r: int) -> Floats:
    """(P, M, r, r): what multiplies by `polynomial` (P, N), or (N,) if the same for all primes, at each point."""
    steps = transform(primes, DEGREE // r)
    values = steps.forward(polynomial.reshape(*polynomial.shape[:-1], DEGREE // r, r))
    turned = primes.reduce(values * steps.roots[..., None])
    below = np.arange(r)[:, None] - np.arange(r)
    return np.concatenate([values, turned], axis=-1)[..., below % r + r * (below < 0)]
