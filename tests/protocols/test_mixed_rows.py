"""A request with rows in every state, and a queue with many requests of one id, compared with a loop over rows."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.organisations.gateway import Gateway, _QueuedRow
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ROW_STORED, ScoreLedger
from tests.protocols.test_shares_predict import HALVES, Model

STATES = ("new", "stored", "trained", "trained at b", "trained at c", "other columns", "lost")
HOLDER_THAT_LOSES = {"a": "a", "b": "b", "c": "a"}
"""The share holder that does not round, by the requesting party: without its share, a row gets no second score."""


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("to", ["a", "b", "c"])
def test_rows_of_a_mixed_request_are_answered_as_if_alone(to: str, outputs: int, tmp_path: Path) -> None:
    """Two rows of each state in random order, over two blocks: the answer to each row depends only on its state."""
    model = Model(2, 3, 2, outputs=outputs)
    ledgers = {name: ScoreLedger(tmp_path / name) for name in "abc"}
    drawn = random.Random(f"{to} {outputs}")
    states = [state for state in STATES for _ in range(2)] + ["new"]
    drawn.shuffle(states)
    ids = [f"row {index}".encode() for index in range(len(states))]
    rows = np.arange(len(states))

    def ids_of(*wanted: str) -> list[bytes]:
        return [row_id for row_id, state in zip(ids, states, strict=True) if state in wanted]

    for name, ledger in ledgers.items():
        ledger.record_model(b"model", 20, [b"another", *ids_of("trained", f"trained at {name}")])
    block = model.columns(len(states), 4)
    earlier = np.array([state in ("stored", "other columns", "lost") for state in states])
    asked = {name: X[earlier] for name, X in block.items()}
    (first,) = model.ask([asked], [[ids[row] for row in rows[earlier]]], ledgers, to=to, levels=HALVES)
    assert np.isfinite(first).all()
    before = np.full((len(states), outputs), np.nan)
    before[earlier] = first
    loser = ledgers[HOLDER_THAT_LOSES[to]]
    with loser._file.changing() as tables:
        tables.executemany(
            "UPDATE scored SET part = NULL WHERE row = ?", [(row,) for row in loser._digests(ids_of("lost"))]
        )
    block[to][[state == "other columns" for state in states]] += 1.0
    cut = len(states) // 2
    blocks = [{name: X[part] for name, X in block.items()} for part in (slice(0, cut), slice(cut, None))]
    answers = model.ask(blocks, [ids[:cut], ids[cut:]], ledgers, to=to, levels=HALVES)
    scores, exact = np.concatenate(answers), model.exact(block)
    bits = {name: ledger.disclosed_bits(ids) for name, ledger in ledgers.items()}
    for row, state in enumerate(states):
        if state == "stored":
            np.testing.assert_array_equal(scores[row], before[row])
        elif state == "new":
            assert np.abs(scores[row] - exact[row]).max() < 0.8, row
        else:
            assert np.isnan(scores[row]).all(), state
        disclosed = state in ("new", "stored", "other columns", "lost")
        for name in set("abc") - {to}:
            assert bits[name][row][0] == HALVES.bits * outputs * disclosed, (name, state)


def test_the_decision_about_each_row_is_that_of_a_loop() -> None:
    """`admit` of one ledger, over random schedules of requests by two peers under three models, against a plain model.

    The plain model stores for each row which peers and models have had it, as the documentation of the ledger states.
    """
    for seed in range(6):
        drawn, ledger = random.Random(seed), ScoreLedger(None)
        models, peers, bits = (b"m1", b"m2", b"m3"), ("bank", "shop", "telco"), 4.0
        columns, limit = [(12, 9.0), (12, 100.0), (4, 100.0)][seed % 3]  # bits, two models, or one model are the limit
        for name in models:
            ledger.record_model(name, 10, [b"row 0"])
        had: dict[bytes, dict[tuple[str, bytes], str]] = {}
        bound: dict[tuple[bytes, str], int] = {}
        attempts: dict[tuple[bytes, str, bytes], int] = {}
        for _ in range(25):
            ids = drawn.sample([f"row {k}".encode() for k in range(8)], drawn.randint(1, 6))
            peer, model = drawn.choice(peers), drawn.choice(models)
            versions = [drawn.choice([0, 0, 0, 1]) for _ in ids]
            commitments = b"".join(
                f"{row_id.decode()} {v}".encode().ljust(16) for row_id, v in zip(ids, versions, strict=True)
            )
            query = ledger.query(model, peer, ids, commitments)
            result = ledger.admit(
                query, np.random.default_rng(seed).normal(size=(len(ids), columns)), bits=bits, max_bits=limit
            )
            expected = []
            for row_id, version in zip(ids, versions, strict=True):
                own, key = had.setdefault(row_id, {}), (peer, model)
                others = {name for name in own if name != key}
                expected.append(ROW_NEW)
                if row_id == b"row 0" or bound.get((row_id, peer), version) != version:
                    expected[-1] = ROW_REFUSED
                elif own.get(key) == "stored":
                    expected[-1] = ROW_STORED
                elif (
                    attempts.get((row_id, *key), 0) >= 4
                    or len({name for _, name in others} - {model}) >= max(1, columns // 4 - 1)
                    or bits * (len(others) + 1) > limit
                ):
                    expected[-1] = ROW_REFUSED
                if expected[-1] == ROW_NEW:
                    own.setdefault(key, "admitted")
                    bound[row_id, peer] = version
                    attempts[row_id, peer, model] = attempts.get((row_id, peer, model), 0) + 1
            assert result.tolist() == expected, (seed, peer, model)
            finished = np.array([state == ROW_NEW and drawn.random() < 0.6 for state in expected])
            ledger.store(query.where(finished), [b"part"] * int(finished.sum()))
            for row_id in np.array(ids)[finished]:
                had[row_id][peer, model] = "stored"


@pytest.fixture
def queue_of() -> Callable[[list[tuple[bytes, float]]], Iterator[list[tuple[bytes, float]]]]:
    """Return the blocks that a gateway makes of waiting rows, given as ids and values."""

    def blocks(rows: list[tuple[bytes, float]], max_rows: int = 100) -> Iterator[list[tuple[bytes, float]]]:
        gateway: Any = object.__new__(Gateway)
        gateway._queue, gateway._held_over, gateway._window = queue.Queue(), [], 0.001
        gateway._gathering = threading.Lock()
        for key, value in rows:
            gateway._queue.put(_QueuedRow(key, key, np.array([value]), Future()))
        left = len(rows)
        while left:
            block = gateway._next_block(max_rows)
            left -= len(block)
            yield [(queued.key, float(queued.X[0])) for queued in block]
        assert not gateway._held_over

    return blocks


@pytest.mark.parametrize("max_rows", [1, 2, 3, 100])
def test_requests_for_one_id_are_answered_in_order(queue_of: Any, max_rows: int) -> None:
    """Four and more requests of one id, mixed with others: the first columns that arrive bind the id."""
    for seed in range(5):
        drawn = random.Random(seed)
        rows = [(drawn.choice([b"x", b"y", b"z"]), float(number)) for number in range(12)] + [(b"w", 12.0)]
        assert max(sum(key == name for key, _ in rows) for name in (b"x", b"y", b"z")) >= 4
        blocks = list(queue_of(rows, max_rows))
        for block in blocks:
            assert 0 < len(block) <= max_rows
            assert len({key for key, _ in block}) == len(block)
        for name in (b"w", b"x", b"y", b"z"):
            answered = [value for block in blocks for key, value in block if key == name]
            assert answered == [value for key, value in rows if key == name], (seed, name)
