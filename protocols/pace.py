"""Pace: what the active party tells passive parties beside a residual, of how the training goes.

1. active -> passive   Pace    the multiple of the safe step that all take now, and whether it was the last exchange

Both follow from the active party's own loss over the rounds: the multiple falls where the loss has risen, and the last
exchange is when it no longer falls. So passive parties learn in which rounds it rose, and how many rounds were needed.
"""

from __future__ import annotations

from securevfl.protocols.base import Declared, Reveal
from securevfl.roles import ACTIVE, PASSIVE
from securevfl.runtime.codec import Message

LANE = "pace"


class Pace(Message, frozen=True):
    """multiple: of the step that is safe whatever the columns, 1 or more. stop: no residual follows; keep what was
    sent."""

    multiple: float
    stop: bool


def declares() -> list[Declared]:
    """What it reveals."""
    what = "in which rounds the active party's own loss rose, and after how many it no longer fell"
    return [Declared(Pace, ACTIVE, PASSIVE, Reveal("plain", what))]
