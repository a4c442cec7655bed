"""Forecasts for a job from the parties' disclosure ledgers: what it would add, and whether it is allowed.

A ledger lists what all earlier runs have disclosed of its owner's data, and has limits that the owner sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.consent.leak_check import leaks, refusal
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger, total_of, total_to
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import DisclosureTotal, sum_disclosures
from securevfl.disclosure.outputs import disclosures_of
from securevfl.errors import LeakageError
from securevfl.families.run_outputs import run_outputs
from securevfl.job import Job
from securevfl.protocols.residuals.defences import zcdp_epsilon

DELTA = 1e-6
"""The delta of (epsilon, delta) differential privacy, for which the epsilon of all runs with noise is reported."""


@dataclass(frozen=True)
class ForecastRow:
    """What one party has received and would receive of one kind of disclosure.

    Attributes:
        receiver: the party, or "all peers together".
        before: what earlier runs have disclosed to it.
        after: what they and the job disclose to it.
        limit: the limit of the ledger's owner; empty if there is none, or if it applies to another row.
    """

    receiver: str
    before: str
    after: str
    limit: str = ""


@dataclass(frozen=True)
class LedgerForecast:
    """The state of one party's ledger with regard to a job that has not run: earlier disclosures, limits, refusals.

    Attributes:
        before: entries of earlier runs that concern the same rows, and so count for the job.
        rows: a summary for the consent sheet, one row for each kind of disclosure and each receiving party.
        notes: sentences on the privacy guarantee of noise, if the job adds noise.
        refusals: reasons why the job would be refused.
    """

    before: list[LedgerEntry]
    rows: list[ForecastRow]
    notes: list[str]
    refusals: list[str]


def forecast(
    ledger: DisclosureLedger, party: str, register: Register, job: Job, sizes: RunShape, run: str = ""
) -> LedgerForecast:
    """Forecast what this job and earlier runs together disclose about a party. The ledger is not changed.

    Args:
        ledger: the party's disclosure ledger.
        party: the owner of the ledger.
        register: the ids of the party's table.
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        run: a run whose entries do not count, because this job resumes it; empty for none.

    Returns:
        The forecast.
    """
    disclosures = disclosures_about(party, job, sizes)
    before, refusals = ledger.forecast(register, disclosures, but=run)
    limits, rows, notes = ledger.read().limits, list[ForecastRow](), list[str]()
    by_run = [(entry.run, entry.disclosure) for entry in before] + [("this job", item) for item in disclosures]
    for kind in dict.fromkeys(item.kind for item in disclosures):
        limit = f"at most {limits[kind]}" if kind in limits else ""
        of_kind = [pair for pair in by_run if pair[1].kind == kind]
        everybody = dict.fromkeys(item.learner for _, item in of_kind)
        for learner in dict.fromkeys(item.learner for item in disclosures if item.kind == kind):
            so_far = total_to(before, kind, learner)
            after = sum_disclosures(pair for pair in of_kind if pair[1].learner == learner)
            rows.append(
                ForecastRow(
                    learner,
                    f"{so_far.of(kind)} in {_runs(so_far)}",
                    f"{after}",
                    limit if len(everybody) == 1 else "",
                )
            )
        if len(everybody) > 1:
            so_far, after = total_of(before, kind), sum_disclosures(of_kind)
            rows.append(ForecastRow("all peers together", f"{so_far.of(kind)} in {_runs(so_far)}", f"{after}", limit))
        if any(item.rho for item in disclosures if item.kind == kind):
            epsilon = zcdp_epsilon(sum(item.rho for _, item in of_kind), DELTA)
            notes.append(
                f"After this job: epsilon {epsilon:.3g} at delta {DELTA:g} for a row's label, over all runs and peers."
            )
    return LedgerForecast(before, rows, notes, refusals)


def _runs(total: DisclosureTotal) -> str:
    return f"{total.runs} run{'s' * (total.runs != 1)}"


def check_together(
    jobs: Sequence[tuple[Job, RunShape]],
    parties: Sequence[Party],
    ledgers: Mapping[str, DisclosureLedger],
    *,
    last: Sequence[tuple[Job, RunShape]] = (),
    extra: Sequence[Disclosure] = (),
) -> None:
    """Check that leak checks and ledgers would allow all these jobs, run one after the other; change no ledger.

    Without ledgers, this function assumes that one process has the tables of all parties. It then permits leaks that
    matter only between organisations.

    Args:
        jobs: the jobs and the sizes of their runs.
        parties: the parties, each with its name and its table.
        ledgers: ledgers of some of them, by name.
        last: jobs of which exactly one runs after these. Each of them must be allowed.
        extra: what is disclosed in addition to the jobs' outputs. Only ledgers count it.

    Raises:
        LeakageError: if a job would disclose more than is allowed.
    """

    def check(job: Job, sizes: RunShape) -> None:
        not_accepted = [leak for leak in leaks(job, sizes, earlier) if leak.name not in job.accepts]
        if refused := [leak for leak in not_accepted if ledgers or not leak.apart]:
            raise refusal(refused)

    earlier = list[Disclosure]()
    for job, sizes in jobs:
        check(job, sizes)
        earlier += disclosures_of(run_outputs(job.family, job, sizes))
    for job, sizes in last:
        check(job, sizes)
    for party in parties:
        if party.name not in ledgers:
            continue
        certain = [item for job, sizes in jobs for item in disclosures_about(party.name, job, sizes)]
        certain += [item for item in extra if party.name in item.about]
        ends = dict.fromkeys(tuple(disclosures_about(party.name, job, sizes)) for job, sizes in last) or {(): None}
        for end in ends:
            _, refusals = ledgers[party.name].forecast(party.register, [*certain, *end])
            if refusals:
                raise LeakageError("\n".join(refusals), "", code="SVFL-LIMIT-REACHED", party=party.name)


def disclosures_about(party: str, job: Job, sizes: RunShape) -> list[Disclosure]:
    """Return what a job discloses about a party. If another party sends the values, `numbers` is 0."""
    disclosures = disclosures_of(run_outputs(job.family, job, sizes))
    return [item.sent_by(party) for item in disclosures if party in item.about]
