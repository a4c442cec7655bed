"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from securevfl.data.party import Party, check_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.html import escape
from securevfl.errors import LabelError
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.methods.declared import declared_of
from securevfl.methods.known import known_run
from securevfl.privacy.booking import foretell
from securevfl.privacy.leaks import leaks
from securevfl.protocols.base import Declared
from securevfl.roles import ACTIVE, PASSIVE, Role, Roles

ASSUMPTIONS = "every party follows the protocol and may study what it received (semi-honest); lines are authenticated"


class Sheet(str):
    """A consent sheet: text, which a notebook shows with its lines."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre-wrap">{escape(self)}</pre>'


def explain(
    job: Job, parties: Sequence[Party] | None = None, *, ledgers: Mapping[str, DisclosureLedger] | None = None
) -> Sheet:
    """The sheet as text. Without parties it speaks of one active and one passive party and gives shares as formulas.

    ledgers: of some of the parties, by name; the sheet then says what was told before, and counts it.
    """
    method = job.method
    roles, known = method.assigned(job, Roles.labelled(ACTIVE, [PASSIVE]), {}), None
    refused = ["", f"accepted: {', '.join(job.accepts)}"] if job.accepts else []
    if parties is not None:
        lead, others = check_parties(parties)
        roles, refused = method.cast([lead, *others]), []
        roles = method.assigned(job, roles, {party.name: len(party.columns) for party in (lead, *others)})
        try:
            known = known_run(job, [lead, *others])
            refused = _leaks(job, known, ledgers or {})
        except LabelError as error:
            refused = ["", f"would be refused: {error}"]
    declared = declared_of(method, job, roles)
    lines = [
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
    return Sheet("\n".join(lines + refused))


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
