"""Another family with another role: sums end at a server, which sends them to the party with labels.

The output of a passive party is the mean of its columns. The party with labels learns an intercept and a weight for
their sum. Every round:

1. passive k -> server   H_k (n x 1) into the job's sum
2. server -> active      Total: the sum
   active                a step on its two weights
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, SERVER, Role, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.disclosure.outputs import Output
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol
from securevfl.families.participant import Participant, Round
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.base import Model
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.optim.optimizer import Optimizer
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration, Reveal, declare_in_roles
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.observations import SumFinished
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.tree_sum import TreeSum
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord, Group


class Total(DisclosingMessage, frozen=True):
    """The sum of the outputs of all passive parties, (n, 1)."""

    values: NDArray[np.float64]


class Means(Model):
    """The mean of the columns of each party but the one with labels."""

    name: ClassVar[str] = "means"

    @property
    def loss(self) -> Loss:
        """The logistic loss."""
        return LOSSES["logistic"]

    def parameters(self, columns: int, outputs: int) -> int:
        """Return 0: a passive party has no parameters."""
        return 0


class Relaying(Optimizer):
    """Gradient steps on two weights."""

    name: ClassVar[str] = "relaying"
    family: ClassVar[str] = "relayed"


class RelayedJob(JobOptions, defer_build=True):
    """A job whose sums end at a server, with the types that the participant reads."""

    model: Means
    optimizer: Relaying


SEEN_BY_SERVER = LeakKind("seen_by_server", "the server learns every sum", "no server", ("column_space",))


class Relayed(Family[RelayedJob]):
    """Training with a server that receives all sums."""

    name: ClassVar[str] = "relayed"
    options = RelayedJob
    example_helpers = (("hub", "server"),)
    components = (Means, Relaying)
    leak_kinds = (*Family.leak_kinds, SEEN_BY_SERVER)

    def supports_model(self, model: type[Model]) -> bool:
        """Return whether this family trains the model."""
        return issubclass(model, Means)

    def check_job(self, job: JobOptions) -> None:
        """Raise ValueError if the job names a residual."""
        if job.protocol.residual is not None:
            raise ValueError("This family sends no residuals. Remove protocol.residual")

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Return whether a party may have this role."""
        return role == ACTIVE if leads else role in (PASSIVE, SERVER)

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the keys of a small job, by a name for tests."""
        keys = {"model": Means(), "optimizer": Relaying(lr=0.5), "protocol": Protocol(sum=TreeSum())}
        return {"relayed": keys | {"accepts": ("columns", SEEN_BY_SERVER.name)}}

    def declarations(self, job: RelayedJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare the messages of the sum, and the total."""
        passives = roles.with_role(PASSIVE)
        parts = job.protocol.sum_for(len(passives)).declares(passives)
        return [
            *declare_in_roles(parts, {COLLECTOR: (SERVER,), CONTRIBUTOR: (PASSIVE,)}, space=Reals),
            MessageDeclaration(Total, SERVER, ACTIVE, Reveal("plain", "the sum of the parts")),
        ]

    def outputs(self, job: RelayedJob, shape: RunShape) -> list[Output]:
        """List what a complete run discloses: to the server and then to the active party, the sum of each row."""
        (server,), evaluations = shape.helpers, EvaluationSchedule.of_run(job, shape).evaluations
        times: dict[Group, tuple[int, int]] = {"training": (shape.rows, shape.epochs)}
        if shape.held_out:
            times["held out"] = (shape.held_out, evaluations)
        else:
            times["training"] = (shape.rows, shape.epochs + evaluations)
        return [
            Output(
                "sums of means",
                "columns",
                receiver,
                shape.passives,
                "epoch",
                count,
                count,
                sum(shape.columns[name] for name in shape.passives),
                rows=rows,
                numbers=rows,
                group=group,
                leaks=leaks,
            )
            for receiver, leaks in ((server, ("columns", SEEN_BY_SERVER.name)), (shape.active, ("columns",)))
            for group, (rows, count) in times.items()
        ]

    def leaks(
        self, job: RelayedJob, shape: RunShape, outputs: Sequence[Output], before: Sequence[Disclosure] = ()
    ) -> list[Leak]:
        """Return the leak that every job of this family has."""
        return [Leak(SEEN_BY_SERVER, "the server", "it learns the sum of all means", "use a method without a server")]

    def message_protocols(self, job: RelayedJob, roles: Roles) -> list[MessageProtocol]:
        """Return the sum, whose messages the audit simulates."""
        return [job.protocol.sum_for(len(roles.with_role(PASSIVE)))]

    def title(self, job: RelayedJob, roles: Roles) -> str:
        """Return the first line of the consent sheet."""
        return f"{job.protocol.sum_for(len(roles.with_role(PASSIVE))).name} sum by way of a server"

    def strength(self, job: RelayedJob) -> str:
        """Return the assumption on which the secrecy rests."""
        return "none except the sum's"

    def coalitions(self, job: RelayedJob, roles: Roles) -> str:
        """Return which parties learn more if they pool what they have received."""
        passives = roles.with_role(PASSIVE)
        return job.protocol.sum_for(len(passives)).coalition(passives, "the server")

    def participant(self, job: RelayedJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Return the object that runs one party."""
        return RelayedParticipant(job, context, state)

    def ideal_job(self, job: J) -> J:
        """Return the job with the sum that the audit compares with: a trusted party adds the parts."""
        return job.model_copy(update={"protocol": Protocol(sum=DirectSum())})


class RelayedParticipant(BatchParticipant):
    """One party of a training, in any of the three roles."""

    def __init__(self, job: RelayedJob, context: PartyContext, state: State | None) -> None:
        super().__init__(job, context)
        self._context = context
        self._role = context.roles.role(context.me)
        self._server, passives = context.roles.only(SERVER), context.passives
        self._eta = job.optimizer.first
        self.weights: Floats = np.array([0.0, 1.0]) if state is None else state["weights"]
        if self._role != ACTIVE:
            self._sums = job.protocol.sum_for(len(passives)).role(context.sum_to(self._server, passives))

    def _exchange(self, X: Floats) -> Floats | None:
        """Take part in a sum; return that of the others' parts (n x 1) at the party with labels, None elsewhere."""
        channel = self._context.channel
        if self._role == PASSIVE:
            self._sums.contribute(X.mean(axis=1, keepdims=True), Reals())  # 1
        elif self._role == SERVER:
            total: Floats = self._sums.collect((len(X), 1), Reals())  # 1
            permit = channel.permit(
                DisclosureRecord(self._context.active, "columns", total.size, 64, about=self._context.passives)
            )
            channel.send(self._context.active, Total(total), permit=permit)  # 2
        else:
            return np.array(channel.recv(self._server, Total).values)  # 2
        return None

    def _work(self) -> Iterator[None]:
        for batch in self.batches():
            others = self._exchange(batch.X)
            if self._role != ACTIVE:
                self._channel.note(SumFinished(batch.index))
            if others is not None:
                g = self.residual(self._f(others), batch)
                move = np.array([g.mean(), (g * others).mean()])
                self.weights = self.weights - self._eta * move
            yield

    def _f(self, others: Floats) -> Floats:
        f: Floats = self.weights[0] + self.weights[1] * others
        return f

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train from round `start` on, and yield after each round."""
        self.begin(data, start)
        yield from self.rounds(self._work())

    def model_outputs(self, rows: RowSlices, scored_rows: RowsToScore | None = None) -> Floats | None:
        """Return the outputs (n, 1) of the model at the party with labels; None at the others."""
        others = self._exchange(rows[:])
        return None if others is None else self._f(others)

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return State(weights=self.weights)
