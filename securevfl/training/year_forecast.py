"""Forecast of the disclosures of one job in a year: monthly trainings, a comparison, a search, and scores of new rows.

A consent sheet is about one job, but most jobs are repeated with new data. Before the first job, this forecast adds up
what each party's ledger will count in a year, as if all runs were about the same rows. In this order:
1. in month 1   a comparison of models (`securevfl.training.comparison`), then a search: trainings with other options,
                each measured on the same held-out rows
2. each month   a training, and a twelfth of the scores of new rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from securevfl.consent.leak_check import leaks
from securevfl.consent.settle_job import check_settled, settle_job
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.counts import Disclosure, Kind, in_column_bits
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import DISCLOSURE_KINDS, sum_disclosures
from securevfl.disclosure.outputs import Output, disclosures_of
from securevfl.errors import ConfigError
from securevfl.families.facts import RunFacts
from securevfl.families.run_facts import local_run_facts, pooled_run_facts
from securevfl.job import Job
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET, max_evaluations
from securevfl.training.comparison import compared_jobs

MONTHS = 12


@dataclass(frozen=True)
class YearPlan:
    """How often a job is trained, compared, searched and used for scores in a year.

    Attributes:
        trainings: number of monthly trainings.
        compares: whether models are compared once, before the first training. Only some jobs can be compared.
        searched: number of trainings of one search for options.
        scores: number of new rows that are scored.
    """

    trainings: int = MONTHS
    compares: bool = True
    searched: int = 8
    scores: int = 0


@dataclass(frozen=True)
class YearTotal:
    """What one party's ledger counts in the year for one kind of disclosure to one receiver.

    Attributes:
        kind: the kind of disclosure.
        learner: the party that receives the values; "all peers" for the total over all of them.
        count: the disclosed amount, in the unit of the kind (such as equations, scores or bits).
        share: the disclosed share of the amount that would disclose everything; 0 if there is no such amount.
        text: the amount in words, such as "600 bits about columns (2% of the columns)".
    """

    kind: Kind
    learner: str
    count: int
    share: float
    text: str


@dataclass
class PartyYear:
    """The forecast for one party.

    Attributes:
        party: name of the party.
        totals: what its ledger counts, with earlier runs.
        bits: number of bits about its columns that all peers together receive in the year.
        share: `bits` as a share of the information content of all rows of its table; None if that is unknown.
        row_bits: number of bits about one measured row that all peers together receive in the year.
        row_share: `row_bits` as a share of the information content of a row; None if that is unknown.
        refusals: the first run that each limit or leak check would refuse: what it is, and the reason.
    """

    party: str
    totals: list[YearTotal] = field(default_factory=list)
    bits: int = 0
    share: float | None = None
    row_bits: float = 0.0
    row_share: float | None = None
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the forecast as lines of text."""
        lines = [f"{self.party}:"]
        lines += [f"  {total.learner:<9} receives {total.text}" for total in self.totals]
        if self.bits:
            of_table = "" if self.share is None else f", {_percent(self.share)} of what the table holds"
            lines.append(f"  columns   at most {self.bits:,} bits about them in measurements and scores{of_table}")
            of_row = "" if self.row_share is None else f", {_percent(self.row_share)} of what a row holds"
            lines.append(f"  a row     that every measurement uses: at most {self.row_bits:,.0f} bits{of_row}")
        lines += [f"  refused   {when}: {reason}" for when, reason in self.refusals]
        if not self.refusals:
            lines.append("  refused   nothing: no limit and no leak check is reached")
        return lines


@dataclass(frozen=True)
class YearForecast:
    """The forecast for all parties whose tables are here.

    Attributes:
        plan: how often the job is trained, compared, searched and used for scores.
        compares: whether the year has a comparison.
        parties: the forecast of each party.
    """

    plan: YearPlan
    compares: bool
    parties: tuple[PartyYear, ...]

    def __str__(self) -> str:
        """Return the forecast as text."""
        plan = self.plan
        parts = [
            f"{plan.trainings} monthly training{'s' * (plan.trainings != 1)}",
            *(["one comparison"] if self.compares else []),
            *([f"one search of {plan.searched} trainings"] if plan.searched else []),
            *([f"{plan.scores:,} scores"] if plan.scores else []),
        ]
        head = f"{', '.join(parts)}, all about the same rows; with the runs that the ledgers here have recorded:"
        return "\n".join(
            [head, *(f"\n{line}" if line.endswith(":") else line for p in self.parties for line in p.lines())]
        )


class _Run(NamedTuple):
    """One run of the year: its month, its name, its job, its facts, and the scores that are requested after it."""

    when: str
    name: str
    job: Job
    facts: RunFacts
    scores: int


def forecast_year(
    job: Job,
    parties: Sequence[Party],
    *,
    others: Mapping[str, int] | None = None,
    outputs: int | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    plan: YearPlan | None = None,
) -> YearForecast:
    """Forecast what a year of a job discloses about each party whose table is here.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: all parties with their tables, or one party if `others` is given.
        others: number of columns of each other party, the one with labels first unless it is the party itself.
        outputs: number of outputs of the model, as in `explain`.
        ledgers: ledgers of some of the parties by name, whose limits and records count.
        plan: what is done in the year; by default 12 trainings, a comparison and a search of 8 trainings.

    Returns:
        The forecast.

    Raises:
        ConfigError: if `others` is given with several tables or none.
        LabelError: if the loss cannot use the labels.
    """
    plan = YearPlan() if plan is None else plan
    if others is not None:
        if len(parties) != 1:
            raise ConfigError(
                "with `others`, a forecast needs the table of exactly one party",
                "pass one table with `others`, or the tables of all parties without `others`",
                code="SVFL-PARTIES-COUNT",
            )
        (party,) = parties
        check_settled(job, party.name)
        columns = {party.name: len(party.columns)} | dict(others) if party.active else dict(others) | {party.name: 0}
    else:
        lead, rest = check_parties(parties)
        parties, job = [lead, *rest], settle_job(job, parties)
        columns = {}

    def facts_of(chosen: Job) -> RunFacts:
        if others is None:
            return pooled_run_facts(chosen, parties)
        return local_run_facts(chosen, parties[0], columns, outputs=outputs)

    compared = _compared(job) if plan.compares else {}
    facts = {name: facts_of(chosen) for name, chosen in {"": job, **compared}.items()}
    runs = list(_runs(plan, job, compared, facts))
    known_ledgers = ledgers or {}
    with_columns = [party for party in parties if party.columns]
    return YearForecast(
        plan, bool(compared), tuple(_party_year(party, runs, known_ledgers.get(party.name)) for party in with_columns)
    )


def _compared(job: Job) -> dict[str, Job]:
    """Return the jobs of a comparison; none if this job cannot be compared."""
    try:
        return compared_jobs(job)
    except ConfigError:
        return {}


def _runs(plan: YearPlan, job: Job, compared: Mapping[str, Job], facts: Mapping[str, RunFacts]) -> Iterator[_Run]:
    for name, other in compared.items():
        yield _Run("the comparison in month 1", f"comparison {name}", other, facts[name], 0)
    for number in range(1, plan.searched + 1):
        yield _Run(f"training {number} of the search in month 1", f"search {number}", job, facts[""], 0)
    for month in range(1, plan.trainings + 1):
        scores = plan.scores * month // plan.trainings - plan.scores * (month - 1) // plan.trainings
        yield _Run(f"the training of month {month}", f"month {month}", job, facts[""], scores)


def _party_year(party: Party, runs: Sequence[_Run], ledger: DisclosureLedger | None) -> PartyYear:
    """Add up what all runs disclose about one party, and note the first run that a limit or leak check refuses."""
    year, refused = PartyYear(party.name), set[str]()
    entries = [] if ledger is None else ledger.counted_for(party.register)
    counted = [(entry.run, entry.disclosure) for entry in entries]
    limits = {} if ledger is None else ledger.read().limits
    evaluations, score_bits = 0, 0
    for run in runs:
        shape = run.facts.shape
        disclosures = _about(party.name, run.facts.outputs)
        for leak in leaks(run.job, shape, [item for _, item in counted]):
            if leak.name not in run.job.accepts and leak.name not in refused:
                refused.add(leak.name)
                year.refusals.append((run.when, str(leak)))
        counted += [(run.name, item) for item in disclosures]
        requester = run.job.family.score_requester(run.job, shape.active)
        if run.scores and party.name != requester:
            bits = run.job.family.score_bits(run.job, shape) * shape.outputs
            score_bits += run.scores * bits
            score = Disclosure("scores", requester, (party.name,), run.scores, 0, group="new")
            counted.append((f"scores of {run.name}", score))
        for kind, limit in limits.items():
            total = sum_disclosures(pair for pair in counted if pair[1].kind == kind)
            if not limit.allows(total) and kind not in refused:
                refused.add(kind)
                year.refusals.append(
                    (run.when, f"the limit {kind} {limit} of the ledger; {limit.needed(total)} needed")
                )
        measured = [item for item in run.facts.outputs if _is_measured(item, party.name)]
        evaluated = [item for item in measured if item.occasion == "evaluation"]
        evaluations += max((item.times for item in evaluated), default=0)
        rows = max((item.rows for item in evaluated), default=0)
        year.bits += sum(_bits(item) for item in measured)
        year.row_bits += sum(_row_bits(item) for item in evaluated if item.rows)
        most = max_evaluations(rows)
        if rows and evaluations > most and "small_metrics" not in (*run.job.accepts, *refused):
            refused.add("small_metrics")
            reason = (
                f"{rows:,} rows may be used for at most {most} evaluations over all runs, and this is {evaluations}"
            )
            year.refusals.append((run.when, reason))
    year.bits += score_bits
    information = runs[0].facts.shape.information.get(party.name) if runs else None
    if information is not None and information.bits:
        year.share = year.bits / (information.bits * max(1, len(party)))
        year.row_bits = min(year.row_bits, information.bits)
        year.row_share = year.row_bits / information.bits
        model_bits = runs[-1].job.family.score_bits(runs[-1].job, runs[-1].facts.shape) * runs[-1].facts.shape.outputs
        months = [run.name for run in runs if run.scores]
        allowed = int(information.bits * SCORE_BIT_BUDGET // model_bits) if model_bits else len(months)
        if score_bits and allowed < len(months):
            reason = (
                f"a new row may be scored by {allowed} of the year's models, because all scores of a row disclose at "
                f"most {SCORE_BIT_BUDGET:.0%} of its bits"
            )
            year.refusals.append((f"scores of the same row from {months[allowed]} on", reason))
    year.totals = list(_totals(counted))
    return year


def _about(party: str, outputs: Sequence[Output]) -> list[Disclosure]:
    return [item.sent_by(party) for item in disclosures_of(outputs) if party in item.about]


def _is_measured(output: Output, party: str) -> bool:
    """Return whether an output of a training or evaluation is about this party's columns."""
    return party in output.about and output.kind in ("scores", "columns") and output.occasion in ("evaluation", "count")


def _bits(output: Output) -> int:
    """Return how many bits an output discloses in a complete run (`count` if other outputs imply it)."""
    if in_column_bits(output.disclosure):
        return output.count
    return (output.times * output.numbers or output.count) * output.bits


def _row_bits(output: Output) -> float:
    """Return how many bits of an evaluation's output may concern one row: all bits of a sum, or one row's value."""
    if in_column_bits(output.disclosure) and output.numbers >= output.rows:  # one value for each row, shuffled
        return output.times * output.bits * output.numbers / output.rows
    return _bits(output) if in_column_bits(output.disclosure) else _bits(output) / output.rows


def _totals(counted: Sequence[tuple[str, Disclosure]]) -> Iterator[YearTotal]:
    """Yield the totals by kind and receiver, and those over all receivers if there are several."""
    for kind in DISCLOSURE_KINDS:
        of_kind = [pair for pair in counted if pair[1].kind == kind]
        learners = list(dict.fromkeys(item.learner for _, item in of_kind))
        for learner in learners:
            total = sum_disclosures(pair for pair in of_kind if pair[1].learner == learner)
            yield YearTotal(kind, learner, total.count, total.share, total.of(kind))
        if len(learners) > 1:
            total = sum_disclosures(of_kind)
            yield YearTotal(kind, "all peers", total.count, total.share, total.of(kind))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.2%}"
