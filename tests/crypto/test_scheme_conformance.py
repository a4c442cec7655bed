"""What every engine (encryption scheme) must do. A new engine is a row in LINEAR (products) or ADDITIVE (sums)."""

import copy
import math
import pickle

import numpy as np
import pytest

from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.row_parameters import MAX_RUN_OPENINGS
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.crypto.paillier.paillier_sum import PaillierSum
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import CryptoError, KeyMismatch, OpeningMismatch, RangeError, ShapeMismatch
from tests.builders import raises_code

LINEAR = {  # engine, and its largest error in J^T g for unit-scale data of 256 samples
    "paillier": (lambda: PaillierScheme(bits=2048), 1e-3),
    "lattice": (lambda: LatticeGradient(), 1e-2),
    "kernel": (lambda: KernelGradient(), 1e-2),
}
ADDITIVE = {  # engine, and its largest error in a sum of values within 1
    "paillier": (lambda: PaillierSum(bits=2048), 1e-6),
    "lattice": (lambda: LatticeSum(), 1e-6),
}


def shown(thing) -> bool:
    """Return whether a secret can be printed, pickled or copied."""
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        try:
            attempt(thing)
        except TypeError:
            continue
        return True
    return "secret" not in repr(thing)


class Linear:
    """One engine for products with a key, and the exchange of its messages."""

    def __init__(self, scheme, tolerance):
        self.scheme, self.tolerance = scheme, tolerance
        self.holder = scheme.keygen()
        self.evaluator = scheme.evaluator(self.holder.public)

    def product(self, J, g, bound=1.0):
        return self.evaluator.transpose_product(self.evaluator.prepare(J), self.holder.encrypt(g, bound=bound))

    def gradient(self, J, g, bound=1.0):
        blinded, mask = self.evaluator.blind(self.product(J, g, bound))
        return self.evaluator.unblind(self.holder.open(blinded, OpeningShape(*g.shape, J.shape[1])), mask)


@pytest.fixture(scope="module", params=LINEAR)
def linear(request):
    make, tolerance = LINEAR[request.param]
    return Linear(make(), tolerance)


class TestLinearScheme:
    @pytest.mark.parametrize(("n", "d", "c"), [(1, 1, 1), (2, 3, 1), (33, 7, 2), (256, 5, 1), (100, 40, 1)])
    def test_gradient_is_the_product(self, linear, n, d, c):
        rng = np.random.default_rng(n)
        J, g = rng.uniform(-1, 1, size=(n, d)), rng.uniform(-1, 1, size=(n, c))
        result = linear.gradient(J, g)
        assert result.shape == (d, c)
        assert result.dtype == np.float64
        assert np.abs(result - J.T @ g).max() <= linear.tolerance

    @pytest.mark.parametrize("bound", [0.01, 1.0, 64.0])
    def test_error_follows_the_bound(self, linear, bound):
        rng = np.random.default_rng(1)
        J, g = rng.uniform(-1, 1, size=(64, 4)), rng.uniform(-bound, bound, size=(64, 1))
        assert np.abs(linear.gradient(J, g, bound) - J.T @ g).max() <= linear.tolerance * bound

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_extremes_do_not_overflow(self, linear, sign):
        J, g = np.ones((256, 3)), np.full((256, 1), sign)
        J[:, 1] = -1.0
        assert np.abs(linear.gradient(J, g) - J.T @ g).max() <= linear.tolerance

    @pytest.mark.parametrize("J", [np.zeros((20, 3)), np.eye(20)[:, :3], np.full((20, 3), -0.7)])
    def test_zeros_flags_and_constants(self, linear, J):
        g = np.linspace(-1, 1, 20)[:, None]
        assert np.abs(linear.gradient(J, g) - J.T @ g).max() <= linear.tolerance
        assert np.abs(linear.gradient(J, np.zeros((20, 1)))).max() <= linear.tolerance

    def test_prepared_outlives_keys(self, linear):
        rng = np.random.default_rng(2)
        J, g = rng.uniform(-1, 1, size=(12, 3)), rng.uniform(-1, 1, size=(12, 1))
        prepared = linear.evaluator.prepare(J)
        for _ in range(2):
            holder = linear.scheme.keygen()
            evaluator = linear.scheme.evaluator(holder.public)
            blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, holder.encrypt(g, bound=1.0)))
            opened = holder.open(blinded, OpeningShape(12, 1, 3))
            assert np.abs(evaluator.unblind(opened, mask) - J.T @ g).max() <= linear.tolerance

    def test_masks_belong_to_their_blinding(self, linear):
        rng = np.random.default_rng(3)
        J, g = rng.uniform(-1, 1, size=(12, 12)), rng.uniform(-1, 1, size=(12, 1))
        product = linear.product(J, g)
        (first, mask), (second, other) = linear.evaluator.blind(product), linear.evaluator.blind(product)
        assert first != second
        opened = linear.holder.open(first, OpeningShape(12, 1, 12))
        assert np.abs(linear.evaluator.unblind(opened, mask) - J.T @ g).max() <= linear.tolerance
        with pytest.raises(OpeningMismatch):
            linear.evaluator.unblind(opened, other)
        assert linear.holder.open(second, OpeningShape(12, 1, 12)) != opened

    def test_encryption_is_fresh_and_of_one_length(self, linear):
        g = np.zeros((30, 1))
        lengths = set()
        for value in (0.0, 1e-12, 1.0):
            first, second = (linear.holder.encrypt(g + value, bound=1.0) for _ in range(2))
            assert first != second
            lengths |= {len(first), len(second)}
        assert max(lengths) - min(lengths) <= 0.01 * max(lengths)  # compression may vary by a few bytes

    @pytest.mark.parametrize("value", [1.01, -1.01, math.inf, math.nan])
    def test_out_of_range(self, linear, value):
        with pytest.raises(RangeError):
            linear.holder.encrypt(np.array([[0.5, 0.5], [0.5, value]]), bound=1.0)

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
    def test_jacobian_must_be_finite(self, linear, value):
        with pytest.raises(RangeError):
            linear.evaluator.prepare(np.array([[0.5], [value]]))

    def test_another_key(self, linear):
        J, g = np.ones((8, 2)), np.ones((8, 1))
        stranger = linear.scheme.keygen()
        other = linear.scheme.evaluator(stranger.public)
        with pytest.raises(KeyMismatch):
            other.transpose_product(other.prepare(J), linear.holder.encrypt(g, bound=1.0))
        blinded, _ = linear.evaluator.blind(linear.product(J, g))
        with pytest.raises(KeyMismatch):
            stranger.open(blinded, OpeningShape(8, 1, 2))

    def test_other_batch(self, linear):
        sealed = linear.holder.encrypt(np.ones((8, 1)), bound=1.0)
        with pytest.raises(CryptoError):
            linear.evaluator.transpose_product(linear.evaluator.prepare(np.ones((9, 2))), sealed)

    def test_malformed(self, linear):
        J, g = np.ones((8, 2)), np.ones((8, 1))
        prepared = linear.evaluator.prepare(J)
        sealed = linear.holder.encrypt(g, bound=1.0)
        blinded, mask = linear.evaluator.blind(linear.evaluator.transpose_product(prepared, sealed))
        opened = linear.holder.open(blinded, OpeningShape(8, 1, 2))
        for message, use in (
            (linear.holder.public, linear.scheme.evaluator),
            (sealed, lambda m: linear.evaluator.transpose_product(prepared, m)),
            (blinded, lambda m: linear.holder.open(m, OpeningShape(8, 1, 2))),
            (opened, lambda m: linear.evaluator.unblind(m, mask)),
        ):
            for altered in (b"", message[:10], message[: len(message) // 2], message[:-1], b"\0" * len(message)):
                with pytest.raises(CryptoError):
                    use(altered)

    @pytest.mark.parametrize("agreed", [(8, 1, 1), (8, 1, 3), (8, 2, 2), (9, 1, 2), (0, 0, 0)])
    def test_only_the_agreed_shape_is_opened(self, linear, agreed):
        blinded, _ = linear.evaluator.blind(linear.product(np.ones((8, 2)), np.ones((8, 1))))
        with raises_code(ShapeMismatch, "SVFL-CRYPTO-SHAPE"):
            linear.holder.open(blinded, OpeningShape(*agreed))

    def test_distance_grows_with_the_values_opened(self, linear):
        bits = [linear.scheme.distance_bits(values) for values in (1, 1000, MAX_RUN_OPENINGS)]
        assert bits[0] > bits[1] > bits[2] >= 40

    def test_secrets_stay(self, linear):
        assert not shown(linear.holder)
        assert not shown(linear.evaluator.blind(linear.product(np.ones((2, 1)), np.ones((2, 1))))[1])

    def test_describes_itself(self, linear):
        assert linear.scheme.name
        assert linear.scheme.strength
        assert "\n" not in linear.scheme.strength
        assert linear.scheme.rotates in (True, False)


class Sums:
    """One engine for sums with a key."""

    def __init__(self, scheme, tolerance):
        self.scheme, self.tolerance = scheme, tolerance
        self.holder = scheme.sum_keygen()
        self.adder = scheme.adder(self.holder.public)


@pytest.fixture(scope="module", params=ADDITIVE)
def sums(request):
    make, tolerance = ADDITIVE[request.param]
    return Sums(make(), tolerance)


class TestAdditiveScheme:
    @pytest.mark.parametrize(("m", "terms"), [(1, 1), (100, 3), (333, 5)])
    @pytest.mark.parametrize("bound", [0.01, 1.0, 64.0])
    def test_sum(self, sums, m, terms, bound):
        v = np.random.default_rng(m).uniform(-bound, bound, size=(terms, m))
        parts = [sums.adder.encrypt(row, bound=bound, terms=terms) for row in v]
        result = sums.holder.decrypt(sums.adder.add(*parts))
        assert result.shape == (m,)
        assert np.abs(result - v.sum(axis=0)).max() <= sums.tolerance * bound * terms

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_extremes_do_not_overflow(self, sums, sign):
        parts = [sums.adder.encrypt(np.full(50, sign), bound=1.0, terms=4) for _ in range(4)]
        assert np.abs(sums.holder.decrypt(sums.adder.add(*parts)) - 4 * sign).max() <= 4 * sums.tolerance

    def test_up_a_tree(self, sums):
        parts = [sums.adder.encrypt(np.full(10, k / 4), bound=1.0, terms=4) for k in range(4)]
        total = sums.adder.add(sums.adder.add(*parts[:3]), parts[3])
        assert np.abs(sums.holder.decrypt(total) - 1.5).max() <= 4 * sums.tolerance

    def test_everything_is_fresh(self, sums):
        first, second = (sums.adder.encrypt(np.zeros(10), bound=1.0, terms=2) for _ in range(2))
        assert first != second
        assert len({sums.adder.add(first), sums.adder.add(first), first}) == 3

    def test_too_many_terms(self, sums):
        parts = [sums.adder.encrypt(np.zeros(10), bound=1.0, terms=2) for _ in range(3)]
        with pytest.raises(CryptoError):
            sums.adder.add(*parts)

    @pytest.mark.parametrize("value", [1.01, -1.01, math.inf, math.nan])
    def test_out_of_range(self, sums, value):
        with pytest.raises(RangeError):
            sums.adder.encrypt(np.array([0.5, value]), bound=1.0, terms=2)

    @pytest.mark.parametrize(("m", "bound", "terms"), [(11, 1.0, 2), (10, 2.0, 2)])
    def test_unlike_parts(self, sums, m, bound, terms):
        part = sums.adder.encrypt(np.zeros(10), bound=1.0, terms=2)
        with pytest.raises(CryptoError):
            sums.adder.add(part, sums.adder.encrypt(np.zeros(m), bound=bound, terms=terms))

    def test_another_key(self, sums):
        stranger = sums.scheme.sum_keygen()
        part = sums.adder.encrypt(np.zeros(10), bound=1.0, terms=2)
        with pytest.raises(KeyMismatch):
            stranger.decrypt(part)
        with pytest.raises(KeyMismatch):
            sums.adder.add(part, sums.scheme.adder(stranger.public).encrypt(np.zeros(10), bound=1.0, terms=2))

    def test_malformed(self, sums):
        part = sums.adder.encrypt(np.zeros(10), bound=1.0, terms=2)
        for altered in (b"", part[:10], part[:-1], b"\0" * len(part)):
            for use in (sums.holder.decrypt, sums.adder.add):
                with pytest.raises(CryptoError):
                    use(altered)
        with pytest.raises(CryptoError):
            sums.scheme.adder(sums.holder.public[:-1])

    def test_secrets_stay(self, sums):
        assert not shown(sums.holder)
