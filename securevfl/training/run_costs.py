"""Costs of a run: seconds of the critical path by kind of work, counters, and one row of a table."""

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

    Attributes:
        algorithm: name of the optimizer.
        protocol: name of the protocol.
        local_steps: number of local steps per exchange.
        rounds: number of exchanges.
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
        """Return the costs of a run from the parts of all parties, or of one party alone."""
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
    def parts(self) -> dict[str, float]:
        """Seconds of the critical path by kind of work (`split_seconds`); they add up to `total`."""
        return split_seconds(self.path)

    @property
    def measured(self) -> bool:
        """Whether costs are known; a run that is loaded from files has none."""
        return bool(self.path.sum() or any(counters.traffic or counters.ops for counters in self.counters.values()))

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
        """Seconds of the critical path in preprocessing."""
        return float(self.path[Stage.OFFLINE].sum())

    def row(self) -> dict[str, str | int | float | None]:
        """Return one row of FedBCD Table 2, with the parts of the total, the protocol and the bytes.

        Values that files do not store are None.
        """
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
        """Return a text table of this run and others."""
        return format_table([costs.row() for costs in (self, *others)])

    def _repr_html_(self) -> str:
        row = self.row()
        return html.table(
            [key.replace("_s", " s") if key.endswith("_s") else key for key in row],
            [["-" if value is None else value for value in row.values()]],
        )


def split_seconds(path: LongestPath) -> dict[str, float]:
    """Split the seconds of a path (stages, kinds) by kind of work.

    Setup and training are split by kind. Preprocessing (`securevfl prepare`) and evaluation are listed separately,
    because which of their parts are on the critical path differs from run to run.
    """
    by_kind = {word: float(path[[Stage.SETUP, Stage.TRAIN], kind].sum()) for kind, word in COST_KINDS.items()}
    return by_kind | {
        "offline phase": float(path[Stage.OFFLINE].sum()),
        "evaluation": float(path[Stage.EVALUATE].sum()),
    }
