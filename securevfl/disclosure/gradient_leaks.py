"""Leaks of opened gradients: when they are as many equations as there are residuals, and so labels.

*Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g the
labels. (rank(J) <= min(p, n c), so a rank that reaches n c needs p >= n c.)

A network soon has as many: there are larger batches, or outputs of a network that its owner trains without labels, as
columns of a linear model (docs/neural.md), which opens what the linear model opens.

*Fresh equations.* With one fixed partition into batches a linear model's equations are the same every epoch. Rows
reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
recover labels to AUC .98 in 40 epochs. A Jacobian that moves brings others in every local step; they are refused from
n c on in a run. Jobs with other batches or columns on the same table do the same.

*Bins.* Weights of evidence tell a party how many rows of each of its bins are of the positive class. These counts are
bits about the labels of all rows, which add up with the equations by their shares
(`securevfl.disclosure.column_recovery`); where columns nearly repeat each other, bins differ by one row and name its
label, which the party itself sees.

*Label AUC.* A job may set `max_label_auc`: what columns of noise may tell of the labels through opened gradients
(`securevfl.disclosure.column_recovery`). Larger batches hide more, so the limit is a smallest batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from securevfl.base.roles import PASSIVE
from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.counts import Disclosure, RunShape, earlier_share
from securevfl.disclosure.label_auc import expected_label_auc, smallest_batch
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.options import JobOptions

RANK = LeakKind(
    "rank",
    "what is opened to a party is as many equations as there are residuals of a batch, or labels",
    "larger batches, fewer columns, or less that is opened",
    ("batch_inversion",),
)

FRESH_EQUATIONS = LeakKind(
    "fresh_equations",
    "a run, or several, open other equations about the same labels, which add up",
    "reshuffle = false, and the same batches and columns as before",
    ("cross_round",),
)

LABEL_AUC = LeakKind(
    "label_auc",
    "opened gradients of columns of noise rank labels above the job's max_label_auc",
    "larger batches, or a higher limit",
    ("residual_sign", "batch_inversion", "cross_round"),
)


def _label_shares(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[tuple[str, float, float]]:
    """Each passive party, and which shares of the labels counts in its bins and earlier jobs tell it beside its
    gradients."""
    if job.protocol.seals:
        told = [own for own in counts if own.kind == "labels"]
        for own in told:
            if own.group != "bins":
                beside = [each for each in told if each.learner == own.learner]
                bins = sum(each.share for each in beside if each.group == "bins")
                yield own.learner, bins, earlier_share(own, before, beside)


def equation_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the passive parties to whom opened gradients are as many equations as there are labels."""
    again = []
    jobs = [item for item in before if item.visits is None]
    other_jobs = {name: share for name, _, share in _label_shares(job, counts, sizes, jobs)}
    for name, bins, share in _label_shares(job, counts, sizes, before):
        p = sizes.parameters[name]
        rows = p // sizes.outputs
        if p + (bins + share) * sizes.residuals >= sizes.residuals:
            with_earlier = f", counts in its bins as much as {ceil(bins * sizes.residuals)} more" if bins else ""
            with_earlier += f" and earlier jobs {ceil(share * sizes.residuals)} more equations" if share else ""
            yield Leak(
                RANK,
                name,
                f"its opened gradient has {p} parameters for {sizes.residuals} residuals a batch{with_earlier}, "
                "which determines every residual and so the labels",
                _fewer_equations(job, rows, bins, share),
            )
        elif job.equations_change and job.equations * p >= sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"{_why(job)}, so its {p} parameters give {job.equations * p} equations in a run about the "
                f"{sizes.residuals} residuals of a batch, as many as there are or more",
                f"use fewer epochs or local steps, or {_larger(job, job.equations * rows)}",
            )
        if other_jobs[name]:
            again.append(name)
        elif share and p + share * sizes.residuals >= MAX_NUMBERS_PER_COLUMN * sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"the run was taken up so often that up to {p + ceil(share * sizes.residuals)} equations about the "
                f"{sizes.residuals} residuals of a batch have been opened, for all the party with labels knows",
                "keep states more often (--checkpoint-every), or write in its ledger that it trusts this party (--trust)",
            )
        if sizes.singled_out.get(name):
            yield Leak(
                RANK,
                name,
                f"counts in the bins of its columns together single out {sizes.singled_out[name]} rows, which are "
                f"then its "
                "to label",
                "use fewer bins (prepare.woe), or leave out columns that nearly repeat others",
            )
    if job.reshuffle and job.protocol.seals:
        yield Leak(
            FRESH_EQUATIONS,
            ", ".join(sizes.passives),
            "rows reshuffled every epoch give each passive party new equations about the labels every epoch",
            "use reshuffle = false, one fixed partition into batches",
        )
    if again:
        yield Leak(
            FRESH_EQUATIONS,
            ", ".join(again),
            "earlier jobs on this table asked other equations about the same labels, and they add up",
            "use the same batches and columns as before",
        )


def _why(job: JobOptions) -> str:
    return "rows are weighed anew" if job.model.static_jacobian else "its Jacobian moves"


def _fewer_equations(job: JobOptions, rows: int, bins: float, share: float) -> str:
    """Say what keeps equations, and counts in bins and earlier jobs beside them, from determining labels."""
    if share:
        return "use the same batches and columns as before, which ask the same equations again"
    return f"{_larger(job, rows)} and fewer bins (prepare.woe)" if bins else _larger(job, rows)


def _larger(job: JobOptions, rows: int) -> str:
    """Say what keeps opened gradients of so many parameters for each output from determining residuals."""
    remedy = f"use batch_size > {rows} (more rows a batch than parameters for each output)"
    if job.model.static_jacobian:
        return remedy if not job.equations_change else f"{remedy}, or count all rows in full (xi left out)"
    return f"{remedy}, or a network that its owner trains without labels, its outputs as columns of a linear model"


def label_auc_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the passive parties that would learn more of the labels than the job allows."""
    limit, residual, c = job.max_label_auc, job.protocol.residual, sizes.outputs
    if limit is None or residual is None:
        return
    if not residual.seals:
        shown = any(item.receiver == PASSIVE and item.reveals.kind == "plain" for item in residual.declares())
        what = f"an {residual.name} residual shows the labels, the job allows an AUC of {limit:g}"
        if shown:
            yield Leak(LABEL_AUC, ", ".join(sizes.passives), what, "seal the residual")
        return
    for name, bins, share in _label_shares(job, counts, sizes, before):
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
        yield Leak(LABEL_AUC, name, what, remedy)
