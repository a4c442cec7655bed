"""Training on additive shares: weights, forward sums, residuals and gradients are seen by nobody, first to last.

    ahead     every product of a stretch of visits, of random vectors with columns, and transfers for its tables
    a visit   one round trip of the two holders of shares, the active party and its partner (three messages in a row
              with more parties): the residual comes out of a table of the loss, in shares
    scores    of rows that were agreed on, to the active party

Who learns what: sizes, and the agreed scores at the active party. See `securevfl.protocols.shares.iteration` and its
siblings for the messages, `securevfl.families.shares.shares_plan` for which optimizers fit,
`securevfl.families.shares.shares_player` for a party.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf, log2
from typing import Any, ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role, Roles
from securevfl.crypto.share_ring import ShareRing
from securevfl.disclosure.counts import Disclosure, Sizes, earlier
from securevfl.disclosure.exposure import HALF
from securevfl.disclosure.leaks import RANK, Leak, LeakKind
from securevfl.errors import PartiesError
from securevfl.families.base import J, Known, MessageProtocol, Method, Told
from securevfl.families.player import Player, State
from securevfl.families.shares.shares_plan import (
    SharesJob,
    bits_of_codes,
    check_optimizer,
    epochs_ahead,
    needs,
    plan_of,
    rounding,
    turns_back,
    weight_levels,
)
from securevfl.families.shares.shares_player import SharesPlayer
from securevfl.families.sizes import evaluated
from securevfl.models import pair_metrics
from securevfl.models.inputs import InputShape
from securevfl.models.linear import Logistic, Poisson
from securevfl.models.loss import Loss, NumberLoss
from securevfl.models.rounding_error import SumRounding
from securevfl.models.trees import Trees
from securevfl.optim.fedbcd import FedSGD
from securevfl.options import JobOptions
from securevfl.protocols.choice import Protocol
from securevfl.protocols.declared import Declared
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.limits import BUDGET, ROWS_PER_MEASURE
from securevfl.protocols.shares import (
    chunk_agreement,
    iteration,
    offline_phase,
    opened_loss,
    opened_scores,
    opened_weights,
    range_count,
    score_label_pairs,
)
from securevfl.protocols.shares.opened_loss import FEWEST, MOST
from securevfl.protocols.shares.range_count import MOST as MOST_COUNTED
from securevfl.protocols.shares.score_label_pairs import FEW_ALIKE, FEW_ROWS
from securevfl.protocols.shares.shares_options import Shares

# What a training on shares gives away that its parties must agree to by name, before it begins.
#
# *Opened weights.* Weights that were trained on shares follow from all labels, and from the columns of all parties. A
# party that is told as many as there are labels may find each row's residual, and the party with labels from these the
# others' part of each row. One that deviates has every bit of them say what it likes: from half of the bits on that the
# labels, or the columns of another party, hold, the job must accept `opened_weights`.
#
# *Small metrics.* Pairs (level, label) in a hidden order tell metrics, and of no row which pair is its own: but among
# few rows, or few of a label, those of the most extreme own part are well placed, and repeated measurements of the same
# rows tell them apart to a party that deviates.
#
# *Scores.* c scores of k bits of a row, with the reason codes that a party told its weights may give beside them, are
# weighed against what that other party's columns hold: from a fourth of it on they tell too much, and so do they where
# one column holds half of it, or where several scores come together. The party that rounds them takes as many bits as
# its own columns allow, unless the job names a number.


HEAVY = 0.5  # of what columns hold

SMALL_METRICS = LeakKind(
    "small_metrics",
    "metrics of few rows, of few rows of a label, or of the same rows many times",
    "hold out more rows (test_fraction), or evaluate less",
    ("rank_matching", "marked_pairs"),
)
OPENED_WEIGHTS = LeakKind(
    "opened_weights",
    "weights that are told have half as many bits as labels, or another party's columns, hold, or more",
    "leave the party out of open_weights, fewer weights, or more rows",
    ("partial_score",),
)
SCORES = LeakKind(
    "scores",
    "levels of new rows hold more than a fourth of what the others' columns do, or most of it is in one column",
    'fewer levels (score_bits), or scores = "none"',
    ("score_sums", "linked_outputs"),
)
EXACT_SCORES = LeakKind(
    "exact_scores",
    'scores of new rows are told as they are (scores = "exact")',
    'scores = "levels"',
    ("score_sums",),
)


def told_bits(job: SharesJob, sizes: Sizes, rounds: str) -> int:
    """How many bits each score of a new row has, as far as the table of the party that rounds is at hand."""
    held = sizes.holds.get(rounds)
    free = held is None or SCORES.name in job.accepts
    codes = bits_of_codes(job, rounds, sizes.columns[rounds])
    most = inf if free or held is None else (BUDGET * held.bits - codes) / sizes.outputs
    return job.protocol.shares.allowed_levels(job.model.loss.spacing, most).bits


def measured(sizes: Sizes) -> int:
    """How many rows metrics are taken of."""
    rows = min(sizes.held_out or sizes.rows, MOST // sizes.outputs)
    return rows if rows >= FEWEST else 0


def measures(job: JobOptions, sizes: Sizes) -> int:
    """How often metrics are taken: where they are due between rounds, and at the end if they are not due there."""
    rounds, every = sizes.epochs * sizes.batches, job.evaluation_interval
    return rounds // every + (rounds % every > 0) if every else 1


def weights_of(job: SharesJob, sizes: Sizes, name: str) -> int:
    """How many weights a party has, of all outputs."""
    active, opened = name == sizes.active, name in job.protocol.shares.open_weights
    spread = InputShape(active, sizes.columns[name], sizes.outputs, len(sizes.columns), sizes.rows, opened)
    return job.model.breadth(spread) * sizes.outputs


def weights_told(job: SharesJob, sizes: Sizes) -> list[Disclosure]:
    """Count the bits of weights that are told: about the labels, against what these hold, and about the columns of each
    party but the one that learns them, as numbers of so many bits against what the columns of all rows hold."""
    found, bits = [], weight_levels(job, sizes.rows).bits
    labels = max(1, int(sizes.rows * (log2(sizes.outputs) if sizes.outputs > 1 else sizes.label_bits)))
    for name in sorted(sizes.columns.keys() & set(job.protocol.shares.open_weights)):
        count = weights_of(job, sizes, name)
        if name != sizes.active:
            about = (sizes.active,)
            told = Disclosure("labels", name, about, count * bits, labels, group="weights", numbers=count)
            found.append(told)
        for other in sizes.columns:
            if other != name:
                held = sizes.holds.get(other)
                of = 0 if held is None else max(1, int(held.bits * sizes.rows / bits))
                found.append(Disclosure("columns", name, (other,), count, of, group="weights", numbers=count))
    return found


def _weight_leaks(
    job: SharesJob, counts: Sequence[Disclosure], sizes: Sizes, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the parties whose weights are opened to them and are as many as there are labels, or have half as many bits
    as labels hold, or as the columns of another party whose table is at hand."""
    bits, remedy = weight_levels(job, sizes.rows).bits, "leave it out of open_weights, or train fewer weights "
    remedy += "(fewer trees, a smaller depth, fewer columns) or on more rows"
    for name in sorted(sizes.columns.keys() & set(job.protocol.shares.open_weights)):
        count, of, told = weights_of(job, sizes, name), sizes.rows * sizes.outputs, list[str]()
        own = [each for each in counts if (each.group, each.learner) == ("weights", name) and each.of]
        labels = [earlier(each, before) for each in own if each.kind == "labels"]
        total = count + ceil(sum(labels) * of)
        if total >= of:
            yield Leak(
                RANK,
                name,
                f"its weights, which are opened to it, are {count} numbers for {of} "
                + ("residuals" if name == sizes.active else "labels")
                + (f" (with those of earlier jobs {total})" if total > count else "")
                + ", and can determine them"
                + (", and so the others' part of each row" if name == sizes.active else ""),
                remedy,
            )
            continue
        for each in own:
            share = each.share + earlier(each, before)
            if share >= HALF:
                whose = "labels" if each.kind == "labels" else f"columns of {each.about[0]}"
                told.append(f"{share:.0%} of what {whose} hold")
        if told:
            yield Leak(
                OPENED_WEIGHTS,
                name,
                f"its weights, which are opened to it, have {count * bits:,} bits, by which a party that deviates "
                f"reads what it likes, up to {' and '.join(told)} with those of earlier jobs",
                remedy,
                apart=True,
            )


def _metric_leaks(job: JobOptions, sizes: Sizes) -> Iterator[Leak]:
    rows, times = measured(sizes), measures(job, sizes)
    if not rows:
        return
    few, pairs = [], pair_metrics.fits(job.model.loss)  # where not, one sum of losses is told
    if pairs and rows < FEW_ROWS:
        few.append(f"metrics are of {rows} rows, fewer than {FEW_ROWS}")
    if pairs and sizes.alike is not None and sizes.alike < FEW_ALIKE:
        few.append(f"{sizes.alike} of the rows measured have the rarest label, fewer than {FEW_ALIKE}")
    if few:
        share = ceil(100 * FEW_ROWS / (sizes.rows + sizes.held_out)) / 100
        enough = f" = {share}" if rows < FEW_ROWS and sizes.held_out and share <= 0.5 else ""
        yield Leak(
            SMALL_METRICS,
            sizes.active,
            f"{' and '.join(few)}, so that rows of the most extreme values are told apart",
            f"hold out more rows (test_fraction{enough})",
            apart=True,
        )
    if times > (most := max(1, rows // ROWS_PER_MEASURE)):
        yield Leak(
            SMALL_METRICS,
            sizes.active,
            f"metrics of the same {rows} rows are taken {times} times, more than {most}, by which a party that "
            "deviates tells rows apart",
            "use a larger evaluate_every or hold out more rows",
            apart=True,
        )


def _score_leaks(job: SharesJob, sizes: Sizes, rounds: str) -> Iterator[Leak]:
    options = job.protocol.shares
    asker, c = options.scores_to or sizes.active, sizes.outputs
    if options.scores == "none":
        return
    if options.scores == "exact":
        what = "scores of new rows are exact, from which it reads columns of few values, and one column from few rows"
        yield Leak(EXACT_SCORES, asker, what, 'use scores = "levels"', apart=True)
        return
    levels = options.score_levels(job.model.loss.spacing)
    if c > 1:
        yield Leak(
            SCORES,
            asker,
            f"{c} scores of a new row come together, from which the others' columns follow",
            'add scores = "none" to protocol.shares',
            apart=True,
        )
    for name, own in sizes.holds.items():
        if name == asker:
            continue
        bits = (told_bits(job, sizes, rounds) if name == rounds else levels.bits) * c
        codes = bits_of_codes(job, name, sizes.columns[name])
        if bits + codes > BUDGET * own.bits:
            most = int((BUDGET * own.bits - codes) / c)
            beside = f" and {job.reason_codes} reason codes {codes:.1f} more" if codes else ""
            fewer = "use fewer reason_codes, or " if codes else ""
            yield Leak(
                SCORES,
                asker,
                f"scores of a new row tell up to {bits} bits{beside}, a row of {name} holds {own.bits:.1f}, a "
                f"fourth of which are {BUDGET * own.bits:.1f}",
                f'{fewer}add score_bits = {most} or scores = "none" to protocol.shares'
                if most > 2
                else f'{fewer}add scores = "none" to protocol.shares',
                apart=True,
            )
        if own.heaviest > HEAVY:
            yield Leak(
                SCORES,
                asker,
                f"a single column holds {own.heaviest:.0%} of what a row of {name} does, and is read from scores",
                'add scores = "none" to protocol.shares, or bring more columns',
                apart=True,
            )


class SharesMethod(Method[SharesJob]):
    """Shares at two holders, for linear models whose loss is a table of one sum."""

    name: ClassVar[str] = "shares"
    options: ClassVar[type[JobOptions]] = SharesJob
    weighs: ClassVar[bool] = True
    replayed: ClassVar[bool] = True
    accounts: ClassVar[bool] = True
    leak_kinds = (*Method.leak_kinds, SMALL_METRICS, SCORES, EXACT_SCORES, OPENED_WEIGHTS)

    def check(self, job: JobOptions) -> None:
        if job.protocol.shares is None:
            if job.model.method == self.name:
                raise ValueError(
                    f"a {job.model.name} model trains on shares alone, as a residual, open or sealed, would tell each "
                    "party an equation about labels for each leaf; set protocol.shares, as in [protocol.shares]"
                )
            raise ValueError(
                f"optimizer {job.optimizer.name} trains on shares; set protocol.shares, as in [protocol.shares]"
            )
        if not job.model.loss.elementwise:
            raise ValueError(
                f"loss {job.model.loss.name} mixes the sums of all classes in each residual, which no table of one sum "
                "gives; use one_vs_rest"
            )
        check_optimizer(job)
        reach = 0.0 if not isinstance(job.model, Trees) else job.model.reach
        if job.protocol.shares.clip < reach:
            raise ValueError(
                f"protocol.shares.clip: {reach:g} or more was expected, as columns of a {job.model.name} model "
                "reach so far; leave it out, or lower model.linear"
            )
        if job.reshuffle:
            raise ValueError("shares prepare batches ahead, which stay the same; set reshuffle = false")
        told = pair_metrics.level_names(job.model.loss)
        for key, stop in (("target", job.target), ("patience", job.patience)):
            if stop is not None and stop.metric not in told:
                raise ValueError(
                    f"{key}.metric must be one of {', '.join(told)} under shares, where no row's scores of several "
                    "classes come together; choose one of these"
                )

    def admits(self, role: Role, *, leads: bool) -> bool:
        return role == (ACTIVE if leads else PASSIVE)

    def assigned(self, job: SharesJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Assign the role of partner to the passive party that the job names, or else to the one with the most columns,
        the first of several."""
        passives, chosen = roles.having(PASSIVE), job.protocol.shares.partner
        if PARTNER in roles.kinds:
            return roles
        if chosen is not None and chosen not in passives and columns:
            raise PartiesError(f"protocol.shares.partner: one of {', '.join(passives)} was expected; name one of these")
        asks = job.protocol.shares.scores_to
        for key, named in (("open_weights", job.protocol.shares.open_weights), ("scores_to", (asks,) if asks else ())):
            if columns and (strange := set(named) - set(roles.parties)):
                raise PartiesError(
                    f"protocol.shares.{key}: some of {', '.join(roles.parties)} were expected, {', '.join(strange)} "
                    "came; correct the names"
                )
        partner = _partner(job, passives, columns)
        return Roles.of((name, PARTNER if name == partner else role) for name, role in roles.cast)

    def asker(self, job: SharesJob, lead: str) -> str:
        return job.protocol.shares.scores_to or lead

    def score_bits(self, job: SharesJob, sizes: Sizes | None = None) -> int:
        options = job.protocol.shares
        if options.scores == "levels":
            if sizes is not None:
                return told_bits(job, sizes, _rounds(job, sizes))
            return options.score_levels(job.model.loss.spacing).bits
        return 0 if options.scores == "none" else super().score_bits(job)

    def clip(self, job: SharesJob) -> float | None:
        return job.protocol.shares.clip if job.model.scales else None

    def examples(self) -> dict[str, dict[str, Any]]:
        own = {"model": Logistic(), "optimizer": FedSGD(lr=0.3)}
        opened = Protocol(shares=Shares(open_weights=("shop",)))
        counts = {"model": Poisson(), "optimizer": FedSGD(lr=0.03), "protocol": Protocol(shares=Shares())}
        trees = {"model": Trees(trees=2, depth=2), "protocol": Protocol(shares=Shares()), "batch_size": "all"}
        return {
            "shares": own | {"protocol": Protocol(shares=Shares(chunk=1))},
            "shares, weights opened": own | {"protocol": opened},
            "shares, counts": own | counts,
            "shares, trees": trees | {"epochs": 10},
            "shares, scores to another": own | {"protocol": Protocol(shares=Shares(scores_to="shop"))},
        }

    def rounding(self, job: SharesJob, rows: int, parties: int) -> SumRounding | None:
        return rounding(job)

    def declares(self, job: SharesJob, roles: Roles) -> list[Declared]:
        asks = self.asker(job, roles.lead)
        found = [
            *chunk_agreement.declares_ready(),
            *offline_phase.declares(),
            *iteration.declares(),
            *(score_label_pairs.declares_pairs if pair_metrics.fits(job.model.loss) else opened_loss.declares)(),
            *range_count.declares_counts(),
            *opened_scores.declares(roles.role(asks) if asks in roles.parties else PASSIVE),
            *(opened_weights.declares() if job.protocol.shares.open_weights else ()),
        ]
        return [each for each in dict.fromkeys(found) if roles.may_pass(each.sender, each.receiver)]

    def counts(self, job: SharesJob, sizes: Sizes) -> list[Disclosure]:
        """Count what a whole run discloses: a level of each output of each row, from the partner, or one sum of losses,
        whenever metrics are taken, and one count a chunk; and the bits of weights that are told, about labels and
        about the columns of each other party."""
        fits, times, opened = pair_metrics.fits(job.model.loss), measures(job, sizes), chunks(job, sizes)
        found = [Disclosure("scores", sizes.active, sizes.passives, opened if fits else opened + 2 * times, 0)]
        if fits and (told := times * measured(sizes) * sizes.outputs):
            rows, giver = evaluated(job, sizes)[0], _partner(job, sizes.passives, sizes.columns)
            levels = Disclosure("scores", sizes.active, sizes.passives, told, 0, group=rows, numbers=told, giver=giver)
            found.append(levels)
        return [*found, *weights_told(job, sizes)]

    def leaks(self, job: SharesJob, sizes: Sizes, before: Sequence[Disclosure] = ()) -> list[Leak]:
        return [
            *super().leaks(job, sizes, before),
            *_weight_leaks(job, self.counts(job, sizes), sizes, before),
            *_metric_leaks(job, sizes),
            *_score_leaks(job, sizes, _rounds(job, sizes)),
        ]

    def protocols(self, job: SharesJob, roles: Roles) -> list[MessageProtocol]:
        return []

    def title(self, job: SharesJob, roles: Roles) -> str:
        return "additive shares"

    def strength(self, job: SharesJob) -> str:
        options, loss = job.protocol.shares, job.model.loss
        step = 2.0 ** options.step_bits(loss.spacing)
        reach = (2 ** (options.table_bits - 1) - 1) * step
        return (
            f"{options.strength}; residuals are read from tables of sums {step:g} apart, up to {reach:g} either side "
            f"of each row's centre: near 0 to {table_error(loss, step):.2g}"
        )

    def openings(self, job: SharesJob, sizes: Sizes) -> str:
        rows, times = measured(sizes), measures(job, sizes)
        each = " of each class" if sizes.outputs > 1 else ""
        if not pair_metrics.fits(job.model.loss):
            return f"{times} sums of losses; {chunks(job, sizes)} counts of rows near the table's end, one a chunk"
        return (
            f"(level, label) pairs{each} of {rows} rows in a hidden order, {times} times; "
            f"{chunks(job, sizes)} counts of rows near the table's end, one a chunk"
        )

    def needs(self, job: SharesJob, known: Known) -> list[str]:
        return needs(job, known.schedule, known.sizes)

    def tells(self, job: SharesJob, roles: Roles, party: str, known: Known | None) -> list[Told]:
        shares_, asker = job.protocol.shares, self.asker(job, roles.lead)
        own = [("learns", _weights(job, party, known))] if party in shares_.open_weights else []
        parts = [("", _PARTS.format(asker=asker))] if asker in shares_.open_weights else []
        scores = (
            [("learns", _of_new_rows(job, None if known is None else known.sizes))]
            if party == asker and shares_.scores != "none"
            else []
        )
        if roles.role(party) != ACTIVE:
            told = f"sizes: rows, columns of each party, batches, visits{_verdicts(job)}; nothing else"
        elif known is None:
            told = "(level, label) pairs in a hidden order, counts; sizes; nothing else"
        else:
            told = f"{_quality(job, known.sizes)}; sizes; nothing else"
        return [*own, *scores, ("learns", told), *parts]

    def pooling(self, job: SharesJob, roles: Roles) -> str:
        partner = roles.having(PARTNER) or ("its partner",)
        return (
            f"{roles.lead} and {partner[0]} together learn every residual and sum, and their own weights; any others,\n"
            "however many, learn nothing without both"
        )

    def player(self, job: SharesJob, context: PartyContext, columns: int, state: State | None) -> Player:
        return SharesPlayer(job, context, columns, state)

    def ideal(self, job: J) -> J:
        """Return the job itself: what a party holds after it, messages aside, is uniform words and the agreed
        scores."""
        return job

    def weights(self, job: SharesJob, state: State, parties: int) -> Floats:
        """Return a party's share of its own weights, read as if it were the weights; the weights themselves if the job
        opens them."""
        if "theta" in state:
            return super().weights(job, state, parties)
        made = plan_of(job, state["sizes"], parties)
        return made.numbers.weights(ShareRing(made.numbers.bits).reduce(made.rule.theta(state["own"], state["visits"])))


_WEIGHTS = """\
its own weights, as the job says, so its own part X_k theta_k, which ranks the labels about as
well as its columns can: to an AUC of 0.71 to 0.99 on public tables"""
_IN_BITS = """\
{numbers} of {bits} bits each, rounded at random; one that
deviates has {total:,} bits of its choice of the labels and of the others' columns"""


def _weights(job: SharesJob, party: str, known: Known | None) -> str:
    """Describe in words what a party is told that is told its weights."""
    if known is None:
        return _WEIGHTS
    count, bits = weights_of(job, known.sizes, party), weight_levels(job, known.sizes.rows).bits
    numbers = f"{count:,} numbers" if count > 1 else "one number"
    return f"{_WEIGHTS}: {_IN_BITS.format(numbers=numbers, bits=bits, total=count * bits)}"


_SCORES = """\
with what it knows of its own columns; a column with most of the weight can be read.
Each row is scored once, and never one that was trained on"""


def _of_new_rows(job: SharesJob, sizes: Sizes | None) -> str:
    """Describe in words what the party that asks for scores of new rows is told, as far as sizes are known."""
    options = job.protocol.shares
    if options.scores == "exact":
        return f"exact scores of new rows, from which the others' columns follow {_SCORES}"
    levels = options.score_levels(job.model.loss.spacing)
    bits = levels.bits if sizes is None else told_bits(job, sizes, _rounds(job, sizes))
    step, fewer = levels.size * 2 ** (levels.bits - bits), ""
    if sizes is not None and bits < levels.bits:
        fewer = f"\n({levels.bits} were asked for, {_rounds(job, sizes)}'s columns allow no more)"
    elif (
        options.score_bits is None
        and "scores" not in job.accepts
        and not (sizes and _rounds(job, sizes) in sizes.holds)
    ):
        fewer = "\n(fewer if the other party's columns hold little)"
    return f"scores of new rows in steps of {step:g}: a score tells at most {bits} bits of a row{fewer},\n{_SCORES}"


def _quality(job: SharesJob, sizes: Sizes) -> str:
    """Describe in words what the party with labels is told of how good the model is."""
    rows, times, counted = measured(sizes), measures(job, sizes), chunks(job, sizes)
    at_most = "once" if times == 1 else f"up to {times} times"
    often = "once" if counted == 1 else f"up to {counted} times"
    ends = f"and {often} how many of {MOST_COUNTED:,} training rows\nat most have scores beyond the range computed with"
    if not pair_metrics.fits(job.model.loss):
        return f"how good the model is: {at_most} the sum of the losses of all rows measured,\n{ends}"
    which = "held-out" if sizes.held_out else "training"
    each = " for each class" if sizes.outputs > 1 else ""
    return (
        f"how good the model is: {at_most}, for each of {rows:,} {which} rows, a rounded score beside\n"
        f"a label{each}, in an order that nobody knows,\n{ends}"
    )


_PARTS = """\
{asker} is told its own weights and scores: what it takes its own part off is the sum of the
others' parts, for every row that is scored"""


def _verdicts(job: SharesJob) -> str:
    """Describe in words what a party without labels is told of how the training goes; empty where that is nothing."""
    told = ["to stop"] * job.stops_early + ["it was the best"] * (job.stops_early or turns_back(job))
    told += ["to go back and on by half the step"] * turns_back(job)
    if not told:
        return ""
    listed = f"{', whether '.join(told[:-1])} and whether {told[-1]}" if turns_back(job) else ", whether ".join(told)
    return f"; after each evaluation whether\n{listed}, which follows from labels"


def _partner(job: SharesJob, passives: Sequence[str], columns: Mapping[str, int]) -> str:
    """Whom the job names, or who has the most columns, the first of several."""
    chosen = job.protocol.shares.partner
    if chosen is not None and chosen in passives:
        return chosen
    return max(passives, key=lambda name: columns.get(name, 0))


def _rounds(job: SharesJob, sizes: Sizes) -> str:
    """Who rounds scores: the partner, or the active party where the partner asks."""
    partner = _partner(job, sizes.passives, sizes.columns)
    return sizes.active if job.protocol.shares.scores_to == partner else partner


def table_error(loss: Loss, step: float) -> float:
    """How far a line between entries `step` apart is from g, at most, for sums up to 1 either way and a label of the
    mean, or of a class."""
    f = np.linspace(-1, 1, 2049)[:, None]
    y = np.full_like(f, 0.0 if isinstance(loss, NumberLoss) else 1.0)
    low = np.floor(f / step) * step
    ends = [loss.residual(each, y) for each in (low, low + step)]
    line = ends[0] + (f - low) / step * (ends[1] - ends[0])
    return float(np.abs(line - loss.residual(f, y)).max())


def chunks(job: SharesJob, sizes: Sizes) -> int:
    """How many chunks a training has."""
    return -(-job.epochs // epochs_ahead(job, sizes.rows, sizes.outputs))
