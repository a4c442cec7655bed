"""Preprocessing of the next chunk overlaps with the training iterations of the current chunk."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import ProtocolError, SecureVFLError, TransportError
from securevfl.families.shares.chunk_pipeline import ChunkPipeline
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, MemoryStore
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code


def alone(work):
    """Return the result of `work` for a party's channel that receives nothing."""
    results = []

    def one(channel):
        results.append(work(channel))

    def clock():
        return VirtualClock(Network())

    run_threads({"a": one, "b": lambda channel: None}, clock, timeout=20)
    return results[0]


def test_the_next_chunk_is_generated_during_the_current_one():
    def work(channel):
        generated, seen = {k: threading.Event() for k in range(3)}, []
        with ChunkPipeline(channel, [0, 1, 2], lambda k: generated[k].set(), lambda k: True) as turns:
            for k in turns:
                seen.append(k)
                assert all(generated[other].wait(60) for other in range(min(k + 2, 3)))
                assert not any(generated[other].is_set() for other in range(k + 2, 3))
        return seen

    assert alone(work) == [0, 1, 2]


def test_without_room_chunks_are_generated_in_turn():
    def work(channel):
        generated, seen = [], []
        with ChunkPipeline(channel, [0, 1, 2], generated.append, lambda k: False) as turns:
            for k in turns:
                time.sleep(0.02)
                seen.append((k, list(generated)))
        return seen

    assert alone(work) == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


def test_what_fails_beside_the_visits_fails_the_party():
    def work(channel):
        def make(k):
            if k:
                raise ProtocolError("no chunk")

        def training():
            with ChunkPipeline(channel, [0, 1], make, lambda k: True) as turns:
                for _ in turns:
                    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
                        channel.recv("b", vfl.protocols.shares.iteration.MaskedTables)

        with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
            training()
        return True

    assert alone(work)


@pytest.mark.parametrize("error", [TransportError("b is away"), None])
def test_a_training_that_ends_leaves_no_thread_behind(error):
    """A failed training ends threads that wait for messages; a finished one lets them end,
    because others wait for them.
    """

    def work(channel):
        before, finished = set(threading.enumerate()), []

        def make(k):
            if k and error:
                channel.recv("b", vfl.protocols.shares.iteration.MaskedTables)
            time.sleep(0.05)
            finished.append(k)

        def training():
            with ChunkPipeline(channel, [0, 1], make, lambda k: True) as turns:
                for k in turns:
                    yield k
                    if error:
                        raise error

        rounds = training()
        next(rounds)
        if error:
            with raises_code(TransportError, "SVFL-PEER-AWAY"):
                next(rounds)
        else:
            rounds.close()
        assert not [thread for thread in threading.enumerate() if thread not in before and thread.name != "b"]
        return finished

    assert alone(work) == ([0] if error else [0, 1])


PIPELINED_JOB = vfl.Job(
    model=vfl.Logistic(),
    optimizer=vfl.FedSGD(lr=0.3),
    protocol=vfl.Protocol(shares=vfl.Shares(chunk=2)),
    batch_size="all",
    epochs=6,
    test_fraction=0.3,
    evaluate_every=1,
)


@pytest.mark.parametrize("parties", [2, 3])
def test_training_continues_during_preprocessing(monkeypatch, parties):
    """The first visit waits for the next chunk to be begun at all parties, and measures its model meanwhile."""
    begun, make = threading.Barrier(parties + 1, timeout=120), OfflinePhase.generate

    def watched(self, chunk, visits, **options):
        if chunk == 2:
            begun.wait()
        make(self, chunk, visits, **options)

    monkeypatch.setattr(OfflinePhase, "generate", watched)
    tables = vfl.datasets.breast_cancer(parties)
    run = vfl.simulate(PIPELINED_JOB, tables, workers=1, on_round=lambda done, of: begun.wait() if done == 1 else None)
    assert not begun.broken
    losses = [record["loss"] for record in run.history if "loss" in record]
    assert len(losses) > 3
    assert losses[-1] < losses[1] < losses[0]  # entries of the table of losses are rounded at random


def test_a_training_that_stops_early_stops_well():
    """The next chunk is being computed at that time; the model is that of the iterations so far."""
    job = PIPELINED_JOB.model_copy(update={"target": vfl.Target(metric="loss", value=0.5)})
    run = vfl.simulate(job, vfl.datasets.breast_cancer(), workers=1)
    assert 0 < run.costs.rounds < 6
    assert run.history[-1]["loss"] < 0.5


def test_a_store_knows_its_room():
    store = MemoryStore(limit=100)
    store.put(0, bytes(NAME_BYTES), 0, [b"x" * 30] * 2)
    assert store.free_bytes == 40
    with raises_code(SecureVFLError, "SVFL-JOB-TOO-LARGE"):
        store.put(1, bytes(NAME_BYTES), 2, [np.zeros(41, np.uint8).tobytes()])
    store.drop(0)
    assert store.free_bytes == 100
