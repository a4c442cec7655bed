"""Scoring of a standing party's rows: the leading party brings ids and its own columns, the others stay up and answer.

1. lead -> all others   Wanted   how many ids it asks about
2. all                  private set intersection of these ids with everyone's rows (`securevfl.protocols.psi`)
3. all                  prediction of the rows in common (`securevfl.organisations.predict`)

The leading party learns f of the rows in common, and which of its ids all others have. The others learn how many ids it
asks about, and which of their own are among those that all have; not the rest of its ids. Who asks often enough learns
who is in the table and, of a party with few columns, the columns: f without its own part is one linear combination of
them a row. So each answers within limits that its owner sets. Its disclosure ledger counts ids before step 2 and
scores before step 3, by table and peer over all requests; and one request asks about at most so many ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securevfl.data.store import OnRows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import LeakageError, PartiesError
from securevfl.organisations.align import align_privately
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.predict import Predicted, answer_rows, check_parties_of
from securevfl.protocols.base import Declared, Reveal
from securevfl.roles import LEAD, Roles
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import HeldRows
from securevfl.transport.peers import Peers

OnBlock = Callable[[list[Any] | None, Predicted], None]


class Wanted(Message, frozen=True):
    """How many ids the leading party asks about."""

    rows: int


@dataclass(frozen=True)
class Answered:
    """One request. asked: ids that the leading party brought; scored: those of them that all have."""

    asked: int
    scored: int


def declares(roles: Roles) -> list[Declared]:
    """What `Wanted` reveals; alignment and prediction have declarations of their own."""
    others = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    return [Declared(Wanted, LEAD, role, Reveal("plain", "how many ids it asks about")) for role in others]


def terms(part: ModelPart) -> dict[str, Any]:
    """What all parties must agree on before a request."""
    return {"job": part.job, "parties": part.parties, "task": "score"}


def score_rows(
    part: ModelPart,
    rows: HeldRows,
    peers: Peers | str | Path = "peers.toml",
    *,
    on_block: OnBlock,
    on_rows: OnRows | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
) -> Answered:
    """Asks the parties that serve for the scores of these rows; for the leading party.

    on_block(ids, outcome) is called with each block of the rows that all have, on_rows(rows done, of) after each.

    Raises PartiesError unless `part` is the leading party's, IdError if no id is common, TransportError if a party is
    away or refuses, with its reason.
    """
    if not part.leads:
        raise PartiesError(
            f"{part.parties[0]} was expected to ask for scores, {part.name} came; it answers: securevfl serve"
        )
    if not part.asker == part.name:
        raise PartiesError(f"scores of this model are for {part.asker}, {part.name} came; use securevfl predict")
    venue = Venue.of(peers, certs, listen, timeout, patience)
    check_parties_of(part, venue.peers)
    own_ledger = DisclosureLedger.of(part.name, ledger)

    def talk(channel: Channel) -> Answered:
        for name in part.parties[1:]:
            channel.send(name, Wanted(len(rows.ids)))  # 1
        return _score(part, rows, channel, own_ledger, len(rows.ids), on_block, on_rows)

    return converse(part.name, venue, terms(part), talk)


def answer_request(
    part: ModelPart, rows: HeldRows, channel: Channel, ledger: DisclosureLedger, *, most: int
) -> Answered:
    """A standing party's side of one request. LeakageError if it asks about more than `most` ids, or if its ids or
    scores would exceed a limit of the ledger."""
    lead = part.parties[0]
    asked = channel.recv(lead, Wanted).rows  # 1
    if not 0 < asked <= most:
        raise LeakageError(
            f"{part.name} answers about at most {most:,} ids a request, {lead} asks about {asked:,}; ask in parts"
        )
    ledger.answer(part.run, channel.session.hex(), Disclosure("ids", lead, (part.name,), asked, 0))
    return _score(part, rows, channel, ledger, asked, lambda _, __: None, None)


def _score(
    part: ModelPart,
    rows: HeldRows,
    channel: Channel,
    ledger: DisclosureLedger,
    asked: int,
    on_block: OnBlock,
    on_rows: OnRows | None,
) -> Answered:
    lead, *others = part.parties
    order = align_privately(part.name, rows.ids, channel, active=lead, passives=others)  # 2
    answer_rows(part, rows.take(order), channel, ledger, on_block=on_block, on_rows=on_rows)  # 3
    eventlog.emit(part.name, "scored", {"asked": asked, "scored": len(order)})
    return Answered(asked, len(order))
