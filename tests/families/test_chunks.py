"""How the epochs of a training on shares are divided into chunks, and after which of them rows are counted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.data.schedule import BatchSize, rows_of_epochs
from securevfl.families.shares.chunk_division import (
    FIRST_CHUNK_SHARE,
    MAX_CHUNK_EPOCHS,
    MAX_PREPROCESSING_BYTES,
    MIN_CHUNK_ITERATIONS,
    chunk_ends,
    split_chunks,
)
from securevfl.protocols.observations import IterationStarted
from securevfl.protocols.shares.range_count import OutOfRangeCount
from securevfl.runtime.observer import Event, Observer


def job_of(epochs: int, batch_size: BatchSize = "all", chunk: int | None = None, **keys: Any) -> vfl.Job:
    optimizer = vfl.FedSGD(lr=0.1) if isinstance(batch_size, int) else vfl.BlockDescent()
    shares = vfl.Protocol(shares=vfl.Shares(chunk=chunk))
    return vfl.Job(
        model=vfl.Logistic(), optimizer=optimizer, protocol=shares, batch_size=batch_size, epochs=epochs, **keys
    )


@pytest.mark.parametrize(
    ("job", "rows", "ends"),
    [
        (job_of(1), 100, (1,)),
        (job_of(15), 100, (15,)),  # a second chunk would have fewer than eight iterations
        (job_of(16), 100, (8, 16)),
        (job_of(30), 100, (8, 24, 30)),
        (job_of(40), 22_500, (8, 24, 40)),
        (job_of(41), 22_500, (8, 24, 40, 41)),
        (job_of(120), 22_500, (17, 40, 80, 120)),
        (job_of(270), 100, (38, 40, 48, 64, 80, 112, 120, 136, 160, 200, 240, 270)),
        (job_of(40, "growing"), 150_000, (16, 24, 40)),  # sixteen iterations on the smaller subset
        (job_of(40, "growing"), 3_750_000, (17, 25, 34, 40)),
        (job_of(40, 128), 12_800, (5, 15, 35, 40)),
        (job_of(9, chunk=3), 100, (3, 6, 9)),
        (job_of(10, chunk=3), 100, (3, 6, 9, 10)),
        (job_of(3, chunk=10), 100, (3,)),
    ],
)
def test_the_chunks_of_known_jobs(job: vfl.Job, rows: int, ends: tuple[int, ...]) -> None:
    assert chunk_ends(job, rows, 1) == ends  # type: ignore[arg-type]


@given(
    epochs=st.integers(1, 130),
    batch_size=st.sampled_from(["all", "growing", 128, 4096]),
    rows=st.sampled_from([20, 1000, 99_999, 100_000, 400_000, 5_000_000]),
    outputs=st.sampled_from([1, 3, 10]),
)
@example(epochs=80, batch_size="all", rows=1000, outputs=1)
@example(epochs=81, batch_size="growing", rows=5_000_000, outputs=10)
def test_chunks_are_small_at_first_and_fit_into_memory(
    epochs: int, batch_size: BatchSize, rows: int, outputs: int
) -> None:
    job = job_of(epochs, batch_size)
    ends, by_epoch = chunk_ends(job, rows, outputs), rows_of_epochs(rows, epochs, batch_size)  # type: ignore[arg-type]
    assert list(ends) == sorted(set(ends))
    assert ends[-1] == epochs
    assert {*range(MAX_CHUNK_EPOCHS, epochs, MAX_CHUNK_EPOCHS)} <= set(ends)
    chunks = [by_epoch[start:end] for start, end in pairwise((0, *ends))]
    table_bits = job.protocol.shares.table_bits  # type: ignore[union-attr]
    batches = 1 if isinstance(batch_size, str) else -(-rows // batch_size)
    least = -(-MIN_CHUNK_ITERATIONS // batches)
    limit = sum(by_epoch) // FIRST_CHUNK_SHARE
    for chunk in chunks:
        assert len(chunk) == 1 or sum(chunk) * outputs * 16 * (1 + table_bits) <= MAX_PREPROCESSING_BYTES
        # a first chunk contains the iterations after it if they are too few for a second one
        is_only = chunk is chunks[0] and len(chunk) < 2 * least
        assert sum(chunk) <= limit or len(chunk) <= least or is_only
        limit = 2 * sum(chunk)


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9, 23, 24, 39])
def test_the_rest_of_a_training_keeps_the_ends_of_its_chunks(start: int) -> None:
    job = job_of(40)
    iterations = list(job.schedule(200).iterations())
    ends = chunk_ends(job, 150, 1)  # type: ignore[arg-type]
    chunks = list(split_chunks(iterations, start, ends))
    assert [first + len(chunk) for first, chunk in chunks] == [end for end in ends if end > start]
    assert [iteration.epoch for _, chunk in chunks for iteration in chunk] == list(range(start, 40))


class _Counts(Observer):
    """The number of iterations that the bank has begun before it receives each count of rows."""

    def __init__(self) -> None:
        self.begun, self.counted = 0, list[int]()

    def __call__(self, event: Event) -> None:
        if event.me == "bank" and isinstance(event.message, OutOfRangeCount):
            self.counted.append(self.begun)

    def note(self, me: str, fact: object) -> None:
        self.begun += me == "bank" and isinstance(fact, IterationStarted)


@pytest.mark.parametrize("epochs", [8, 39, 40, 41, 80, 81])
def test_rows_are_counted_after_forty_epochs_and_at_the_end(epochs: int) -> None:
    """More chunks do not disclose more counts, and the consent sheet states the number of counts."""
    watch = _Counts()
    X = np.random.default_rng(0).normal(size=(80, 2))
    parties = [vfl.Party("bank", X[:, :1], np.arange(80) % 2, aligned=True), vfl.Party("shop", X[:, 1:], aligned=True)]
    job = job_of(epochs, accepts=["small_metrics"])
    vfl.simulate(job, parties, observe=watch)
    expected = [*range(40, epochs, 40), epochs]
    assert watch.counted == expected
    assert f"{len(expected)} count{'s'[: len(expected) > 1]} of rows near" in vfl.explain(job, parties)
