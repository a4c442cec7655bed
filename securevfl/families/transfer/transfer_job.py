"""The options of a job that trains by transfer learning."""

from __future__ import annotations

from securevfl.families.rounds.rounds_job import ResidualMessages
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import JobOptions


class TransferJob(JobOptions, defer_build=True):
    """A job of transfer learning: a network at each party, parallel local steps, and a residual protocol."""

    model: Transfer
    optimizer: FedBCD
    protocol: ResidualMessages
