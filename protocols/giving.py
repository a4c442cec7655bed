"""Entries for what protocols tell: a part of a sum, and what says nothing about anyone's rows."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.base.arrays import Floats
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Circle, Phases, Space
from securevfl.runtime.channel import Channel
from securevfl.runtime.door import Entry, Leave


def part_of_sum(seat: Seat, values: Floats | Phases, space: Space, about: Sequence[str] = ()) -> Leave:
    """Enters this party's part of a sum as told to the collector. about: whose columns the sum is of, all
    contributors' by default, as where it hides who gave what.
    """
    circle = isinstance(space, Circle)
    return seat.channel.tell(
        Entry(
            seat.collector,
            "phases" if circle else "columns",
            values.size,
            space.bits,
            tuple(about) or seat.contributors,
        )
    )


def sizes(channel: Channel, to: str) -> Leave:
    """Enters numbers of rows, versions and digests of what is agreed, which tell no row."""
    return channel.tell(Entry(to, "sizes"))


def verdict(channel: Channel, to: str) -> Leave:
    """Enters how a training goes: whether it stops, and in which rounds a loss rose."""
    return channel.tell(Entry(to, "verdicts", bits=1))
