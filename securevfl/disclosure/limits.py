"""Totals of what runs have told, and the limits that an owner sets to them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from securevfl.disclosure.counts import BIT_GROUPS, SUM_GROUPS, Disclosure, Kind
from securevfl.errors import ConfigError

DISCLOSURE_KINDS: tuple[Kind, ...] = ("labels", "columns", "scores", "ids")
KIND_UNITS: dict[Kind, str] = {
    "labels": "numbers about the labels",
    "columns": "numbers about each row",
    "scores": "scores",
    "ids": "answers to whether an id is in the table",
}
KIND_TOTALS: dict[Kind, str] = {"labels": "residuals", "columns": "columns"}  # what `Disclosure.of` counts


@dataclass(frozen=True)
class DisclosureTotal:
    """A total over runs: `count`, and `share` of what there is to tell (0 for scores and ids, which have no end)."""

    count: int
    share: float
    runs: int

    def exceeds(self, other: DisclosureTotal) -> bool:
        """Whether it is more than the other, in number or share."""
        return self.count > other.count or self.share > other.share

    def of(self, kind: Kind) -> str:
        """Describe this total in words, with its share where there is one."""
        share = f" ({self.share:.0%} of the {KIND_TOTALS[kind]})" if kind in KIND_TOTALS else ""
        return f"{self.count:,} {KIND_UNITS[kind]}{share}"

    def __str__(self) -> str:
        return f"{self.count:,}" + (f" ({self.share:.0%})" if self.share else "")


def sum_disclosures(told: Iterable[tuple[str, Disclosure]]) -> DisclosureTotal:
    """Add up the disclosures of one kind to one learner, each given with the run that made it.

    Those of an equal basis count once. What a run tells in several sessions adds up, but for equations of visits that
    were in one session alone. Of what one run tells about several groups of rows, or about several parties added up,
    the most counts, as no row is told about in all of them.
    """
    alike: dict[str, dict[object, list[Disclosure]]] = {}
    runs = set()
    for run, item in told:
        runs.add(run)
        basis = (
            f"basis {item.basis}"
            if item.basis
            else f"run {run}{f' {item.group}' * (item.group in BIT_GROUPS | SUM_GROUPS)}"
        )
        alike.setdefault(basis, {}).setdefault(None if item.basis else item.key, []).append(item)
    count, share = 0, 0.0
    for basis, groups in alike.items():
        sums = [largest(items) if basis.startswith("basis ") else sum_sessions(items) for items in groups.values()]
        count += max(each[0] for each in sums)
        share += max(each[1] for each in sums)
    return DisclosureTotal(count, share, len(runs))


def largest(items: Iterable[Disclosure]) -> tuple[int, float]:
    """Count and share of the largest."""
    items = list(items)
    return max(item.count for item in items), max(item.share for item in items)


def sum_sessions(items: Iterable[Disclosure]) -> tuple[int, float]:
    """Count and share of what the sessions of one run add up to: of equations about visits, at the visit that was in
    most sessions; of all else the sum."""
    items = list(items)
    spans = [item for item in items if item.visits is not None]
    rest = [item for item in items if item.visits is None]
    at = [
        [item for item in spans if item.visits is not None and item.visits[0] <= first < item.visits[1]]
        for first in {item.visits[0] for item in spans if item.visits is not None}
    ]
    count = max((sum(item.count for item in each) for each in at), default=0)
    share = max((sum(item.share for item in each) for each in at), default=0.0)
    return count + sum(item.count for item in rest), share + sum(item.share for item in rest)


@dataclass(frozen=True)
class Limit:
    """The most that a peer may be told about a table: a count, or with `share` a part of what there is to tell."""

    most: float
    share: bool = False

    @classmethod
    def parse(cls, kind: str, text: str) -> tuple[Kind, Limit | None]:
        """KIND and "40", "25%" or "none", which takes the limit away. ConfigError if it is none of these."""
        known = next((each for each in DISCLOSURE_KINDS if each == kind), None)
        if known is None:
            raise ConfigError(
                f"--limit {kind}={text}: one of {', '.join(DISCLOSURE_KINDS)} was expected; correct the kind"
            )
        if text == "none":
            return known, None
        share = text.endswith("%")
        if share and known not in KIND_TOTALS:
            raise ConfigError(f"--limit {kind}={text}: a number was expected, as {kind} have no end; write {kind}=1000")
        try:
            most = float(text.removesuffix("%"))
        except ValueError:
            most = -1.0
        if not 0 <= most < math.inf or (not share and most != int(most)):
            raise ConfigError(f'--limit {kind}={text}: a whole number, a percentage or "none" was expected; correct it')
        return known, cls(most / 100 if share else most, share)

    def allows(self, told: DisclosureTotal) -> bool:
        """Whether so much may be told."""
        return (told.share if self.share else told.count) <= self.most + 1e-9

    def left(self, told: DisclosureTotal) -> str:
        """Return what may still be told under this limit, in the limit's own form (a percentage or a count)."""
        left = max(0.0, self.most - (told.share if self.share else told.count))
        return f"{left:.0%}" if self.share else f"{left:,.0f}"

    def needed(self, told: DisclosureTotal) -> str:
        """Return the limit that would allow this total, in the limit's own form (a percentage or a count)."""
        return f"{math.ceil(told.share * 100 - 1e-9)}%" if self.share else str(told.count)

    def of(self, kind: Kind) -> str:
        """Describe this limit in words, for this kind of disclosure."""
        return f"{self.most:.0%} of the {KIND_TOTALS[kind]}" if self.share else f"{self.most:,.0f} {KIND_UNITS[kind]}"

    def __str__(self) -> str:
        return f"{self.most:.0%}" if self.share else f"{self.most:,.0f}"
