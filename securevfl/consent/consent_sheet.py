"""The consent sheet of a job: what each party sends, receives and learns, and under which assumption.

A person of each party reads the sheet before a run and agrees to it by its digest. The sheet begins with the model and
its rows. Then it lists for each party what it learns, its messages, what its ledger says about earlier runs, and each
leak: a disclosure beyond what the protocol declares, which a leak check refuses unless the job accepts it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.consent.forecast import forecast
from securevfl.consent.leak_check import leaks
from securevfl.consent.settle_job import check_settled, settle_job
from securevfl.consent.sheet_lines import check_tools, tool_lines
from securevfl.data.column_types import decided_from_values
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.html import escape
from securevfl.errors import ConfigError, LabelError
from securevfl.families.facts import RunFacts
from securevfl.families.message_declarations import run_declarations, run_roles
from securevfl.families.run_facts import in_order, local_run_facts, pooled_run_facts
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job
from securevfl.optim.defaults import why_not_on_shares
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.untrusted import printable

ASSUMPTIONS = (
    "every party follows the protocol and may study what it received (semi-honest); certificates say who is who"
)


class ConsentSheet(str):
    """The text of a consent sheet. A notebook shows it with its line breaks.

    Control characters and invisible characters are escaped, so that its reader sees everything that the digest covers.

    Args:
        text: the whole text, with every message, encryption and count.
        first_screen: the first screen; the whole text by default.

    Attributes:
        first_screen: a summary for those who consent: who takes part, with which rows and in which model; what each
            party learns, in words and bits; what two parties could learn together; and what would be refused.
    """

    first_screen: str

    def __new__(cls, text: str, first_screen: str = "") -> ConsentSheet:
        """Create the sheet from its text and its first screen, which by default is the text itself."""
        sheet = super().__new__(cls, printable(text))
        sheet.first_screen = printable(first_screen or text)
        return sheet

    @property
    def digest(self) -> str:
        """16 hex digits by which a person agrees to the first screen and the text."""
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
    """Return the consent sheet of a job.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: all parties with their tables, or one party if `others` is given. Without parties, the sheet is for one
            party with labels and one without, and has formulas instead of numbers.
        others: number of columns of each other party by name, for the sheet that one party can create alone. The first
            of them has the labels unless the one party has them.
        outputs: number of outputs of the model. It is needed if the one party has no labels and the loss may have
            several outputs, one for each class.
        ledgers: ledgers of some of the parties, by name. The sheet then lists and counts earlier disclosures.

    Returns:
        The sheet.

    Raises:
        ConfigError: if `others` is given with several tables or none.
    """
    if others is not None:
        if parties is None or len(parties) != 1:
            raise ConfigError(
                "the sheet of a party alone needs exactly one table, besides the numbers of columns of the others",
                "pass one table, or all tables without `others`",
                code="SVFL-PARTIES-COUNT",
            )
        (party,) = parties
        check_settled(job, party.name)
        columns = dict(others) | {party.name: 0}
        lead = party.name if party.active else next(iter(columns))
        role_without_columns = next((role for _, role in job.family.example_helpers), PASSIVE)
        roles_by_name = {name: PASSIVE if size else role_without_columns for name, size in others.items()}
        roles_by_name[party.name] = party.role or PASSIVE
        cast = Roles.of({lead: ACTIVE} | {name: role for name, role in roles_by_name.items() if name != lead})
        return sheet_for_party(job, party, cast, columns, outputs=outputs, ledgers=ledgers)
    family = job.family
    if parties is None:
        example_roles = Roles.of((*Roles.labelled(ACTIVE, [PASSIVE]).cast, *family.example_helpers))
        roles = family.complete_roles(job, example_roles, {})
        return _sheet(job, roles, None, ["", f"accepted: {', '.join(job.accepts)}"] if job.accepts else [])
    lead_party, other_parties = check_parties(parties)
    job = settle_job(job, parties)
    roles = run_roles(family, job, parties)
    try:
        facts = pooled_run_facts(job, [lead_party, *other_parties])
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"])
    return _sheet(job, roles, facts, _leak_lines(job, facts, ledgers or {}))


def sheet_for_party(
    job: Job,
    party: Party,
    cast: Roles,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
) -> ConsentSheet:
    """Return the sheet that a party creates alone, before it has connected to the other parties.

    The order in which the other parties are named does not change the text.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party.
        cast: the roles of all parties.
        columns: number of columns d_k of each party.
        outputs: see `local_run_facts`.
        ledgers: the party's ledger by its name, if it has one.

    Returns:
        The sheet.
    """
    check_tools(job, party.name)
    names = _in_sheet_order(cast)
    party = prepare_party(job, party, party.register)
    sizes = {name: columns[name] for name in names} | {party.name: len(party.columns)}
    roles = job.family.complete_roles(job, Roles.of((name, cast.role(name)) for name in names), sizes)
    if not party.columns:
        return _sheet(job, roles, None, [], _heading_of_sheet(job, party))
    try:
        facts = local_run_facts(job, party, sizes, outputs=outputs)
    except LabelError as error:
        return _sheet(job, roles, None, ["", f"would be refused: {error}"], _heading_of_sheet(job, party))
    return _sheet(job, roles, facts, _leak_lines(job, facts, ledgers or {}), _heading_of_sheet(job, party))


def sheet_of_run(
    job: Job, roles: Roles, facts: RunFacts, *, ledgers: Mapping[str, DisclosureLedger], run: str = ""
) -> ConsentSheet:
    """Return the sheet that a party creates in a run, after it has received the other parties' public sizes.

    It has the same text as `sheet_for_party` if that function was called with the same numbers of columns and outputs.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        roles: the roles of all parties.
        facts: the facts known before the run: sizes, batches, disclosed values, and this party's table.
        ledgers: the party's ledger by its name, if it has one.
        run: the run that is resumed. Its entries in the ledger do not count, because the party has agreed to them.

    Returns:
        The sheet.
    """
    (party,), names = facts.parties, _in_sheet_order(roles)
    roles = Roles.of((name, roles.role(name)) for name in names)
    if not party.columns:
        return _sheet(job, roles, None, [], _heading_of_sheet(job, party))
    facts = in_order(job, facts, names)
    return _sheet(job, roles, facts, _leak_lines(job, facts, ledgers, run), _heading_of_sheet(job, party))


def _in_sheet_order(roles: Roles) -> list[str]:
    """Return the names of all parties: the leading party, and the others in alphabetical order."""
    return [roles.lead, *sorted(roles.others(roles.lead))]


def _heading_of_sheet(job: Job, party: Party) -> str:
    table = f"by its own table ({len(party):,} x {len(party.columns)})" if party.columns else "without a table"
    return f"for {party.name}, {table}, job {job.digest.hex()[:16]}"


def _sheet(
    job: Job, roles: Roles, facts: RunFacts | None, leak_lines: Sequence[str], heading: str = ""
) -> ConsentSheet:
    family = job.family
    declared = run_declarations(family, job, roles)
    why_not_shares = why_not_on_shares(job.model, job.optimizer) if job.protocol.seals else ""
    lines = [
        *([heading] if heading else []),
        f"{job.optimizer.label} on a {job.model.name} model, protocol {family.title(job, roles)}",
        *(f"code: {line}" for line in _code_lines(job)),
        *(f"model: {line}" for line in job.model.note.splitlines()),
        *([f"not on shares, because {why_not_shares}"] if why_not_shares else []),
        *_weight_lines(job),
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {family.strength(job)}",
        *([] if facts is None else [f"takes: {line}" for line in family.resource_estimates(job, facts)]),
        *([f"openings: {line}"] if facts is not None and (line := family.opened_values(job, facts)) else []),
    ]
    first_screen = [*([heading] if heading else []), *_reading_lines(job, roles, facts), *_subject(job, roles, facts)]
    for name in roles.parties:
        learns = _learns(job, roles, facts, name)
        lines += ["", _heading(roles, name), *_role(declared, roles.roles_of(name)), *learns, *_counted(facts, name)]
        first_screen += ["", _heading(roles, name), *learns]
    first_screen += ["", f"assumes   {ASSUMPTIONS}"]
    return ConsentSheet("\n".join([*lines, *leak_lines]), "\n".join([*first_screen, *leak_lines]))


def _counted(facts: RunFacts | None, name: str) -> list[str]:
    """Return a line for each output that a party receives, with the amounts that leak checks and ledgers count."""
    outputs = [] if facts is None else [str(output) for output in facts.outputs if output.receiver == name]
    return _statement_lines("counted", "\n".join(outputs)) if outputs else []


def _code_lines(job: Job) -> list[str]:
    """Return a line with the package that the protocol family comes from, unless that is securevfl."""
    return (
        []
        if job.extension is None
        else [f"from the package {job.extension}, which is not part of securevfl; all parties have the same version"]
    )


def _reading_lines(job: Job, roles: Roles, facts: RunFacts | None) -> list[str]:
    """Return lines that state how much of one column of each party scores of new rows can reveal, by an attack."""
    if facts is None or not job.family.score_bits(job, facts.shape):
        return []
    requester = job.family.score_requester(job, roles.lead)
    return [
        f"readable  scores can reveal up to {content.readable_share:.0%} of one column of {name} to {requester}, by an "
        "attack on its rows"
        for name, content in facts.shape.information.items()
        if name != requester
    ]


def _subject(job: Job, roles: Roles, facts: RunFacts | None) -> list[str]:
    """Return lines that state which model is trained, by which method, and on which rows and columns."""
    lines = [f"model     {job.model.name}, on {job.family.title(job, roles)}"]
    lines += [f"code      {line}" for line in _code_lines(job)]
    if facts is None:
        return lines
    sizes = facts.shape
    held_out = f"; {sizes.held_out:,} more are held out to measure it" if sizes.held_out else ""
    columns = ", ".join(f"{name} {count}" for name, count in sizes.columns.items() if count)
    lines += [f"rows      {sizes.rows:,} train it{held_out}", f"columns   {columns}"]
    decided = [f"{party.name}: {text}" for party in facts.parties if (text := decided_from_values(party.types))]
    types = "\n".join(["decided from values:", *decided]) if decided else ""
    return [*lines, *(line.removeprefix("  ") for line in _statement_lines("types", types) if types)]


def _learns(job: Job, roles: Roles, facts: RunFacts | None, name: str) -> list[str]:
    """Return lines that state what a party learns and stores, and what it could learn together with another party."""
    family, lines, previous = job.family, list[str](), ""
    for word, text in family.statements(job, roles, name, facts):
        lines += _statement_lines("also" if word == previous else word, text)
        previous = word
    for word, text in tool_lines(job, roles, facts, name):
        lines += _statement_lines(word, text)
    if facts is not None and name == family.score_requester(job, roles.lead):
        lines += _score_lines(job, facts, name)
    if name == roles.lead:
        lines += _statement_lines("pooling", family.coalitions(job, roles))
    return lines


def _weight_lines(job: Job) -> list[str]:
    """Return the line about the largest weight that a row can have, and what all parties learn from it."""
    if job.weights is None:
        return []
    room = job.weights.limit
    rarest = f", so at least 1 of {2 * room:g} rows is of each class" if job.model.loss.single else ""
    balanced = f", and that its classes count the same{rarest}" if job.weights.classes == "balanced" else ""
    return [f"weights: all learn that no row counts more than {room:g} times the mean{balanced}"]


def _heading(roles: Roles, name: str) -> str:
    role = roles.role(name)
    return f"{name} ({role}{', holds the labels' if role == ACTIVE and roles.with_role(ACTIVE) == (name,) else ''})"


def _statement_lines(word: str, text: str) -> list[str]:
    """Return a statement as lines: the first begins with a word, such as "learns", and the others continue it."""
    first, *continued = text.split("\n")
    return [f"  {word:<9} {first}", *(f"            {line}" for line in continued)]


def _score_lines(job: Job, facts: RunFacts, requester: str) -> list[str]:
    """Return lines that compare the bits of a new row's scores with the information content of other parties' rows.

    They are empty if no party's information content is known.
    """
    bits, information = job.family.score_bits(job, facts.shape), facts.shape.information
    compared = [
        f"{name}: {content.in_words(bits, facts.shape.outputs)}"
        for name, content in information.items()
        if name != requester and bits
    ]
    if not compared:
        return []
    return _statement_lines("scores", "\n".join(["of a new row, compared with the columns of", *compared]))


def _role(declared: Sequence[MessageDeclaration], roles: Sequence[Role]) -> list[str]:
    """Return lines with the messages that a party with these roles sends and receives."""
    sent = list(dict.fromkeys(item.message.__name__ for item in declared if item.sender in roles))
    received = [item for item in declared if item.receiver in roles]
    return [
        f"  sends     {', '.join(sent) or 'nothing'}",
        *(
            f"  {'receives' if index == 0 else '':<9} {item.message.__name__} from {item.sender}: {item.reveals}"
            for index, item in enumerate(received)
        ),
    ]


def _is_new(ledger: DisclosureLedger, run: str) -> bool:
    """Return whether a ledger has no limits, no trusted peers, and no entries of other runs than this one."""
    if ledger.is_empty or not run:
        return ledger.is_empty
    contents = ledger.read()
    return not (contents.limits or contents.trusts or any(entry.run != run for entry in contents.entries))


def _refused(leak: Leak) -> str:
    """Return the words that introduce a leak that is not accepted: where the job would be refused because of it."""
    return "would be refused between organisations" if leak.apart else "would be refused"


def _leak_lines(job: Job, facts: RunFacts, ledgers: Mapping[str, DisclosureLedger], run: str = "") -> list[str]:
    """Return a summary of the ledgers, and a line for each leak that the job accepts or that would be refused."""
    parties = {party.name: party for party in facts.parties}
    used = {name: ledger for name, ledger in ledgers.items() if name in parties and not _is_new(ledger, run)}
    trusts = used[facts.shape.active].read().trusts if facts.shape.active in used else ()
    tables = {name: ledger.table_tag(parties[name]) for name, ledger in used.items() if name in trusts}
    sizes = replace(facts.shape, tables=tables)
    forecasts = {name: forecast(ledger, name, parties[name].register, job, sizes, run) for name, ledger in used.items()}
    before = dict.fromkeys((entry.run, entry.disclosure) for item in forecasts.values() for entry in item.before)
    lines = []
    for name, item in forecasts.items():
        lines += ["", f"by the disclosure ledger of {name}", *item.lines]
        trusted = [peer for peer in used[name].read().trusts if peer in facts.shape.columns]
        if trusted:
            lines.append(
                f"  trusts    {', '.join(trusted)} to ask only the same equations again in jobs with equal "
                f"batches and columns"
            )
    lines += [f"\nwould be refused: {reason}" for item in forecasts.values() for reason in item.refusals]
    return lines + [
        f"\n{'accepted' if leak.name in job.accepts else _refused(leak)}: {leak}"
        for leak in leaks(job, sizes, [disclosure for _, disclosure in before])
    ]
