"""What one party did and received in a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from securevfl.base.arrays import Floats
from securevfl.protocols.number_spaces import Phases
from securevfl.protocols.observations import OthersSumLearned, OutputsPushed
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event


@dataclass(frozen=True)
class Opening:
    """A gradient that a party learned: gradient (d x c) = J^T g for its own J (n x d) on batch `index`.

    Where its outputs share no J, J is (n c x p), gradient (p x 1), and g all n c residuals in a column.
    """

    visit: int
    index: int
    J: Floats
    gradient: Floats


@dataclass(frozen=True)
class Total:
    """A sum that the active party collected (n x c), or a part that a passive party gave to one."""

    visit: int
    index: int
    values: Floats


@dataclass(frozen=True)
class LearnedPhaseSum:
    """The sum of the others' phases of block k that a worker learned (n x D, residues modulo 2^bits)."""

    visit: int
    k: int
    bits: int
    phases: Phases


@dataclass(frozen=True)
class Receipt:
    """A message that came during a visit; -1 before the first."""

    visit: int
    message: Message


@dataclass(kw_only=True)
class PartyRecord:
    """What one party did and got in a run, in order.

    `entries` is what it has told, as it went through its door; `bins` what it was opened about classes in its bins;
    `shared` its words about residuals, read as numbers; `trained` the places of sums of training among all of its sums.
    """

    visits: list[int] = field(default_factory=list)
    opened_gradients: list[Opening] = field(default_factory=list)
    bin_counts: list[Opening] = field(default_factory=list)
    disclosures: list[DisclosureRecord] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    phases: list[LearnedPhaseSum] = field(default_factory=list)
    shared: list[Total] = field(default_factory=list)
    pushed: list[OutputsPushed] = field(default_factory=list)
    told: list[OthersSumLearned] = field(default_factory=list)
    trained: set[int] = field(default_factory=set)
