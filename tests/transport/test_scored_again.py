"""Rows are requested again: in other blocks, by several clients at once, and together with rows that are refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations import scoring
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_rows
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.scoring import score_rows
from securevfl.organisations.serve import Server
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.training import new_rows
from securevfl.training.new_rows import IndexedRows, rows_of_array
from tests.builders import make_job
from tests.transport.processes import at_each
from tests.transport.test_serve import limits
from tests.transport.test_shares import CHUNKED_JOB


class Trained:
    """A model of two organisations on shares, and new rows of both: training rows with a minimal change."""

    def __init__(
        self, meet: Any, folder: Path, job: vfl.Job | None = None, parties: Sequence[vfl.Party] | None = None
    ) -> None:
        self.meeting = meet(2, None, job or make_job(CHUNKED_JOB))
        self.left: dict[Any, str] = {}
        self.ledgers = {name: folder / f"{name}.ledger" for name in ("bank", "shop")}
        self.parties = vfl.datasets.breast_cancer(2) if parties is None else parties
        self.parts = at_each(self.meeting, self._join, self.parties)
        self.tables = {party.name: party for party in self.parties}
        self.train = self.meeting.job.schedule(self.tables["bank"].register).train
        limits(DisclosureLedger(self.ledgers["shop"], "shop"))

    def _join(self, party: vfl.Party, kit: Path) -> Any:
        keys: dict[str, Any] = {"ledger": self.ledgers[party.name], "timeout": 20, "patience": 5}
        return join(self.meeting.job, party, kit / "peers.toml", **keys)

    def held(self, name: str, shift: float = 0.0) -> IndexedRows:
        """Return all changed rows, followed by the unchanged training rows."""
        X = self.parts[name].table(self.tables[name].X)
        ids = [f"new {row}" for row in range(len(X))] + self.tables[name].ids[self.train].tolist()
        return IndexedRows(name, ids, np.concatenate([X + 1e-6 + shift, X[self.train]]))

    def score(self, rows: Any, shift: float = 0.0, strangers: int = 0) -> tuple[ScoreCounts, dict[Any, float]]:
        """Request scores from a serving party by a separate command; `left` has the rows without a score, by id."""
        self.left.clear()
        scores: dict[Any, float] = {}
        indexed = self.held("bank", shift)
        chosen = IndexedRows("bank", [indexed.ids[row] for row in rows], indexed.X[list(rows)])
        more = IndexedRows(
            "bank",
            [*chosen.ids, *(f"stranger {k}" for k in range(strangers))],
            np.concatenate([chosen.X, indexed.X[:strangers]]),
        )
        server = Server(self.parts["shop"], self.held("shop"), self.at("shop"), ledger=self.ledgers["shop"])

        def ask() -> ScoreCounts:
            return score_rows(
                self.parts["bank"],
                more,
                self.at("bank"),
                on_block=lambda ids, block: scores.update(zip(ids or [], block.decision[:, 0].tolist(), strict=True)),
                on_unscored=lambda row_id, state: self.left.update({row_id: state}),
                ledger=self.ledgers["bank"],
            )

        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(server.run, over.is_set)
            try:
                answered = ask()
            finally:
                over.set()
            served.result()
        return answered, scores

    def predict(self, rows: Sequence[int]) -> tuple[dict[str, Any], dict[str, dict[Any, str]]]:
        """Return the counts or the error of `predict` at both parties, and the rows without a score that each names."""
        left: dict[str, dict[Any, str]] = {party.name: {} for party in self.parties}

        def ask(party: vfl.Party, kit: Path) -> ScoreCounts:
            indexed, part = self.held(party.name), self.parts[party.name]
            return predict_rows(
                part,
                rows_of_array(part, indexed.X[rows], [indexed.ids[row] for row in rows]),
                self.at(party.name),
                on_block=lambda ids, block: None,
                on_unscored=lambda row_id, state: left[party.name].update({row_id: state}),
                ledger=self.ledgers[party.name],
            )

        return at_each(self.meeting, ask, self.parties), left

    def at(self, name: str) -> PeerSettings:
        return PeerSettings.of(self.meeting.kit(name) / "peers.toml", timeout=20, patience=5)

    def told(self) -> dict[str, int]:
        """Return the counts of the shop's ledger."""
        entries = DisclosureLedger.find(self.ledgers["shop"]).read().entries
        kinds = {entry.disclosure.kind for entry in entries}
        return {
            kind: sum(entry.disclosure.count for entry in entries if entry.disclosure.kind == kind) for kind in kinds
        }


def score_in_blocks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `predict` and a service score this number of rows at a time."""
    for module in (new_rows, scoring):
        monkeypatch.setattr(module, "SCORED_ROWS_PER_BLOCK", rows)


@pytest.fixture
def trained(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return Trained(meet, tmp_path)


def held_id(trained: Trained) -> Any:
    """The id of the first row of the training."""
    return trained.tables["bank"].ids[trained.train[0]]


def test_a_request_omits_refused_rows_and_repeats_stored_scores(trained: Trained) -> None:
    before, n = trained.told().get("scores", 0), len(trained.tables["bank"].X)
    answered, first = trained.score([*range(30), n, n + 1], strangers=3)
    assert answered == ScoreCounts(35, 30, trained=2)
    training = dict.fromkeys(trained.tables["bank"].ids[trained.train[:2]].tolist(), "trained")
    assert trained.left == training | {f"stranger {k}": "unknown" for k in range(3)}
    assert (answered.unknown, list(first)) == (3, [f"new {row}" for row in range(30)])
    assert {kind: trained.told().get(kind, 0) for kind in ("scores", "ids")} == {"scores": before + 30, "ids": 33}

    again, same = trained.score([*range(30), n, n + 1], strangers=0)
    assert again == ScoreCounts(32, 30, trained=2)
    assert same == first
    assert trained.told()["ids"] == 33  # the bank had all scores, and has requested none

    answered, more = trained.score(range(20, 50))
    assert answered == ScoreCounts(30, 30)
    assert {name: more[name] for name in more.keys() & first.keys()} == {
        f"new {k}": first[f"new {k}"] for k in range(20, 30)
    }
    assert (trained.told()["scores"], trained.told()["ids"]) == (before + 50, 53)

    assert trained.score(range(45, 55), 0.5)[0] == ScoreCounts(10, 5, changed=5)


def test_a_client_that_lost_its_scores_gets_the_same_bytes(trained: Trained) -> None:
    _, first = trained.score(range(30))
    score_ledger = ScoreLedger(trained.ledgers["bank"])
    with score_ledger._file.changing() as tables:
        tables.execute("UPDATE scored SET score = NULL")
    answered, again = trained.score([*range(10, 40)])
    assert answered == ScoreCounts(30, 30)
    assert {name: again[name] for name in again.keys() & first.keys()} == {
        f"new {k}": first[f"new {k}"] for k in range(10, 30)
    }


@pytest.mark.parametrize("block", [new_rows.SCORED_ROWS_PER_BLOCK, 4])
def test_a_spent_row_is_refused_and_counts_as_one_id(
    block: int, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_in_blocks(block, monkeypatch)
    spent = [id_digest("shop", f"new {row}") for row in (3, 4)]
    score_ledger = ScoreLedger(trained.ledgers["shop"])
    for model in (b"1", b"2", b"3"):  # three models, a fourth of its 15 columns
        score_ledger.record_model(model, 20, [])
        score_ledger.admit(
            score_ledger.query(model, "telco", spent, bytes(32)), np.random.default_rng(0).normal(size=(2, 15))
        )
    answered, scores = trained.score(range(6))
    assert answered == ScoreCounts(6, 4, refused=2)
    assert sorted(scores) == [f"new {row}" for row in (0, 1, 2, 5)]
    before = trained.told()["ids"]

    outcomes, left = trained.predict([*range(8), len(trained.tables["bank"].X)])
    assert outcomes["bank"] == ScoreCounts(9, 6, trained=1, refused=2)
    assert left["bank"] == {"new 3": "refused", "new 4": "refused", str(held_id(trained)): "trained"}
    # the shop may not name the ids of these rows
    assert (outcomes["shop"], left["shop"]) == (ScoreCounts(9, 6, refused=3), {})
    assert trained.told()["ids"] == before + 3
