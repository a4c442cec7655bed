"""Scoring of a standing party's rows: the leading party brings ids and its own columns, the others stay up and answer.

1. lead -> all others   Wanted   how many ids it asks about
2. all                  private set intersection of these ids with everyone's rows (`securevfl.protocols.alignment.psi`)
3. all                  prediction of the rows in common (`securevfl.organisations.predict`)

The leading party learns f of the rows in common, and which of its ids all others have. The others learn how many ids it
asks about, and which of their own are among those that all have; not the rest of its ids. It asks about as many ids as
it has said and no more: the others hold step 2 to that before any point of theirs leaves. Who asks often enough learns
who is in the table and, of a party with few columns, the columns: f without its own part is one linear combination of
them a row. So each answers within limits that its owner sets. Its disclosure ledger counts ids before step 2 and
scores before step 3, by table and peer over all requests; and one request asks about at most so many ids. That none of
its ids is known is an answer too, and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from securevfl.base.roles import LEAD, Roles
from securevfl.data.store import OnRows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import IdError, LeakageError, PartiesError
from securevfl.organisations.align import align_privately
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.predict import Predicted, answer_rows, check_parties_of
from securevfl.organisations.reason_codes import GivenCodes
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.giving import sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.door import Telling
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import HeldRows

OnBlock = Callable[[list[Any] | None, Predicted], None]


class Wanted(Telling, frozen=True):
    """How many ids the leading party asks about."""

    rows: int


@dataclass(frozen=True)
class Answered:
    """One request. asked: ids that the leading party brought; scored: those of them that all have."""

    asked: int
    scored: int


def declares(roles: Roles) -> list[Declared]:
    """Declare what `Wanted` reveals; alignment and prediction have declarations of their own."""
    others = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    return [Declared(Wanted, LEAD, role, Reveal("plain", "how many ids it asks about")) for role in others]


def terms(part: ModelPart) -> dict[str, Any]:
    """Return the terms on which all parties must agree before a request."""
    return {"job": part.job, "parties": part.parties, "task": "score"}


def score_rows(
    part: ModelPart,
    rows: HeldRows,
    venue: Venue,
    *,
    on_block: OnBlock,
    on_rows: OnRows | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    executor: Executor | None = None,
) -> Answered:
    """Asks the parties that serve for the scores of these rows; for the leading party.

    on_block(ids, outcome) is called with each block of the rows that all have, on_rows(rows done, of) after each.

    executor: takes the curve work, processes of this party.

    Raises PartiesError unless `part` is the leading party's, IdError if no id is common, TransportError if a party is
    away or refuses, with its reason.
    """
    if not part.leads:
        raise PartiesError(
            f"{part.parties[0]} was expected to ask for scores, {part.name} came; it answers: securevfl serve"
        )
    if not part.asker == part.name:
        raise PartiesError(f"scores of this model are for {part.asker}, {part.name} came; use securevfl predict")
    check_parties_of(part, venue.peers)
    own_ledger = DisclosureLedger.of(part.name, ledger)

    def talk(channel: Channel) -> Answered:
        for name in part.parties[1:]:
            channel.send(name, Wanted(len(rows.ids)), told=sizes(channel, name))  # 1
        answer = partial(answer_rows, part, ledger=own_ledger, on_block=on_block, on_rows=on_rows)
        return _score(part, rows, channel, len(rows.ids), answer, executor)

    answered = converse(part.name, venue, terms(part), talk)
    if not answered.scored:
        others = part.parties[1:]
        where = others[0] if len(others) == 1 else f"all of {', '.join(others)}"
        raise IdError(
            f"{part.name}: ids that are known at {where} were expected, none of the {answered.asked:,} asked about is; "
            "are they written alike, or are these new customers? That none is known is an answer too, and was counted"
        )
    return answered


def answer_request(
    part: ModelPart,
    rows: HeldRows,
    channel: Channel,
    ledger: DisclosureLedger,
    *,
    most: int,
    executor: Executor | None = None,
    giving: GivenCodes | None = None,
) -> Answered:
    """Answer one request as a standing party. LeakageError if it asks about more than `most` ids, or than it has said,
    or if its ids or scores would exceed a limit of the ledger. executor: as in `score_rows`."""
    lead = part.parties[0]
    asked = channel.recv(lead, Wanted).rows  # 1
    if not 0 < asked <= most:
        raise LeakageError(
            f"{part.name} answers about at most {most:,} ids a request, {lead} asks about {asked:,}; ask in parts"
        )
    ledger.answer(part.run, channel.session.hex(), Disclosure("ids", lead, (part.name,), asked, 0))
    answer = partial(answer_rows, part, ledger=ledger, on_block=lambda _, __: None, giving=giving)
    return _score(part, rows, channel, asked, answer, executor)


def _score(
    part: ModelPart,
    rows: HeldRows,
    channel: Channel,
    asked: int,
    answer: Callable[..., None],
    executor: Executor | None,
) -> Answered:
    lead, *others = part.parties
    order = align_privately(
        part.name, rows.ids, channel, active=lead, passives=others, granted=asked, executor=executor
    )  # 2
    if len(order):
        answer(rows.take(order), channel=channel)  # 3
    eventlog.emit(part.name, "scored", {"asked": asked, "scored": len(order)})
    return Answered(asked, len(order))
