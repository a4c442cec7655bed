"""The arithmetic of the kernel (this package's own lattice encryption), compared with slow integers.

Each slow version (oracle) follows the definition, in Python's integers.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from securevfl.crypto.kernel import blas_check
from securevfl.crypto.kernel.ntt import Transform, multiplication_matrices
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import multiply_residues
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_keys import keypair, second_polynomial
from securevfl.crypto.kernel.ring_layout import RingLayout, choose_layout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, errors, ternary, uniform
from securevfl.crypto.kernel.shares import KernelShares, primes_for
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, CryptoError
from tests.builders import raises_code

SETS = [Primes(24, 3), Primes(20, 4), Primes(23, 4)]
IDS = ["24", "20", "23"]


def drawn(primes, *shape):
    return uniform(Prg.fresh("test"), primes, shape)


def same(primes, result, expected):
    """Return whether residues agree modulo each prime."""
    column = np.array(primes.values).reshape(-1, *[1] * (result.ndim - 1))
    return ((result.astype(np.int64) - np.asarray(expected)) % column == 0).all()


def slow_product(a, b, p):
    """Return the product of two lists of coefficients modulo y^M + 1 and p."""
    out = [0] * len(a)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[(i + j) % len(a)] += x * y if i + j < len(a) else -x * y
    return [x % p for x in out]


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_primes_are_distinct_split_the_ring_and_leave_sums_exact(primes):
    assert len(set(primes.values)) == len(primes)
    for p in primes.values:
        assert p.bit_length() == primes.bits
        assert p % (2 * DEGREE) == 1
        assert all(p % k for k in range(2, 4097))
        assert primes.terms * (p // 2 + 4) ** 2 + p < 2**53
    assert primes.q.bit_length() <= 109


def test_primes_that_floats_do_not_hold_are_refused():
    for bits, count in ((25, 3), (13, 1), (20, 40)):
        with pytest.raises(ConfigError):
            Primes(bits, count)


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("size", [2, 8, 64, 128])
def test_the_transform_evaluates_polynomials_and_products(primes, size):
    steps, (a, b) = Transform(primes, size), (drawn(primes, size, 2) for _ in range(2))
    values = steps.forward(a)
    for k, p in enumerate(primes.values):
        for point, y in enumerate(steps.roots[k]):
            assert pow(int(y), size, p) == p - 1
            for j in range(2):
                result = sum(int(a[k, i, j]) * pow(int(y), i, p) for i in range(size))
                assert (result - int(values[k, point, j])) % p == 0
        assert len({int(y) % p for y in steps.roots[k]}) == size
    product = steps.back(primes.reduce(values * steps.forward(b)))
    for k, p in enumerate(primes.values):
        for j in range(2):
            slow = slow_product([int(x) for x in a[k, :, j]], [int(x) for x in b[k, :, j]], p)
            assert [int(x) % p for x in product[k, :, j]] == slow


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("size", [2, 4, 16, 32, 256, 512, 1024, 2048, 4096])
def test_the_inverse_transform_returns_selected_coefficients(primes, size):
    steps, x = Transform(primes, size), drawn(primes, size, 3)
    values = steps.forward(x)
    assert np.abs(values).max() <= max(primes.values) // 2 + 4
    back = steps.back(values)
    assert same(primes, back, x)
    some = np.unique(np.random.default_rng(size).integers(0, size, 5))
    np.testing.assert_array_equal(steps.back(values, some), back[:, some])
    small = x[0] % 7
    assert same(primes, steps.forward(small), steps.forward(np.stack([small] * len(primes))))


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_few_long_polynomials_have_the_values_that_many_have(primes):
    """Transforms of few and of many polynomials give the same residues in the same order, and so do the inverses."""
    steps, x = Transform(primes, DEGREE), drawn(primes, DEGREE, 24)
    values, some = steps.forward(x), np.arange(10) * 300 + 7
    assert same(primes, values[..., :3], steps.forward(x[..., :3].copy()))
    few = values[..., :3].copy()
    assert same(primes, x[..., :3], steps.back(few))
    assert same(primes, steps.back(values, some), x[:, some])
    assert same(primes, steps.back(few, some), x[:, some, :3])


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("size", [(2, 3, 2), (1, 1, 1), (3, 2, 4)])
def test_products_point_by_point_are_those_of_all_points_at_once(primes, size):
    m, B, F = size
    left, right = drawn(primes, 1024, m, B), drawn(primes, 1024, B, F)
    few = [multiply_residues(primes, left[:, :8], right[:, :8]), multiply_residues(primes, left, right)[:, :8]]
    assert same(primes, *few)


def test_a_transform_of_another_size_is_refused():
    for size in (1, 3, 8192):
        with pytest.raises(ConfigError):
            Transform(SETS[0], size)


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("count", [1, 2, 40, 1200])
def test_products_of_extreme_residues_are_exact(primes, count):
    """Sums of 1,200 products of two numbers of 23 or 24 bits exceed the precision of floats, so they are split."""
    largest = np.array([p // 2 for p in primes.values], float).reshape(-1, 1, 1, 1)
    for signs in (1.0, np.where(np.arange(count) % 2, 1.0, -1.0)):
        left = np.broadcast_to(largest * signs, (len(primes), 2, 2, count)).copy()
        right = np.broadcast_to(largest, (len(primes), 2, count, 3)).copy()
        right[..., 1] -= 1
        exact = np.einsum("pmab,pmbf->pmaf", left.astype(object).astype(int), right.astype(int))
        result = multiply_residues(primes, left, right)
        assert same(primes, result, exact)
        assert same(primes, multiply_residues(primes, left, right.astype(np.float32)), exact)
        assert np.abs(result).max() <= max(primes.values) // 2 + 4


@settings(max_examples=60)
@given(st.sampled_from(SETS), st.lists(st.integers(0, 2**100), min_size=1, max_size=20), st.integers(8, 56))
def test_nearest_is_exact(primes, values, bits):
    q = primes.q
    x = np.array([[value % q % p for value in values] for p in primes.values], float)
    slow = [(2 ** (bits + 1) * (value % q) + q) // (2 * q) % 2**bits for value in values]
    assert primes.nearest(x, bits).tolist() == slow


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("bits", [8, 40, 48, 56])
def test_nearest_is_exact_next_to_halves(primes, bits):
    q = primes.q
    near = [(q + k) // 2 * pow(2**bits, -1, q) % q for k in (-5, -3, -1, 1, 3, 5)]
    near += [(q // 2**bits * m + off) % q for m in (0, 1, 2**bits - 1) for off in (q >> bits + 1, (q >> bits + 1) + 1)]
    x = np.array([[value % p for value in near] for p in primes.values], float)
    assert primes.nearest(x, bits).tolist() == [(2 ** (bits + 1) * v + q) // (2 * q) % 2**bits for v in near]


@pytest.mark.parametrize("primes", SETS, ids=IDS)
@pytest.mark.parametrize("bits", [8, 41, 56])
def test_words_are_scaled_to_the_nearest_integer(primes, bits):
    words = np.concatenate(
        [np.frombuffer(os.urandom(8000), np.uint64) & np.uint64(2**bits - 1), np.array([0, 1, 2**bits - 1], np.uint64)]
    )
    q = primes.q
    result = primes.scaled(words, bits)
    for row, p in zip(result, primes.values, strict=True):
        assert [int(x) % p for x in row] == [(2 * q * int(m) + 2**bits) // 2 ** (bits + 1) % p for m in words]
    assert (primes.nearest(result, bits) == words).all()


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_packed_residues_come_back_in_as_few_bytes_as_stated(primes):
    x = drawn(primes, 7, 5)
    data = pack(primes, x)
    assert len(data) == packed_size(primes, 35) == 35 * {24: 9, 20: 10, 23: 12}[primes.bits]
    np.testing.assert_array_equal(unpack(primes, data + b"more", (7, 5)) % 1, 0)
    assert same(primes, unpack(primes, data, (7, 5)), x)


def test_a_packed_pair_of_primes_has_the_documented_bytes():
    """20 bits of the first prime, then 20 of the second: low four bytes of all words, then their high bytes."""
    primes = SETS[1]
    x = np.array([[5], [3], [0], [2]], float)
    low = [(5 | 3 << 20).to_bytes(5, "little"), (2 << 20).to_bytes(5, "little")]
    assert pack(primes, x) == b"".join(word[:4] for word in low) + b"".join(word[4:] for word in low)


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_residues_at_their_prime_or_cut_are_refused(primes):
    for k, p in enumerate(primes.values):
        x = np.zeros((len(primes), 3))
        x[k, 1] = p - 1
        assert same(primes, unpack(primes, pack(primes, x), (3,)), x)
        x[k, 1] = p
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            unpack(primes, pack(primes, x), (3,))
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        unpack(primes, pack(primes, x)[:-1], (3,))


# --- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_uniform_residues_fill_every_part_of_each_prime(primes):
    x = drawn(primes, 160_000)
    for row, p in zip(x, primes.values, strict=True):
        assert row.min() >= -(p // 2)
        assert row.max() <= p // 2
        for part in (np.floor((row % p) * 32 / p).astype(int), (row % p).astype(int) % 32):
            assert stats.chisquare(np.bincount(part, minlength=32)).pvalue > 1e-9


def test_two_find_the_same_residues_from_one_seed():
    one, other = (uniform(Prg(bytes(32), "seed"), SETS[2], (50, 3)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (one != uniform(Prg(bytes(31) + b"1", "seed"), SETS[2], (50, 3))).mean() > 0.99


def test_ternary_secrets_have_no_bias():
    counts = np.unique(ternary(Prg.fresh("test"), (900, 1000)), return_counts=True)
    assert counts[0].tolist() == [-1, 0, 1]
    # without rejection of large bytes, it would be off by 60 standard deviations
    assert stats.chisquare(counts[1]).pvalue > 1e-9


def test_errors_have_the_distribution_of_seal():
    """The random errors that encryption adds are centred binomial of 42 bits, as in the library SEAL.

    Their frequencies are compared with the exact probabilities; rare large values count as one class.
    """
    result = errors(Prg.fresh("test"), (500, 1000))
    exact = stats.binom(42, 0.5).pmf(np.arange(43))
    counts = np.bincount(result.ravel().astype(int) + 21, minlength=43)
    keep = exact * result.size > 20
    pooled = np.append(counts[keep], counts[~keep].sum())
    assert stats.chisquare(pooled, np.append(exact[keep], exact[~keep].sum()) * result.size).pvalue > 1e-9
    assert abs(result.std() / NOISE_STD - 1) < 0.01


# --- layouts and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "c", "d", "r", "s"), [(5, 3, 4, 4, 2), (9, 4, 2, 2, 9), (1, 1, 1, 1, 1), (7, 5, 3, 8, 7)]
)
def test_wanted_coefficients_are_the_products(n, c, d, r, s):
    """The wanted coefficients of products of integer polynomials in x, by the definition of the layout, are W^T V."""
    rng = np.random.default_rng(n)
    V, W = rng.integers(0, 9, (n, c)).astype(np.uint64), rng.integers(-9, 9, (n, d))
    layout, all_blocks = RingLayout(n, c, r, s), slice(0, -(-n // s))
    plain = layout.plaintexts(W, all_blocks)
    for outputs in layout.outputs:
        (message,) = layout.messages(V[None, :, outputs], all_blocks)
        for o in range(outputs.stop - outputs.start):
            result = []
            for block in range(layout.column_blocks(d)):
                total = np.zeros(2 * layout.points)
                for b in range(layout.sample_blocks):
                    product = np.convolve(message[:, o, b].astype(float), plain[:, b, block])
                    total[: len(product)] += product
                total = total[: layout.points] - total[layout.points :]
                result += total[layout.wanted].tolist()
            assert result[:d] == (W.T @ V[:, outputs.start + o].astype(int)).tolist()


@pytest.mark.parametrize(("n", "c", "d"), [(256, 16, 15), (4096, 16, 100), (1, 1, 5000), (5000, 300, 1), (40, 3, 7)])
def test_a_chosen_layout_fits(n, c, d):
    for uses in (1, 10):
        layout = choose_layout(n, c, d, uses)
        assert layout.s * layout.columns <= layout.points == DEGREE // layout.r
        assert layout.r < 2 * c


@pytest.mark.parametrize("r", [1, 2, 16])
def test_a_multiplier_multiplies_as_polynomials_do(r):
    primes = SETS[1]
    g, h = drawn(primes, DEGREE), ternary(Prg.fresh("test"), (DEGREE,))
    steps = Transform(primes, DEGREE // r)
    values = multiply_residues(
        primes, multiplication_matrices(primes, g, r), steps.forward(h.reshape(-1, r))[..., None]
    )
    result = steps.back(values)[..., 0].reshape(len(primes), DEGREE)
    ring = Transform(primes, DEGREE)
    exact = ring.back(primes.reduce(ring.forward(g[..., None]) * ring.forward(h[:, None])))[..., 0]
    assert same(primes, result, exact)


@pytest.mark.parametrize("primes", SETS, ids=IDS)
def test_a_public_key_is_an_rlwe_sample(primes):
    a = second_polynomial(primes, os.urandom(32))
    secret, b = keypair(primes, a)
    assert set(np.unique(secret)) == {-1, 0, 1}
    ring = Transform(primes, DEGREE)
    product = ring.back(primes.reduce(ring.forward(a[..., None]) * ring.forward(secret[:, None])))[..., 0]
    error = primes.reduce(b + product)
    assert (error == error[0]).all()  # one integer, the same modulo every prime
    assert np.abs(error).max() <= 21
    assert 0.9 * NOISE_STD < error.std() < 1.1 * NOISE_STD


def test_each_l_has_its_primes():
    assert [(primes_for(L).bits, len(primes_for(L))) for L in (8, 40, 41, 48, 49, 56)] == [
        (24, 3),
        (24, 3),
        (20, 4),
        (20, 4),
        (23, 4),
        (23, 4),
    ]


# --- the check of the installed BLAS ---------------------------------------------------------------------------------


def test_this_blas_serves():
    assert blas_check.find_blas_problem() == ""


def singles(left, right, out):
    out[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(float)


def emulated(left, right, out):
    """Multiply with doubles of 48 bits: the last five bits of each sum are lost."""
    residues_, scale = left @ right, 2.0**5
    out[...] = np.where(np.abs(residues_) > 2**48, np.rint(residues_ / scale) * scale, residues_)


def skipping(left, right, out):
    out[...] = 0.0
    for i in range(left.shape[2]):
        term = left[:, :, i, None] * right[:, None, i]
        out += np.where(left[:, :, i, None] == 0, 0.0, term)


def strassen(left, right, out):
    """Multiply by one level of Strassen's method, on inner halves: (a + b)(c + d) - a d - b c instead of a c + b d."""
    half = left.shape[2] // 2
    a, b, c, d = left[..., :half], left[..., half : 2 * half], right[:, :half], right[:, half : 2 * half]
    out[...] = (a + b) @ (c + d) - a @ d - b @ c + left[..., 2 * half :] @ right[:, 2 * half :]


@pytest.mark.parametrize("blas", [singles, emulated, strassen])
def test_a_blas_that_is_not_exact_is_detected(blas):
    assert "exactly" in blas_check.find_blas_problem(blas)
    assert "install" in blas_check.BLAS_REMEDY


def test_a_blas_that_skips_zeros_is_detected():
    assert "zeros" in blas_check.find_blas_problem(skipping)


def test_an_engine_is_not_made_on_such_a_machine(monkeypatch):
    monkeypatch.setattr(blas_check, "blas_problem", lambda: "the BLAS here is odd; install another")
    with raises_code(ConfigError, "SVFL-CRYPTO-LIBRARY"):
        KernelShares(48)
