"""What an audit hands back: findings, inferences, a verdict and an exit code."""

from __future__ import annotations

from dataclasses import dataclass, field

from securevfl.protocols.base import Declared

_STRONG, _WEAK = 0.8, 0.6  # label AUC from which an inference is called strong, and below which weak


@dataclass(frozen=True)
class Finding:
    """Something a party received that it should not have."""

    check: str
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.who}: {self.what}"


@dataclass(frozen=True)
class Inference:
    """What one attack got over all seeds: means, and the standard error of real minus simulated."""

    who: str
    name: str
    what: str
    paper: str
    real: float
    simulated: float
    chance: float
    error: float
    exceeds: bool
    remedy: str
    detail: str = ""

    @property
    def strength(self) -> str:
        """In words: how far the real score is from chance."""
        reach = (self.real - self.chance) / max(1e-9, 1.0 - self.chance)
        low, high = 2 * _WEAK - 1, 2 * _STRONG - 1
        return "strong" if reach >= high else "some" if reach >= low else "weak" if reach > 0.05 else "none"


@dataclass(frozen=True)
class Audit:
    """The outcome. `findings`, inferences that exceed and `refused` leaks make the exit code 1; `leaks` is accepted."""

    label: str
    roles: dict[str, str]
    declared: list[Declared]
    findings: list[Finding]
    inferences: list[Inference]
    leaks: list[str]
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    tests: int = 0
    seeds: int = 0
    seconds: float = 0.0
    lead: str = ""  # who holds the labels
    facts: dict[str, str] = field(default_factory=dict)  # when, of what and with what it was made

    @property
    def exceeding(self) -> list[str]:
        """Everything beyond what is declared and accepted, a line each."""
        found = [str(finding) for finding in self.findings] + [f"would be refused: {leak}" for leak in self.refused]
        return found + [
            f"{each.name}: {each.detail or each.who}: {each.real:.3f}, the declared output gives {each.simulated:.3f}"
            for each in self.inferences
            if each.exceeds
        ]

    @property
    def exit_code(self) -> int:
        return 1 if self.exceeding or self.failed else 0

    @property
    def level(self) -> str:
        """How bad it is for who brings data, whatever was declared: red, amber or green."""
        strengths = {each.strength for each in self.inferences}
        if self.exit_code or "strong" in strengths:
            return "red"
        return "amber" if "some" in strengths or self.leaks else "green"

    @property
    def verdict(self) -> str:
        """One line."""
        if self.exceeding:
            return f"{len(self.exceeding)} things exceed the declaration or what the job accepts"
        if self.failed:
            return "parts of the audit could not run"
        strong = sum(each.strength == "strong" for each in self.inferences)
        rest = f"; {strong} strong inferences are possible from what is declared" if strong else ""
        return f"nothing exceeds the declaration or what the job accepts{rest}"
