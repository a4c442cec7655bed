"""The leak of columns: when numbers about each row span the columns behind them.

From as many numbers a row as columns on, what a party receives spans these columns. Far fewer are enough where
columns go together or have few values (`securevfl.disclosure.column_recovery`), so a job is refused from half of
them on,
and a party that has the table at hand, as each has its own, refuses as soon as the numbers are enough for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securevfl.disclosure.counts import SUM_GROUPS, Disclosure, RunShape, earlier_share
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.optim.defaults import why_sealed
from securevfl.options import JobOptions

COLUMNS = LeakKind(
    "columns",
    "numbers about each row, from half as many as columns on, or as many as are enough for the table at hand",
    "fewer epochs and evaluations, a sum of more parties, or shares",
    ("column_space", "binary_columns", "score_columns", "score_bits"),
)


def column_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """One line for each learner and set of columns that are added up, of the rows that most is told about."""
    most: dict[tuple[str, tuple[str, ...]], Disclosure] = {}
    for own in sorted(counts, key=lambda item: item.count):
        if own.kind == "columns" and own.group not in SUM_GROUPS:
            most[own.learner, own.about] = own
    for own in most.values():
        told = own.count + round(earlier_share(own, before) * own.capacity)
        if told < sizes.recovery_threshold(own.about):
            continue
        whose = f"{own.capacity} columns of {', '.join(own.about)}" + (" together" if len(own.about) > 1 else "")
        span = "span" if told >= own.capacity else "are enough to find most of"
        yield Leak(
            COLUMNS,
            own.learner,
            f"it receives {told} numbers about each row, which {span} the {whose}: values that repeat can be read, and "
            "some known rows give all others",
            _fewer(job, sizes, own),
        )


def _fewer(job: JobOptions, sizes: RunShape, own: Disclosure) -> str:
    """Say what would make the numbers too few, of what there is."""
    if own.learner in sizes.helpers:
        return 'let it store payloads that are masked (stored = "masks")'
    choices = ['protocol = "shares", which tells nobody columns'] if not why_sealed(job.model) else []
    if own.learner != sizes.active:
        choices += ["fewer epochs"] if sizes.epochs > 1 else []
        use = f"use {', or '.join(choices or ['larger tables of columns'])}"
        return use if job.protocol.residual is None else f"seal the residual, or {use}"
    choices += ["fewer epochs"] if sizes.epochs > 1 else []
    choices += ["fewer evaluations"] if job.evaluation_interval else []
    hides = job.protocol.sum_for(len(sizes.passives)).hides_parts
    if not hides and len(sizes.passives) > 1:
        choices.append('a sum that hides single parts (sum = "pairwise")')
    return f"use {', or '.join([*choices, 'larger tables of columns, of more parties'])}"
