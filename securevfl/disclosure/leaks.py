"""A kind of leak, which jobs accept by name, and one leak of a job as it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from securevfl.base.roles import PASSIVE
from securevfl.disclosure.counts import SUMMED, Disclosure, Sizes, earlier
from securevfl.disclosure.exposure import HALF, expected_label_auc, smallest_batch
from securevfl.optim.defaults import why_sealed
from securevfl.options import JobOptions


@dataclass(frozen=True)
class LeakKind:
    """What a job may give away beyond its protocol's declaration, once all parties accept it by `name`.

    formula: when a job has it. remedy: what takes it away. attacks: the names of the audit's attacks that carry it out.
    A method lists its own beside those of all methods (`Method.leak_kinds`).
    """

    name: str
    formula: str
    remedy: str
    attacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leak:
    """One leak of a job as it stands: `who` learns `what`, and the remedy.

    apart: whether it is one between organisations alone: who has all tables in one process knows it anyway.
    """

    kind: LeakKind
    who: str
    what: str
    remedy: str
    apart: bool = False

    @property
    def name(self) -> str:
        """What a job accepts it by."""
        return self.kind.name

    def __str__(self) -> str:
        return f'{self.who}: {self.what}; {self.remedy}, or accept it with accepts = ["{self.name}"]'


# The leak of columns: when numbers about each row span the columns behind them.
#
# From as many numbers a row as columns on, what a party receives spans these columns. Far fewer are enough where
# columns go together or have few values (`securevfl.disclosure.exposure`), so a job is refused from half of them on,
# and a party that has the table at hand, as each has its own, refuses as soon as the numbers are enough for it.


COLUMNS = LeakKind(
    "columns",
    "numbers about each row, from half as many as columns on, or as many as are enough for the table at hand",
    "fewer epochs and evaluations, a sum of more parties, or shares",
    ("column_space", "binary_columns", "score_columns", "score_bits"),
)


def column_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: Sizes, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """One line for each learner and set of columns that are added up, of the rows that most is told about."""
    most: dict[tuple[str, tuple[str, ...]], Disclosure] = {}
    for own in sorted(counts, key=lambda item: item.count):
        if own.kind == "columns" and own.group not in SUMMED:
            most[own.learner, own.about] = own
    for own in most.values():
        told = own.count + round(earlier(own, before) * own.of)
        if told < sizes.enough_for(own.about):
            continue
        whose = f"{own.of} columns of {', '.join(own.about)}" + (" together" if len(own.about) > 1 else "")
        span = "span" if told >= own.of else "are enough to find most of"
        yield Leak(
            COLUMNS,
            own.learner,
            f"it receives {told} numbers about each row, which {span} the {whose}: values that repeat can be read, and "
            "some known rows give all others",
            _fewer(job, sizes, own),
        )


def _fewer(job: JobOptions, sizes: Sizes, own: Disclosure) -> str:
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


# Leaks of opened gradients: when they are as many equations as there are residuals, and so labels.
#
# *Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g the
# labels. (rank(J) <= min(p, n c), so a rank that reaches n c needs p >= n c.)
#
# A network soon has as many: there are larger batches, or outputs of a network that its owner trains without labels, as
# columns of a linear model (docs/neural.md), which opens what the linear model opens.
#
# *Fresh equations.* With one fixed partition into batches a linear model's equations are the same every epoch. Rows
# reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
# recover labels to AUC .98 in 40 epochs. A Jacobian that moves brings others in every local step; they are refused from
# n c on in a run. Jobs with other batches or columns on the same table do the same.
#
# *Bins.* Weights of evidence tell a party how many rows of each of its bins are of the positive class. These counts are
# bits about the labels of all rows, which add up with the equations by their shares
# (`securevfl.disclosure.exposure`); where columns nearly repeat each other, bins differ by one row and name its
# label, which the party itself sees.
#
# *Label AUC.* A job may set `max_label_auc`: what columns of noise may tell of the labels through opened gradients
# (`securevfl.disclosure.exposure`). Larger batches hide more, so the limit is a smallest batch size.


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
    job: JobOptions, counts: Sequence[Disclosure], sizes: Sizes, before: Sequence[Disclosure]
) -> Iterator[tuple[str, float, float]]:
    """Each passive party, and which shares of the labels counts in its bins and earlier jobs tell it beside its
    gradients."""
    if job.protocol.seals:
        told = [own for own in counts if own.kind == "labels"]
        for own in told:
            if own.group != "bins":
                beside = [each for each in told if each.learner == own.learner]
                bins = sum(each.share for each in beside if each.group == "bins")
                yield own.learner, bins, earlier(own, before, beside)


def equation_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: Sizes, before: Sequence[Disclosure]
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
        elif job.moves and job.equations * p >= sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"{_why(job)}, so its {p} parameters give {job.equations * p} equations in a run about the "
                f"{sizes.residuals} residuals of a batch, as many as there are or more",
                f"use fewer epochs or local steps, or {_larger(job, job.equations * rows)}",
            )
        if other_jobs[name]:
            again.append(name)
        elif share and p + share * sizes.residuals >= HALF * sizes.residuals:
            yield Leak(
                FRESH_EQUATIONS,
                name,
                f"the run was taken up so often that up to {p + ceil(share * sizes.residuals)} equations about the "
                f"{sizes.residuals} residuals of a batch have been opened, for all the party with labels knows",
                "keep states more often (--every), or write in its ledger that it trusts this party (--trust)",
            )
        if sizes.alone.get(name):
            yield Leak(
                RANK,
                name,
                f"counts in the bins of its columns together single out {sizes.alone[name]} rows, which are then its "
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
        return remedy if not job.moves else f"{remedy}, or count all rows in full (xi left out)"
    return f"{remedy}, or a network that its owner trains without labels, its outputs as columns of a linear model"


def label_auc_leaks(
    job: JobOptions, counts: Sequence[Disclosure], sizes: Sizes, before: Sequence[Disclosure]
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


# Leaks of sums: what a sum that hides its parts cannot hide.
#
# *Single passive.* A sum that hides its parts hides nothing when there is one part.
#
# *Sequential.* Where parties take their steps in turn, two consecutive sums differ by one party's part alone.


SINGLE_PASSIVE = LeakKind("single_passive", "a sum that hides its parts has one part", 'sum = "direct", which says so')
SEQUENTIAL = LeakKind(
    "sequential",
    "one passive party moves alone between two sums that hide their parts",
    'mode = "parallel", in which all parts move at once',
    ("first_difference",),
)


def single_passive(job: JobOptions, sizes: Sizes) -> Iterator[Leak]:
    """Yield the one passive party whose outputs are the sum, where the sum is to hide them."""
    chosen = job.protocol.sum_for(len(sizes.passives))
    if len(sizes.passives) == 1 and chosen.hides_parts:
        yield Leak(
            SINGLE_PASSIVE,
            sizes.passives[0],
            f"a {chosen.name} sum of one passive party's outputs is that party's outputs, so it protects nothing",
            'use sum = "direct" (or "auto"), which says so',
        )


def sequential(job: JobOptions, sizes: Sizes) -> Iterator[Leak]:
    """Yield the party that collects sums between which one party alone moves."""
    passives = sizes.passives
    if len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts and job.optimizer.exchanges(passives) > 1:
        yield Leak(
            SEQUENTIAL,
            sizes.active,
            "one passive party moves between two sums, so their difference is that party's part, which no sum hides",
            'use mode = "parallel", in which all parts move at once',
        )
