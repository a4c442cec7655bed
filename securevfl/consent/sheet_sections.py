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
from securevfl.families.facts import RunFacts
from securevfl.job import Job

ASSUMPTIONS = (
    "Every party follows the protocol, but may study everything that it receives (semi-honest). Certificates identify "
    "the parties. If a party breaks the protocol in a way that this sheet does not describe, it could learn more: "
    "SECURITY.md states what."
)
LATER = "later"
"""The word of statements about the scores of new rows, which a party may request after the training."""
_OTHERWISE = (
    "Nobody learns anything about a row that this sheet does not state. --details lists each message and what it "
    "reveals."
)
REFUSAL = (
    "Answer no. If your operator starts the program so that it asks no question, leave out --accept with the digest "
    "that is printed below this sheet. The others then know the number of your rows and columns, and whether the "
    "columns are those of your earlier jobs. From the alignment, which came before this sheet, they know which of "
    "their people are in your table.",
    "With `securevfl ledger --limit columns=5%` you set a limit: your program then refuses a job if all jobs together "
    "would disclose more than 5% of your columns.",
    "What was disclosed once cannot be recalled.",
)


def subject_section(job: Job, roles: Roles, facts: RunFacts | None, heading: str) -> SheetSection:
    """Return the first section: the sheet's title, the model, the method, and the rows and columns of the training."""
    title = f"Consent sheet {heading}" if heading else "Consent sheet: what this job discloses, and to whom"
    statements = [
        *_readable_shares(job, roles, facts),
        ("model", f"{job.model.name}, on {job.family.title(job, roles)}"),
    ]
    statements += [("shares", text)] if (text := job.family.common_statements(job, roles, facts).get("shares")) else []
    statements += [("code", line) for line in code_lines(job)]
    if facts is not None:
        sizes = facts.shape
        held_out = f"; {sizes.held_out:,} others measure it (they are held out)" if sizes.held_out else ""
        columns = ", ".join(f"{name} {count}" for name, count in sizes.columns.items() if count)
        rows = f"{sizes.rows:,} train it{held_out}. A row has the data of one id, for example of one person"
        statements += [("rows", rows), ("columns", columns)]
        decided = [f"{party.name}: {text}" for party in facts.parties if (text := decided_from_values(party.types))]
        statements += [("types", "\n".join(["decided from values:", *decided]))] if decided else []
    return SheetSection(title, (SheetBlock(tuple(statements)),))


def _readable_shares(job: Job, roles: Roles, facts: RunFacts | None) -> list[Statement]:
    """Return a statement on how much of one column of each party an attack read from scores of new rows."""
    if facts is None or not job.family.score_bits(job, facts.shape):
        return []
    requester = job.family.score_requester(job, roles.lead)
    shares = [
        f"{content.readable_share:.0%} of the variation in one column of {name}"
        for name, content in facts.shape.information.items()
        if name != requester
    ]
    if not shares:
        return []
    return [
        (
            "risk",
            f"scores of new rows reveal a part of other parties' columns to {requester}. In a test on a sample of "
            f"rows, {' and '.join(shares)} could be computed from the scores (100% would mean that the column can be "
            "read). This is an estimate before the training: the scores of the model can reveal more or less",
        )
    ]


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
    notes = SheetBlock((("", learned_note(facts.outputs)), ("", SIZES_TEXT)))
    learned = SheetSection(LEARNED_TITLE, (notes,), learned_table(roles.parties, facts.outputs))
    return [learned, *_broken_protocol_sections(job, roles, facts), *before, *_consequences(blocks)]


def _consequences(blocks: tuple[SheetBlock, ...]) -> list[SheetSection]:
    """Return the section on what follows from the table, unless nothing does."""
    return [SheetSection("What follows from the table of who learns what", blocks)] if blocks else []


def _broken_protocol_sections(job: Job, roles: Roles, facts: RunFacts) -> list[SheetSection]:
    """Return a section for each party whose gain from a changed program the family can bound."""
    texts = {name: job.family.gain_of_deviation(job, roles, name, facts) for name in roles.parties}
    return [section(f"What {name} could learn if it breaks the protocol", text) for name, text in texts.items() if text]


def _later_statements(job: Job, roles: Roles, facts: RunFacts | None, name: str) -> list[Statement]:
    """Return statements on what a party learns or sends when scores of new rows are requested after the training."""
    statements = [("learns", text) for word, text in job.family.statements(job, roles, name, facts) if word == LATER]
    statements += tool_lines(job, roles, facts, name)
    if facts is not None and name == job.family.score_requester(job, roles.lead):
        statements += [("scores", text) for text in _score_texts(job, facts, name)]
    return without_repeated_words(statements)


def _score_texts(job: Job, facts: RunFacts, requester: str) -> list[str]:
    """Compare the bits of a new row's scores with the information content of other parties' rows, if it is known."""
    bits, information = job.family.score_bits(job, facts.shape), facts.shape.information
    compared = [
        content.in_words(bits, facts.shape.outputs, name)
        for name, content in information.items()
        if name != requester and bits
    ]
    return [" ".join(compared)] if compared else []


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
    scores_notice = (
        f"{requester} may ask for scores of new rows. The other parties learn how many people it asks about, and which "
        "of them are in their tables. The ledger counts both. "
        f"{requester} learns which of these people the others have."
    )
    blocks = [
        SheetBlock(tuple(items), name)
        for name in roles.parties
        if (items := _later_statements(job, roles, facts, name))
    ]
    return SheetSection("Questions later", (SheetBlock((("", scores_notice),)), *blocks))


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
