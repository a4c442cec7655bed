"""A network of switches that can permute n rows in any order: each switch swaps the values on two wires, or does not.

The network has n wires, and value number i enters on wire i. It is built recursively (Benes 1964; Chang and Melhem
1997 and Beauquier and Darrot 2002 for any n): a row of floor(n / 2) switches for pairs of neighbouring wires; then an
inner network for the first wires of all pairs and another one for the second wires (and for the last wire if n is odd);
then the same row of switches again. A network of two wires is one switch. If n is a power of two, there are n * log2(n)
- n / 2 switches, and otherwise about as many. The positions of the switches depend on n alone, so a permutation is
given by the settings, one bit for each switch.

To compute the settings for a permutation, every value is assigned to the first or to the second inner network (two
"colours"). Two values that enter by the same switch are neighbours and must have different colours, and so must two
values that leave by the same switch. So the values form cycles of neighbours, in which the colours alternate. A double
step, to the neighbour at the exit and then to its neighbour at the entrance, leads to a value of the same colour. The
code finds the smallest number of all values that are reached by double steps, for all values at once, and compares it
with that of the neighbour: the smaller one has the first colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError

WireOrder = NDArray[np.intp]
"""An array of wire numbers or row numbers."""

SwitchSettings = NDArray[np.uint8]
"""For each switch, 1 if it swaps its two values, and 0 otherwise."""


class SwitchNetwork:
    """The switches for one or more blocks of rows, each of which is permuted separately.

    Args:
        sizes: number of rows of each block.

    Raises:
        ConfigError: if a block has no rows.

    Attributes:
        sizes: number of rows of each block.
        layers: for each layer, in order, the first and the second wire of each of its k switches, as two arrays (k,).
            The switches of a layer have no wire in common.
        switches: number of switches.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
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
        """Return the settings (switches,) that move row `order[j]` of the input to row j of the output, for all j."""
        entering, leaving, source = [], [], order
        for level in self._levels:
            filled = level.filled(source)
            lower = level.colours(filled)
            entering.append(lower[2 * level.enters])
            leaving.append(lower[filled[2 * level.leaves]])
            source = level.within(filled, lower)
        return np.concatenate([*entering, *reversed(leaving)])

    def apply(self, settings: SwitchSettings, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values (rows, ...) after they have passed through the network with these settings."""
        out, start = values.copy(), 0
        for first, second in self.layers:
            swapped = settings[start : start + len(first)].astype(bool)
            start += len(first)
            one, other = first[swapped], second[swapped]
            out[one], out[other] = out[other], out[one]
        return out


class _Level:
    """All inner networks at one depth of the recursion.

    A network has a position for each of its wires, and one more if their number is odd. The positions 2 * i and 2 * i +
    1 are neighbours, pair number i.

    Args:
        counts: the number of wires of each network, at least one.
        wires: the wires of all networks, one network after another.

    Attributes:
        wires: the wire at each position; -1 for the additional position of a network with an odd number of wires.
        enters: the pairs that have a switch before the inner networks.
        leaves: the pairs that have a switch after the inner networks.
        inner: the number of wires of each inner network, and the wires of all inner networks.
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
        """Translate a permutation of wires into one of positions; additional positions map to themselves."""
        positions = np.arange(len(self.wires))
        positions[self._positions] = self._positions[source]
        return positions

    def colours(self, source: WireOrder) -> SwitchSettings:
        """Return for each entrance 1 if its value passes through the second inner network, and 0 for the first one."""
        positions = np.arange(len(source))
        leaves_at = np.empty_like(source)
        leaves_at[source] = positions
        step = source[leaves_at ^ 1] ^ 1
        smallest = np.where(
            self.wires < 0, positions - len(source), positions
        )  # an additional position starts with a negative number, the smallest one, so that it gets colour 0
        for _ in range(self._longest.bit_length()):
            smallest = np.minimum(smallest, smallest[step])
            step = step[step]
        return (smallest > smallest[positions ^ 1]).astype(np.uint8)

    def within(self, source: WireOrder, lower: SwitchSettings) -> WireOrder:
        """Return the permutations of the two inner networks, concatenated, from the colours `lower` of the values."""
        first = source[2 * self._pair]
        value = np.where(lower[first] == self._lower, first, source[2 * self._pair + 1])
        return self._entrance[self._lower, value // 2]


@lru_cache(maxsize=4)
def switch_network(rows: int, blocks: int = 1) -> SwitchNetwork:
    """Return the network for `blocks` blocks of `rows` rows each, from a cache if it was computed before."""
    return SwitchNetwork((rows,) * blocks)
