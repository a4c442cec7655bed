"""One party of a training by transfer learning: its network and, at the guest, the mean representation Phi.

The guest has the labels, the host has none. Representations U (n, d) are the d outputs (units) of a party's network for
n rows; the host's row with representation u has the score Phi u (`securevfl.families.transfer.taylor`). In an exchange,
each party sends one vector; each then takes one or more local steps, updates of its weights.
"""

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

TRANSFER_SCORE_ROWS = 512  # number of rows that are scored at a time


class ScoreMatrix(SparseRows):
    """The matrix J (m * d, m) with which the guest requests the scores Phi u_j of m rows as a product J^T v.

    v are the host's representations of these rows, unit by unit.

    Args:
        phi: Phi (d,), the guest's mean representation.
        rows: m, number of rows.
    """

    def __init__(self, phi: Floats, rows: int) -> None:
        self._phi, self._rows = phi, rows

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (m * d, m)."""
        return self._rows * len(self._phi), self._rows

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns in which rows start to stop - 1 may have non-zero entries, and the entries."""
        columns = self.columns(start, stop)
        unit, row = np.divmod(np.arange(start, stop), self._rows)
        values = np.zeros((stop - start, len(columns)))
        values[np.arange(stop - start), np.searchsorted(columns, row)] = self._phi[unit]
        return columns, values

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns in which rows start to stop - 1 may have non-zero entries."""
        return np.unique(np.arange(start, min(stop, start + self._rows)) % self._rows)

    def backward(self, g: Floats) -> Floats:
        """Return J^T g (m, 1) for this Jacobian J."""
        return (self._phi @ g.reshape(len(self._phi), self._rows))[:, None]


class TransferParticipant(BatchParticipant):
    """One party of the training, guest or host: its network and, at the guest, Phi.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        columns: number of columns of this party.
        state: the state to resume from, or the model state to predict with; None to start a training.
    """

    _job: TransferJob

    def __init__(self, job: TransferJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._context = context
        self._guest = context.me == context.active
        self._optimizer = job.optimizer
        self._model = job.model
        stored = State() if state is None else state
        self.network: DenseNetwork = self._model.build(columns, stored.get("theta"))
        self._phi: Floats = stored.get("phi", np.zeros(self._model.units))
        self._exchanges_before: int = stored.get("exchanges", 0)
        self._exchanges = 0
        self.updater = Updater(self._optimizer.update, self.network, stored.get("update"))

    @property
    def exchanges(self) -> int:
        """Number of exchanges so far, including those before a resume."""
        return self._exchanges_before + self._exchanges

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train both networks, and yield after every round."""
        self.begin(data, start)
        rows = data.schedule.batch_order
        self._labelled_rows = data.scaled(rows) if self._guest else np.empty((0, 0))
        self._labels = np.empty(0) if data.targets is None else data.targets[rows, 0]
        if start == 0:
            self.network.start(data.raw(data.schedule.by_ids), self.seed)
            self.updater = Updater(self._optimizer.update, self.network)
        context, (host,) = self._context, self._context.passives
        guest_parameters = self._model.parameters(context.columns[context.active], 1)
        product_sizes = {host: context.parameters[host], context.active: guest_parameters + 1}
        openings = self._model.openings(self._optimizer.steps)
        with TwoWayExchange(self._job.protocol.residual, context, "training", product_sizes, openings) as exchange:
            yield from self.rounds(self._run(exchange))

    def _run(self, exchange: TwoWayExchange) -> Iterator[None]:
        if self._guest:
            self._phi = self._mean_representation()
        for t, batch in enumerate(self.batches(), self.start):
            self._exchanges += 1
            self._iterate(exchange, batch, self._optimizer.eta(t, parties=2))
            yield

    def _iterate(self, exchange: TwoWayExchange, batch: Batch, eta: float) -> None:
        """Exchange the encrypted vectors of a batch, and take the local steps of the iteration."""
        gamma, reply = self._model.gamma, None
        self.updater.begin()
        for _ in range(self._model.openings(self._optimizer.steps)):
            phi, U, derivatives = self._phi, self.network.forward(batch.X), self.network.derivatives(batch.X)
            slope = self._mean_derivatives() if self._guest else None
            y = batch.labels[:, 0] if self._guest else np.empty(0)
            if reply is None:
                vector = taylor.host_vector(U) if slope is None else taylor.guest_vector(y, phi, U, gamma)
                exchange.publish(vector, batch.epoch)
                reply = exchange.reply()
            if slope is None:
                J: SparseRows = taylor.HostJacobian(derivatives, U)
                gradient = reply.gradient(RequestedProduct(J), batch)
                gradient = gradient + taylor.host_local_gradient(derivatives, U, gamma)
            else:
                J = taylor.GuestJacobian(derivatives, slope, phi, y, U, gamma)
                gradient = reply.gradient(RequestedProduct(J), batch)
                gradient = gradient + taylor.guest_local_gradient(derivatives, U, gamma)
                self.record_loss(float(gradient[-1]))
                gradient = gradient[:-1]
            if self._model.moments(self._optimizer.steps):
                moments = exchange.exchange_moments(np.outer(phi, phi) if self._guest else U.T @ U / len(U))
                theta = self.network.theta
                quadratic = local_quadratic.LocalQuadratic(
                    derivatives, U, theta, gradient, gamma, moments=moments, mean=slope
                )
                self._step_on_quadratic(quadratic, batch, eta)
            else:
                self.updater.step(gradient, eta)
            if self._guest:
                self._phi = self._mean_representation()

    def _step_on_quadratic(self, quadratic: local_quadratic.LocalQuadratic, batch: Batch, eta: float) -> None:
        """Take the local steps of an exchange with one decrypted gradient, until the quadratic is no longer valid."""
        eta = quadratic.max_step_size(eta)
        for _ in range(self._optimizer.steps):
            gradient = quadratic.gradient(self.network.theta, self.network.forward(batch.X))
            if gradient is None:
                return
            self.updater.step(gradient, eta)

    def _mean_representation(self) -> Floats:
        """Return Phi (d,), the mean of label times representation over the guest's labelled rows."""
        return self._labels @ self.network.forward(self._labelled_rows) / len(self._labels)

    def _mean_derivatives(self) -> Floats:
        """Return the derivatives of Phi with respect to the weights (d, p)."""
        derivatives, n = self.network.derivatives(self._labelled_rows), len(self._labels)
        slope = np.zeros((self._model.units, self.network.parameters))
        for j, row in enumerate(slope):
            columns, values = derivatives.part(j * n, (j + 1) * n)
            row[columns] = self._labels @ values / n
        return slope

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Compute the scores (m, 1) at the guest, in blocks of equal size, because a request has one size for all."""
        context, size, d = self._context, min(TRANSFER_SCORE_ROWS, len(rows)), self._model.units
        scores = []
        with TwoWayExchange(self._job.protocol.residual, context, "scores", {context.active: size}, 1) as exchange:
            for number, start in enumerate(range(0, len(rows), size)):
                if self._guest:
                    batch = Batch(number, 0, np.empty((size * d, 0)))
                    matrix = ScoreMatrix(self._phi, size)
                    scores.append(exchange.reply().gradient(RequestedProduct(matrix), batch))
                else:
                    X, U = rows[start : start + size], np.zeros((size, d))
                    U[: len(X)] = self.network.forward(X)
                    exchange.publish(U.T.ravel(), 0)
        return np.concatenate(scores)[: len(rows), None] if self._guest else None

    def state(self) -> State:
        """Return the model, the number of exchanges and the memory of the update rule."""
        return State(self.model_state(), exchanges=self.exchanges, update=self.updater.state)

    def model_state(self) -> State:
        """Return the weights of the network, and Phi."""
        return State(theta=self.network.theta, phi=self._phi)
