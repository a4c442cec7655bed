"""Pieces of a ciphertext are returned in order, awaited if necessary, and deleted after use."""

import threading
from collections import deque

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.kernel import row_plaintexts
from securevfl.protocols.residuals.exchanges import Piece, Pieces
from securevfl.protocols.residuals.sealed_residual import BlindedProduct, ResidualCiphertext
from securevfl.runtime.observer import Event


def coming(*pieces: Piece) -> deque[Piece]:
    return deque(pieces)


def test_each_piece_is_given_out_once() -> None:
    incoming = coming((b"b", False), (b"c", True))
    pieces = Pieces((b"a", False), incoming.popleft, again=False)
    assert [*pieces] == [b"a", b"b", b"c"]
    assert pieces._pieces == [b""] * 3


def test_pieces_may_serve_again() -> None:
    incoming = coming((b"b", True))
    pieces = Pieces((b"a", False), incoming.popleft, again=True)
    assert [*pieces] == [*pieces] == [b"a", b"b"]


def test_waiting_takes_all_that_is_on_its_way() -> None:
    incoming = coming((b"b", True), (b"of the next exchange", True))
    pieces = Pieces((b"a", False), incoming.popleft, again=False)
    pieces.wait()
    pieces.wait()
    assert len(incoming) == 1
    assert [*pieces] == [b"a", b"b"]


def test_unneeded_pieces_are_dropped_on_arrival() -> None:
    incoming = coming((b"b", True))
    pieces = Pieces((b"a", False), incoming.popleft, again=True)
    pieces.forget()
    pieces.wait()
    assert not incoming
    assert pieces._pieces == []


def test_a_piece_is_used_before_the_next_is_here() -> None:
    ready, used = threading.Semaphore(0), []

    def more() -> Piece:
        ready.acquire()
        return b"b", True

    pieces = Pieces((b"a", False), more, again=False)
    for piece in pieces:
        used.append(piece)
        ready.release()
    assert used == [b"a", b"b"]


@pytest.mark.exact_outputs
def test_a_run_in_pieces_learns_the_model_of_one_in_one_piece(monkeypatch) -> None:
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1, local_steps=2),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=600,
        epochs=3,
        accepts=["columns"],
    )
    unsplit = vfl.simulate(job, vfl.datasets.breast_cancer())
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 1)
    events: list[Event] = []
    run = vfl.simulate(job, vfl.datasets.breast_cancer(), observe=events.append)
    came = [event.message for event in events if event.me == "shop" and event.direction == "recv"]
    sealed = [message for message in came if isinstance(message, ResidualCiphertext)]
    assert len(sealed) > 3
    assert sum(message.last for message in sealed) == 3
    assert sum(isinstance(event.message, BlindedProduct) for event in events if event.me == "shop") == 3
    for name, part in unsplit.parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=1e-5)
