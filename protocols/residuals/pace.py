"""Pace: the active party, which has the labels, decides on the step size of the next round and on the end of training.

1. active -> passive   Pace: a factor for the step size in the next round, and whether the training has ended

The safe step size is one that cannot diverge, whatever columns the parties have; the factor is relative to it. The
active party reduces the factor when its loss has increased, and ends the training when the loss no longer decreases.
Passive parties therefore learn in which rounds the loss increased, and the number of rounds.
"""

from __future__ import annotations

from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.disclosure_gate import DisclosingMessage

PACE_SUBCHANNEL = "pace"


class Pace(DisclosingMessage, frozen=True):
    """The active party's decision for the next round.

    Attributes:
        multiple: the step size of the next round as a multiple of the safe step size; at least 1.
        stop: whether the training has ended: no residual follows, and the current weights are final.
    """

    multiple: float
    stop: bool


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of the message."""
    what = "in which rounds the active party's loss increased, and after how many rounds it no longer decreased"
    return [MessageDeclaration(Pace, ACTIVE, PASSIVE, Reveal("plain", what))]
