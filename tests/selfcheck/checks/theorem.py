"""Theorem 1 of FedBCD (Liu et al. 2019, section 3.2) as a program: security against one curious party.

The theorem: a party that sees only the H_k = X_k theta_k of a party with d_k >= 2 columns cannot determine its data:
for every orthogonal U with U theta_0 = theta_0 there is another table X_k U that sends the same. Training on X U gives
the weights U^T theta_t: the gradient is U^T X^T g, so by induction X U U^T theta_t = X theta_t, and from the same H_k
the other party answers the same g.

U is a Householder reflection I - 2 v v^T / v^T v with v orthogonal to theta_0. At d_k = 1 the only such U other than 1
needs theta_0 = 0, where U = -1 flips the sign of the column: only this sign remains unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.base.arrays import Floats
from securevfl.data import datasets
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.linear_block import Linear
from securevfl.models.losses import LOSSES
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.open_residual import OpenResidual, Residual
from securevfl.protocols.sums.direct_sum import DirectSum, Summand
from securevfl.runtime.observer import Event
from securevfl.training.simulate import simulate


def householder(theta: Floats, seed: int = 0) -> Floats | None:
    """Return an orthogonal U (d x d) other than I with U theta = theta (d x 1), or None (d = 1, theta !=
    0)."""
    d = len(theta)
    v = np.random.default_rng(seed).normal(size=(d, 1))
    length = float((theta.T @ theta).item())
    if length > 0:
        v = v - theta * ((theta.T @ v).item() / length)
    if np.linalg.norm(v) < 1e-9:
        return None
    U: Floats = np.eye(d) - 2.0 * (v @ v.T) / (v.T @ v).item()
    return U


def exchanges(X: Floats, y: Floats, theta: Floats, *, rounds: int, local_steps: int, lr: float) -> list[Floats]:
    """Return the messages of a passive party with columns X and first weights theta in FedBCD: H_k, g, H_k, g, ...

    The other party, which has only an intercept, answers with the residual of the logistic loss.
    """
    model, intercept, loss = Linear(theta.copy(), l2=0.0, intercept=False), 0.0, LOSSES["logistic"]
    sent: list[Floats] = []
    for _ in range(rounds):
        H = model.forward(X)
        g = loss.residual(H + intercept, y)
        sent += [H, g]
        for _ in range(local_steps):
            model.theta = model.theta - lr * model.vjp(X, g) / len(X)
            intercept -= lr * float(loss.residual(H + intercept, y).mean())
    return sent


def same_exchanges(d: int, theta: Floats) -> tuple[float, float] | None:
    """Return the largest difference between the exchanges on X and X U, and between X
    and X U. None if there is no U.
    """
    U = householder(theta)
    if U is None:
        return None
    generator = np.random.default_rng(d)
    X = generator.normal(size=(80, d))
    y = np.sign(generator.normal(size=(80, 1)) + X[:, :1])
    a, b = (exchanges(table, y, theta, rounds=8, local_steps=5, lr=0.5) for table in (X, X @ U))
    return max(float(np.abs(p - q).max()) for p, q in zip(a, b, strict=True)), float(np.abs(X - X @ U).max())


def holds_for_any_start() -> Outcome:
    """Check that for d >= 2 and first weights of any value another table sends the same, and that at d = 1 none
    does."""
    outcome = Outcome()
    generator = np.random.default_rng(3)
    for d in (2, 3, 8):
        for theta in (np.zeros((d, 1)), generator.normal(size=(d, 1))):
            alternative = same_exchanges(d, theta)
            if alternative is None or alternative[0] > 1e-9 or alternative[1] < 0.1:
                outcome.add("theorem", f"d = {d}", "another table with the same exchanges was not found")
    if householder(np.array([[0.7]])) is not None:
        outcome.add("theorem", "d = 1", "a second table was found where weights do not start at zero")
    flipped = same_exchanges(1, np.zeros((1, 1)))
    if flipped is None or flipped[0] > 1e-9:
        outcome.add("theorem", "d = 1", "from zero weights the sign of the column should stay open")
    X, theta = generator.normal(size=(80, 1)), np.array([[0.7]])
    y = np.sign(X)
    a, b = (exchanges(table, y, theta, rounds=2, local_steps=1, lr=0.5) for table in (X, -X))
    if max(np.abs(p - q).max() for p, q in zip(a, b, strict=True)) < 0.1:
        outcome.add("theorem", "d = 1", "the flipped column should send something else where weights start above zero")
    return outcome


def holds_in_a_run() -> Outcome:
    """Check with the library itself that a passive party's table times U gives the same messages."""
    outcome = Outcome()
    for columns, same in ((4, True), (1, False)):
        bank, shop = datasets.breast_cancer()
        X = _scaled(shop.X[:128, :columns])
        U = householder(np.zeros((columns, 1)))
        assert U is not None
        turned = X @ U if same else 2.0 * X  # at d = 1 only the sign may change; any other table changes the messages
        lead = Party("bank", _scaled(bank.X[:128]), np.asarray(bank.y)[:128], aligned=True)
        seen = [_messages([lead, Party("shop", table, aligned=True)]) for table in (X, turned)]
        gap = max(float(np.abs(p - q).max()) for p, q in zip(*seen, strict=True))
        if (gap < 1e-9) != same:
            outcome.add("theorem", f"d = {columns}", f"exchanges on two tables should {'agree' if same else 'differ'}")
        if np.abs(X - turned).max() < 0.1:
            outcome.add("theorem", f"d = {columns}", "the second table is the first")
    return outcome


def _scaled(X: Floats) -> Floats:
    scaled: Floats = (X - X.mean(axis=0)) / X.std(axis=0)
    return scaled


def _messages(parties: list[Party]) -> list[Floats]:
    job = Job(
        model=Logistic(),
        optimizer=FedBCD(local_steps=5, lr=0.3),
        protocol=Protocol(sum=DirectSum(), residual=OpenResidual()),
        batch_size=64,
        epochs=2,
        scale="none",
        accepts=("columns",),
    )
    events: list[Event] = []
    simulate(job, parties, observe=events.append)
    received = [event for event in events if event.direction == "recv"]
    up = [np.asarray(event.message.values, np.float64) for event in received if isinstance(event.message, Summand)]
    down = [np.asarray(event.message.g, np.float64) for event in received if isinstance(event.message, Residual)]
    return [*up, *down]


CHECKS: dict[str, Callable[[], Outcome]] = {
    "theorem 1, any start": holds_for_any_start,
    "theorem 1, in a run": holds_in_a_run,
}
