"""Forecasts from a party's ledger: what a job would add to earlier disclosures, and what would be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.consent.leak_guard import leaks
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import sum_disclosures
from securevfl.errors import LeakageError
from securevfl.families.evaluations import stop_decision_disclosures
from securevfl.job import Job
from securevfl.protocols.residuals.defences import zcdp_epsilon

DELTA = 1e-6  # that the epsilon of a defence over all runs is told at


@dataclass(frozen=True)
class LedgerForecast:
    """What a party's ledger says to a job: what runs have told `before`, its `lines` for people, and why not."""

    before: list[LedgerEntry]
    lines: list[str]
    refusals: list[str]


def forecast(
    ledger: DisclosureLedger, party: str, register: Register, job: Job, sizes: RunShape, run: str = ""
) -> LedgerForecast:
    """Foretell what was told of this party before and would be with this job, by its ledger, which stays as it is."""
    told = disclosures_about(party, job, sizes)
    before, refusals = ledger.forecast(register, told, but=run)
    limits, lines = ledger.read().limits, []
    for kind, learner in dict.fromkeys((item.kind, item.learner) for item in told):
        so_far = total_to(before, kind, learner)
        new = [(entry.run, entry.disclosure) for entry in before] + [("this job", item) for item in told]
        after = sum_disclosures(pair for pair in new if (pair[1].kind, pair[1].learner) == (kind, learner))
        runs = f"{so_far.runs} run{'s' * (so_far.runs != 1)}"
        limit = f"; at most {limits[kind]}" if kind in limits else ""
        lines.append(f"  {learner:<9} was told {so_far.of(kind)} in {runs}, with this job {after}{limit}")
        if new_rho := sum(item.rho for item in told if (item.kind, item.learner) == (kind, learner)):
            spent = sum(
                entry.disclosure.rho
                for entry in before
                if (entry.disclosure.kind, entry.disclosure.learner) == (kind, learner)
            )
            epsilon = zcdp_epsilon(spent + new_rho, DELTA)
            lines.append(
                f"  {'':<9} with this job epsilon {epsilon:.3g} at delta {DELTA:g} of a row's label, over all runs"
            )
    return LedgerForecast(before, lines, refusals)


def check_together(
    jobs: Sequence[tuple[Job, RunShape]], parties: Sequence[Party], ledgers: Mapping[str, DisclosureLedger]
) -> None:
    """Raise LeakageError unless these jobs of these sizes, one after the other, may tell all that they tell, by the
    guards and by the ledgers of these parties; nothing is entered.

    What is a leak between organisations alone is none without ledgers, as all tables are in one process then.
    """
    earlier, told = list[Disclosure](), dict[str, list[Disclosure]]()
    for job, sizes in jobs:
        found = [leak for leak in leaks(job, sizes, earlier) if leak.name not in job.accepts]
        if refused := [leak for leak in found if ledgers or not leak.apart]:
            raise LeakageError("\n".join(map(str, refused)))
        earlier += job.family.disclosures(job, sizes)
        for name in ledgers:
            told.setdefault(name, []).extend(disclosures_about(name, job, sizes))
    for party in parties:
        if party.name in ledgers:
            _, refusals = ledgers[party.name].forecast(party.register, told[party.name])
            if refusals:
                raise LeakageError("\n".join(refusals))


def disclosures_about(party: str, job: Job, sizes: RunShape) -> list[Disclosure]:
    told = [*job.family.disclosures(job, sizes), *stop_decision_disclosures(job, sizes)]
    return [item.sent_by(party) for item in told if party in item.about]
