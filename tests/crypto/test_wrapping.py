"""Secrets under a key, and secret keys that several hold."""

import os

import numpy as np
import pytest

from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.paillier.paillier_sum import PaillierSum
from securevfl.crypto.prg import unwrap, wrap
from securevfl.crypto.scheme import AdditiveScheme
from securevfl.errors import CryptoError

SCHEMES: list[AdditiveScheme] = [LatticeSum(), PaillierSum(bits=2048)]


def test_only_the_key_and_the_context_open_a_secret() -> None:
    key, secret = os.urandom(32), os.urandom(48)
    sealed = wrap(key, secret, b"context")
    assert unwrap(key, sealed, b"context") == secret
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in ((os.urandom(32), sealed, b"context"), (key, sealed, b"other"), (key, altered, b"context")):
        with pytest.raises(CryptoError, match="does not open") as caught:
            unwrap(*wrong)
        assert secret.hex() not in str(caught.value)
    for cut in (b"", sealed[:10], sealed[:-1]):
        with pytest.raises(CryptoError, match="does not open"):
            unwrap(key, cut, b"context")


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_key_that_was_shared_decrypts_as_the_first_one(scheme: AdditiveScheme) -> None:
    holder, key = scheme.sum_keygen(), os.urandom(32)
    other = scheme.joined(holder.public, holder.share(key), key)
    v = np.linspace(-1, 1, 50)
    total = scheme.adder(other.public).add(*(scheme.adder(holder.public).encrypt(v, bound=1.0, terms=2),) * 2)
    np.testing.assert_array_equal(other.decrypt(total), holder.decrypt(total))
    np.testing.assert_allclose(other.decrypt(total), 2 * v, atol=1e-5)
    assert repr(other).endswith(", secret>")


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_shared_key_under_another_key_or_public_key_is_refused(scheme: AdditiveScheme) -> None:
    holder, other, key = scheme.sum_keygen(), scheme.sum_keygen(), os.urandom(32)
    shared = holder.share(key)
    for public, sealed, own in (
        (other.public, shared, key),
        (holder.public, shared, os.urandom(32)),
        (holder.public, shared[:-1], key),
        (holder.public, wrap(key, b"short", holder.public), key),
        (holder.public, wrap(key, bytes(1024), holder.public), key),
        (b"", wrap(key, bytes(64), b""), key),
    ):
        with pytest.raises(CryptoError):
            scheme.joined(public, sealed, own)


def test_a_seed_makes_a_secret_key_and_nothing_else_that_repeats() -> None:
    """Two holders of one seed encrypt differently: the seed is not the randomness of ciphertexts or public keys."""
    scheme, key = LatticeSum(), os.urandom(32)
    holder = scheme.sum_keygen()
    other = scheme.joined(holder.public, holder.share(key), key)
    v = np.zeros(10)
    made = {scheme.adder(each.public).encrypt(v, bound=1.0, terms=2) for each in (holder, other) for _ in range(3)}
    assert len(made) == 6
    again = scheme.joined(other.public, other.share(key), key)
    assert again.public == holder.public
    assert scheme.sum_keygen().public != scheme.sum_keygen().public
