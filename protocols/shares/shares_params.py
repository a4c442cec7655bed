"""Parameters that all parties of a training on shares agree on, and the blocks of rows that they imply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.update_rules import LinearRule

ROWS_PER_BLOCK = 1 << 14
"""Rows of a block: products, oblivious transfers and stored records cover one block, so that memory does not grow with
the batch."""


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
    """The agreed parameters of a training on shares.

    Attributes:
        encoding: the fixed-point encoding.
        rows: n, the number of rows of each batch.
        columns: d, the number of columns of each party.
        partner: the share holder next to the active party.
        rule: the update rule of the weights.
        outputs: c, the number of model outputs.
        chunks: the approximate number of chunks of the training.
        intercept: the party whose last weight is an intercept; empty if there is none.
        block: the number of rows of a block.
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

    def __post_init__(self) -> None:
        """Check that encoding and update rule fit together."""
        if self.rule.m != self.encoding.m:
            raise ConfigError(
                f"shares: the encoding has {self.encoding.m} bits for coefficients and the update rule uses "
                f"{self.rule.m}",
                "use the same number for both",
                code="SVFL-JOB-COMBINATION",
            )

    @cached_property
    def blocks(self) -> tuple[RowBlock, ...]:
        """The row blocks of all batches, in order."""
        return tuple(
            RowBlock(batch, start, min(rows, start + self.block))
            for batch, rows in enumerate(self.rows)
            for start in range(0, rows, self.block)
        )

    def blocks_of(self, batch: int) -> range:
        """Return the indices in `blocks` of a batch's blocks."""
        first = sum(-(-rows // self.block) for rows in self.rows[:batch])
        return range(first, first + -(-self.rows[batch] // self.block))

    def rule_of(self, party: str) -> LinearRule:
        """Return the update rule of this party's weights."""
        return self.rule.with_intercept() if party == self.intercept else self.rule
