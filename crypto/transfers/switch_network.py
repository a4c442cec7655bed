"""A network of switches that brings rows into any order: each switch swaps the values of two wires, or does not.

Benes 1964, for any number of wires (Chang and Melhem 1997; Beauquier and Darrot 2002). A network of n wires is a row
of floor(n/2) switches over neighbours, a network over all first wires of these pairs and one over all second ones
(with the last wire, if n is odd, which has no switch), and the same row of switches again; of two wires it is one
switch. That makes n log2 n - n/2 switches where n is a power of two, and about that elsewhere: no wires are added.
Which switches there are depends on n alone, so an order is one bit a switch.

Settings: two values that enter by one switch must take different inner networks, and so must two that leave by one.
So every value has one neighbour at its entrance and one at its exit, and the graph of these is a set of even cycles,
which have two colours. From a value two steps on (in by its exit's neighbour, out by that one's entrance) the colour
is the same; the smallest number among all that are reached so, found by doubling the steps, tells which of the two it
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ConfigError

WireOrder = NDArray[np.intp]

SwitchSettings = NDArray[np.uint8]  # 1 where a switch swaps


class SwitchNetwork:
    """The switches for rows in blocks of these sizes, each block put in an order of its own. ConfigError without rows.

    layers: pairs of wires (k,), (k,) that are switched at once, in order. switches: how many there are.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        if not sizes or min(sizes) < 1:
            raise ConfigError("an order of rows: one row or more was expected, none came; bring rows")
        self.rows = sum(sizes)
        self._levels: list[_Level] = []
        counts, wires = np.array(sizes), np.arange(self.rows)
        while len(counts):
            level = _Level(counts, wires)
            self._levels.append(level)
            counts, wires = level.inner
        entering = [(level.wires, level.enters) for level in self._levels]
        leaving = [(level.wires, level.leaves) for level in reversed(self._levels)]
        self.layers = [(wires[2 * at], wires[2 * at + 1]) for wires, at in (*entering, *leaving) if len(at)]
        self.switches = sum(len(first) for first, _ in self.layers)

    def settings(self, order: WireOrder) -> SwitchSettings:
        """How the switches (switches,) stand so that row j of the outcome is row order[j] of what entered."""
        entering, leaving, source = [], [], order
        for level in self._levels:
            filled = level.filled(source)
            lower = level.colours(filled)
            entering.append(lower[2 * level.enters])
            leaving.append(lower[filled[2 * level.leaves]])
            source = level.within(filled, lower)
        return np.concatenate([*entering, *reversed(leaving)])

    def apply(self, settings: SwitchSettings, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values (rows, ...) as they leave the network when its switches stand as in `settings`."""
        out, start = values.copy(), 0
        for first, second in self.layers:
            crossed = settings[start : start + len(first)].astype(bool)
            start += len(first)
            one, other = first[crossed], second[crossed]
            out[one], out[other] = out[other], out[one]
        return out


class _Level:
    """The inner networks of one depth side by side, each filled up to an even number of wires; neighbours are the
    places 2 i and 2 i + 1.

    wires: the wire of each place, -1 where it was filled in. enters, leaves: the pairs that have a switch before and
    behind the networks of the next depth. inner: sizes and wires of these.
    """

    def __init__(self, counts: WireOrder, wires: WireOrder) -> None:
        """Make one depth of networks. counts: their sizes in wires, one or more; wires: those of all, one after
        another."""
        even = counts + counts % 2
        starts = np.cumsum(even) - even
        self._places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(len(wires))
        self.wires = np.full(int(even.sum()), -1)
        self.wires[self._places] = wires
        whole, long = self.wires[1::2] >= 0, np.repeat(counts > 2, even // 2)
        self.enters, self.leaves = np.flatnonzero(whole & long), np.flatnonzero(whole)
        self._longest = int(even.max())
        sizes = np.stack([counts // 2, even // 2], axis=1).ravel()
        number = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._pair, self._lower = starts[number // 2] // 2 + within, number % 2
        kept = sizes[number] > 1
        self._pair, self._lower = self._pair[kept], self._lower[kept]
        last = self.wires[2 * self._pair + self._lower]
        self.inner = sizes[sizes > 1], np.where(last < 0, self.wires[2 * self._pair], last)
        self._entrance = np.full((2, len(self.wires) // 2), -1)
        self._entrance[self._lower, self._pair] = np.arange(len(self._pair))

    def filled(self, source: WireOrder) -> WireOrder:
        """Return for each place the one that its value comes from; what was filled in stays where it is."""
        found = np.arange(len(self.wires))
        found[self._places] = self._places[source]
        return found

    def colours(self, source: WireOrder) -> SwitchSettings:
        """Say for each place where a value enters whether it takes the network of second wires: 1 if so, else 0."""
        places = np.arange(len(source))
        leaves_at = np.empty_like(source)
        leaves_at[source] = places
        step = source[leaves_at ^ 1] ^ 1
        smallest = np.where(self.wires < 0, places - len(source), places)  # what was filled in takes the first wires
        for _ in range(self._longest.bit_length()):
            smallest = np.minimum(smallest, smallest[step])
            step = step[step]
        return (smallest > smallest[places ^ 1]).astype(np.uint8)

    def within(self, source: WireOrder, lower: SwitchSettings) -> WireOrder:
        """Return the order that each network of the next depth brings its rows into."""
        first = source[2 * self._pair]
        value = np.where(lower[first] == self._lower, first, source[2 * self._pair + 1])
        return self._entrance[self._lower, value // 2]


@lru_cache(maxsize=4)
def switch_network(rows: int, blocks: int = 1) -> SwitchNetwork:
    """Build the network for so many blocks of as many rows each."""
    return SwitchNetwork((rows,) * blocks)
