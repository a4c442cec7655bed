"""Keys of the ring R on residues.

A public key is (b, a) with b = -(a s + e): s ternary, e errors, a expanded from a coin that neither party decides. A
ciphertext (c0, c1) of m has c0 + c1 s = m + noise. Polynomials of a key are kept as coefficients.
"""

from __future__ import annotations

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_sampling import errors, ternary, uniform
from securevfl.crypto.prg import Prg


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
