"""What an audit hands back: findings, inferences, a verdict and an exit code."""

from __future__ import annotations

from dataclasses import dataclass, field

from securevfl.protocols.declarations import MessageDeclaration

FOUND = 0.03  # beyond chance by which a score counts as found at least
NO_MESSAGE = "none: it needs no message, only the party's own columns and a few labels; keep labels from it"  # a remedy


_STRONG, _WEAK = 0.8, 0.6  # label AUC from which an inference is called strong, and below which weak


@dataclass(frozen=True)
class Finding:
    """Something a party received that it should not have."""

    check: str
    party: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.party}: {self.problem}"


@dataclass(frozen=True)
class Inference:
    """What one attack got over all seeds: means, and `error`, the standard error of real minus simulated.

    noise: the standard error of the score itself, by rows and by seeds. two_sided: a score below chance serves as well,
    turned over, as that of an AUC does.
    """

    attacker: str
    name: str
    measures: str
    paper: str
    real: float
    simulated: float
    chance: float
    error: float
    exceeds: bool
    remedy: str
    detail: str = ""
    noise: float = 0.0
    two_sided: bool = False

    @property
    def score(self) -> float:
        """What an attacker reaches, who holds its declared output beside the messages and may turn its scores over."""
        reached = [self.real, self.simulated]
        return max(reached + [2 * self.chance - each for each in reached] if self.two_sided else reached)

    @property
    def above_chance(self) -> bool:
        """Whether the score is above chance by more than FOUND and three standard errors."""
        return self.score - self.chance > max(FOUND, 3 * self.noise)

    @property
    def reach(self) -> float:
        """How far the score is on the way from chance to 1; 0 if nothing is found."""
        return (self.score - self.chance) / max(1e-9, 1.0 - self.chance) if self.above_chance else 0.0

    @property
    def strength(self) -> str:
        """The reach in one word: strong, some, weak or none."""
        low, high = 2 * _WEAK - 1, 2 * _STRONG - 1
        if not self.above_chance:
            return "none"
        return "strong" if self.reach >= high else "some" if self.reach >= low else "weak"

    @property
    def unsent(self) -> bool:
        """Whether the attacker needs nothing that it was sent."""
        return self.remedy == NO_MESSAGE

    @property
    def figure(self) -> str:
        """The score and chance in figures; that it was turned over, where it was."""
        turned = self.two_sided and self.score > max(self.real, self.simulated)
        return f"{self.score:.2f}{', turned over' if turned else ''}; chance {self.chance:.2f}"


@dataclass(frozen=True)
class Audit:
    """The outcome. `findings`, inferences that exceed and `refused` leaks make the exit code 1; `leaks` is accepted.

    failed: attacks that could not be carried out though the job calls for them. skipped: those that were not, and why.
    """

    label: str
    roles: dict[str, str]
    declared: list[MessageDeclaration]
    findings: list[Finding]
    inferences: list[Inference]
    leaks: list[str]
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    tests: int = 0
    seeds: int = 0
    seconds: float = 0.0
    lead: str = ""  # who holds the labels
    facts: dict[str, str] = field(default_factory=dict)  # when, of what and with what it was made
    opens: dict[str, list[str]] = field(default_factory=dict)  # by whose labels: what others' columns open of them

    @property
    def exceeding(self) -> list[str]:
        """Everything beyond what is declared and accepted, a line each."""
        found = [str(finding) for finding in self.findings] + [f"would be refused: {leak}" for leak in self.refused]
        return found + [
            f"{inference.name}: {inference.detail or inference.attacker}: {inference.real:.3f}, "
            f"the declared output gives {inference.simulated:.3f}"
            for inference in self.inferences
            if inference.exceeds
        ]

    @property
    def exit_code(self) -> int:
        return 1 if self.exceeding or self.failed else 0

    @property
    def worst(self) -> Inference | None:
        """The attack that found most; None if none found anything."""
        found = [inference for inference in self.inferences if inference.above_chance]
        return max(found, key=lambda each: (each.exceeds, each.reach), default=None)

    @property
    def level(self) -> str:
        """How bad it is for who brings data, whatever was declared: red, amber or green."""
        strengths = {inference.strength for inference in self.inferences}
        if self.exit_code or "strong" in strengths:
            return "red"
        return "amber" if "some" in strengths or self.leaks else "green"

    @property
    def verdict(self) -> str:
        """One line, which names what was found most of."""
        most = "" if self.worst is None else f"; most was found by {self.worst.name} ({self.worst.figure})"
        if self.exceeding:
            return f"{len(self.exceeding)} things exceed the declaration or what the job accepts{most}"
        if self.failed:
            return f"parts of the audit could not run{most}"
        strong = [inference for inference in self.inferences if inference.strength == "strong"]
        sent, unsent = (sum(each.unsent == own for each in strong) for own in (False, True))
        rest = f"; {_inferences(sent)} possible from what is declared" if sent else ""
        rest += f"; {_inferences(unsent)} possible without any message" if unsent else ""
        return f"nothing exceeds the declaration or what the job accepts{rest}{most}"


def _inferences(count: int) -> str:
    return "1 strong inference is" if count == 1 else f"{count} strong inferences are"
