"""Attacks on the lattice engine's products J^T g: each fails here and succeeds against a weakened engine (mutant).

The attacker is the other party, with everything that it has legitimately. A mutant lacks one defence. A trap is a
mistake that an implementation could make. The dither is the random number that is added before a value is rounded.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto.kernel.opening_checks import MAX_CHECKS
from securevfl.crypto.kernel.ring_layout import checked_layout
from securevfl.crypto.kernel.row_parameters import (
    BLINDED_HEADER,
    FISHER_FACTOR,
    MAX_RUN_OPENINGS,
    OPENED_HEADER,
    SEALED_HEADER,
)
from securevfl.crypto.kernel.row_plaintexts import PLAINTEXT_CACHE_KEY
from securevfl.crypto.lattice import residue_encoding, seal_io
from securevfl.crypto.lattice.lattice_gradient import (
    LATTICE_PROFILE,
    LatticeEvaluator,
    LatticeGradient,
    LatticeGradientParameters,
    LatticeHolder,
)
from securevfl.crypto.prg import random_words
from securevfl.crypto.scheme import OpeningShape

PARAMETERS = LatticeGradientParameters()


@pytest.fixture
def parameters():
    return PARAMETERS


def pair(parameters, holder=LatticeHolder, evaluator=LatticeEvaluator):
    h = holder(parameters, 4)
    return h, evaluator(parameters, h.public)


def small(residues, p):
    """Return residues as floats centred about zero."""
    centred = residues.astype(np.int64)
    return np.where(centred > p // 2, centred - p, centred).astype(float)


def transformed(ring, rows, ntt):
    """Transform one polynomial (primes, N) to its values (NTT form), or back to coefficients."""
    cipher = ring.io.ciphertext(ring.level, np.stack([rows, rows]), ntt=not ntt)
    (ring.evaluator.transform_to_ntt_inplace if ntt else ring.evaluator.transform_from_ntt_inplace)(cipher)
    return ring.io.residues(cipher, ring.shape)[0]


def reply(parameters, blinded, count):
    """Return c1 and the wanted coefficients of c0 of the only ciphertext in a reply."""
    primes, view = parameters.ring.primes, memoryview(blinded)[BLINDED_HEADER.size :]
    size = residue_encoding.packed_size(primes, 4096)
    return residue_encoding.unpack(view, primes, 4096), residue_encoding.unpack(view[size:], primes, count)


def crt(residues, primes):
    q = math.prod(primes)
    terms = [q // p * pow(q // p, -1, p) for p in primes]
    return [sum(int(r) * t for r, t in zip(column, terms, strict=True)) % q for column in residues.T]


def times_secret(parameters, holder, second):
    """Return c1 s (primes, N) for c1 in coefficients, as the product of SEAL's values of both."""
    ring = parameters.ring
    rows = zip(transformed(ring, second, True), holder._secret_key.residues, ring.primes, strict=False)
    values = [[int(a) * int(b) % p for a, b in zip(one, other, strict=True)] for one, other, p in rows]
    return transformed(ring, np.array(values, np.uint64), False)


def decrypted(parameters, holder, blinded, where):
    """Compute w = c0 + c1 s exactly at the wanted positions, as the key holder can."""
    ring = parameters.ring
    second, first = reply(parameters, blinded, len(where))
    return crt((times_secret(parameters, holder, second)[:, where] + first) % ring.column, ring.primes)


def opened_exactly(parameters, holder, cipher):
    """Return the exact c0 + c1 s of a ciphertext in coefficients."""
    ring = parameters.ring
    c0, c1 = ring.io.residues(cipher, ring.shape)
    return crt((times_secret(parameters, holder, c1) + c0) % ring.column, ring.primes)


def flat(ring, cipher):
    """Return the coefficients of a product."""
    out = seal.Ciphertext()
    ring.evaluator.transform_from_ntt(cipher, out)
    return out


class NoZero(LatticeEvaluator):
    """Mutant for trap 1: sends the product without an encryption of zero."""

    def _zero(self):
        ring = self._parameters.ring
        residues = np.zeros(ring.shape, np.uint64)
        residues[1, :, 0] = 1  # SEAL refuses c1 = 0
        return ring.io.ciphertext(ring.level, residues, ntt=False)


def quotient(parameters, evaluator_type):
    """Attack on trap 1: divide c1 of the reply by c1 of g, in NTT form. Return its
    largest coefficient and that of J.
    """
    holder, evaluator = pair(parameters, evaluator=evaluator_type)
    ring, p = parameters.ring, parameters.ring.primes[0]
    J = np.random.default_rng(0).normal(size=(16, 4))
    sealed = holder.encrypt(np.full((16, 1), 0.5), bound=1.0)
    prepared = evaluator.prepare(J)
    blinded, _ = evaluator.blind(evaluator.transpose_product(prepared, sealed))
    layout = checked_layout("", *SEALED_HEADER.unpack_from(sealed)[2:-1])
    query_cipher = ring.unsealed(layout, 1, sealed[SEALED_HEADER.size :])
    c1 = ring.io.residues(query_cipher, ring.shape)[1][0]
    second = reply(parameters, blinded, 4)[0].copy()
    if evaluator_type is NoZero:
        second[:, 0] = (second[:, 0] + ring.column[:, 0] - np.uint64(1)) % ring.column[:, 0]
    answer = transformed(ring, second, True)[0]
    ratio = [int(a) * pow(int(b), -1, p) % p for a, b in zip(answer, c1, strict=True)]
    rows = np.zeros(ring.shape[1:], np.uint64)
    rows[0] = np.array(ratio, np.uint64)
    got = small(transformed(ring, rows, False)[0], p)
    ((plain, _),) = prepared.J.parts[0].chunk.cache[PLAINTEXT_CACHE_KEY].pieces[0][0]
    truth = small(transformed(ring, ring.io.plain_residues(plain, (len(ring.primes), 4096)), False)[0], p)
    return got, truth


def test_only_the_encryption_of_zero_hides_j():
    parameters = PARAMETERS
    got, truth = quotient(parameters, NoZero)
    assert np.array_equal(got, truth)
    got, truth = quotient(parameters, LatticeEvaluator)
    p = parameters.ring.primes[0]
    assert np.median(np.abs(got)) > p / 16
    assert abs(np.corrcoef(got, truth)[0, 1]) < 0.1


def test_same_product_blinded_twice_shares_nothing(parameters):
    holder, evaluator = pair(parameters)
    product = evaluator.transpose_product(evaluator.prepare(np.eye(8)), holder.encrypt(np.ones((8, 1)), bound=1.0))
    first, second = (reply(parameters, evaluator.blind(product)[0], product.scale.width) for _ in range(2))
    assert all((a != b).mean() > 0.99 for a, b in zip(first, second, strict=True))


class WideMask(LatticeEvaluator):
    """Mutant for trap 2: a mask that is only 30 bits wider than the result."""

    def _uniform(self, prg, shape):
        words = random_words(math.prod(shape)).reshape(shape).astype(object)
        words = (words << 23) + (random_words(math.prod(shape)).reshape(shape) >> np.uint64(41)).astype(
            object
        )  # 87 bits
        return np.stack([(words % p).astype(np.uint64) for p in self._parameters.ring.primes])


class FloatMask(LatticeEvaluator):
    """Mutant for trap 2: a mask of floats, whose low bits are zero."""

    def _uniform(self, prg, shape):
        p, step = self._parameters.ring.primes, 2**40
        words = random_words(math.prod(shape)) % np.uint64(2 ** (math.prod(p).bit_length() - 41))
        return np.array([[int(w) * step % q for w in words] for q in p], np.uint64).reshape(-1, *shape)


def chi_square(values, bins=16):
    counts = np.bincount(values, minlength=bins)
    expected = len(values) / bins
    return ((counts - expected) ** 2 / expected).sum()


def seen_by_holder(parameters, evaluator_type, columns=3000):
    """Return chi-square (15 degrees) of the high bits and of bits 32 to 35 of decrypted values for a constant J."""
    holder, evaluator = pair(parameters, evaluator=evaluator_type)
    prepared = evaluator.prepare(np.ones((1, columns)))
    sealed = holder.encrypt(np.full((1, 1), 0.3), bound=1.0)
    product = evaluator.transpose_product(prepared, sealed)
    layout = product.scale.layout
    blinded, _ = evaluator.blind(product)
    w = decrypted(parameters, holder, blinded, layout.wanted[: product.scale.width])
    q = math.prod(parameters.ring.primes)
    return chi_square(np.array([x * 16 // q for x in w])), chi_square(np.array([(x >> 32) % 16 for x in w]))


def test_holder_decrypts_uniform_noise_over_the_whole_modulus(parameters):
    high, low = seen_by_holder(parameters, LatticeEvaluator)
    assert high < 80  # once in 1e10
    assert low < 80


def test_masks_that_are_wide_or_floats_are_caught():
    assert seen_by_holder(PARAMETERS, WideMask)[0] > 1000
    assert seen_by_holder(PARAMETERS, FloatMask)[1] > 1000


def test_cross_terms_never_leave(parameters):
    """A reply contains c1, and one coefficient of c0 for each result and check."""
    holder, evaluator = pair(parameters)
    product = evaluator.transpose_product(
        evaluator.prepare(np.ones((9, 5))), holder.encrypt(np.ones((9, 1)), bound=1.0)
    )
    blinded, _ = evaluator.blind(product)
    primes, width = parameters.ring.primes, 5 + MAX_CHECKS
    assert product.scale.width == width
    assert len(blinded) == BLINDED_HEADER.size + residue_encoding.packed_size(
        primes, 4096
    ) + residue_encoding.packed_size(primes, width)
    assert len(holder.open(blinded, OpeningShape(9, 1, 5))) == OPENED_HEADER.size + 4 * width


class NoDither(LatticeHolder):
    """Mutant for trap 3: drops the low bits without a dither."""

    def _dither(self, prg, shape):
        return np.zeros((len(self._parameters.ring.primes), *shape), np.uint64)


class Aimed(LatticeEvaluator):
    """An attacker that knows g and J chooses its mask so that value + mask is at the
    boundary between two opened numbers.
    """

    target: list[int]

    def _uniform(self, prg, shape):
        q, edge = self._parameters.modulus, 2 ** (self._parameters.profile.drop - 1)
        rows = [[(edge - t) % q % p for t in self.target] for p in self._parameters.ring.primes]
        return np.array(rows, np.uint64).reshape(-1, *shape)


def signs_of_noise(holder_type, columns=2048):
    """Return the information about an offset in a decrypted value, and the offset.

    The offset represents the noise. It is larger (2^47, not 2^23) because the rounding of the float decoder, about
    2^42, would blur smaller ones even for the mutant; it is still far below the dither (2^72).
    """
    parameters = PARAMETERS
    holder, evaluator = pair(parameters, holder_type, Aimed)
    rng = np.random.default_rng(1)
    product = evaluator.transpose_product(
        evaluator.prepare(rng.normal(size=(1, columns))), holder.encrypt(np.full((1, 1), 0.5), bound=1.0)
    )
    width = product.scale.width
    # The integers of g and J, which the attacker is supposed to know, come from a decryption of the product.
    ring, primes = parameters.ring, parameters.ring.primes
    decrypted_all = opened_exactly(parameters, holder, flat(ring, product.sums().reduced()[0][0]))
    exact = [decrypted_all[at] for at in product.scale.layout.wanted[:width]]
    noise = [int(x) for x in np.rint(rng.normal(size=width) * 2.0**47)]
    evaluator.target = [(x - e) % math.prod(primes) for x, e in zip(exact, noise, strict=True)]
    blinded, _ = evaluator.blind(product)
    return opened_values(holder, blinded, columns), np.array(noise)


def opened_values(holder, blinded, columns):
    """Return the evaluator's result for a product of one row, including checks."""
    return np.frombuffer(holder.open(blinded, OpeningShape(1, 1, columns)), "<i4", offset=OPENED_HEADER.size)


def test_only_the_dither_hides_the_noise():
    values, noise = signs_of_noise(NoDither)
    assert np.mean((values > 0) == (noise > 0)) > 0.95
    values, noise = signs_of_noise(LatticeHolder)
    assert 0.4 < np.mean((values > 0) == (noise > 0)) < 0.6  # tolerance of nine standard errors
    assert 7 < values.std() < 9  # half of 2^72, in steps of 2^68; tolerance of nine standard errors


def added(holder_type, columns=4000):
    """Return the dither that the holder adds to each exact value, in units of 2^k."""
    parameters = PARAMETERS
    holder, evaluator = pair(parameters, holder_type)
    J = np.random.default_rng(2).normal(size=(1, columns))
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(np.full((1, 1), 0.5), bound=1.0))
    blinded, _ = evaluator.blind(product)
    w = decrypted(parameters, holder, blinded, product.scale.layout.wanted[: product.scale.width])
    q, step = parameters.modulus, 2**parameters.profile.drop
    w = [x - q if x > q // 2 else x for x in w]
    values = opened_values(holder, blinded, columns)
    # a value next to q / 2 may be opened as one next to -q / 2
    moved = np.array([(int(v) * step - x + q // 2) % q - q // 2 for v, x in zip(values, w, strict=True)], float)
    return moved / 2.0**parameters.profile.k


def three_uniforms(x):
    """Cumulative distribution of the sum of three values uniform in [-1/2, 1/2]."""
    y = np.clip(x + 1.5, 0, 3)
    return sum((-1) ** i * math.comb(3, i) * np.maximum(y - i, 0) ** 3 for i in range(4)) / 6


def test_the_dither_is_the_sum_of_three_uniform_ones():
    found_values = np.sort(added(LatticeHolder))
    gap = np.abs(three_uniforms(found_values) - (np.arange(len(found_values)) + 0.5) / len(found_values)).max()
    # Kolmogorov-Smirnov test: false alarm with probability 2 exp(-2 3.2^2), 1 in 4e8
    assert gap < 3.2 / math.sqrt(len(found_values))
    # of kurtosis 2.6, so that a deviation of n is off by .63 / sqrt(n) of itself; two summands have .82 of it
    assert found_values.std() == pytest.approx(0.5, rel=6.5 * 0.63 / math.sqrt(len(found_values)))
    assert np.abs(added(NoDither)).max() < 0.04


def test_opening_the_same_bytes_twice_differs(parameters):
    holder, evaluator = pair(parameters)
    product = evaluator.transpose_product(
        evaluator.prepare(np.ones((1, 500))), holder.encrypt(np.ones((1, 1)), bound=1.0)
    )
    blinded, _ = evaluator.blind(product)
    assert (opened_values(holder, blinded, 500) != opened_values(holder, blinded, 500)).mean() > 0.9


def test_the_distance_of_a_moved_dither_is_within_the_bound():
    """Exact squared Hellinger distance and total variation between three uniform summands and the same moved by e."""
    for size in (1024, 2048):
        one = np.full(size, 1 / size)
        dither = np.convolve(np.convolve(one, one), one)
        for e in (1, 2, 5, size // 64, size // 4, size):
            there, here = np.r_[np.zeros(e), dither], np.r_[dither, np.zeros(e)]
            assert 1 - np.sqrt(there * here).sum() <= FISHER_FACTOR * (e / size) ** 2
            assert np.abs(there - here).sum() / 2 <= math.sqrt(2 * FISHER_FACTOR) * e / size


def test_the_distance_of_many_openings_is_within_the_bound():
    """The exact distance, over all outcomes, between three openings with a secret noise of
    +-1 and three without noise.
    """
    size = 8
    one = np.full(size, 1 / size)
    dither = np.r_[0.0, np.convolve(np.convolve(one, one), one), 0.0]
    moved = [np.roll(dither, e) for e in (-1, 1)]
    ideal = np.einsum("i,j,k->ijk", dither, dither, dither)
    real = sum(np.einsum("i,j,k->ijk", m, m, m) for m in moved) / 2
    assert np.abs(real - ideal).sum() / 2 <= math.sqrt(2 * 3 * FISHER_FACTOR) / size


def test_a_run_is_as_close_to_one_without_noise_as_stated():
    assert LATTICE_PROFILE.distance_bits(MAX_RUN_OPENINGS) >= 40
    assert LATTICE_PROFILE.distance_bits(1) >= 49
    assert LATTICE_PROFILE.distance_bits(4 * MAX_RUN_OPENINGS) == pytest.approx(
        LATTICE_PROFILE.distance_bits(MAX_RUN_OPENINGS) - 1
    )


def test_the_noise_of_a_reply_is_within_its_bound():
    parameters = PARAMETERS
    holder, evaluator = pair(parameters)
    ring, q = parameters.ring, math.prod(parameters.ring.primes)
    prepared = evaluator.prepare(np.random.default_rng(3).normal(size=(64, 64)))
    product = evaluator.transpose_product(prepared, holder.encrypt(np.zeros((64, 1)), bound=1.0))
    total = evaluator._zero()
    ring.evaluator.add_inplace(total, flat(ring, product.sums().reduced()[0][0]))
    values = opened_exactly(parameters, holder, total)
    noise = np.array([float(x - q if x > q // 2 else x) for x in values])
    stated = parameters.profile.noise
    assert 0.5 * stated < noise.std() < 1.1 * stated


class CountingEvaluator:
    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.inner, name)


def test_zeros_in_j_change_no_step(parameters, monkeypatch):
    holder, evaluator = pair(parameters)
    sealed = holder.encrypt(np.random.default_rng(4).uniform(-1, 1, (5000, 1)), bound=1.0)
    dense = np.random.default_rng(5).normal(size=(5000, 6))
    half = dense.copy()
    half[:2500] = 0
    steps = []
    for J in (dense, half, np.zeros_like(dense)):
        prepared = evaluator.prepare(J)
        counting = CountingEvaluator(parameters.ring.evaluator)
        with monkeypatch.context() as patch:
            patch.setattr(parameters.ring, "evaluator", counting)
            blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, sealed))
        heavy = [name for name in counting.calls if name != "add_inplace"]
        steps.append((heavy.count("multiply_plain"), len(blinded)))
        result = evaluator.unblind(holder.open(blinded, OpeningShape(5000, 1, 6)), mask)
    assert steps[0] == steps[1] == steps[2]
    assert not result.any()


def test_seal_itself_stumbles_over_a_zero_block():
    parameters = PARAMETERS
    holder, _ = pair(parameters)
    ring, sealed = parameters.ring, holder.encrypt(np.ones((4, 1)), bound=1.0)
    query_cipher = ring.unsealed(
        checked_layout("", *SEALED_HEADER.unpack_from(sealed)[2:-1]), 1, sealed[SEALED_HEADER.size :]
    )
    nothing = ring.io.plaintext(np.zeros(4096, np.uint64))
    ring.evaluator.transform_to_ntt_inplace(nothing, ring.level)
    with pytest.raises(RuntimeError, match="transparent"):
        ring.evaluator.multiply_plain(query_cipher, nothing, seal.Ciphertext())


def test_every_encryption_is_fresh(parameters):
    holder, _ = pair(parameters)
    first, second = (holder.encrypt(np.ones((3, 1)), bound=1.0)[SEALED_HEADER.size :] for _ in range(2))
    assert first[-seal_io.SEAL_SEED_BYTES :] != second[-seal_io.SEAL_SEED_BYTES :]
    same = np.frombuffer(first, np.uint8) == np.frombuffer(second, np.uint8)
    assert same.mean() < 0.2
    assert LatticeGradient().keygen().public != LatticeGradient().keygen().public


def test_every_blinding_draws_its_own_mask(parameters):
    holder, evaluator = pair(parameters)
    sealed = holder.encrypt(np.ones((2, 1)), bound=1.0)
    product = evaluator.transpose_product(evaluator.prepare(np.ones((2, 2))), sealed)
    first, second = (np.concatenate(evaluator.blind(product)[1].masks) for _ in range(2))
    assert (first != second).all()
