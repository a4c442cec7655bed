import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.transfers import okvs, ot_extension
from securevfl.crypto.transfers.base_ot import Offerer, choose
from securevfl.crypto.transfers.ot_extension import Holder, PrfEvaluator, fresh_choices, target


def word(number: int) -> np.ndarray:
    return np.array([[number & (1 << 64) - 1, number >> 64]], np.uint64)


def as_int(words: np.ndarray) -> int:
    return int.from_bytes(words.astype("<u8").tobytes(), "little")


def test_the_code_is_the_bch_code() -> None:
    """g has the roots alpha .. alpha^170 (the BCH bound: distance 171), degree 435, and divides x^511 - 1."""
    generator = ot_extension._generator()
    powers = ot_extension._powers()
    assert len(set(powers)) == 511
    assert generator.bit_length() - 1 == 511 - ot_extension.MESSAGE_BITS
    places = [i for i in range(generator.bit_length()) if generator >> i & 1]
    for root in range(1, ot_extension.DISTANCE - 1):
        total = 0
        for place in places:
            total ^= powers[root * place % 511]
        assert total == 0
    rest = 1 << 511 | 1
    while (excess := rest.bit_length() - generator.bit_length()) >= 0:
        rest ^= generator << excess
    assert rest == 0


@given(st.integers(0, 2**76 - 1), st.integers(0, 2**76 - 1))
def test_the_code_is_linear_and_its_words_far_apart(one: int, other: int) -> None:
    a, b, both = (ot_extension.encode(word(each)) for each in (one, other, one ^ other))
    np.testing.assert_array_equal(a ^ b, both)
    if one != other:
        assert as_int(both).bit_count() >= ot_extension.DISTANCE
    assert as_int(both).bit_count() % 2 == 0


def test_bits_beyond_the_message_are_not_read() -> None:
    np.testing.assert_array_equal(ot_extension.encode(word(5 | 0xFFF << 116)), ot_extension.encode(word(5)))


def meet(keys: bytes, evaluators: int = 1) -> tuple[list[PrfEvaluator], Holder, bytes, int]:
    """Evaluators on the same transfers and store, and their holder; the store's seed and rows."""
    offerer, choices = Offerer(), fresh_choices()
    bits = np.unpackbits(np.frombuffer(choices, np.uint8), bitorder="little").astype(bool).tolist()
    points, seeds = choose(offerer.offer, bits)
    pairs = offerer.pairs(points)
    seed, store = okvs.encode(keys, target(keys))
    return [PrfEvaluator(pairs, seed, store) for _ in range(evaluators)], Holder(choices, seeds), seed, len(store)


@pytest.mark.parametrize("block", [64, 200, 1 << 16])
def test_both_ends_agree_on_stored_keys_and_on_no_other(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot_extension, "BLOCK", block)
    monkeypatch.setattr(ot_extension, "_KEYS", 70)
    keys, others = os.urandom(32 * 300), os.urandom(32 * 300)
    (evaluator,), holder, seed, slots = meet(keys)
    for number in range(-(-slots // block)):
        holder.correct(number, evaluator.corrections(number))
    values = holder.values(seed, keys + others)
    np.testing.assert_array_equal(evaluator.answers(keys), values[:300])
    assert not (evaluator.answers(others)[:, 0] == values[300:, 0]).any()
    assert len(np.unique(values[:, 0])) == 600


def test_a_block_sent_earlier_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot_extension, "BLOCK", 128)
    keys = os.urandom(32 * 100)
    (first, second), holder, seed, slots = meet(keys, 2)
    holder.correct(0, first.corrections(0))
    second.skip(0)
    for number in range(1, -(-slots // 128)):
        holder.correct(number, second.corrections(number))
    np.testing.assert_array_equal(second.answers(keys), holder.values(seed, keys))


def test_the_matrix_is_that_of_the_paper() -> None:
    """Column j of Q is T_j where s_j = 0 and T'_j ^ U_j where it is 1, bit by bit."""
    keys = os.urandom(32 * 20)
    (evaluator,), holder, _, slots = meet(keys)
    corrections = evaluator.corrections(0)
    holder.correct(0, corrections)
    u, t, q = (
        np.unpackbits(np.ascontiguousarray(each).view(np.uint8).reshape(slots, -1), axis=1, bitorder="little")
        for each in (np.frombuffer(corrections, np.uint8), evaluator._transfers[0], holder._rows[0])
    )
    words = ot_extension.encode(evaluator._store).view(np.uint8).reshape(slots, -1)
    code = np.unpackbits(words, axis=1, bitorder="little")
    s = np.unpackbits(holder._choices.view(np.uint8), bitorder="little")
    np.testing.assert_array_equal(q, t ^ s * code)
    assert 0.45 < u.mean() < 0.55
