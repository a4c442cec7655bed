"""Costs of a run: seconds of the critical path by kind of work, counters, and one row of a table.

The *critical path* is the longest chain of computations and messages that wait for each other, over all parties. Its
length is the time of the run. It is split by *phase* (preparation, training, evaluation) and *kind* of work (such as
encryption or communication). A phase consists of one or two *stages* (`Stage`): the preparation, of setup and offline
phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from securevfl.display import html
from securevfl.job import Job
from securevfl.runtime.clock import Path as LongestPath
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.training.model_part import ModelPart
from securevfl.training.text_table import format_table

COST_KINDS = {
    Kind.ENCRYPTION: "encryption",
    Kind.TRANSFERS: "transfers",
    Kind.LOCAL: "other computation",
    Kind.COMMUNICATION: "communication",
}
"""Kinds of work: homomorphic encryption, oblivious transfers, all other computation, and communication."""

COST_PHASES = {
    "preparation": (Stage.SETUP, Stage.OFFLINE),
    "training": (Stage.TRAIN,),
    "evaluation": (Stage.EVALUATE,),
}
"""Phases of a run. The preparation consists of the setup and the offline phase (`securevfl prepare`)."""

Split = dict[str, dict[str, float]]
"""Seconds by phase and kind of work, in the words of `COST_PHASES` and `COST_KINDS`."""


@dataclass(frozen=True)
class Costs:
    """The costs of one run in time and messages.

    Attributes:
        algorithm: name of the optimizer.
        protocol: name of the protocol.
        local_steps: number of local steps that a party takes per exchange, with the same residual.
        rounds: number of exchanges, or of iterations (`ModelPart.rounds`).
        path: seconds of the critical path (stages, kinds), from the start of the run to its end: in virtual time, or
            wall-clock time between organisations.
        counters: cost counters of the parties.
    """

    algorithm: str
    protocol: str
    local_steps: int
    rounds: int
    path: LongestPath
    counters: dict[str, CostCounters]

    @classmethod
    def of(cls, job: Job, parts: Mapping[str, ModelPart]) -> Costs:
        """Return the costs of a run, from the model parts of all parties or of one party alone."""
        reference = next((part for part in parts.values() if part.leads), next(iter(parts.values())))
        return cls(
            algorithm=job.optimizer.label,
            protocol=job.family.cost_label(job, len(reference.parties) - 1),
            local_steps=job.optimizer.steps,
            rounds=reference.rounds,
            path=max((part.path for part in parts.values()), key=lambda path: float(path.sum())),
            counters={name: part.counters for name, part in parts.items()},
        )

    def seconds(self, kind: Kind, stage: Stage = Stage.TRAIN) -> float:
        """Return the seconds of the critical path of one kind of work in one stage."""
        return float(self.path[stage, kind])

    @property
    def split(self) -> Split:
        """Seconds of the critical path by phase and kind of work (see `split_seconds`). Their sum is `total`."""
        return split_seconds(self.path)

    @property
    def parts(self) -> dict[str, float]:
        """The same seconds as `split` in one dict, under names such as "training: encryption"."""
        return {f"{phase}: {kind}": s for phase, kinds in self.split.items() for kind, s in kinds.items()}

    @property
    def measured(self) -> bool:
        """Whether costs are known; a run that is loaded from files has none."""
        return bool(self.path.sum() or any(counters.traffic or counters.ops for counters in self.counters.values()))

    @property
    def senders(self) -> str:
        """The parties whose messages `bytes` counts, in words; the part of one party counts only what it sent."""
        return "the parties" if len(self.counters) > 1 else next(iter(self.counters))

    @property
    def total(self) -> float:
        """Seconds of the critical path, from the start of the run to its end."""
        return float(self.path.sum())

    @property
    def training(self) -> float:
        """Seconds of the critical path in training, without setup, preprocessing and evaluation."""
        return float(self.path[Stage.TRAIN].sum())

    @property
    def bytes(self) -> int:
        """Bytes of all frames of preprocessing and training, over all parties."""
        return sum(
            counters.bytes_sent(stage) for counters in self.counters.values() for stage in (Stage.OFFLINE, Stage.TRAIN)
        )

    @property
    def ahead(self) -> float:
        """Seconds of the critical path in preprocessing, which takes place before the training."""
        return float(self.path[Stage.OFFLINE].sum())

    def row(self) -> dict[str, str | int | float | None]:
        """Return the run as a row like those of Table 2 of the FedBCD paper, with protocol and bytes added.

        The parts have columns such as training_encryption_s, one for each phase and kind of work. Values of a run that
        was loaded from files are None if the files do not contain them.
        """
        row: dict[str, str | int | float | None] = {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
            **{f"{name.replace(': ', '_').replace(' ', '_')}_s": seconds for name, seconds in self.parts.items()},
            "total_s": self.total,
            "bytes": self.bytes,
        }
        return row if self.measured else row | dict.fromkeys([key for key in row if key.endswith("_s")] + ["bytes"])

    def table(self, *others: Costs) -> str:
        """Return a text table of this run and other runs: for each run, a line for each phase and one for the total."""
        return format_table([line for costs in (self, *others) for line in costs.lines()])

    def lines(self) -> list[dict[str, str | int | float | None]]:
        """Return a line for each phase and one for the total: seconds by kind of work, or None for a run from files."""
        head: dict[str, str | int | float | None] = {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
        }
        split = self.split
        split["all"] = {kind: sum(kinds[kind] for kinds in split.values()) for kind in COST_KINDS.values()}
        lines = []
        for phase, kinds in split.items():
            seconds: dict[str, float | None] = {f"{kind.replace(' ', '_')}_s": value for kind, value in kinds.items()}
            seconds["total_s"] = sum(kinds.values())
            if not self.measured:
                seconds = dict.fromkeys(seconds)
            sent = self.bytes if phase == "all" and self.measured else None
            lines.append({**head, "phase": phase, **seconds, "bytes": sent})
        return lines

    def _repr_html_(self) -> str:
        lines = self.lines()
        return html.table(
            [key.replace("_", " ") for key in lines[0]],
            [["-" if value is None else value for value in line.values()] for line in lines],
        )


def split_seconds(path: LongestPath) -> Split:
    """Split the seconds of a path (stages, kinds) by phase and kind of work."""
    return {
        phase: {word: float(path[list(stages), kind].sum()) for kind, word in COST_KINDS.items()}
        for phase, stages in COST_PHASES.items()
    }


def rounded_parts(parts: Mapping[str, float], digits: int) -> dict[str, str]:
    """Format numbers so that the printed numbers add up to their printed sum.

    Args:
        parts: the numbers by name.
        digits: digits after the decimal point.

    Returns:
        The formatted numbers.
    """
    ends = [round(end, digits) for end in accumulate(parts.values(), initial=0.0)]
    return {name: f"{end - start:.{digits}f}" for name, (start, end) in zip(parts, pairwise(ends), strict=True)}


def rounded_split(path: LongestPath, digits: int) -> dict[str, dict[str, str]]:
    """Return the seconds of each phase of a run by kind of work, rounded so that they add up to the total.

    Args:
        path: seconds of the critical path (stages, kinds).
        digits: digits after the decimal point.

    Returns:
        The formatted seconds by phase and kind of work.
    """
    split = split_seconds(path)
    names = [f"{phase} {kind}" for phase, kinds in split.items() for kind in kinds]
    seconds = (value for kinds in split.values() for value in kinds.values())
    rounded = rounded_parts(dict(zip(names, seconds, strict=True)), digits)
    return {phase: {kind: rounded[f"{phase} {kind}"] for kind in kinds} for phase, kinds in split.items()}
