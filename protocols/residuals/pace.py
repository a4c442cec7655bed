"""Pace: what the active party tells passive parties beside a residual, of how the training goes.

1. active -> passive   Pace    the multiple of the safe step that all take now, and whether it was the last exchange

Both follow from the active party's own loss over the rounds: the multiple falls where the loss has risen, and the
last exchange is when it no longer falls. So passive parties learn in which rounds it rose, and how many rounds were
needed.
"""

from __future__ import annotations

from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.disclosure_gate import DisclosingMessage

PACE_SUBCHANNEL = "pace"


class Pace(DisclosingMessage, frozen=True):
    """multiple: of the step that is safe whatever the columns, 1 or more. stop: no residual follows; keep what was
    sent."""

    multiple: float
    stop: bool


def declares() -> list[MessageDeclaration]:
    """Declare what the message about the active party's loss reveals."""
    what = "in which rounds the active party's own loss rose, and after how many it no longer fell"
    return [MessageDeclaration(Pace, ACTIVE, PASSIVE, Reveal("plain", what))]
