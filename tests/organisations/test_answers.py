"""What answering about new rows enters in ledgers: each output, block, code and id, before the first leaves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.predict import answer_rows
from securevfl.organisations.prediction_session import PredictionHandshake
from securevfl.organisations.reason_codes import ReasonCodePolicy, ReasonCodes
from securevfl.organisations.scoring import ScoreClient, ServedTable, ServerLimits, serve_requests
from securevfl.protocols.alignment.online_lookup import TableTags
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows, NewRows

ROWS, BLOCK = 30, 8


def tables(outputs: int, rows: int = 90) -> list[vfl.Party]:
    X = np.random.default_rng(0).normal(size=(rows, 7))
    y = (X[:, 0] > 0).astype(int) if outputs == 1 else np.digitize(X[:, 0], [-0.4, 0.4])
    ids = range(rows)
    return [vfl.Party("bank", X[:, :3], y, ids=ids), vfl.Party("shop", X[:, 3:], ids=ids)]


def run(outputs: int) -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic() if outputs == 1 else vfl.Softmax(),
        optimizer=vfl.FedSGD(lr=0.1),
        protocol=vfl.Protocol(sum="direct", residual="open"),
        batch_size=45,
        epochs=1,
        reason_codes=2 * (outputs == 1),
        accepts=["columns", "rank"],
    )
    return vfl.simulate(job, tables(outputs))


def in_blocks(X: Any) -> NewRows:
    def blocks() -> Iterator[tuple[list[Any], Any]]:
        for start in range(0, ROWS, BLOCK):
            own = list(range(start, min(ROWS, start + BLOCK)))
            yield list(own), X[own]

    return NewRows(ROWS, b"", blocks)


class Sent:
    """Notes what the shop has entered whenever it sends something of this kind."""

    def __init__(self, ledger: DisclosureLedger, *kinds: type[DisclosingMessage]) -> None:
        self.ledger, self.kinds, self.entered = ledger, kinds, list[tuple[int, int]]()

    def coded(self) -> int:
        """How many rows the ledger of scores has noted codes of."""
        if not self.ledger.path.exists():
            return 0
        own = ScoreLedger(self.ledger.path)
        return int(own._file._connection.execute("SELECT count(DISTINCT row) FROM codes").fetchone()[0])

    def __call__(self, event: Event) -> None:
        if event.direction == "send" and event.me == "shop" and isinstance(event.message, self.kinds):
            scores = sum(
                each.disclosure.count for each in self.ledger.read().entries if each.disclosure.kind == "scores"
            )
            coded = self.coded()
            self.entered.append((scores, coded))


@pytest.mark.parametrize(("outputs", "codes"), [(1, 0), (1, 2), (3, 0)])
def test_all_that_a_prediction_tells_is_entered_before_it_leaves(outputs: int, codes: int, tmp_path: Path) -> None:
    """The scores of all rows and outputs, and one more a row for its codes, before the first block; the codes of each
    block before they leave."""
    trained = run(outputs)
    own = {name: DisclosureLedger(tmp_path / name, name) for name in trained.parts}
    seen = Sent(own["shop"], Summand, ReasonCodes)
    found = list[Any]()

    def play(party: vfl.Party, channel: Channel) -> None:
        part = trained.parts[party.name]
        given = ReasonCodePolicy(codes, {each: f"R {each}" for each in part.columns}) if codes else None
        answer_rows(
            part,
            in_blocks(part.table(party.X)),
            channel,
            own[party.name],
            on_block=lambda ids, block: found.extend(block.decision.tolist()),
            code_policy=given if party.name == "shop" else None,
        )

    roles = {party.name: partial(play, party) for party in tables(outputs)}
    run_threads(roles, WallClock, observe=seen)
    assert len(found) == ROWS
    assert {scores for scores, _ in seen.entered} == {ROWS * (outputs + (codes > 0))}
    told = [min(ROWS, BLOCK * number) for number in range(1, 5)]
    assert [coded for _, coded in seen.entered] == ([each for each in told for _ in "fc"] if codes else [0] * 4)


@pytest.mark.parametrize("asked", [10, 120])
def test_all_ids_that_are_asked_about_are_entered_before_any_answer(asked: int, tmp_path: Path) -> None:
    """Of fewer than the table has as of more: that an id is not there is an answer too."""
    trained, ledger = run(1), DisclosureLedger(tmp_path / "shop", "shop")
    entered, again = list[int](), list[int]()

    opening = PredictionHandshake | ServerLimits | TableTags

    def note(event: Event) -> None:
        if event.me == "shop" and event.direction == "send" and not isinstance(event.message, opening):
            entered.append(
                sum(each.disclosure.count for each in ledger.read().entries if each.disclosure.kind == "ids")
            )

    def rows(party: vfl.Party, part: ModelPart) -> IndexedRows:
        table = part.table(party.X)
        return IndexedRows(party.name, list(range(len(table))), table)

    def ask(party: vfl.Party, channel: Channel) -> Any:
        held = rows(party, trained.parts["bank"])
        asking = ScoreClient(trained.parts["bank"], channel, DisclosureLedger(tmp_path / "bank", "bank"))
        outcome = asking.ask(held.ids, held.X)
        again.append(len(entered))
        asking.ask([f"new {each}" for each in range(7)], held.X[:7])  # in the same conversation
        asking.end()
        return outcome.counts

    def answer(party: vfl.Party, channel: Channel) -> Any:
        part = trained.parts["shop"]
        return list(serve_requests(part, ServedTable(rows(party, part), 1000), channel, ledger))

    bank, _ = tables(1, asked)
    _, shop = tables(1)
    found = run_threads({"bank": partial(ask, bank), "shop": partial(answer, shop)}, WallClock, observe=note)
    assert found["bank"].scored == min(asked, 90)
    assert set(entered[: again[0]]) == {asked}
    assert set(entered[again[0] :]) == {asked + 7}
