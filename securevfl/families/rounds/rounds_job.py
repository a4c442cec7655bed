"""The options of a job that trains by rounds of sums and residuals."""

from __future__ import annotations

from securevfl.models.block import BlockModel
from securevfl.optim.rounds import RoundsTraining
from securevfl.options import JobOptions
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.base import ResidualProtocol


class ResidualMessages(Protocol, defer_build=True):
    """The protocol options of a job that sends residuals to the parties without labels."""

    residual: ResidualProtocol


class RoundsJob(JobOptions, defer_build=True):
    """A job that trains by rounds: each party has weights for its columns, and receives a residual."""

    model: BlockModel
    optimizer: RoundsTraining
    protocol: ResidualMessages
