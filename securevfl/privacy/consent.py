"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from securevfl.data.party import Party, check_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.html import escape
from securevfl.errors import ConfigError, LabelError
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.methods.declared import declared_of
from securevfl.methods.known import known_alone, known_run
from securevfl.methods.prepared import prepare
from securevfl.privacy.allowance import check_settled, settled
from securevfl.privacy.booking import foretell
from securevfl.privacy.leaks import leaks
from securevfl.protocols.base import Declared
from securevfl.roles import ACTIVE, PASSIVE, Role, Roles

ASSUMPTIONS = "every party follows the protocol and may study what it received (semi-honest); lines are authenticated"


class Sheet(str):
    """A consent sheet: text, which a notebook shows with its lines."""

    __slots__ = ()

    @property
    def digest(self) -> str:
        """16 hex digits by which its reader agrees to it."""
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre-wrap">{escape(self)}</pre>'


def explain(
    job: Job,
    parties: Sequence[Party] | None = None,
    *,
    others: Mapping[str, int] | None = None,
    outputs: int | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
) -> Sheet:
    """The sheet as text. Without parties it speaks of one active and one passive party and gives shares as formulas.

    others: the sheet of a party alone, from its own table and the numbers of columns of all others by name; the first
    of them holds the labels unless the party does. outputs: c, where the party has no labels and a loss more outputs
    than one. ledgers: of some of the parties, by name; the sheet then says what was told before, and counts it.
    """
    if others is not None:
        if parties is None or len(parties) != 1:
            raise ConfigError("one table was expected beside the sizes of all other parties; give one, or all tables")
        (own,) = parties
        check_settled(job, own.name)
        columns = dict(others) | {own.name: 0}
        lead = own.name if own.active else next(iter(columns))
        idle = next((role for _, role in job.method.helpers), PASSIVE)  # of who has no columns
        plays = {name: PASSIVE if size else idle for name, size in others.items()} | {own.name: own.role or PASSIVE}
        cast = Roles.of({lead: ACTIVE} | {name: role for name, role in plays.items() if name != lead})
        return own_sheet(job, own, cast, columns, outputs=outputs, ledgers=ledgers)
    method = job.method
    if parties is None:
        words = Roles.of((*Roles.labelled(ACTIVE, [PASSIVE]).cast, *method.helpers))
        roles = method.assigned(job, words, {})
        return _sheet(job, roles, None, ["", f"accepted: {', '.join(job.accepts)}"] if job.accepts else [])
    lead_party, rest = check_parties(parties)
    job = settled(job, parties)
    roles = method.cast([lead_party, *rest])
    roles = method.assigned(job, roles, {party.name: len(party.columns) for party in (lead_party, *rest)})
    try:
        known = known_run(job, [lead_party, *rest])
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"])
    return _sheet(job, roles, known, _leaks(job, known, ledgers or {}))


def own_sheet(
    job: Job,
    own: Party,
    cast: Roles,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    brought: Mapping[str, int] | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
) -> Sheet:
    """The sheet of a party alone: who takes part in which role, d_k `columns` of each by name; more as `known_alone`.

    The same facts give the same text, in whatever order the other parties are named.
    """
    own = prepare(job, own, own.register)
    names = [cast.lead, *sorted(cast.others(cast.lead))]
    sizes = {name: columns[name] for name in names} | {own.name: len(own.columns)}
    roles = job.method.assigned(job, Roles.of((name, cast.role(name)) for name in names), sizes)
    whose = f"for {own.name}, by its own table ({len(own):,} x {len(own.columns)}), job {job.digest.hex()[:16]}"
    if not own.columns:
        return _sheet(job, roles, None, [], f"for {own.name}, without a table, job {job.digest.hex()[:16]}")
    try:
        known = known_alone(job, own, sizes, outputs=outputs, brought=brought)
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"], whose)
    return _sheet(job, roles, known, _leaks(job, known, ledgers or {}), whose)


def _sheet(job: Job, roles: Roles, known: Known | None, refused: Sequence[str], whose: str = "") -> Sheet:
    method = job.method
    declared = declared_of(method, job, roles)
    lines = [
        *([whose] if whose else []),
        f"{job.optimizer.label} on a {job.model.name} model, protocol {method.title(job, roles)}",
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {method.strength(job)}",
        *([f"openings: {line}"] if known is not None and (line := method.openings(job, known.sizes)) else []),
    ]
    for name in roles.parties:
        lines += ["", _heading(roles, name), *_role(declared, roles.plays(name))]
        before = ""
        for word, text in method.tells(job, roles, name, known):
            lines += _told("" if word == before else word, text)
            before = word
        if name == roles.lead:
            lines += _told("pooling", method.pooling(job, roles))
    return Sheet("\n".join([*lines, *refused]))


def _heading(roles: Roles, name: str) -> str:
    role = roles.role(name)
    return f"{name} ({role}{', holds the labels' if role == ACTIVE and roles.having(ACTIVE) == (name,) else ''})"


def _told(word: str, text: str) -> list[str]:
    """A line with a word before it, and lines that go on below."""
    first, *rest = text.split("\n")
    return [f"  {word:<9} {first}", *(f"            {line}" for line in rest)]


def _role(declared: Sequence[Declared], plays: Sequence[Role]) -> list[str]:
    sent = list(dict.fromkeys(item.message.__name__ for item in declared if item.sender in plays))
    received = [item for item in declared if item.receiver in plays]
    return [
        f"  sends     {', '.join(sent) or 'nothing'}",
        *(
            f"  {'receives' if first == 0 else '':<9} {item.message.__name__} from {item.sender}: {item.reveals}"
            for first, item in enumerate(received)
        ),
    ]


def _leaks(job: Job, known: Known, ledgers: Mapping[str, DisclosureLedger]) -> list[str]:
    """What the ledgers say, and then a line for each leak that is accepted or would be refused."""
    parties = {party.name: party for party in known.parties}
    kept = {name: ledger for name, ledger in ledgers.items() if name in parties and ledger.path.exists()}
    sizes = replace(known.sizes, tables={name: ledger.tag(parties[name]) for name, ledger in kept.items()})
    outlooks = {name: foretell(each, name, parties[name].register, job, sizes) for name, each in kept.items()}
    before = dict.fromkeys((entry.run, entry.told) for outlook in outlooks.values() for entry in outlook.before)
    lines = []
    for name, outlook in outlooks.items():
        lines += ["", f"by the disclosure ledger of {name}", *outlook.lines]
    lines += [f"\nwould be refused: {why}" for outlook in outlooks.values() for why in outlook.refusals]
    return lines + [
        ("\naccepted: " if leak.name in job.accepts else "\nwould be refused: ") + str(leak)
        for leak in leaks(job, sizes, [told for _, told in before])
    ]
