"""The leak of columns: numbers about each row that span the columns behind them.

As many numbers per row as columns span these columns. Far fewer are enough if columns are correlated or have few values
(`securevfl.disclosure.column_recovery`). A job is therefore refused once it discloses d / 2 numbers per row, and a
party that can inspect the table itself refuses at the table's threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securevfl.disclosure.counts import SUM_GROUPS, Disclosure, RunShape, earlier_share
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.optim.defaults import why_not_on_shares
from securevfl.options import JobOptions

COLUMN_RECOVERY = LeakKind(
    "columns",
    "at least half as many numbers about each row as columns, or as many as recover the columns of the table at hand",
    "fewer epochs and evaluations, a sum of more parties, or shares",
    ("column_space", "binary_columns", "score_columns", "score_bits"),
)


def column_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the leaks of columns of a job.

    Args:
        job: the job.
        counts: what it discloses.
        sizes: the sizes of its run.
        before: what earlier jobs have disclosed about the same tables.

    Yields:
        A leak for each learner and set of summed columns, for the group of rows about which most is disclosed.
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
    """Return what would reduce the numbers of a disclosure, among the choices that the job has."""
    if disclosure.learner in sizes.helpers:
        return 'let it store payloads that are masked (stored = "masks")'
    choices = ['protocol = "shares", which discloses no columns'] if not why_not_on_shares(job.model) else []
    if disclosure.learner != sizes.active:
        choices += ["fewer epochs"] if sizes.epochs > 1 else []
        use = f"use {', or '.join(choices or ['larger tables of columns'])}"
        return use if job.protocol.residual is None else f"seal the residual, or {use}"
    choices += ["fewer epochs"] if sizes.epochs > 1 else []
    choices += ["fewer evaluations"] if job.evaluation_interval else []
    hides = job.protocol.sum_for(len(sizes.passives)).hides_parts
    if not hides and len(sizes.passives) > 1:
        choices.append('a sum that hides single parts (sum = "pairwise")')
    return f"use {', or '.join([*choices, 'larger tables of columns, of more parties'])}"
