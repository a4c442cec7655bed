"""The consent sheet of a search: what training all *alternatives* (combinations of option values) would disclose.

Below it is the sheet of the final training with the best alternative. `securevfl.organisations.tune` asks for consent
with this sheet. `explain_search` states the same in advance, from tables on this computer or from one table and the
sizes of the others. A party's *ledger* is a file that records and limits its disclosures in all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

from securevfl.consent.consent_sheet import ConsentSheet, explain
from securevfl.consent.sheet_document import WIDTH
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import LeakageError
from securevfl.families.run_facts import local_run_facts, pooled_run_facts
from securevfl.job import Job
from securevfl.protocols.alternative_choice import choice_bits, declares
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.score_ledger.score_limits import max_evaluations
from securevfl.training.search_disclosures import (
    check_search,
    column_bits,
    larger_amounts,
    measured_rows,
    most_disclosing,
)
from securevfl.training.tuning_grid import Grid, alternative_jobs, final_job, tuned_job

_HEAD = """\
This search trains {count} alternatives, one after the other, and then the best of them once more. You agree to all of
them or to none. Each alternative opens one sum of losses of the same {rows:,} held-out rows to {active}, and the last
training also opens the values below. Each training is measured once. So there are {measurements} measurements, and
no peer can have more of them.
At most {bits:,} bits about columns are opened if no training is repeated. If a peer states that it has lost a
checkpoint, a training is repeated; its counts of rows out of range are then opened again, and your ledger enters them.
{active} names the best alternative to the others, which discloses at
most {choice} bits about labels. Only the last training stores a model.
{alternatives}
{larger}The last training, for the alternative that discloses most:"""
_LARGER = """\
If another alternative is chosen, these amounts of the last training are larger than in the sheet below:
{lines}
"""


def search_sheet(
    alternatives: Mapping[str, Job],
    finals: Mapping[str, Job],
    shapes: Mapping[str, RunShape],
    rows: int,
    last_sheet: ConsentSheet,
) -> ConsentSheet:
    """Return the consent sheet of a search.

    Args:
        alternatives: the job of each alternative.
        finals: for each alternative, the job of the final training if that alternative is chosen.
        shapes: the public sizes of each alternative's run.
        rows: number of held-out rows on which each model is measured.
        last_sheet: the sheet of the final training, for the alternative whose training would disclose most.

    Returns:
        The sheet of all trainings.
    """
    bits = {name: column_bits(job, shapes[name]) for name, job in alternatives.items()}
    largest = most_disclosing(finals, shapes)
    larger = larger_amounts(finals, shapes, largest)
    head = _HEAD.format(
        larger=_LARGER.format(lines="\n".join(f"  {line}" for line in larger)) if larger else "",
        count=len(alternatives),
        rows=rows,
        active=shapes[largest].active,
        measurements=len(alternatives) + 1,
        bits=sum(bits.values()) + column_bits(finals[largest], shapes[largest]),
        choice=choice_bits(len(alternatives)),
        alternatives="\n".join(
            f"  {name}: at most {n} bits, by one sum of losses and range counts" for name, n in bits.items()
        ),
    )
    return ConsentSheet(f"{head}\n{last_sheet}\n\n{_messages(shapes[largest])}", f"{head}\n{last_sheet.first_screen}")


def _messages(shape: RunShape) -> str:
    """Return the section on the messages that a search adds to those of its trainings."""
    others = " and ".join(name for name in (*shape.columns, *shape.helpers) if name != shape.active)
    lines = [
        fill(
            f"{others}: {item.message.__name__} from {shape.active}: {item.reveals}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        )
        for item in declares()
    ]
    return "\n".join(["Messages of the search, in addition to those of its trainings", *lines])


class SearchForecast(NamedTuple):
    """What a search would disclose.

    Attributes:
        sheet: the consent sheet, as the parties of the search see it.
        refusals: reasons for which a search between organisations would be refused, as sentences.
    """

    sheet: ConsentSheet
    refusals: tuple[str, ...]


def explain_search(
    job: Job,
    grid: Grid,
    parties: Sequence[Party],
    *,
    others: Mapping[str, int] | None = None,
    outputs: int | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
) -> SearchForecast:
    """Return what a search would disclose, before anything runs.

    Args:
        job: the options that all alternatives have in common.
        grid: the values of each option, such as `{"l2": (0.01, 0.1, 1)}`; all combinations are tried.
        parties: all parties with their tables, or one party if `others` is given.
        others: number of columns of each other party by name; see `explain`.
        outputs: number of outputs of the model; see `explain`.
        ledgers: ledgers of some of the parties, by name; the earlier disclosures and the limits in them count.

    Returns:
        The sheet of the search, and the reasons for which it would be refused.

    Raises:
        ConfigError: the job cannot be tuned, the grid contains an option or a value that cannot be used, or too few
            rows are held out.
    """
    alternatives = alternative_jobs(job, grid)
    finals = {name: final_job(tuned_job(job), alternative) for name, alternative in alternatives.items()}
    if others is None:
        lead, rest = check_parties(parties)
        parties = [lead, *rest]
        facts = {name: pooled_run_facts(final, parties) for name, final in finals.items()}
    else:
        (party,) = parties
        columns = {party.name: len(party.columns)} | dict(others) if party.active else dict(others) | {party.name: 0}
        facts = {name: local_run_facts(final, party, columns, outputs=outputs) for name, final in finals.items()}
    shapes = {name: item.shape for name, item in facts.items()}
    largest = most_disclosing(finals, shapes)
    measured = measured_rows(facts[largest].schedule, shapes[largest].outputs)
    rows, active = len(measured), shapes[largest].active
    last_sheet = explain(finals[largest], parties, others=others, outputs=outputs, ledgers=ledgers)
    sheet = search_sheet(alternatives, finals, shapes, rows, last_sheet)
    refusals, measurements = [], len(alternatives) + 1
    try:
        check_search(alternatives, finals, shapes, parties, ledgers or {})
    except LeakageError as error:
        refusals.append(str(error))
    is_limited, permitted = "small_metrics" not in job.accepts, max_evaluations(rows)
    for party in parties:
        ledger = (ledgers or {}).get(party.name)
        if is_limited and party.name != active and party.has_ids and ledger is not None and ledger.path.exists():
            try:
                ScoreLedger(ledger.path).check_evaluations(active, party.keys_of(measured), measurements)
            except LeakageError as error:
                refusals.append(f"{party.name}: {error}")
    if measurements > permitted and is_limited and not refusals:
        refusals.append(
            f"{rows:,} held-out rows may be measured {permitted} times, and the search measures them {measurements} "
            'times. List fewer alternatives, hold out more rows, or set accepts = ["small_metrics"] in the job'
        )
    return SearchForecast(sheet, tuple(refusals))
