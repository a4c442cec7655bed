"""What a job gives away beyond its protocol's declaration, and the guard that refuses what it does not accept.

A method lists the leaks of its jobs (`Family.leaks`), and their kinds, which jobs accept by name (`leak_kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import Leak
from securevfl.errors import ConfigError, LeakageError
from securevfl.job import Job


def leaks(job: Job, sizes: RunShape, before: Sequence[Disclosure] = ()) -> list[Leak]:
    """List what this job gives away beyond its protocol's declaration. ConfigError for a kind that its method does not
    list, as nobody could accept it.

    `before` is what earlier jobs have disclosed about the same tables; it counts as if it were part of this job.
    """
    family = job.family
    found = family.leaks(job, sizes, before)
    for leak in found:
        if leak.kind not in family.leak_kinds:
            raise ConfigError(f"leak {leak.name} is none of {family.name}; add it to its leak_kinds")
    return found


def guard(job: Job, sizes: RunShape, before: Sequence[Disclosure] = (), *, together: bool = False) -> list[Leak]:
    """LeakageError, one line a leak, unless the job accepts each by name.

    together: the tables of all parties are in one process, which knows by itself what is a leak between organisations
    alone; such leaks are returned.
    """
    refused = [leak for leak in leaks(job, sizes, before) if leak.name not in job.accepts]
    agreed = [leak for leak in refused if together and leak.apart]
    if len(refused) > len(agreed):
        raise LeakageError("\n".join(str(leak) for leak in refused if leak not in agreed))
    return agreed


def describe_leaks(leaks: Sequence[Leak]) -> str:
    """Say what a process that has all tables may do, and organisations would have to accept."""
    lines = "\n  ".join(map(str, leaks))
    return f"all tables are in this one process, which needs nobody's consent; organisations would be asked:\n  {lines}"
