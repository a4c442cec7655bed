"""Generation of keys for encryption with polynomials, which are stored as coefficients modulo P primes, (P, N).

The secret key is a polynomial s with N = 4096 coefficients of -1, 0 or 1 (ternary). A public key is a pair of
polynomials (b, a) with b = -(a * s + e). e contains small random errors. a is computed from 32 random bytes, so that no
party can choose it. These are either a seed, drawn by the party with the secret key, or a coin, to which both parties
contribute. A ciphertext (c0, c1) of a message m satisfies c0 + c1 * s = m + noise.
"""

from __future__ import annotations

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_sampling import errors, ternary, uniform
from securevfl.crypto.prg import Prg


def second_polynomial(primes: Primes, coin: bytes) -> Floats:
    """Compute the second polynomial a (P, N) of a public key from a coin or seed; its coefficients are uniform."""
    return uniform(Prg(coin, "public second polynomial of a key on the kernel"), primes, (DEGREE,))


def keypair(primes: Primes, second: Floats) -> tuple[Floats, Floats]:
    """Generate a new secret key and its public key.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        second: the second polynomial a (P, N) of the public key.

    Returns:
        The secret key s (N,), and the first polynomial b (P, N) of the public key.
    """
    prg, ring = Prg.fresh("keys on the kernel"), transform(primes, DEGREE)
    secret = ternary(prg, (DEGREE,))
    product = primes.reduce(ring.forward(second[..., None]) * ring.forward(secret[:, None]))
    first = primes.reduce(-ring.back(product)[..., 0] - errors(prg, (DEGREE,)))
    return secret, first
