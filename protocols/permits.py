"""Entries for what protocols tell that says nothing about anyone's rows."""

from __future__ import annotations

from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord


def permit_sizes(channel: Channel, to: str) -> DisclosurePermit:
    """Enters numbers of rows, versions and digests of what is agreed, which tell no row."""
    return channel.permit(DisclosureRecord(to, "sizes", 1, 64))


STOP_DECISION_BITS = 3  # bits of a verdict at most


def permit_stop_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Enters how a training goes: whether it stops, and in which rounds a loss rose."""
    return channel.permit(DisclosureRecord(to, "verdicts", 1, STOP_DECISION_BITS))


def permit_evaluated_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Enters a verdict that follows from labels of evaluated rows, as bits of these."""
    return channel.permit(DisclosureRecord(to, "labels", 1, STOP_DECISION_BITS, about=(channel.me,), group="verdicts"))
