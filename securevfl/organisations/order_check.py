"""Comparison of row orders: whether the parties of a session have the same rows in the same order.

The parties compare digests that are keyed for the session, so that a digest is useless in any other session.
"""

from __future__ import annotations

import hashlib
import hmac

from securevfl.errors import IdError
from securevfl.runtime.channel import Channel


def keyed_order(order: bytes, channel: Channel) -> bytes:
    """Return a digest of a row order that only the parties of this session can compare; empty if `order` is empty."""
    return hmac.digest(channel.session, order, hashlib.sha256) if order else b""


def check_order(me: str, my_order: bytes, name: str, other_order: bytes, rows: str = "rows") -> None:
    """Compare the row orders of two parties, if both have sent one.

    Args:
        me: name of this party.
        my_order: digest of this party's row order; empty if it has none.
        name: name of the other party.
        other_order: digest of the other party's row order; empty if it has none.
        rows: what the rows are called in the message.

    Raises:
        IdError: the orders differ.
    """
    if my_order and other_order and not hmac.compare_digest(my_order, other_order):
        raise IdError(f"{name} and {me} have the {rows} in a different order", code="SVFL-ID-ORDER", peer=name)
