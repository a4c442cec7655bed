"""Multi-exponentiation, combs and batch inversion against Python's pow."""

import itertools

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.paillier import multiexp
from securevfl.crypto.paillier.fixed_base import FixedBase
from securevfl.crypto.paillier.multiexp import ExponentTerms, batch_inverse, evaluate, naf, plan

M = (2**61 - 1) * (2**89 - 1)


def run(terms: ExponentTerms, bases: list[int], workers: int) -> list[int]:
    result = [1] * terms.outputs
    for block in plan(terms, workers):
        part = evaluate(block, bases[block.first_base : block.first_base + block.bases], M)
        for place, factor in enumerate(part, block.first_output):
            result[place] = result[place] * int(factor) % M
    return result


def oracle(terms: ExponentTerms, bases: list[int]) -> list[int]:
    result = [1] * terms.outputs
    columns = (terms.base, terms.value, terms.shift, terms.output)
    for i, v, s, j in zip(*(column.tolist() for column in columns), strict=True):
        result[j] = result[j] * pow(bases[i], v << s, M) % M
    return result


def random_terms(rng, bases: int, outputs: int, bits: int, count: int) -> ExponentTerms:
    return ExponentTerms(
        bases,
        outputs,
        rng.integers(0, bases, count),
        rng.integers(-(2**bits), 2**bits + 1, count),
        rng.integers(0, 4, count) * 50,
        rng.integers(0, outputs, count),
    )


@given(st.lists(st.integers(-(2**40), 2**40), max_size=30), st.integers(2, 12))
def test_naf_is_the_number(values, window):
    index, bit, digit = naf(np.array(values, dtype=np.int64), window)
    total = [0] * len(values)
    seen: dict[int, list[int]] = {}
    for i, b, v in zip(index.tolist(), bit.tolist(), digit.tolist(), strict=True):
        assert v % 2
        assert abs(v) < 2 ** (window - 1)
        total[i] += v << b
        seen.setdefault(i, []).append(b)
    assert total == values
    assert all(y - x >= window for bits in seen.values() for x, y in itertools.pairwise(bits))


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 24), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_products_agree_with_pow(bases, outputs, bits, workers, seed):
    rng = np.random.default_rng(seed)
    terms = random_terms(rng, bases, outputs, bits, int(rng.integers(0, 200)))
    units = [int(x) + 2 for x in rng.integers(0, 2**60, bases)]
    assert run(terms, units, workers) == oracle(terms, units)


@pytest.mark.parametrize("inverses", [True, False])
@pytest.mark.parametrize(("bases", "outputs"), [(1, 3), (2, 1), (1, 1), (3, 2)])
def test_every_schedule_agrees(inverses, bases, outputs):
    rng = np.random.default_rng(5)
    terms = random_terms(rng, 13, 7, 20, 150)
    units = [int(x) + 2 for x in rng.integers(0, 2**60, 13)]
    for window in (2, 3, 6):
        blocks = multiexp.schedule(terms, window, inverses, bases, outputs)
        result = [1] * 7
        for block in blocks:
            part = evaluate(block, units[block.first_base : block.first_base + block.bases], M)
            for place, factor in enumerate(part, block.first_output):
                result[place] = result[place] * int(factor) % M
        assert result == oracle(terms, units)


def test_tables_stay_bounded(monkeypatch):
    monkeypatch.setattr(multiexp, "MAX_TABLE_ENTRIES", 64)
    rng = np.random.default_rng(6)
    terms = random_terms(rng, 200, 3, 20, 900)
    units = [int(x) + 2 for x in rng.integers(0, 2**60, 200)]
    blocks = plan(terms)
    assert all(b.bases * (1 << (b.window - 2)) * (2 if b.inverses else 1) <= 64 for b in blocks)
    assert run(terms, units, 1) == oracle(terms, units)


def test_zero_exponents_are_one():
    empty = np.zeros(0, dtype=np.int64)
    assert run(ExponentTerms(3, 2, empty, empty, empty, empty), [5, 6, 7], 2) == [1, 1]


def test_batch_inverse():
    values = [mpz(v) for v in (3, 10, 2**40 + 1)]
    assert [a * b % M for a, b in zip(values, batch_inverse(values, mpz(M)), strict=True)] == [1, 1, 1]
    with pytest.raises(ZeroDivisionError):
        batch_inverse([mpz(3), mpz(2**61 - 1)], mpz(M))


@given(st.integers(2, M - 1), st.integers(0, 2**70 - 1), st.integers(1, 8))
def test_comb_agrees_with_pow(base, e, window):
    assert FixedBase(base, M, 70, window).power(e) == pow(base, e, M)


def test_comb_refuses_long_exponents():
    comb = FixedBase(3, M, 70)
    for e in (-1, 1 << 70):
        with pytest.raises(ValueError, match="70 bits"):
            comb.power(e)
