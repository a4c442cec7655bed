"""J^T g by the lattice engine (SEAL) equals that of numpy, and messages of another key or batch are refused."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, OPENED_HEADER, SEALED_HEADER
from securevfl.crypto.kernel.row_products import RowMask
from securevfl.crypto.lattice.lattice_gradient import LATTICE_PROFILE, LatticeGradient, LatticeGradientParameters
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeError
from tests.builders import raises_code

SCHEME = LatticeGradient()
HOLDER = SCHEME.keygen()
EVALUATOR = SCHEME.evaluator(HOLDER.public)


@pytest.fixture(scope="module")
def scheme():
    return SCHEME


@pytest.fixture(scope="module")
def holder(scheme):
    return scheme.keygen()


@pytest.fixture(scope="module")
def evaluator(scheme, holder):
    return scheme.evaluator(holder.public)


def run(holder, evaluator, J, g, bound):
    """Compute J^T g with the engine. Return it and the number f of the chosen layout."""
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=bound))
    blinded, mask = evaluator.blind(product)
    result = evaluator.unblind(holder.open(blinded, OpeningShape(*g.shape, J.shape[1])), mask)
    return result, product.scale.layout.columns


def close(holder, evaluator, J, g, bound):
    """Return whether every error is within its bound, which is due to the dither and to the rounding of J."""
    result, f = run(holder, evaluator, J, g, bound)
    dither = 1.6e-6 * bound * math.sqrt(len(J))
    rounding = 2**-22 * math.sqrt(f) * np.abs(g).sum(axis=0)
    stated = (dither + rounding) * np.linalg.norm(J, axis=0)[:, None]
    return (np.abs(result - J.T @ g) <= stated + 1e-300).all()


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2, 3, 17, 64, 250]),
    st.sampled_from([1, 2, 15, 40]),
    st.integers(1, 4),
    st.sampled_from(["normal", "binary", "zero", "sparse", "outlier"]),
    st.sampled_from([1e-6, 1.0, 12.5, 1e9]),
    st.integers(0, 2**32 - 1),
)
def test_matches_numpy(n, d, c, kind, bound, seed):
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(n, d))
    if kind == "binary":
        J = (J > 0.5).astype(float)
    if kind == "zero":
        J = np.zeros((n, d))
    if kind == "sparse":
        J[rng.random((n, d)) < 0.97] = 0
    if kind == "outlier":
        J[0] *= 1e6
    g = rng.uniform(-bound, bound, (n, c))
    assert close(HOLDER, EVALUATOR, J, g, bound)


@pytest.mark.parametrize(
    ("n", "d", "c"), [(5000, 3, 1), (1, 5000, 1), (5000, 1, 2), (1, 1, 1), (2, 4097, 1), (4097, 2, 1)]
)
def test_sizes_beyond_the_ring(holder, evaluator, n, d, c):
    rng = np.random.default_rng(n + d)
    J, g = rng.normal(size=(n, d)), rng.uniform(-1, 1, (n, c))
    assert close(holder, evaluator, J, g, 1.0)


def test_entries_at_their_bound_do_not_overflow(holder, evaluator):
    for n, d in ((1, 1), (4, 3), (300, 20)):
        J, g = np.full((n, d), -3.0), np.full((n, 2), 0.25)
        assert close(holder, evaluator, J, g, 0.25)


def test_error_on_unit_data_at_4096_rows(holder, evaluator):
    rng = np.random.default_rng(1)
    J, g = rng.normal(size=(4096, 40)), rng.uniform(-1, 1, (4096, 1))
    result, _ = run(holder, evaluator, J, g, 1.0)
    assert np.abs(result - J.T @ g).max() / 4096 <= 4e-6  # in units of the mean gradient


def test_holder_tunes_its_layout_to_the_width_it_opened(scheme):
    holder = scheme.keygen()
    evaluator = scheme.evaluator(holder.public)
    rng = np.random.default_rng(2)
    J, g = rng.normal(size=(256, 400)), rng.uniform(-1, 1, (256, 1))
    prepared = evaluator.prepare(J)
    sizes = []
    for _ in range(3):
        sealed = holder.encrypt(g, bound=1.0)
        sizes.append(len(sealed))
        blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, sealed))
        opened = holder.open(blinded, OpeningShape(256, 1, 400))
        # the standard deviation is 2.6e-4, and the bounds are six times that
        off = evaluator.unblind(opened, mask) - J.T @ g
        assert np.sqrt(np.mean(off**2)) < 3.2e-4
        assert np.abs(off).max() < 1.6e-3
    assert sizes[0] < sizes[1] == sizes[2]


def test_prepared_outlives_the_key(scheme, evaluator):
    rng = np.random.default_rng(3)
    J, g = rng.normal(size=(30, 4)), rng.uniform(-1, 1, (30, 1))
    prepared = evaluator.prepare(J)
    for _ in range(2):
        holder = scheme.keygen()
        fresh = scheme.evaluator(holder.public)
        blinded, mask = fresh.blind(fresh.transpose_product(prepared, holder.encrypt(g, bound=1.0)))
        opened = holder.open(blinded, OpeningShape(30, 1, 4))
        assert np.abs(fresh.unblind(opened, mask) - J.T @ g).max() < 1e-4


def test_scale_of_g_depends_on_public_numbers_alone(scheme, holder):
    rng = np.random.default_rng(4)
    headers = {
        holder.encrypt(g, bound=2.0)[: SEALED_HEADER.size] for g in (np.zeros((50, 1)), rng.uniform(-2, 2, (50, 1)))
    }
    assert len(headers) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.0000001, -2.0])
def test_g_out_of_range(holder, bad):
    g = np.zeros((5, 1))
    g[3, 0] = bad
    with pytest.raises(RangeError) as error:
        holder.encrypt(g, bound=1.0)
    assert str(bad) not in str(error.value)


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf, 5e-324])
def test_bound_out_of_range(holder, bound):
    with pytest.raises(RangeError):
        holder.encrypt(np.zeros((5, 1)), bound=bound)


@pytest.mark.parametrize("shape", [(5,), (0, 1), (5, 0), (2, 2, 2)])
def test_shapes_that_are_no_matrix(holder, evaluator, shape):
    with pytest.raises(RangeError):
        holder.encrypt(np.zeros(shape), bound=1.0)
    with pytest.raises(RangeError):
        evaluator.prepare(np.zeros(shape))


def test_j_not_finite(evaluator):
    for bad in (np.nan, np.inf):
        with pytest.raises(RangeError):
            evaluator.prepare(np.array([[1.0, bad]]))


def test_extreme_magnitudes_of_j(holder, evaluator):
    g = np.ones((4, 1))
    for size in (1e-300, 1e300):
        J = size * np.array([[1.0, 0.5]] * 4)
        got, _ = run(holder, evaluator, J, g, 1.0)
        assert np.abs(got / size - [[4], [2]]).max() < 1e-4


def test_wrong_key_is_named(scheme, holder, evaluator):
    other = scheme.keygen()
    g, prepared = np.ones((4, 1)), evaluator.prepare(np.ones((4, 2)))
    with pytest.raises(KeyMismatch):
        evaluator.transpose_product(prepared, other.encrypt(g, bound=1.0))
    blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, holder.encrypt(g, bound=1.0)))
    with pytest.raises(KeyMismatch):
        other.open(blinded, OpeningShape(4, 1, 2))
    opened = holder.open(blinded, OpeningShape(4, 1, 2))
    with pytest.raises(KeyMismatch):
        scheme.evaluator(other.public).unblind(opened, mask)


def test_other_batch_and_mask_used_twice(holder, evaluator):
    prepared = evaluator.prepare(np.ones((4, 2)))
    with raises_code(CryptoError, "SVFL-CRYPTO-SHAPE"):
        evaluator.transpose_product(prepared, holder.encrypt(np.ones((5, 1)), bound=1.0))
    product = evaluator.transpose_product(prepared, holder.encrypt(np.ones((4, 1)), bound=1.0))
    (first, mask), (second, other) = evaluator.blind(product), evaluator.blind(product)
    opened = holder.open(first, OpeningShape(4, 1, 2))
    assert np.abs(evaluator.unblind(opened, mask) - 4).max() < 1e-4
    with raises_code(CryptoError, "SVFL-CRYPTO-REUSE"):
        evaluator.unblind(opened, mask)
    assert np.abs(evaluator.unblind(holder.open(second, OpeningShape(4, 1, 2)), other) - 4).max() < 1e-4


def test_impossible_width_and_weak_ring():
    with pytest.raises(ConfigError):
        LatticeGradient(columns=0)
    with pytest.raises(ConfigError):
        LatticeGradientParameters(dataclasses.replace(LATTICE_PROFILE, bits=(47, 47, 16)))


def test_strength_names_ring_level_and_assumption(scheme):
    text = scheme.strength
    assert "4096" in text
    assert "128" in text
    assert scheme.rotates


def test_secrets_show_nothing_and_do_not_travel(holder, evaluator):
    product = evaluator.transpose_product(
        evaluator.prepare(np.ones((4, 2))), holder.encrypt(np.ones((4, 1)), bound=1.0)
    )
    for secret in (holder, evaluator.blind(product)[1]):
        assert "secret" in repr(secret)
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                attempt(secret)


def _mutants(message, header, rng, count):
    for _ in range(count):
        data = bytearray(message)
        kind = rng.integers(7)
        if kind == 0:
            del data[rng.integers(len(data)) :]
        elif kind == 1:
            data += bytes(int(rng.integers(1, 40)))
        elif kind == 2 or (kind == 6 and header < 24):
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(min(header, len(data)))] = rng.integers(256)
        elif kind == 3:
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        elif kind == 4:
            start = rng.integers(header, len(data))
            data[start : start + 5000] = b"\xff" * len(data[start : start + 5000])
        elif kind == 5:
            data[header:] = bytes(len(data) - header)
        else:
            field = 20 + 4 * int(rng.integers(max(1, (header - 20) // 4)))
            number = rng.choice([0, 1, 2, 255, 4096, 4097, 2**31, 2**32 - 1])
            data[field : field + 4] = struct.pack("<I", number)
        yield bytes(data)


def test_altered_messages_raise_and_nothing_crashes(scheme, holder, evaluator):
    rng = np.random.default_rng(5)
    prepared = evaluator.prepare(rng.normal(size=(40, 3)))
    sealed = holder.encrypt(rng.uniform(-1, 1, (40, 1)), bound=1.0)
    blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, sealed))
    shape = OpeningShape(40, 1, 3)
    opened = holder.open(blinded, shape)

    def unblind(message):
        evaluator.unblind(message, RowMask(mask.scale, mask.masks))

    targets = [
        (scheme.evaluator, holder.public, 4, 60),
        (lambda m: evaluator.transpose_product(prepared, m), sealed, SEALED_HEADER.size, 150),
        (lambda m: holder.open(m, shape), blinded, BLINDED_HEADER.size, 150),
        (unblind, opened, OPENED_HEADER.size, 90),
    ]
    refused = 0
    for call, message, header, count in targets:
        for mutant in _mutants(message, header, rng, count):
            try:
                call(mutant)
            except CryptoError:
                refused += 1
        for cut in range(0, min(len(message), 60)):
            with pytest.raises(CryptoError):
                call(message[:cut])
    assert refused > 150


def test_memory_and_descriptors_stay_flat():
    holder, evaluator = HOLDER, EVALUATOR

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    rng = np.random.default_rng(6)
    prepared, g = evaluator.prepare(rng.normal(size=(128, 20))), rng.uniform(-1, 1, (128, 1))

    def rounds(count):
        for _ in range(count):
            blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, holder.encrypt(g, bound=1.0)))
            evaluator.unblind(holder.open(blinded, OpeningShape(128, 1, 20)), mask)

    def grown(count):
        memory = resident()
        rounds(count)
        return resident() - memory

    rounds(30)
    gc.collect()  # clean up after other tests
    descriptors = len(os.listdir("/proc/self/fd"))
    assert any(grown(100) < 2**20 for _ in range(4))  # a leak grows each time, but an allocator stops growing
    assert len(os.listdir("/proc/self/fd")) <= descriptors
