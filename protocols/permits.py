"""Permits for disclosures that several protocols have in common: sizes, and decisions to stop a training."""

from __future__ import annotations

from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord

STOP_DECISION_BITS = 3  # upper bound on the information in a decision to stop


def permit_sizes(channel: Channel, to: str) -> DisclosurePermit:
    """Record numbers of rows, versions and digests of public agreements, which reveal nothing about single rows."""
    return channel.permit(DisclosureRecord(to, "sizes", 1, 64))


def permit_stop_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Record whether the training stops, and whether a loss has increased."""
    return channel.permit(DisclosureRecord(to, "verdicts", 1, STOP_DECISION_BITS))


def permit_evaluated_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Record a decision that depends on the labels of evaluated rows, as bits of these labels."""
    return channel.permit(DisclosureRecord(to, "labels", 1, STOP_DECISION_BITS, about=(channel.me,), group="verdicts"))
