"""Shared products W^T V on SEAL: the share computed from the mask, exact rounding, and the cost of a layout."""

from __future__ import annotations

import copy
import math
import os

import numpy as np
import pytest
import tenseal.sealapi as seal
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.lattice import lattice_shares
from securevfl.crypto.lattice.polynomial_ring import uniform
from securevfl.crypto.prg import Prg
from tests.crypto.test_lattice_shares_security import (
    BFV,
    PARAMETERS,
    KnowingHolder,
    N,
    Q,
    T,
    answer,
    crt,
    negacyclic,
    pair,
    words,
)


def test_a_second_polynomial_is_uniform_below_each_prime():
    second = uniform(Prg(os.urandom(32), "a"), BFV.key_primes, 60000)
    for row, p in zip(second, BFV.key_primes, strict=True):
        assert (row < p).all()
        counts = np.bincount((row.astype(float) * 16 / p).astype(int), minlength=16)
        assert ((counts - 3750) ** 2 / 3750).sum() < 80


# --- the share that is computed from the mask is exact ---------------------------------------------------------------


def rounding(bits):
    """Return a ring like that of `BFV`, with another t."""
    ring = copy.copy(BFV)
    ring.bits = bits
    return ring


@settings(max_examples=50)
@given(st.lists(st.integers(0, Q - 1), min_size=1, max_size=20), st.integers(8, 56))
def test_a_share_of_the_mask_is_rounded_exactly(values, bits):
    residues = np.array([[x % p for x in values] for p in BFV.primes], np.uint64)
    slow = [(2 ** (bits + 1) * x + Q) // (2 * Q) % 2**bits for x in values]
    assert rounding(bits).nearest(residues).tolist() == slow


def test_values_next_to_a_half_are_rounded_exactly_too():
    near = [(half * pow(T, -1, Q)) % Q for half in ((Q + k) // 2 for k in (-3, -1, 1, 3))]
    residues = np.array([[x % p for x in near] for p in BFV.primes], np.uint64)
    assert BFV.nearest(residues).tolist() == [(2 * T * x + Q) // (2 * Q) % T for x in near]


def test_floats_would_be_off_at_this_size():
    """This is why shares are computed in integers: as a fraction of q in floats, they lose most of their low bits."""
    residues = uniform(Prg.fresh("test"), BFV.primes, 2000)
    floats = np.rint((BFV.numbers(residues) / Q).astype(float) * 2.0**56).astype(np.uint64) & np.uint64(T - 1)
    assert (floats != BFV.nearest(residues)).mean() > 0.5


def test_seal_rounds_what_it_decrypts_as_integers_do():
    """The holder's share by SEAL's decryption is compared with the exact rounding of c0 + c1 s, for uniform values."""
    holder, evaluator = pair(holder=KnowingHolder)
    sealed = holder.encrypt(words(1, 1), columns=1000)
    reply, _ = evaluator.product(evaluator.prepare(np.ones((1, 1000), int)), sealed)
    c1, c0 = answer(reply, 1000)
    where = range(1000)
    product = negacyclic(crt(c1), holder.secret)
    exact = [(2 * T * ((a + product[at]) % Q) + Q) // (2 * Q) % T for at, a in zip(where, crt(c0), strict=True)]
    assert holder.open(reply).ravel().tolist() == exact


def test_the_context_that_makes_keys_is_of_no_ciphertext():
    assert BFV._maker.key_parms_id() != BFV.context.key_parms_id()
    assert math.log2(math.prod(BFV.key_primes)) <= 109
    assert seal.CoeffModulus.MaxBitCount(N, seal.SEC_LEVEL_TYPE.TC128) == 109


@pytest.mark.parametrize(("n", "c", "d"), [(256, 16, 15), (15, 16, 256), (4096, 16, 100), (1, 1, 5000), (5000, 300, 1)])
def test_the_layout_is_no_dearer_than_any_other_of_its_kind(n, c, d):
    """`choose` considers equal parts only; no other pair of s and r is better by more than a fiftieth."""

    def cost(s, r, uses):
        layout = RingLayout(n, c, r, s)
        return lattice_shares.milliseconds(layout, d, uses) if layout.columns else math.inf

    for uses in (1, 10):
        chosen = PARAMETERS.choose(n, c, d, uses)
        steps = sorted({*range(1, min(n, N) + 1, max(1, min(n, N) // 300)), n if n <= N else N})
        best = min(cost(s, r, uses) for s in steps for r in (1, 2, 4, 8, 16, 32, 64) if r < 2 * c and s * r <= N)
        assert cost(chosen.s, chosen.r, uses) <= 1.02 * best
