"""Leaks that a job must name before it may have them. They are counted by `securevfl.disclosure.counts`.

*Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g the
labels. (rank(J) <= min(p, n c), so a rank that reaches n c needs p >= n c.)

A network soon has as many: there are larger batches, or a bottom trained by its owner without labels under a linear
model (`securevfl.LocalBottom`), which opens what the linear model opens.

*Fresh equations.* With one fixed partition into batches a linear model's equations are the same every epoch. Rows
reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
recover labels to AUC .98 in 40 epochs. A Jacobian that moves brings others in every local step; they are refused from
n c on in a run. Jobs with other batches or columns on the same table do the same.

*Bins.* Weights of evidence tell a party how many rows of each of its bins are of the later class. These counts are
bits about the labels of all rows, which add up with the equations by their shares (`securevfl.disclosure.label_bits`);
where columns nearly repeat each other, bins differ by one row and name its label, which the party itself sees.

*Label AUC.* A job may set `max_label_auc`: what columns of noise may tell of the labels through opened gradients
(`securevfl.disclosure.label_auc`). Larger batches hide more, so the limit is a smallest batch size.

*Columns.* From as many numbers a row as columns on, what a party receives spans these columns. Far fewer are enough
where columns go together or have few values (`securevfl.disclosure.exposure`), so a job is refused from half of them
on, and a party that has the table at hand, as each has its own, refuses as soon as the numbers are enough for it.

*Sequential.* Where parties take their steps in turn, two consecutive sums differ by one party's part alone.

*Single passive.* A sum that hides its parts hides nothing when there is one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import get_args

from securevfl.disclosure.counts import Disclosure, Sizes, earlier
from securevfl.errors import LeakageError
from securevfl.job import Job
from securevfl.options import LeakName
from securevfl.roles import PASSIVE

LEAKS: tuple[str, ...] = get_args(LeakName)


@dataclass(frozen=True)
class Leak:
    """One leak of a job as it stands."""

    name: LeakName
    who: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f'{self.who}: {self.what}; {self.remedy}, or accept it with accepts = ["{self.name}"]'


def leaks(job: Job, sizes: Sizes, before: Sequence[Disclosure] = ()) -> list[Leak]:
    """What this job gives away beyond its protocol's declaration.

    `before` is what earlier jobs have disclosed about the same tables; it counts as if it were part of this job.
    """
    return [
        *_single(job, sizes),
        *_equations(job, sizes, before),
        *_label_auc(job, sizes, before),
        *_columns(job, sizes, before),
        *_sequential(job, sizes),
    ]


def guard(job: Job, sizes: Sizes, before: Sequence[Disclosure] = ()) -> None:
    """LeakageError, one line a leak, unless the job accepts each by name."""
    refused = [leak for leak in leaks(job, sizes, before) if leak.name not in job.accepts]
    if refused:
        raise LeakageError("\n".join(map(str, refused)))


def _single(job: Job, sizes: Sizes) -> Iterator[Leak]:
    chosen = job.protocol.sum_for(len(sizes.passives))
    if len(sizes.passives) == 1 and chosen.hides_parts:
        yield Leak(
            "single_passive",
            sizes.passives[0],
            f"a {chosen.name} sum of one passive party's outputs is that party's outputs, so it protects nothing",
            'use sum = "direct" (or "auto"), which says so',
        )


def _opened(job: Job, sizes: Sizes, before: Sequence[Disclosure]) -> Iterator[tuple[str, float, float]]:
    """Each passive party, and which shares of the labels counts in its bins and earlier jobs tell it beside its
    gradients."""
    if job.protocol.seals:
        told = [own for own in job.method.counts(job, sizes) if own.kind == "labels"]
        for own in told:
            if own.group != "bins":
                beside = [each for each in told if each.learner == own.learner]
                bins = sum(each.share for each in beside if each.group == "bins")
                yield own.learner, bins, earlier(own, before, beside)


def _equations(job: Job, sizes: Sizes, before: Sequence[Disclosure]) -> Iterator[Leak]:
    again = []
    for name, bins, share in _opened(job, sizes, before):
        p = sizes.parameters[name]
        rows = p // sizes.outputs
        if p + (bins + share) * sizes.residuals >= sizes.residuals:
            with_earlier = f", counts in its bins as much as {ceil(bins * sizes.residuals)} more" if bins else ""
            with_earlier += f" and earlier jobs {ceil(share * sizes.residuals)} more equations" if share else ""
            yield Leak(
                "rank",
                name,
                f"its opened gradient has {p} parameters for {sizes.residuals} residuals a batch{with_earlier}, "
                "which determines every residual and so the labels",
                _fewer_equations(job, rows, bins, share),
            )
        elif job.moves and job.equations * p >= sizes.residuals:
            yield Leak(
                "fresh_equations",
                name,
                f"{_why(job)}, so its {p} parameters give {job.equations * p} equations in a run about the "
                f"{sizes.residuals} residuals of a batch, as many as there are or more",
                f"use fewer epochs or local steps, or {_larger(job, job.equations * rows)}",
            )
        if share:
            again.append(name)
        if sizes.alone.get(name):
            yield Leak(
                "rank",
                name,
                f"counts in the bins of its columns together single out {sizes.alone[name]} rows, which are then its "
                "to label",
                "use fewer bins (prepare.woe), or leave out columns that nearly repeat others",
            )
    if job.reshuffle and job.protocol.seals:
        yield Leak(
            "fresh_equations",
            ", ".join(sizes.passives),
            "rows reshuffled every epoch give each passive party new equations about the labels every epoch",
            "use reshuffle = false, one fixed partition into batches",
        )
    if again:
        yield Leak(
            "fresh_equations",
            ", ".join(again),
            "earlier jobs on this table asked other equations about the same labels, and they add up",
            "use the same batches and columns as before",
        )


def _why(job: Job) -> str:
    return "rows are weighed anew" if job.model.static_jacobian else "its Jacobian moves"


def _fewer_equations(job: Job, rows: int, bins: float, share: float) -> str:
    """What keeps equations, and counts in bins and earlier jobs beside them, from determining labels."""
    if share:
        return "use the same batches and columns as before, which ask the same equations again"
    return f"{_larger(job, rows)} and fewer bins (prepare.woe)" if bins else _larger(job, rows)


def _larger(job: Job, rows: int) -> str:
    """What keeps opened gradients of so many parameters for each output from determining residuals."""
    remedy = f"use batch_size > {rows} (more rows a batch than parameters for each output)"
    if job.model.static_jacobian:
        return remedy if not job.moves else f"{remedy}, or count all rows in full (xi left out)"
    return f"{remedy}, or a bottom that its owner trains without labels (LocalBottom) under a linear model"


def _label_auc(job: Job, sizes: Sizes, before: Sequence[Disclosure]) -> Iterator[Leak]:
    """The passive parties that would learn more of the labels than the job allows."""
    from securevfl.disclosure.label_auc import expected_label_auc, smallest_batch

    limit, residual, c = job.max_label_auc, job.protocol.residual, sizes.outputs
    if limit is None or residual is None:
        return
    if not residual.seals:
        shown = any(item.receiver == PASSIVE and item.reveals.kind == "plain" for item in residual.declares())
        what = f"an {residual.name} residual shows the labels, the job allows an AUC of {limit:g}"
        if shown:
            yield Leak("label_auc", ", ".join(sizes.passives), what, "seal the residual")
        return
    for name, bins, share in _opened(job, sizes, before):
        p = sizes.parameters[name]
        equations = min(sizes.residuals, p + ceil((bins + share) * sizes.residuals))
        auc = expected_label_auc(equations, sizes.smallest_batch, c, job.equations, job.equations > 1)
        if auc <= limit:
            continue
        needed = smallest_batch(p, c, job.equations, job.equations > 1, limit)
        if share:
            remedy = "raise the limit: earlier jobs have told a part of it"
        elif bins:
            remedy = "raise the limit, or use fewer bins (prepare.woe) or none"
        elif needed > sizes.rows:
            remedy = f"raise the limit or drop columns: it would take batches of {needed} rows and there are "
            remedy += str(sizes.rows)
        else:
            remedy = f"use batch_size >= {-(-sizes.rows // (sizes.rows // needed))}"
        what = f"its opened gradients tell labels to an AUC of {auc:.3f} from columns of noise, allowed is {limit:g}"
        yield Leak("label_auc", name, what, remedy)


def _columns(job: Job, sizes: Sizes, before: Sequence[Disclosure]) -> Iterator[Leak]:
    """One line for each learner and set of columns that are added up, of the rows that most is told about."""
    most: dict[tuple[str, tuple[str, ...]], Disclosure] = {}
    for own in sorted(job.method.counts(job, sizes), key=lambda item: item.count):
        if own.kind == "columns":
            most[own.learner, own.about] = own
    for own in most.values():
        told = own.count + round(earlier(own, before) * own.of)
        if told < sizes.enough_for(own.about):
            continue
        whose = f"{own.of} columns of {', '.join(own.about)}" + (" together" if len(own.about) > 1 else "")
        span = "span" if told >= own.of else "are enough to find most of"
        yield Leak(
            "columns",
            own.learner,
            f"it receives {told} numbers about each row, which {span} the {whose}: values that repeat can be read, and "
            "some known rows give all others",
            _fewer(job, sizes, own),
        )


def _fewer(job: Job, sizes: Sizes, own: Disclosure) -> str:
    """What would make the numbers too few, of what there is."""
    if own.learner in sizes.helpers:
        return 'let it store payloads that are masked or encrypted (stored = "masks" or an engine)'
    if own.learner != sizes.active:
        return "use fewer epochs" if job.protocol.residual is None else "seal the residual"
    choices = ["fewer epochs", "fewer evaluations"] if job.evaluation_interval else ["fewer epochs"]
    hides = job.protocol.sum_for(len(sizes.passives)).hides_parts
    if not hides and len(sizes.passives) > 1:
        choices.append('a sum that hides single parts (sum = "pairwise")')
    return f"use {', '.join(choices)} or larger tables of columns, of more parties"


def _sequential(job: Job, sizes: Sizes) -> Iterator[Leak]:
    passives = sizes.passives
    if len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts and job.optimizer.exchanges(passives) > 1:
        yield Leak(
            "sequential",
            sizes.active,
            "one passive party moves between two sums, so their difference is that party's part, which no sum hides",
            'use mode = "parallel", in which all parts move at once',
        )
