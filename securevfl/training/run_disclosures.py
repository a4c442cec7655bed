"""The disclosures of a run in its report: the table of the consent sheet, and notes that explain it.

A *consent sheet* states what a run would disclose; each party agrees to its sheet before the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.consent.learned_table import SIZES_TEXT, learned_note, learned_table
from securevfl.disclosure.outputs import Output
from securevfl.display import html

REPORT_NOTE = (
    "The amounts are those of the complete run, as in the consent sheet. {meanings} {sizes} The ledger records the "
    "disclosures of all runs: securevfl ledger --party NAME."
)

NOT_STORED = (
    "Model files do not store what a run disclosed. Each party's ledger records it: securevfl ledger --party NAME."
)


def learned(parties: Sequence[str], outputs: Sequence[Output]) -> str:
    """Return a table of what each party learned, and a note that explains its columns.

    Args:
        parties: names of the parties of the run, in the order of the table.
        outputs: the disclosures of the run.

    Returns:
        The table and the note as HTML.
    """
    table = learned_table(parties, outputs)
    cells = html.table(table.heads, table.rows, figures=table.right, stacked=True)
    note = REPORT_NOTE.format(meanings=learned_note(outputs), sizes=SIZES_TEXT)
    return f"{cells}<p class='soft'>{html.escape(note)}</p>"
