"""Kinds of leaks, which jobs accept by name, and single leaks of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeakKind:
    """Something a job may disclose beyond its protocol's declaration, once all parties accept it by name.

    A protocol family lists its own kinds in addition to those of all families (`Family.leak_kinds`).

    Attributes:
        name: the name by which jobs accept it.
        formula: the condition under which a job has it.
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
        who: the party that learns something.
        what: what it learns.
        remedy: changes of the job that avoid it.
        apart: True if it is a leak between organisations only; a process that holds all tables knows the data anyway.
    """

    kind: LeakKind
    who: str
    what: str
    remedy: str
    apart: bool = False

    @property
    def name(self) -> str:
        """The name by which a job accepts it."""
        return self.kind.name

    def __str__(self) -> str:
        """Return one line with the learner, the leak and both remedies."""
        return f'{self.who}: {self.what}; {self.remedy}, or accept it with accepts = ["{self.name}"]'
