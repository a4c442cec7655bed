"""What a whole run adds up to, counted from public sizes: equations about labels, numbers about columns, scores, ids.

No single message tells much; a run does, and several runs on one table do more. Four things are counted:

labels    A passive party that opens J^T g learns p_k equations about the n c residuals of a batch. One fixed
          partition repeats the same equations every epoch, so they count once; rows reshuffled every epoch bring new
          ones. A residual that is not sealed shows all n c. Where columns become weights of evidence it learns counts
          of the positive class in its bins as well, which are counted in bits of the labels of all training rows
          (`securevfl.disclosure.column_recovery`) and add up with the equations by their shares.
columns   Whoever collects a sum learns c numbers a row in every exchange, each a linear combination of the columns
          that are added up in it, with weights that move from one exchange to the next. From as many numbers a row as
          columns on, they span these columns. A sum in the clear shows the d_k columns of one party at a time; one
          that hides its parts shows those of all parties behind it together. Where parties take their steps in turn
          (sequential FedBCD), consecutive sums differ by one party's part alone, so each party is counted alone too.
          A residual that is not sealed shows f to the passive parties, who know y from its sign: each takes its own
          part off and has the sum of all others, the active party's among them. Where parties go at their own pace,
          each that pulls sums may see one other party move alone between two of them
          (`securevfl.families.fdml.fdml_family`). Rows that are held out take part in evaluations only, so they are
          counted apart.
scores    How many numbers f the joint evaluations tell the active party.
ids       Of how many ids a party that asks for scores is told whether they are in the table of a party that serves.

A job's method counts them (`securevfl.families`); guards, the consent sheet and the ledger read the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.information_content import InformationContent
from securevfl.runtime.disclosure_gate import Group

Kind = Literal["labels", "columns", "scores", "ids"]
BIT_GROUPS: frozenset[Group] = frozenset({"bins", "weights", "verdicts"})  # of which a count about labels is of bits
SUM_GROUPS: frozenset[Group] = frozenset({"correlations", "weights"})  # of which a number is a sum over all rows


@dataclass(frozen=True)
class RunShape:
    """The public sizes of a run: what every party knows once all have said hello.

    `rows` train and `held_out` rows do not; `batches` of at least `smallest_batch` rows are visited in each of
    `epochs`; `outputs` is c. `columns` holds d_k of every party, the active one first, and `parameters` p_k of every
    passive party, in the same order. `tables` may hold a digest of a passive party's columns by its name: only where it
    is known can two jobs be told to have asked the same equations; `partition` names their batches
    (`securevfl.data.schedule.Schedule.name`). `recovery_thresholds` may hold, for parties whose tables are at
    hand, how many numbers a row are enough to find their columns (`securevfl.disclosure.column_recovery.enough`).
    `helpers`
    are parties without a table. `information` may hold what a row of a party's columns holds, where its table is at
    hand;
    `rarest_label_rows` says how many of the rows that are evaluated have the rarest label, where labels are.
    are parties without a table. `resumed`: these are the sizes of the rest of a run, whose weights are no zeros.
    `openings`: gradients that each passive party has opened in a visit, on average, if residuals are sealed.

    Where columns become weights of evidence `bins` holds how many counts each passive party is told;
    `label_bits` is what a label holds at most, less than 1 where the labels are at hand, and `singled_out` says how
    many rows
    the counts of a party single out, where its table is.
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
        """Numbers a row that are enough to find the columns of these parties together; of an unknown table, half of
        as many as its columns."""
        return sum(self.recovery_thresholds.get(name, MAX_NUMBERS_PER_COLUMN * self.columns[name]) for name in names)

    @property
    def visits(self) -> int:
        """Visits to batches in all epochs."""
        return self.epochs * self.batches

    @property
    def residuals(self) -> int:
        """The n c residuals of the smallest batch."""
        return self.smallest_batch * self.outputs


@dataclass(frozen=True)
class Disclosure:
    """One thing that `learner` is told about the data of the parties `about`.

    labels    `count` equations of `capacity` residuals of a batch (n c); of the groups `bins`, `weights` and
    `verdicts`,
              bits of all that labels hold
    columns   `count` numbers a row of `capacity` columns that are added up, on the rows of the `group`; of the groups
              `correlations` and `weights` so many sums over all rows, of `capacity` such numbers, which hold as
              many bits as
              its columns in all rows
    scores    `count` numbers f; `capacity` is 0, as there is no number at which they were all
    ids       `count` ids; `capacity` is 0 likewise

    `basis` names the equations: a job that asks the same ones again (same partition, same columns, linear model) tells
    nothing more, so counts of an equal basis do not add up. An empty basis equals no other: such counts always add.
    Numbers about columns have none, as the weights move. Whoever gives the numbers knows no basis of its own: whether a
    peer asks the same ones is for the peer to say, so there is one only about peers that the ledger's owner trusts to
    follow the protocol, and where everything is told in any case.

    numbers: how many leave this party for it in all, 0 where it follows from numbers that are counted elsewhere.
    sender: who gives these numbers if not each of `about`.
    visits: of equations that stay the same, the visits to batches that they were opened in (first, behind the last):
    what is opened of one visit in two sessions adds up. rho: where labels are blurred, the zCDP of a row's label
    through its own residuals, which adds up over sessions and runs.
    """

    kind: Kind
    learner: str
    about: tuple[str, ...]
    count: int
    capacity: int
    basis: str = ""
    group: Group = "training"
    numbers: int = 0
    visits: tuple[int, int] | None = None
    rho: float = 0.0
    sender: str = ""

    def sent_by(self, party: str) -> Disclosure:
        """Return this disclosure with only those numbers counted that leave this party."""
        return replace(self, numbers=self.numbers if self.sender in ("", party) else 0, sender="")

    @property
    def key(self) -> tuple[Kind, str, tuple[str, ...], Group]:
        """What it is about: kind, learner, whose data, which rows."""
        return self.kind, self.learner, self.about, self.group

    @property
    def share(self) -> float:
        """Count / of, which may exceed 1; 0 where there is no `capacity`."""
        return self.count / self.capacity if self.capacity else 0.0


def earlier_share(own: Disclosure, before: Sequence[Disclosure], beside: Sequence[Disclosure] = ()) -> float:
    """Add up what `before` adds to the share of `own`: disclosures of the same kind, to the same learner, about any of
    the same parties.

    What is equal to something `beside` it, which the same job tells, adds nothing.

    Shares of labels add up as they are, since batches differ in length between jobs. Numbers about columns count
    against the columns of `own`, whichever group of rows they were about: rows change groups from job to job.
    Correlations, and weights that are told, are sums over all rows, and count by their share.
    """
    named = {each.basis for each in (own, *beside)} - {""}
    total = 0.0
    for item in before:
        if (item.kind, item.learner) != (own.kind, own.learner) or not set(item.about) & set(own.about):
            continue
        if (item.basis and item.basis in named) or "verdicts" in (item.group, own.group):
            continue  # verdicts are bits that no equation needs, and add up in the ledger alone
        named.add(item.basis)
        by_row = own.kind == "columns" and own.capacity and not SUM_GROUPS & {own.group, item.group}
        total += item.count / own.capacity if by_row else item.share
    return total
