"""Sums under Paillier: comparison with plain sums, space for every summand, refused values, and a mutant."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_messages import MessageKind, read_message, read_numbers
from securevfl.crypto.paillier.paillier_sum import PaillierAdder, PaillierSum, PaillierSumHolder
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeError

BITS = 2048


@pytest.fixture(scope="module")
def key():
    return SecretKey.generate(BITS)


@pytest.fixture(scope="module")
def holder(key):
    return PaillierSumHolder(key)


@pytest.fixture(scope="module")
def adder(key):
    return PaillierAdder(PublicKey.load(key.public.data, BITS))


def elements(message, public):
    _, body, count = read_message(message, MessageKind.SUM, public.fingerprint)
    return read_numbers(body, count, count, public.size)


@pytest.mark.parametrize(("m", "terms"), [(1, 1), (59, 3), (61, 3), (200, 7), (5, 65536)])
def test_sum(holder, adder, m, terms):
    rng = np.random.default_rng(m)
    count = min(terms, 4)
    v = rng.uniform(-5, 5, size=(count, m))
    total = adder.add(*(adder.encrypt(row, bound=5.0, terms=terms) for row in v))
    assert np.abs(holder.decrypt(total) - v.sum(axis=0)).max() < count * 5.0 * 2.0**-32 * 1.001


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 8])
def test_extremes_do_not_overflow(holder, adder, terms):
    v = np.full(150, 2.5)
    v[::2] *= -1
    part = adder.encrypt(v, bound=2.5, terms=terms)
    assert np.array_equal(holder.decrypt(adder.add(*[part] * terms)), terms * v)


def test_sums_of_sums(holder, adder):
    parts = [adder.encrypt(np.full(3, float(k)), bound=8.0, terms=4) for k in range(4)]
    total = adder.add(adder.add(parts[0], parts[1]), adder.add(parts[2], parts[3]))
    assert np.array_equal(holder.decrypt(total), np.full(3, 6.0))
    with pytest.raises(CryptoError):
        adder.add(total, parts[0])


def test_executor_changes_nothing(key, holder, adder):
    v = np.linspace(-1, 1, 130)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        far, far_holder = PaillierAdder(key.public, executor), PaillierSumHolder(key, executor)
        total = far.add(far.encrypt(v, bound=1.0, terms=2), adder.encrypt(v, bound=1.0, terms=2))
        assert np.array_equal(far_holder.decrypt(total), holder.decrypt(total))
    assert np.abs(holder.decrypt(total) - 2 * v).max() < 1e-9


def is_fresh(adder, public, part):
    return not set(elements(adder.add(part), public)) & set(elements(part, public))


def test_sums_are_fresh(key, adder):
    v = np.zeros(100)
    first, second = (adder.encrypt(v, bound=1.0, terms=2) for _ in range(2))
    a, b = elements(first, key.public), elements(second, key.public)
    assert len(set(a + b)) == len(a + b)
    assert is_fresh(adder, key.public, first)


def test_missing_randomness_is_caught(key, adder):
    class Lazy(PaillierAdder):
        def _with_noise(self, plaintexts):
            return [int(self._public.shift(m)) for m in plaintexts]

    part = adder.encrypt(np.zeros(100), bound=1.0, terms=2)
    assert not is_fresh(Lazy(key.public), key.public, part)


def test_refusals(holder, adder):
    for v in (np.array([1.1]), np.array([np.nan])):
        with pytest.raises(RangeError):
            adder.encrypt(v, bound=1.0, terms=2)
    for v in (np.zeros((2, 2)), np.zeros(0)):
        with pytest.raises(RangeError):
            adder.encrypt(v, bound=1.0, terms=2)
    for terms in (0, -1, 1 << 20):
        with pytest.raises(ConfigError):
            adder.encrypt(np.zeros(2), bound=1.0, terms=terms)
    part = adder.encrypt(np.zeros(2), bound=1.0, terms=2)
    for other in (
        adder.encrypt(np.zeros(3), bound=1.0, terms=2),
        adder.encrypt(np.zeros(2), bound=2.0, terms=2),
        adder.encrypt(np.zeros(2), bound=1.0, terms=3),
    ):
        with pytest.raises(CryptoError):
            adder.add(part, other)
    with pytest.raises(CryptoError):
        adder.add()
    with pytest.raises(CryptoError):
        adder.add(part, part, part)
    with pytest.raises(ConfigError):
        PaillierSum(1024)


def test_altered_messages(key, holder, adder):
    part = adder.encrypt(np.zeros(2), bound=1.0, terms=2)
    size, n, p = key.public.size, int(key.public.n), key.parts_for_workers()[0]
    bad = [b"", part[:30], part[:-1], part + b"\0", b"XXXX" + part[4:], part[:5] + b"\x01" + part[6:]]
    bad += [part[:at] + b"\xff\xff\xff\xff" + part[at + 4 :] for at in (22, 26, 30, 42)]
    bad += [part[:-size] + element.to_bytes(size, "big") for element in (0, n, 7 * p, n * n)]
    for altered in bad:
        for use in (holder.decrypt, adder.add):
            with pytest.raises(CryptoError):
                use(altered)


def test_another_key(adder):
    stranger = PaillierSum(BITS).sum_keygen()
    part = adder.encrypt(np.zeros(2), bound=1.0, terms=2)
    with pytest.raises(KeyMismatch):
        stranger.decrypt(part)
    with pytest.raises(KeyMismatch):
        PaillierSum(BITS).adder(stranger.public).add(part)


def test_holder_shows_nothing(holder):
    assert repr(holder) == "<PaillierSumHolder, secret>"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            attempt(holder)
