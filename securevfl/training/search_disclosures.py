"""What a search discloses, whichever of its alternatives is chosen for the last training.

A search trains each *alternative* (combination of option values), and then one of them once more with all metrics,
scores and weights: the last training. Nobody knows beforehand which alternative is chosen, so every choice must be
allowed. The consent sheet, which each party agrees to before the search, states the last training that discloses most,
and all larger amounts of the last trainings of other alternatives. None of this depends on the order of the grid.

Terms: an `Output` is one sort of values that a run discloses to a party, such as gradients, and its *amount* is its
`count`. A party's *ledger* is a file that records and limits its disclosures in all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securevfl.consent.forecast import check_together
from securevfl.data.party import Party
from securevfl.data.schedule import Rows, Schedule
from securevfl.disclosure.counts import COLUMN_BIT_GROUP, Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.outputs import Output
from securevfl.errors import ConfigError
from securevfl.families.run_outputs import run_outputs
from securevfl.job import Job
from securevfl.protocols.alternative_choice import choice_bits
from securevfl.protocols.shares.opened_loss import MIN_LOSS_ROWS, select_measured


def check_search(
    alternatives: Mapping[str, Job],
    finals: Mapping[str, Job],
    shapes: Mapping[str, RunShape],
    parties: Sequence[Party],
    ledgers: Mapping[str, DisclosureLedger],
) -> None:
    """Check that leak checks and ledgers allow all trainings of a search, whichever alternative is chosen.

    Args:
        alternatives: the job of each alternative.
        finals: the job of the last training for each alternative.
        shapes: the public sizes of each alternative's run.
        parties: the parties, each with its name and its table.
        ledgers: ledgers of some of them, by name.

    Raises:
        LeakageError: if the trainings together would disclose more than is allowed.
    """
    trained, last = (
        [(jobs[name], shapes[name]) for name in _by_amount(jobs, shapes)] for jobs in (alternatives, finals)
    )
    choice = choice_disclosures(len(alternatives), shapes[_by_amount(finals, shapes)[0]])
    check_together(trained, parties, ledgers, last=last, extra=choice)


def choice_disclosures(alternatives: int, shape: RunShape) -> list[Disclosure]:
    """Return what the party with labels discloses to each other party when it names the chosen alternative.

    Args:
        alternatives: number of alternatives.
        shape: the public sizes of the search.

    Returns:
        One disclosure for each other party, in bits about the labels of the held-out rows.
    """
    capacity = max(1, int(shape.held_out * shape.bits_of_a_label))
    bits, about = choice_bits(alternatives), (shape.active,)
    others = [name for name in (*shape.columns, *shape.helpers) if name != shape.active]
    return [Disclosure("labels", name, about, bits, capacity, group="verdicts", numbers=1) for name in others]


def measured_rows(schedule: Schedule, outputs: int) -> Rows:
    """Return the held-out rows that each training of a search is measured on.

    Args:
        schedule: which rows are held out.
        outputs: number of outputs of the model.

    Returns:
        The positions of the rows.

    Raises:
        ConfigError: if there are too few held-out rows for their loss to be disclosed.
    """
    rows = select_measured(schedule.test, outputs)
    if len(rows) < MIN_LOSS_ROWS:
        raise ConfigError(
            f"a search compares losses on held-out rows and needs at least {MIN_LOSS_ROWS}, and there are {len(rows)}",
            "increase test_fraction, or use a table with more rows",
            code="SVFL-JOB-UNSUPPORTED",
            rows=len(rows),
        )
    return rows


def most_disclosing(finals: Mapping[str, Job], shapes: Mapping[str, RunShape]) -> str:
    """Return the name of the alternative whose last training discloses most.

    Trainings are compared by their bits about columns (`column_bits`). If these are equal, they are compared by the sum
    of all amounts, including opened weights and the bits of a score.
    """
    return _by_amount(finals, shapes)[0]


def _by_amount(jobs: Mapping[str, Job], shapes: Mapping[str, RunShape]) -> list[str]:
    """Return the names of the jobs, the most disclosing first; digests order jobs that disclose equal amounts."""

    def amounts(name: str) -> tuple[int, int, bytes]:
        job = jobs[name]
        return column_bits(job, shapes[name]), sum(_amounts(job, shapes[name]).values()), job.digest

    return sorted(jobs, key=amounts, reverse=True)


def larger_amounts(finals: Mapping[str, Job], shapes: Mapping[str, RunShape], alternative: str) -> list[str]:
    """Return a line for each amount that is larger in the last training of another alternative than of this one.

    Args:
        finals: the job of the last training for each alternative.
        shapes: the public sizes of each alternative's run.
        alternative: name of the alternative whose consent sheet states all amounts.

    Returns:
        The lines, sorted. Each names one amount and the largest value that it has in any alternative.
    """
    stated, largest = _amounts(finals[alternative], shapes[alternative]), dict[str, int]()
    for name, job in finals.items():
        for text, amount in _amounts(job, shapes[name]).items():
            largest[text] = max(amount, largest.get(text, 0))
    return [
        f"{text}: up to {amount:,} instead of {stated.get(text, 0):,}"
        for text, amount in sorted(largest.items())
        if amount > stated.get(text, 0)
    ]


def column_bits(job: Job, shape: RunShape) -> int:
    """Return the number of bits about columns that a training discloses.

    Sums of losses, (score, label) pairs, and counts of rows with scores out of range contain these bits.
    """
    return sum(output.count for output in column_outputs(job, shape))


def column_outputs(job: Job, shape: RunShape) -> list[Output]:
    """Return the disclosures (`Output`) of a training that are counted in bits about columns."""
    return [output for output in run_outputs(job.family, job, shape) if output.group == COLUMN_BIT_GROUP]


def _amounts(job: Job, shape: RunShape) -> dict[str, int]:
    """Return the amount of each `Output` of a training, by its name, receiver and source, and the bits of a score."""
    amounts = dict[str, int]()
    for output in run_outputs(job.family, job, shape):
        text = f"{output.name} to {output.receiver}, about {output.source}"
        amounts[text] = amounts.get(text, 0) + output.count
    return amounts | {"bits of each score of a new row": job.family.score_bits(job, shape)}
