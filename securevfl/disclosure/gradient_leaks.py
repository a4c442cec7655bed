"""Leaks of opened gradients: as many equations as residuals determine the residuals, and so the labels.

*Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g determines
the labels. (rank(J) <= min(p, n c), so a rank of n c needs p >= n c.) A neural network quickly has as many parameters.
Remedies are larger batches, or a network that its owner trains without labels and whose outputs are columns of a linear
model (docs/neural.md); this opens only what the linear model opens.

*Fresh equations.* With one fixed partition into batches, a linear model's equations are the same every epoch. Rows
reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
recover labels to an AUC of 0.98 in 40 epochs. A Jacobian that changes gives other equations in every local step; such a
job is refused from n c equations per run on. Jobs with other batches or columns on the same table add equations too.

*Bins.* Weights of evidence disclose to a party how many rows of each of its bins are of the positive class. These
counts are bits about the labels of all rows, and their shares add up with those of the equations
(`securevfl.disclosure.label_bits`). If columns nearly repeat each other, bins differ by one row and reveal its label;
the party itself can see this.

*Label AUC.* A job may set `max_label_auc`, the largest AUC to which columns of noise may rank labels through opened
gradients (`securevfl.disclosure.label_auc`). Larger batches hide more, so the limit is a smallest batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from securevfl.base.roles import PASSIVE
from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.counts import BIT_GROUPS, Disclosure, RunShape, earlier_share
from securevfl.disclosure.label_auc import expected_label_auc, smallest_batch
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.options import JobOptions

RANK = LeakKind(
    "rank",
    "the values opened to a party are as many equations as there are residuals of a batch, or labels",
    "larger batches, fewer columns, or fewer opened values",
    ("batch_inversion",),
)
FRESH_EQUATIONS = LeakKind(
    "fresh_equations",
    "a run, or several, open different equations about the same labels, which add up",
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
    job: JobOptions, counts: Sequence[Disclosure], before: Sequence[Disclosure]
) -> Iterator[tuple[str, float, float]]:
    """Yield what passive parties learn about labels in addition to their gradients.

    Args:
        job: the job.
        counts: what it discloses.
        before: what earlier jobs have disclosed.

    Yields:
        The party, the share of the labels that counts in its bins disclose, and the share of earlier jobs.
    """
    if job.protocol.seals:
        about_labels = [disclosure for disclosure in counts if disclosure.kind == "labels"]
        for disclosure in about_labels:
            if disclosure.group not in BIT_GROUPS:
                same_learner = [item for item in about_labels if item.learner == disclosure.learner]
                bins = sum(item.share for item in same_learner if item.group == "bins")
                yield disclosure.learner, bins, earlier_share(disclosure, before, same_learner)


def equation_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the leaks of passive parties whose opened gradients are as many equations as there are labels.

    Args:
        job: the job.
        counts: what it discloses.
        sizes: the sizes of its run.
        before: what earlier jobs, and earlier sessions of this run, have disclosed about the same tables.

    Yields:
        The leaks, by party.
    """
    asked_before = []
    jobs = [item for item in before if item.visits is None]
    other_jobs = {name: share for name, _, share in _label_shares(job, counts, jobs)}
    for name, bins, share in _label_shares(job, counts, before):
        p = sizes.parameters[name]
        rows = p // sizes.outputs
        if p + (bins + share) * sizes.residuals >= sizes.residuals:
            yield Leak(
                RANK,
                name,
                f"its opened gradient has {p} parameters for {sizes.residuals} residuals per batch"
                f"{_with_earlier(sizes, bins, share)}, which determines every residual and so the labels",
                _fewer_equations(job, rows, bins, share),
            )
        elif job.equations_change and job.equations * p >= sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"{_why_equations_change(job)}, so its {p} parameters give {job.equations * p} equations in a run "
                f"about the {sizes.residuals} residuals of a batch, at least as many as there are residuals",
                f"use fewer epochs or local steps, or {_larger_batches(job, job.equations * rows)}",
            )
        if other_jobs[name]:
            asked_before.append(name)
        elif share and p + share * sizes.residuals >= MAX_NUMBERS_PER_COLUMN * sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"the run was resumed so often that up to {p + ceil(share * sizes.residuals)} equations about the "
                f"{sizes.residuals} residuals of a batch may have been opened",
                "write checkpoints more often (--checkpoint-every), or state in the ledger of the party with labels "
                "that it trusts this party (--trust)",
            )
        if sizes.singled_out.get(name):
            yield Leak(
                RANK,
                name,
                f"counts in the bins of its columns together single out {sizes.singled_out[name]} rows, so that it can "
                "label them",
                "use fewer bins (prepare.woe), or leave out columns that nearly repeat others",
            )
    if job.reshuffle and job.protocol.seals:
        yield Leak(
            FRESH_EQUATIONS,
            ", ".join(sizes.passives),
            "rows reshuffled every epoch give each passive party new equations about the labels every epoch",
            "use reshuffle = false, one fixed partition into batches",
        )
    if asked_before:
        yield Leak(
            FRESH_EQUATIONS,
            ", ".join(asked_before),
            "earlier jobs on this table asked other equations about the same labels, and they add up",
            "use the same batches and columns as before",
        )


def _with_earlier(sizes: RunShape, bins: float, share: float) -> str:
    """Return the equations that counts in bins and earlier jobs add, as text."""
    text = f", counts in its bins as much as {ceil(bins * sizes.residuals)} more" if bins else ""
    return text + (f" and earlier jobs {ceil(share * sizes.residuals)} more equations" if share else "")


def _why_equations_change(job: JobOptions) -> str:
    return "rows are weighted again in every step" if job.model.static_jacobian else "its Jacobian changes"


def _fewer_equations(job: JobOptions, rows: int, bins: float, share: float) -> str:
    """Return what keeps equations, counts in bins and earlier jobs together from determining labels."""
    if share:
        return "use the same batches and columns as before, which ask the same equations again"
    return f"{_larger_batches(job, rows)} and fewer bins (prepare.woe)" if bins else _larger_batches(job, rows)


def _larger_batches(job: JobOptions, rows: int) -> str:
    """Return what keeps opened gradients of `rows` parameters per output from determining residuals."""
    remedy = f"use batch_size > {rows} (more rows a batch than parameters for each output)"
    if job.model.static_jacobian:
        return remedy if not job.equations_change else f"{remedy}, or count all rows in full (xi left out)"
    return f"{remedy}, or a network that its owner trains without labels, its outputs as columns of a linear model"


def label_auc_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the leaks of passive parties that would rank labels better than the job's `max_label_auc`.

    Args:
        job: the job.
        counts: what it discloses.
        sizes: the sizes of its run.
        before: what earlier jobs have disclosed about the same tables.

    Yields:
        The leaks, by party.
    """
    limit, residual, c = job.max_label_auc, job.protocol.residual, sizes.outputs
    if limit is None or residual is None:
        return
    if not residual.seals:
        reveals_labels = any(item.receiver == PASSIVE and item.reveals.kind == "plain" for item in residual.declares())
        what = f"an {residual.name} residual reveals the labels, the job allows an AUC of {limit:g}"
        if reveals_labels:
            yield Leak(LABEL_AUC, ", ".join(sizes.passives), what, "seal the residual")
        return
    for name, bins, share in _label_shares(job, counts, before):
        p = sizes.parameters[name]
        equations = min(sizes.residuals, p + ceil((bins + share) * sizes.residuals))
        auc = expected_label_auc(equations, sizes.smallest_batch, c, job.equations, job.equations > 1)
        if auc <= limit:
            continue
        needed = smallest_batch(p, c, job.equations, job.equations > 1, limit)
        if share:
            remedy = "raise the limit: earlier jobs have disclosed a part of the labels"
        elif bins:
            remedy = "raise the limit, or use fewer bins (prepare.woe) or none"
        elif needed > sizes.rows:
            remedy = f"raise the limit or drop columns: batches of {needed} rows are needed, and there are {sizes.rows}"
        else:
            remedy = f"use batch_size >= {-(-sizes.rows // (sizes.rows // needed))}"
        what = (
            f"its opened gradients would rank labels to an AUC of {auc:.3f} from columns of noise, the limit is "
            f"{limit:g}"
        )
        yield Leak(LABEL_AUC, name, what, remedy)
