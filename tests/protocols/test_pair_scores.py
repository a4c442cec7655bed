"""Scores of models with pairs: the requester chooses what a score shows, and the other party's account limits it."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import LeakageError
from securevfl.models.pair_components import MAX_COMPONENT
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_STORED, ScoreLedger
from securevfl.protocols.shares.opened_scores import RoundedScores, RowStates, ScoringParams, ScoringSession
from securevfl.protocols.shares.pair_sums import ColumnsWithPairs, PairSums
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.runtime.observer import Event
from tests.builders import raises_code
from tests.protocols.test_pairs import RULE, Case, trained

MODEL, BITS = b"model", 7


def ledger_at(path: Path, models: Sequence[bytes] = (MODEL,)) -> ScoreLedger:
    ledger = ScoreLedger(path)
    for model in models:
        if not ledger.knows_model(model):
            ledger.record_model(model, 20, [])
    return ledger


def admitted(ledger: ScoreLedger, ids: Sequence[bytes], limit: float | None, model: bytes = MODEL) -> np.ndarray:
    query = ledger.query(model, "a", ids, b"".join(bytes(COMMITMENT_BYTES) for _ in ids))
    X = np.zeros((len(ids), 40))
    return ledger.admit(query, X, bits=BITS, max_pair_bits=limit)


def rows(start: int, count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(start, start + count)]


def test_the_limit_holds_over_sessions_and_models(tmp_path: Path) -> None:
    path = tmp_path / "account"
    limit = 10.0 * BITS
    assert (admitted(ledger_at(path), rows(0, 6), limit) == ROW_NEW).all()
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):  # another session, and another model
        admitted(ledger_at(path, (MODEL, b"other")), rows(6, 5), limit, b"other")
    assert (admitted(ledger_at(path), rows(6, 4), limit, b"other") == ROW_NEW).all()
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        admitted(ledger_at(path), rows(10, 1), limit)
    # models without pairs are not limited, and do not count
    assert (admitted(ledger_at(path), rows(20, 50), None) == ROW_NEW).all()


def test_a_restored_account_scores_no_model_with_pairs(tmp_path: Path) -> None:
    """It lacks the bits of later scores, so every limit counts as reached, also for models that are trained later."""
    path = tmp_path / "bank.ledger"
    account = DisclosureLedger(path, "bank")
    assert account.pseudonym(b"a row")
    ledger_at(path)
    shutil.copy(path, tmp_path / "copy")
    assert (admitted(ledger_at(path), rows(0, 10), 10.0 * BITS) == ROW_NEW).all()
    gc.collect()  # closes the file
    path.unlink()
    shutil.copy(tmp_path / "copy", path)
    DisclosureLedger.adopt(path)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        admitted(ledger_at(path, (b"trained later",)), rows(0, 1), 10.0 * BITS, b"trained later")
    # the owner may accept any number of bits, and a model without pairs has its own limits
    assert (admitted(ledger_at(path), rows(0, 1), None, b"trained later") == ROW_NEW).all()


def test_rows_that_another_party_refuses_do_not_count(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "account", (MODEL, b"other"))
    assert (admitted(ledger, rows(4, 6), 10.0 * BITS) == ROW_NEW).all()
    for _ in range(5):
        assert (admitted(ledger, rows(0, 4), 10.0 * BITS) == ROW_NEW).all()
        ledger.release(ledger.query(MODEL, "a", rows(0, 4), bytes(4 * COMMITMENT_BYTES)))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        admitted(ledger, rows(10, 5), 10.0 * BITS)
    assert (admitted(ledger, rows(10, 4), 10.0 * BITS, b"other") == ROW_NEW).all()


def test_a_refused_request_records_nothing(tmp_path: Path) -> None:
    """The count and the reservation of rows are one transaction."""
    ledger = ledger_at(tmp_path / "account")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        admitted(ledger, rows(0, 11), 10.0 * BITS)
    assert ledger.disclosed_bits(rows(0, 11)) == [(0.0, 0.0)] * 11
    assert (admitted(ledger, rows(0, 10), 10.0 * BITS) == ROW_NEW).all()


def test_a_stored_score_counts_once(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "account")
    admitted(ledger, rows(0, 10), 10.0 * BITS)
    query = ledger.query(MODEL, "a", rows(0, 10), b"".join(bytes(COMMITMENT_BYTES) for _ in range(10)))
    ledger.store(query, [b"share"] * 10)
    assert (admitted(ledger, rows(0, 10), 10.0 * BITS) == ROW_STORED).all()
    ledger.check_pair_scores(query, bits=BITS, max_pair_bits=10.0 * BITS)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        further = ledger.query(MODEL, "a", rows(5, 10), b"")
        ledger.check_pair_scores(further, bits=BITS, max_pair_bits=10.0 * BITS)


REQUESTED = 120


def attacked(case: Case, limit: float | None, folder: Path, events: list[Event]) -> dict[str, Any]:
    """The requester sends rows with one component of 7 and all others 0, and receives a score of each."""
    rng = np.random.default_rng(5)
    b = rng.integers(-MAX_COMPONENT, MAX_COMPONENT + 1, (REQUESTED, case.pairs.partner), np.int8)
    a = np.zeros((REQUESTED, case.pairs.active), np.int8)
    a[np.arange(REQUESTED), np.arange(REQUESTED) % case.pairs.active] = MAX_COMPONENT

    def play(case: Case, context: PartyContext, session: SharesSession) -> Any:
        me = context.me
        state = trained(case, context, session)[0][-1]
        ledger = ledger_at(folder / me)
        scoring = ScoringParams(MODEL, ledger, Quantizer(-5, BITS), max_pair_bits=limit if me == "b" else None)
        scores = ScoringSession(session.products, case.params, state, scoring, top_transfers=None, rows=REQUESTED)
        ids = rows(0, REQUESTED)
        scores.check_request(ids)
        X = ColumnsWithPairs(np.zeros((REQUESTED, 3)), a if me == "a" else b, PairSums(session, case.pairs))
        return state, scores.block(0, X, RowsToScore(ids, np.zeros((REQUESTED, 40)))).f

    results = case.run(play, observe=events.append)
    return {"a": a, "b": b, "f": results["a"][1], "states": {name: results[name][0] for name in "ab"}}


def test_chosen_components_are_stopped_by_the_account(tmp_path: Path) -> None:
    case = Case(sizes=(3, 2))
    attack = attacked(case, None, tmp_path / "free", [])
    mine, theirs = (attack["states"][name].pairs for name in "ab")
    pairs = case.pairs
    theta = pairs.weights(RULE, mine.opened, result=True) + pairs.weights(RULE, theirs.masks, result=True)
    Theta = pairs.ring.signed(pairs.ring.reduce(theta)).astype(float).reshape(pairs.partner, pairs.active)
    # Rounding to 1/32 hides little of the component with the largest weights, whose scores span more than 1.
    component = int(np.abs(Theta).sum(axis=0).argmax())
    chosen = np.flatnonzero(attack["a"][:, component])
    combination = attack["b"][chosen] @ Theta[:, component]
    scores = attack["f"][chosen, 0]
    known = np.isfinite(scores)
    assert abs(np.corrcoef(scores[known], combination[known])[0, 1]) > 0.9  # the requester reads what it chose

    events: list[Event] = []
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        attacked(case, (REQUESTED - 1) * float(BITS), tmp_path / "limited", events)
    assert not any(isinstance(event.message, RoundedScores | RowStates) for event in events)
