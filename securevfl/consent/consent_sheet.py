"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.consent.forecast import forecast
from securevfl.consent.leak_guard import leaks
from securevfl.consent.settle_job import check_settled, settle_job
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.information_content import code_bits
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.html import escape
from securevfl.errors import ConfigError, LabelError
from securevfl.families.declarations import run_declarations, run_roles
from securevfl.families.run_facts import RunFacts, local_run_facts, pooled_run_facts
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job
from securevfl.optim.defaults import why_sealed
from securevfl.protocols.declarations import MessageDeclaration

ASSUMPTIONS = (
    "every party follows the protocol and may study what it received (semi-honest); certificates say who is who"
)


class ConsentSheet(str):
    """A consent sheet: text, which a notebook shows with its lines.

    first_screen: its first screen, for those who consent: who takes part, with which rows, in which model, what
    each is told
    in words and bits, what two could learn together, and what would be refused. The whole text has every message,
    encryption and count besides.
    """

    first_screen: str

    def __new__(cls, text: str, first_screen: str = "") -> ConsentSheet:
        made = super().__new__(cls, text)
        made.first_screen = first_screen or text
        return made

    @property
    def digest(self) -> str:
        """16 hex digits by which its reader agrees to it, details included."""
        return hashlib.sha256(f"{self.first_screen}\n{self}".encode()).hexdigest()[:16]

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre-wrap">{escape(self)}</pre>'


def explain(
    job: Job,
    parties: Sequence[Party] | None = None,
    *,
    others: Mapping[str, int] | None = None,
    outputs: int | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
) -> ConsentSheet:
    """Write the sheet as text. Without parties it is of one active and one passive party and gives shares as formulas.

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
        idle = next((role for _, role in job.family.example_helpers), PASSIVE)  # of who has no columns
        plays = {name: PASSIVE if size else idle for name, size in others.items()} | {own.name: own.role or PASSIVE}
        cast = Roles.of({lead: ACTIVE} | {name: role for name, role in plays.items() if name != lead})
        return sheet_for_party(job, own, cast, columns, outputs=outputs, ledgers=ledgers)
    family = job.family
    if parties is None:
        words = Roles.of((*Roles.labelled(ACTIVE, [PASSIVE]).cast, *family.example_helpers))
        roles = family.complete_roles(job, words, {})
        return _sheet(job, roles, None, ["", f"accepted: {', '.join(job.accepts)}"] if job.accepts else [])
    lead_party, rest = check_parties(parties)
    job = settle_job(job, parties)
    roles = run_roles(family, job, parties)
    try:
        known = pooled_run_facts(job, [lead_party, *rest])
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"])
    return _sheet(job, roles, known, _leaks(job, known, ledgers or {}))


def sheet_for_party(
    job: Job,
    own: Party,
    cast: Roles,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    brought: Mapping[str, int] | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    run: str = "",
) -> ConsentSheet:
    """Write the sheet of a party alone: who takes part in which role, d_k `columns` of each by name; more as
    `local_run_facts`.

    run: the one that goes on, whose own entries in the ledgers are those that the party has agreed to. The same facts
    give the same text, in whatever order the other parties are named.
    """
    own = prepare_party(job, own, own.register)
    names = [cast.lead, *sorted(cast.others(cast.lead))]
    sizes = {name: columns[name] for name in names} | {own.name: len(own.columns)}
    roles = job.family.complete_roles(job, Roles.of((name, cast.role(name)) for name in names), sizes)
    whose = f"for {own.name}, by its own table ({len(own):,} x {len(own.columns)}), job {job.digest.hex()[:16]}"
    if not own.columns:
        return _sheet(job, roles, None, [], f"for {own.name}, without a table, job {job.digest.hex()[:16]}")
    try:
        known = local_run_facts(job, own, sizes, outputs=outputs, module_parameters=brought)
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"], whose)
    return _sheet(job, roles, known, _leaks(job, known, ledgers or {}, run), whose)


def _sheet(job: Job, roles: Roles, known: RunFacts | None, refused: Sequence[str], whose: str = "") -> ConsentSheet:
    family = job.family
    declared = run_declarations(family, job, roles)
    lines = [
        *([whose] if whose else []),
        f"{job.optimizer.label} on a {job.model.name} model, protocol {family.title(job, roles)}",
        *(f"code: {line}" for line in _code(job)),
        *(f"model: {line}" for line in job.model.note.splitlines()),
        *([f"not on shares, as {why}"] if job.protocol.seals and (why := why_sealed(job.model, job.optimizer)) else []),
        *_weights(job),
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {family.strength(job)}",
        *([] if known is None else [f"takes: {line}" for line in family.resource_estimates(job, known)]),
        *([f"openings: {line}"] if known is not None and (line := family.opened_values(job, known.shape)) else []),
    ]
    first = [*([whose] if whose else []), *_subject(job, roles, known)]
    for name in roles.parties:
        learns = _learns(job, roles, known, name)
        lines += ["", _heading(roles, name), *_role(declared, roles.roles_of(name)), *learns]
        first += ["", _heading(roles, name), *learns]
    first += ["", f"assumes   {ASSUMPTIONS}"]
    return ConsentSheet("\n".join([*lines, *refused]), "\n".join([*first, *refused]))


def _code(job: Job) -> list[str]:
    """Return where the family of training comes from, if it is no part of securevfl."""
    return [] if job.extension is None else [f"of {job.extension}: no part of securevfl, and the same at all parties"]


def _subject(job: Job, roles: Roles, known: RunFacts | None) -> list[str]:
    """Return which model is trained, how, on which rows, of whose columns."""
    lines = [f"model     {job.model.name}, on {job.family.title(job, roles)}"]
    lines += [f"code      {line}" for line in _code(job)]
    if known is None:
        return lines
    sizes = known.shape
    held = f"; {sizes.held_out:,} more are held out to measure it" if sizes.held_out else ""
    columns = ", ".join(f"{name} {count}" for name, count in sizes.columns.items() if count)
    return [*lines, f"rows      {sizes.rows:,} train it{held}", f"columns   {columns}"]


def _learns(job: Job, roles: Roles, known: RunFacts | None, name: str) -> list[str]:
    """Return what a party learns and keeps, in words, and what it could learn together with another."""
    family, lines, before = job.family, list[str](), ""
    for word, text in family.statements(job, roles, name, known):
        lines += _told_lines("also" if word == before else word, text)
        before = word
    lines += _codes(job, roles, known, name)
    if known is not None and name == family.score_requester(job, roles.lead):
        lines += _scores(job, known, name)
    if name == roles.lead:
        lines += _told_lines("pooling", family.coalitions(job, roles))
    return lines


def _weights(job: Job) -> list[str]:
    """Return the line that says how much rows count at most, and what follows from it."""
    if job.weights is None:
        return []
    room = job.weights.room
    rare = f", so that each has 1 of {2 * room:g} rows or more" if job.model.loss.single else ""
    balanced = f", and that its classes count the same{rare}" if job.weights.classes == "balanced" else ""
    return [f"weights: all learn that no row counts more than {room:g} times the mean{balanced}"]


def _heading(roles: Roles, name: str) -> str:
    role = roles.role(name)
    return f"{name} ({role}{', holds the labels' if role == ACTIVE and roles.with_role(ACTIVE) == (name,) else ''})"


def _told_lines(word: str, text: str) -> list[str]:
    """Return a line with a word before it, and the lines that continue it."""
    first, *rest = text.split("\n")
    return [f"  {word:<9} {first}", *(f"            {line}" for line in rest)]


def _scores(job: Job, known: RunFacts, asker: str) -> list[str]:
    """Return what scores of a new row are against what each other party's row holds, as far as tables are at hand."""
    bits, held = job.family.score_bits(job, known.shape), known.shape.information
    weighed = [
        f"{name}: {own.in_words(bits, known.shape.outputs)}" for name, own in held.items() if name != asker and bits
    ]
    return (
        _told_lines("scores", "\n".join(["of a new row, weighed against the columns of", *weighed])) if weighed else []
    )


def _codes(job: Job, roles: Roles, known: RunFacts | None, name: str) -> list[str]:
    """Return what the reason codes are that a party may give of rows that are scored, or may be given."""
    shares, asker, most = job.protocol.shares, job.family.score_requester(job, roles.lead), job.reason_codes
    giving = [party for party in roles.parties if party != asker and (shares is None or party in shares.open_weights)]
    if not most or name not in (asker, *giving):
        return []
    sizes = {} if known is None else {each: known.shape.columns.get(each, 0) for each in giving}
    bits = {
        each: f"{code_bits(d, most):.1f} bits" if d else f"log2(d! / (d - {most})!) bits" for each, d in sizes.items()
    }
    if name == asker:
        told = "\n".join(f"{each}: at most {said} of a row, beside its score" for each, said in bits.items())
        head = f"up to {most} reason codes of a scored row, of each party whose owner gives them"
        return _told_lines("learns", f"{head}\n{told}" if told else head)
    said = bits.get(name, f"log2(d! / (d - {most})!) bits")
    text = f"which of its columns cost a scored row most, to {asker}, if its owner says so where it\n"
    return _told_lines(
        "may tell",
        f"{text}predicts or serves: up to {most} codes, at most {said} of a row, under names that it chooses",
    )


def _role(declared: Sequence[MessageDeclaration], plays: Sequence[Role]) -> list[str]:
    sent = list(dict.fromkeys(item.message.__name__ for item in declared if item.sender in plays))
    received = [item for item in declared if item.receiver in plays]
    return [
        f"  sends     {', '.join(sent) or 'nothing'}",
        *(
            f"  {'receives' if first == 0 else '':<9} {item.message.__name__} from {item.sender}: {item.reveals}"
            for first, item in enumerate(received)
        ),
    ]


def _new(ledger: DisclosureLedger, run: str) -> bool:
    """Whether a ledger holds nothing but what this run has entered, nor limits or peers that are trusted."""
    if ledger.is_empty or not run:
        return ledger.is_empty
    book = ledger.read()
    return not (book.limits or book.trusts or any(entry.run != run for entry in book.entries))


def _refused(leak: Leak) -> str:
    """Say where a leak that is not accepted would be refused; some are none as long as one process has all tables."""
    return "would be refused between organisations" if leak.apart else "would be refused"


def _leaks(job: Job, known: RunFacts, ledgers: Mapping[str, DisclosureLedger], run: str = "") -> list[str]:
    """List what the ledgers say, and then a line for each leak that is accepted or would be refused."""
    parties = {party.name: party for party in known.parties}
    kept = {name: each for name, each in ledgers.items() if name in parties and not _new(each, run)}
    trusts = kept[known.shape.active].read().trusts if known.shape.active in kept else ()
    sizes = replace(
        known.shape, tables={name: each.table_tag(parties[name]) for name, each in kept.items() if name in trusts}
    )
    outlooks = {name: forecast(each, name, parties[name].register, job, sizes, run) for name, each in kept.items()}
    before = dict.fromkeys((entry.run, entry.disclosure) for outlook in outlooks.values() for entry in outlook.before)
    lines = []
    for name, outlook in outlooks.items():
        lines += ["", f"by the disclosure ledger of {name}", *outlook.lines]
        trusted = [peer for peer in kept[name].read().trusts if peer in known.shape.columns]
        lines += [f"  trusts    {', '.join(trusted)} to ask the same equations again where plans are equal"] * bool(
            trusted
        )
    lines += [f"\nwould be refused: {why}" for outlook in outlooks.values() for why in outlook.refusals]
    return lines + [
        f"\n{'accepted' if leak.name in job.accepts else _refused(leak)}: {leak}"
        for leak in leaks(job, sizes, [told for _, told in before])
    ]
