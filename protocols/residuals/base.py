"""Interface of residual protocols: passive parties learn their gradients from the active party's residual.

For a batch of n rows and c model outputs per row, the residual g (n, c) is the derivative of the loss by the outputs.
The active party, which has the labels, computes and publishes it. A passive party, which has only columns, has the
Jacobian J of its forward outputs by its parameters, and learns the gradient J^T g. An exchange is one published
residual with all requests about it. If g is encrypted, the active party decrypts products for passive parties; each
decryption is an opening. A reply is a residual as a passive party received it.

A `ResidualProtocol` can be combined with any sum protocol. It is an immutable option of a job that creates one role
object for each party. A local step is an update of the weights that a party computes from its own columns and a
residual that it already has. An observer in the same process, such as an audit, may read the gradients.
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
    """One party's data for the rows of a batch.

    Attributes:
        index: number of the batch in the epoch.
        epoch: number of the epoch.
        X: the party's columns (n, d).
        y: targets (n, c), at a party that has labels.
        rows: indices of the rows in the party's table, if known.
    """

    index: int
    epoch: int
    X: Floats
    y: Floats | None = None
    rows: NDArray[np.intp] | None = None

    @property
    def worker_seconds(self) -> float:
        """CPU seconds that worker processes have spent on the batch's rows since this property was last read."""
        return self.X.makespan() if isinstance(self.X, ChunkedMatrix) else 0.0

    @property
    def labels(self) -> Floats:
        """The targets y (n, c). Raises PartiesError at a party that has no labels."""
        if self.y is None:
            raise PartiesError(
                f"this party has no labels for batch {self.index}",
                "run this step at the party with labels",
                code="SVFL-PARTIES-ROLE",
            )
        return self.y


@dataclass(frozen=True)
class Agreement:
    """The limits on the use of each residual and its format in messages, agreed by all parties before a run.

    The optimizer and the model determine them.

    Attributes:
        openings: number of gradients that the active party decrypts for a passive party in one exchange: one if J is
            independent of the weights, otherwise the number of local steps.
        max_open_exchanges: number of exchanges that a passive party may use at the same time. If a newer one begins,
            the oldest one is closed.
        shares_outputs: the kind of the passive parties' Jacobians; see `Jacobian`. If True, g is sent as (n, c),
            otherwise as (n * c, 1).
        subject: the data that the disclosed numbers are about; see `DisclosureRecord.kind`.
        group: the rows that the disclosed numbers are about; "bins" for class counts.
        word: if g and J contain integers, the number of bits that may be disclosed of each decrypted number; None to
            disclose complete numbers.
    """

    openings: int = 1
    max_open_exchanges: int = 1
    shares_outputs: bool = True
    subject: Literal["labels", "columns"] = "labels"
    group: Group = "training"
    word: int | None = None

    def facing(self, g: Floats) -> Floats:
        """Return g (n, c) in the shape that J^T is multiplied with.

        For a linear model g is unchanged, because all outputs have the same Jacobian. For other models it is one column
        (n * c, 1).
        """
        return g if self.shares_outputs else g.reshape(-1, 1)

    def matrix(self, J: Jacobian, me: str) -> Floats | ChunkedMatrix:
        """Return the matrix of a Jacobian. Raise ProtocolError unless the Jacobian is of the agreed kind."""
        if J.shares_outputs != self.shares_outputs:
            kinds = {True: "a linear model, whose outputs share a Jacobian", False: "a model that is not linear"}
            raise ProtocolError(
                f"{me} has {kinds[J.shares_outputs]}, but the parties agreed on {kinds[self.shares_outputs]}",
                "use the same kind of model at all passive parties",
                code="SVFL-JOB-MISMATCH",
            )
        return J.matrix

    def gradient(self, product: Floats) -> Floats:
        """Return the product of J^T and `facing(g)` in the shape of the model's gradient.

        For a linear model with d weights for each of c outputs the product (d, c) is unchanged. For another model with
        p weights the product (p, 1) becomes a vector (p,).
        """
        return product if self.shares_outputs else product[:, 0]

    def record(self, to: str, numbers: int, about: str) -> DisclosureRecord:
        """Return the disclosure record for values that the party `to` learns about the data of the party `about`."""
        return DisclosureRecord(to, self.subject, numbers, self.word or 64, about=(about,), group=self.group)


class Reply(ABC):
    """A residual that a passive party has received, perhaps encrypted. It can be used later, and from any thread.

    Attributes:
        exchange: number of the residual in the run, counted from 0.
    """

    exchange: int

    @abstractmethod
    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """Return the gradient J^T g, summed over the rows of the batch, in the shape of the model's parameters.

        Raise LimitError if more gradients are requested than the parties agreed on.
        """

    def repeat(self) -> None:  # noqa: B027
        """Repeat the latest request to the active party, and discard the answer.

        A party that needs no new gradient calls this instead of `gradient`, so that the number of its messages does not
        reveal this. It counts as one opening, like `gradient`, but no product is computed.
        """

    def close(self) -> None:  # noqa: B027
        """Close the exchange before all its openings are used: this party sends no more requests about it."""


class ActiveResidual(ABC):
    """The active party's role: it publishes residuals. A background thread answers the passive parties' requests."""

    @abstractmethod
    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        """Send a residual to some passive parties.

        Args:
            g: the residual (n, c).
            epoch: number of the epoch.
            to: names of the passive parties that receive it.
            resend_of: the record of this residual if it was already sent before the training was interrupted. It is
                then sent with the same noise as before, and allows only the openings that were not used.
        """

    def close(self) -> None:  # noqa: B027
        """Wait until all passive parties have closed; raise the error of the background thread, if it failed."""


class NotedReply(Reply):
    """A reply that reports every gradient to an observer in this process, such as an audit."""

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
    """The role of a passive party, which receives residuals and computes gradients from them."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    @final
    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes. An observer, if any, is shown its gradients."""
        reply, channel = self.receive(), self.context.channel
        return NotedReply(reply, channel) if channel.observed else reply

    @abstractmethod
    def receive(self) -> Reply:
        """Receive the next residual. Subclasses implement this method, and callers use `reply`."""

    def close(self) -> None:  # noqa: B027
        """Tell the active party that this party sends no more requests."""


class ResidualProtocol(MessageProtocol):
    """A protocol that lets passive parties learn their gradients J^T g."""

    @abstractmethod
    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the object by which the active party takes part in the protocol."""

    @abstractmethod
    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create the object by which a passive party takes part in the protocol."""

    @abstractmethod
    def declares(self) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message."""

    @property
    def label(self) -> str:
        """The name of the protocol in cost tables."""
        return self.name

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        """Describe how little decrypted values reveal in addition to gradients; empty if nothing is decrypted.

        Args:
            values: number of values that are decrypted in each epoch.
            epochs: number of epochs.
            columns: number of columns of g, over all products of an epoch; each has its check values.
            once: number of values that are decrypted once in a run, before the first epoch.

        Returns:
            One line of text.
        """
        return ""

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        """Return an upper bound on the bits that class counts reveal about the classes of rows.

        The bound holds whatever products a passive party requests in place of counts.

        Args:
            rows: number of rows, each of one of two classes.
            counts: number of counts.
            word: number of bits that are decrypted of each count.

        Returns:
            The number of bits.
        """
        return rows

    @property
    def seals(self) -> bool:
        """Whether passive parties cannot read the residual g, because it is encrypted."""
        return False

    @property
    def passive_view(self) -> str:
        """A few words for documents that describe which numbers a passive party learns."""
        return "its gradient J^T g" if self.seals else "g of every row of every batch"
