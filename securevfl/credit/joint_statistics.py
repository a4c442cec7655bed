"""Common steps of joint statistics: figures about aligned tables of several parties, computed without a model.

Aligned tables have the same rows in the same order. A session is the exchange of messages of one statistic. Comments
refer to these steps by number:

1. all -> all   TableShape   numbers of rows and of columns or groups; keyed digest of the row order
2. each party   shows its consent sheet; its ledger records the disclosures or refuses
                (`securevfl.consent.consent_sheet`)
3. all          compute the statistics
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ProtocolError, TableError
from securevfl.organisations.order_check import check_order, keyed_order
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.meter import Meter
from securevfl.training.run_setup import MAX_COLUMNS

T = TypeVar("T")


class TableShape(DisclosingMessage, frozen=True):
    """The sizes and the row order of a party's table, which it sends in step 1.

    Attributes:
        rows: number of rows.
        count: number of columns or groups.
        order: keyed digest of the row order, empty if the rows have no ids.
    """

    rows: int
    count: int
    order: bytes


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Return the declarations of `TableShape` for each pair of parties: what the message discloses."""
    reveals = Reveal("plain", "number of rows, and of numeric columns or groups; keyed digest of the row order")
    return [MessageDeclaration(TableShape, *pair, reveals) for pair in roles.pairs()]


def run_joint_session(
    party: Party, settings: PeerSettings, task: str, talk: Callable[[Channel], T], ledger: DisclosureLedger
) -> T:
    """Run the session of one of the joint statistics.

    Args:
        party: this party's table.
        settings: addresses, certificates and time limits.
        task: name of the statistic, which must be equal at all parties.
        talk: function that runs this party's side of the protocol over a channel, and returns the result.
        ledger: this party's disclosure ledger, the record of what its data have disclosed.

    Returns:
        The result of `talk`.
    """
    handshake = {"parties": list(settings.peers.parties), "task": task}
    return run_session(party.name, settings, handshake, talk, ledger=ledger)


def exchange_table_shapes(party: Party, count: int, others: Sequence[str], channel: Channel) -> dict[str, TableShape]:
    """Send this party's table shape to the others and receive theirs.

    Args:
        party: this party's table.
        count: number of this party's columns or groups.
        others: names of the other parties.
        channel: channel to the other parties.

    Returns:
        The other parties' table shapes.

    Raises:
        TableError: the numbers of rows differ.
        IdError: the row orders differ.
    """
    shape = TableShape(len(party), count, keyed_order(party.order, channel))
    for name in others:
        channel.send(name, shape, permit=permit_sizes(channel, name))  # step 1
    shapes = {name: channel.recv(name, TableShape) for name in others}  # step 1
    for name, other in shapes.items():
        if other.rows != shape.rows:
            raise TableError(
                f"{name} has {other.rows:,} rows, and {party.name} has {shape.rows:,}",
                code="SVFL-TABLE-ROW-COUNT",
                peer=name,
            )
        check_order(party.name, shape.order, name, other.order)
        if not 0 <= other.count <= MAX_COLUMNS:
            raise ProtocolError(
                f"{name} announces {other.count:,} columns or groups, and at most {MAX_COLUMNS:,} are possible",
                "ask the operator of that party for the reason",
                code="SVFL-PROTOCOL-VALUES",
                peer=name,
            )
    return shapes


def pair_context(channel: Channel, active: str, partner: str, subchannel: str) -> PartyContext:
    """Return this party's context in a protocol of two parties.

    Args:
        channel: channel to the other parties.
        active: name of the party with the active role.
        partner: name of the other party.
        subchannel: name that separates the messages of this protocol from others on the channel.

    Returns:
        The party's channel, subchannel and role in the protocol.
    """
    return PartyContext(
        channel,
        Roles.of({active: ACTIVE, partner: PARTNER}),
        Meter(channel.clock, channel.counters),
        subchannel=subchannel,
    )
