"""Switch networks apply the permutation for which they were built: all permutations of few rows, and some of many."""

from __future__ import annotations

from itertools import permutations
from math import log2

import numpy as np
import pytest

from securevfl.crypto.transfers.switch_network import SwitchNetwork
from securevfl.errors import ConfigError
from tests.builders import raises_code


def switched(network, settings, values):
    """Apply one switch after the other, to compare."""
    out, at = list(values), 0
    for first, second in network.layers:
        for one, other in zip(first, second, strict=True):
            if settings[at]:
                out[one], out[other] = out[other], out[one]
            at += 1
    assert at == len(settings) == network.switches
    return out


@pytest.mark.parametrize("rows", range(1, 9))
def test_every_order_of_up_to_eight_rows(rows: int) -> None:
    """Permute all blocks at once, each separately."""
    orders = np.array(list(permutations(range(rows))))
    network = SwitchNetwork([rows] * len(orders))
    source = (orders + np.arange(len(orders))[:, None] * rows).ravel()
    np.testing.assert_array_equal(network.apply(network.settings(source), np.arange(len(source))), source)


@pytest.mark.parametrize("rows", [2, 3, 7, 16, 33, 100, 1023, 1024])
def test_switches_one_by_one_give_the_order(rows: int) -> None:
    network, generator = SwitchNetwork([rows]), np.random.default_rng(rows)
    for _ in range(5):
        order = generator.permutation(rows)
        settings = network.settings(order)
        assert switched(network, settings, range(rows)) == order.tolist()
        np.testing.assert_array_equal(network.apply(settings, np.arange(rows)), order)


def test_blocks_of_several_sizes_stay_apart() -> None:
    sizes, generator = [5, 1, 8, 2, 13], np.random.default_rng(0)
    starts = np.cumsum([0, *sizes])
    order = np.concatenate([at + generator.permutation(size) for at, size in zip(starts, sizes, strict=False)])
    network = SwitchNetwork(sizes)
    np.testing.assert_array_equal(network.apply(network.settings(order), np.arange(29)), order)


@pytest.mark.parametrize("rows", [2, 4, 1024, 10_000, 16_384])
def test_there_are_about_n_log_n_switches(rows: int) -> None:
    count = SwitchNetwork([rows]).switches
    if rows & (rows - 1) == 0:
        assert count == rows * log2(rows) - rows / 2
    assert count < rows * log2(rows)


def test_switches_depend_on_the_number_of_rows_alone() -> None:
    for first, second in SwitchNetwork([301]).layers:
        wires = np.concatenate([first, second])
        assert len(np.unique(wires)) == len(wires)
        assert wires.min() >= 0


def test_no_rows_are_refused() -> None:
    for sizes in ([], [3, 0]):
        with raises_code(ConfigError, "SVFL-CRYPTO-SHAPE"):
            SwitchNetwork(sizes)
