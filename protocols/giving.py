"""Entries for what protocols tell that says nothing about anyone's rows."""

from __future__ import annotations

from securevfl.runtime.channel import Channel
from securevfl.runtime.door import Entry, Leave


def sizes(channel: Channel, to: str) -> Leave:
    """Enters numbers of rows, versions and digests of what is agreed, which tell no row."""
    return channel.tell(Entry(to, "sizes"))


def verdict(channel: Channel, to: str, *, bits: int = 1) -> Leave:
    """Enters how a training goes: whether it stops, and in which rounds a loss rose."""
    return channel.tell(Entry(to, "verdicts", bits=bits))
