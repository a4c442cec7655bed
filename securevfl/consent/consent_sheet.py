"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from securevfl.base.files import write_atomic
from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.consent.booking import foretell, leaks
from securevfl.data.party import Party, check_parties, register_of
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.exposure import code_bits
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.ledger import DisclosureLedger, LedgerEntry
from securevfl.disclosure.summed_bits import LOOK, check_looks
from securevfl.display.html import escape
from securevfl.errors import ConfigError, DataNotice, LabelError, StorageError
from securevfl.families.declarations import declared_of, roles_of
from securevfl.families.run_facts import Known, known_alone, known_run
from securevfl.families.table_preparation import prepare
from securevfl.job import Job
from securevfl.models.class_labels import classes_of
from securevfl.models.row_weights import Weights, room_for
from securevfl.models.trees import Trees
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.defaults import EVALUATE_EVERY, LONG_VISITS, VISITS, longer, why_sealed
from securevfl.protocols.declarations import MessageDeclaration

# How long a job may train on the tables at hand: as many epochs as no guard refuses for what columns tell.


MOST = 10  # epochs


def settled(job: Job, parties: Sequence[Party]) -> Job:
    """Settle what the job leaves open, by tables of parties that sit in one process: what follows from the classes of
    the labels (`_classified`), and the number of epochs if that is left to the guards (0).

    It is the most, up to `most_epochs`, that none of these parties refuses for what it tells of columns. It is all of
    these where the job accepts that, or where a guard refuses one epoch already; the guard then says so as ever.
    """
    lead, others = check_parties(parties)
    job = _classified(job, [lead, *others])
    if job.epochs:
        return job
    whole = job.model_copy(update={"epochs": most_epochs(job)})
    if "columns" in job.accepts:
        return whole
    return allowed(whole, known_run(whole, [lead, *others]))


def most_epochs(job: Job) -> int:
    """Return the most epochs that a job is given which leaves them open; more where coefficients are read with standard
    errors, and where weights make the safe steps shorter."""
    room = 1.0 if job.weights is None else job.weights.room
    if job.model.loss.reports_standard_errors:
        return math.ceil(3 * MOST * math.sqrt(room))
    return math.ceil(MOST * longer(room))


def _classified(job: Job, parties: Sequence[Party]) -> Job:
    """Settle the loss of trees that name none, where there are several classes, and the room that weights of classes
    need, with visits enough for the smaller steps."""
    lead, model = parties[0], job.model
    if lead.y is None:
        return job
    if isinstance(model, Trees) and "loss_name" not in model.model_fields_set and len(np.unique(lead.y)) > 2:
        rest = Trees(**{**model.model_dump(), "loss_name": "one_vs_rest"})
        notice = f"party {lead.name}: trees learn each of several classes against the rest"
        warnings.warn(f'{notice}, as a job says by loss = "one_vs_rest"', DataNotice, stacklevel=3)
        job = job.model_copy(update={"model": rest})
    if job.weights is None or not job.model.loss.classifies:
        return job
    classes = classes_of(lead.name, job.model.loss, lead.y, job.positive)
    train = job.schedule(register_of(parties)).flow
    return _roomy(job, room_for(lead.name, job.weights, job.model.loss, lead.y, classes, train))


def _roomy(job: Job, weights: Weights) -> Job:
    """Return a job that left the room of its weights open with these weights, and with visits as many times as many as
    the room makes steps smaller, as far as the job left these open too."""
    update: dict[str, Any] = {"weights": weights}
    more = 1.0 if job.weights is None or job.weights.most is not None else longer(weights.room)
    if isinstance(job.optimizer, BlockDescent) and more > 1:
        if job.epochs in (VISITS, LONG_VISITS, job.model.defaults.get("epochs")):
            update["epochs"] = math.ceil(more * job.epochs)
        if job.evaluate_every == EVALUATE_EVERY:
            update["evaluate_every"] = math.ceil(more * EVALUATE_EVERY)
    return job.model_copy(update=update)


def allowed(job: Job, known: Known) -> Job:
    """Return the job with the most epochs, up to its own, whose columns no guard refuses by these sizes.

    The job is returned as it is if there is no such number of epochs.
    """
    for epochs in range(job.epochs, 0, -1):
        shorter = job.model_copy(update={"epochs": epochs})
        if not any(leak.name == "columns" for leak in leaks(shorter, replace(known.sizes, epochs=epochs))):
            return shorter
    return job


def check_settled(job: Job, who: str) -> None:
    """ConfigError if a job between organisations leaves its epochs to the guards, who see one table each."""
    if not job.epochs:
        raise ConfigError(
            f"{who}: a number of epochs was expected, as each party sees its own table alone; write epochs = 2, say, "
            "and let securevfl explain tell whether your guard lets it through"
        )


ASSUMPTIONS = (
    "every party follows the protocol and may study what it received (semi-honest); certificates say who is who"
)


class Sheet(str):
    """A consent sheet: text, which a notebook shows with its lines.

    first: its first screen, for those who consent: who takes part, with which rows, in which model, what each is told
    in words and bits, what two could learn together, and what would be refused. The whole text has every message,
    encryption and count besides.
    """

    first: str

    def __new__(cls, text: str, first: str = "") -> Sheet:
        made = super().__new__(cls, text)
        made.first = first or text
        return made

    @property
    def digest(self) -> str:
        """16 hex digits by which its reader agrees to it, details included."""
        return hashlib.sha256(f"{self.first}\n{self}".encode()).hexdigest()[:16]

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
    roles = roles_of(method, job, parties)
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
    run: str = "",
) -> Sheet:
    """Write the sheet of a party alone: who takes part in which role, d_k `columns` of each by name; more as
    `known_alone`.

    run: the one that goes on, whose own entries in the ledgers are those that the party has agreed to. The same facts
    give the same text, in whatever order the other parties are named.
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
    return _sheet(job, roles, known, _leaks(job, known, ledgers or {}, run), whose)


def _sheet(job: Job, roles: Roles, known: Known | None, refused: Sequence[str], whose: str = "") -> Sheet:
    method = job.method
    declared = declared_of(method, job, roles)
    lines = [
        *([whose] if whose else []),
        f"{job.optimizer.label} on a {job.model.name} model, protocol {method.title(job, roles)}",
        *(f"code: {line}" for line in _code(job)),
        *(f"model: {line}" for line in job.model.note.splitlines()),
        *([f"not on shares, as {why}"] if job.protocol.seals and (why := why_sealed(job.model, job.optimizer)) else []),
        *_weights(job),
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {method.strength(job)}",
        *([] if known is None else [f"takes: {line}" for line in method.needs(job, known)]),
        *([f"openings: {line}"] if known is not None and (line := method.openings(job, known.sizes)) else []),
    ]
    first = [*([whose] if whose else []), *_subject(job, roles, known)]
    for name in roles.parties:
        learns = _learns(job, roles, known, name)
        lines += ["", _heading(roles, name), *_role(declared, roles.roles_of(name)), *learns]
        first += ["", _heading(roles, name), *learns]
    first += ["", f"assumes   {ASSUMPTIONS}"]
    return Sheet("\n".join([*lines, *refused]), "\n".join([*first, *refused]))


def _code(job: Job) -> list[str]:
    """Return where the family of training comes from, if it is no part of securevfl."""
    return [] if job.extension is None else [f"of {job.extension}: no part of securevfl, and the same at all parties"]


def _subject(job: Job, roles: Roles, known: Known | None) -> list[str]:
    """Return which model is trained, how, on which rows, of whose columns."""
    lines = [f"model     {job.model.name}, on {job.method.title(job, roles)}"]
    lines += [f"code      {line}" for line in _code(job)]
    if known is None:
        return lines
    sizes = known.sizes
    held = f"; {sizes.held_out:,} more are held out to measure it" if sizes.held_out else ""
    columns = ", ".join(f"{name} {count}" for name, count in sizes.columns.items() if count)
    return [*lines, f"rows      {sizes.rows:,} train it{held}", f"columns   {columns}"]


def _learns(job: Job, roles: Roles, known: Known | None, name: str) -> list[str]:
    """Return what a party learns and keeps, in words, and what it could learn together with another."""
    method, lines, before = job.method, list[str](), ""
    for word, text in method.tells(job, roles, name, known):
        lines += _told_lines("also" if word == before else word, text)
        before = word
    lines += _codes(job, roles, known, name)
    if known is not None and name == method.asker(job, roles.lead):
        lines += _scores(job, known, name)
    if name == roles.lead:
        lines += _told_lines("pooling", method.pooling(job, roles))
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


def _scores(job: Job, known: Known, asker: str) -> list[str]:
    """Return what scores of a new row are against what each other party's row holds, as far as tables are at hand."""
    bits, held = job.method.score_bits(job, known.sizes), known.sizes.holds
    weighed = [
        f"{name}: {own.in_words(bits, known.sizes.outputs)}" for name, own in held.items() if name != asker and bits
    ]
    return (
        _told_lines("scores", "\n".join(["of a new row, weighed against the columns of", *weighed])) if weighed else []
    )


def _codes(job: Job, roles: Roles, known: Known | None, name: str) -> list[str]:
    """Return what the reason codes are that a party may give of rows that are scored, or may be given."""
    shares, asker, most = job.protocol.shares, job.method.asker(job, roles.lead), job.reason_codes
    giving = [party for party in roles.parties if party != asker and (shares is None or party in shares.open_weights)]
    if not most or name not in (asker, *giving):
        return []
    sizes = {} if known is None else {each: known.sizes.columns.get(each, 0) for each in giving}
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
    if ledger.blank or not run:
        return ledger.blank
    book = ledger.read()
    return not (book.limits or book.trusts or any(entry.run != run for entry in book.entries))


def _refused(leak: Leak) -> str:
    """Say where a leak that is not accepted would be refused; some are none as long as one process has all tables."""
    return "would be refused between organisations" if leak.apart else "would be refused"


def _leaks(job: Job, known: Known, ledgers: Mapping[str, DisclosureLedger], run: str = "") -> list[str]:
    """List what the ledgers say, and then a line for each leak that is accepted or would be refused."""
    parties = {party.name: party for party in known.parties}
    kept = {name: each for name, each in ledgers.items() if name in parties and not _new(each, run)}
    trusts = kept[known.sizes.active].read().trusts if known.sizes.active in kept else ()
    sizes = replace(
        known.sizes, tables={name: each.tag(parties[name]) for name, each in kept.items() if name in trusts}
    )
    outlooks = {name: foretell(each, name, parties[name].register, job, sizes, run) for name, each in kept.items()}
    before = dict.fromkeys((entry.run, entry.told) for outlook in outlooks.values() for entry in outlook.before)
    lines = []
    for name, outlook in outlooks.items():
        lines += ["", f"by the disclosure ledger of {name}", *outlook.lines]
        trusted = [peer for peer in kept[name].read().trusts if peer in known.sizes.columns]
        lines += [f"  trusts    {', '.join(trusted)} to ask the same equations again where plans are equal"] * bool(
            trusted
        )
    lines += [f"\nwould be refused: {why}" for outlook in outlooks.values() for why in outlook.refusals]
    return lines + [
        f"\n{'accepted' if leak.name in job.accepts else _refused(leak)}: {leak}"
        for leak in leaks(job, sizes, [told for _, told in before])
    ]


# Which consent sheets a party has agreed to: a file beside its disclosure ledger, a line each.


class AgreedSheets:
    """The sheets that the owner of this ledger has agreed to, by their digests."""

    def __init__(self, ledger: DisclosureLedger) -> None:
        self._path = ledger.path.with_name(f"{ledger.path.name}.agreed")

    def holds(self, sheet: Sheet) -> bool:
        """Whether it was agreed to this very text."""
        return self.knows(sheet.digest)

    def knows(self, digest: str) -> bool:
        """Whether it was agreed to a sheet of this digest."""
        return any(line.split()[:1] == [digest] for line in self._lines())

    def takes(self, sheet: Sheet, accept: str | None) -> bool:
        """Whether its owner agrees to this text: by `accept`, which must be its digest if it came, else by having
        agreed to it before. What `accept` names is recorded."""
        if accept == sheet.digest:
            self.add(sheet)
        return accept in (None, sheet.digest) and self.holds(sheet)

    def add(self, sheet: Sheet) -> None:
        """Record that this text is agreed to from now on. StorageError if that cannot be written."""
        if not self.holds(sheet):
            at = datetime.now(UTC).isoformat(timespec="seconds")
            write_atomic(self._path, "\n".join([*self._lines(), f"{sheet.digest} {at}", ""]).encode())

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        except OSError as cause:
            raise StorageError(self._path, cause) from None


# A look at sums over all rows, which is no training: refused if it tells too much, agreed to, and entered.

Consent = Callable[[Sheet], None]


def book_look(
    session: bytes,
    party: Party,
    told: Sequence[Disclosure],
    remedy: str,
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    sheet: Callable[[Sequence[LedgerEntry]], Sheet],
) -> None:
    """Enter what a look tells about this party's columns, once `consent` has been given the sheet made of what was told
    before.

    LeakageError if it would be too much, with `remedy`; nobody is asked to agree to what is refused.
    """
    sitting = f"{LOOK} {session.hex()}", session.hex()
    check = partial(check_looks, party.name, told, remedy)
    if ledger is not None:
        ledger.admits(party.register, sitting, told, check)
    if consent is not None:
        consent(sheet([] if ledger is None else ledger.before(party.register, but=sitting)))
    if ledger is not None:
        ledger.book(party.register, sitting, told, check)
