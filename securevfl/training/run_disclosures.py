"""The disclosures of a run as a table: which party learned which values, about whom, how many and how much."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.outputs import Output
from securevfl.display import html

HEADS = "party", "learned", "from", "how often", "numbers", "share at most"

SHARE_NOTE = (
    "The amounts are those of the complete run, as in the consent sheet. The share compares what the party learned "
    "with what would reveal all labels or columns that it is about; a dash: unknown here, or no bound. Every party "
    "also learns the numbers of rows, columns and rounds. Values that a party computes from others have no numbers "
    "here. The ledger records the disclosures of all runs: securevfl ledger --party NAME."
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
    receivers = [*dict.fromkeys([*parties, *(output.receiver for output in outputs)])]
    rows: list[list[html.Cell]] = []
    for name in receivers:
        received = [output for output in outputs if output.receiver == name]
        if not received:
            rows.append([name, "nothing but sizes", "", "", "", ""])
        rows += [[name if index == 0 else "", *_cells(output)] for index, output in enumerate(received)]
    table = html.table(HEADS, rows, figures=(4, 5), stacked=True)
    return f"{table}<p class='soft'>{html.escape(SHARE_NOTE)}</p>"


def _cells(output: Output) -> list[html.Cell]:
    times = "once" if output.times == 1 else f"{output.times:,} times"
    rows = f", {output.rows:,} rows" if output.rows else ""
    numbers = f"{output.numbers:,} of {output.bits} bits" if output.numbers else ""
    return [output.name, output.source, f"{times} ({output.occasion}){rows}", numbers, output.share]
