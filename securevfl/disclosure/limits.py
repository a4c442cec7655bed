"""Totals of disclosures over several runs, and the limits that a ledger's owner sets for them.

A ledger is a party's list of everything that its runs have disclosed about its tables. A disclosure has a kind (labels,
columns, scores or ids), a count (such as a number of equations), and a capacity: the count that would disclose
everything. Its share is count / capacity. A learner is a party that receives it. For the labels, the count is the
number of linear equations about *residuals*, the derivatives of the loss by the model's outputs, which determine the
labels. Disclosures with an equal identity are the same equations (`securevfl.disclosure.counts.Disclosure`). A run that
is interrupted and resumed has several sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from securevfl.disclosure.counts import BIT_GROUPS, SUM_GROUPS, Disclosure, Kind, in_column_bits
from securevfl.errors import ConfigError

DISCLOSURE_KINDS: tuple[Kind, ...] = ("labels", "columns", "scores", "ids")
KIND_UNITS: dict[Kind, str] = {
    "labels": "numbers about the labels",
    "columns": "numbers about each row",
    "scores": "scores",
    "ids": "answers to whether an id is in the table",
}
KIND_TOTALS: dict[Kind, str] = {"labels": "residuals", "columns": "columns"}
"""The noun in "25% of the residuals": what `Disclosure.capacity` counts, for the kinds that have a capacity."""


@dataclass(frozen=True)
class DisclosureTotal:
    """The total of one kind of disclosure over several runs.

    Attributes:
        count: the disclosed amount, in the unit of the kind (`KIND_UNITS`).
        share: the disclosed share of the amount that would disclose everything; 0 for scores and ids, which have no
            such amount.
        runs: number of runs.
        bits: bits about columns that evaluations of models on secret shares have disclosed. They are part of `share`,
            but not of `count`, which has another unit.
    """

    count: int
    share: float
    runs: int
    bits: int = 0

    def exceeds(self, other: DisclosureTotal) -> bool:
        """Return whether the count or the share of this total is larger than that of the other total."""
        return self.count > other.count or self.share > other.share

    def of(self, kind: Kind) -> str:
        """Return this total with the unit of a kind, as in "3 numbers about the labels (17% of the residuals)"."""
        share = f" ({self.percentage} of the {KIND_TOTALS[kind]})" if kind in KIND_TOTALS else ""
        amounts = [f"{self.count:,} {KIND_UNITS[kind]}"] if self.count or not self.bits else []
        amounts += [f"{self.bits:,} bits about columns"] if self.bits else []
        return f"{' and '.join(amounts)}{share}"

    @property
    def percentage(self) -> str:
        """The share as text. A share that is larger than 0 and would be rounded to 0% is "<1%"."""
        return "<1%" if 0 < self.share < 0.005 else f"{self.share:.0%}"

    def __str__(self) -> str:
        """Return the count, the bits if there are any, and the share as a percentage if it is not 0."""
        amounts = [f"{self.count:,}"] if self.count or not self.bits else []
        amounts += [f"{self.bits:,} bits"] if self.bits else []
        return " and ".join(amounts) + (f" ({self.percentage})" if self.share else "")


def sum_disclosures(disclosures: Iterable[tuple[str, Disclosure]]) -> DisclosureTotal:
    """Add up disclosures of one kind, over all learners.

    - Disclosures with an equal identity are the same equations and count once.
    - The sessions of a resumed run are added up, except that equations are added only to equations of the same step.
    - A run may have disclosures about several groups of rows, or about the summed columns of several sets of parties.
      Only the largest one to each learner counts, because no row is in all of them.
    - The learners of a run are added up, because they may pool what they know.
    - Bits about columns are added to `DisclosureTotal.bits`, because they cannot be compared with numbers about each
      row; the share contains both.

    Args:
        disclosures: pairs of a run's name and one of its disclosures.

    Returns:
        The total.
    """
    by_equations: dict[tuple[str, ...], dict[object, list[Disclosure]]] = {}
    runs = set()
    for run, disclosure in disclosures:
        runs.add(run)
        group = disclosure.group if disclosure.group in BIT_GROUPS | SUM_GROUPS else ""
        equations: tuple[str, ...] = (run, disclosure.learner, group)
        if disclosure.identity:
            equations = (disclosure.identity,)
        key = None if disclosure.identity else disclosure.key
        by_equations.setdefault(equations, {}).setdefault(key, []).append(disclosure)
    count, bits, share = 0, 0, 0.0
    for name, by_key in by_equations.items():
        sums = [largest(items) if len(name) == 1 else sum_sessions(items) for items in by_key.values()]
        largest_count = max(sum_count for sum_count, _ in sums)
        if any(in_column_bits(item) for items in by_key.values() for item in items):
            bits += largest_count
        else:
            count += largest_count
        share += max(sum_share for _, sum_share in sums)
    return DisclosureTotal(count, share, len(runs), bits)


def largest(disclosures: Iterable[Disclosure]) -> tuple[int, float]:
    """Return the largest count and the largest share of these disclosures; they may be those of different ones."""
    items = list(disclosures)
    return max(item.count for item in items), max(item.share for item in items)


def sum_sessions(disclosures: Iterable[Disclosure]) -> tuple[int, float]:
    """Return the count and the share that the sessions of one run disclose together.

    Disclosures that state their steps are added up for each step, and the step with the largest sum counts. All other
    disclosures are added up.
    """
    items = list(disclosures)
    unlimited = [item for item in items if item.steps is None]
    by_step = [
        [item for item in items if item.steps is not None and item.steps[0] <= step < item.steps[1]]
        for step in {item.steps[0] for item in items if item.steps is not None}
    ]
    count = max((sum(item.count for item in step_items) for step_items in by_step), default=0)
    share = max((sum(item.share for item in step_items) for step_items in by_step), default=0.0)
    return count + sum(item.count for item in unlimited), share + sum(item.share for item in unlimited)


@dataclass(frozen=True)
class Limit:
    """An upper bound of what all runs may disclose about one table to all peers together.

    Attributes:
        most: the largest count, or the largest share of everything if `share` is True.
        share: whether `most` is a share.
    """

    most: float
    share: bool = False

    @classmethod
    def parse(cls, kind: str, text: str) -> tuple[Kind, Limit | None]:
        """Read a limit.

        Args:
            kind: the kind of disclosure.
            text: "40", "25%", or "none" to remove the limit.

        Returns:
            The kind, and the limit or None.

        Raises:
            ConfigError: if the kind or the text is invalid.
        """
        known = next((name for name in DISCLOSURE_KINDS if name == kind), None)
        if known is None:
            raise ConfigError(
                f"--limit {kind}={text}: {kind} is not a kind of disclosure",
                f"choose one of {', '.join(DISCLOSURE_KINDS)}",
                code="SVFL-LIMIT-INVALID",
                kind=kind,
            )
        if text == "none":
            return known, None
        share = text.endswith("%")
        if share and known not in KIND_TOTALS:
            raise ConfigError(
                f"--limit {kind}={text}: a percentage has no meaning, because {kind} have no upper bound",
                f"write a number, such as {kind}=1000",
                code="SVFL-LIMIT-INVALID",
                kind=kind,
            )
        try:
            most = float(text.removesuffix("%"))
        except ValueError:
            most = -1.0
        if not 0 <= most < math.inf or (not share and most != int(most)):
            raise ConfigError(
                f"--limit {kind}={text}: {text} is neither a number nor a percentage",
                'write a whole number, a percentage or "none"',
                code="SVFL-LIMIT-INVALID",
                kind=kind,
            )
        return known, cls(most / 100 if share else most, share)

    def allows(self, total: DisclosureTotal) -> bool:
        """Return whether a total is within this limit."""
        return self._measure(total) <= self.most + 1e-9

    def is_used_up(self, total: DisclosureTotal) -> bool:
        """Return whether a total leaves nothing of this limit."""
        return self._measure(total) >= self.most - 1e-9

    def left(self, total: DisclosureTotal) -> str:
        """Return how much may still be disclosed after a total, as a percentage or a count like this limit."""
        left = max(0.0, self.most - self._measure(total))
        return f"{left:.0%}" if self.share else f"{left:,.0f}"

    def _measure(self, total: DisclosureTotal) -> float:
        """Return the share or the count of a total, whichever this limit restricts."""
        return total.share if self.share else total.count

    def needed(self, total: DisclosureTotal) -> str:
        """Return the smallest limit that allows a total, as a percentage or a count like this limit."""
        return f"{math.ceil(total.share * 100 - 1e-9)}%" if self.share else str(total.count)

    def of(self, kind: Kind) -> str:
        """Return this limit as text with the unit of a kind, such as "25% of the residuals"."""
        return f"{self.most:.0%} of the {KIND_TOTALS[kind]}" if self.share else f"{self.most:,.0f} {KIND_UNITS[kind]}"

    def __str__(self) -> str:
        """Return the limit as a percentage or a count."""
        return f"{self.most:.0%}" if self.share else f"{self.most:,.0f}"
