"""Computations of the server and the workers of a stored sum on everything that they received, alone and together."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from selfcheck.stored_runs import WORKERS, StoredPush, StoredRun, WorkerStep, record_stored

import securevfl as vfl
from securevfl.audit.attacks.column_space import shares_inside
from securevfl.audit.recording.protocol_record import COLLECTS
from securevfl.base.arrays import Floats
from securevfl.families.fdml.masked_store import CHECK_WORDS
from securevfl.families.fdml.stored_sum import StoredSum

ROWS, COLUMNS, VISITS = 300, 4, 8
HIDING = [vfl.StoredMasks()]
STORED_KINDS = [vfl.StoredOpen(), *HIDING]


def worker_columns(seed: int = 0) -> dict[str, Floats]:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=(ROWS, COLUMNS)) for name in WORKERS}


def in_step(X: dict[str, Floats], *, only: str = "") -> dict[WorkerStep, Floats]:
    """Let workers push one batch an iteration with changing weights; after the first, only those of `only`."""
    generator, result = np.random.default_rng(1), {}
    for visit in range(VISITS):
        for name in WORKERS:
            if visit == 0 or only in ("", name):
                result[WorkerStep(name, 0, visit)] = X[name] @ generator.normal(size=(COLUMNS, 1))
    return result


def basis(numbers: Floats, most: int) -> Floats:
    """Return an orthonormal basis of the span of the numbers (n, t), up to a number of dimensions."""
    U, sizes, _ = np.linalg.svd(numbers - numbers.mean(axis=0), full_matrices=False)
    stored: Floats = U[:, :most][:, sizes[:most] > 1e-6 * sizes[0]]
    return stored


def inside(truth: Floats, numbers: Floats) -> float:
    """Return the mean share of a column's variance in the space of the numbers."""
    return float(np.nanmean(shares_inside(truth, basis(numbers, COLUMNS * len(WORKERS)))))


def pulled_numbers(run: StoredRun, name: str) -> Floats:
    """Return everything that the server received from a worker, read as numbers.

    Payloads are read as numbers in the clear or in fixed point.
    """
    columns = []
    for event in run.transcript.received:
        if isinstance(event.message, StoredPush) and event.peer == name:
            words = np.frombuffer(event.message.payload[: 8 * ROWS], "<u8")
            numbers = words.view("<f8")
            plain = np.isfinite(numbers).all() and np.abs(numbers).max() < 2.0**20
            columns.append(numbers if plain else words.view("<i8").astype(np.float64))
    return np.column_stack(columns)


@pytest.mark.parametrize("stored", STORED_KINDS, ids=repr)
def test_the_server_learns_columns_from_open_payloads_only(stored: StoredSum) -> None:
    X = worker_columns()
    run = record_stored(stored, in_step(X))
    chance = VISITS / (ROWS - 1)
    for name in WORKERS:
        result = inside(X[name], pulled_numbers(run, name))
        if stored.hides_parts:
            assert result < 4 * chance
        else:
            assert result > 1 - 1e-9
    together = inside(np.hstack(list(X.values())), np.hstack([pulled_numbers(run, name) for name in WORKERS]))
    assert together < 6 * chance if stored.hides_parts else together > 1 - 1e-9


@pytest.mark.parametrize("stored", STORED_KINDS, ids=repr)
def test_pulls_reveal_the_others_joint_space_but_no_single_part(stored: StoredSum) -> None:
    """This is declared and counted: sums of two workers span their 8 columns together from 8 pulls on."""
    X = worker_columns()
    run = record_stored(stored, in_step(X))
    local = {step.version: H for step, H in run.outputs.items() if step.worker == "P3"}
    pulled = [item.sum for item in run.pulled if item.reader == "P3"]
    numbers = np.hstack([sums - local[t] for t, sums in enumerate(pulled) if sums is not None])
    others = np.hstack([X["P1"], X["P2"]])
    assert inside(others, numbers) > 1 - 1e-4
    assert inside(others, numbers[:, :4]) < 0.75, "half the pulls are not enough for most of them"
    assert inside(X["P1"], numbers[:, :1]) < 0.5, "one sum of two parts does not show a part"


@pytest.mark.parametrize("stored", HIDING, ids=repr)
def test_a_worker_that_moves_alone_reveals_its_part(stored: StoredSum) -> None:
    """This is declared and counted: asynchronous workers may learn single parts, whatever the server sees."""
    X = worker_columns()
    steps = in_step(X, only="P1")
    again: dict[WorkerStep, Floats] = {}
    for step, H in steps.items():
        again[step] = H
        if step.worker == "P1" and step.version:  # P3 pulls again without a change
            again[WorkerStep("P3", 0, step.version + 100)] = steps[WorkerStep("P3", 0, 0)]
    run = record_stored(stored, again)
    pulled = [item.sum for item in run.pulled if item.reader == "P3" and item.sum is not None]
    differences = np.hstack([b - a for a, b in pairwise(pulled)])
    assert inside(X["P1"], differences) > 1 - 1e-4
    assert inside(X["P2"], differences) < 0.2


@pytest.mark.parametrize("stored", HIDING, ids=repr)
def test_the_server_and_one_reader_together_open_every_payload(stored: StoredSum) -> None:
    """The stated assumption: the server's payloads and a reader's keys give the outputs of all workers."""
    run = record_stored(stored, in_step(worker_columns()), readers=("P1",))
    reader: Any = run.sides["P1"]
    for event in run.transcript.received:
        if isinstance(event.message, StoredPush):
            step = WorkerStep(event.peer, event.message.batch, event.message.version)
            result = opened(reader, step, event.message.payload)
            np.testing.assert_allclose(result, run.outputs[step][:, 0], atol=1e-3)


@pytest.mark.parametrize("stored", HIDING, ids=repr)
def test_the_server_and_non_readers_open_no_payload(stored: StoredSum) -> None:
    run = record_stored(stored, in_step(worker_columns()), readers=("P1",))
    for name in ("P2", "P3"):
        side: Any = run.sides[name]
        held_out = getattr(side, "_masks", None) or side._marks
        assert set(held_out._keys) == {name}
        assert getattr(side, "_holder", None) is None
    server: Any = run.sides[COLLECTS]
    assert not any(hasattr(value, "decrypt") or hasattr(value, "_keys") for value in vars(server).values())


def opened(reader: Any, step: WorkerStep, payload: bytes) -> Floats:
    """Return a worker's forward outputs from its payload and a reader's keys."""
    if hasattr(reader, "_holder"):
        return np.asarray(reader._holder.decrypt(payload)[:ROWS])
    words = np.frombuffer(payload, "<u8") - reader._masks.of(*step, ROWS + CHECK_WORDS)
    return np.asarray(words.view(np.int64)[:ROWS] * 2.0**-49)
