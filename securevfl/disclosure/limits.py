"""Totals of what runs have told, and the limits that an owner sets to them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.errors import ConfigError

KINDS: tuple[Kind, ...] = ("labels", "columns", "scores", "ids")
UNITS: dict[Kind, str] = {
    "labels": "equations about the labels of a batch",
    "columns": "numbers about each row",
    "scores": "scores",
    "ids": "answers to whether an id is in the table",
}
WHOLE: dict[Kind, str] = {"labels": "residuals", "columns": "columns"}  # what `Disclosure.of` counts


@dataclass(frozen=True)
class Told:
    """A total over runs: `count`, and `share` of what there is to tell (0 for scores and ids, which have no end)."""

    count: int
    share: float
    runs: int

    def exceeds(self, other: Told) -> bool:
        """Whether it is more than the other, in number or share."""
        return self.count > other.count or self.share > other.share

    def of(self, kind: Kind) -> str:
        """In words, with the share where there is one."""
        share = f" ({self.share:.0%} of the {WHOLE[kind]})" if kind in WHOLE else ""
        return f"{self.count:,} {UNITS[kind]}{share}"

    def __str__(self) -> str:
        return f"{self.count:,}" + (f" ({self.share:.0%})" if self.share else "")


def total(told: Iterable[tuple[str, Disclosure]]) -> Told:
    """The total of disclosures of one kind to one learner, each with the run that made it.

    Those of an equal basis count once. Of what one run tells about several groups of rows, or about several parties
    added up, the most counts, as no row is told about in all of them.
    """
    counts: dict[str, tuple[int, float]] = {}
    runs = set()
    for run, item in told:
        runs.add(run)
        basis = f"basis {item.basis}" if item.basis else f"run {run}{' bins' * (item.group == 'bins')}"
        count, share = counts.get(basis, (0, 0.0))
        counts[basis] = max(count, item.count), max(share, item.share)
    return Told(sum(count for count, _ in counts.values()), sum(share for _, share in counts.values()), len(runs))


@dataclass(frozen=True)
class Limit:
    """The most that a peer may be told about a table: a count, or with `share` a part of what there is to tell."""

    most: float
    share: bool = False

    @classmethod
    def parse(cls, kind: str, text: str) -> tuple[Kind, Limit | None]:
        """KIND and "40", "25%" or "none", which takes the limit away. ConfigError if it is none of these."""
        known = next((each for each in KINDS if each == kind), None)
        if known is None:
            raise ConfigError(f"--limit {kind}={text}: one of {', '.join(KINDS)} was expected; correct the kind")
        if text == "none":
            return known, None
        share = text.endswith("%")
        if share and known not in WHOLE:
            raise ConfigError(f"--limit {kind}={text}: a number was expected, as {kind} have no end; write {kind}=1000")
        try:
            most = float(text.removesuffix("%"))
        except ValueError:
            most = -1.0
        if not 0 <= most < math.inf or (not share and most != int(most)):
            raise ConfigError(f'--limit {kind}={text}: a whole number, a percentage or "none" was expected; correct it')
        return known, cls(most / 100 if share else most, share)

    def allows(self, told: Told) -> bool:
        """Whether so much may be told."""
        return (told.share if self.share else told.count) <= self.most + 1e-9

    def left(self, told: Told) -> str:
        """What may still be told, as the limit is written."""
        left = max(0.0, self.most - (told.share if self.share else told.count))
        return f"{left:.0%}" if self.share else f"{left:,.0f}"

    def needed(self, told: Told) -> str:
        """The limit that would allow so much, as it is written."""
        return f"{math.ceil(told.share * 100 - 1e-9)}%" if self.share else str(told.count)

    def of(self, kind: Kind) -> str:
        """In words."""
        return f"{self.most:.0%} of the {WHOLE[kind]}" if self.share else f"{self.most:,.0f} {UNITS[kind]}"

    def __str__(self) -> str:
        return f"{self.most:.0%}" if self.share else f"{self.most:,.0f}"
