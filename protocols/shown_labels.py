"""Labels shown to all: every worker of FDML knows those of the training rows (Hu et al. 2019, section 3).

1. active -> passive   Labels    the targets (m x c) of the training rows, in the order of the schedule

Nothing is hidden here. It is what a method declares that lets every party compute residuals of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.errors import ProtocolError
from securevfl.protocols.base import Declared, Reveal, Seat
from securevfl.roles import ACTIVE, PASSIVE
from securevfl.runtime.codec import Message

LANE = "labels"


class Labels(Message, frozen=True):
    """Targets (m x c), as the loss takes them."""

    targets: NDArray[np.float64]


def declares() -> list[Declared]:
    """What the message reveals."""
    return [Declared(Labels, ACTIVE, PASSIVE, Reveal("plain", "the label of every training row"))]


def show(seat: Seat, targets: Floats) -> None:
    """The active party's side; targets (m x c) of the training rows."""
    for passive in seat.passives:
        seat.channel.send(passive, Labels(targets), LANE)  # 1


def seen(seat: Seat, rows: int) -> Floats:
    """A passive party's side: targets (rows x c). ProtocolError if they are not as many or not finite."""
    targets = seat.channel.recv(seat.active, Labels, LANE).targets  # 1
    if targets.shape != (rows, seat.outputs) or not np.isfinite(targets).all():
        raise ProtocolError(
            f"{seat.me}: {seat.active} was expected to show finite labels of shape {(rows, seat.outputs)}, "
            f"{targets.shape} came; do both run the same job?"
        )
    return targets
