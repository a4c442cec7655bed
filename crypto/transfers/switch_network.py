"""A network of switches that permutes rows: each switch swaps the values of two wires, or does not.

Benes 1964, for any number of wires (Chang and Melhem 1997; Beauquier and Darrot 2002). A network of n wires consists of
a row of floor(n/2) switches over neighbours, a network over all first wires of these pairs and one over all second
wires (with the last wire, which has no switch, if n is odd), and the same row of switches again. A network of two wires
is one switch. It has n log2 n - n/2 switches if n is a power of two, and about that many otherwise: no wires are added.
The switches depend on n alone, so a permutation is one bit for each switch.

*Settings.* Two values that enter by one switch must take different inner networks, and so must two values that leave by
one switch. Every value therefore has one neighbour at its entrance and one at its exit. The graph of neighbours
consists of even cycles, which have two colours. Two steps away (to the neighbour at the exit, then to that one's
neighbour at the entrance), the colour is the same. The smallest number among all values that are reached in this way,
found by doubling the steps, determines the colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError

WireOrder = NDArray[np.intp]
"""Numbers of wires or rows."""

SwitchSettings = NDArray[np.uint8]
"""1 for each switch that swaps, else 0."""


class SwitchNetwork:
    """The switches for blocks of rows that are permuted separately.

    Args:
        sizes: number of rows of each block.

    Raises:
        ConfigError: if a block has no rows.

    Attributes:
        layers: pairs of wires (k,), (k,) that are switched at once, in order.
        switches: number of switches.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        if not sizes or min(sizes) < 1:
            raise ConfigError("there are no rows to permute", "pass at least one row", code="SVFL-CRYPTO-SHAPE")
        self.rows = sum(sizes)
        self._levels: list[_Level] = []
        counts, wires = np.array(sizes), np.arange(self.rows)
        while len(counts):
            level = _Level(counts, wires)
            self._levels.append(level)
            counts, wires = level.inner
        entering = [(level.wires, level.enters) for level in self._levels]
        leaving = [(level.wires, level.leaves) for level in reversed(self._levels)]
        self.layers = [(wires[2 * pairs], wires[2 * pairs + 1]) for wires, pairs in (*entering, *leaving) if len(pairs)]
        self.switches = sum(len(first) for first, _ in self.layers)

    def settings(self, order: WireOrder) -> SwitchSettings:
        """Return the settings (switches,) that move row order[j] of the input to row j of the output."""
        entering, leaving, source = [], [], order
        for level in self._levels:
            filled = level.filled(source)
            lower = level.colours(filled)
            entering.append(lower[2 * level.enters])
            leaving.append(lower[filled[2 * level.leaves]])
            source = level.within(filled, lower)
        return np.concatenate([*entering, *reversed(leaving)])

    def apply(self, settings: SwitchSettings, values: NDArray[Any]) -> NDArray[Any]:
        """Return the output of the network for values (rows, ...) and these settings."""
        out, start = values.copy(), 0
        for first, second in self.layers:
            swapped = settings[start : start + len(first)].astype(bool)
            start += len(first)
            one, other = first[swapped], second[swapped]
            out[one], out[other] = out[other], out[one]
        return out


class _Level:
    """The networks of one depth, each padded to an even number of wires; positions 2 i and 2 i + 1 are neighbours.

    Args:
        counts: numbers of wires of the networks, one or more each.
        wires: the wires of all networks, one network after another.

    Attributes:
        wires: the wire of each position, -1 for padding.
        enters: pairs with a switch before the networks of the next depth.
        leaves: pairs with a switch after these.
        inner: numbers of wires and wires of the networks of the next depth.
    """

    def __init__(self, counts: WireOrder, wires: WireOrder) -> None:
        even = counts + counts % 2
        starts = np.cumsum(even) - even
        self._positions = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(len(wires))
        self.wires = np.full(int(even.sum()), -1)
        self.wires[self._positions] = wires
        paired, long = self.wires[1::2] >= 0, np.repeat(counts > 2, even // 2)
        self.enters, self.leaves = np.flatnonzero(paired & long), np.flatnonzero(paired)
        self._longest = int(even.max())
        sizes = np.stack([counts // 2, even // 2], axis=1).ravel()
        number = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._pair, self._lower = starts[number // 2] // 2 + within, number % 2
        several = sizes[number] > 1
        self._pair, self._lower = self._pair[several], self._lower[several]
        inner = self.wires[2 * self._pair + self._lower]
        self.inner = sizes[sizes > 1], np.where(inner < 0, self.wires[2 * self._pair], inner)
        self._entrance = np.full((2, len(self.wires) // 2), -1)
        self._entrance[self._lower, self._pair] = np.arange(len(self._pair))

    def filled(self, source: WireOrder) -> WireOrder:
        """Return the source of each position's value; padding stays in its position."""
        positions = np.arange(len(self.wires))
        positions[self._positions] = self._positions[source]
        return positions

    def colours(self, source: WireOrder) -> SwitchSettings:
        """Return for each entering position 1 if its value takes the network of second wires, else 0."""
        positions = np.arange(len(source))
        leaves_at = np.empty_like(source)
        leaves_at[source] = positions
        step = source[leaves_at ^ 1] ^ 1
        smallest = np.where(self.wires < 0, positions - len(source), positions)  # padding takes the first wires
        for _ in range(self._longest.bit_length()):
            smallest = np.minimum(smallest, smallest[step])
            step = step[step]
        return (smallest > smallest[positions ^ 1]).astype(np.uint8)

    def within(self, source: WireOrder, lower: SwitchSettings) -> WireOrder:
        """Return the permutation of each network of the next depth."""
        first = source[2 * self._pair]
        value = np.where(lower[first] == self._lower, first, source[2 * self._pair + 1])
        return self._entrance[self._lower, value // 2]


@lru_cache(maxsize=4)
def switch_network(rows: int, blocks: int = 1) -> SwitchNetwork:
    """Return the cached network for `blocks` blocks of `rows` rows each."""
    return SwitchNetwork((rows,) * blocks)
