"""The result of an audit: findings, inferences, a verdict and an exit code.

A declaration states what each message of a protocol may disclose; a finding is a message that contradicts it. An
inference is the result of an attack, which is scored twice: on the real view, which is everything that a party received
in a run, and on the ideal view, which contains only the results that the declaration allows the party to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from securevfl.disclosure.outputs import Output
from securevfl.protocols.declarations import MessageDeclaration

MIN_EXCESS = 0.03
"""Minimum difference from chance that counts as an inference."""

NO_MESSAGE = "none: the attack needs no message, only the party's columns and a few labels; give the party no labels"
"""The remedy of attacks that need no message."""

_STRONG, _WEAK = 0.8, 0.6  # an inference about labels is strong from the first AUC on, and weak below the second


@dataclass(frozen=True)
class Finding:
    """A fact about received data that contradicts the declaration of the messages.

    Attributes:
        check: the check that found it.
        party: the receiving party.
        problem: description of the received data.
    """

    check: str
    party: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.party}: {self.problem}"


@dataclass(frozen=True)
class Inference:
    """The result of one attack over all seeds; scores are means.

    Attributes:
        attacker: the attacking party.
        name: name of the attack.
        measures: text that states which quantity the score is, such as an AUC.
        paper: source of the attack.
        real: score on the real view.
        simulated: score on the ideal view.
        chance: score of a guess that uses no view.
        error: standard error of `real - simulated`.
        exceeds: whether the attack scores higher than the declaration allows, or shows a leak that the job does not
            accept.
        remedy: what would weaken the attack.
        detail: parties and columns that were found.
        noise: standard error of the score itself, over rows and over seeds.
        two_sided: whether a score below chance is as useful as one above, as that of an AUC is.
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
        """The best score of an attacker that has its declared output and the messages, and may reverse its ranking."""
        scores = [self.real, self.simulated]
        return max(scores + [2 * self.chance - score for score in scores] if self.two_sided else scores)

    @property
    def above_chance(self) -> bool:
        """Whether the score exceeds chance by more than MIN_EXCESS and by three standard errors."""
        return self.score - self.chance > max(MIN_EXCESS, 3 * self.noise)

    @property
    def reach(self) -> float:
        """The success of the attack from 0 to 1: (score - chance) / (1 - chance), or 0 if it is not above chance."""
        return (self.score - self.chance) / max(1e-9, 1.0 - self.chance) if self.above_chance else 0.0

    @property
    def strength(self) -> str:
        """The success of the attack (`reach`) in one word: strong, some, weak or none."""
        low, high = 2 * _WEAK - 1, 2 * _STRONG - 1
        if not self.above_chance:
            return "none"
        return "strong" if self.reach >= high else "some" if self.reach >= low else "weak"

    @property
    def unsent(self) -> bool:
        """Whether the attack uses only what the party has without receiving a message."""
        return self.remedy == NO_MESSAGE

    @property
    def figure(self) -> str:
        """The attack's score and the score by chance as text, and whether the attacker's ranking was reversed."""
        reversed_ranking = self.two_sided and self.score > max(self.real, self.simulated)
        return f"{self.score:.2f}{' with the ranking reversed' if reversed_ranking else ''}; chance {self.chance:.2f}"


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        label: description of the job.
        roles: role of each party.
        declared: declarations of what each message reveals.
        findings: facts about messages and views that contradict the declarations.
        inferences: results of the attacks.
        leaks: one sentence for each leak that the job accepts.
        refused: one sentence for each leak that the job does not accept.
        failed: attacks that could not run although the job calls for them.
        skipped: attacks that do not apply, with the reason.
        tests: number of p-values that were computed.
        seeds: number of seeds of the attacks.
        seconds: duration of the audit.
        lead: the party with labels.
        facts: date, job, tables and versions, by name.
        exposed_labels: for each party with labels, statements on labels that rare values in other parties' columns
            disclose.
        outputs: everything that a complete run discloses, as the consent sheet lists it.
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
    lead: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    exposed_labels: dict[str, list[str]] = field(default_factory=dict)
    outputs: Sequence[Output] = ()

    def plain(self) -> dict[str, Any]:
        """Return the result as lists and dicts that can be written as JSON."""
        texts = ("label", "lead", "seconds", "seeds", "tests", "facts", "roles", "exposed_labels")
        lists = ("leaks", "refused", "failed", "skipped")
        return {
            "exit_code": self.exit_code,
            "level": self.level,
            "exceeding": self.exceeding,
            **{key: getattr(self, key) for key in texts + lists},
            "findings": [asdict(finding) for finding in self.findings],
            "attacks": [
                {
                    **asdict(inference),
                    "exceeds": bool(inference.exceeds),  # a numpy bool cannot be written as JSON
                    "strength": inference.strength,
                    "score": inference.score,
                }
                for inference in self.inferences
            ],
        }

    @property
    def exceeding(self) -> list[str]:
        """One line for each finding or attack that exceeds what the messages declare or the job accepts."""
        lines = [str(finding) for finding in self.findings] + [f"would be refused: {leak}" for leak in self.refused]
        return lines + [
            f"{inference.name}: {inference.detail or inference.attacker}: {inference.real:.3f}, "
            f"the declared output gives {inference.simulated:.3f}"
            for inference in self.inferences
            if inference.exceeds
        ]

    @property
    def exit_code(self) -> int:
        """1 if something exceeds the declaration or if an attack failed to run, or else 0."""
        return 1 if self.exceeding or self.failed else 0

    @property
    def worst(self) -> Inference | None:
        """The most successful attack; None if no attack exceeds chance."""
        above = [inference for inference in self.inferences if inference.above_chance]
        return max(above, key=lambda inference: (inference.exceeds, inference.reach), default=None)

    @property
    def level(self) -> str:
        """The risk for the owners of data, as red, amber or green, whether or not the disclosures were declared."""
        strengths = {inference.strength for inference in self.inferences}
        if self.exit_code or "strong" in strengths:
            return "red"
        return "amber" if "some" in strengths or self.leaks else "green"

    @property
    def verdict(self) -> str:
        """One line that names the most successful attack."""
        worst = "" if self.worst is None else f"; the most successful attack is {self.worst.name} ({self.worst.figure})"
        if self.exceeding:
            return f"{len(self.exceeding)} things exceed the declaration or what the job accepts{worst}"
        if self.failed:
            return f"parts of the audit could not run{worst}"
        strong = [inference for inference in self.inferences if inference.strength == "strong"]
        sent, unsent = (sum(inference.unsent == kind for inference in strong) for kind in (False, True))
        details = f"{_inferences(sent)} possible from the declared output; " if sent else ""
        details += f"{_inferences(unsent)} possible without any message; " if unsent else ""
        return f"{details}nothing exceeds the declaration or what the job accepts{worst}"


def _inferences(count: int) -> str:
    return "1 strong inference is" if count == 1 else f"{count} strong inferences are"
