"""Keys of the ring R on residues.

A public key is (b, a) with b = -(a s + e): s is ternary, e are errors, and a is expanded from a coin that neither party
chooses. A ciphertext (c0, c1) of m satisfies c0 + c1 s = m + noise. The polynomials of keys are stored as coefficients.
"""

from __future__ import annotations

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_sampling import errors, ternary, uniform
from securevfl.crypto.prg import Prg


def second_polynomial(primes: Primes, coin: bytes) -> Floats:
    """Derive the second polynomial a (P, N) of the public key from a coin; its coefficients are uniform."""
    return uniform(Prg(coin, "public second polynomial of a key on the kernel"), primes, (DEGREE,))


def keypair(primes: Primes, second: Floats) -> tuple[Floats, Floats]:
    """Draw a fresh secret.

    Args:
        primes: the primes.
        second: the second polynomial a (P, N) of the public key.

    Returns:
        The secret s (N,), and the first polynomial b (P, N) of the public key (b, a).
    """
    prg, ring = Prg.fresh("keys on the kernel"), transform(primes, DEGREE)
    secret = ternary(prg, (DEGREE,))
    product = primes.reduce(ring.forward(second[..., None]) * ring.forward(secret[:, None]))
    first = primes.reduce(-ring.back(product)[..., 0] - errors(prg, (DEGREE,)))
    return secret, first
