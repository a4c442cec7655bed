"""How a residual g = df/dH (n x c) goes down, and how J^T g is asked of it.

A `ResidualProtocol` goes with any sum. It is an option (frozen, named) that makes one role object for each party.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.errors import PartiesError, ProtocolError
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.differentiable import Differentiable, Jacobian
from securevfl.protocols.message_protocol import MessageProtocol, Release
from securevfl.protocols.observations import GradientLearned
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosureRecord, Group


@dataclass(frozen=True)
class Batch:
    """One party's side of a batch: `index` names it in the partition, X (n x d), targets y (n x c) or None; `rows` are
    the places of its rows in the table, where they are known."""

    index: int
    epoch: int
    X: Floats
    y: Floats | None = None
    rows: NDArray[np.intp] | None = None

    @property
    def worker_seconds(self) -> float:
        """Processor seconds that other processes have spent on its rows since this was last asked."""
        return self.X.makespan() if isinstance(self.X, ChunkedMatrix) else 0.0

    @property
    def labels(self) -> Floats:
        """The targets y (n x c), at a party that has them. Raises PartiesError at one that has none."""
        if self.y is None:
            raise PartiesError(f"batch {self.index}: labels were expected, this party has none; ask the one that leads")
        return self.y


@dataclass(frozen=True)
class Agreement:
    """What the parties of a residual protocol agree on beforehand; an optimizer and a model make it.

    openings: gradients that a passive party may have opened for one exchange: one where J does not move, as many as
    local steps where it does. kept: how many exchanges a passive party may hold replies of at a time; a newer one
    than these closes the oldest. shares_outputs: of which kind the passive parties' Jacobians are (`Jacobian`), and so
    whether g (n x c) goes down as it is or as n c rows of one output. tells, group: what the numbers that are opened
    follow from, and whether they are counts in bins. word: the bits of each number that are opened where g and the
    Jacobian are whole, None for whole numbers.
    """

    openings: int = 1
    max_open_exchanges: int = 1
    shares_outputs: bool = True
    tells: Literal["labels", "columns"] = "labels"
    group: Group = "training"
    word: int | None = None

    def facing(self, g: Floats) -> Floats:
        """Return g (n x c) as a Jacobian of this kind multiplies it: as it is, or its n c numbers in one column."""
        return g if self.shares_outputs else g.reshape(-1, 1)

    def matrix(self, J: Jacobian, me: str) -> Floats | ChunkedMatrix:
        """Return the matrix of a Jacobian, if it is of the kind agreed. ProtocolError if not."""
        if J.shares_outputs != self.shares_outputs:
            kinds = {True: "that all outputs share", False: "of all outputs together"}
            raise ProtocolError(
                f"{me}: a Jacobian {kinds[self.shares_outputs]} was agreed, the model has one "
                f"{kinds[J.shares_outputs]}; agree on what the passive parties' models are"
            )
        return J.matrix

    def gradient(self, product: Floats) -> Floats:
        """Return the product of that matrix with `facing` as a gradient: (d x c) as it is, or (p x 1) as (p,)."""
        return product if self.shares_outputs else product[:, 0]

    def record(self, to: str, numbers: int, about: str) -> DisclosureRecord:
        """Return the entry for so many numbers that `to` learns of what `about` has sealed, or sent as it is."""
        return DisclosureRecord(to, self.tells, numbers, self.word or 64, about=(about,), group=self.group)


class Reply(ABC):
    """A residual as a passive party holds it. May be kept, and asked later and again, from any thread of the party.

    `exchange` numbers the residuals of a run, from 0.
    """

    exchange: int

    @abstractmethod
    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """J^T g in the shape of the model's parameters, summed over the rows of the batch.

        LimitError where more is asked than was agreed.
        """

    def repeat(self) -> None:  # noqa: B027
        """Asks for what it asked last and drops the answer, so that messages do not tell that this party needed none.
        It spends what `gradient` would, without a product."""

    def close(self) -> None:  # noqa: B027
        """Give the reply up before a newer one does: nothing more will be asked of it."""


class ActiveResidual(ABC):
    """The side that computes g. What passive parties ask about it is served beside the thread that publishes."""

    @abstractmethod
    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        """Send g (n x c) to these parties: a new one, or one `again`.

        One that is sent again keeps the noise that it had and what is left of its openings.
        """

    def close(self) -> None:  # noqa: B027
        """Return when the passive parties have asked all they wanted; raise what went wrong in serving them."""


class NotedReply(Reply):
    """A reply of which every gradient learned is noted for who observes the party."""

    def __init__(self, reply: Reply, channel: Channel) -> None:
        self.exchange = reply.exchange
        self._reply = reply
        self._channel = channel
        self._asked = False

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._reply.gradient(model, batch)
        if not (self._asked and model.static_jacobian):
            self._channel.note(
                GradientLearned(batch.index, model.jacobian(batch.X), gradient, self._channel.gate.group)
            )
        self._asked = True
        return gradient

    def repeat(self) -> None:
        self._reply.repeat()

    def close(self) -> None:
        self._reply.close()


class PassiveResidual(ABC):
    """The side that needs J^T g."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    @final
    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes; observers of this party see what it learns of
        it."""
        reply, channel = self.receive(), self.context.channel
        return NotedReply(reply, channel) if channel.observed else reply

    @abstractmethod
    def receive(self) -> Reply:
        """Step 1 of `reply`: takes the residual in."""

    def close(self) -> None:  # noqa: B027
        """Tells the active party that nothing more will be asked."""


class ResidualProtocol(MessageProtocol):
    """A protocol by which the residual g reaches the passive parties."""

    @abstractmethod
    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the active party's side of the protocol."""

    @abstractmethod
    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create a passive party's side of the protocol."""

    @abstractmethod
    def declares(self) -> list[MessageDeclaration]:
        """Declare what each message of the protocol reveals."""

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        """Return what openings, `values` in each epoch, tell beside gradients, as a line for people; empty without any.

        columns: columns of g that are multiplied in an epoch, each of which is checked; once: values opened beside
        these, before the first epoch.
        """
        return ""

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        """Return the bits that a passive party is told of `rows` marks by so many counts in words of so many bits,
        whatever it asks."""
        return rows

    @property
    def seals(self) -> bool:
        """Whether passive parties are kept from seeing g."""
        return False

    @property
    def passive_view(self) -> str:
        """What a passive party learns, in a few words."""
        return "its own gradient J^T g" if self.seals else "g of every row of every batch"
