"""Labels shown to all: every worker of FDML knows those of the training rows (Hu et al. 2019, section 3).

1. active -> passive   Labels    the targets (m x c) of the training rows, in the order of the schedule

Nothing is hidden here. It is what a method declares that lets every party compute residuals of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

LABELS_SUBCHANNEL = "labels"


class TrainingLabels(DisclosingMessage, frozen=True):
    """Targets (m x c), as the loss takes them."""

    targets: NDArray[np.float64]


def declare_labels() -> list[MessageDeclaration]:
    """Declare what the message with the labels reveals."""
    return [MessageDeclaration(TrainingLabels, ACTIVE, PASSIVE, Reveal("plain", "the label of every training row"))]


def send_labels(context: PartyContext, targets: Floats) -> None:
    """Show the targets (m x c) of the training rows to every passive party, as the active party."""
    for passive in context.passives:
        permit = context.channel.permit(DisclosureRecord(passive, "labels", targets.size, 64, about=(context.me,)))
        context.channel.send(passive, TrainingLabels(targets), LABELS_SUBCHANNEL, permit=permit)  # 1


def receive_labels(context: PartyContext, rows: int) -> Floats:
    """Receive the targets (rows x c), as a passive party. ProtocolError if they are not as many or not finite."""
    targets = context.channel.recv(context.active, TrainingLabels, LABELS_SUBCHANNEL).targets  # 1
    if targets.shape != (rows, context.outputs) or not np.isfinite(targets).all():
        raise ProtocolError(
            f"{context.me}: {context.active} was expected to show finite labels of shape {(rows, context.outputs)}, "
            f"{targets.shape} came; do both run the same job?"
        )
    return targets
