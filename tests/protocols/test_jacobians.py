"""A passive party's two-layer network, whose Jacobian J changes with the weights: J^T g is the analytic gradient."""

from typing import ClassVar

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.audit.recording.transcript_recording import record_transcript
from securevfl.audit.transcript_checks import check_transcript
from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError
from securevfl.models import losses
from securevfl.models.block import BlockSpec
from securevfl.models.linear import LinearModel
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.protocols.differentiable import Jacobian
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Batch, ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import BlindedProduct, SealedResidual
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.small_keys import SMALL

TESTED_RESIDUALS = [OpenResidual(), SealedResidual(engine=vfl.Ckks()), SealedResidual(engine=SMALL)]
TOLERANCE = 2e-3  # tolerance of the engines
HIDDEN = 4


class TwoLayer:
    """H = tanh(X W) V with W (d x h) and V (h x c), as one vector theta = (W, V) of p = d h + h c numbers."""

    static_jacobian = False
    shares_outputs = False

    def __init__(self, columns: int, outputs: int, seed: int = 0) -> None:
        self.shapes = (columns, HIDDEN), (HIDDEN, outputs)
        self.theta: Floats = np.random.default_rng(seed).normal(size=self.parameters) / 2

    @property
    def parameters(self) -> int:
        return sum(a * b for a, b in self.shapes)

    def rows(self, X: Floats) -> int:
        return len(X)

    def layers(self) -> tuple[Floats, Floats]:
        (d, h), (_, c) = self.shapes
        return self.theta[: d * h].reshape(d, h), self.theta[d * h :].reshape(h, c)

    def forward(self, X: Floats) -> Floats:
        W, V = self.layers()
        H: Floats = np.tanh(X @ W) @ V
        return H

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g by back-propagation."""
        W, V = self.layers()
        hidden = np.tanh(X @ W)
        return np.concatenate([(X.T @ ((g @ V.T) * (1 - hidden**2))).ravel(), (hidden.T @ g).ravel()])

    def jacobian(self, X: Floats) -> Jacobian:
        """Return J row by row and output by output, by the chain rule."""
        W, V = self.layers()
        h, c = self.shapes[1]
        hidden = np.tanh(X @ W)
        rows = np.zeros((len(X), c, self.parameters))
        for j in range(c):
            by_W = X[:, :, None] * ((1 - hidden**2) * V[:, j])[:, None, :]
            by_V = np.zeros((len(X), h, c))
            by_V[:, :, j] = hidden
            rows[:, j] = np.concatenate([by_W.reshape(len(X), -1), by_V.reshape(len(X), -1)], axis=1)
        return Jacobian(rows.reshape(len(X) * c, -1), shares_outputs=False)

    def regularised(self, gradient: Floats) -> Floats:
        return gradient

    def start(self, *args: object) -> None:
        """Stores the weights that it was created with."""

    def state(self) -> dict[str, Floats]:
        return {"theta": self.theta}


def finite_differences(model: TwoLayer, X: Floats, g: Floats) -> Floats:
    """Return d <H, g> / d theta from forward passes only."""
    theta, columns, step = model.theta, [], 1e-6
    for j in range(len(theta)):
        ends = []
        for sign in (1, -1):
            model.theta = theta.copy()
            model.theta[j] += sign * step
            ends.append(float((model.forward(X) * g).sum()))
        columns.append((ends[0] - ends[1]) / (2 * step))
    model.theta = theta
    return np.array(columns)


@pytest.mark.parametrize("c", [1, 3])
def test_gradients_agree_with_finite_differences(c: int) -> None:
    generator = np.random.default_rng(c)
    model, X, g = TwoLayer(5, c), generator.normal(size=(30, 5)), generator.normal(size=(30, c))
    exact = finite_differences(model, X, g)
    np.testing.assert_allclose(model.vjp(X, g), exact, atol=1e-7)
    np.testing.assert_allclose(model.jacobian(X).vjp(g), exact, atol=1e-7)


def test_a_jacobian_that_outputs_share_is_the_long_one_in_short() -> None:
    generator = np.random.default_rng(0)
    X, g = generator.normal(size=(20, 4)), generator.normal(size=(20, 3))
    long = Jacobian(np.kron(X, np.eye(3)), shares_outputs=False)
    np.testing.assert_allclose(long.vjp(g), Jacobian(X).vjp(g).ravel())


def context_of(channel: Channel, c: int, parameters: int) -> PartyContext:
    meter, roles = Meter(channel.clock, channel.counters), Roles.labelled("bank", ["shop"])
    return PartyContext(channel=channel, roles=roles, meter=meter, outputs=c, parameters={"shop": parameters})


@pytest.mark.parametrize("c", [1, 3], ids=["one output", "three outputs"])
@pytest.mark.parametrize("residual", TESTED_RESIDUALS, ids=lambda r: getattr(r, "engine", r).name)
def test_every_local_step_opens_the_analytic_gradient(residual: ResidualProtocol, c: int) -> None:
    Q = 3
    generator = np.random.default_rng(10 + c)
    model, X = TwoLayer(5, c), generator.normal(size=(40, 5))
    gs = [generator.uniform(-1, 1, size=(40, c)) for _ in range(2)]
    agreement = Agreement(openings=Q, shares_outputs=False)

    def bank(ch: Channel) -> None:
        role = residual.active(context_of(ch, c, model.parameters), agreement)
        for t, g in enumerate(gs):
            role.publish(g, epoch=t, to=["shop"])
        role.close()

    def shop(ch: Channel) -> None:
        role = residual.passive(context_of(ch, c, model.parameters), agreement)
        for t, g in enumerate(gs):
            reply = role.reply()
            for _ in range(Q):
                exact = finite_differences(model, X, g)
                gradient = reply.gradient(model, Batch(t, t, X))
                assert gradient.shape == model.theta.shape
                np.testing.assert_allclose(gradient, exact, atol=TOLERANCE)
                model.theta = model.theta - 0.1 * gradient
        role.close()

    events: list[Event] = []
    run_threads({"bank": bank, "shop": shop}, WallClock, timeout=60, observe=events.append)
    requests = sum(isinstance(event.message, BlindedProduct) for event in events if event.direction == "recv")
    assert requests == (Q * len(gs) if residual.seals else 0)


@pytest.mark.parametrize("agreed", [True, False])
def test_a_model_of_another_kind_than_agreed_is_refused(agreed: bool) -> None:
    agreement = Agreement(shares_outputs=agreed)
    X = np.ones((8, 2))
    model = TwoLayer(2, 1) if agreed else Linear(np.zeros((2, 1)), l2=0.0, intercept=False)

    def bank(ch: Channel) -> None:
        role = TESTED_RESIDUALS[1].active(context_of(ch, 1, 2), agreement)
        role.publish(np.zeros((8, 1)), epoch=0, to=["shop"])
        role.close()

    def shop(ch: Channel) -> None:
        TESTED_RESIDUALS[1].passive(context_of(ch, 1, 2), agreement).reply().gradient(model, Batch(0, 0, X))

    with raises_code(ProtocolError, "SVFL-JOB-MISMATCH"):
        run_threads({"bank": bank, "shop": shop}, WallClock, timeout=60)


class Network(LinearModel):
    """Logistic regression on the sum of a linear model at the active party and two layers at each passive one."""

    name: ClassVar[str] = "test network"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False

    @property
    def loss(self) -> Loss:
        return losses.LOSSES["logistic"]

    def parameters(self, columns: int, outputs: int) -> int:
        return TwoLayer(columns, outputs).parameters

    def build(self, place: BlockSpec) -> Linear:
        if place.active:
            return super().build(place)
        return TwoLayer(place.columns, place.outputs)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def three_parties() -> list[vfl.Party]:
    return [party.take(np.arange(200)) for party in vfl.datasets.breast_cancer(parties=3)]


def job_of(residual: object) -> vfl.Job:
    return vfl.Job(
        model=Network(),
        optimizer=vfl.FedBCD(local_steps=3, lr=0.5),
        protocol=vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        batch_size=100,
        epochs=3,
        accepts=["rank", "fresh_equations"],
    )


def trained(residual: object, three_parties: list[vfl.Party]) -> tuple[vfl.Run, list[Event]]:
    events: list[Event] = []
    return vfl.simulate(job_of(residual), three_parties, workers=1, observe=events.append), events


@pytest.mark.parametrize(
    "residual",
    [
        pytest.param(TESTED_RESIDUALS[1], id="ckks"),
        pytest.param(TESTED_RESIDUALS[2], id="paillier", marks=pytest.mark.slow),
    ],
)
def test_a_network_trains_sealed_as_in_the_open(residual: SealedResidual, three_parties: list[vfl.Party]) -> None:
    sealed, events = trained(residual, three_parties)
    plain, _ = trained("open", three_parties)
    for name, part in sealed.parts.items():
        np.testing.assert_allclose(part.theta, plain.parts[name].theta, atol=5 * TOLERANCE)
    assert plain.metrics["auc"] > 0.97
    requests = sum(isinstance(event.message, BlindedProduct) for event in events if event.direction == "recv")
    assert requests == 3 * 2 * sealed.costs.rounds  # local steps, passive parties


def test_the_audit_follows_each_opening_of_a_variable_jacobian(three_parties: list[vfl.Party]) -> None:
    transcript, run = record_transcript(job_of(vfl.Ckks()), three_parties)
    assert not [str(finding) for finding in check_transcript(transcript).findings]
    learned = transcript.protocol_record.gradients["shop"]
    assert len(learned) == 3 * run.costs.rounds
    assert {one.exchange for one in learned} == set(range(run.costs.rounds))
    learned[4] = learned[4]._replace(gradient=learned[3].gradient)
    assert {finding.check for finding in check_transcript(transcript).findings} == {"output"}
