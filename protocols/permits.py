"""Permits for disclosures that several protocols have in common: sizes, and decisions to stop a training.

A permit lets a channel send one message that discloses something. It carries a record of the receiver, the kind of
information, the number of values and the bits of each, which the party's disclosure ledger counts.
"""

from __future__ import annotations

from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord

STOP_DECISION_BITS = 3  # upper bound on the bits of information in a decision to stop


def permit_sizes(channel: Channel, to: str) -> DisclosurePermit:
    """Return a permit for numbers of rows, versions, and digests of public agreements.

    They reveal nothing about single rows. Their size is recorded as one value of 64 bits.
    """
    return channel.permit(DisclosureRecord(to, "sizes", 1, 64))


def permit_stop_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Return a permit for the decision whether the training stops or rolls back, and whether the loss has improved."""
    return channel.permit(DisclosureRecord(to, "verdicts", 1, STOP_DECISION_BITS))


def permit_evaluated_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Return a permit for a stop decision that depends on labels of evaluated rows, recorded as bits about labels."""
    return channel.permit(DisclosureRecord(to, "labels", 1, STOP_DECISION_BITS, about=(channel.me,), group="verdicts"))
