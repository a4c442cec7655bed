"""The table of who learns what in a complete run, with one row for each output that a party receives.

The consent sheet shows it before a run, and the report of a run shows the same table afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.consent.sheet_document import SheetTable
from securevfl.disclosure.outputs import Output

HEADS = ("Party", "Learns", "About", "Values", "Bits each", "Part of the data")
LEARNED_TITLE = "Who learns what, at most, during training and measurement"
LEARNED_NOTE = (
    "A value of 8 bits is one of 256 possible values. The last column states how much of the other party's data "
    "all values of the line reveal together."
)
ALL_NOTE = '"all" means everything.'
UNKNOWN_NOTE = (
    '"-" means that the values follow from other lines of this table, or that the part is unknown or has no bound.'
)
SIZES_TEXT = (
    "Every party learns how many rows, columns of each party, batches (groups of rows) and iterations (steps on one "
    "batch) the training has."
)
NOTHING_LEARNED = "nothing about any row"


def learned_note(outputs: Sequence[Output]) -> str:
    """Return the text below the table: the meaning of its columns, and the words of its rows that need a definition."""
    cells = {cell for output in outputs for cell in _cells(output)}
    symbols = [text for symbol, text in (("all", ALL_NOTE), ("-", UNKNOWN_NOTE)) if symbol in cells]
    explanations = dict.fromkeys(output.explanation for output in outputs if output.explanation)
    return " ".join([LEARNED_NOTE, *symbols, *explanations])


def learned_table(parties: Sequence[str], outputs: Sequence[Output]) -> SheetTable:
    """Return the table of all outputs of a run.

    Args:
        parties: names of the parties, in the order of the table.
        outputs: the disclosures of the run.

    Returns:
        The table. Parties that receive an output and are not among `parties` follow at its end.
    """
    rows = list[tuple[str, ...]]()
    for name in dict.fromkeys([*parties, *(output.receiver for output in outputs)]):
        received = [_cells(output) for output in outputs if output.receiver == name]
        rows += received or [(name, NOTHING_LEARNED, "", "", "", "")]
    return SheetTable(HEADS, tuple(rows), flexible=1, right=(4, 5), widest=10)


def _cells(output: Output) -> tuple[str, ...]:
    return (
        output.receiver,
        output.in_words,
        output.source,
        output.amount,
        str(output.bits) if output.numbers else "-",
        output.share,
    )
