"""A kind of leak, which jobs accept by name, and one leak of a job as it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeakKind:
    """What a job may give away beyond its protocol's declaration, once all parties accept it by `name`.

    formula: when a job has it. remedy: what takes it away. attacks: the names of the audit's attacks that carry it out.
    A method lists its own beside those of all methods (`Family.leak_kinds`).
    """

    name: str
    formula: str
    remedy: str
    attacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leak:
    """One leak of a job as it stands: `who` learns `what`, and the remedy.

    apart: whether it is one between organisations alone: who has all tables in one process knows it anyway.
    """

    kind: LeakKind
    who: str
    what: str
    remedy: str
    apart: bool = False

    @property
    def name(self) -> str:
        """What a job accepts it by."""
        return self.kind.name

    def __str__(self) -> str:
        return f'{self.who}: {self.what}; {self.remedy}, or accept it with accepts = ["{self.name}"]'
