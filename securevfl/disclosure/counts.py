"""What a whole run discloses, counted from public sizes: equations about labels, numbers about columns, scores and ids.

A single message discloses little. A run discloses more, and several runs on one table more still. Four kinds are
counted:

labels    A passive party that opens J^T g learns p_k equations about the n c residuals of a batch. With one fixed
          partition into batches, the equations are the same every epoch and count once. With rows reshuffled every
          epoch, each epoch adds new equations. A residual that is not sealed discloses all n c numbers. If columns
          become weights of evidence, the party also learns how many rows of each of its bins are of the positive class.
          These counts are measured in bits of the labels of all training rows (`securevfl.disclosure.label_bits`), and
          their shares are added to those of the equations.
columns   The party that collects a sum learns c numbers per row in every exchange. Each number is a linear combination
          of the summed columns, with weights that change between exchanges. As many numbers per row as columns span
          these columns. A sum in the clear discloses the d_k columns of one party at a time. A sum that hides its parts
          discloses the columns of all its parties together. If parties step in turn (sequential FedBCD), consecutive
          sums differ by one party's part, so each party is also counted alone. A residual that is not sealed discloses
          f to the passive parties, who know y from its sign: each subtracts its part and has the sum of all others. If
          parties work at their own pace, each party that pulls sums may see one other party change alone between two
          pulls (`securevfl.families.fdml.fdml_family`). Held-out rows are used in evaluations only and are counted
          apart.
scores    The number of values f that the joint evaluations disclose to the active party.
ids       The number of ids for which a scoring party learns whether they are in the serving party's table.

The job's protocol family counts them (`securevfl.families`). Guards, the consent sheet and the ledger use the counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.information_content import InformationContent
from securevfl.runtime.disclosure_gate import Group

Kind = Literal["labels", "columns", "scores", "ids"]
BIT_GROUPS: frozenset[Group] = frozenset({"bins", "weights", "verdicts"})
"""Groups whose counts about labels are in bits."""
SUM_GROUPS: frozenset[Group] = frozenset({"correlations", "weights"})
"""Groups whose numbers are sums over all rows."""


@dataclass(frozen=True)
class RunShape:
    """The public sizes of a run, which every party knows after the hello messages.

    Attributes:
        active: the party with labels.
        rows: number of training rows.
        held_out: number of rows that are not trained on.
        batches: number of batches in an epoch.
        smallest_batch: number of rows of the smallest batch.
        epochs: number of passes over all batches.
        outputs: number of outputs c of the model.
        parameters: number of parameters p_k of each passive party.
        columns: number of columns d_k of each party, the active one first.
        tables: digests of passive parties' columns. Two jobs are known to ask the same equations only if it is known.
        recovery_thresholds: numbers per row that are enough to recover a party's columns, for tables that are
            available here (`securevfl.disclosure.column_recovery.numbers_for_recovery`).
        partition: name of the partition into batches (`securevfl.data.schedule.Schedule.name`).
        bins: number of counts that each passive party receives if columns become weights of evidence.
        label_bits: upper bound of the entropy of a label in bits; below 1 if the labels are available here.
        singled_out: number of rows that the counts of a party single out, if its table is available here.
        helpers: parties without a table.
        information: information content of a row of a party's columns, if its table is available here.
        rarest_label_rows: number of evaluated rows with the rarest label, if the labels are available here.
        resumed: True if the run continues from weights that are not zero.
        openings: average number of gradients that each passive party opens per step, if residuals are sealed.
    """

    active: str
    rows: int
    held_out: int
    batches: int
    smallest_batch: int
    epochs: int
    outputs: int
    parameters: Mapping[str, int]
    columns: Mapping[str, int]
    tables: Mapping[str, str] = field(default_factory=dict)
    recovery_thresholds: Mapping[str, float] = field(default_factory=dict)
    partition: str = ""
    bins: Mapping[str, int] = field(default_factory=dict)
    label_bits: float = 1.0
    singled_out: Mapping[str, int] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    information: Mapping[str, InformationContent] = field(default_factory=dict)
    rarest_label_rows: int | None = None
    resumed: bool = False
    openings: float = 1.0

    @property
    def passives(self) -> tuple[str, ...]:
        """The passive parties, in their order."""
        return tuple(self.parameters)

    def recovery_threshold(self, names: Sequence[str]) -> float:
        """Return how many numbers per row are enough to recover the columns of these parties together.

        For an unknown table, half of the number of its columns counts.
        """
        return sum(self.recovery_thresholds.get(name, MAX_NUMBERS_PER_COLUMN * self.columns[name]) for name in names)

    @property
    def visits(self) -> int:
        """Steps on batches in all epochs."""
        return self.epochs * self.batches

    @property
    def bits_of_a_label(self) -> float:
        """Upper bound of the entropy of a label in bits, for any number of classes. No other code derives it."""
        return math.log2(self.outputs) if self.outputs > 1 else self.label_bits

    @property
    def residuals(self) -> int:
        """The n c residuals of the smallest batch."""
        return self.smallest_batch * self.outputs


@dataclass(frozen=True)
class Disclosure:
    """One thing that a run discloses to a party about other parties' data.

    The unit of `count` and `capacity` depends on the kind:

    labels    `count` equations about the `capacity` residuals of a batch (n c). For the groups `bins`, `weights` and
              `verdicts`: bits, out of all bits of the labels.
    columns   `count` numbers per row about `capacity` summed columns, for the rows of the group. For the groups
              `correlations` and `weights`: sums over all rows; `capacity` such sums hold as many bits as the columns.
    scores    `count` values f. `capacity` is 0, because scores have no upper bound.
    ids       `count` ids. `capacity` is 0 likewise.

    Attributes:
        kind: what is disclosed.
        learner: the party that receives it.
        about: the parties whose data it is about.
        count: how much is disclosed, in the unit of the kind.
        capacity: how much there is to disclose, in the same unit.
        identity: identity of the equations (`securevfl.disclosure.identities`). A job that asks the same equations
            again (same partition and columns, linear model) discloses nothing new, so counts with an equal identity do
            not add up; counts without one always do. Numbers about columns have none, because the weights change. Only
            the peer can know whether it asks the same equations, so an identity is set only for peers that the ledger's
            owner trusts, or if everything is disclosed in any case.
        group: the rows or values it is about.
        numbers: numbers that this party sends for it; 0 if it follows from numbers that are counted elsewhere.
        visits: steps (first, last + 1) in which equations that stay the same are opened. Equations of one step that
            two sessions open add up.
        rho: zCDP parameter of a row's label through its residuals if labels are protected by noise; it adds up over
            sessions and runs.
        sender: the party that sends the numbers, if it is not each party of `about`.
        basis: the equations in words, for people who read the ledger. Nothing compares it.
    """

    kind: Kind
    learner: str
    about: tuple[str, ...]
    count: int
    capacity: int
    identity: str = ""
    group: Group = "training"
    numbers: int = 0
    visits: tuple[int, int] | None = None
    rho: float = 0.0
    sender: str = ""
    basis: str = field(default="", compare=False)

    def sent_by(self, party: str) -> Disclosure:
        """Return this disclosure with only the numbers that `party` sends."""
        return replace(self, numbers=self.numbers if self.sender in ("", party) else 0, sender="")

    @property
    def key(self) -> tuple[Kind, str, tuple[str, ...], Group]:
        """Kind, learner, parties and group: disclosures with the same key are about the same thing."""
        return self.kind, self.learner, self.about, self.group

    @property
    def share(self) -> float:
        """`count / capacity`, which may exceed 1; 0 if the capacity is unbounded."""
        return self.count / self.capacity if self.capacity else 0.0


def earlier_share(disclosure: Disclosure, before: Sequence[Disclosure], same_job: Sequence[Disclosure] = ()) -> float:
    """Return how much earlier disclosures add to the share of a new one.

    Only disclosures of the same kind and about a common party count, whoever has received them: the peers of two jobs
    may be names of one organisation, or pool what they know. Shares of labels add up as they are, because batches
    differ in length between jobs. Numbers about columns are divided by the columns of the new
    disclosure, whatever group of rows they were about, because rows change groups from job to job. Sums over all rows
    count by their share.

    Args:
        disclosure: the new disclosure.
        before: disclosures of earlier jobs.
        same_job: other disclosures of the new job; earlier ones with the same identity add nothing.

    Returns:
        The share to add.
    """
    known = {item.identity for item in (disclosure, *same_job)} - {""}
    total = 0.0
    for item in before:
        if item.kind != disclosure.kind or not set(item.about) & set(disclosure.about):
            continue
        if (item.identity and item.identity in known) or "verdicts" in (item.group, disclosure.group):
            continue  # stop decisions are bits that no equation needs; they add up in the ledger alone
        known.add(item.identity)
        per_row = disclosure.kind == "columns" and disclosure.capacity
        per_row = per_row and not SUM_GROUPS & {disclosure.group, item.group}
        total += item.count / disclosure.capacity if per_row else item.share
    return total
