"""Counts of rounds, iterations and measurements, and stored values, compared with loops for all sizes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.settle_job import most_epochs
from securevfl.data.party import register_of
from securevfl.data.schedule import Schedule, rows_of_epochs, subset_of_epoch
from securevfl.errors import DataError, TableError
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.row_weights import Weights
from securevfl.optim.block_descent import early_stop_rounds
from securevfl.optim.defaults import iteration_factor
from securevfl.training.checkpoint import MAX_CHECKPOINTS, Checkpoint, Checkpoints
from tests.builders import labels_for, parties_of, raises_code, random_blocks
from tests.hard_tables import sizes_around


@pytest.mark.parametrize("interval", [0, 1, 2, 3, 5, 7])
def test_measured_rounds_are_those_of_a_loop_over_rounds(interval: int) -> None:
    """Each round at which an evaluation is due, and the last one, from any round at which a run resumes."""
    for rounds, start, restores, turns in product(range(1, 13), range(12), (False, True), (False, True)):
        if start >= rounds:
            continue
        schedule = EvaluationSchedule(rounds, interval, interval, restores, may_roll_back=turns)
        due = [done for done in range(1, rounds + 1) if interval and done % interval == 0]
        assert [done for done in range(1, rounds + 1) if schedule.is_due(done)] == due
        measured = sorted({done for done in due if done > start} | {rounds})
        assert schedule.measured_rounds(start) == measured
        assert schedule.count_measured_rounds(start) == len(measured)
        assert schedule.evaluations == len(due) + 1
        assert schedule.decisions == len(due)
        again = (restores or turns) and start > 0 and bool(due) and due[-1] == rounds
        assert schedule.remaining(start) == len(measured) + again


@pytest.mark.parametrize("after", [0, 8, 16])
def test_early_stop_rounds_are_those_of_a_loop(after: int) -> None:
    """After 8, 12, 18 and 30 rounds, then half as many more, but neither in early rounds nor just before the end."""
    numbers = [8, 12, 18, 30, 45, 67, 100, 150, 225]
    for rounds in range(1, 250):
        due = [*(number for number in numbers if number > after and number * 1.2 <= rounds), rounds]
        schedule = EvaluationSchedule(rounds, 0, 0, may_restore=True, fixed=early_stop_rounds(rounds, after))
        assert [done for done in range(1, rounds + 1) if schedule.is_due(done)] == due
        for start in range(0, rounds, 7):
            measured = [done for done in due if done > start]
            session = replace(schedule, start=start)
            assert session.measured_rounds(start) == measured
            assert session.decisions == session.count_measured_rounds(start) == len(measured)
            assert session.evaluations == len(measured) + 1
            assert session.remaining(start) == len(measured) + (start > 0)


@pytest.mark.parametrize("batch", [1, 7, 8, 9, 40, "all"])
def test_batches_contain_every_training_row_once(batch: int | str) -> None:
    for rows in (*sizes_around(8, 2), 40):
        schedule = Schedule(rows, batch_size=batch, epochs=3, seed=1, test_fraction=0.2, reshuffle=False)  # type: ignore[arg-type]
        held_out = round(rows * 0.2)
        assert (len(schedule.test), len(schedule.train)) == (held_out, rows - held_out)
        assert sorted([*schedule.test, *schedule.train]) == list(range(rows))
        sizes = [len(part) for part in schedule.partition(0)]
        count = 1 if batch == "all" else math.ceil((rows - held_out) / int(batch))
        assert (schedule.batches, len(sizes)) == (count, count)
        assert max(sizes) - min(sizes) <= 1
        assert batch == "all" or max(sizes) <= int(batch)
        assert schedule.smallest_batch == min(sizes)
        assert sorted(row for part in schedule.partition(0) for row in part) == schedule.train.tolist()
        assert sum(size * times for size, times in schedule.count_sizes(range(3)).items()) == 3 * (rows - held_out)
        assert len(list(schedule.iterations())) == len(schedule) == 3 * count
        for epoch in range(3):
            indices = [item.index for item in schedule.iterations() if item.epoch == epoch]
            assert sorted(indices) == list(range(count))
    assert rows_of_epochs(50, 4, batch) == [50] * 4  # type: ignore[arg-type]
    assert [subset_of_epoch(epoch, 20, 3) for epoch in range(20)] == [0] * 10 + [1] * 6 + [2] * 4


def test_states_of_every_kind_are_read_as_they_were(tmp_path: Path) -> None:
    state = State(
        array=np.arange(6.0).reshape(2, 3), small=np.array([1, -2], np.int16), flags=np.array([True, False]),
        key=b"\x00\xff",
        nested={"list": [np.ones(2, np.float32), b"x", {"deep": (1, None, "text", 0.1)}]}, empty=np.empty((0, 3)),
    )  # fmt: skip
    read = State.read(json.loads(json.dumps(state.plain())))
    assert read.keys() == state.keys()
    for name in ("array", "small", "flags", "empty"):
        np.testing.assert_array_equal(read[name], state[name])
        assert read[name].dtype == state[name].dtype
    assert read["key"] == state["key"]
    first, second, third = read["nested"]["list"]
    assert (first.tolist(), first.dtype, second) == ([1.0, 1.0], np.dtype(np.float32), b"x")
    assert third == {"deep": [1, None, "text", 0.1]}
    assert "0.1" not in repr(state)


def test_checkpoints_are_due_at_multiples_and_the_newest_remain(tmp_path: Path) -> None:
    with raises_code(DataError, "SVFL-JOB-OPTION"):
        Checkpoints(tmp_path, "bank", every=0)
    stored = Checkpoints(tmp_path, "bank", every=3)
    assert [done for done in range(10) if stored.due(done)] == [0, 3, 6, 9]
    for done in range(3, 3 * MAX_CHECKPOINTS + 7, 3):
        stored.save(b"job", Checkpoint(done, "run", [], {}, State(round=done)))
        stored.save(b"another", Checkpoint(done, "run 2", [], {}, State()))
    rounds = stored.rounds(b"job")
    assert rounds == tuple(range(3, 3 * MAX_CHECKPOINTS + 7, 3))[-MAX_CHECKPOINTS:]
    assert stored.load(b"job", rounds[0]).state["round"] == rounds[0]
    assert stored.load(b"job", rounds[-1]).round == rounds[-1]
    assert (stored.run(b"job"), stored.run(b"another"), stored.run(b"none")) == ("run", "run 2", "")


def test_weights_of_metrics_are_those_of_the_evaluated_rows() -> None:
    blocks = random_blocks(2, 60, 3)
    y, weights = labels_for(blocks), np.arange(60.0) % 4
    bank, shop = parties_of(blocks, y, ids=range(60))
    table = np.column_stack([blocks[0], weights])
    bank = vfl.Party("bank", table, y, ids=range(60), columns=["a", "b", "c", "w"]).with_column_as("weights", "w")
    job = vfl.Job(model="logistic", protocol="open", test_fraction=0.3, epochs=1)
    schedule = job.schedule(register_of([bank, shop]))
    data = TrainingData(bank, schedule, job.loss, scale="standard")
    for rows in (schedule.test, schedule.train[:5]):
        found = data.metric_weights(rows)
        assert found is not None
        assert found.tolist() == weights[rows].tolist()
    with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
        data.metric_weights(np.flatnonzero(weights == 0))
    assert TrainingData(shop, schedule, job.loss, scale="standard").metric_weights(schedule.test) is None


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("weights", [None, Weights(classes="balanced")], ids=["equal", "balanced"])
def test_targets_by_output_are_pairs_of_a_row_and_an_output(classes: int, weights: Weights | None) -> None:
    blocks, y = random_blocks(2, 60, 3), np.repeat(np.arange(4), (30, 15, 10, 5)) % classes
    parties = parties_of(blocks, y, ids=range(60))
    job = vfl.Job(model="one_vs_rest" if classes > 2 else "logistic", protocol="open", test_fraction=0.3, epochs=1)
    schedule, outputs = job.schedule(register_of(parties)), 1 if classes == 2 else classes
    data = TrainingData(parties[0], schedule, job.loss, scale="standard", weights=weights)
    by_output, by_row = data.loss_targets_by_output(schedule.train, outputs), data.loss_targets(schedule.train)
    assert by_output is not None
    assert by_row is not None
    assert by_row.shape[1] == outputs + (weights is not None)
    assert by_output.tolist() == [[row[j], *row[outputs:]] for row in by_row.tolist() for j in range(outputs)]


def test_public_sizes_are_counted_from_the_tables() -> None:
    """Three parties, batches that do not divide the rows, and a rare class of three rows among the held-out ones."""
    blocks = random_blocks(3, 90, [3, 2, 4])
    y = np.zeros(90, int)
    job = vfl.Job(
        model="logistic", protocol="open", optimizer={"name": "fedbcd", "lr": 0.1}, batch_size=25, epochs=4,
        test_fraction=0.3, accepts=("columns", "rank"),
    )  # fmt: skip
    test = job.schedule(90).test
    y[test[:3]] = 1
    y[job.schedule(90).train[:20]] = 1
    shape = pooled_run_facts(job, parties_of(blocks, y)).shape
    assert (shape.rows, shape.held_out, shape.batches, shape.epochs) == (63, 27, 3, 4)
    assert (shape.smallest_batch, shape.steps, shape.residuals) == (21, 12, 21)
    assert dict(shape.columns) == {"bank": 3, "shop": 2, "telco": 4}
    assert dict(shape.parameters) == {"shop": 2, "telco": 4}
    assert (shape.active, shape.passives, shape.outputs) == ("bank", ("shop", "telco"), 1)
    assert shape.rarest_label_rows == 3


@pytest.mark.parametrize("room", [1.0, 4.0, 16.0, 100.0])
def test_epochs_of_open_jobs_grow_with_the_room_of_weights(room: float) -> None:
    assert iteration_factor(room) >= 1.0
    weights = {"classes": {"0": 1.0, "1": 2.0}, "max_weight": room}
    logistic = vfl.Job(model="logistic", protocol="ckks", weights=weights)
    poisson = vfl.Job(model="poisson", protocol="ckks")
    plain = vfl.Job(model="logistic", protocol="ckks")
    assert most_epochs(logistic) == math.ceil(most_epochs(plain) * iteration_factor(logistic.weights.limit))
    assert most_epochs(poisson) == 3 * most_epochs(plain)
