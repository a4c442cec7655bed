"""Public values that a malicious peer chooses: each must be refused or must not help the peer.

keys        a lattice key with both halves, a Paillier modulus that shares a factor with phi(n), a weak Paillier base
shapes      a blinded product wider than agreed (in `engines`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gmpy2
from gmpy2 import mpz

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient, LatticeGradientParameters
from securevfl.crypto.paillier.modulus_proof import PROOF_ROOTS
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierHolder, PaillierScheme
from securevfl.crypto.scheme import KeyHolder
from securevfl.errors import CryptoError
from selfcheck.checks import engine_checks

_BITS = 2048


def lattice_key() -> Outcome:
    """Check that a public key that names its second half is refused: the evaluator expands that half from a seed."""
    half = residue_encoding.packed_size(LatticeGradientParameters().ring.key_primes, DEGREE)
    magic = LatticeGradient().keygen().public[:4]
    return _refused("a lattice key with both halves", lambda: LatticeGradient().evaluator(magic + bytes(2 * half)))


def paillier_modulus() -> Outcome:
    """With n = p p r, powers of x do not reach all n-th residues, so that a reply would reveal exponents modulo p."""
    p, r = gmpy2.next_prime(mpz(1) << 683), gmpy2.next_prime(mpz(3) << 680)
    public = PublicKey(int(p * p * r), 4, [2] * PROOF_ROOTS)
    return _refused("n = p p r", lambda: PublicKey.load(public.data, _BITS))


def _refused(what: str, work: Callable[[], Any]) -> Outcome:
    outcome = Outcome()
    try:
        work()
    except CryptoError:
        return outcome
    outcome.add("refusal", "evaluator", f"{what} is accepted")
    return outcome


def weak_base() -> Outcome:
    """Check that under a Paillier key whose h has order 3 replies are as fresh as under any other."""
    return engine_checks.linear(PaillierScheme(_BITS), holders=_weak_holder)


def _weak_holder() -> KeyHolder:
    while True:
        key = SecretKey.generate(_BITS)
        p = mpz(key._p)
        lead = gmpy2.powmod(2, p * ((p - 1) // 3), p * p) if p % 3 == 1 else mpz(1)
        if lead != 1:
            break
    data, width = key.public.data, _BITS // 8
    roots = [
        int.from_bytes(data[i : i + width], "big") for i in range(len(data) - PROOF_ROOTS * width, len(data), width)
    ]
    key.public = PublicKey(int(key.public.n), int(key._join(lead, mpz(1))), roots)
    return PaillierHolder(key)


CHECKS: dict[str, Callable[[], Outcome]] = {
    "lattice keys come as seeds": lattice_key,
    "Paillier moduli are proved": paillier_modulus,
    "engine paillier, weak base": weak_base,
}
