"""The message with which the active party sends its labels to all workers of FDML (Hu et al. 2019, section 3).

1. active -> passive   TrainingLabels   targets (m, c) of the m training rows, in the order of the schedule

Comments refer to this step by number. The message hides nothing; a job requests it with `shows_labels`. With the
labels, each worker computes residuals itself.
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
    """The targets (m, c) of the m training rows: the labels in the encoding of the loss."""

    targets: NDArray[np.float64]


def declare_labels() -> list[MessageDeclaration]:
    """Declare what the message with the labels reveals."""
    return [MessageDeclaration(TrainingLabels, ACTIVE, PASSIVE, Reveal("plain", "the label of every training row"))]


def send_labels(context: PartyContext, targets: Floats) -> None:
    """Send the targets (m, c) of the training rows to every passive party."""
    for passive in context.passives:
        permit = context.channel.permit(DisclosureRecord(passive, "labels", targets.size, 64, about=(context.me,)))
        context.channel.send(passive, TrainingLabels(targets), LABELS_SUBCHANNEL, permit=permit)  # step 1


def receive_labels(context: PartyContext, rows: int) -> Floats:
    """Receive the targets of the training rows from the active party.

    Args:
        context: the context of this passive party.
        rows: m, number of training rows.

    Returns:
        Targets (m, c).

    Raises:
        ProtocolError: if the targets have another shape or are not finite.
    """
    targets = context.channel.recv(context.active, TrainingLabels, LABELS_SUBCHANNEL).targets  # step 1
    if targets.shape != (rows, context.outputs) or not np.isfinite(targets).all():
        raise ProtocolError(
            f"{context.me}: {context.active} sent labels of shape {targets.shape}; expected finite numbers of shape "
            f"{(rows, context.outputs)}",
            "check that both parties run the same job",
            code="SVFL-PROTOCOL-VALUES",
            peer=context.active,
        )
    return targets
