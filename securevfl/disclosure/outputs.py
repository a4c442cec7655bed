"""Outputs: the list of everything that a run discloses to each party, as data.

A protocol family (a kind of training, `securevfl.families`) lists the *outputs* of a job. An output is all values of
one sort, such as gradients, with their number, their bits, their receiver, and the parties whose data they are about.
Everything that counts, shows or limits disclosures reads this list: the leak checks, the consent sheet, the ledger
(which adds up all runs), the audit, and generated pages of the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from securevfl.disclosure.counts import COLUMN_BIT_GROUP, Disclosure, Kind
from securevfl.runtime.disclosure_gate import Group

Occasion = Literal["start", "step", "epoch", "count", "evaluation", "end"]


@dataclass(frozen=True)
class Output:
    """Values of one sort, such as gradients, that a run discloses to one party.

    Attributes:
        name: a plural noun that names the disclosed values, such as "gradients".
        kind: the kind of disclosure, which determines the units of `count` and `capacity`
            (`securevfl.disclosure.counts.Disclosure`).
        receiver: the party that learns the values.
        about: the parties from whose labels or columns the values are derived.
        occasion: the part of a run in which they are disclosed, such as "epoch". A "count" takes place
            after a number of epochs.
        times: maximum number of times that they are disclosed in a complete run.
        rows: number of rows that they are about, each time; 0 if they are about all rows together.
        numbers: number of values that `giver` sends each time; 0 if the output follows from other outputs.
        bits: bits of each number.
        count: how much a complete run discloses, in the unit of the kind.
        capacity: the count that would disclose everything, in the same unit; 0 if there is no such count.
        giver: the party that sends the values; empty if each party of `about` sends them.
        identity: identifies the linear equations that the output consists of. Outputs with the same non-empty identity
            are the same equations and count once; see `Disclosure`.
        group: the rows that it is about, such as "training" or "held out", or the statistics that it belongs to.
        rho: privacy loss of a complete run (the parameter of zero-concentrated differential privacy) if noise protects
            the values, otherwise 0.
        leaks: names of the leaks (`securevfl.disclosure.leaks`) that are checked for this output.
        basis: a description of the equations, such as "every residual", for people who read the ledger.
        words: the values in words, for people who read the consent sheet; empty for the name and the number of rows.
        explanation: sentences that explain the values to people who read the consent sheet.
    """

    name: str
    kind: Kind
    receiver: str
    about: tuple[str, ...]
    occasion: Occasion
    times: int
    count: int
    capacity: int = 0
    rows: int = 0
    numbers: int = 0
    bits: int = 64
    giver: str = ""
    identity: str = ""
    group: Group = "training"
    rho: float = 0.0
    leaks: tuple[str, ...] = ()
    basis: str = ""
    words: str = ""
    explanation: str = ""

    @property
    def total_numbers(self) -> int:
        """How many numbers the disclosing party (`giver`) sends in a complete run."""
        return self.times * self.numbers

    @property
    def disclosure(self) -> Disclosure:
        """The amount that a complete run discloses by this output, as leak checks and ledgers add it up."""
        return Disclosure(
            self.kind,
            self.receiver,
            self.about,
            self.count,
            self.capacity,
            self.identity,
            self.group,
            self.count if self.group == COLUMN_BIT_GROUP else self.total_numbers,  # in this group values count in bits
            rho=self.rho,
            sender=self.giver,
            basis=self.basis,
        )

    @property
    def in_words(self) -> str:
        """The values in words, such as "gradients (of 256 rows)"."""
        return self.words or self.name + (f" (of {self.rows:,} rows)" if self.rows and self.numbers else "")

    @property
    def source(self) -> str:
        """The data that the values are derived from, such as "columns of shop"."""
        return f"{'labels' if self.kind == 'labels' else 'columns'} of {', '.join(self.about)}"

    @property
    def amount(self) -> str:
        """How many values are sent, such as "3 in each of 6 steps", or "3" if they are sent once."""
        values = f"{self.numbers:,}" if self.numbers else f"{self.rows:,} rows" if self.rows else "all"
        return values if self.times == 1 else f"{values} in each of {self.times:,} {self.occasion}s"

    @property
    def share(self) -> str:
        """The share of the labels or columns that the values of a complete run disclose, as text, such as "12%".

        "-" if the share is 0 or no amount would disclose everything.
        """
        share = self.count / self.capacity if self.capacity else 0.0
        if not share:
            return "-"
        if share >= 1:
            return "all"
        return "<0.1%" if share < 0.001 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"

    def __str__(self) -> str:
        """Return one line: name, how often, number and bits of the values, rows, and the data they are derived from."""
        often = "once" if self.times == 1 else f"{self.times:,} times"
        plural = "" if self.numbers == 1 else "s"
        parts = [f"{often} ({self.occasion})"]
        parts += [f"{self.numbers:,} number{plural} of {self.bits} bits"] if self.numbers else []
        parts += [f"for {self.rows:,} rows"] if self.rows else []
        return f"{self.name}: {', '.join(parts)}; from {self.source}"


def combined_outputs(known: Mapping[str, Sequence[Output]]) -> list[Output]:
    """Combine the outputs of one run that several parties have listed, if all parties are in this process.

    Only a party itself knows the information content of its columns, and so the capacity of the outputs about it. Of an
    output about several parties, the smallest capacity counts, as in a process that has all tables.

    Args:
        known: for each party, the outputs of the run as it lists them. All lists have the same order.

    Returns:
        The outputs.
    """
    combined = []
    for views in zip(*known.values(), strict=True):
        bounded = [view for name, view in zip(known, views, strict=True) if name in view.about and view.capacity]
        combined.append(min(bounded, key=lambda view: view.capacity, default=views[0]))
    return combined


def disclosures_of(outputs: Iterable[Output]) -> list[Disclosure]:
    """Return what a complete run discloses; outputs that are about the same thing are added up.

    Outputs are about the same thing if they have the same kind, receiver, parties, group, identity and giver. Sums
    of training rows in training and in evaluations are an example.

    Args:
        outputs: all outputs of the run.

    Returns:
        The disclosures, in the order of the outputs.
    """
    merged: dict[object, Disclosure] = {}
    for output in outputs:
        item = output.disclosure
        key = (*item.key, item.identity, item.sender)
        if (other := merged.get(key)) is not None:
            item = replace(
                item, count=item.count + other.count, numbers=item.numbers + other.numbers, rho=item.rho + other.rho
            )
        merged[key] = item
    return list(merged.values())
