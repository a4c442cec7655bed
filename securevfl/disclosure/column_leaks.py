"""The leak of columns: a party receives so many numbers about each row that it can recover other parties' columns.

A leak is a disclosure that a job must accept by name before it runs. In each *exchange* of a training, one party
collects the sum of all parties' model outputs, and so receives one number about each row (c numbers for c outputs). For
a linear model, each number is a linear combination of the other parties' d columns, with weights that the receiver does
not know. d different combinations span the same space as the columns, so that some known rows or repeated values reveal
the columns. Far fewer numbers are enough if columns are correlated or have few values
(`securevfl.disclosure.column_recovery`). The limit, called the threshold, is therefore d / 2 numbers per row. A party
that has the table at hand uses the number from which these particular columns can be recovered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securevfl.disclosure.counts import SUM_GROUPS, Disclosure, RunShape, earlier_share
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.optim.defaults import why_not_on_shares
from securevfl.options import JobOptions

COLUMN_RECOVERY = LeakKind(
    "columns",
    "a party receives at least d / 2 numbers about each row of d columns, or, if the checking party has that table, as "
    "many as are enough to recover its columns",
    "fewer epochs and evaluations, a sum of more parties, or shares",
    ("column_space", "binary_columns", "score_columns", "score_bits"),
)


def column_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield a leak for each party that receives enough numbers per row to recover other parties' columns.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        counts: the disclosures of the job to each party.
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables.

    Yields:
        One leak for each pair of a receiving party and a set of parties whose columns are summed. Training rows and
        held-out rows are counted separately; the leak names the more disclosed of the two.
    """
    largest: dict[tuple[str, tuple[str, ...]], Disclosure] = {}
    for disclosure in sorted(counts, key=lambda item: item.count):
        if disclosure.kind == "columns" and disclosure.group not in SUM_GROUPS:
            largest[disclosure.learner, disclosure.about] = disclosure
    for disclosure in largest.values():
        numbers = disclosure.count + round(earlier_share(disclosure, before) * disclosure.capacity)
        if numbers < sizes.recovery_threshold(disclosure.about):
            continue
        columns = f"{disclosure.capacity} columns of {', '.join(disclosure.about)}"
        columns += " together" if len(disclosure.about) > 1 else ""
        span = "span" if numbers >= disclosure.capacity else "are enough to find most of"
        yield Leak(
            COLUMN_RECOVERY,
            disclosure.learner,
            f"it receives {numbers} numbers about each row, which {span} the {columns}: repeated values can be read, "
            "and some known rows reveal all others",
            _remedy(job, sizes, disclosure),
        )


def _remedy(job: JobOptions, sizes: RunShape, disclosure: Disclosure) -> str:
    """Return the remedy for the error message: the changes of the job that would disclose fewer numbers per row."""
    if disclosure.learner in sizes.helpers:
        return 'let it store payloads that are masked (stored = "masks")'
    choices = ['protocol = "shares", which discloses no columns'] if not why_not_on_shares(job.model) else []
    if disclosure.learner != sizes.active:
        choices += ["fewer epochs"] if sizes.epochs > 1 else []
        use = f"use {', or '.join(choices or ['tables with more columns'])}"
        return use if job.protocol.residual is None else f"encrypt the residual, or {use}"
    choices += ["fewer epochs"] if sizes.epochs > 1 else []
    choices += ["fewer evaluations"] if job.evaluation_interval else []
    hides = job.protocol.sum_for(len(sizes.passives)).hides_parts
    if not hides and len(sizes.passives) > 1:
        choices.append('a sum that hides single parts (sum = "pairwise")')
    return f"use {', or '.join([*choices, 'tables with more columns, or more parties'])}"
