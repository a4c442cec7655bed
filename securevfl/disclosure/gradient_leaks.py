"""Leaks of opened gradients: if a party receives as many equations as there are residuals, it can compute the labels.

A leak is a disclosure that a job must accept by name before it runs. The active party has the labels and computes the
*residuals* g (n, c) of a batch: the derivatives of the loss by the c outputs of n rows. A passive party has columns and
p parameters. It *opens* (learns) the gradient J^T g in each step: p linear equations about the n c residuals. J is the
derivative of its outputs by its parameters. Four facts are checked:
- *Rank*: if p >= n c, the gradient determines g and so the labels. Larger batches are the remedy.
- *Fresh equations*: reshuffled batches, or a J that changes, give new equations in every epoch or step, which add up.
- *Bins*: if a party replaces columns by weights of evidence, it learns the class count of each bin of a column, the
  number of positive labels in it. These counts disclose a share of the bits of all labels
  (`securevfl.disclosure.label_bits`), which is added to the share that the equations disclose.
- *Label AUC*: a job may set `max_label_auc`, a limit on how well gradients rank labels (`.label_auc`).
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
    "a party receives at least as many equations as there are residuals in a batch, or as many bits as all labels have",
    "larger batches, fewer columns, or fewer opened values",
    ("batch_inversion",),
)
FRESH_EQUATIONS = LeakKind(
    "fresh_equations",
    "one or several runs give a party different equations about the same labels, which add up",
    "reshuffle = false, and the same batches and columns as before",
    ("cross_round",),
)
LABEL_AUC = LeakKind(
    "label_auc",
    "the gradients that a party receives rank labels to an AUC above the job's max_label_auc, even if its columns are "
    "noise",
    "larger batches, or a higher limit",
    ("residual_sign", "batch_inversion", "cross_round"),
)


def _label_shares(
    job: JobOptions, counts: Sequence[Disclosure], before: Sequence[Disclosure]
) -> Iterator[tuple[str, float, float]]:
    """Yield for each passive party the shares of the labels that it learns otherwise than from this job's gradients.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        counts: the disclosures of the job to each party.
        before: disclosures of earlier jobs about the same tables.

    Yields:
        A party's name; the share of the labels that the class counts of its bins disclose; and the share that earlier
        jobs have disclosed to it.
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
    """Yield the leaks of passive parties that receive at least as many equations as there are residuals.

    If several leaks apply, all are yielded. So more equations never lead to fewer leaks.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        counts: the disclosures of the job to each party.
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs, and of earlier sessions of this run, about the same tables.

    Yields:
        The leaks, by party.
    """
    asked_before = []
    jobs = [item for item in before if item.steps is None]
    other_jobs = {name: share for name, _, share in _label_shares(job, counts, jobs)}
    for name, bins, share in _label_shares(job, counts, before):
        p = sizes.parameters[name]
        rows = p // sizes.outputs
        if p + (bins + share) * sizes.residuals >= sizes.residuals:
            yield Leak(
                RANK,
                name,
                f"its opened gradient has {p} parameters for {sizes.residuals} residuals per batch"
                f"{_with_earlier(sizes, bins, share)}, so it can compute every residual and from these the labels",
                _fewer_equations(job, rows, bins, share),
            )
        if job.equations_change and job.equations > 1 and job.equations * p >= sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"{_why_equations_change(job)}, so its {p} parameters give {job.equations * p} different equations in "
                f"a run about the {sizes.residuals} residuals of a batch, at least as many as there are residuals",
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
                f"the class counts of its bins together determine the labels of {sizes.singled_out[name]} single rows",
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
            "earlier jobs on this table disclosed other equations about the same labels, and all of them add up",
            "use the same batches and columns as before",
        )


def _with_earlier(sizes: RunShape, bins: float, share: float) -> str:
    """Return a phrase on how many equations the class counts of bins and earlier jobs add, for the text of a leak."""
    text = f", class counts of its bins are worth {ceil(bins * sizes.residuals)} more equations" if bins else ""
    return text + (f", and earlier jobs gave it {ceil(share * sizes.residuals)} more equations" if share else "")


def _why_equations_change(job: JobOptions) -> str:
    return "rows are weighted again in every step" if job.model.static_jacobian else "its Jacobian changes"


def _fewer_equations(job: JobOptions, rows: int, bins: float, share: float) -> str:
    """Return the remedy if gradients, class counts of bins and earlier jobs together determine the labels."""
    if share:
        return "use the same batches and columns as before, which give the same equations again"
    return f"{_larger_batches(job, rows)} and fewer bins (prepare.woe)" if bins else _larger_batches(job, rows)


def _larger_batches(job: JobOptions, rows: int) -> str:
    """Return the remedy if a gradient determines the residuals of a batch of `rows` rows, so that larger ones help."""
    remedy = f"use batch_size > {rows}, so that a batch has more rows than the party has parameters for each output"
    if job.model.static_jacobian:
        return f"{remedy}, or leave out xi, so that all rows have the same weight" if job.equations_change else remedy
    return f"{remedy}, or train the network without labels, and use its outputs as columns of a linear model"


def label_auc_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the leaks of passive parties that could rank labels to a higher AUC than the job's `max_label_auc`.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        counts: the disclosures of the job to each party.
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables.

    Yields:
        The leaks, by party.
    """
    limit, residual, c = job.max_label_auc, job.protocol.residual, sizes.outputs
    if limit is None or residual is None:
        return
    if not residual.seals:
        reveals_labels = any(item.receiver == PASSIVE and item.reveals.kind == "plain" for item in residual.declares())
        what = f"an {residual.name} residual reveals the labels, but max_label_auc allows an AUC of {limit:g}"
        if reveals_labels:
            yield Leak(LABEL_AUC, ", ".join(sizes.passives), what, 'encrypt the residual (residual = "ckks")')
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
            remedy = "raise the limit, or use fewer bins or no bins (prepare.woe)"
        elif needed > sizes.rows:
            remedy = f"raise the limit or drop columns: batches of {needed} rows are needed, and there are {sizes.rows}"
        else:
            remedy = f"use batch_size >= {-(-sizes.rows // (sizes.rows // needed))}"
        what = (
            f"its opened gradients would rank labels to an AUC of {auc:.3f} even if its columns were noise; the limit "
            f"is {limit:g}"
        )
        yield Leak(LABEL_AUC, name, what, remedy)
