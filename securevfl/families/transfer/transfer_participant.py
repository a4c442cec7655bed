"""One party of a transfer training: its network and, at the guest, the mean representation Phi."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.chunked_matrix import SparseRows
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.participant import Round
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.families.transfer import local_quadratic, taylor
from securevfl.families.transfer.dense_network import DenseNetwork
from securevfl.families.transfer.transfer_job import TransferJob
from securevfl.families.transfer.two_way_exchange import RequestedProduct, TwoWayExchange
from securevfl.optim.rules import Updater
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Batch


class ScoreMatrix(SparseRows):
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


SCORE_BLOCK_ROWS = 512  # rows that are scored at a time


class TransferParticipant(BatchParticipant):
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
        flow = data.schedule.batch_order
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
                vector = taylor.host_vector(U) if slope is None else taylor.guest_vector(y, phi, U, gamma)
                exchange.publish(vector, batch.epoch)
                reply = exchange.reply()
            if slope is None:
                J: SparseRows = taylor.HostJacobian(own, U)
                gradient = reply.gradient(RequestedProduct(J), batch) + taylor.host_local_gradient(own, U, gamma)
            else:
                J = taylor.GuestJacobian(own, slope, phi, y, U, gamma)
                gradient = reply.gradient(RequestedProduct(J), batch) + taylor.guest_local_gradient(own, U, gamma)
                self.record_loss(float(gradient[-1]))
                gradient = gradient[:-1]
            if self._model.moments(self._optimizer.steps):
                shown = exchange.show(np.outer(phi, phi) if self._guest else U.T @ U / len(U))
                theta = self.network.theta
                quadratic = local_quadratic.LocalQuadratic(own, U, theta, gradient, gamma, moments=shown, mean=slope)
                self._steps_on(quadratic, batch, eta)
            else:
                self.updater.step(gradient, eta)
            if self._guest:
                self._phi = self._mean()

    def _steps_on(self, quadratic: local_quadratic.LocalQuadratic, batch: Batch, eta: float) -> None:
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

    def model_outputs(self, rows: RowSlices, asked: RowsToScore | None = None) -> Floats | None:
        """Phi u_j^B (m x 1) at the guest, by blocks of rows of one length: what is asked is the same in each."""
        context, size, d = self._context, min(SCORE_BLOCK_ROWS, len(rows)), self._model.units
        found = []
        with TwoWayExchange(self._job.protocol.residual, context, "scores", {context.active: size}, 1) as exchange:
            for number, start in enumerate(range(0, len(rows), size)):
                if self._guest:
                    batch = Batch(number, 0, np.empty((size * d, 0)))
                    found.append(exchange.reply().gradient(RequestedProduct(ScoreMatrix(self._phi, size)), batch))
                else:
                    own, U = rows[start : start + size], np.zeros((size, d))
                    U[: len(own)] = self.network.forward(own)
                    exchange.publish(U.T.ravel(), 0)
        return np.concatenate(found)[: len(rows), None] if self._guest else None

    def state(self) -> State:
        return State(self.model_state(), exchanges=self.exchanges, update=self.updater.state)

    def model_state(self) -> State:
        return State(theta=self.network.theta, phi=self._phi)
