"""The consent sheet of a job: what each party sends, receives and learns, and under which assumption.

A person of each party reads the sheet before a run and agrees to it by its digest. The sheet begins with the model and
its rows. Then it lists for each party what it learns, its messages, what its ledger says about earlier runs, and each
leak: a disclosure beyond what the protocol declares, which a leak check refuses unless the job accepts it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.base.version import __version__
from securevfl.consent.forecast import forecast
from securevfl.consent.leak_check import leaks
from securevfl.consent.learned_table import LEARNED_TITLE
from securevfl.consent.settle_job import check_settled, settle_job
from securevfl.consent.sheet_document import (
    SheetBlock,
    SheetSection,
    SheetTable,
    Statement,
    as_html,
    as_text,
    combine,
    section,
)
from securevfl.consent.sheet_lines import check_tools
from securevfl.consent.sheet_sections import (
    ASSUMPTIONS,
    REFUSAL,
    disclosure_sections,
    later_section,
    ledger_sections,
    nobody_section,
    party_heading,
    subject_section,
)
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.families.facts import RunFacts
from securevfl.families.message_declarations import run_declarations, run_roles
from securevfl.families.run_facts import in_order, local_run_facts, pooled_run_facts
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job
from securevfl.optim.defaults import why_not_on_shares
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.untrusted import printable

ESTIMATES_TITLE = "Time, memory and traffic"
_PAGE_STYLE = """<style>
@media (min-width: 40rem) { dl { grid-template-columns: 6rem 1fr; } }
h3 { font-size: 1rem; margin: 1rem 0 .2rem; } main { max-width: 62rem; }
</style>"""


class ConsentSheet(str):
    """The text of a consent sheet, in lines of 80 characters: the first screen, and then the messages of the run.

    Control characters and invisible characters are escaped, so that its reader sees everything that the digest covers.
    `in` compares words: line breaks and indentation do not matter.

    Args:
        text: the whole text.
        first_screen: the first screen; the whole text by default.
        sections: the sections of the first screen, for its form as a page.

    Attributes:
        first_screen: a summary for those who consent: who learns what, as numbers of values, bits and fractions of
            all values; what nobody learns; what parties could learn together; what would be refused; and how to say no.
        sections: the same in parts; empty if the sheet was created from its text.
    """

    first_screen: str
    sections: tuple[SheetSection, ...]

    def __new__(cls, text: str, first_screen: str = "", sections: Sequence[SheetSection] = ()) -> ConsentSheet:
        """Create the sheet from its text and its first screen, which by default is the text itself."""
        sheet = super().__new__(cls, printable(text))
        sheet.first_screen = printable(first_screen or text)
        sheet.sections = tuple(sections)
        return sheet

    @classmethod
    def of_sections(cls, sections: Sequence[SheetSection]) -> ConsentSheet:
        """Create a sheet that has a first screen only."""
        return cls(text := as_text(sections), text, sections)

    @property
    def digest(self) -> str:
        """16 hex digits by which a person agrees to the first screen and the text."""
        return hashlib.sha256(f"{self.first_screen}\n{self!s}".encode()).hexdigest()[:16]

    @property
    def footer(self) -> str:
        """Lines with the digest, the date and the version. The digest does not cover them."""
        today = datetime.now(UTC).date().isoformat()
        return f"Sheet digest {self.digest}, printed on {today} by securevfl {__version__}"

    @property
    def learned(self) -> list[dict[str, str]]:
        """The table of who learns what: for each row, its cells by the head of their column.

        It is empty if the sheet was made without tables, because the numbers are then unknown.
        """
        tables = (item.table for item in self.sections if item.title == LEARNED_TITLE)
        return [dict(zip(table.heads, row, strict=True)) for table in tables if table is not None for row in table.rows]

    def page(self) -> str:
        """Return the first screen as an HTML page without scripts, with the same sections in the same order."""
        title, content = "Consent sheet", self._repr_html_()
        if self.sections:
            first, *others = self.sections
            title, content = first.title, as_html([replace(first, title=""), *others])
        return html.page(
            title,
            [
                _PAGE_STYLE,
                f"<h1>{html.escape(title)}</h1>",
                content,
                f"<p class='soft'>{html.escape(self.footer)}.</p>",
            ],
        )

    def __contains__(self, words: object) -> bool:
        """Return whether the sheet contains these words in this order, ignoring line breaks and indentation."""
        return isinstance(words, str) and " ".join(words.split()) in " ".join(self.split())

    def __repr__(self) -> str:
        """Return the first screen, which an interpreter prints with its line breaks."""
        return self.first_screen

    def _repr_html_(self) -> str:
        if self.sections:
            return as_html(self.sections)
        return f'<pre style="white-space: pre-wrap">{html.escape(self.first_screen)}</pre>'


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
        ConfigError: if `others` is given with several tables or none, or if the training would be refused because of
            its numbers of rows, columns or iterations.
        LabelError: if the labels do not fit the job.
    """
    if others is not None:
        if parties is None or len(parties) != 1:
            raise ConfigError(
                "with `others`, a consent sheet needs the table of exactly one party",
                "pass one table with `others`, or the tables of all parties without `others`",
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
        return _sheet(job, roles, None, _leak_section([f"accepted: {', '.join(job.accepts)}"]) if job.accepts else [])
    lead_party, other_parties = check_parties(parties)
    job = settle_job(job, parties)
    roles = run_roles(family, job, parties)
    facts = pooled_run_facts(job, [lead_party, *other_parties])
    return _sheet(job, roles, facts, _earlier_and_leaks(job, facts, ledgers or {}))


def combined_sheet(sheets: Mapping[str, ConsentSheet], head: str) -> ConsentSheet:
    """Combine the sheets of several trainings of one party into one sheet.

    Args:
        sheets: the sheet of each training by the name of its model. Each was created from sections.
        head: what the party agrees to, as a paragraph.

    Returns:
        The sheet. Its first screen states once what the trainings have in common. Below, the messages of each training
        follow under the name of its model.
    """
    sections = [
        section("What you agree to", head),
        _combined_subject(sheets),
        *combine({name: sheet.sections[1:] for name, sheet in sheets.items()}),
    ]
    first_screen = as_text(sections)
    details = (f"{name}:\n{sheet.removeprefix(sheet.first_screen).strip()}" for name, sheet in sheets.items())
    return ConsentSheet("\n\n".join([first_screen, *details]), first_screen, sections)


def _combined_subject(sheets: Mapping[str, ConsentSheet]) -> SheetSection:
    """Combine the first sections of the sheets (jobs, roles, sizes) into one, with a table of what differs."""
    subjects = {name: sheet.sections[0] for name, sheet in sheets.items()}
    facts = {
        name: dict(statement for block in subject.blocks for statement in block.statements)
        | {"job": subject.title.rpartition("job ")[2]}
        for name, subject in subjects.items()
    }
    first = next(iter(facts.values()))
    common = {word: text for word, text in first.items() if all(fact.get(word) == text for fact in facts.values())}
    heads = [word for word in dict.fromkeys(word for fact in facts.values() for word in fact) if word not in common]
    rows = tuple((name, *(fact.get(head, "-") for head in heads)) for name, fact in facts.items())
    table = SheetTable(("Training", *(head.capitalize() for head in heads)), rows, flexible=1)
    title = next(iter(subjects.values())).title.partition(",")[0]
    return SheetSection(title, (SheetBlock(tuple(common.items())),), table)


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
        cast: the role of each party in the job.
        columns: number of columns d_k of each party.
        outputs: number of outputs of the model. It is needed if the party has no labels and the loss may have several
            outputs.
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
    facts = local_run_facts(job, party, sizes, outputs=outputs)
    return _sheet(job, roles, facts, _earlier_and_leaks(job, facts, ledgers or {}), _heading_of_sheet(job, party))


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
    return _sheet(job, roles, facts, _earlier_and_leaks(job, facts, ledgers, run), _heading_of_sheet(job, party))


def _in_sheet_order(roles: Roles) -> list[str]:
    """Return the names of all parties: the leading party, and the others in alphabetical order."""
    return [roles.lead, *sorted(roles.others(roles.lead))]


def _heading_of_sheet(job: Job, party: Party) -> str:
    table = f"by its own table ({len(party):,} x {len(party.columns)})" if party.columns else "without a table"
    return f"for {party.name}, {table}, job {job.digest.hex()[:16]}"


def _sheet(
    job: Job,
    roles: Roles,
    facts: RunFacts | None,
    before: Sequence[SheetSection],
    heading: str = "",
) -> ConsentSheet:
    """Write a sheet.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        roles: the roles of all parties.
        facts: the facts of the run, if they are known.
        before: sections about earlier jobs, limits and leaks.
        heading: the party whose sheet it is, and its table.

    Returns:
        The sheet.
    """
    sections = [
        subject_section(job, roles, facts, heading),
        *disclosure_sections(job, roles, facts, before),
        nobody_section(job, roles),
        section("If parties pool what they learned", job.family.coalitions(job, roles)),
        section("Assumptions", ASSUMPTIONS),
        later_section(job, roles, facts),
        section("How to say no", *REFUSAL),
    ]
    first_screen = as_text(sections)
    return ConsentSheet(f"{first_screen}\n\n{as_text(_details(job, roles, facts))}", first_screen, sections)


def _details(job: Job, roles: Roles, facts: RunFacts | None) -> list[SheetSection]:
    """Return the sections below the first screen: method, encryption, resources, and each party's messages."""
    family = job.family
    common = family.common_statements(job, roles, facts)
    why_not_shares = why_not_on_shares(job.model, job.optimizer) if job.protocol.seals else ""
    method = [
        ("method", f"{job.optimizer.label} on {_article(job.model.name)} {job.model.name} model"),
        ("protocol", family.title(job, roles)),
        *(("model", line) for line in [" ".join(job.model.note.splitlines())] if line),
        *([("not on", f"shares, because {why_not_shares}")] if why_not_shares else []),
        *_weight_statements(job),
        ("encrypted", family.strength(job)),
        *((word, line) for word in ("openings", "steps") if (line := common.get(word))),
    ]
    declared = run_declarations(family, job, roles)
    messages = [
        SheetBlock(tuple(_role(declared, roles.roles_of(name))), party_heading(roles, name)) for name in roles.parties
    ]
    estimates = [] if facts is None else family.resource_estimates(job, facts)
    return [
        SheetSection("Method and encryption", (SheetBlock(tuple(method)),)),
        *([section(ESTIMATES_TITLE, *estimates)] if estimates else []),
        SheetSection("Messages", tuple(messages)),
    ]


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _weight_statements(job: Job) -> list[Statement]:
    """Return the statement about the largest weight that a row can have, and what all parties learn from it."""
    if job.weights is None:
        return []
    room = job.weights.limit
    rarest = f", so at least 1 of {2 * room:g} rows is of each class" if job.model.loss.single else ""
    balanced = f", and that its classes count the same{rarest}" if job.weights.classes == "balanced" else ""
    return [("weights", f"all learn that no row counts more than {room:g} times the mean{balanced}")]


def _role(declared: Sequence[MessageDeclaration], roles: Sequence[Role]) -> list[Statement]:
    """Return statements on the messages that a party with these roles sends and receives."""
    sent = list(dict.fromkeys(item.message.__name__ for item in declared if item.sender in roles))
    received = [item for item in declared if item.receiver in roles]
    return [
        ("sends", ", ".join(sent) or "nothing"),
        *(
            ("receives" if index == 0 else "also", f"{item.message.__name__} from {item.sender}: {item.reveals}")
            for index, item in enumerate(received)
        ),
    ]


def _is_new(ledger: DisclosureLedger, run: str) -> bool:
    """Return whether a ledger holds nothing that concerns another run: no limit, no trusted peer, no other entry."""
    if ledger.is_empty or not run:
        return ledger.is_empty
    contents = ledger.read()
    return not (contents.limits or contents.trusts or any(entry.run != run for entry in contents.entries))


def _refused(leak: Leak) -> str:
    """Return the words that introduce a leak which the job does not accept; they say who would refuse the job."""
    return "would be refused between organisations" if leak.apart else "would be refused"


def _earlier_and_leaks(
    job: Job, facts: RunFacts, ledgers: Mapping[str, DisclosureLedger], run: str = ""
) -> list[SheetSection]:
    """Return the summaries of the ledgers, and each leak that the job accepts or that would be refused."""
    parties = {party.name: party for party in facts.parties}
    used = {name: ledger for name, ledger in ledgers.items() if name in parties and not _is_new(ledger, run)}
    trusts = used[facts.shape.active].read().trusts if facts.shape.active in used else ()
    tables = {name: ledger.table_tag(parties[name]) for name, ledger in used.items() if name in trusts}
    sizes = replace(facts.shape, tables=tables)
    forecasts = {name: forecast(ledger, name, parties[name].register, job, sizes, run) for name, ledger in used.items()}
    before = dict.fromkeys((entry.run, entry.disclosure) for item in forecasts.values() for entry in item.before)
    trusted = {
        name: [peer for peer in ledger.read().trusts if peer in facts.shape.columns] for name, ledger in used.items()
    }
    texts = [f"would be refused: {reason}" for item in forecasts.values() for reason in item.refusals]
    texts += [
        f"{'accepted' if leak.name in job.accepts else _refused(leak)}: {leak}"
        for leak in leaks(job, sizes, [disclosure for _, disclosure in before])
    ]
    return [*ledger_sections(forecasts, trusted), *_leak_section(texts)]


def _leak_section(texts: Sequence[str]) -> list[SheetSection]:
    """Return the section on leaks, unless there are none."""
    blocks = tuple(SheetBlock((("", text),)) for text in texts)
    return [SheetSection("Leaks that are refused, or that the job accepts", blocks)] if blocks else []
