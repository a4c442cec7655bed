"""Counts of what a run discloses, from public sizes: equations about labels, numbers about columns, scores and ids.

The active party has the labels, and passive party k has d_k columns. In each *step*, on a batch of n rows, the active
party collects the sum f (n, c) of all parties' outputs and computes the *residual* g (n, c), the derivative of the loss
by f. Passive party k *opens* (learns) the gradient J^T g of its p_k parameters; J is the derivative of its outputs by
these parameters. If the residual is *sealed*, g itself stays encrypted. An *exchange* is one sum and one residual; with
one residual a party may take several *local steps*. A run that is interrupted and resumed has several *sessions*.

A disclosure has a *count*, and a *capacity*: the count that would disclose everything. Its kind defines both:
labels    equations about the n c numbers of g, which determine the labels; a gradient is p_k equations
columns   numbers, each a linear combination of one row's columns; an exchange discloses c numbers about each row.
          In a training on secret shares (`securevfl.families.shares`): bits
scores    sums f that joint evaluations disclose to the active party
ids       ids for which a party that requests scores learns whether they are in another party's table
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
"""Groups of disclosures about labels whose counts are bits, not equations: class counts of bins, opened weights of a
training on shares, and decisions to stop."""
SUM_GROUPS: frozenset[Group] = frozenset({"correlations", "weights", "evaluations"})
"""Groups of disclosures about columns that are sums over all rows, not numbers about each row: correlations, opened
weights, and evaluations of models on shares."""
COLUMN_BIT_GROUP: Group = "evaluations"
"""The group of disclosures about columns whose counts are bits."""


@dataclass(frozen=True)
class RunShape:
    """The public sizes of a run, which every party knows once all have exchanged their first messages.

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
        tables: digests of passive parties' columns, by which repeated equations are recognised. Without its digest, a
            party's equations count as new ones in every job.
        recovery_thresholds: how many numbers per row are enough to recover the columns of a party, for the tables that
            are available in this process (`securevfl.disclosure.column_recovery.numbers_for_recovery`).
        partition: name of the partition into batches (`securevfl.data.schedule.Schedule.name`).
        bins: number of bins of each passive party's columns, if these become weights of evidence (the log odds of the
            label in each bin). The party learns the class count of each bin: its number of positive rows.
        label_bits: upper bound of the entropy of a label of two classes in bits: 1, or less if the labels are available
            in this process.
        singled_out: number of rows whose label a party can compute from its class counts of bins, if its table is
            available in this process.
        helpers: parties without a table, which store or add up messages of the others.
        information: information content of a row of a party's columns, if its table is available in this process.
        rarest_label_rows: number of evaluated rows with the rarest label, if the labels are available in this process.
        start: number of steps that earlier sessions of this run have done. Only evaluations after it are counted.
        resumed: True if the run continues from weights that are not zero.
        openings: number of gradients that each passive party opens in a step, as an average over the run, if residuals
            are sealed: up to one for each local step.
        subset_epochs: the first epochs of a run may use only subsets of the rows; this is their number. It is stated if
            `epochs` is smaller than that of the complete run; None computes it from `epochs`.
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
    start: int = 0
    resumed: bool = False
    openings: float = 1.0
    subset_epochs: int | None = None

    @property
    def passives(self) -> tuple[str, ...]:
        """The passive parties, in their order."""
        return tuple(self.parameters)

    def recovery_threshold(self, names: Sequence[str]) -> float:
        """Return how many numbers per row are enough to recover the columns of these parties together.

        For a table that is not available in this process, half of the number of its columns is assumed.
        """
        return sum(self.recovery_thresholds.get(name, MAX_NUMBERS_PER_COLUMN * self.columns[name]) for name in names)

    @property
    def steps(self) -> int:
        """The number of steps of a run: one for each batch in each epoch."""
        return self.epochs * self.batches

    @property
    def bits_of_a_label(self) -> float:
        """Upper bound of the entropy of a label in bits, for any number of classes."""
        return math.log2(self.outputs) if self.outputs > 1 else self.label_bits

    @property
    def residuals(self) -> int:
        """The number n * c of residuals in the smallest batch."""
        return self.smallest_batch * self.outputs


@dataclass(frozen=True)
class Disclosure:
    """An amount that a run discloses to one party about other parties' data, such as 30 equations about 256 residuals.

    The unit of `count` and `capacity` depends on the kind:

    labels    `count` equations about the `capacity` residuals of a batch (n c). For the groups `bins`, `weights` and
              `verdicts` (decisions to stop a training): `count` of the `capacity` bits of all labels.
    columns   `count` numbers per row about `capacity` columns, for the rows of the group. For the groups `correlations`
              and `weights`: `count` sums over all rows; `capacity` such sums have as many bits as the columns. For the
              group `evaluations`: `count` of the `capacity` bits of the columns of all rows.
    scores    `count` sums f. `capacity` is 0, because scores have no upper bound.
    ids       `count` ids. `capacity` is 0 as well.

    Attributes:
        kind: the kind of disclosure.
        learner: the party that receives the values.
        about: the parties whose data the values are derived from.
        count: how much is disclosed, in the unit of the kind.
        capacity: how much would disclose everything, in the same unit.
        identity: identifies a set of equations (`securevfl.disclosure.identities`), so that the same equations are not
            counted twice. Of several disclosures with the same non-empty identity only one counts; disclosures with an
            empty identity always add up. The identity depends on the partition into batches and the columns of a linear
            model. It is set if everything is disclosed in any case, and otherwise only for a learner that the ledger's
            owner trusts, because the owner cannot check whether the learner uses the same batches and columns again.
            Numbers about columns have an empty identity, because the weights in them change.
        group: the rows (training, held out, new) or the statistics (bins, weights, ...) that are disclosed.
        numbers: number of values that `sender` sends for it; 0 if it follows from values that are counted elsewhere.
        steps: the first of the run's steps to which `count` refers, counted from 0, and the step after the last one;
            None if `count` does not depend on single steps. If two sessions of a resumed run both carry out a step,
            the equations that they open in this step add up.
        rho: privacy loss of a row's label (the parameter of zero-concentrated differential privacy) if noise protects
            the residuals, otherwise 0; it adds up over sessions and runs.
        sender: the party that sends the values; empty if each party of `about` sends them.
        basis: a description of the equations, such as "every residual", for people who read the ledger. Disclosures
            that differ only in this text are equal.
    """

    kind: Kind
    learner: str
    about: tuple[str, ...]
    count: int
    capacity: int
    identity: str = ""
    group: Group = "training"
    numbers: int = 0
    steps: tuple[int, int] | None = None
    rho: float = 0.0
    sender: str = ""
    basis: str = field(default="", compare=False)

    def sent_by(self, party: str) -> Disclosure:
        """Return this disclosure for the records of `party`: `numbers` is 0 if another party sends the values."""
        return replace(self, numbers=self.numbers if self.sender in ("", party) else 0, sender="")

    @property
    def key(self) -> tuple[Kind, str, tuple[str, ...], Group]:
        """Kind, learner, parties and group. Disclosures with equal keys concern the same data."""
        return self.kind, self.learner, self.about, self.group

    @property
    def share(self) -> float:
        """`count / capacity`, which may exceed 1; 0 if there is no capacity."""
        return self.count / self.capacity if self.capacity else 0.0


def in_column_bits(disclosure: Disclosure) -> bool:
    """Return whether the count of a disclosure is a number of bits about columns, as in evaluations on shares."""
    return disclosure.kind == "columns" and disclosure.group == COLUMN_BIT_GROUP


def earlier_share(disclosure: Disclosure, before: Sequence[Disclosure], same_job: Sequence[Disclosure] = ()) -> float:
    """Return how much the disclosures of earlier jobs add to the share (`count / capacity`) of a new disclosure.

    Only earlier disclosures of the same kind and about at least one of the same parties count. The disclosures to all
    peers count together: the peers of two jobs may be names of one organisation, or pool what they know. Shares of
    labels are added unchanged, because batches have different lengths in different jobs. For columns, earlier numbers
    per row are divided by the capacity of the new disclosure; their group of rows is ignored, because a training row of
    one job may be a held-out row of another. Sums over all rows are added as shares. Of several earlier disclosures
    with the same identity, the one with the largest share counts.

    Args:
        disclosure: the new disclosure.
        before: disclosures of earlier jobs.
        same_job: other disclosures of the new job. Earlier disclosures with the identity of one of them add nothing.

    Returns:
        The share to add.
    """
    known = {item.identity for item in (disclosure, *same_job)} - {""}
    total, by_identity = 0.0, dict[str, float]()
    for item in before:
        if item.kind != disclosure.kind or not set(item.about) & set(disclosure.about):
            continue
        if item.identity in known or "verdicts" in (item.group, disclosure.group):
            continue  # decisions to stop do not help to solve equations; only the ledger's limits count their bits
        per_row = disclosure.kind == "columns" and disclosure.capacity
        per_row = per_row and not SUM_GROUPS & {disclosure.group, item.group}
        share = item.count / disclosure.capacity if per_row else item.share
        if item.identity:
            by_identity[item.identity] = max(share, by_identity.get(item.identity, 0.0))
        else:
            total += share
    return total + sum(by_identity.values())
