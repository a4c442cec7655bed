"""Before answers about new rows are sent, ledgers record each output, block, code and id."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import securevfl as vfl
from securevfl.credit.reason_codes import ReasonCodePolicy, ReasonCodes
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.predict import answer_rows
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.prediction_session import PredictionHandshake
from securevfl.organisations.scoring import ScoreClient, ServedTable, ServerLimits, serve_requests
from securevfl.protocols.alignment.online_lookup import TableTags
from securevfl.protocols.joint_prediction import RowState
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


def labelled_tables(outputs: int, rows: int = 90) -> list[vfl.Party]:
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
    return vfl.simulate(job, labelled_tables(outputs))


def in_blocks(X: Any, first: int = 0) -> NewRows:
    def blocks() -> Iterator[tuple[list[Any], Any]]:
        for start in range(0, ROWS, BLOCK):
            block_rows = list(range(start, min(ROWS, start + BLOCK)))
            yield [first + row for row in block_rows], X[block_rows]

    return NewRows(ROWS, b"", blocks)


class Sent:
    """Note the shop's recorded disclosures whenever it sends a message of this kind."""

    def __init__(self, ledger: DisclosureLedger, *kinds: type[DisclosingMessage]) -> None:
        self.ledger, self.kinds, self.entered = ledger, kinds, list[tuple[int, int]]()

    def coded(self) -> int:
        """Return the number of rows for which the score ledger has recorded codes."""
        if not self.ledger.path.exists():
            return 0
        score_ledger = ScoreLedger(self.ledger.path)
        return int(score_ledger._file._connection.execute("SELECT count(DISTINCT row) FROM codes").fetchone()[0])

    def __call__(self, event: Event) -> None:
        if event.direction == "send" and event.me == "shop" and isinstance(event.message, self.kinds):
            scores = sum(
                entry.disclosure.count for entry in self.ledger.read().entries if entry.disclosure.kind == "scores"
            )
            coded = self.coded()
            self.entered.append((scores, coded))


@pytest.mark.parametrize(("outputs", "codes"), [(1, 0), (1, 2), (3, 0)])
def test_all_that_a_prediction_tells_is_entered_before_it_leaves(outputs: int, codes: int, tmp_path: Path) -> None:
    """The scores of all rows and outputs, and one more a row for its codes, before the first block; the codes of each
    block before they leave."""
    trained = run(outputs)
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in trained.parts}
    seen = Sent(ledgers["shop"], Summand, ReasonCodes)
    decisions = list[Any]()

    def play(party: vfl.Party, channel: Channel) -> None:
        part = trained.parts[party.name]
        code_policy = ReasonCodePolicy(codes, {column: f"R {column}" for column in part.columns}) if codes else None
        answer_rows(
            part,
            in_blocks(part.table(party.X)),
            channel,
            ledgers[party.name],
            on_block=lambda ids, block: decisions.extend(block.decision.tolist()),
            code_policy=code_policy if party.name == "shop" else None,
        )

    roles = {party.name: partial(play, party) for party in labelled_tables(outputs)}
    run_threads(roles, WallClock, observe=seen)
    assert len(decisions) == ROWS
    assert {scores for scores, _ in seen.entered} == {ROWS * (outputs + (codes > 0))}
    debited = [min(ROWS, BLOCK * number) for number in range(1, 5)]
    assert [coded for _, coded in seen.entered] == ([count for count in debited for _ in "fc"] if codes else [0] * 4)


@pytest.mark.parametrize("ids_asked", [10, 120])
def test_requested_ids_are_recorded_before_any_answer(ids_asked: int, tmp_path: Path) -> None:
    """Of fewer than the table has as of more: that an id is not there is an answer too."""
    trained, ledger = run(1), DisclosureLedger(tmp_path / "shop", "shop")
    entered, again = list[int](), list[int]()

    opening = PredictionHandshake | ServerLimits | TableTags

    def note(event: Event) -> None:
        if event.me == "shop" and event.direction == "send" and not isinstance(event.message, opening):
            entered.append(
                sum(entry.disclosure.count for entry in ledger.read().entries if entry.disclosure.kind == "ids")
            )

    def rows(party: vfl.Party, part: ModelPart) -> IndexedRows:
        table = part.table(party.X)
        return IndexedRows(party.name, list(range(len(table))), table)

    def ask(party: vfl.Party, channel: Channel) -> Any:
        indexed = rows(party, trained.parts["bank"])
        asking = ScoreClient(trained.parts["bank"], channel, DisclosureLedger(tmp_path / "bank", "bank"))
        outcome = asking.ask(indexed.ids, indexed.X)
        again.append(len(entered))
        asking.ask([f"new {number}" for number in range(7)], indexed.X[:7])  # in the same conversation
        asking.end()
        return ScoreCounts.of(outcome.states)

    def answer(party: vfl.Party, channel: Channel) -> Any:
        part = trained.parts["shop"]
        return list(serve_requests(part, ServedTable(rows(party, part), 1000), channel, ledger))

    bank, _ = labelled_tables(1, ids_asked)
    _, shop = labelled_tables(1)
    outcomes = run_threads({"bank": partial(ask, bank), "shop": partial(answer, shop)}, WallClock, observe=note)
    assert outcomes["bank"].scored == min(ids_asked, 90)
    assert set(entered[: again[0]]) == {ids_asked}
    assert set(entered[again[0] :]) == {ids_asked + 7}


def test_every_state_of_a_row_is_counted_once() -> None:
    """In random mixes of all states; `unknown` is what no other count contains."""
    states = get_args(RowState)
    generator = np.random.default_rng(3)
    for _ in range(50):
        mix = [states[int(k)] for k in generator.integers(0, len(states), 40)]
        counts = ScoreCounts.of(mix)
        assert {state: getattr(counts, state) for state in states} == {state: mix.count(state) for state in states}
        assert (counts + counts).unknown == 2 * mix.count("unknown")


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_from_shares_are_counted_for_each_row_and_output(classes: int, tmp_path: Path) -> None:
    """Rows that were not in the training; the family admits rows itself, and reports how many it scores."""
    parties = labelled_tables(1 if classes == 2 else 3)
    job = vfl.Job(
        model=vfl.GeneralLinear(loss="logistic" if classes == 2 else "one_vs_rest"),
        epochs=10,
        test_fraction=0.0,
        evaluate_every=0,
        accepts=["small_metrics", "scores"],
    )
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in parties}
    trained = vfl.simulate(job, parties, ledgers=ledgers)

    def play(party: vfl.Party, channel: Channel) -> None:
        part = trained.parts[party.name]
        answer_rows(
            part,
            in_blocks(part.table(party.X + 0.1), len(party.X)),
            channel,
            ledgers[party.name],
            on_block=lambda ids, block: None,
        )

    run_threads({party.name: partial(play, party) for party in parties}, WallClock)
    (counted,) = (entry.disclosure for entry in ledgers["shop"].read().entries if entry.disclosure.kind == "scores")
    assert counted.count == ROWS * (1 if classes == 2 else 3)
