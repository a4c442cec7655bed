"""Pace: the active party broadcasts how the training progresses.

1. active -> passive   Pace    the multiple of the safe step that all parties take next, and whether the training has
    ended

The active party derives both from its loss: it reduces the multiple when the loss has increased, and ends the training
when the loss no longer decreases. Passive parties therefore learn in which rounds the loss increased, and the number of
rounds.
"""

from __future__ import annotations

from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.disclosure_gate import DisclosingMessage

PACE_SUBCHANNEL = "pace"


class Pace(DisclosingMessage, frozen=True):
    """The active party's decision for the next round.

    Attributes:
        multiple: multiple, at least 1, of the step that is safe for any columns.
        stop: no residual follows, and the current weights are final.
    """

    multiple: float
    stop: bool


def declares() -> list[MessageDeclaration]:
    """Declare what the message reveals about the active party's loss."""
    what = "in which rounds the active party's loss increased, and after how many rounds it no longer decreased"
    return [MessageDeclaration(Pace, ACTIVE, PASSIVE, Reveal("plain", what))]
