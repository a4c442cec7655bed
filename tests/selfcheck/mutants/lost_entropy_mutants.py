"""Mutants (deliberate errors) that draw enough entropy and lose it: keys with few secret
bits, secrets from public values.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Any
from unittest import mock

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa

from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import encode_context
from securevfl.crypto.paillier import paillier_keys, paillier_workers
from securevfl.crypto.paillier.paillier_keys import SecretKey
from securevfl.crypto.prg import Prg
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.families.fdskl.random_features import RandomFrequencies
from securevfl.protocols.alignment import psi_work
from securevfl.protocols.alignment.psi_work import AlignmentWork
from securevfl.protocols.residuals import defences
from securevfl.protocols.sums import pairwise_sum
from securevfl.protocols.sums.tree_sum import TreeSumRole
from selfcheck.mutants.mutant import Mutant, Stand, patched

_WORD = 2**32 - 1


def narrow(key: bytes, octets: int) -> bytes:
    """Make a key that looks random but is computed from only `octets` bytes of the key."""
    return hashlib.sha256(key[:octets]).digest()


def _narrow_scalar() -> bytes:
    return narrow(os.urandom(32), 5)


_zero_keys = AlignmentWork._agree


def _narrow_zero_keys(self: Any, nonce: bytes) -> dict[str, bytes]:
    return {peer: narrow(key, 4) for peer, key in _zero_keys(self, nonce).items()}


_exchange = vars(pairwise_sum)["exchange_keys"]


def _narrow_pair_keys(*args: Any, **keys: Any) -> dict[str, bytes]:
    return {peer: narrow(key, 4) for peer, key in _exchange(*args, **keys).items()}


def _known_seed(size: int) -> bytes:
    return bytes(size) if size == okvs.OKVS_SEED_BYTES else os.urandom(size)


_tree_role = TreeSumRole.__init__


def _public_masks(self: Any, context: Any, T1: Any, T2: Any) -> None:
    _tree_role(self, context, T1, T2)
    self._masks = Prg(hashlib.sha256(context.channel.session + context.me.encode()).digest(), "tree sum")


_agree = KeyPair.agree


def _public_agreement(self: Any, peer_public: bytes, *, session: str, party: str, peer: str, domain: str) -> bytes:
    _agree(self, peer_public, session=session, party=party, peer=peer, domain=domain)  # still refuses invalid values
    return hashlib.sha256(encode_context(session, domain, *sorted([self.public, peer_public]))).digest()


_encrypt = SecretKey.encrypt


def _narrow_exponents(self: Any, plaintexts: Any) -> list[int]:
    short = Stand(secrets, randbelow=lambda limit: secrets.randbelow(limit) & _WORD)
    with mock.patch.object(paillier_keys, "secrets", short):
        return _encrypt(self, plaintexts)


def _narrow_unit(n: Any) -> Any:
    return gmpy2.mpz(secrets.randbelow(int(n)) & _WORD | 1)


def _narrow_noise(public: Any, bits: int, window: int) -> Any:
    table = paillier_keys.noise_table(int(public.h), int(public.square), bits, window)
    return table.power(secrets.randbits(bits) & _WORD)


def _neighbours(bits: int) -> SecretKey:
    p = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers().p
    while True:
        q = int(gmpy2.next_prime(p + 2 * secrets.randbits(128)))
        if q.bit_length() == p.bit_length() and (p * q).bit_length() == bits:
            return SecretKey.from_primes(p, q)


_frequencies = RandomFrequencies.__init__


def _narrow_features(self: Any, model: Any, key: bytes, columns: int) -> None:
    _frequencies(self, model, narrow(key, 4), columns)


_target = PrfHash.target


def _narrow_target(self: Any, keys: Any) -> Any:
    return _target(self, keys) & np.array([0xFFFFFF, 0], np.uint64)


_uniforms = defences.uniforms


def _coarse_noise(prg: Any, shape: Any) -> Any:
    return (np.floor(_uniforms(prg, shape) * 2.0**12) + 0.5) * 2.0**-12


MUTANTS = [
    Mutant(
        "alignment: scalar of 40 bits",
        "32 bytes are drawn, the scalar is a hash of five of them",
        "alignment recomputed",
        "derived",
        patched((psi_work, "fresh_scalar", _narrow_scalar)),
    ),
    Mutant(
        "alignment: zero-sharing keys of 32 bits",
        "the keys that hide who has an id are hashes of four bytes",
        "alignment recomputed",
        "derived",
        patched((AlignmentWork, "_agree", _narrow_zero_keys)),
    ),
    Mutant(
        "alignment: one seed for all stores",
        "places in a store can be worked out beforehand",
        "alignment recomputed",
        "derived",
        patched((okvs, "os", Stand(os, urandom=_known_seed))),
    ),
    Mutant(
        "pairwise: masks from 32-bit keys",
        "pair keys are hashes of four bytes of the agreed secret",
        "pairwise masks recomputed",
        "derived",
        patched((pairwise_sum, "exchange_keys", _narrow_pair_keys)),
    ),
    Mutant(
        "tree: masks from public values",
        "the key of the masks is a hash of the session and the party's name",
        "tree masks recomputed",
        "derived",
        patched((TreeSumRole, "__init__", _public_masks)),
    ),
    Mutant(
        "agreement: keys from public values",
        "pair keys are hashes of both public keys, without the shared secret",
        "agreed keys are known answers",
        "derived",
        patched((KeyPair, "agree", _public_agreement)),
    ),
    Mutant(
        "Paillier: exponents of 32 bits",
        "the holder's randomness is h to the power of 32 drawn bits",
        "Paillier recomputed",
        "derived",
        patched((SecretKey, "encrypt", _narrow_exponents)),
    ),
    Mutant(
        "Paillier sums: noise of 32 bits",
        "an adder's randomness is h to the power of 32 drawn bits",
        "Paillier recomputed",
        "derived",
        patched((paillier_workers, "noise", _narrow_noise)),
    ),
    Mutant(
        "Paillier: replies re-randomised by 32 bits",
        "x of x^n has 32 drawn bits",
        "Paillier recomputed",
        "derived",
        patched((paillier_workers, "_unit", _narrow_unit)),
    ),
    Mutant(
        "Paillier: neighbouring primes",
        "q is looked for just above p, so that n falls to Fermat's method",
        "key sizes",
        "size",
        patched((SecretKey, "generate", staticmethod(_neighbours))),
    ),
    Mutant(
        "kernel: features from 32 bits",
        "random features are drawn from a hash of four bytes of the key",
        "streams are known answers",
        "derived",
        patched((RandomFrequencies, "__init__", _narrow_features)),
    ),
    Mutant(
        "transfers: keys hashed to 24 bits",
        "one id in 16 million that is not stored is answered",
        "transfers are known answers",
        "derived",
        patched((PrfHash, "target", _narrow_target)),
    ),
    Mutant(
        "defences: noise on a grid",
        "noise takes 4,096 values, so that the remainder reveals g",
        "noise is fine",
        "bits",
        patched((defences, "uniforms", _coarse_noise)),
    ),
]
