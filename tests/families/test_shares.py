"""Training on shares compared with the same steps in floats: optimizers, losses, parties, openings and the sheet."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.crypto.transfers.field_transfers import TransferReceiver
from securevfl.crypto.transfers.punctured_seeds import BLOCKS, ELEMENTS
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, PartiesError
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_outputs import weight_outputs
from securevfl.models import metrics
from securevfl.optim.block_descent import heavy_ball
from securevfl.optim.rules import Updater
from securevfl.protocols.shares.opened_loss import LossSum
from securevfl.protocols.shares.opened_scores import RoundedScores
from securevfl.protocols.shares.range_count import OutOfRangeCount
from securevfl.protocols.shares.table_transfers import TransferOffer
from securevfl.protocols.shares.word_shuffle import ShuffledWords
from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.observer import Event
from tests.builders import learned_rows, raises_code

STEP_KINDS = {
    "fedsgd": vfl.FedSGD(lr=0.3),
    "falling steps": vfl.FedSGD(lr=0.5, decay="sqrt_t"),
    "momentum": vfl.FedSGD(lr=0.1, rule=vfl.Momentum(beta=0.6)),
    "local steps": vfl.FedBCD(lr=0.1, local_steps=3),
    "proximal": vfl.FedPBCD(lr=0.1, local_steps=3, mu=0.5),
}


def cancer_shares_job(**keys: Any) -> vfl.Job:
    options: dict[str, Any] = {
        "model": vfl.Logistic(),
        "optimizer": STEP_KINDS["fedsgd"],
        "batch_size": 120,
        "epochs": 4,
    }
    options |= {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=2)), "test_fraction": 0.3}
    return vfl.Job(**(options | keys))


def first_cancer_rows(count: int = 2, rows: int = 400) -> list[vfl.Party]:
    return [party.take(np.arange(rows)) for party in vfl.datasets.breast_cancer(parties=count)]


def opened(run: vfl.Run) -> Mapping[str, Any]:
    """Return the weights (d x c) of each party, which no party has; the intercept is last."""
    return whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, run.active.name)


class Pooled:
    """The whole model in one place, as an update rule sees it."""

    def __init__(self, d: int, outputs: int, l2: float, intercept: int) -> None:
        self.theta = np.zeros((d, outputs))
        self.decay = np.full((d, 1), l2)
        self.decay[intercept] = 0.0

    def regularised(self, gradient: Any) -> Any:
        return gradient + self.decay * self.theta


def in_floats(run: vfl.Run, all_parties: list[vfl.Party]) -> Any:
    """Return weights by the optimizer's rule on pooled columns, with the residual at the start of each iteration."""
    options, parts = run.job, [run.parts[party.name] for party in all_parties]
    columns = [np.clip(part.scaling(party.X), -8, 8) for part, party in zip(parts, all_parties, strict=True)]
    X = np.hstack([columns[0], np.ones((len(all_parties[0]), 1)), *columns[1:]])
    loss = options.model.loss
    y = loss.targets(all_parties[0].y, loss.classes(all_parties[0].y))
    model = Pooled(X.shape[1], y.shape[1], options.model.l2, columns[0].shape[1])
    updater = Updater(options.optimizer.update, model)
    for t, visit in enumerate(options.schedule(all_parties[0].register).iterations()):
        rows = visit.rows
        gradient = X[rows].T @ loss.residual(X[rows] @ model.theta, y[rows]) / len(rows)
        updater.begin()
        for _ in range(options.optimizer.steps):
            updater.step(gradient, options.optimizer.eta(t, len(all_parties)))
    return model.theta


@pytest.mark.parametrize(("name", "count"), [*((name, 2) for name in STEP_KINDS), ("falling steps", 3)])
def test_the_model_is_that_of_floats(name: str, count: int) -> None:
    all_parties = first_cancer_rows(count)
    run = vfl.simulate(
        cancer_shares_job(optimizer=STEP_KINDS[name], model=vfl.Logistic(l2=0.02 if count == 3 else 0.0)), all_parties
    )
    np.testing.assert_allclose(np.concatenate(list(opened(run).values())), in_floats(run, all_parties), atol=0.06)
    assert run.metrics["auc"] > 0.97


def test_other_losses_and_several_classes() -> None:
    numbers = [vfl.Party(party.name, party.X, party.y, aligned=True) for party in vfl.datasets.diabetes()]
    steps = vfl.FedSGD(lr=0.3)
    run = vfl.simulate(cancer_shares_job(model=vfl.Square(), optimizer=steps, batch_size="all", epochs=12), numbers)
    np.testing.assert_allclose(np.concatenate(list(opened(run).values())), in_floats(run, numbers), atol=0.03)
    assert run.metrics["r2"] > 0.3
    all_parties = first_cancer_rows()
    label = np.digitize(all_parties[0].X[:, 0], np.quantile(all_parties[0].X[:, 0], [0.3, 0.7]))
    several = [vfl.Party("bank", all_parties[0].X, label, ids=all_parties[0].ids), all_parties[1]]
    run = vfl.simulate(cancer_shares_job(model=vfl.OneVsRest(), optimizer=vfl.FedSGD(lr=1.0), epochs=4), several)
    np.testing.assert_allclose(np.concatenate(list(opened(run).values())), in_floats(run, several), atol=0.15)
    assert run.metrics["auc"] > 0.85
    assert run.predict_proba({party.name: party.X[:7] for party in several}).sum(axis=1) == pytest.approx(np.ones(7))


@pytest.mark.parametrize("batch_size", ["all", "growing"])
def test_steps_by_matrices_of_ones_own_take_few_visits(batch_size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with floats: steps by each party's block of the bound on the Hessian, with heavy-ball momentum."""
    for name, value in (("MIN_GROWING_ROWS", 100), ("MIN_SUBSET_ROWS", 50)):
        monkeypatch.setattr(f"securevfl.data.schedule.{name}", value)
    all_parties = first_cancer_rows(3)
    fine = vfl.Protocol(shares=vfl.Shares(table_bits=8, step=0.125))
    run = vfl.simulate(
        cancer_shares_job(optimizer=vfl.BlockDescent(ridge=0.1), batch_size=batch_size, epochs=12, protocol=fine),
        all_parties,
    )
    schedule = run.job.schedule(all_parties[0].register)
    rows = schedule.batch_order
    columns = [np.clip(run.parts[party.name].scaling(party.X), -8, 8)[rows] for party in all_parties]
    columns[0] = np.hstack([columns[0], np.ones((len(rows), 1))])
    turns = [np.linalg.inv(X.T @ X / (4 * len(X)) + 0.1 * np.eye(X.shape[1])) for X in columns]
    X, loss, y = (
        np.hstack(columns),
        run.job.model.loss,
        np.where(all_parties[0].y[rows] == all_parties[0].y.max(), 1.0, -1.0)[:, None],
    )
    at = np.cumsum([0, *(part.shape[1] for part in columns)])
    point = np.zeros((X.shape[1], 1))
    point[len(columns[0][0]) - 1] = loss.constant_outputs(y)
    before, points = point, []
    for visit, (length, factor) in zip(schedule.iterations(), heavy_ball(12), strict=True):
        n = len(visit.rows)  # the first n of `rows`
        gradient = X[:n].T @ loss.residual(X[:n] @ point, y[:n]) / n
        moves = [P @ gradient[a:b] for P, a, b in zip(turns, at, at[1:], strict=False)]
        before, point = point, point - length * np.concatenate(moves) / 3 + factor * (point - before)
        points.append(point)
    np.testing.assert_allclose(np.concatenate(list(opened(run).values())), np.mean(points[-2:], axis=0), atol=0.02)
    assert run.costs.rounds == 12
    assert len({visit.index for visit in schedule.iterations()}) == (2 if batch_size == "growing" else 1)
    assert run.metrics["auc"] > 0.99


def test_metrics_follow_from_shuffled_pairs_without_scores() -> None:
    """Of held-out rows or of training rows, at any visit, and once where the last visit is due anyway."""
    all_parties, events = first_cancer_rows(), list[Event]()
    run = vfl.simulate(cancer_shares_job(evaluate_every=4, epochs=4), all_parties, observe=events.append)
    received = [type(event.message) for event in events if event.direction == "recv" and event.me == "bank"]
    assert received.count(ShuffledWords) == 1
    assert (received.count(LossSum), received.count(OutOfRangeCount)) == (-(-len(run.history) // 4), 2)
    assert not received.count(RoundedScores)
    assert set(run.history[3]) - {"round", "epoch", "seconds"} == {"loss"}
    assert {"auc", "accuracy", "loss", "pr_auc"} <= set(run.metrics)
    assert len(run.calibration) == 10
    run = vfl.simulate(cancer_shares_job(test_fraction=0.0), all_parties)
    assert run.metrics["auc"] > 0.98


def test_metrics_are_those_of_the_scores() -> None:
    """They agree up to the random rounding of sums to multiples of 1/4, whose effect on the loss 400 draws state to
    4 %. There are few rows here, and tests on real tables are stricter.
    """
    all_parties, draw = first_cancer_rows(), np.random.default_rng(0)
    run = vfl.simulate(cancer_shares_job(epochs=4), all_parties)
    f, rows = in_scores(run, all_parties), run.job.schedule(all_parties[0].register).test
    f, y, loss = f[rows], all_parties[0].y[rows], run.job.model.loss
    exact, targets = metrics.evaluate(loss, f, y, run.active.classes), loss.targets(y, run.active.classes)
    rounded = [np.floor(4 * f + draw.random(f.shape)) / 4 for _ in range(400)]
    changes = np.array([loss.value(values, targets).mean() for values in rounded]) - exact["loss"]
    assert abs(run.metrics["loss"] - exact["loss"]) < 6.6 * np.sqrt((changes**2).mean())
    assert run.metrics["auc"] == pytest.approx(exact["auc"], abs=0.005)


@pytest.mark.parametrize("every", [0, 4, 5])  # evaluations of a training of 12 rounds
def test_metrics_are_taken_as_often_as_is_counted(every: int) -> None:
    shares_job, all_parties, events = cancer_shares_job(evaluate_every=every), first_cancer_rows(), list[Event]()
    vfl.simulate(shares_job, all_parties, observe=events.append)
    received = [type(event.message) for event in events if event.direction == "recv"]
    assert received.count(LossSum) == len(EvaluationSchedule.of(shares_job, 12).measured_rounds())
    assert received.count(ShuffledWords) == 1


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_a_label_counts_the_logarithm_of_the_classes(classes: int) -> None:
    all_parties = first_cancer_rows()
    shares_job = cancer_shares_job(
        model=vfl.GeneralLinear(loss="one_vs_rest"), protocol=vfl.Protocol(shares=vfl.Shares(open_weights=["shop"]))
    )
    sizes = replace(pooled_run_facts(shares_job, all_parties).shape, outputs=classes)
    assert {output.capacity for output in weight_outputs(shares_job, sizes) if output.kind == "labels"} == {
        int(280 * np.log2(classes))
    }


def test_patience_takes_the_best_model_by_loss() -> None:
    stop = {"metric": "loss", "evaluations": 2, "tolerance": 0.01}
    run = vfl.simulate(cancer_shares_job(patience=stop, evaluate_every=2, epochs=20), first_cancer_rows())
    assert len(run.history) < 60
    assert run.metrics["loss"] == min(record.get("loss", 9.0) for record in run.history)
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        cancer_shares_job(patience=stop | {"metric": "auc"}, evaluate_every=2)


def test_the_best_model_is_recorded_opened_and_measured_once(tmp_path: Path) -> None:
    """Its rows are in every ledger, so that new rows are scored by it and rows of the training are not."""
    bank, shop = first_cancer_rows()
    shares_job = cancer_shares_job(
        optimizer=vfl.FedSGD(lr=0.3),
        patience={"metric": "loss", "evaluations": 6},
        evaluate_every=9,
        epochs=18,
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=20, open_weights=["shop"])),
        accepts=("scores", "small_metrics", "label_auc", "opened_weights"),
    )
    # labels of a fifth of the rows held out are turned round, so that every nine visits the loss rises by .04 or more,
    # more than ten times what levels, which are rounded at random, move it by
    turned = shares_job.schedule(bank.register).test
    turned = turned[: len(turned) // 5]
    labels = bank.y.copy()
    labels[turned] = 1 - labels[turned]
    all_parties = [vfl.Party("bank", bank.X, labels, ids=bank.ids, columns=list(bank.columns)), shop]
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in all_parties}
    run = vfl.simulate(shares_job, all_parties, ledgers=ledgers)
    stored_visits, rows = run.parts["shop"].state["visits"], run.job.schedule(all_parties[0].register).train
    evaluated = [record["round"] for record in run.history if "loss" in record]
    assert 9 == stored_visits < evaluated[-1] == 54
    assert set(run.parts["shop"].coefficients()) == set(all_parties[1].columns)
    with closing(sqlite3.connect(ledgers["shop"].path)) as tables:
        assert tables.execute("SELECT visits FROM models").fetchall() == [(stored_visits,)]
        assert tables.execute("SELECT count(*) FROM trained").fetchall() == [(len(rows),)]
        assert tables.execute("SELECT DISTINCT count FROM times").fetchall() == [(len(evaluated),)]


def in_scores(run: vfl.Run, all_parties: list[vfl.Party]) -> Any:
    theta = opened(run)
    total = sum(np.clip(run.parts[p.name].scaling(p.X), -8, 8) @ theta[p.name][: len(p.columns)] for p in all_parties)
    return total + theta[all_parties[0].name][-1]


def test_scores_of_new_rows_are_those_of_the_weights() -> None:
    all_parties = first_cancer_rows(3)
    run = vfl.simulate(cancer_shares_job(epochs=4), all_parties)
    new = {party.name: party.X[:50] for party in all_parties}
    np.testing.assert_allclose(
        run.decision(new), in_scores(run, [p.take(np.arange(50)) for p in all_parties]), atol=0.05
    )


@pytest.mark.parametrize(("metric", "value"), [("loss", 0.3)])
def test_a_target_ends_a_run(metric: str, value: float) -> None:
    run = vfl.simulate(cancer_shares_job(target=vfl.Target(metric=metric, value=value), epochs=20), first_cancer_rows())
    assert len(run.history) < 10
    assert metrics.reached(metric, run.history[-1][metric], value)


def test_work_ahead_is_booked_apart() -> None:
    run = vfl.simulate(cancer_shares_job(), first_cancer_rows(), network=vfl.Network(mbps=300, rtt_ms=20))
    assert 0 < run.costs.ahead < run.costs.total
    assert run.costs.row()["protocol"] == "shares"
    per_visit = run.costs.seconds(Kind.COMMUNICATION) / run.costs.rounds
    assert 0.01 < per_visit < 0.025  # one round trip; if a party is ahead, its message has left before it is waited for
    assert run.active.path[Stage.OFFLINE, Kind.ENCRYPTION] > 0


def test_the_sheet_says_sizes_and_scores_and_nothing_else() -> None:
    sheet = vfl.explain(cancer_shares_job(), first_cancer_rows(3))
    assert "openings  1 sums of losses of 120 rows; (score, label) pairs of these rows in random order, once" in sheet
    assert "The 7 bits of a score are at most 20% of the 36 bits" in " ".join(sheet.split())
    assert "shop (partner)" in sheet
    assert [row[:2] for row in learned_rows(sheet)][-2:] == [
        (name, "nothing about any row") for name in ("shop", "telco")
    ]
    assert "gradient" not in sheet
    assert sheet.count("would be refused") == 1  # because the table has only 120 held-out rows
    assert (
        "If bank and shop put their parts together, they could compute their weights, and for each row its score"
        in sheet
    )
    named = cancer_shares_job(protocol=vfl.Protocol(shares=vfl.Shares(partner="telco")))
    assert "telco (partner)" in vfl.explain(named, first_cancer_rows(3))
    assert "Every party learns how many rows" in vfl.explain(cancer_shares_job())
    with raises_code(PartiesError, "SVFL-PARTIES-NAME", party="nobody"):
        vfl.explain(cancer_shares_job(protocol=vfl.Protocol(shares=vfl.Shares(partner="nobody"))), first_cancer_rows(3))


def test_a_job_on_shares_comes_back_from_its_file(tmp_path: Any) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'model = "logistic"\nepochs = 3\n[optimizer]\nname = "fedsgd"\nlr = 0.3\n[protocol.shares]\nchunk = 2\n'
    )
    read = vfl.Job.load(path)
    assert read.protocol.shares == vfl.Shares(chunk=2)
    assert vfl.Job.from_dict(read.to_dict()).digest == read.digest


@pytest.mark.parametrize(
    ("keys", "option"),
    [
        ({"model": vfl.Softmax()}, "one_vs_rest"),
        ({"optimizer": vfl.FedSGD(lr=0.1, rule="adam")}, "adam"),
        ({"optimizer": vfl.FedBCD(lr=0.1, mode="sequential")}, "mode"),
        ({"reshuffle": True}, "reshuffle"),
        ({"model": vfl.OneVsRest(), "target": vfl.Target(metric="accuracy", value=0.9)}, "target.metric"),
        ({"protocol": vfl.Protocol(residual="open"), "optimizer": vfl.BlockDescent()}, "protocol.shares"),
        ({"model": vfl.Kernel(gamma=0.1)}, "kernel"),
    ],
    ids=["softmax", "adam", "sequential", "reshuffle", "auc", "no shares", "kernel"],
)
def test_what_does_not_fit_is_refused_with_the_remedy(keys: dict[str, Any], option: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        cancer_shares_job(**keys)
    assert option in str(refused.value)


def test_shares_stand_alone() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Protocol(shares=vfl.Shares(), residual="open")
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Shares(step=0.3)
    slow = vfl.FedSGD(lr=0.1, rule=vfl.Momentum())
    with raises_code(ConfigError, "SVFL-JOB-TOO-LARGE"):
        vfl.simulate(cancer_shares_job(optimizer=slow, batch_size=1, epochs=10), first_cancer_rows())


def test_weights_are_opened_to_those_named_and_nobody_else() -> None:
    all_parties = first_cancer_rows(3)
    named = cancer_shares_job(protocol=vfl.Protocol(shares=vfl.Shares(chunk=2, open_weights=("telco", "bank"))))
    run = vfl.simulate(named, all_parties)
    exact = opened(run)
    for name in ("telco", "bank"):
        np.testing.assert_array_equal(run.parts[name].theta, exact[name])
    assert "theta" not in run.parts["shop"].state
    sheet = vfl.explain(named, all_parties)
    assert sheet.count("its own weights, as the job permits") == 2
    assert "OpenedWeights" in sheet
    assert "OpenedWeights" not in vfl.explain(cancer_shares_job(), all_parties)
    with raises_code(PartiesError, "SVFL-PARTIES-NAME"):
        vfl.explain(cancer_shares_job(protocol=vfl.Protocol(shares=vfl.Shares(open_weights=("nobody",)))), all_parties)


def test_a_session_has_one_set_of_base_transfers(monkeypatch):
    offers, seeds, make = list[bytes](), list[bytes](), TransferReceiver.__init__

    def noting(self, blocks, coin, bits, pad_octets):
        seeds.extend(seed for block in blocks for seed in block)
        make(self, blocks, coin, bits, pad_octets)

    def watch(event: Event) -> None:
        if event.direction == "send" and type(event.message) is TransferOffer:
            offers.append(event.message.public)

    monkeypatch.setattr(TransferReceiver, "__init__", noting)
    vfl.simulate(cancer_shares_job(evaluate_every=2), first_cancer_rows(3), observe=watch)
    assert len(offers) == 1
    assert len(seeds) >= 3 * BLOCKS * ELEMENTS, "preprocessing, evaluation and out-of-range counts use transfers"
    assert len(set(seeds)) == len(seeds)
