"""Comparison of row orders: whether the parties of a session bring the same rows in the same order."""

from __future__ import annotations

import hashlib
import hmac

from securevfl.errors import IdError
from securevfl.runtime.channel import Channel


def keyed_order(order: bytes, channel: Channel) -> bytes:
    """Return a digest of a row order that only the parties of this session can compare; empty if `order` is empty."""
    return hmac.digest(channel.session, order, hashlib.sha256) if order else b""


def check_order(me: str, own: bytes, name: str, other: bytes, rows: str = "rows") -> None:
    """Compare the row orders of two parties, if both have sent one.

    Args:
        me: name of this party.
        own: this party's digest.
        name: name of the other party.
        other: its digest.
        rows: what the rows are called in the message.

    Raises:
        IdError: the orders differ.
    """
    if other and own and not hmac.compare_digest(other, own):
        raise IdError(f"{name} and {me} have the {rows} in a different order", code="SVFL-ID-ORDER", peer=name)
