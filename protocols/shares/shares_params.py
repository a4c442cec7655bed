"""Parameters that all parties of a training on shares agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.update_rules import LinearRule

ROWS_PER_BLOCK = 1 << 14  # rows


class RowBlock(NamedTuple):
    """A block of a batch: some of its rows, of which `start` is the first."""

    batch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows of this block."""
        return self.stop - self.start


@dataclass(frozen=True)
class SharesParams:
    """What the parties of a training on shares have agreed: sizes and the rule.

    `rows` are the batches' n, by number; `columns` the parties' d, by name; `outputs` is c; `chunks` is how many chunks
    there will be about, `partner` the holder beside the active party, `intercept` the party whose last weight is one,
    `block` how many rows a block has.
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

    @cached_property
    def pieces(self) -> tuple[RowBlock, ...]:
        """The row blocks of all batches, in order."""
        return tuple(
            RowBlock(batch, start, min(rows, start + self.block))
            for batch, rows in enumerate(self.rows)
            for start in range(0, rows, self.block)
        )

    def pieces_of(self, batch: int) -> range:
        """Return the numbers of a batch's blocks."""
        first = sum(-(-rows // self.block) for rows in self.rows[:batch])
        return range(first, first + -(-self.rows[batch] // self.block))

    def __post_init__(self) -> None:
        if self.rule.m != self.encoding.m:
            raise ConfigError(
                f"shares: coefficients of {self.encoding.m} bits were agreed, the rule has {self.rule.m}; set m alike"
            )

    def rule_of(self, name: str) -> LinearRule:
        """Return the rule for this party's weights."""
        return self.rule.sparing() if name == self.intercept else self.rule
