"""Transfer learning between two parties on few overlapping rows (Secure Federated Transfer Learning, Liu et al. 2018).

    guest (labels)   u_i^A = Net_A(x_i^A), Phi = mean of y_i u_i^A
    host             u_i^B = Net_B(x_i^B);   f_i = Phi u_i^B

    1. guest -> host   [[b_i]], [[Phi^T Phi]] under the guest's key     host -> guest   [[u_i^B]], [[mean u^T u]]
    2. each, Q times   J^T v for a J of its own, blinded; the other opens it; its own parameter gradient, a local step
    or, where networks are linearised, the first step so, and the others by one symmetric matrix (d x d) of the other's

Both directions are the encrypted vector-Jacobian product of a residual protocol, in which each party is once the one
that seals: `securevfl.families.transfer.taylor` has v and J. Q local steps on one exchange are those of FedBCD (Liu
et al. 2019,
sections 6 and 8), with a proximal term those of FedPBCD. The guest learns the loss beside its gradient.

Scores. The host seals u_j^B, the guest asks for Phi u_j^B (Algorithm 2 of the paper): it learns one number a row, the
host nothing.

What opened gradients add up to. The p + 1 numbers of a step are linear equations about the other's sealed vector, and
J moves, so those of Q steps and of many rounds are new ones: they tell labels to the host (`tells`) and, by and by,
representations to the guest, whatever the columns are. Scores of one row under a Phi that moves do the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.chunked_matrix import Sparse, made
from securevfl.base.roles import ACTIVE, PASSIVE, Roles
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.errors import ProtocolError
from securevfl.families.base import J, Known, MessageProtocol, Method, Told
from securevfl.families.player import BatchPlayer, Player, Round, State, TrainingData
from securevfl.families.rounds.rounds_counts import ResidualGoesDown
from securevfl.families.sizes import evaluated, evaluations, scores
from securevfl.families.transfer import taylor
from securevfl.families.transfer.transfer_model import DenseNetwork, Transfer
from securevfl.models.base import Model
from securevfl.optim.fedbcd import FedBCD
from securevfl.optim.rules import Training, Updater
from securevfl.options import JobOptions
from securevfl.protocols.choice import Protocol
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.differentiable import Jacobian
from securevfl.protocols.engines import Ckks
from securevfl.protocols.link import AskedRows, Link
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Batch, Reply, ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual, Residual
from securevfl.protocols.residuals.sealed_residual import Opened
from securevfl.runtime.channel import DisclosingMessage, DisclosureRecord, Group
from securevfl.runtime.codec import Numbers

# What the two parties of transfer learning send each other: a sealed vector each way, products of it, moments.
#
#     1. each -> the other   its vector, sealed                              `TwoWayExchange.publish`
#     2. each                J^T v for a matrix J of its own, opened         `TwoWayExchange.reply`
#     3. each -> the other   a symmetric matrix (d x d) in the clear         `TwoWayExchange.show`, if linearised
#
# Step 3 is Phi^T Phi of the guest's, from labels, and the mean of u^T u of the host's, from columns. One opened
# gradient tells the direction of Phi almost as well, to a cosine of .99 (`tests/security/test_transfer_leaks.py`).


class SecondMoments(DisclosingMessage, frozen=True):
    """The upper half of a symmetric matrix (d x d), which the other party's local steps bend by."""

    upper: Numbers


class AskedMatrix:
    """A matrix that a party asks a product with, as a residual protocol sees it: it moves with the weights."""

    static_jacobian = False
    shares_outputs = False

    def __init__(self, matrix: Sparse) -> None:
        self._matrix = matrix

    @property
    def parameters(self) -> int:
        return self._matrix.shape[1]

    def rows(self, X: Floats) -> int:
        return len(self._matrix)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        return self._matrix.backward(g)[:, 0]

    def jacobian(self, X: Floats) -> Jacobian:
        return Jacobian(made(self._matrix), shares_outputs=False)


class TwoWayExchange(Link):
    """Both directions between two parties: each seals a vector for the other and asks products of the other's."""

    def __init__(
        self, residual: ResidualProtocol, context: PartyContext, subchannel: str, asks: dict[str, int], openings: int
    ) -> None:
        """asks: how many numbers each party may ask for in one opening; who asks none is sent no vector."""
        (self._peer,) = (name for name in context.parties if name != context.me)
        self._context, self._subchannel = context, f"{context.subchannel}/{subchannel}/moments"
        self._sealer, self._asker = None, None
        for asker, most in asks.items():
            (sealer,) = (name for name in context.parties if name != asker)
            cast = Roles.labelled(sealer, [asker])
            tells: Literal["labels", "columns"] = "labels" if sealer == context.roles.lead else "columns"
            agreement = Agreement(openings, shares_outputs=False, tells=tells, group=context.channel.gate.group)
            own = replace(
                context,
                roles=cast,
                subchannel=f"{context.subchannel}/{subchannel}/{sealer}",
                parameters={asker: most},
                outputs=1,
            )
            if sealer == context.me:
                self._sealer = residual.active(own, agreement)
            else:
                self._asker = residual.passive(own, agreement)

    def publish(self, v: Floats, epoch: int) -> None:
        """Seals a vector (m,) for the other."""
        assert self._sealer is not None, "who publishes is asked"
        self._sealer.publish(v[:, None], epoch=epoch, to=[self._peer])

    def reply(self) -> Reply:
        """Return the vector that the other party has sealed for this one."""
        assert self._asker is not None, "who is answered asks"
        return self._asker.reply()

    def show(self, moments: Floats) -> Floats:
        """Send a symmetric matrix (d x d) of this party's in the clear, and return the other's."""
        channel, upper = self._context.channel, taylor.upper(moments)
        kind: Literal["labels", "columns"] = "labels" if channel.me == self._context.active else "columns"
        permit = channel.permit(DisclosureRecord(self._peer, kind, upper.size, 64, about=(channel.me,)))
        channel.send(self._peer, SecondMoments(upper), self._subchannel, permit=permit)  # 3
        other = np.asarray(channel.recv(self._peer, SecondMoments, self._subchannel).upper, np.float64)  # 3
        if other.shape != upper.shape or not np.isfinite(other).all():
            raise ProtocolError(
                f"{channel.me}: {self._peer} was expected to send {upper.size} finite moments, {other.shape} came; "
                "both sides must run the same release"
            )
        return taylor.whole(other, len(moments))

    def close(self) -> None:
        """End the exchange in good order: tell the other party that nothing more is asked, and wait for it to say the
        same."""
        if self._asker is not None:
            self._asker.close()
        if self._sealer is not None:
            self._sealer.close()


class ScoreMatrix(Sparse):
    """(m d x m): J^T of the representations of m rows, unit by unit, is Phi u_j for every row."""

    def __init__(self, phi: Floats, rows: int) -> None:
        self._phi, self._rows = phi, rows

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows * len(self._phi), self._rows

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        columns = self.columns(start, stop)
        unit, row = np.divmod(np.arange(start, stop), self._rows)
        found = np.zeros((stop - start, len(columns)))
        found[np.arange(stop - start), np.searchsorted(columns, row)] = self._phi[unit]
        return columns, found

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.unique(np.arange(start, min(stop, start + self._rows)) % self._rows)

    def backward(self, g: Floats) -> Floats:
        return (self._phi @ g.reshape(len(self._phi), self._rows))[:, None]


BLOCK = 512  # rows that are scored at a time


class TransferJob(JobOptions, defer_build=True):
    """A job of transfer learning: a network at each party, local steps in parallel, and a residual."""

    model: Transfer
    optimizer: FedBCD
    protocol: ResidualGoesDown


class TransferLearning(Method[TransferJob]):
    """Two parties, labels at one, a network at each, few rows in common."""

    name: ClassVar[str] = "transfer"
    options: ClassVar[type[JobOptions]] = TransferJob
    brings: ClassVar[tuple[type[Model] | type[Training], ...]] = (Transfer,)
    most: ClassVar[int | None] = 2

    def check(self, job: JobOptions) -> None:
        if job.protocol.residual is None:
            raise ValueError("protocol.residual: is missing; add it")
        if not isinstance(job.optimizer, FedBCD) or job.optimizer.mode != "parallel":
            raise ValueError(
                "transfer learning takes its local steps in parallel, on one exchange both ways; "
                'use fedsgd, fedpbcd, or fedbcd with mode = "parallel"'
            )
        job.optimizer.check_set()
        if getattr(job.protocol.residual, "defence", None) is not None:
            raise ValueError(
                "protocol.residual.defence: none was expected, defences blur a residual and transfer learning sends "
                "vectors of representations; leave it out"
            )

    def examples(self) -> dict[str, dict[str, Any]]:
        own: dict[str, Any] = {"model": Transfer(units=4), "optimizer": FedBCD(local_steps=2, lr=0.5)}
        own |= {"accepts": ("rank", "columns", "fresh_equations")}
        return {
            "transfer ckks": own | {"protocol": Protocol(residual=Ckks())},
            "transfer open": own | {"protocol": Protocol(residual=OpenResidual())},
            "transfer linearised": own
            | {"model": Transfer(units=4, linearised=True), "protocol": Protocol(residual=Ckks())},
        }

    def declares(self, job: TransferJob, roles: Roles) -> list[Declared]:
        shown = {
            ACTIVE: "the representations of every row, d numbers a row in every exchange",
            PASSIVE: "y Phi and the representations of every row, and so the labels",
        }
        found = []
        for sealer, asker in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE)):
            cast = {ACTIVE: sealer, PASSIVE: asker}
            for item in job.protocol.residual.declares():
                reveals = item.reveals
                if item.message is Residual:
                    reveals = Reveal("plain", shown[asker])
                elif item.message is Opened and asker == ACTIVE:
                    reveals = Reveal("output", "the receiver's own parameter gradient and the loss, or scores")
                elif reveals.kind == "ciphertext":
                    reveals = Reveal("ciphertext", cast[reveals.what])
                found.append(replace(item, sender=cast[item.sender], receiver=cast[item.receiver], reveals=reveals))
        if job.model.moments(job.optimizer.steps):
            found += [
                Declared(
                    SecondMoments, ACTIVE, PASSIVE, Reveal("plain", "Phi^T Phi of an exchange: Phi, but for its sign")
                ),
                Declared(
                    SecondMoments, PASSIVE, ACTIVE, Reveal("plain", "the mean of u^T u, of the host's representations")
                ),
            ]
        return list(dict.fromkeys(found))

    def counts(self, job: TransferJob, sizes: Sizes) -> list[Disclosure]:
        (host,), guest, n = sizes.passives, sizes.active, sizes.smallest_batch
        visits, d = sizes.epochs * sizes.batches, job.model.units
        steps, moments = job.model.openings(job.optimizer.steps), job.model.moments(job.optimizer.steps)
        seals, p = job.protocol.residual.seals, job.model.parameters(sizes.columns[guest], 1)
        opened = ((p + 1) * steps + moments) * visits
        a_row = -(-opened // sizes.rows) if seals else d * sizes.epochs
        scored = evaluations(job, sizes) * (1 if seals else d)  # a score, or the representation that it is made of
        asked: dict[Group, int] = {"held out": scored} if sizes.held_out else {}
        asked["training"] = a_row + (0 if sizes.held_out else scored)
        vectors = sizes.epochs * sizes.rows * d + visits * (d * (d + 1) // 2 + moments)
        numbers = {"training": opened if seals else vectors, "held out": 0}
        where, rows = evaluated(job, sizes)
        size = min(BLOCK, rows // evaluations(job, sizes))
        numbers[where] += (
            evaluations(job, sizes) * -(-rows // (size * evaluations(job, sizes))) * size * (1 if seals else d)
        )
        found = [
            Disclosure("columns", guest, (host,), count, sizes.columns[host], group=group, numbers=numbers[group])
            for group, count in asked.items()
        ]
        if seals:
            asks = sizes.parameters[host]
            equations, numbers_told = asks * job.equations + moments * sizes.epochs, (asks * steps + moments) * visits
            labels = Disclosure("labels", host, (guest,), equations, n, numbers=numbers_told)
            return [labels, *found, *scores(job, sizes)]
        return [
            Disclosure("labels", host, (guest,), n, n, "every exchange", numbers=vectors),
            Disclosure("columns", host, (guest,), d * sizes.epochs, sizes.columns[guest]),
            *found,
            *scores(job, sizes),
        ]

    def protocols(self, job: TransferJob, roles: Roles) -> list[MessageProtocol]:
        return [job.protocol.residual]

    def title(self, job: TransferJob, roles: Roles) -> str:
        shown = " and second moments shown" if job.model.moments(job.optimizer.steps) else ""
        return f"{job.protocol.residual.name} vectors both ways, gradients opened{shown}"

    def strength(self, job: TransferJob) -> str:
        return job.protocol.residual.strength

    def openings(self, job: TransferJob, sizes: Sizes) -> str:
        model = job.model
        values = sum(model.parameters(d, 1) for d in sizes.columns.values()) + 1
        times = sizes.batches * job.model.openings(job.optimizer.steps)
        return job.protocol.residual.openings(times * values, sizes.epochs, columns=times * len(sizes.columns))

    def tells(self, job: TransferJob, roles: Roles, party: str, known: Known | None) -> list[Told]:
        sealed, steps = job.protocol.residual.seals, job.model.openings(job.optimizer.steps)
        p = "p" if known is None else str(job.model.parameters(known.sizes.columns[party], 1))
        n = "n" if known is None else str(known.sizes.smallest_batch)
        if roles.role(party) == ACTIVE:
            told = (
                f"its own gradient and the loss, {p} + 1 numbers in each of {steps} steps an exchange: new equations\n"
                f"about the host's representations of {n} rows, a share of which they tell over a run; scores, one\n"
                "number for every row predicted, which tell its representation over several evaluations"
                if sealed
                else "the host's representations of every row"
            )
            if job.model.moments(job.optimizer.steps):
                told += ";\nthe mean of u^T u of the host's representations, in every exchange"
            return [("learns", told)]
        told = (
            f"its own gradient, {p} numbers in each of {steps} steps an exchange, all of them new: equations about\n"
            f"the {n} labels. Least squares ranks these after four steps, to an AUC of 0.99 on a public table"
            if sealed
            else "y Phi of every row, whose sign is the label, and the guest's representations"
        )
        if job.model.moments(job.optimizer.steps):
            told += (
                ";\nPhi but for its sign, in every exchange: with it the host scores its own rows itself, and one\n"
                "gradient ranks labels about as well as two"
            )
        return [("learns", told), ("keeps", "its network, and so its own representations, which follow the labels")]

    def pooling(self, job: TransferJob, roles: Roles) -> str:
        return "there are two parties: each is what the other learns from"

    def player(self, job: TransferJob, context: PartyContext, columns: int, state: State | None) -> Player:
        return TransferPlayer(job, context, columns, state)

    def ideal(self, job: J) -> J:
        return job.model_copy(update={"protocol": Protocol(residual=OpenResidual()), "max_label_auc": None})


class TransferPlayer(BatchPlayer):
    """Either side: its network, and at the guest Phi."""

    _job: TransferJob

    def __init__(self, job: TransferJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._context = context
        self._guest = context.me == context.active
        self._optimizer = job.optimizer
        self._model = job.model
        own = State() if state is None else state
        self.network: DenseNetwork = self._model.build(columns, own.get("theta"))
        self._phi: Floats = own.get("phi", np.zeros(self._model.units))
        self._before: int = own.get("exchanges", 0)
        self._done = 0
        self.updater = Updater(self._optimizer.update, self.network, own.get("update"))

    @property
    def exchanges(self) -> int:
        return self._before + self._done

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        self.begin(data, start)
        flow = data.schedule.flow
        self._rows = data.scaled(flow) if self._guest else np.empty((0, 0))
        self._labels = np.empty(0) if data.targets is None else data.targets[flow, 0]
        if start == 0:
            self.network.start(data.raw(data.schedule.by_ids), self.seed)
            self.updater = Updater(self._optimizer.update, self.network)
        context, (host,) = self._context, self._context.passives
        asks = {
            host: context.parameters[host],
            context.active: self._model.parameters(context.columns[context.active], 1) + 1,
        }
        openings = self._model.openings(self._optimizer.steps)
        with TwoWayExchange(self._job.protocol.residual, context, "training", asks, openings) as exchange:
            yield from self.rounds(self._work(exchange))

    def _work(self, exchange: TwoWayExchange) -> Iterator[None]:
        if self._guest:
            self._phi = self._mean()
        for t, batch in enumerate(self.batches(), self.start):
            self._done += 1
            self._visit_batch(exchange, batch, self._optimizer.eta(t, 2))
            yield

    def _visit_batch(self, exchange: TwoWayExchange, batch: Batch, eta: float) -> None:
        """Exchange vectors of a batch, and take the local steps of a visit."""
        gamma, reply = self._model.gamma, None
        self.updater.begin()
        for _ in range(self._model.openings(self._optimizer.steps)):
            phi, U, own = self._phi, self.network.forward(batch.X), self.network.derivatives(batch.X)
            slope = self._slope() if self._guest else None
            y = batch.labels[:, 0] if self._guest else np.empty(0)
            if reply is None:
                vector = taylor.from_host(U) if slope is None else taylor.from_guest(y, phi, U, gamma)
                exchange.publish(vector, batch.epoch)
                reply = exchange.reply()
            if slope is None:
                J: Sparse = taylor.HostJacobian(own, U)
                gradient = reply.gradient(AskedMatrix(J), batch) + taylor.host_own(own, U, gamma)
            else:
                J = taylor.GuestJacobian(own, slope, phi, y, U, gamma)
                gradient = reply.gradient(AskedMatrix(J), batch) + taylor.guest_own(own, U, gamma)
                self.book(float(gradient[-1]))
                gradient = gradient[:-1]
            if self._model.moments(self._optimizer.steps):
                shown = exchange.show(np.outer(phi, phi) if self._guest else U.T @ U / len(U))
                theta = self.network.theta
                quadratic = taylor.Quadratic(own, U, theta, gradient, gamma, moments=shown, mean=slope)
                self._steps_on(quadratic, batch, eta)
            else:
                self.updater.step(gradient, eta)
            if self._guest:
                self._phi = self._mean()

    def _steps_on(self, quadratic: taylor.Quadratic, batch: Batch, eta: float) -> None:
        """Take the local steps of an exchange on one opened gradient, as far as the quadratic holds."""
        eta = quadratic.longest(eta)
        for _ in range(self._optimizer.steps):
            gradient = quadratic.gradient(self.network.theta, self.network.forward(batch.X))
            if gradient is None:
                return
            self.updater.step(gradient, eta)

    def _mean(self) -> Floats:
        """Phi (d,) over the guest's labelled rows."""
        return self._labels @ self.network.forward(self._rows) / len(self._labels)

    def _slope(self) -> Floats:
        """Return the derivatives of Phi by the parameters of the network (d x p)."""
        own, n = self.network.derivatives(self._rows), len(self._labels)
        found = np.zeros((self._model.units, self.network.parameters))
        for j, row in enumerate(found):
            columns, part = own.part(j * n, (j + 1) * n)
            row[columns] = self._labels @ part / n
        return found

    def decision(self, rows: RowSlices, asked: AskedRows | None = None) -> Floats | None:
        """Phi u_j^B (m x 1) at the guest, by blocks of rows of one length: what is asked is the same in each."""
        context, size, d = self._context, min(BLOCK, len(rows)), self._model.units
        found = []
        with TwoWayExchange(self._job.protocol.residual, context, "scores", {context.active: size}, 1) as exchange:
            for number, start in enumerate(range(0, len(rows), size)):
                if self._guest:
                    batch = Batch(number, 0, np.empty((size * d, 0)))
                    found.append(exchange.reply().gradient(AskedMatrix(ScoreMatrix(self._phi, size)), batch))
                else:
                    own, U = rows[start : start + size], np.zeros((size, d))
                    U[: len(own)] = self.network.forward(own)
                    exchange.publish(U.T.ravel(), 0)
        return np.concatenate(found)[: len(rows), None] if self._guest else None

    def state(self) -> State:
        return State(self.outcome(), exchanges=self.exchanges, update=self.updater.state)

    def outcome(self) -> State:
        return State(theta=self.network.theta, phi=self._phi)
