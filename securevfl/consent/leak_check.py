"""Leaks of a job, and the check that refuses a job with leaks that it does not accept.

A leak is a disclosure beyond what the job's protocol declares. A protocol family lists the leaks of its jobs
(`Family.leaks`) and the kinds of leaks (`leak_kinds`). A job accepts a kind by its name, in its option `accepts`. If
one process has the tables of all parties, leaks between organisations need not be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import Leak
from securevfl.errors import ConfigError, LeakageError
from securevfl.families.run_outputs import run_leaks
from securevfl.job import Job


def leaks(job: Job, sizes: RunShape, before: Sequence[Disclosure] = ()) -> list[Leak]:
    """List what this job discloses beyond its protocol's declaration.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables; it counts as if it were part of this job.

    Returns:
        The leaks.

    Raises:
        ConfigError: if a leak is of a kind that the protocol family does not list, so that nobody could accept it.
    """
    family = job.family
    job_leaks = run_leaks(family, job, sizes, before)
    for leak in job_leaks:
        if leak.kind not in family.leak_kinds:
            raise ConfigError(
                f"protocol family {family.name} reports a leak {leak.name} that its leak_kinds do not list",
                "add it to leak_kinds",
                code="SVFL-JOB-EXTENSION",
                leak=leak.name,
            )
    return job_leaks


def check_leaks(job: Job, sizes: RunShape, before: Sequence[Disclosure] = (), *, together: bool = False) -> list[Leak]:
    """Check that the job accepts each of its leaks by name.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables.
        together: True if this process has the tables of all parties. Leaks between organisations then need not be
            accepted.

    Returns:
        The leaks that were excused because of `together`: organisations would have to accept them.

    Raises:
        LeakageError: with one line for each leak that is not accepted.
    """
    not_accepted = [leak for leak in leaks(job, sizes, before) if leak.name not in job.accepts]
    excused = [leak for leak in not_accepted if together and leak.apart]
    refused = [leak for leak in not_accepted if leak not in excused]
    if refused:
        raise refusal(refused)
    return excused


def refusal(refused: Sequence[Leak]) -> LeakageError:
    """Return the error for leaks that a job has not accepted: one line for each leak, with its remedy."""
    lines = "\n".join(map(str, refused))
    return LeakageError(lines, "", code="SVFL-LEAK-NOT-ACCEPTED", leaks=tuple(leak.name for leak in refused))


def describe_excused(excused: Sequence[Leak]) -> str:
    """Return a notice about leaks that organisations would have to accept, but a process with all tables need not."""
    lines = "\n  ".join(map(str, excused))
    return f"all tables are in one process, so no consent is needed; organisations would have to accept:\n  {lines}"
