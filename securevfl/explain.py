"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.errors import LabelError
from securevfl.job import Job
from securevfl.leakage import leaks
from securevfl.methods.base import Known
from securevfl.methods.declared import declared_of
from securevfl.methods.known import known_run
from securevfl.party import Party, check_parties
from securevfl.protocols.base import Declared
from securevfl.roles import ACTIVE, PASSIVE, Role, Roles

ASSUMPTIONS = "every party follows the protocol and may study what it received (semi-honest); lines are authenticated"


def explain(job: Job, parties: Sequence[Party] | None = None) -> str:
    """The sheet as text. Without parties it speaks of one active and one passive party and gives shares as formulas."""
    method = job.method
    roles, known, refused = Roles.labelled(ACTIVE, [PASSIVE]), None, []
    if parties is not None:
        lead, others = check_parties(parties)
        roles = method.cast([lead, *others])
        try:
            known = known_run(job, [lead, *others])
            refused = _leaks(job, known)
        except LabelError as error:
            refused = ["", f"would be refused: {error}"]
    declared = declared_of(method, job, roles)
    lines = [
        f"{job.optimizer.label} on a {job.model.name} model, protocol {method.title(job, roles)}",
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {method.strength(job)}",
    ]
    for name in roles.parties:
        lines += ["", _heading(roles, name), *_role(declared, roles.plays(name))]
        before = ""
        for word, text in method.tells(job, roles, name, known):
            lines += _told("" if word == before else word, text)
            before = word
        if name == roles.lead:
            lines += _told("pooling", method.pooling(job, roles))
    return "\n".join(lines + refused)


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


def _leaks(job: Job, known: Known) -> list[str]:
    return [
        ("\naccepted: " if leak.name in job.accepts else "\nwould be refused: ") + str(leak)
        for leak in leaks(job, known.sizes)
    ]
