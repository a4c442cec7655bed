"""Kinds of leaks, and a leak of one job.

A leak is a disclosure beyond what the job's protocol declares. A job with a leak is refused by leak checks unless all
parties accept the leak, by listing the name of its kind in the job's option `accepts`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeakKind:
    """A kind of leak, which a job can accept by its name.

    A protocol family lists its own kinds in addition to those of all families (`Family.leak_kinds`).

    Attributes:
        name: the name by which jobs accept it.
        formula: the condition under which a job has such a leak, in words.
        remedy: changes of the job that avoid it.
        attacks: names of the audit's attacks that exploit it.
    """

    name: str
    formula: str
    remedy: str
    attacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leak:
    """One leak of a job.

    Attributes:
        kind: the kind of the leak.
        who: the party that learns more than the protocol declares.
        what: a clause that states what it learns, and why.
        remedy: changes of the job that avoid it.
        apart: True if the leak matters only if the parties run on separate machines. If one process has all tables, it
            knows the data anyway.
        acceptable: True if the job may run once it accepts the leak; False if only the remedy helps.
    """

    kind: LeakKind
    who: str
    what: str
    remedy: str
    apart: bool = False
    acceptable: bool = True

    @property
    def name(self) -> str:
        """The name of the leak's kind, by which a job accepts it."""
        return self.kind.name

    def __str__(self) -> str:
        """Return one line: the learning party, what it learns, the remedy, and how a job can accept the leak."""
        line = f"disclosure to {self.who}: {self.what}; {self.remedy}"
        return f'{line}, or accept it with accepts = ["{self.name}"]' if self.acceptable else line
