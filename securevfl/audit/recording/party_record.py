"""The record of one party's actions and received messages in a run.

A sum adds the outputs of the parties, its summands, for one of them. A residual is the derivative of a row's loss by
the model's output; to open a gradient means to decrypt it for a party. Phases are angles of random features (FDSKL). A
store is a server that holds each party's latest outputs (FDML): parties push outputs to it and pull sums from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from securevfl.base.arrays import Floats
from securevfl.protocols.number_spaces import Phases
from securevfl.protocols.observations import OthersSumLearned, OutputsPushed
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event


@dataclass(frozen=True)
class OpenedGradient:
    """A gradient that a party learned: `gradient` (d, c) = J^T g for its columns J (n, d) and the residuals g (n, c).

    If the outputs of the model have different J, then J is (n * c, p), `gradient` is (p, 1), and g has all n * c
    residuals in one column.

    Attributes:
        iteration: number of the iteration, -1 before the first.
        index: index of the batch in the schedule.
        J: derivatives of the outputs by the party's weights.
        gradient: the gradient that was opened.
    """

    iteration: int
    index: int
    J: Floats
    gradient: Floats


@dataclass(frozen=True)
class SumValues:
    """Values (n, c) of one sum on a batch: the total that a party collected, or the summand that it contributed."""

    iteration: int
    index: int
    values: Floats


@dataclass(frozen=True)
class PhaseSum:
    """The sum (n, D) of the other parties' phases that a party learned for one block of D features, modulo 2^bits."""

    iteration: int
    block: int
    bits: int
    phases: Phases


@dataclass(frozen=True)
class Receipt:
    """A message and the iteration in which it arrived; -1 before the first iteration."""

    iteration: int
    message: Message


@dataclass(kw_only=True)
class PartyRecord:
    """One party's actions and received messages in a run, in order.

    Attributes:
        batches: index of the batch of each iteration.
        opened_gradients: gradients that the party learned.
        bin_counts: counts of the positive class in the party's bins, as the party learned them.
        disclosures: the records that the party wrote of what it discloses to others.
        sums: totals that the party collected, or summands that it contributed, in training.
        receipts: messages that the party received.
        events: all messages that the party sent or received.
        phase_sums: sums of the other parties' phases that the party learned.
        residual_shares: the party's shares of residuals, read as numbers.
        pushed: outputs that the party pushed to a store.
        pulled_sums: sums that the party pulled from a store.
        training_sums: the positions of training sums among all sums of the party; all other sums belong to evaluations.
    """

    batches: list[int] = field(default_factory=list)
    opened_gradients: list[OpenedGradient] = field(default_factory=list)
    bin_counts: list[OpenedGradient] = field(default_factory=list)
    disclosures: list[DisclosureRecord] = field(default_factory=list)
    sums: list[SumValues] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    phase_sums: list[PhaseSum] = field(default_factory=list)
    residual_shares: list[SumValues] = field(default_factory=list)
    pushed: list[OutputsPushed] = field(default_factory=list)
    pulled_sums: list[OthersSumLearned] = field(default_factory=list)
    training_sums: set[int] = field(default_factory=set)
