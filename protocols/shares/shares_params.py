"""Parameters that all parties of a training on secret shares agree on, and the division of batches into row blocks.

The party with labels and its partner are the share holders. A batch is the set of rows that one iteration uses. It is
processed in blocks of rows, so that the memory for products does not grow with the batch. A chunk is a number of epochs
whose random products are computed together in advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.update_rules import LinearRule

ROWS_PER_BLOCK = 1 << 14
"""Largest number of rows of a block. Products, oblivious transfers and stored records cover one block each."""

_MIN_ROWS_PER_BLOCK = 1 << 12
_BLOCKS_OF_BATCH = 3


def rows_per_block(rows: int) -> int:
    """Return the number of rows of the blocks of batches with at most `rows` rows.

    The parties process one block while they send another one, so a batch has several blocks unless it is small.

    Args:
        rows: the number of rows of the largest batch.

    Returns:
        The number of rows of a block.
    """
    return min(ROWS_PER_BLOCK, max(_MIN_ROWS_PER_BLOCK, -(-rows // _BLOCKS_OF_BATCH)))


class RowBlock(NamedTuple):
    """The rows `start` to `stop` (exclusive) of a batch."""

    batch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows of the block."""
        return self.stop - self.start


@dataclass(frozen=True)
class SharesParams:
    """The agreed parameters of a training on secret shares.

    Attributes:
        encoding: the fixed-point encoding of all numbers (fixed_point.py).
        rows: for each batch, its number of rows.
        columns: the number of columns of each party, by its name.
        partner: the share holder that does not have the labels.
        rule: the rule that computes weights from gradients.
        outputs: the number of model outputs per row: 1, or one for each class.
        chunks: the approximate number of chunks of the training.
        intercept: the party whose last weight is an intercept; empty if the model has none.
        block: the largest number of rows of a block.
        pairs: the parameters of products of the two share holders' components; None if the model has none.
        has_nested_batches: whether each batch contains the rows of all smaller ones, as its first rows.
    """

    encoding: FixedPointEncoding
    rows: tuple[int, ...]
    columns: Mapping[str, int]
    partner: str
    rule: LinearRule
    outputs: int = 1
    chunks: int = 1
    intercept: str = ""
    block: int = ROWS_PER_BLOCK
    pairs: PairParams | None = None
    has_nested_batches: bool = False

    def __post_init__(self) -> None:
        """Reject an encoding and an update rule that use different numbers of bits for coefficients."""
        if self.rule.m != self.encoding.m:
            raise ConfigError(
                f"shares: the fixed-point encoding has {self.encoding.m} bits for coefficients of the update rule, but "
                f"the rule uses {self.rule.m}",
                "use the same number for both",
                code="SVFL-JOB-COMBINATION",
            )

    @cached_property
    def blocks(self) -> tuple[RowBlock, ...]:
        """The row blocks of all batches, batch after batch."""
        return tuple(
            RowBlock(batch, start, min(rows, start + self.block))
            for batch, rows in enumerate(self.rows)
            for start in range(0, rows, self.block)
        )

    def blocks_of(self, batch: int) -> range:
        """Return the range of indices in `blocks` that belong to a batch."""
        first = sum(-(-rows // self.block) for rows in self.rows[:batch])
        return range(first, first + -(-self.rows[batch] // self.block))

    def rule_of(self, party: str) -> LinearRule:
        """Return the update rule for the weights of a party, which may have an intercept."""
        return self.rule.with_intercept() if party == self.intercept else self.rule
