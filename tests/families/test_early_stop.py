"""Trainings on shares that stop early: all parties stop alike, and the sheet and the ledgers count what is opened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError
from securevfl.families import leak_kinds
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.message_declarations import run_roles
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.score_results import Measurement
from securevfl.families.shares.shares_measures import loss_has_risen
from securevfl.families.shares.shares_outputs import LOSS_SUMS, shares_outputs
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.handshake import StopDecision
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.protocols.shares.opened_loss import LOSS_SUM_BITS, LossSum, rounding_deviation
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from tests.builders import parties_of, raises_code, random_blocks, random_parties
from tests.families.test_shares_turned import Cut, alike

STOPS_AT_ONCE = 9.0
"""A decrease of the loss that no evaluation shows, so that the training stops at the second one."""
NEVER_STOPS = 1e-9
"""A decrease of the loss that every evaluation of `separated` shows."""


def stopping_job(gain: float, **keys: Any) -> vfl.Job:
    return vfl.Job(
        **{
            "model": "logistic",
            "optimizer": BlockDescent(early_stop=gain),
            "epochs": 20,
            "accepts": tuple(leak_kinds()),
        }
        | keys
    )


def separated(count: int = 2, **keys: Any) -> list[vfl.Party]:
    """Return parties whose first columns are the label, so that the loss decreases in every iteration."""
    y = np.arange(400) % 2
    blocks = [block + 4 * y[:, None] for block in random_blocks(count, 400, 2)]
    return parties_of(blocks, y, **keys)


def count_messages(events: list[Event]) -> Counter[type]:
    return Counter(type(event.message) for event in events if event.direction == "send")


KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "two parties": (2, {}),
    "three parties": (3, {}),
    "three classes": (2, {"model": "one_vs_rest"}),
    "trees": (2, {"model": vfl.Trees(trees=2, depth=2)}),
    "l2": (2, {"model": vfl.Logistic(l2=0.1)}),
    "nothing held out": (2, {"test_fraction": 0.0}),
    "several chunks": (3, {"protocol": {"shares": {"chunk": 5}}}),
}


@pytest.mark.parametrize(
    ("gain", "kind"),
    [
        *(
            pytest.param(STOPS_AT_ONCE, kind, marks=[pytest.mark.slow] * (kind in ("three parties", "l2")))
            for kind in KINDS
        ),
        *(pytest.param(NEVER_STOPS, kind, marks=[pytest.mark.slow] * (kind != "several chunks")) for kind in KINDS),
    ],
)
def test_all_parties_stop_alike_and_open_what_the_sheet_states(gain: float, kind: str, tmp_path: Path) -> None:
    """The iterations after which the model is evaluated are 8 and 12, and 20 if the training does not stop."""
    count, keys = KINDS[kind]
    parties = random_parties(count, 400, labels=3 if "classes" in kind else 2, ids=True)
    if gain == NEVER_STOPS:
        keys = keys | {"epochs": 12}
    job, events = stopping_job(gain, **keys), list[Event]()
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in parties}
    run = vfl.simulate(job, parties, ledgers=ledgers, observe=events.append)
    assert [part.rounds for part in run.parts.values()] == [12] * count
    assert len({part.state["visits"] for part in run.parts.values()}) == 1
    assert [record["round"] for record in run.history if "loss" in record] == [8, 12]
    sent, sums = count_messages(events), 2
    assert sent[LossSum] == sums
    assert sent[StopDecision] == sums * (count - 1)
    facts = pooled_run_facts(job, parties)
    (output,) = (item for item in shares_outputs(run.job, facts.shape) if item.name == LOSS_SUMS)  # type: ignore[arg-type]
    assert output.times == (3 if gain == STOPS_AT_ONCE else 2)
    statements = job.family.common_statements(run.job, run_roles(job.family, run.job, facts.parties), facts)
    assert f"{output.times} sums of losses" in statements["openings"]
    for name, party_ledger in ledgers.items():
        counted = Counter[tuple[str, str]]()
        for entry in party_ledger.read().entries:
            counted[entry.disclosure.group, entry.disclosure.learner] += entry.disclosure.count
        if name == "bank":
            for other in [party.name for party in parties[1:]]:
                assert counted["verdicts", other] == STOP_DECISION_BITS * sums
        else:
            assert counted["evaluations", "bank"] >= LOSS_SUM_BITS * sums


def test_a_training_whose_loss_decreases_runs_to_its_end() -> None:
    run = vfl.simulate(stopping_job(1e-4), separated())
    assert run.active.rounds == 20
    assert "took all 20 iterations" in run.active.notes[0]


@pytest.mark.parametrize("count", [2, 3])
def test_the_measured_model_is_returned(count: int) -> None:
    """It is the model that was measured: that of a training with as many iterations and the same coefficients."""
    parties = separated(count)
    fine = {"shares": {"table_bits": 8, "step": 0.125}}
    run = vfl.simulate(stopping_job(STOPS_AT_ONCE, protocol=fine), parties)
    fixed = vfl.simulate(
        stopping_job(STOPS_AT_ONCE, protocol=fine, optimizer=vfl.BlockDescent(), batch_size="all", epochs=12,
                     test_fraction=0.25), parties,
    )  # fmt: skip
    weights = [
        np.concatenate([*whole_weights(item.job, {n: p.state for n, p in item.parts.items()}, "bank").values()])
        for item in (run, fixed)
    ]
    # the first twelve coefficients of 20 and of 12 iterations differ by their largest condition only
    assert np.abs(weights[0] - weights[1]).max() < 0.2 * np.abs(weights[1]).max()
    (loss,) = (record["loss"] for record in run.history if record["round"] == 12)
    rows = run.job.schedule(parties[0].register).test
    f = run.decision({party.name: party.X[rows] for party in parties})[:, 0]
    exact = np.logaddexp(0, np.where(np.asarray(parties[0].y)[rows] == 1, -f, f)).mean()
    assert loss == run.metrics["loss"]
    assert loss == pytest.approx(exact, abs=6 * rounding_deviation(exact, len(rows), 0.25, 0.125))


@pytest.mark.parametrize("cut", [5, 8, 11, 12])
def test_a_resumed_run_stops_alike_and_opens_no_sum_twice(cut: int, tmp_path: Path) -> None:
    parties, events = random_parties(2, 400, ids=True), list[Event]()
    job = stopping_job(STOPS_AT_ONCE)

    def on_round(done: int, of: int) -> None:
        if done == cut:
            raise Cut

    def checkpoints() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=5) for party in parties}

    with pytest.raises(Cut):
        vfl.simulate(job, parties, checkpoints=checkpoints(), on_round=on_round, observe=events.append)
    run = vfl.simulate(job, parties, checkpoints=checkpoints(), observe=events.append)
    assert {part.rounds for part in run.parts.values()} == {12}
    sent = count_messages(events)
    assert (sent[LossSum], sent[StopDecision]) == (2, 2)
    assert "stopped after 12 of 20" in run.active.notes[0]


def test_stored_parts_score_as_the_run_does(tmp_path: Path) -> None:
    parties = random_parties(2, 400, ids=True)
    run = vfl.simulate(stopping_job(STOPS_AT_ONCE), parties)
    columns = {party.name: party.X[:50] for party in parties}
    expected = run.decision(columns)
    run.save(tmp_path)
    stored = vfl.Run.load(tmp_path)
    np.testing.assert_allclose(stored.decision(columns), expected, atol=1e-4)
    assert [part.rounds for part in stored.parts.values()] == [12, 12]


def test_a_clearly_better_earlier_model_is_returned() -> None:
    """With random labels and many columns, the loss of held-out rows increases from the start.

    In 20 runs it increased by 33 deviations of its rounding, with a spread of 3.4; 3 are tolerated.
    """
    draw = np.random.default_rng(0)
    parties = parties_of([draw.normal(size=(240, 50)) for _ in range(2)], draw.integers(0, 2, 240))
    run = vfl.simulate(stopping_job(1e-6), parties)
    losses = {record["round"]: record["loss"] for record in run.history if "loss" in record}
    tolerated = 1e-6 + 3 * rounding_deviation(losses[12], 60, 0.25, 0.25)
    assert losses[12] > losses[8] + tolerated
    assert {part.rounds for part in run.parts.values()} == {12}
    assert {part.state["visits"] for part in run.parts.values()} == {8}
    assert run.metrics["loss"] == losses[8]
    assert "The result is the model after 8 iterations" in run.active.notes[0]


STEEP: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "the first evaluation is the last": (2, 8, 1, {"optimizer": BlockDescent(lr=8.0, early_stop=0.0005), "epochs": 8}),
    "two rollbacks": (3, 12, 2, {"optimizer": BlockDescent(lr=64.0, early_stop=0.0005), "epochs": 12}),
    "an interval": (2, 10, 1, {"optimizer": BlockDescent(lr=8.0), "epochs": 10, "evaluate_every": 10}),
    "an interval, two rollbacks": (2, 10, 2, {"optimizer": BlockDescent(lr=64.0), "epochs": 10, "evaluate_every": 5}),
}
"""Number of parties and iterations, rollbacks that the steps cause, and options. The last evaluation rolls back."""


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        pytest.param(kind, pairs, marks=[pytest.mark.slow] * (pairs != (kind in ("two rollbacks", "an interval"))))
        for kind in STEEP
        for pairs in (False, True)
    ],
)
def test_a_rollback_in_the_last_round_opens_no_further_sum(kind: str, pairs: bool) -> None:
    """All parties know the loss of the model to which they return: here the start, whose loss one party computes."""
    count, rounds, rollbacks, keys = STEEP[kind]
    parties, events = alike(count), list[Event]()
    metrics = "pairs" if pairs else "loss"
    shares = {"shares": {"metrics": metrics}}
    job = stopping_job(NEVER_STOPS, **({"batch_size": "all", "test_fraction": 0.3, "protocol": shares} | keys))
    run = vfl.simulate(job, parties, observe=events.append)
    assert [part.state["sizes"]["rollbacks"][-1] for part in run.parts.values()] == [[rounds, 0]] * count
    assert len(run.active.state["sizes"]["rollbacks"]) == rollbacks
    facts = pooled_run_facts(job, parties)
    (output,) = (item for item in shares_outputs(run.job, facts.shape) if item.name == LOSS_SUMS)  # type: ignore[arg-type]
    assert count_messages(events)[LossSum] == output.times == rollbacks
    y, schedule = np.asarray(parties[0].y), run.job.schedule(len(parties[0].X))
    train, test = y[schedule.train].mean(), y[schedule.test].mean()
    start_loss = -test * np.log(train) - (1 - test) * np.log(1 - train)
    assert run.metrics["loss"] == pytest.approx(start_loss, abs=1e-9)
    if run.job.stops_early:
        assert any(note.endswith("The result is the starting model.") for note in run.active.notes)


def test_a_run_resumes_after_its_last_rollback(tmp_path: Path) -> None:
    """A run whose last evaluation leads to a rollback is interrupted, and then resumed.

    The resumed session does not reuse the stored loss of that evaluation, because it is the loss of the model before
    the rollback.
    """
    keys = STEEP["the first evaluation is the last"][3]
    job, parties, events = stopping_job(1.0, **keys), alike(), list[Event]()

    def on_round(done: int, of: int) -> None:
        if done == of:
            raise Cut

    def checkpoints() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}

    with pytest.raises(Cut):
        vfl.simulate(job, parties, checkpoints=checkpoints(), on_round=on_round)
    run = vfl.simulate(job, parties, checkpoints=checkpoints(), observe=events.append)
    # the interrupted session measured once; on_round is called before the last checkpoint, so 7 iterations are stored
    assert count_messages(events)[LossSum] <= EvaluationSchedule.of(run.job, 8).remaining(7)
    assert any(note.endswith("The result is the starting model.") for note in run.active.notes)
    assert run.metrics["loss"] < 0.72


def test_rounding_alone_makes_no_rollback() -> None:
    """The starting model's loss is exact, and the deviation of the measured one is 0.01."""
    measurement = Measurement({"loss": 0.7}, start_loss=0.7, loss_rounding=0.01)
    assert [loss_has_risen([loss], measurement, 1.1) for loss in (0.69, 0.71, 0.729, 0.731)] == [False] * 3 + [True]
    assert [loss_has_risen([0.6, loss], measurement, 1.1) for loss in (0.65, 0.67)] == [False, True]


def test_rounding_alone_does_not_make_an_earlier_model_the_best() -> None:
    """The last model is returned although the decrease that the job asks for is far above any."""
    run = vfl.simulate(stopping_job(STOPS_AT_ONCE), random_parties(2, 400))
    assert {part.state["visits"] for part in run.parts.values()} == {12}


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_a_bound_of_the_rounding_of_losses_holds(rate: float) -> None:
    """Against the deviation over 400 random roundings of logistic losses, which has a relative error of 4 %."""
    draw = np.random.default_rng(1)
    f, spacing, sign = draw.normal(size=(500, 1)) * 2 - 1, 0.25, np.where(draw.random((500, 1)) < rate, 1, -1)
    rounded = np.floor(f[None] / spacing + draw.random((400, 500, 1))) * spacing
    deviation = np.logaddexp(0, -sign * rounded).mean(axis=(1, 2)).std()
    bound = rounding_deviation(float(np.logaddexp(0, -sign * f).mean()), 500, 0.25, spacing)
    assert 0.4 * bound < deviation < 1.1 * bound


REFUSED: dict[str, dict[str, Any]] = {
    "evaluate_every": {"evaluate_every": 4},
    "target": {"target": {"metric": "loss", "value": 0.1}},
    "patience": {"patience": {"metric": "loss"}},
    "batches": {"batch_size": 64},
    "counts": {"model": "poisson"},
    "encrypted residuals": {"protocol": "ckks"},
    "a value of 0": {"optimizer": {"name": "block_descent", "early_stop": 0.0}},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_options_that_contradict_an_early_stop_are_refused(kind: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        stopping_job(0.001, **REFUSED[kind])


def test_options_that_are_left_out_are_those_of_the_default() -> None:
    job, default = stopping_job(0.0005, epochs=40), vfl.Job(model="logistic")
    left_out = vfl.Job(model="logistic", optimizer=BlockDescent(early_stop=0.0005), accepts=tuple(leak_kinds()))
    assert left_out == job
    assert (job.batch_size, job.epochs, job.test_fraction) == (
        default.batch_size, default.epochs, default.test_fraction,
    )  # fmt: skip
    assert (job.evaluate_every, job.patience, job.stops_early, default.stops_early) == (0, None, True, False)
    trees = vfl.Job(model="trees", optimizer=BlockDescent(early_stop=0.01))
    assert (trees.batch_size, trees.test_fraction, trees.patience) == ("growing", default.test_fraction, None)
