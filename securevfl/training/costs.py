"""What a run cost: its critical path from start to end by what it went into, its counters, one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from securevfl.display import html
from securevfl.job import Job
from securevfl.runtime.clock import Path as LongestPath
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.training.model_part import ModelPart
from securevfl.training.text_table import format_table

COST_KINDS = {Kind.ENCRYPTION: "encryption", Kind.LOCAL: "other work", Kind.COMMUNICATION: "network"}

COST_COLUMNS = "encryption_s", "local_s", "communication_s", "ahead_s", "evaluation_s"  # columns of `Costs.parts`


@dataclass(frozen=True)
class Costs:
    """The costs of one run in time and messages.

    `path` is the critical path (stage x kind, seconds) from the start of the run to its end: in virtual time, or by the
    clock where parties are apart; `books` are the parties' books; `rounds` counts exchanges.
    """

    algorithm: str
    protocol: str
    local_steps: int
    rounds: int
    path: LongestPath
    counters: dict[str, CostCounters]

    @classmethod
    def of(cls, job: Job, parts: Mapping[str, ModelPart]) -> Costs:
        """Return what a run cost by the books of these parts, those of the leading party among them or one alone."""
        some = next((part for part in parts.values() if part.leads), next(iter(parts.values())))
        return cls(
            algorithm=job.optimizer.label,
            protocol=job.family.cost_label(job, len(some.parties) - 1),
            local_steps=job.optimizer.steps,
            rounds=some.rounds,
            path=max((part.path for part in parts.values()), key=lambda path: float(path.sum())),
            counters={name: part.counters for name, part in parts.items()},
        )

    def seconds(self, kind: Kind, stage: Stage = Stage.TRAIN) -> float:
        """Seconds of the critical path that went into `kind` in one stage."""
        return float(self.path[stage, kind])

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the critical path by what they went into; they add up to `total` (`spent`)."""
        return split_seconds(self.path)

    @property
    def measured(self) -> bool:
        """Whether there are any: a run that is read from files has none."""
        return bool(self.path.sum() or any(counters.traffic or counters.ops for counters in self.counters.values()))

    @property
    def total(self) -> float:
        """Seconds of the critical path, from the start of the run to its end."""
        return float(self.path.sum())

    @property
    def training(self) -> float:
        """Seconds on the critical path of training alone, without meeting, work ahead and evaluation: for methods that
        do nothing ahead."""
        return float(self.path[Stage.TRAIN].sum())

    @property
    def bytes(self) -> int:
        """Bytes of all frames of training, over all parties, with those of work ahead of it."""
        return sum(
            counters.bytes_sent(stage) for counters in self.counters.values() for stage in (Stage.OFFLINE, Stage.TRAIN)
        )

    @property
    def ahead(self) -> float:
        """Seconds on the critical path of work that could be done ahead of training."""
        return float(self.path[Stage.OFFLINE].sum())

    def row(self) -> dict[str, str | int | float | None]:
        """One row of FedBCD Table 2, with the parts of the total, the protocol and the bytes beside it; None for what
        files do not keep."""
        row: dict[str, str | int | float | None] = {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
            **dict(zip(COST_COLUMNS, self.parts.values(), strict=True)),
            "total_s": self.total,
            "bytes": self.bytes,
        }
        return row if self.measured else row | dict.fromkeys([key for key in row if key.endswith("_s")] + ["bytes"])

    def table(self, *others: Costs) -> str:
        """Format this run and others as text, one below the other."""
        return format_table([costs.row() for costs in (self, *others)])

    def _repr_html_(self) -> str:
        row = self.row()
        return html.table(
            [key.replace("_s", " s") if key.endswith("_s") else key for key in row],
            [["-" if each is None else each for each in row.values()]],
        )


def split_seconds(path: LongestPath) -> dict[str, float]:
    """Split the seconds of a path (stage x kind) by what they went into.

    RunHello and training are split by kind of work. Work that could be done before the training (`securevfl prepare`)
    and evaluation stand by themselves, whatever they went into: which of them lie on the critical path differs from run
    to run where they are done beside the training.
    """
    by_kind = {word: float(path[[Stage.SETUP, Stage.TRAIN], kind].sum()) for kind, word in COST_KINDS.items()}
    return by_kind | {"work ahead": float(path[Stage.OFFLINE].sum()), "evaluation": float(path[Stage.EVALUATE].sum())}
