"""What a run cost: its critical path from start to end by what it went into, its books, one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from securevfl.display import html
from securevfl.runtime.clock import Books, Kind, Path, Stage

KINDS = {Kind.ENCRYPTION: "encryption", Kind.LOCAL: "other work", Kind.COMMUNICATION: "network"}
PARTS = "encryption_s", "local_s", "communication_s", "ahead_s", "evaluation_s"  # columns of `Costs.parts`


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
    path: Path
    books: dict[str, Books]

    def seconds(self, kind: Kind, stage: Stage = Stage.TRAIN) -> float:
        """Seconds of the critical path that went into `kind` in one stage."""
        return float(self.path[stage, kind])

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the critical path by what they went into; they add up to `total` (`spent`)."""
        return spent(self.path)

    @property
    def measured(self) -> bool:
        """Whether there are any: a run that is read from files has none."""
        return bool(self.path.sum() or any(books.traffic or books.ops for books in self.books.values()))

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
        return sum(books.bytes_sent(stage) for books in self.books.values() for stage in (Stage.AHEAD, Stage.TRAIN))

    @property
    def ahead(self) -> float:
        """Seconds on the critical path of work that could be done ahead of training."""
        return float(self.path[Stage.AHEAD].sum())

    def row(self) -> dict[str, str | int | float | None]:
        """One row of FedBCD Table 2, with the parts of the total, the protocol and the bytes beside it; None for what
        files do not keep."""
        row: dict[str, str | int | float | None] = {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
            **dict(zip(PARTS, self.parts.values(), strict=True)),
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


def spent(path: Path) -> dict[str, float]:
    """Split the seconds of a path (stage x kind) by what they went into.

    Meeting and training are split by kind of work. Work that could be done before the training (`securevfl prepare`)
    and evaluation stand by themselves, whatever they went into: which of them lie on the critical path differs from run
    to run where they are done beside the training.
    """
    by_kind = {word: float(path[[Stage.SETUP, Stage.TRAIN], kind].sum()) for kind, word in KINDS.items()}
    return by_kind | {"work ahead": float(path[Stage.AHEAD].sum()), "evaluation": float(path[Stage.EVALUATE].sum())}


def format_table(rows: Sequence[dict[str, str | int | float | None]]) -> str:
    """Rows of equal keys as aligned text: words to the left, figures to the right."""
    cells = [[_cell(value) for value in row.values()] for row in rows]
    heads = [key.replace("_s", " s") if key.endswith("_s") else key for key in rows[0]]
    words = [isinstance(value, str) for value in rows[0].values()]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in [heads, ["-" * width for width in widths], *cells]
    ]
    return "\n".join(lines)


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
