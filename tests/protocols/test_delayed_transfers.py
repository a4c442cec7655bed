"""Transfers that are generated during a training: every block has its transfers once, in messages of limited size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from securevfl.protocols.shares.delayed_transfers import DelayedTransfers
from securevfl.protocols.shares.table_transfers import Transfers

LIMIT = 2**17  # rows of an extension with 64 entries each


class Counted(Transfers):
    """Transfers whose values are the numbers of rows, so that a test sees which block they are for."""

    bits = 6

    def __init__(self) -> None:
        self.messages: list[int] = []

    def begin(self, rows: Sequence[int]) -> Callable[[], list[tuple[bytes, ...]]]:
        self.messages.append(sum(rows))
        return lambda: [(count.to_bytes(8, "little"),) for count in rows]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("rows", [1, 100, 16_383, 16_384, 16_385, 131_071, 131_072, 131_073, 1_500_000])
def test_every_block_is_generated_once_below_the_limit(rows: int, outputs: int) -> None:
    block = 16_384
    blocks = [min(block, rows - start) * outputs for start in range(0, rows, block)]
    iterations = [blocks, blocks[:1], blocks]  # batches of several sizes
    transfers = Counted()
    delayed = DelayedTransfers([transfers], iterations)
    for number, sizes in enumerate(iterations):
        delayed.begin(number)
        delayed.finish()
        delayed.begin(number + 1)  # as during an iteration
        assert [delayed.take(number, index) for index in range(len(sizes))] == [
            [(size.to_bytes(8, "little"),)] for size in sizes
        ]
        delayed.finish()
        with pytest.raises(KeyError):
            delayed.take(number, 0)
    assert sum(transfers.messages) == sum(map(sum, iterations))
    assert max(transfers.messages) <= max(LIMIT, *blocks)
