"""Interface of residual protocols: passive parties learn J^T g for a residual g = df/dH (n x c) of the active party.

A `ResidualProtocol` can be combined with any sum protocol. It is an immutable option that creates one role object for
each party.
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
    """One party's data of a batch.

    Attributes:
        index: number of the batch in the partition.
        epoch: number of the epoch.
        X: the party's columns (n x d).
        y: targets (n x c), at a party that has labels.
        rows: indices of the rows in the table, if known.
    """

    index: int
    epoch: int
    X: Floats
    y: Floats | None = None
    rows: NDArray[np.intp] | None = None

    @property
    def worker_seconds(self) -> float:
        """CPU seconds that other processes have spent on its rows since the last access."""
        return self.X.makespan() if isinstance(self.X, ChunkedMatrix) else 0.0

    @property
    def labels(self) -> Floats:
        """The targets y (n x c). Raises PartiesError at a party that has no labels."""
        if self.y is None:
            raise PartiesError(
                f"this party has no labels of batch {self.index}",
                "use the labels of the active party",
                code="SVFL-PARTIES-ROLE",
            )
        return self.y


@dataclass(frozen=True)
class Agreement:
    """What the parties of a residual protocol agree on before a run; the optimizer and the model determine it.

    Attributes:
        openings: number of gradients that a passive party may have decrypted for one exchange: one if J is independent
            of the weights, otherwise the number of local steps.
        max_open_exchanges: number of exchanges whose replies a passive party may hold at a time. A newer exchange
            closes the oldest one.
        shares_outputs: kind of the passive parties' Jacobians (`Jacobian`). It determines whether g (n x c) is sent as
            it is, or as n c rows of one output.
        subject: what the disclosed numbers are derived from; see `DisclosureRecord.kind`.
        group: the rows that the disclosed numbers are about; "bins" for class counts.
        word: bits of each decrypted number if g and J contain integers of which only that many bits may be disclosed;
            None to disclose complete numbers.
    """

    openings: int = 1
    max_open_exchanges: int = 1
    shares_outputs: bool = True
    subject: Literal["labels", "columns"] = "labels"
    group: Group = "training"
    word: int | None = None

    def facing(self, g: Floats) -> Floats:
        """Return g (n x c) in the shape that Jacobians of this kind multiply: unchanged, or as one column."""
        return g if self.shares_outputs else g.reshape(-1, 1)

    def matrix(self, J: Jacobian, me: str) -> Floats | ChunkedMatrix:
        """Return the matrix of a Jacobian. Raise ProtocolError unless it is of the agreed kind."""
        if J.shares_outputs != self.shares_outputs:
            kinds = {True: "that all outputs share", False: "of all outputs together"}
            raise ProtocolError(
                f"{me}: the model has a Jacobian {kinds[J.shares_outputs]}, the parties agreed on one "
                f"{kinds[self.shares_outputs]}",
                "use the same kind of model at all passive parties",
                code="SVFL-JOB-MISMATCH",
            )
        return J.matrix

    def gradient(self, product: Floats) -> Floats:
        """Return the product of J^T and `facing(g)` as a gradient: (d x c) unchanged, or (p x 1) as (p,)."""
        return product if self.shares_outputs else product[:, 0]

    def record(self, to: str, numbers: int, about: str) -> DisclosureRecord:
        """Return the record for a number of values that `to` learns about the data of `about`."""
        return DisclosureRecord(to, self.subject, numbers, self.word or 64, about=(about,), group=self.group)


class Reply(ABC):
    """A residual at a passive party. It can be stored, and used later and repeatedly, from any thread of the party.

    Attributes:
        exchange: number of the residual in the run, counted from 0.
    """

    exchange: int

    @abstractmethod
    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """Return J^T g, summed over the rows of the batch, in the shape of the model's parameters.

        Raise LimitError if more gradients are requested than the parties agreed on.
        """

    def repeat(self) -> None:  # noqa: B027
        """Repeat the latest request and discard the answer.

        So the messages do not reveal that this party needs no new gradient. It uses one opening, like `gradient`, and
        computes no product.
        """

    def close(self) -> None:  # noqa: B027
        """Close the exchange early: this party sends no more requests about it."""


class ActiveResidual(ABC):
    """The active party's role: it computes g. A background thread serves the passive parties' requests."""

    @abstractmethod
    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        """Send g (n x c) to some passive parties.

        Args:
            g: the residual.
            epoch: number of the epoch.
            to: the receivers.
            resend_of: the earlier release of this residual, if an earlier session has sent it. It then has the same
                noise, and only its remaining openings.
        """

    def close(self) -> None:  # noqa: B027
        """Wait until all passive parties have closed; raise the error of the serving thread, if any."""


class NotedReply(Reply):
    """A reply that reports every gradient to the party's observer."""

    def __init__(self, reply: Reply, channel: Channel) -> None:
        self.exchange = reply.exchange
        self._reply = reply
        self._channel = channel
        self._noted = False

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """Return J^T g; see `Reply.gradient`."""
        gradient = self._reply.gradient(model, batch)
        if not (self._noted and model.static_jacobian):
            self._channel.note(
                GradientLearned(batch.index, model.jacobian(batch.X), gradient, self._channel.gate.group)
            )
        self._noted = True
        return gradient

    def repeat(self) -> None:
        """Repeat the latest request; see `Reply.repeat`."""
        self._reply.repeat()

    def close(self) -> None:
        """Close the exchange; see `Reply.close`."""
        self._reply.close()


class PassiveResidual(ABC):
    """The role of a passive party, which needs J^T g."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    @final
    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes, and report its gradients to an observer."""
        reply, channel = self.receive(), self.context.channel
        return NotedReply(reply, channel) if channel.observed else reply

    @abstractmethod
    def receive(self) -> Reply:
        """Receive the next residual; the implementation of `reply`."""

    def close(self) -> None:  # noqa: B027
        """Report to the active party that this party sends no more requests."""


class ResidualProtocol(MessageProtocol):
    """A protocol by which passive parties learn J^T g."""

    @abstractmethod
    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the active party's role."""

    @abstractmethod
    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create a passive party's role."""

    @abstractmethod
    def declares(self) -> list[MessageDeclaration]:
        """Declare what each message reveals."""

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        """Describe in one line what decrypted values reveal in addition to gradients; empty if nothing is decrypted.

        Args:
            values: number of values decrypted in each epoch.
            epochs: number of epochs.
            columns: columns of g that are multiplied in an epoch; each has a check value.
            once: number of values decrypted before the first epoch.

        Returns:
            The description.
        """
        return ""

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        """Return an upper bound on the bits that a passive party learns about 0/1 marks, whatever it requests.

        Args:
            rows: number of marks.
            counts: number of counts.
            word: bits of each count.

        Returns:
            The number of bits.
        """
        return rows

    @property
    def seals(self) -> bool:
        """Whether g is hidden from passive parties."""
        return False

    @property
    def passive_view(self) -> str:
        """What a passive party learns, in a few words."""
        return "its gradient J^T g" if self.seals else "g of every row of every batch"
