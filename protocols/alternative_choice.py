"""The message by which the party with labels names the alternative that it has chosen in a search.

Before the search, all parties have agreed on the alternatives. Each has been trained and has opened one sum of losses
to the party with labels.

1. active -> all others    AlternativeChoice    the number of an alternative, counted from 0

The choice among N alternatives discloses at most log2(N) bits about the labels of the measured rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord


class AlternativeChoice(DisclosingMessage, frozen=True):
    """The number of the chosen alternative (step 1)."""

    index: int


def choice_bits(alternatives: int) -> int:
    """Return the number of bits that a choice among this number of alternatives discloses, rounded up."""
    return (alternatives - 1).bit_length()


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of the message."""
    reveals = Reveal("plain", "which of the agreed alternatives has the smallest sum of losses")
    return [MessageDeclaration(AlternativeChoice, "active", "passive", reveals)]


def send_choice(channel: Channel, others: Iterable[str], index: int, alternatives: int) -> None:
    """Send the choice to all other parties.

    Args:
        channel: the channel of the party with labels.
        others: names of the other parties.
        index: number of the chosen alternative.
        alternatives: number of alternatives.
    """
    for name in others:
        bits = choice_bits(alternatives)
        record = DisclosureRecord(name, "labels", 1, bits, about=(channel.me,), group="verdicts")
        channel.send(name, AlternativeChoice(index), permit=channel.permit(record))  # step 1


def receive_choice(channel: Channel, active: str, alternatives: int) -> int:
    """Receive the choice from the party with labels.

    Args:
        channel: the channel of another party.
        active: name of the party with labels.
        alternatives: number of alternatives.

    Returns:
        The number of the chosen alternative.

    Raises:
        ProtocolError: no alternative has this number.
    """
    index = channel.recv(active, AlternativeChoice).index  # step 1
    if not 0 <= index < alternatives:
        raise ProtocolError(
            f"{channel.me}: {active} chose an alternative outside the {alternatives} agreed ones",
            "ask the operator of that party for the reason",
            code="SVFL-PROTOCOL-VALUES",
            peer=active,
        )
    return index
