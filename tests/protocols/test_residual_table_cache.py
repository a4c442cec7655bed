"""Residual tables are computed once for a block while they fit into memory, and for each use afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.crypto.prg import Prg
from securevfl.models.losses import LOSSES
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.residual_tables import CachedTables, ResidualTables
from securevfl.protocols.shares.shares_params import RowBlock

ENCODING, LOSS = FixedPointEncoding(300, 1.0), LOSSES["logistic"]


def computed(y: np.ndarray) -> ResidualTables:
    return ResidualTables(ENCODING, LOSS.residual, y)


@pytest.mark.parametrize("cached", [0, 1, 2, 3])
def test_blocks_that_fit_are_computed_once(cached: int) -> None:
    labels = np.sign(np.random.default_rng(0).normal(size=(3, 100, 1)))
    calls: list[int] = []

    def compute(block: RowBlock) -> ResidualTables:
        calls.append(block.start // 100)
        return computed(labels[block.start // 100])

    size = computed(labels[0]).nbytes
    tables = CachedTables(compute, size * cached)
    blocks = [RowBlock(0, start, start + 100) for start in (0, 100, 200)]
    for _ in range(3):
        for number, block in enumerate(blocks):
            entries = tables(block).entries(np.zeros(100, np.uint8), Prg(bytes(32), "rounding"))
            expected = computed(labels[number]).entries(np.zeros(100, np.uint8), Prg(bytes(32), "rounding"))
            np.testing.assert_array_equal(entries, expected)
    assert [calls.count(number) for number in range(3)] == [1] * cached + [3] * (3 - cached)


def test_one_column_of_labels_gives_the_same_tables_as_two() -> None:
    y = np.random.default_rng(1).choice([-1.0, 1.0], (200, 1))
    centre = lambda y: np.zeros((len(y), 1))  # noqa: E731
    doubled = ResidualTables(ENCODING, lambda f, y: LOSS.residual(f, y[:, :1]), np.hstack([y, y]), centre)
    indices = np.arange(200, dtype=np.uint8) % ENCODING.entries
    one, two = (tables.entries(indices, Prg(bytes(32), "rounding")) for tables in (computed(y), doubled))
    np.testing.assert_array_equal(one, two)
