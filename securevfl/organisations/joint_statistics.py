"""What looks between organisations share: aligned tables that meet without a model, to tell figures of them.

1. all -> all   TableShape   rows, how many columns or groups, keyed digest of the row order
2. each         its sheet; its ledger takes what it is about to tell, or refuses (`securevfl.consent.consent_sheet`)
3. all          the look itself
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import TypeVar

from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import IdError, TableError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.meter import Meter

T = TypeVar("T")


class TableShape(DisclosingMessage, frozen=True):
    """What a party says of its table before a look. count: of the columns or the groups that it brings."""

    rows: int
    count: int
    order: bytes


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what `TableShape` reveals."""
    said = Reveal("plain", "how many rows, and columns of numbers or groups; keyed digest of the row order")
    return [MessageDeclaration(TableShape, *pair, said) for pair in roles.pairs()]


def run_joint_session(
    party: Party, venue: PeerSettings, task: str, talk: Callable[[Channel], T], ledger: DisclosureLedger
) -> T:
    """Hold the conversation of a look with all parties of the venue."""
    terms = {"parties": list(venue.peers.parties), "task": task}
    return run_session(party.name, venue, terms, talk, ledger=ledger)


def keyed_order(order: bytes, channel: Channel) -> bytes:
    """Return a digest of the order of rows that this session's parties alone can compare; empty where it is."""
    return hmac.digest(channel.session, order, hashlib.sha256) if order else b""


def check_order(me: str, own: bytes, name: str, other: bytes, rows: str = "rows") -> None:
    """IdError if two parties hold their rows in different order, as far as both have said it."""
    if other and own and not hmac.compare_digest(other, own):
        raise IdError(f"{name} and {me} hold the {rows} in different order; align the tables first")


def exchange_table_shapes(party: Party, count: int, others: Sequence[str], channel: Channel) -> dict[str, TableShape]:
    """Tell all others of this party's table, and return what they tell of theirs. TableError or IdError unless they are
    on the same rows."""
    mine = TableShape(len(party), count, keyed_order(party.order, channel))
    for name in others:
        channel.send(name, mine, permit=permit_sizes(channel, name))  # 1
    tables = {name: channel.recv(name, TableShape) for name in others}  # 1
    for name, table in tables.items():
        if table.rows != mine.rows:
            raise TableError(f"{name} has {table.rows:,} rows, {party.name} {mine.rows:,}; align the tables first")
        check_order(party.name, mine.order, name, table.order)
    return tables


def context(channel: Channel, active: str, partner: str, subchannel: str) -> PartyContext:
    """Return a party's context in a protocol of these two."""
    return PartyContext(
        channel,
        Roles.of({active: ACTIVE, partner: PARTNER}),
        Meter(channel.clock, channel.counters),
        subchannel=subchannel,
    )
