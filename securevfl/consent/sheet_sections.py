"""The first screen of a consent sheet: who learns what, who learns nothing, and how to refuse.

Its table has one row for each output of a run (`securevfl.disclosure.outputs`), so that the sheet, the ledger and the
audit state the same. The statements below it explain what follows from the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securevfl.base.roles import ACTIVE, Roles
from securevfl.consent.forecast import LedgerForecast
from securevfl.consent.learned_table import LEARNED_TITLE, SIZES_TEXT, learned_note, learned_table
from securevfl.consent.sheet_document import SheetBlock, SheetSection, SheetTable, Statement, section
from securevfl.consent.sheet_lines import tool_lines
from securevfl.data.column_types import decided_from_values
from securevfl.disclosure.information_content import InformationContent
from securevfl.families.facts import RunFacts
from securevfl.job import Job

ASSUMPTIONS = (
    "The statements on who learns what hold if every party follows the protocol. A party may study everything that it "
    "receives (semi-honest). Certificates identify the parties. A party that breaks the protocol in other ways than "
    "this sheet describes could learn more: see SECURITY.md."
)
LATER = "later"
"""The word of statements about the scores of new rows, which a party may request after the training."""
_SCORES_NOTE = "Scores of people outside the training: see Questions later."
_OTHERWISE = (
    "Nobody learns anything about a row that this sheet does not state. --details lists each message and what it "
    "reveals."
)
REFUSAL = (
    "If the program asks you, answer no. If it runs without asking a question, it agrees only if your operator adds "
    "--accept and the digest of this sheet (last line). To say no, tell the operator not to add it.",
    "Even if you say no, the others already know the number of your rows and columns, and whether the columns are "
    "those of your earlier jobs. From the alignment, which came before this sheet, they know which of their people "
    "are in your table.",
    "With `securevfl ledger --limit columns=5%` you set a limit of your own: your program then refuses a job if all "
    "jobs together would disclose more than 5% of your columns. No job file can lift it, and it replaces no other "
    "limit.",
    "What was disclosed once cannot be recalled.",
)


def subject_section(job: Job, roles: Roles, facts: RunFacts | None, heading: str) -> SheetSection:
    """Return the first section: the sheet's title, the model, the method, and the rows and columns of the training."""
    title = f"Consent sheet {heading}" if heading else "Consent sheet: what this job discloses, and to whom"
    statements = [
        *_risk_statements(job, roles, facts),
        ("model", f"{job.model.name}, on {job.family.title(job, roles)}"),
    ]
    statements += [("shares", text)] if (text := job.family.common_statements(job, roles, facts).get("shares")) else []
    statements += [("code", line) for line in code_lines(job)]
    if facts is not None:
        sizes = facts.shape
        measured = f" Its accuracy is measured on {sizes.held_out:,} other rows (the held-out rows)."
        columns = ", ".join(f"{name} {count}" for name, count in sizes.columns.items() if count)
        rows = f"The model is trained on {sizes.rows:,} rows.{measured if sizes.held_out else ''}"
        rows += " A row has the data of one id, for example of one person"
        statements += [("rows", rows), ("columns", columns)]
        decided = [f"{party.name}: {text}" for party in facts.parties if (text := decided_from_values(party.types))]
        statements += [("types", "\n".join(["decided from values:", *decided]))] if decided else []
    return SheetSection(title, (SheetBlock(tuple(statements)),))


def _risk_statements(job: Job, roles: Roles, facts: RunFacts | None) -> list[Statement]:
    """Return a statement on how much of one column of each party an attack read from scores of new rows."""
    if facts is None or not job.family.score_bits(job, facts.shape):
        return []
    requester = job.family.score_requester(job, roles.lead)
    owners = [name for name in facts.shape.information if name != requester]
    if not owners:
        return []
    shares = " and ".join(_readable_share(facts.shape.information[name], name) for name in owners)
    return [
        (
            "risk",
            f"When {requester} later asks for scores of people who were not in the training, these scores reveal a "
            f"part of the data of {' and '.join(owners)} about them. In a test on a sample of rows, {shares} could be "
            "computed from the scores. At 100% the value of each person would be known, at 0% nothing. This is an "
            "estimate, not a limit. The finished model is not known yet, and its scores can reveal more or less than "
            "this",
        )
    ]


def _readable_share(content: InformationContent, owner: str) -> str:
    """State how much of one column an attack read; the name of the column is known if its table is in this process."""
    column = f"the column {content.readable_column}" if content.readable_column else "one column"
    return f"{content.readable_share:.0%} of the variation in {column} of {owner}"


def code_lines(job: Job) -> list[str]:
    """Return a line with the package that the protocol family comes from, unless that is securevfl."""
    return (
        []
        if job.extension is None
        else [f"from the package {job.extension}, which is not part of securevfl; all parties have the same version"]
    )


def disclosure_sections(
    job: Job, roles: Roles, facts: RunFacts | None, before: Sequence[SheetSection]
) -> list[SheetSection]:
    """Return the sections on what each party learns in a run: the table of all outputs, and what follows from them.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        roles: the roles of all parties.
        facts: the facts of the run, if they are known.
        before: sections about earlier jobs, limits and leaks, which follow the table.

    Returns:
        The sections.
    """
    meanings = {
        name: [item for item in job.family.statements(job, roles, name, facts) if item[0] != LATER]
        for name in roles.parties
    }
    blocks = tuple(
        SheetBlock(tuple(without_repeated_words(items)), party_heading(roles, name))
        for name, items in meanings.items()
        if items
    )
    if facts is None:
        return [SheetSection("Who learns what", (*blocks, SheetBlock((("", SIZES_TEXT),)))), *before]
    texts = [learned_note(facts.outputs), SIZES_TEXT]
    texts += [_SCORES_NOTE] if job.family.score_bits(job, facts.shape) else []
    notes = SheetBlock(tuple(("", text) for text in texts))
    learned = SheetSection(LEARNED_TITLE, (notes,), learned_table(roles.parties, facts.outputs))
    return [learned, *_broken_protocol_sections(job, roles, facts), *before, *_consequences(blocks)]


def _consequences(blocks: tuple[SheetBlock, ...]) -> list[SheetSection]:
    """Return the section on what follows from the table, unless nothing does."""
    return [SheetSection("What else follows for a party", blocks)] if blocks else []


def _broken_protocol_sections(job: Job, roles: Roles, facts: RunFacts) -> list[SheetSection]:
    """Return a section for each party whose gain from a changed program the family can bound."""
    texts = {name: job.family.gain_of_deviation(job, roles, name, facts) for name in roles.parties}
    return [section(f"What {name} could learn if it breaks the protocol", text) for name, text in texts.items() if text]


def _later_statements(job: Job, roles: Roles, facts: RunFacts | None, name: str) -> list[Statement]:
    """Return statements on what a party learns or sends when scores of new rows are requested after the training."""
    texts = [text for word, text in job.family.statements(job, roles, name, facts) if word == LATER]
    is_requester = name == job.family.score_requester(job, roles.lead)
    share = _score_share(job, facts, name) if facts is not None and is_requester else ""
    if texts and share:
        texts[0], share = f"{texts[0]}. {share}", ""
    statements = [("learns", text) for text in texts] + tool_lines(job, roles, facts, name)
    return without_repeated_words([*statements, *([("scores", share)] if share else [])])


def _score_share(job: Job, facts: RunFacts, requester: str) -> str:
    """Compare the bits of a new row's scores with the information content of other parties' rows, if it is known."""
    bits, information = job.family.score_bits(job, facts.shape), facts.shape.information
    compared = [
        content.in_words(bits, facts.shape.outputs, name)
        for name, content in information.items()
        if name != requester and bits
    ]
    return " ".join(compared)


def without_repeated_words(statements: Sequence[Statement]) -> list[Statement]:
    """Replace the word that introduces a statement by "also" if the previous statement has the same word."""
    previous = ["", *(word for word, _ in statements)]
    return [
        ("also" if word == before else word, text) for before, (word, text) in zip(previous, statements, strict=False)
    ]


def nobody_section(job: Job, roles: Roles) -> SheetSection:
    """Return the section on values that nobody learns."""
    hidden = job.family.common_statements(job, roles, None).get("nobody")
    return section("What nobody learns", *([hidden] if hidden else []), _OTHERWISE)


def later_section(job: Job, roles: Roles, facts: RunFacts | None) -> SheetSection:
    """Return the section on questions after the training: scores of new rows, and what they reveal."""
    requester = job.family.score_requester(job, roles.lead)
    if not job.family.score_bits(job, None if facts is None else facts.shape):
        return section("Questions later", "None: this job permits no scores of new rows.")
    texts = (
        f"After the training, {requester} may ask for scores of people who were not in it. The other parties learn how "
        "many people it asks about, and which of them are in their tables. Their ledgers count both.",
        f"{requester} learns which of these people the others have in their tables.",
        f"Unless another party sets a limit, {requester} may ask about any number of people. "
        "`securevfl ledger --limit scores=10000 --limit ids=10000` sets one.",
    )
    blocks = [
        SheetBlock(tuple(items), name)
        for name in roles.parties
        if (items := _later_statements(job, roles, facts, name))
    ]
    return SheetSection("Questions later", (SheetBlock(tuple(("", text) for text in texts)), *blocks))


def ledger_sections(
    forecasts: Mapping[str, LedgerForecast], trusted: Mapping[str, Sequence[str]]
) -> list[SheetSection]:
    """Return the section on earlier jobs and limits, one for each ledger that counts for the job.

    Args:
        forecasts: the forecast from the ledger of each party.
        trusted: the peers that each ledger trusts.

    Returns:
        The sections.
    """
    sections = []
    for name, forecast in forecasts.items():
        rows = tuple((item.receiver, item.before, item.after, item.limit or "none") for item in forecast.rows)
        table = SheetTable(("To", "So far", "With this job", "Your limit"), rows, flexible=1) if rows else None
        texts = [*forecast.notes]
        if not rows:
            texts.append(f"The training discloses nothing about the table of {name}, so no limit applies to it.")
        if trusted[name]:
            texts.append(
                f"{name} trusts {', '.join(trusted[name])} to ask only the same equations again in jobs with equal "
                "batches and columns."
            )
        blocks = (SheetBlock(tuple(("", text) for text in texts)),) if texts else ()
        sections.append(SheetSection(f"So far and your limits, by the disclosure ledger of {name}", blocks, table))
    return sections


def party_heading(roles: Roles, name: str) -> str:
    """Return a party's name with its role."""
    role = roles.role(name)
    return f"{name} ({role}{', holds the labels' if role == ACTIVE and roles.with_role(ACTIVE) == (name,) else ''})"
