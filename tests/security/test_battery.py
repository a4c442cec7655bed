"""The battery of tests of random bits detects what it should and raises no more false alarms than its level states."""

import numpy as np
import pytest
from selfcheck.bits import bits_of, bits_of_numbers, bitwise

from securevfl.audit.statistics import TEST_LEVEL, Battery
from securevfl.audit.transcript_checks import _wrong_total
from securevfl.protocols.number_spaces import Circle


def random_bits(n: int, b: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, b), np.uint8)


def p_values(bits: np.ndarray) -> list[float]:
    battery = Battery()
    bitwise(battery, "x", bits)
    return list(battery.values.values())


def test_random_bits_raise_few_alarms() -> None:
    result = np.array([p_values(random_bits(150, 24, seed)) for seed in range(300)])
    assert result.shape == (300, 3)
    for level in (0.5, 0.1, 0.01):
        assert ((result <= level).mean(axis=0) <= level + 3 * np.sqrt(level / 300)).all(), level


def constant(bits: np.ndarray) -> None:
    bits[:, 5] = 1


def copied(bits: np.ndarray) -> None:
    bits[:, 40] = bits[:, 17]


def opposite(bits: np.ndarray) -> None:
    bits[:, 63] = 1 - bits[:, 0]


def shifted(bits: np.ndarray) -> None:
    bits[1:, 9] = bits[:-1, 31]


def in_pairs(bits: np.ndarray) -> None:
    bits[1::2] = 1 - bits[::2]


@pytest.mark.parametrize(
    ("break_one", "place"), [(constant, 0), (copied, 1), (opposite, 1), (shifted, 2), (in_pairs, 2)]
)
@pytest.mark.parametrize("n", [200, 2000])
def test_each_defect_fails_its_test(break_one: object, place: int, n: int) -> None:
    bits = random_bits(n, 64)
    break_one(bits)  # type: ignore[operator]
    result = p_values(bits)
    assert result[place] < TEST_LEVEL
    assert all(p > TEST_LEVEL for k, p in enumerate(result) if k < place)


def test_bits_are_lowest_first() -> None:
    assert bits_of(np.array([[1], [2**63]], np.uint64)).nonzero() == (pytest.approx([0, 1]), pytest.approx([0, 63]))
    rows = bits_of_numbers([5, 2**100, 2**200 + 1], 101)
    assert rows.shape == (3, 101)
    assert [row.nonzero()[0].tolist() for row in rows] == [[0, 2], [100], [0]]


def test_a_battery_counts_every_p_value_of_one_name() -> None:
    battery = Battery()
    for p in (0.5, 0.0, 0.7):
        battery.add("x", p)
    assert len(battery) == 3
    assert battery.failures() == ["x (p = 0.0e+00)"]


@pytest.mark.parametrize(
    ("total", "wrong"), [(0, False), (2**32 - 100, False), (50, False), (10_000, True), (2**31, True)]
)
def test_a_sum_of_phases_is_exact_to_a_millionth_of_a_turn(total: int, wrong: bool) -> None:
    parts = [np.array([2**32 - 1], np.uint32), np.array([1], np.uint32)]
    assert _wrong_total(parts, np.array([total], np.uint32), Circle(32)) == wrong
    short = [np.array([2**16 - 1], np.uint32)] * 2
    assert not _wrong_total(short, np.array([2**16 - 2], np.uint32), Circle(16))
    assert _wrong_total(short, np.array([2**16 - 1], np.uint32), Circle(16))
