"""Schemes with fewer primes, for products with a larger error: the error stays within the bound that selects them.

Results are compared with integer arithmetic in plain Python: W^T V modulo 2^L.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.kernel.ring_layout import choose_layout
from securevfl.crypto.kernel.shares import SHORT_PRIMES, KernelShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import RangeError
from tests.builders import raises_code

LARGEST = 2048


def products(scheme: Any, W: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the evaluator and of the holder."""
    coin = os.urandom(32)
    holder = scheme.keygen(coin)
    evaluator = scheme.evaluator(holder.public, coin)
    reply, share = evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=W.shape[1]))
    return share, holder.open(reply)


def random_words(bits: int, *shape: int) -> np.ndarray:
    return np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64).reshape(shape) & np.uint64(2**bits - 1)


def errors(scheme: Any, W: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return the sum of both shares minus the exact product."""
    exact = [[sum(w * v for w, v in zip(a, b, strict=True)) for b in V.T.tolist()] for a in W.T.tolist()]
    ring = ShareRing(scheme.bits)
    expected = np.array([[x % 2**scheme.bits for x in row] for row in exact], np.uint64)
    share, other = products(scheme, W, V)
    return ring.signed(ring.reduce(share + other - expected)).astype(np.float64)


@pytest.mark.parametrize("primes", SHORT_PRIMES)
@pytest.mark.parametrize("bits", [48, 56])
@pytest.mark.parametrize(("n", "c", "d"), [(12, 30, 700), (5, 1, 3000), (300, 4, 40)])
def test_errors_have_a_mean_of_zero_and_the_stated_deviation(
    primes: tuple[int, int], bits: int, n: int, c: int, d: int
) -> None:
    scheme = KernelShares(bits, primes, 2.0**bits)
    W = LARGEST * np.random.default_rng(n).choice([-1, 1], (n, d))
    error, bound = errors(scheme, W, random_words(bits, n, c)), scheme.deviation(n, c, d, LARGEST)
    entries = n * min(d, choose_layout(n, c, d).columns)
    assert bound == pytest.approx((10.6 * entries * LARGEST**2) ** 0.5 * 2.0**bits / scheme.primes.q, rel=0.01)
    assert np.abs(error).max() <= 7 * bound
    assert error.std() <= 1.4 * bound  # few values, and those of one query are correlated
    assert error.std() >= 0.3 * bound, "the bound is not much larger than needed"
    assert abs(error.mean()) <= 6 * bound / min(n * c, 200) ** 0.5  # errors of one query are correlated


def test_the_shortest_scheme_within_the_tolerance_is_selected() -> None:
    scheme, shapes = KernelShares(48), [(12, 30, 20_000), (40, 30, 20_000)]
    deviations = [
        max(KernelShares(48, primes).deviation(n, c, d, LARGEST) for n, c, d in shapes) for primes in SHORT_PRIMES
    ]
    assert deviations[0] > 100 * deviations[1]
    for deviation, expected in zip(deviations, SHORT_PRIMES, strict=True):
        for factor, primes in ((1.01, expected), (0.99, None)):
            selected = scheme.within(factor * deviation, LARGEST, shapes)
            assert isinstance(selected, KernelShares)
            if primes is not None:
                assert (selected.primes.bits, len(selected.primes)) == primes
                assert selected.tolerance == factor * deviation
            else:
                assert selected.primes.q > KernelShares(48, expected).primes.q
    assert scheme.within(0.1, LARGEST, shapes) is scheme
    tolerance = 1.01 * deviations[0]
    assert scheme.within(tolerance, LARGEST, [*shapes, (400, 30, 20_000)]) != scheme.within(tolerance, LARGEST, shapes)


@pytest.mark.parametrize("place", [0, 6999])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_with_more_noise_than_agreed_is_refused(place: int, sign: int) -> None:
    """The evaluator checks the entries of its factor, wherever they are, against the tolerance of the parameters."""
    n, c, d = 12, 30, 700
    deviation = KernelShares(48, SHORT_PRIMES[0]).deviation(n, c, d, LARGEST)
    scheme = KernelShares(48).within(1.05 * deviation, LARGEST, [(n, c, d)])
    W = np.zeros((n, d), int)
    W.flat[place] = sign * LARGEST
    assert np.abs(errors(scheme, W, random_words(48, n, c))).max() <= 7 * deviation
    W.flat[place] = sign * int(1.1 * LARGEST)
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        products(scheme, W, random_words(48, n, c))
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):  # a coefficient has more entries than agreed
        products(scheme, np.full((n, 4 * d), LARGEST), random_words(48, n, 1))


@pytest.mark.parametrize("primes", SHORT_PRIMES)
def test_each_share_is_uniform_in_its_highest_bits(primes: tuple[int, int]) -> None:
    scheme = KernelShares(56, primes, 2.0**50)
    for share in products(scheme, np.full((1, 4000), 3), np.full((1, 1), 5, np.uint64)):
        for shift in (52, 40, 30):
            counts = np.bincount(((share.ravel() >> np.uint64(shift)) & np.uint64(15)).astype(int), minlength=16)
            assert ((counts - 250) ** 2 / 250).sum() < 80  # 15 degrees of freedom: exceeded once in 1e10


def test_a_scheme_travels_to_workers() -> None:
    short = KernelShares(56).within(2.0**30, LARGEST, [(12, 30, 700)])
    other = pickle.loads(pickle.dumps(short))
    assert other == short
    assert hash(other) == hash(short)
    assert short != KernelShares(56)
    assert short != KernelShares(56).within(2.0**31, LARGEST, [(12, 30, 700)])
    W, V = np.arange(60).reshape(12, 5), random_words(56, 12, 3)
    coin = os.urandom(32)
    holder = short.keygen(coin)
    evaluator = other.evaluator(holder.public, coin)
    sealed = holder.encrypt(V, columns=5)
    reply, share = evaluator.hide(evaluator.join(sealed, 5, [short.multiply(W, sealed)]))
    error = ShareRing(56).signed(share + holder.open(reply) - W.astype(np.uint64).T @ V)
    assert np.abs(error).max() <= 7 * short.deviation(12, 3, 5, 60)
