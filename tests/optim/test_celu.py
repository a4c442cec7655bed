"""CELU-VFL against a plain loop over all parties' columns, against the algorithms that it contains, and against its
exchange."""

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.models.linear_block import starting_weights
from securevfl.models.losses import LOSSES
from securevfl.optim.instance_weights import cosines
from securevfl.optim.workset import Workset
from securevfl.protocols.link import ActiveLink
from securevfl.runtime.costs import Kind

TESTED_RULES = {
    "sgd": vfl.Sgd(),
    "adagrad": vfl.AdaGrad(),
    "momentum": vfl.Momentum(),
    "proximal": vfl.Proximal(mu=0.5),
}


def celu_parties(parties: int, classes: int = 2, rows: int = 150) -> list[vfl.Party]:
    generator = np.random.default_rng(parties)
    blocks = [generator.normal(size=(rows, 2 + k)) for k in range(parties)]
    f = sum(block.sum(axis=1) for block in blocks) + generator.normal(size=rows)
    y = np.digitize(f, [-1, 1]) if classes == 3 else (f > 0).astype(int)
    return [vfl.Party(f"p{k}", block, y if k == 0 else None, aligned=True) for k, block in enumerate(blocks)]


def celu_job(optimizer: object, model: object = None, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": model or vfl.Logistic(l2=0.01), "optimizer": optimizer, "batch_size": 30}
    defaults |= {"protocol": vfl.Protocol(sum="direct", residual="open"), "epochs": 3, "seed": 3}
    return vfl.Job(**(defaults | {"accepts": ["columns", "rank", "fresh_equations"]} | keys))


def same(one: vfl.Run, other: vfl.Run) -> bool:
    return all(np.array_equal(one.parts[name].theta, other.parts[name].theta) for name in one.parts)


@pytest.mark.parametrize("rule", TESTED_RULES)
@pytest.mark.parametrize("parties", [2, 3])
def test_a_table_of_one_is_fedbcd(rule: str, parties: int) -> None:
    data = celu_parties(parties)
    celu = celu_job(vfl.CeluVFL(lr=0.1, R=4, W=1, rule=TESTED_RULES[rule], decay="sqrt_t"))
    fedbcd = celu_job(vfl.FedBCD(lr=0.1, local_steps=4, rule=TESTED_RULES[rule], decay="sqrt_t"))
    assert same(vfl.simulate(celu, data), vfl.simulate(fedbcd, data))


@pytest.mark.parametrize("W", [1, 5])
def test_one_use_is_fedsgd(W: int) -> None:
    data = celu_parties(3)
    assert same(
        vfl.simulate(celu_job(vfl.CeluVFL(lr=0.3, R=1, W=W, xi=60)), data),
        vfl.simulate(celu_job(vfl.FedSGD(lr=0.3)), data),
    )


@pytest.mark.parametrize("joint", ["sum", "top"])
def test_networks_with_a_table_of_one_are_fedbcd(joint: str) -> None:
    data, model = celu_parties(3), vfl.Neural(joint=joint, width=3)
    celu, fedbcd = vfl.CeluVFL(lr=0.1, R=3, W=1), vfl.FedBCD(lr=0.1, local_steps=3)
    assert same(vfl.simulate(celu_job(celu, model), data), vfl.simulate(celu_job(fedbcd, model), data))


def pooled(job: vfl.Job, parties: list[vfl.Party]) -> list[Floats]:
    """Return all parties' theta by a plain loop with one table per party."""
    loss, y, opt = LOSSES[job.model.name], parties[0].y, job.optimizer
    assert y is not None
    assert isinstance(opt, vfl.CeluVFL)
    t_y, n, K = loss.targets(y, loss.classes(y)), len(y), len(parties)
    X = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parties]
    X[0] = np.column_stack([X[0], np.ones(n)])
    theta = [np.zeros((block.shape[1], t_y.shape[1])) for block in X]
    theta[0] = starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS, :-1], t_y, job.seed)
    decay = [np.full((block.shape[1], 1), job.model.l2) for block in X]
    decay[0][-1] = 0
    tables: list[Workset[tuple[NDArray[np.intp], list[Floats], Floats]]] = [Workset(opt.W, opt.R) for _ in range(K)]

    def step(k: int, rows: NDArray[np.intp], g: Floats) -> None:
        theta[k] = theta[k] - opt.lr * (X[k][rows].T @ g / len(rows) + decay[k] * theta[k])

    def local(k: int) -> None:
        if (batch := tables[k].sample()) is None:
            return
        rows, H, g = batch
        if k == 0:
            now = loss.residual(X[0][rows] @ theta[0] + sum(H[1:]), t_y[rows])
            step(0, rows, now if opt.xi is None else now * cosines(g, now, opt.xi)[:, None])
        else:
            weights = np.ones(len(rows)) if opt.xi is None else cosines(H[k], X[k][rows] @ theta[k], opt.xi)
            step(k, rows, weights[:, None] * g)

    history = []
    for t, scheduled in enumerate(job.schedule(n).iterations()):
        rows = scheduled.rows
        history.append([block.copy() for block in theta])
        H = [X[k][rows] @ history[max(0, t - opt.depth + 1)][k] for k in range(K)]
        for k in range(K):
            for _ in range(opt.R - 1):
                local(k)
        g = loss.residual(X[0][rows] @ theta[0] + sum(H[1:]), t_y[rows])
        for k in range(K):
            step(k, rows, g)
            tables[k].put(scheduled.index, (rows, H, g), t)
    return theta


@pytest.mark.parametrize("xi", [None, 30.0, 60.0])
@pytest.mark.parametrize(("model", "classes"), [(vfl.Logistic(l2=0.01), 2), (vfl.Softmax(), 3)])
@pytest.mark.parametrize("parties", [2, 4])
def test_equals_the_pooled_loop(xi: float | None, model: vfl.Logistic, classes: int, parties: int) -> None:
    data = celu_parties(parties, classes)
    job = celu_job(vfl.CeluVFL(lr=0.2, R=4, W=3, xi=xi), model)
    run = vfl.simulate(job, data)
    for part, theta in zip(run.parts.values(), pooled(job, data), strict=True):
        np.testing.assert_allclose(part.theta, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("depth", [2, 4, 40])
@pytest.mark.parametrize("xi", [None, 60.0])
def test_with_several_exchanges_in_flight_too(depth: int, xi: float | None) -> None:
    data = celu_parties(3)
    job = celu_job(vfl.CeluVFL(lr=0.1, R=4, W=3, xi=xi, depth=depth), evaluate_every=4, test_fraction=0.0)
    run = vfl.simulate(job, data)
    for part, theta in zip(run.parts.values(), pooled(job, data), strict=True):
        np.testing.assert_allclose(part.theta, theta, rtol=1e-9, atol=1e-12)


def test_one_use_in_a_pipeline_is_the_pipeline() -> None:
    data = celu_parties(3)
    assert same(
        vfl.simulate(celu_job(vfl.CeluVFL(lr=0.3, R=1, W=1, depth=3)), data),
        vfl.simulate(celu_job(vfl.Pipeline(lr=0.3, depth=3)), data),
    )


@pytest.mark.parametrize(("joint", "parties"), [("sum", 2), ("top", 3)])
def test_networks_train_and_come_to_the_same_model_again(joint: str, parties: int) -> None:
    data = celu_parties(parties, rows=240)
    rule = vfl.AdaGrad()
    job = celu_job(vfl.CeluVFL(lr=0.1, R=5, W=3, xi=60, rule=rule), vfl.Neural(joint=joint, width=4), epochs=8)
    one, other = vfl.simulate(job, data), vfl.simulate(job, data)
    assert same(one, other)
    assert one.metrics["auc"] > 0.8


@pytest.mark.parametrize("sums", ["tree", "pairwise", "cipher"])
def test_any_sum_carries_the_exchange(sums: str) -> None:
    data, optimizer = celu_parties(3), vfl.CeluVFL(lr=0.1, R=3, W=2, xi=60)
    clear, hidden = (
        vfl.simulate(celu_job(optimizer, protocol=vfl.Protocol(sum=sum_name, residual="open")), data)
        for sum_name in ("direct", sums)
    )
    for name in clear.parts:
        np.testing.assert_allclose(hidden.parts[name].theta, clear.parts[name].theta, atol=1e-4)


def test_evaluations_in_between_change_nothing() -> None:
    data, optimizer = celu_parties(3), vfl.CeluVFL(lr=0.1, R=4, W=3, xi=60)
    never, often = (
        vfl.simulate(celu_job(optimizer, test_fraction=0.2, evaluate_every=every), data) for every in (0, 1)
    )
    assert same(never, often)
    assert len([record for record in often.history if "auc" in record]) == often.costs.rounds


def test_local_steps_run_during_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The active party publishes a residual only once both have taken all local steps of that round: were these to wait
    for it, no party would continue."""
    rounds, steps, changed = 12, Counter[str](), threading.Condition()
    publish, sampled = ActiveLink.publish, vfl.CeluVFL._sampled

    def counted(self: vfl.CeluVFL, table: Workset[object]) -> Iterator[object]:
        yield from sampled(self, table)
        with changed:
            steps[threading.current_thread().name] += 1
            changed.notify_all()

    def waits(self: ActiveLink, *args: object, **keys: object) -> None:
        with changed:
            assert changed.wait_for(lambda: len(steps) == 3 and len(set(steps.values())) == 1, timeout=60)
        publish(self, *args, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(vfl.CeluVFL, "_sampled", counted)
    monkeypatch.setattr(ActiveLink, "publish", waits)
    run = vfl.simulate(celu_job(vfl.CeluVFL(lr=0.1, R=3, W=4), batch_size=50, epochs=4), celu_parties(3))
    assert run.costs.rounds == rounds
    assert steps == dict.fromkeys(run.parts, rounds)


def seconds(optimizer: object, monkeypatch: pytest.MonkeyPatch, *, step: float, rtt: float) -> float:
    """Return the virtual seconds of a round with steps of `step` seconds and a round-trip time of `rtt`."""
    with monkeypatch.context() as patch:
        take = vfl.CeluVFL._step

        def slow(self: vfl.CeluVFL, party: object, *args: object) -> None:
            party._channel.clock.offloaded(Kind.LOCAL, step)  # type: ignore[attr-defined]
            take(self, party, *args)  # type: ignore[arg-type]

        patch.setattr(vfl.CeluVFL, "_step", slow)
        network = vfl.Network(mbps=1e6, rtt_ms=rtt * 1000, message_ms=0)
        run = vfl.simulate(celu_job(optimizer, batch_size=15, epochs=4), celu_parties(2), network=network)
    return run.costs.training / run.costs.rounds


@pytest.mark.parametrize(("step", "rtt"), [(1.0, 40.0), (10.0, 4.0), (5.0, 20.0)])
def test_exchange_and_local_steps_overlap(step: float, rtt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    R, W = 5, 5
    overlapped = seconds(vfl.CeluVFL(lr=0.1, R=R, W=W), monkeypatch, step=step, rtt=rtt)
    after = seconds(vfl.CeluVFL(lr=0.1, R=R, W=1), monkeypatch, step=step, rtt=rtt)
    assert after == pytest.approx(rtt + R * step, rel=0.01)
    assert overlapped == pytest.approx(max(rtt + step, R * step), rel=0.08)  # the table fills in the first rounds
