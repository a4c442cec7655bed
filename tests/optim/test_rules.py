"""Update rules against loops over single numbers, on shares, in whole runs, and across a resume.

A new rule is a row in ROWS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.register import Register
from securevfl.data.schedule import Schedule
from securevfl.errors import ConfigError
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS, RoundsParticipant
from securevfl.families.state import State
from securevfl.models.linear_block import starting_weights
from securevfl.models.losses import LOSSES
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.momentum import Momentum
from securevfl.optim.proximal import Proximal
from securevfl.optim.rule_choice import RULES
from securevfl.optim.rules import Rule, Sgd, Updater
from securevfl.training.checkpoint import Checkpoints
from tests.small_keys import SMALL

Course = Generator[float, tuple[float, float, bool], None]  # gradient, eta, whether an exchange begins
Oracle = Callable[[float], Course]


def by_sgd(theta: float) -> Course:
    while True:
        g, eta, _ = yield theta
        theta -= eta * g


def by_proximal(mu: float) -> Oracle:
    """FedBCD 2019, eq. 11."""

    def run(theta: float) -> Course:
        anchor = theta
        while True:
            g, eta, begins = yield theta
            anchor = theta if begins else anchor
            theta -= eta * (g + mu * (theta - anchor))

    return run


def by_momentum(beta: float) -> Oracle:
    """Polyak 1964 by its coefficients: theta_t = theta_0 - sum over steps s of eta_s sum_{r <= s} beta^(s - r) g_r."""

    def run(theta: float) -> Course:
        start, gradients, etas = theta, [], []
        while True:
            g, eta, _ = yield theta
            gradients.append(g)
            etas.append(eta)
            theta = start - sum(
                step * sum(beta ** (s - r) * gradients[r] for r in range(s + 1)) for s, step in enumerate(etas)
            )

    return run


def by_proximal_momentum(mu: float, beta: float) -> Oracle:
    def run(theta: float) -> Course:
        anchor, velocity = theta, 0.0
        while True:
            g, eta, begins = yield theta
            anchor = theta if begins else anchor
            velocity = beta * velocity + g + mu * (theta - anchor)
            theta -= eta * velocity

    return run


def by_inner(mu: float, oracle: Oracle) -> Oracle:
    """The steps of an inner rule whose gradient pulls the weights back to those at the exchange."""

    def run(theta: float) -> Course:
        anchor, inner = theta, oracle(theta)
        next(inner)
        while True:
            g, eta, begins = yield theta
            anchor = theta if begins else anchor
            theta = inner.send((g + mu * (theta - anchor), eta, begins))

    return run


def by_adagrad(eps: float) -> Oracle:
    """Duchi, Hazan and Singer 2011."""

    def run(theta: float) -> Course:
        seen: list[float] = []
        while True:
            g, eta, _ = yield theta
            seen.append(g)
            theta -= eta * g / (math.sqrt(sum(one**2 for one in seen)) + eps)

    return run


def by_adam(beta1: float, beta2: float, eps: float) -> Oracle:
    """Kingma and Ba 2015, with the running means written out as weighted sums (their eq. 1)."""

    def run(theta: float) -> Course:
        seen: list[float] = []
        while True:
            g, eta, _ = yield theta
            seen.append(g)
            t = len(seen)
            mean = (1 - beta1) * sum(beta1 ** (t - i) * one for i, one in enumerate(seen, 1)) / (1 - beta1**t)
            square = (1 - beta2) * sum(beta2 ** (t - i) * one**2 for i, one in enumerate(seen, 1)) / (1 - beta2**t)
            theta -= eta * mean / (math.sqrt(square) + eps)

    return run


RULE_CASES: list[tuple[Rule, Oracle, bool]] = [
    (Sgd(), by_sgd, True),
    (Proximal(mu=0.7), by_proximal(0.7), True),
    (Proximal(mu=0.7, rule=Momentum(beta=0.5)), by_proximal_momentum(0.7, 0.5), True),
    (Momentum(beta=0.8), by_momentum(0.8), True),
    (AdaGrad(eps=1e-6), by_adagrad(1e-6), False),
    (Adam(beta1=0.8, beta2=0.95), by_adam(0.8, 0.95, 1e-8), False),
]
by_row = pytest.mark.parametrize(("rule", "oracle", "linear"), RULE_CASES, ids=[str(rule) for rule, *_ in RULE_CASES])


def test_every_rule_has_a_row() -> None:
    assert {type(rule) for rule, *_ in RULE_CASES} == set(RULES.values())


class Plain:
    """A model that consists only of weights."""

    def __init__(self, theta: Floats, l2: float = 0.0) -> None:
        self.theta, self.l2 = theta, l2

    def regularised(self, gradient: Floats) -> Floats:
        return gradient + self.l2 * self.theta


def steps(count: int = 12, size: int = 4) -> list[tuple[Floats, float, bool]]:
    """Return gradients, decreasing step sizes, and the starts of exchanges."""
    generator = np.random.default_rng(3)
    return [(generator.normal(size=size), 0.3 / math.sqrt(t + 1), t % 3 == 0) for t in range(count)]


def walked(rule: Rule, theta: Floats, l2: float = 0.0) -> Floats:
    weights = Plain(theta, l2)
    updater = Updater(rule, weights)
    for gradient, eta, begins in steps():
        if begins:
            updater.begin()
        updater.step(gradient, eta)
    return weights.theta


def check_formula(rule: Rule, oracle: Oracle) -> None:
    theta = np.random.default_rng(4).normal(size=4)
    expected = []
    for j, start in enumerate(theta):
        course = oracle(float(start))
        value = next(course)
        for gradient, eta, begins in steps():
            value = course.send((float(gradient[j]), eta, begins))
        expected.append(value)
    np.testing.assert_allclose(walked(rule, theta), expected, rtol=1e-11, atol=1e-13)


@by_row
def test_a_rule_is_its_formula(rule: Rule, oracle: Oracle, linear: bool) -> None:
    check_formula(rule, oracle)


@by_row
def test_a_rule_inside_another_is_its_formula(rule: Rule, oracle: Oracle, linear: bool) -> None:
    """Including a proximal rule inside that of FedPBCD."""
    check_formula(vfl.FedPBCD(lr=0.1, mu=0.7, rule=rule).update, by_inner(0.7, oracle))


@by_row
def test_decay_is_in_the_gradient_that_a_rule_sees(rule: Rule, oracle: Oracle, linear: bool) -> None:
    l2, start = 0.3, 1.5
    course = oracle(start)
    value = next(course)
    for gradient, eta, begins in steps():
        value = course.send((float(gradient[0]) + l2 * value, eta, begins))
    assert walked(rule, np.full(4, start), l2)[0] == pytest.approx(value, rel=1e-11)


@dataclass(frozen=True)
class Combined:
    """A linear combination of one holder's shares (uint64, modulo 2^64) with public coefficients; a vector."""

    terms: dict[int, float]  # number of the share, and its factor

    def _with(self, other: Combined, sign: float) -> Combined:
        terms = {key: self.terms.get(key, 0.0) + sign * other.terms.get(key, 0.0) for key in self.terms | other.terms}
        return Combined({key: factor for key, factor in terms.items() if factor})

    def __add__(self, other: Combined) -> Combined:
        return self._with(other, 1.0)

    def __sub__(self, other: Combined) -> Combined:
        return self._with(other, -1.0)

    def __rmul__(self, factor: float) -> Combined:
        return Combined({key: factor * coefficient for key, coefficient in self.terms.items()})

    def made(self, shares: list[NDArray[np.uint64]], bits: int) -> NDArray[np.uint64]:
        """Return the combination in units of 2^-bits of a share; factors are rounded, shares are not."""
        total = np.zeros_like(shares[0])
        for key, factor in self.terms.items():
            total += np.uint64(round(factor * 2**bits) % 2**64) * shares[key]
        return total


def trains_on_shares(rule: Rule, theta: Floats) -> Floats:
    """Return the weights after all steps; each of two share holders computes only on its shares."""
    scale, bits = 2.0**20, 24
    values = [theta, *(gradient for gradient, *_ in steps())]
    integers = [np.rint(value * scale).astype(np.int64).view(np.uint64) for value in values]
    generator = np.random.default_rng(5)
    one = [generator.integers(2**64, size=len(value), dtype=np.uint64) for value in integers]
    other = [value - mask for value, mask in zip(integers, one, strict=True)]
    opened = np.zeros(len(theta), np.uint64)
    for shares in (one, other):
        weights = Combined({0: 1.0})
        memory = rule.init(weights)
        for t, (_, eta, begins) in enumerate(steps(), 1):
            if begins:
                memory = rule.begin(memory)
            change, memory = rule.step(Combined({t: 1.0}), memory, eta)
            weights = weights + change
        opened += weights.made(shares, bits)
    return opened.view(np.int64) / (scale * 2**bits)


@by_row
def test_a_linear_rule_runs_on_shares_and_another_one_does_not(rule: Rule, oracle: Oracle, linear: bool) -> None:
    theta = np.random.default_rng(4).normal(size=4)
    assert rule.linear is linear
    if linear:
        np.testing.assert_allclose(trains_on_shares(rule, theta), walked(rule, theta), atol=1e-5)
    else:
        with pytest.raises((TypeError, AttributeError)):
            trains_on_shares(rule, theta)


def rule_parties(rows: int = 90, parties: int = 3) -> list[vfl.Party]:
    generator = np.random.default_rng(parties)
    blocks = [generator.normal(size=(rows, 2 + k)) for k in range(parties)]
    y = (sum(block.sum(axis=1) for block in blocks) > 0).astype(int)
    return [vfl.Party(f"p{k}", block, y if k == 0 else None, aligned=True) for k, block in enumerate(blocks)]


def job_of(rule: Rule | str, residual: object = "open", *, mu: float = 0.0, mode: str = "parallel") -> vfl.Job:
    options = {"local_steps": 3, "lr": 0.1, "decay": "sqrt_t", "rule": rule}
    optimizer = vfl.FedPBCD(mu=mu, **options) if mu else vfl.FedBCD(mode=mode, **options)  # type: ignore[arg-type]
    return vfl.Job(
        model=vfl.Logistic(l2=0.01),
        optimizer=optimizer,
        protocol=vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        batch_size=30,
        epochs=2,
        accepts=["columns", "sequential", "rank"],
    )


def pooled(job: vfl.Job, parties: list[vfl.Party], oracle: Oracle) -> list[Floats]:
    """Return all parties' weights by a loop over all columns in one table, with one oracle for each weight."""
    loss, y = LOSSES["logistic"], parties[0].y
    assert y is not None
    targets, n, K = loss.targets(y, loss.classes(y)), len(y), len(parties)
    schedule = job.schedule(Register.of_numbers(n))
    X = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parties]
    start = starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS], targets, job.seed)
    X[0] = np.column_stack([X[0], np.ones(n)])
    theta = [start, *(np.zeros((block.shape[1], 1)) for block in X[1:])]
    decay = [np.full((len(block), 1), job.model.l2) for block in theta]
    decay[0][-1] = 0
    courses = [[oracle(float(weight)) for weight in block[:, 0]] for block in theta]
    for block_courses in courses:
        for course in block_courses:
            next(course)

    def local(k: int, rows: NDArray[np.intp], eta: float, residual: Callable[[Floats], Floats]) -> None:
        for q in range(job.optimizer.steps):
            gradient = X[k][rows].T @ residual(theta[k]) / len(rows) + decay[k] * theta[k]
            sent = zip(courses[k], gradient[:, 0], strict=True)
            theta[k] = np.array([[course.send((float(g), eta, q == 0))] for course, g in sent])

    for t, batch in enumerate(_visits(schedule)):
        rows, eta, before = batch, job.optimizer.eta(t, K), [block.copy() for block in theta]

        def g(outputs: Floats, at: list[Floats], rows: NDArray[np.intp] = rows) -> Floats:
            others = sum(X[j][rows] @ at[j] for j in range(1, K))
            return loss.residual(X[0][rows] @ outputs + others, targets[rows])

        first = g(theta[0], before)
        local(0, rows, eta, lambda outputs, g=g, before=before: g(outputs, before))
        for k in range(1, K):
            fixed = first if job.optimizer.mode == "parallel" else g(theta[0], theta)
            local(k, rows, eta, lambda outputs, fixed=fixed: fixed)
    return theta


def _visits(schedule: Schedule) -> Iterator[NDArray[np.intp]]:
    return (batch.rows for batch in schedule.iterations())


@by_row
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_run_is_the_pooled_loop(rule: Rule, oracle: Oracle, linear: bool, mode: str) -> None:
    job, parties = job_of(rule, mode=mode), rule_parties()
    run = vfl.simulate(job, parties)
    for part, theta in zip(run.parts.values(), pooled(job, parties, oracle), strict=True):
        np.testing.assert_allclose(part.theta, theta, rtol=1e-8, atol=1e-10)


def test_fedpbcd_is_proximal_steps_by_its_rule() -> None:
    parties = rule_parties()
    for rule in (Sgd(), Momentum(beta=0.5)):
        one = vfl.simulate(job_of(rule, mu=0.7), parties)
        other = vfl.simulate(job_of(Proximal(mu=0.7, rule=rule)), parties)
        for name, part in one.parts.items():
            np.testing.assert_array_equal(part.theta, other.parts[name].theta)


class Cut(Exception):
    """The error of an interrupted process."""


def resumed(work: vfl.Job, parties: list[vfl.Party], folder: Path, at: int) -> vfl.Run:
    def states() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(folder / party.name, party.name, every=2) for party in parties}

    def on_round(done: int, of: int) -> None:
        if done == at:
            raise Cut

    with pytest.raises(Cut):
        vfl.simulate(work, parties, checkpoints=states(), on_round=on_round, workers=1)
    return vfl.simulate(work, parties, checkpoints=states(), workers=1)


def same(one: vfl.Run, other: vfl.Run) -> bool:
    thetas = [(part.theta, other.parts[name].theta) for name, part in one.parts.items()]
    return all(np.array_equal(a, b) for a, b in thetas)


@cache
def undisturbed(rule: Rule) -> vfl.Run:
    """Return the uninterrupted run, which tests only read."""
    return vfl.simulate(job_of(rule, mu=0.4), rule_parties())


@by_row
@pytest.mark.parametrize("at", [1, 3, 4, 5])
def test_a_resumed_run_ends_with_identical_weights(
    rule: Rule, oracle: Oracle, linear: bool, at: int, tmp_path: Path
) -> None:
    assert same(resumed(job_of(rule, mu=0.4), rule_parties(), tmp_path, at), undisturbed(rule))


@pytest.mark.exact_outputs
@pytest.mark.parametrize("rule", [Momentum(), Adam()], ids=lambda rule: rule.name)
def test_it_does_so_sealed_too(rule: Rule, tmp_path: Path) -> None:
    parties = [party.take(np.arange(60, dtype=np.intp)) for party in rule_parties(parties=2)]
    work = job_of(rule, SMALL)
    assert same(resumed(work, parties, tmp_path, 3), vfl.simulate(work, parties, workers=1))


@pytest.mark.parametrize("rule", [Momentum(), AdaGrad(), Adam()], ids=lambda rule: rule.name)
def test_without_the_rules_state_it_would_not(rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties, work, state = rule_parties(), job_of(rule), RoundsParticipant.state

    def forgetful(self: RoundsParticipant) -> State:
        return State({name: value for name, value in state(self).items() if name != "update"})

    uninterrupted = vfl.simulate(work, parties)
    monkeypatch.setattr(RoundsParticipant, "state", forgetful)
    assert not same(resumed(work, parties, tmp_path, 3), uninterrupted)


def test_a_job_names_a_rule_by_word_or_table_and_is_read_back() -> None:
    by_word = job_of("momentum")
    assert by_word.optimizer.rule == Momentum()
    keys = by_word.to_dict()
    assert keys["optimizer"]["rule"] == {"name": "momentum", "beta": 0.9}
    keys["optimizer"]["rule"] = {"name": "proximal", "mu": 0.5, "rule": {"name": "adam", "beta1": 0.7}}
    nested = vfl.Job.from_dict(keys)
    assert nested.optimizer.rule == Proximal(mu=0.5, rule=Adam(beta1=0.7))
    assert vfl.Job.from_dict(nested.to_dict()).digest == nested.digest != by_word.digest


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ("newton", "rule"),
        ({"name": "momentum", "beta": 1.0}, "rule.beta"),
        ({"name": "adam", "gamma": 1.0}, "rule.gamma"),
        ({"name": "proximal"}, "rule.mu"),
        ({"name": "proximal", "mu": 1.0, "rule": "newton"}, "rule.rule"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(rule: object, option: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option=option):
        vfl.FedBCD(lr=0.1, rule=rule)  # type: ignore[arg-type]


def test_the_cost_table_names_the_rule() -> None:
    assert vfl.FedBCD(lr=0.1).label == "FedBCD-p"
    assert vfl.FedSGD(lr=0.1, rule="adam").label == "FedSGD adam"  # type: ignore[arg-type]
    assert vfl.FedPBCD(lr=0.1, mu=1.0, rule="momentum").label == "FedPBCD-p momentum"  # type: ignore[arg-type]
